package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const childDir = "/run/hawser/links"

func childRecords() statefile.Records[childRecord] {
	return statefile.Records[childRecord]{Path: childDir}
}

// childRecord says where the link of an attachment is, for GC and a DEL without CNI_NETNS. It is written before the
// link is made.
type childRecord struct {
	cni.Attachment
	Netns       string      `json:"netns"` // CNI_NETNS
	NS          ns.Identity `json:"identity"`
	Kind        string      `json:"kind"`
	Mode        string      `json:"mode,omitempty"` // that all children of the master share
	VLAN        int         `json:"vlan,omitempty"`
	Master      int         `json:"master,omitempty"`      // index
	InContainer bool        `json:"inContainer,omitempty"` // the master is
	Link        int         `json:"link,omitempty"`        // index, once the link is made
}

// Plausible says whether an ADD can have written the record.
func (r childRecord) Plausible() bool { return true }

// find opens the namespace of the record and finds the link in it: rtnl.ErrNoLink when one of them is gone.
func (r childRecord) find(open netplugin.Opener) *remains {
	cont, err := netplugin.DialNetns(open, r.Netns, r.NS)
	found := &remains{cont: cont, conn: cont, err: err}
	if err == nil {
		found.link, found.err = r.locate(cont)
	}
	return found
}

// look is find for a caller that changes nothing.
func (r childRecord) look() (rtnl.Link, error) {
	found := r.find(ns.OpenAs)
	found.close()
	return found.link, found.err
}

// deleteLink deletes the link that a search found.
func (r childRecord) deleteLink(found *remains) error {
	if _, err := found.delete(); err != nil {
		return fmt.Errorf("interface of %s: %w", r.Attachment, err)
	}
	return nil
}

// locate finds the link by its owner, since the container may have renamed it, else by its index, since the container
// may have removed the alias. It returns rtnl.ErrNoLink if there is none, and for cont = nil, a namespace that is gone.
func (r childRecord) locate(cont *rtnl.Conn) (rtnl.Link, error) {
	if cont == nil {
		return rtnl.Link{}, rtnl.ErrNoLink
	}
	l, err := cont.Link(r.IfName)
	if r.isOf(l) || netplugin.IgnoreNoLink(err) != nil {
		return l, err
	}
	links, err := cont.Links()
	i := slices.IndexFunc(links, r.isOf)
	if i < 0 {
		i = slices.IndexFunc(links, func(l rtnl.Link) bool { return l.Index == r.Link && l.Kind == r.Kind })
	}
	if i >= 0 {
		return links[i], nil
	}
	return rtnl.Link{}, cmp.Or(err, fmt.Errorf("interface of %s: %w", r.Attachment, rtnl.ErrNoLink))
}

// isOf tells the link of the attachment, also one whose ADD died before it was marked.
func (r childRecord) isOf(l rtnl.Link) bool {
	if l.Kind != r.Kind {
		return false
	}
	if l.Alias != "" {
		return r.Owns(l.Alias)
	}
	return l.Group == cni.NetworkHash(r.Network) && (l.Name == r.IfName || l.Name == temporaryName(r.Attachment))
}

// temporaryName is the name of a link until it is renamed.
func temporaryName(a cni.Attachment) string { return iface.HostNames(a)[0] }

// refuseRecorded is code 100 when the attachment exists, and code 103 when the master's children have another mode.
func (s *Call) refuseRecorded(records *statefile.Store[childRecord], r childRecord) error {
	old, _, err := records.Get(s.Req.Hash())
	if err != nil {
		return err
	}
	l, err := old.look() // rtnl.ErrNoLink without a record: its path is empty
	switch {
	case err == nil:
		return s.Req.Exists(fmt.Sprintf("interface %q in %s: this attachment exists already; DEL removes it", l.Name,
			old.Netns))
	case !errors.Is(err, rtnl.ErrNoLink):
		return err
	case r.Mode == "":
		return nil
	}
	other, err := r.findOther(records, func(other *childRecord) bool { return other.Mode != r.Mode })
	if err != nil || other == nil {
		return err
	}
	return cni.Errorf(cni.CodeConflict, "mode: %q: all that is on master %q has one mode, %q (%s)", r.Mode,
		s.Master.Name, other.Mode, other.Attachment)
}

// findOther finds the record of a live child of the same kind on the same master that matches; nil where there is none.
func (r childRecord) findOther(records *statefile.Store[childRecord], matches func(*childRecord) bool) (*childRecord,
	error) {
	all, err := records.All()
	for _, other := range all {
		sameNS := !r.InContainer || other.NS.Is(r.NS)
		beside := other.Kind == r.Kind && other.Master == r.Master && other.InContainer == r.InContainer && sameNS
		if !beside || other.Attachment == r.Attachment || !matches(other) {
			continue
		}
		if _, err := other.look(); !errors.Is(err, rtnl.ErrNoLink) {
			return other, err
		}
	}
	return nil, err
}

// vlanConflict is code 103, for the error that says that another interface on the master has the
// VLAN: one beside the master, or one that is recorded.
func (s *Call) vlanConflict(records *statefile.Store[childRecord], r childRecord, err error) error {
	owner := "an interface of another namespace"
	sameVLAN := func(other *childRecord) bool { return other.VLAN == r.VLAN }
	if other, err := r.findOther(records, sameVLAN); err == nil && other != nil {
		owner = other.Attachment.String()
	}
	links, _ := s.masterSide().Links()
	for _, l := range links {
		if l.Kind == r.Kind && l.VLAN == r.VLAN && l.Peer == r.Master && l.PeerNS < 0 {
			owner = fmt.Sprintf("interface %q beside it", l.Name)
		}
	}
	return cni.Errorf(cni.CodeConflict, "VLAN %d of master %q: is held by %s: %w", r.VLAN, s.Master.Name, owner, err)
}

