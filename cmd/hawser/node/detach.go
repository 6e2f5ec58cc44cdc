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

// Removal is an attachment that is to be removed by a list, and what of that failed: an error is about what is still
// there, or may be.
type Removal struct {
	*Attachment
	List List
	Err  error
}

// call is DEL of the attachment as the runtime would make it.
func (r *Removal) call() Call {
	c := Call{Command: "DEL", List: r.List}
	c.Container = Container{ID: r.ContainerID, Netns: r.Netns, IfName: r.IfName}
	if r.Cached != nil {
		c.Container, c.PrevResult = r.Cached.Container(), r.Cached.RawResult
	}
	return c
}

// Detach removes what is kept for an attachment by the programs of its list, all by DEL, which reaches no other one.
// What they leave is for DetachLeft, so only a plugin that is not one of ours has to succeed.
func (n Node) Detach(ctx context.Context, r *Removal) {
	c := r.call()
	for i, e := range slices.Backward(r.List.Plugins) {
		c.Entry = i
		_, err := n.Run(ctx, c)
		if n.own(e.Type) < 0 || e.IPAM.Type != "" && n.own(e.IPAM.Type) < 0 {
			r.Err = errors.Join(r.Err, err)
		}
	}
}

// DetachLeft removes what the list has left, or does not know of, by DEL of this program's own plugins, with IPAM last.
func (n Node) DetachLeft(ctx context.Context, r *Removal, left []cni.Holding) {
	c := r.call()
	for _, p := range slices.Backward(n.Programs) {
		if !slices.ContainsFunc(left, func(h cni.Holding) bool { return h.Plugin == p.Name }) {
			continue
		}
		entry := Entry{Type: p.Name, Raw: map[string]json.RawMessage{}}
		for _, e := range r.List.Plugins { // its keys say where it keeps things
			switch p.Name {
			case e.IPAM.Type:
				entry.Raw = e.Raw
			case e.Type:
				entry.Raw = maps.Clone(e.Raw)
				delete(entry.Raw, "ipam")
			}
		}
		c.List.Plugins = []Entry{entry}
		c.List.CNIVersion = cmp.Or(r.List.CNIVersion, cni.Newest)
		r.Err = errors.Join(r.Err, n.runHere(ctx, c, skel.Env{}))
	}
}
