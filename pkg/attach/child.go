package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// vlanKind is the kind of which each child of a master has a VLAN of its own.
const vlanKind = "vlan"

// Child is how a container's interface without a host end is to be made: one on a
// master (macvlan), or one by itself (dummy). Its alias names its owner, and a record
// says in which namespace it is.
type Child struct {
	New     rtnl.NewLink // its kind, and what is particular to the kind
	OneMode bool         // all children of a master share New.Mode
	Link    LinkConfig
	Master  *MasterKeys // nil = it has no master
	DAD     bool        // duplicate address detection: others are on its network
	// Make makes the link in the container, down and in the group of s.Group, with
	// a name that may be a temporary one. The error matches EEXIST where a name is
	// taken. MakeLink does it for what rtnetlink makes.
	Make func(ctx context.Context, s *Session, name string) error
	// Ready says why the kernel cannot make it; nil = the kernel is asked for the kind.
	Ready func() error
	// Verify returns the drift that CHECK does not find by itself; nil = none.
	Verify func(s *Session, l rtnl.Link) []string
}

// ChildPlugin gives a plugin that makes a Child of a kind its verbs.
func ChildPlugin(p skel.Plugin[Child], kind string) skel.Plugin[Child] {
	p.Add = AddChild
	p.Del = func(ctx context.Context, req *skel.Request) error { return delChild(ctx, req, kind) }
	p.Check = func(ctx context.Context, req *skel.Request, c Child) error {
		return Check(ctx, req, func(s *Session) []error {
			s.Child = c
			return s.verifyChild()
		})
	}
	p.GC = gcChildren
	p.Status = func(ctx context.Context, req *skel.Request, c Child) error {
		if c.Ready == nil {
			return Status(ctx, req, Masq{}, c.ready)
		}
		if err := errors.Join(statefile.Writable(childDir), c.Ready()); err != nil {
			return cni.Errorf(cni.CodeUnavailable, "%w", err)
		}
		return Status(ctx, req, Masq{}, nil)
	}
	return p
}

// AddChild is the ADD of a ChildPlugin.
func AddChild(ctx context.Context, req *skel.Request, c Child) (*cni.Result, error) {
	s, err := Open(req)
	if err != nil {
		return nil, err
	}
	s.Child = c
	if err := s.findMaster(); err != nil {
		return nil, err
	}
	if err := s.createChild(ctx); err != nil {
		return nil, err
	}
	if err := s.raise(); err != nil {
		return nil, err
	}
	res, err := s.AssignAddresses(ctx, c.Link, s.Target())
	if errors.Is(err, unix.EADDRINUSE) {
		err = cni.Errorf(cni.CodeConflict, "another interface on master %q has the address: %w", s.Master.Name, err)
	}
	if err != nil {
		return nil, err
	}
	return res, s.announce(res)
}

// Group is the group of a link that has no alias yet: it stands for the network.
func (s *Session) Group() uint32 { return cni.NetworkHash(s.Network) }

// MakeLink makes Child.New in the container, on the master if there is one.
func MakeLink(_ context.Context, s *Session, name string) error {
	l := s.Child.New
	l.Name, l.MTU, l.MAC = name, s.Child.Link.MTU, s.Child.Link.MAC
	l.Master, l.Group = s.Master.Index, s.Group()
	if s.Child.masterInside() || l.Master == 0 {
		return s.Cont.AddLink(l)
	}
	l.NS = s.NS
	return s.Host.AddLink(l)
}

// createChild makes the link, down, and names its owner. An attachment that exists is
// code 100. The lock of the records decides who of two ADDs is first.
func (s *Session) createChild(ctx context.Context) (err error) {
	records, err := childRecords().Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	r := childRecord{Attachment: s.Attachment, Netns: s.Netns, NS: s.NetnsID, Kind: s.Child.New.Kind,
		Master: s.Master.Index, InContainer: s.Child.masterInside(), VLAN: s.Child.New.VLAN}
	if s.Child.OneMode {
		r.Mode = s.Child.New.Mode
	}
	if err := s.refuseRecorded(records, r); err != nil {
		return err
	}
	if err := records.Put(r); err != nil {
		return err
	}
	// The link may be there although its creation failed: the kernel's answer may be lost.
	s.OnFail("delete the interface", func(ctx context.Context) error {
		l, err := r.locate(s.Cont)
		if err := r.deleteLink(s.Cont, l, err); err != nil {
			return err
		}
		return childRecords().Drop(ctx, s.Hash())
	})
	err = s.makeChild(ctx)
	if errors.Is(err, unix.EEXIST) && r.Kind == vlanKind {
		return s.vlanConflict(records, r, err)
	}
	if err != nil {
		return err
	}
	change := rtnl.LinkChange{Alias: new(s.Mark()), Group: new(uint32(0)), Name: s.IfName}
	if err := s.Cont.SetLink(s.ContEnd.Index, change); err != nil {
		return err
	}
	s.ContEnd.Name = s.IfName
	r.Link = s.ContEnd.Index
	return records.Put(r)
}

// makeChild makes the link, under a temporary name where the kernel refuses the final one: before
// 6.15 it does so when the host has the name.
func (s *Session) makeChild(ctx context.Context) error {
	name, kind := s.IfName, s.Child.New.Kind
	err := s.Child.Make(ctx, s, name)
	if errors.Is(err, unix.EEXIST) {
		if err := s.RefuseTakenName(); err != nil {
			return err
		}
		name = temporaryName(s.Attachment)
		err = s.Child.Make(ctx, s, name)
	}
	switch {
	case errors.Is(err, unix.EOPNOTSUPP) && errors.Is(s.Host.ProbeKind(kind), unix.EOPNOTSUPP):
		return cni.Errorf(cni.CodeUnsupportedField, "%s: not supported by this kernel: %w", kind, err)
	case errors.Is(err, unix.EBUSY) && s.Child.Master != nil:
		upper := cmp.Or(upperDevice(s.MasterSide(), s.Master),
			"something that takes its frames, a macvlan or ipvlan perhaps")
		return cni.Errorf(cni.CodeConflict, "master: %q: is held by %s: %w", s.Master.Name, upper, err)
	case err != nil:
		return err
	}
	s.ContEnd, err = s.Cont.Link(name)
	return err
}

// raise brings the interface up. Only then the kernel finds a MAC address that the
// master knows already.
func (s *Session) raise() error {
	err := iface.Raise(s.Target())
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
	err := iface.Announce(s.Cont, s.ContEnd)
	if errors.Is(err, unix.EOPNOTSUPP) { // an ipvlan has its master's MAC address
		return nil
	}
	return err
}

// ready is why an ADD could not make the Child.
func (c Child) ready(host *rtnl.Conn) error {
	if err := statefile.Writable(childDir); err != nil {
		return err
	}
	if err := c.masterReady(host); err != nil {
		return err
	}
	if err := host.ProbeKind(c.New.Kind); err != nil {
		return fmt.Errorf("%s: not supported by this kernel: %w", c.New.Kind, err)
	}
	return nil
}
