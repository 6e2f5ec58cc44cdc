package main

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const (
	recordDir = "/run/hawser/sbr"
	// lockWait is how long a call waits for its turn, at the records and in the
	// namespace.
	lockWait = 30 * time.Second
)

// record is what an ADD did, in which namespace. DEL undoes it and CHECK compares
// it; it is written before the first effect.
type record struct {
	cni.Attachment
	Netns ns.Identity `json:"netns"`
	Link  int         `json:"link"` // index of the interface
	Plan  plan        `json:"plan"`
}

// readRecord reads the attachment's record; ok is false when there is none.
func readRecord(ctx context.Context, a cni.Attachment) (r record, ok bool, err error) {
	s, err := statefile.OpenExistingStore[record](ctx, recordDir, lockWait)
	if err != nil {
		return r, false, err
	}
	defer s.Close()
	return s.Get(a.Hash())
}

// isRecorded says whether an ADD of any attachment moved the routes of a link.
func isRecorded(ctx context.Context, netns ns.Identity, link int) (bool, error) {
	s, err := statefile.OpenExistingStore[record](ctx, recordDir, lockWait)
	if err != nil {
		return false, err
	}
	defer s.Close()
	return s.Any(func(r record) bool { return r.Netns.Is(netns) && r.Link == link })
}

// Sane says whether an ADD can have written the record. Its file may be damaged, and
// DEL deletes what it names.
func (r record) Sane(hash string) bool {
	if r.Hash() != hash {
		return false
	}
	tables := map[uint32]bool{}
	for _, rule := range r.Plan.Rules {
		if !rule.Src.IsSingleIP() || isKernels(rule.Table) {
			return false
		}
		tables[rule.Table] = true
	}
	strange := func(c rtnl.RouteCopy) bool { return !tables[c.Table()] }
	own := func(route rtnl.Route) bool { return route.Dst.IsValid() && route.OutIndex == r.Link }
	outside := func(c rtnl.RouteCopy) bool { return c.Table() != unix.RT_TABLE_MAIN }
	return !slices.ContainsFunc(r.Plan.Copies, strange) &&
		!slices.ContainsFunc(r.Plan.Moved, outside) &&
		!slices.ContainsFunc(r.Plan.Defaults, func(d rtnl.Route) bool { return !own(d) || !tables[d.Table] }) &&
		!slices.ContainsFunc(r.Plan.Hints, func(h rtnl.Route) bool { return !own(h) || h.Table != unix.RT_TABLE_MAIN })
}

func putRecord(ctx context.Context, r record) error {
	s, err := statefile.OpenStore[record](ctx, recordDir, lockWait)
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Put(r.Hash(), r)
}

func dropRecord(ctx context.Context, a cni.Attachment) error {
	s, err := statefile.OpenExistingStore[record](ctx, recordDir, lockWait)
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Drop(a.Hash())
}

// lockNamespace keeps other calls out of the container's routes until this one is
// over. The reference takes the same lock.
func lockNamespace(ctx context.Context, req *skel.Request) error {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	held, err := statefile.LockFD(ctx, req.NS.FD(), req.Netns)
	if err != nil {
		return err
	}
	req.OnDone(func() { _ = held.Unlock() })
	return nil
}
