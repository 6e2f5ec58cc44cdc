package main

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const (
	recordDir = "/run/hawser/vrf"
	// lockWait is how long a call waits for its turn, at the records and in the
	// namespace.
	lockWait = 30 * time.Second
	// vrfMark is the alias of a VRF that ADD made.
	vrfMark = "hawser vrf"
)

// record says what an attachment's interface had before ADD, and where. It is written
// before the first effect.
type record struct {
	cni.Attachment
	Path   string           `json:"path"` // CNI_NETNS
	Netns  ns.Identity      `json:"netns"`
	VRF    string           `json:"vrf"`
	Made   bool             `json:"made"`   // by this ADD, which may have died before it gave the alias
	Link   int              `json:"link"`   // index of the interface
	Routes []rtnl.RouteCopy `json:"routes"` // in the order in which they can be made
}

// Sane says whether an ADD can have written the record. Its file may be damaged, and
// DEL makes routes of it.
func (r *record) Sane(hash string) bool {
	bad := func(route rtnl.RouteCopy) bool {
		family := route.Header.Family
		_, ours := route.Through(func(index int) bool { return index == r.Link })
		return !ours || family != unix.AF_INET && family != unix.AF_INET6 || route.Table() == unix.RT_TABLE_LOCAL
	}
	return r.Hash() == hash && r.VRF != "" && !slices.ContainsFunc(r.Routes, bad)
}

// readRecord reads the attachment's record; nil when there is none.
func readRecord(ctx context.Context, a cni.Attachment) (*record, error) {
	s, err := statefile.OpenExistingStore[record](ctx, recordDir, lockWait)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	r, ok, err := s.Get(a.Hash())
	if !ok {
		return nil, err
	}
	return &r, nil
}

// isRecorded says whether an ADD of any attachment took a link into a VRF.
func isRecorded(ctx context.Context, netns ns.Identity, link int) (bool, error) {
	s, err := statefile.OpenExistingStore[record](ctx, recordDir, lockWait)
	if err != nil {
		return false, err
	}
	defer s.Close()
	return s.Any(func(r record) bool { return r.Netns.Is(netns) && r.Link == link })
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

// lockNamespace keeps other calls out of the namespace until the lock is given back.
func lockNamespace(ctx context.Context, n *ns.NS) (*statefile.Held, error) {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	return statefile.LockFD(ctx, n.FD(), n.Path())
}
