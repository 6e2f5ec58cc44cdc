package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// Child is how a container's interface without a host end is to be made: one on a
// master (macvlan), or one by itself (dummy). Its owner is its alias, and a record
// says in which namespace it is.
type Child struct {
	Kind   string // as the kernel calls it
	Mode   string // empty = it has none
	Unique string // what no other child of the master may have, a VLAN; empty = nothing
	// OneMode says that all children of a master share its mode.
	OneMode bool
	Link    Link
	Master  *MasterKeys // nil = it has no master
	DAD     bool        // duplicate address detection: others are on its network
	// Make makes the link in the container, down and in the group of s.Group, with
	// a name that may be a temporary one. The error matches EEXIST where a name is
	// taken.
	Make func(ctx context.Context, s *Session, name string) error
	// Ready says why the kernel cannot make it; nil = the kernel is asked for Kind.
	Ready func() error
	// Verify says what of the link is not as it was made, beside what CHECK compares
	// itself; nil = nothing.
	Verify func(s *Session, l rtnl.Link) []string
}

// ChildPlugin gives a plugin that makes a Child of a kind its verbs. child says how the Child of
// a configuration is to be made.
func ChildPlugin[C any](p skel.Plugin[C], kind string, child func(C) Child) skel.Plugin[C] {
	p.Add = func(ctx context.Context, req *skel.Request, cfg C) (*cni.Result, error) {
		return AddChild(ctx, req, child(cfg))
	}
	p.Del = func(ctx context.Context, req *skel.Request) error { return delChild(ctx, req, kind) }
	p.Check = func(ctx context.Context, req *skel.Request, cfg C) error {
		return Check(ctx, req, func(s *Session) []error { return s.verifyChild(ctx, child(cfg)) })
	}
	p.GC = gcChildren
	p.Status = func(ctx context.Context, req *skel.Request, cfg C) error { return statusChild(ctx, req, child(cfg)) }
	return p
}

// AddChild is the ADD of a ChildPlugin.
func AddChild(ctx context.Context, req *skel.Request, c Child) (*cni.Result, error) {
	s, err := Open(req)
	if err != nil {
		return nil, err
	}
	if err := s.findMaster(c); err != nil {
		return nil, err
	}
	if err := s.createChild(ctx, c); err != nil {
		return nil, err
	}
	if err := s.raise(c); err != nil {
		return nil, err
	}
	res, err := s.Furnish(ctx, c.Link, s.child(c))
	if errors.Is(err, unix.EADDRINUSE) {
		err = cni.Errorf(cni.CodeConflict, "another interface on master %q has the address: %w", s.Master.Name, err)
	}
	if err != nil {
		return nil, err
	}
	return res, s.announce(res)
}

// Furnish gives the container's interface, which is up, the addresses and routes of the IPAM
// plugin, if there is one, and returns the result. Where there is no interface (Target.Index
// is 0) a program of the container is to give itself the addresses.
func (s *Session) Furnish(ctx context.Context, link Link, t iface.Target) (*cni.Result, error) {
	if err := s.StartIPAM(ctx); err != nil { // some need the interface, up
		return nil, err
	}
	answer, err := s.IPAMResult(ctx)
	if err != nil {
		return nil, err
	}
	if s.IPAM == "" && link.Given != nil {
		answer = link.Given
	}
	res, err := link.Result(answer, 0)
	if err != nil {
		return nil, err
	}
	for _, ip := range res.IPs {
		if ip.Gateway.IsValid() && ip.Gateway.Is4() != ip.Address.Addr().Is4() {
			return nil, cni.Errorf(cni.CodeIPAM, "IPAM gave address %s and gateway %s of the other family", ip.Address,
				ip.Gateway)
		}
	}
	res.Interfaces = s.Interfaces()
	if t.Index == 0 {
		return res, nil
	}
	return res, iface.Configure(ctx, t, res)
}

// child is the container's interface, for pkg/iface.
func (s *Session) child(c Child) iface.Target {
	t := s.Target()
	t.EnableDAD = c.DAD
	return t
}

// Group is the group of a link that has no alias yet: it stands for the network.
func (s *Session) Group() uint32 { return cni.NetworkHash(s.Network) }

// MakeLink is what Child.Make does for a kind that rtnetlink makes: a link in the container,
// on the master if there is one.
func (s *Session) MakeLink(l rtnl.NewLink) error {
	l.Master, l.Group = s.Master.Index, s.Group()
	if s.masterInside || l.Master == 0 {
		return s.Cont.AddLink(l)
	}
	l.NS = s.NS
	return s.Host.AddLink(l)
}

const childDir = "/run/hawser/links"

func childRecords() statefile.Records[childRecord] {
	return statefile.Records[childRecord]{Path: childDir}
}

