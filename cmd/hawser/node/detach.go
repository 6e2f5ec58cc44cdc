package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Detach removes what is kept for an attachment, all by DEL, which reaches no other attachment: by the programs of the
// list, and what they leave, or of which the list does not know, by this program's own plugins. So the error is about
// what is still there, or may be: a plugin that is not one of ours has to succeed.
func (n Node) Detach(ctx context.Context, a *Attachment, list List) error {
	c := Call{Command: "DEL", List: list, Container: Container{ID: a.ContainerID, Netns: a.Netns, IfName: a.IfName}}
	if a.Cached != nil {
		c.Container, c.PrevResult = a.Cached.Container(), a.Cached.RawResult
	}
	var errs []error
	for i, e := range slices.Backward(list.Plugins) {
		c.Entry = i
		_, err := n.Run(ctx, c)
		if n.own(e.Type) < 0 || e.IPAM.Type != "" && n.own(e.IPAM.Type) < 0 {
			errs = append(errs, err)
		}
	}
	all, err := n.Attachments(ctx)
	errs = append(errs, err)
	for _, left := range all {
		if left.Attachment == a.Attachment {
			errs = append(errs, n.detachHere(ctx, left.Holdings, c))
		}
	}
	return errors.Join(errs...)
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
