package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Removal is an attachment that is to be removed by a list, and what of that failed.
type Removal struct {
	*Attachment
	List List
	Err  error
}

// Detach removes what is kept for attachments, all by DEL, which reaches no other attachment: by the programs of the
// lists, and what they leave, or of which the list does not know, by this program's own plugins. So an error is about
// what is still there, or may be: a plugin that is not one of ours has to succeed. It begins those that it can within a
// time, one at least, and returns these.
func (n Node) Detach(ctx context.Context, all []*Removal, within time.Duration) []*Removal {
	calls, end := map[cni.Attachment]Call{}, time.Now().Add(within)
	for i, r := range all {
		if i > 0 && time.Now().After(end) {
			all = all[:i]
			break
		}
		c := Call{Command: "DEL", List: r.List}
		c.Container = Container{ID: r.ContainerID, Netns: r.Netns, IfName: r.IfName}
		if r.Cached != nil {
			c.Container, c.PrevResult = r.Cached.Container(), r.Cached.RawResult
		}
		for i, e := range slices.Backward(r.List.Plugins) {
			c.Entry = i
			_, err := n.Run(ctx, c)
			if n.own(e.Type) < 0 || e.IPAM.Type != "" && n.own(e.IPAM.Type) < 0 {
				r.Err = errors.Join(r.Err, err)
			}
		}
		calls[r.Attachment.Attachment] = c
	}
	left, err := n.Attachments(ctx)
	for _, r := range all {
		r.Err = errors.Join(r.Err, err)
		for _, a := range left {
			if a.Attachment == r.Attachment.Attachment {
				r.Err = errors.Join(r.Err, n.detachHere(ctx, a.Holdings, calls[a.Attachment]))
			}
		}
	}
	return all
}

// detachHere calls DEL of our plugins that keep something, with IPAM last.
func (n Node) detachHere(ctx context.Context, left []cni.Holding, c Call) error {
	var errs []error
	for _, p := range slices.Backward(n.Programs) {
		if !slices.ContainsFunc(left, func(h cni.Holding) bool { return h.Plugin == p.Name }) {
			continue
		}
		entry := Entry{Type: p.Name, Raw: map[string]json.RawMessage{}}
		for _, e := range c.List.Plugins { // its keys say where it keeps things
			switch p.Name {
			case e.IPAM.Type:
				entry.Raw = e.Raw
			case e.Type:
				entry.Raw = maps.Clone(e.Raw)
				delete(entry.Raw, "ipam")
			}
		}
		call := c
		call.List.Plugins, call.Entry = []Entry{entry}, 0
		call.List.CNIVersion = cmp.Or(c.List.CNIVersion, cni.Newest)
		errs = append(errs, n.runHere(ctx, call, skel.Env{}))
	}
	return errors.Join(errs...)
}