// childRecord says where the link of an attachment is, so that GC, and a DEL without
// the namespace's path, find it. It is written before the link is made.
type childRecord struct {
	cni.Attachment
	Netns       string      `json:"netns"` // CNI_NETNS
	NS          ns.Identity `json:"identity"`
	Kind        string      `json:"kind"`
	Mode        string      `json:"mode,omitempty"`
	Unique      string      `json:"unique,omitempty"`
	Master      int         `json:"master,omitempty"`      // index
	InContainer bool        `json:"inContainer,omitempty"` // the master is
	Link        int         `json:"link,omitempty"`        // index, once the link is made
}

// Valid says whether an ADD can have written the record.
func (r childRecord) Valid() bool { return true }

func (s *Session) newRecord(c Child) childRecord {
	r := childRecord{Attachment: s.Attachment, Netns: s.Netns, NS: s.NetnsID,
		Kind: c.Kind, Unique: c.Unique, Master: s.Master.Index, InContainer: s.masterInside}
	if c.OneMode {
		r.Mode = c.Mode
	}
	return r
}

// find finds the link where the record says that it is: rtnl.ErrNoLink when it is gone,
// or its namespace is. The socket is the namespace's.
func (r childRecord) find() (cont *rtnl.Conn, l rtnl.Link, err error) {
	if cont, err = Enter(r.Netns, r.NS); err != nil {
		return nil, l, err
	}
	l, err = findChild(cont, r.Attachment, r.Kind)
	if errors.Is(err, rtnl.ErrNoLink) && r.Link != 0 { // the container may have taken the alias away
		l, err = cont.LinkByIndex(r.Link)
		if err == nil && l.Kind != r.Kind {
			err = rtnl.ErrNoLink
		}
	}
	return cont, l, err
}

// alive says whether the link is there.
func (r childRecord) alive() (rtnl.Link, bool, error) {
	cont, l, err := r.find()
	_ = cont.Close()
	if errors.Is(err, rtnl.ErrNoLink) {
		return l, false, nil
	}
	return l, err == nil, err
}

// Enter opens a socket in the namespace that path and id of a record name. The error matches
// rtnl.ErrNoLink where path leads to none, or to another one.
func Enter(path string, id ns.Identity) (*rtnl.Conn, error) {
	n, err := ns.Open(path)
	if errors.Is(err, ns.ErrNotExist) || errors.Is(err, ns.ErrNotNetns) {
		return nil, rtnl.ErrNoLink
	}
	if err != nil {
		return nil, err
	}
	defer n.Close()
	now, err := n.Identity()
	if err == nil && !now.Is(id) {
		err = rtnl.ErrNoLink
	}
	if err != nil {
		return nil, err
	}
	return rtnl.Dial(n)
}

// findChild finds the link of an attachment in a namespace, by its owner: the container may
// have renamed it. rtnl.ErrNoLink says that there is none.
func findChild(cont *rtnl.Conn, a cni.Attachment, kind string) (rtnl.Link, error) {
	l, err := cont.Link(a.IfName)
	if err == nil && isChild(l, a, kind) || err != nil && !errors.Is(err, rtnl.ErrNoLink) {
		return l, err
	}
	links, err := cont.Links()
	for _, l := range links {
		if isChild(l, a, kind) {
			return l, nil
		}
	}
	if err == nil {
		err = fmt.Errorf("interface of %s: %w", a, rtnl.ErrNoLink)
	}
	return rtnl.Link{}, err
}

// isChild tells the link of an attachment, also one whose ADD died before it was marked.
func isChild(l rtnl.Link, a cni.Attachment, kind string) bool {
	halfMade := l.Alias == "" && l.Group == cni.NetworkHash(a.Network) &&
		(l.Name == a.IfName || l.Name == temporaryName(a))
	return l.Kind == kind && (a.Owns(l.Alias) || halfMade)
}

// temporaryName is the name of a link until it is renamed.
func temporaryName(a cni.Attachment) string { return iface.HostNames(a)[0] }

// createChild makes the link, down, and names its owner. An attachment that exists is
// code 100. The lock of the records decides who of two ADDs is first.
func (s *Session) createChild(ctx context.Context, c Child) (err error) {
	records, err := childRecords().Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	r := s.newRecord(c)
	if err := s.refuseRecorded(records, r); err != nil {
		return err
	}
	if err := records.Put(r); err != nil {
		return err
	}
	s.OnFail("delete the interface", func(ctx context.Context) error { return s.revokeChild(ctx, r) })
	if err := s.makeChild(ctx, c); errors.Is(err, unix.EEXIST) && c.Unique != "" {
		return s.nameHolder(records, r, err)
	} else if err != nil {
		return err
	}
	mark, group := s.Mark(), uint32(0)
	change := rtnl.Change{Alias: &mark, Group: &group}
	if s.ContEnd.Name != s.IfName {
		change.Name = s.IfName
	}
	if err := s.Cont.SetLink(s.ContEnd.Index, change); err != nil {
		return err
	}
	s.ContEnd.Name = s.IfName
	r.Link = s.ContEnd.Index
	return records.Put(r)
}