// delChild removes what AddChild made, as Del does.
func delChild(ctx context.Context, req *skel.Request, kind string) error {
	locks, cancel := skel.WithTwoThirds(ctx)
	defer cancel()
	r := &remains{req: req}
	r.err = r.findChild(kind)
	r.conn = r.cont
	defer r.close()
	return DelInterface(ctx, req, r.flush, func() (gone bool, err error) {
		// If the namespace exists but cannot be entered, the link may still exist.
		if _, err := r.delete(); err != nil {
			return false, fmt.Errorf("interface %q: %w", req.IfName, err)
		}
		return true, childRecords().Drop(locks, req.Hash())
	})
}

// findChild finds the link of an attachment: ours by its owner in the namespace that DEL was told,
// else in that of the record, wherever that is; one of the reference by its name, kind and MAC address.
func (r *remains) findChild(kind string) (err error) {
	if r.req.NS != nil {
		if r.cont, err = rtnl.Dial(r.req.NS); err != nil {
			return err
		}
	}
	r.link, err = childRecord{Attachment: r.req.Attachment, Kind: kind}.locate(r.cont)
	if !errors.Is(err, rtnl.ErrNoLink) {
		return err
	}
	record, _, err := childRecords().Get(r.req.Hash())
	if err != nil {
		return err
	}
	found := record.find(new(ns.Finder).Open) // rtnl.ErrNoLink without a record: its path is empty
	if errors.Is(found.err, rtnl.ErrNoLink) {
		found.close()
		return r.findReferenceChild(kind)
	}
	_ = r.cont.Close()
	r.cont, r.link = found.cont, found.link
	return found.err
}

// gcChildren removes what AddChild made for attachments of the network that are not valid.
func gcChildren(ctx context.Context, req *skel.Request) error {
	stale := func(r childRecord) bool { return req.Valid.Excludes(r.Attachment) }
	var finder ns.Finder
	return GCInterfaces(ctx, req, func() error {
		locks, cancel := skel.WithTwoThirds(ctx)
		defer cancel()
		return childRecords().Collect(locks, stale, func(r childRecord) error {
			found := r.find(finder.Open)
			defer found.close()
			return r.deleteLink(found)
		})
	})
}

// verifyChild compares what AddChild made with what is there.
func (s *Call) verifyChild() []error {
	c := s.Child
	l, err := s.Cont.Link(s.Req.IfName)
	if err != nil {
		return []error{iface.Drifted(fmt.Errorf("container: %w", err))}
	}
	drift := func(format string, args ...any) error {
		return cni.Drift("interface %q: %s", s.Req.IfName, fmt.Sprintf(format, args...))
	}
	if l.Kind != c.New.Kind {
		return []error{drift("is of kind %q instead of %q", l.Kind, c.New.Kind)}
	}
	r, recorded, err := childRecords().Get(s.Req.Hash())
	if err != nil {
		return []error{err}
	}
	var errs []error
	// The container may have taken its alias away. Without a record it may be the reference's, which has none.
	if isOwn := s.Req.Owns(l.Alias) || recorded && r.Link == l.Index || !recorded && l.Alias == ""; !isOwn {
		errs = append(errs, drift("is not the one that ADD made"))
	}
	if err := s.verifyMaster(r, l); err != nil {
		errs = append(errs, iface.Drifted(err))
	}
	if l.Mode != c.New.Mode {
		errs = append(errs, drift("mode is %q instead of %q", l.Mode, c.New.Mode))
	}
	if l.VLAN != c.New.VLAN {
		errs = append(errs, drift("VLAN is %d instead of %d", l.VLAN, c.New.VLAN))
	}
	if c.Verify != nil {
		for _, text := range c.Verify(s, l) {
			errs = append(errs, drift("%s", text))
		}
	}
	errs = append(errs, s.ExpectMTU(&s.Child.Link, s.settleMTU))
	want := s.Req.PrevResult.Clone()
	for i := range want.Interfaces {
		if c.Link.MTU == 0 && c.Link.Auto == nil { // that of the master, which may change
			want.Interfaces[i].MTU = 0
		}
	}
	return append(errs, iface.Verify(s.Target(), want))
}

// verifyMaster compares what the link is on with the configured master, or with the one that ADD found.
func (s *Call) verifyMaster(r childRecord, l rtnl.Link) (err error) {
	c, conn := s.Child, s.masterSide()
	if c.Master == nil {
		return nil
	}
	switch {
	case c.Master.Master != "":
		s.Master, err = conn.Link(c.Master.Master)
	case r.Master != 0:
		s.Master, err = conn.LinkByIndex(r.Master)
	default:
		return nil
	}
	if err != nil {
		return fmt.Errorf("master: %w", err)
	}
	want, sameKind := s.Master.Index, s.Master.Kind == c.New.Kind
	if sameKind && c.New.Kind != vlanKind { // a macvlan on a macvlan is attached to that one's lower link
		want = s.Master.Peer
	}
	wrongSide := !sameKind && (l.PeerNS >= 0) == c.masterInside() // PeerNS is negative for the link's own namespace
	if l.Peer != want || wrongSide {
		return fmt.Errorf("interface %q: is not on master %q (#%d) but on #%d", s.Req.IfName, s.Master.Name, want,
			l.Peer)
	}
	return nil
}