// refuseRecorded is code 100 when the attachment exists, and code 103 when the master's
// children have another mode.
func (s *Session) refuseRecorded(records *statefile.Store[childRecord], r childRecord) error {
	old, ok, err := records.Get(s.Hash())
	if err != nil {
		return err
	}
	if ok {
		if l, lives, err := old.alive(); err != nil {
			return err
		} else if lives {
			return s.Exists(fmt.Sprintf("interface %q in %s: this attachment exists already; DEL removes it",
				l.Name, old.Netns))
		}
	}
	if r.Mode == "" {
		return nil
	}
	other, ok, err := r.sibling(records, func(other childRecord) bool { return other.Mode != r.Mode })
	if ok {
		err = cni.Errorf(cni.CodeConflict, "mode: %q: all that is on master %q has one mode, %q (%s)", r.Mode,
			s.Master.Name, other.Mode, other.Attachment)
	}
	return err
}

// sibling finds a live child of the same kind on the same master.
func (r childRecord) sibling(records *statefile.Store[childRecord], is func(childRecord) bool) (childRecord, bool,
	error) {
	all, err := records.All()
	for _, other := range all {
		sameMaster := other.Master == r.Master && other.InContainer == r.InContainer &&
			(!r.InContainer || other.NS.Is(r.NS))
		if other.Kind != r.Kind || other.Attachment == r.Attachment || !sameMaster || !is(*other) {
			continue
		}
		if _, lives, err := other.alive(); err != nil || lives {
			return *other, err == nil, err
		}
	}
	return childRecord{}, false, err
}

// nameHolder is code 103, for the error that says that another child of the master has what
// c.Unique names: one that is recorded, or one of the host.
func (s *Session) nameHolder(records *statefile.Store[childRecord], r childRecord, err error) error {
	holder := "an interface of another namespace"
	if other, ok, _ := r.sibling(records, func(other childRecord) bool { return other.Unique == r.Unique }); ok {
		holder = other.Attachment.String()
	}
	return cni.Errorf(cni.CodeConflict, "%s of master %q: is held by %s: %w", r.Unique, s.Master.Name, holder, err)
}

// makeChild makes the link. Kernels before 6.15 refuse a name that the host has, too.
func (s *Session) makeChild(ctx context.Context, c Child) error {
	name := s.IfName
	err := c.Make(ctx, s, name)
	if errors.Is(err, unix.EEXIST) {
		if _, there := s.Cont.Link(name); there == nil {
			return s.Exists(fmt.Sprintf("interface %q: exists already in the container", name))
		} else if !errors.Is(there, rtnl.ErrNoLink) {
			return there
		}
		name = temporaryName(s.Attachment)
		err = c.Make(ctx, s, name)
	}
	if errors.Is(err, unix.EOPNOTSUPP) && errors.Is(s.Host.ProbeKind(c.Kind), unix.EOPNOTSUPP) {
		return cni.Errorf(cni.CodeUnsupportedField, "%s: not supported by this kernel: %w", c.Kind, err)
	}
	if errors.Is(err, unix.EBUSY) && c.Master != nil {
		by := cmp.Or(holder(s.MasterSide(), s.Master), "something that takes its frames, a macvlan or ipvlan perhaps")
		return cni.Errorf(cni.CodeConflict, "master: %q: is held by %s: %w", s.Master.Name, by, err)
	}
	if err != nil {
		return err
	}
	s.ContEnd, err = s.Cont.Link(name)
	return err
}

// revokeChild undoes createChild, also where only the answer of the kernel was lost.
func (s *Session) revokeChild(ctx context.Context, r childRecord) error {
	l, err := findChild(s.Cont, s.Attachment, r.Kind)
	if err == nil {
		err = s.Cont.DelLink(l.Index)
	}
	if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
		return err
	}
	return childRecords().Drop(ctx, s.Hash())
}

// raise brings the interface up. Only then the kernel finds a MAC address that the
// master knows already.
func (s *Session) raise(c Child) error {
	err := iface.Raise(s.child(c))
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return cni.Errorf(cni.CodeConflict, "MAC address %s: another interface on master %q has it: %w", s.ContEnd.MAC,
			s.Master.Name, err)
	case errors.Is(err, unix.ENETDOWN):
		return cni.Errorf(cni.CodeConflict, "master: %q: is down: %w", s.Master.Name, err)
	}
	return err
}

// announce has the kernel tell the neighbours where the addresses are now.
func (s *Session) announce(res *cni.Result) error {
	if len(res.IPs) == 0 || s.Master.Index == 0 {
		return nil
	}
	if err := iface.Announce(s.Cont, s.ContEnd); !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	return nil // an ipvlan has its master's MAC address
}
