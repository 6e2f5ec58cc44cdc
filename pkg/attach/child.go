package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// vlanKind is the kind of which each child of a master has a VLAN of its own.
const vlanKind = "vlan"

// ChildConfig is how a container's interface without a host end is to be made: one on a master (macvlan), or one by
// itself (dummy). Its alias names its owner, and a record says in which namespace it is.
type ChildConfig struct {
	New     rtnl.NewLink // its kind, and what is particular to the kind
	OneMode bool         // all children of a master share New.Mode
	Link    LinkConfig
	Master  *MasterKeys // nil = it has no master
	DAD     bool        // duplicate address detection: others are on its network
	// Make makes the link in the container, down and in the group of the network, with a name that may be a temporary
	// one. The error matches EEXIST where a name is taken. MakeLink does it for what rtnetlink makes.
	Make func(ctx context.Context, s *Call, name string) error
	// Ready says why the kernel cannot make it; nil = the kernel is asked for the kind.
	Ready func() error
	// Verify returns the drift that CHECK does not find by itself; nil = none.
	Verify func(s *Call, l rtnl.Link) []string
}

// ChildPlugin gives a plugin that makes a child of a kind its verbs.
func ChildPlugin(p skel.Plugin[ChildConfig], kind string) skel.Plugin[ChildConfig] {
	p.Add = AddChild
	p.Del = func(ctx context.Context, req *skel.Request) error { return delChild(ctx, req, kind) }
	p.Check = func(ctx context.Context, req *skel.Request, c ChildConfig) error {
		return Check(ctx, req, func(s *Call) []error {
			s.Child = c
			return s.verifyChild()
		})
	}
	p.GC = gcChildren
	p.List = func(context.Context, *skel.Request) ([]cni.Holding, error) { return listChildren(kind) }
	p.Status = func(ctx context.Context, req *skel.Request, c ChildConfig) error {
		if c.Ready == nil {
			return Status(ctx, req, Masq{}, c.ready)
		}
		if err := netplugin.Unavailable("", statefile.Writable(childDir), c.Ready()); err != nil {
			return err
		}
		var look func(*rtnl.Conn) error
		if c.Link.Auto != nil {
			look = c.Link.SettleMTU
		}
		return Status(ctx, req, Masq{}, look)
	}
	return p
}

// AddChild is the ADD of a ChildPlugin.
func AddChild(ctx context.Context, req *skel.Request, c ChildConfig) (*cni.Result, error) {
	s, err := Open(req)
	if err != nil {
		return nil, err
	}
	s.Child = c
	if err := s.findMaster(); err != nil {
		return nil, err
	}
	if err := s.settleMTU(); err != nil {
		return nil, err
	}
	if err := s.createChild(ctx); err != nil {
		return nil, err
	}
	if err := s.raise(); err != nil {
		return nil, err
	}
	res, err := s.AssignAddresses(ctx, s.Child.Link, s.Target())
	if errors.Is(err, unix.EADDRINUSE) {
		err = cni.Errorf(cni.CodeConflict, "another interface on master %q has the address: %w", s.Master.Name, err)
	}
	if err != nil {
		return nil, err
	}
	return res, s.announce(res)
}

// MakeLink makes ChildConfig.New in the container, on the master if there is one.
func MakeLink(_ context.Context, s *Call, name string) error {
	l := s.Child.New
	l.Name, l.MTU, l.MAC = name, s.Child.Link.MTU, s.Child.Link.MAC
	l.Master, l.Group = s.Master.Index, cni.NetworkHash(s.Req.Network)
	if s.Child.masterInside() || l.Master == 0 {
		return s.Cont.AddLink(l)
	}
	l.NS = s.Req.NS
	return s.Host.AddLink(l)
}

// createChild makes the link, down, and names its owner. An attachment that exists is code 100. The lock of the records
// decides who of two ADDs is first.
func (s *Call) createChild(ctx context.Context) (err error) {
	s.Req.Step("make the interface")
	records, err := childRecords().Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	r := childRecord{Attachment: s.Req.Attachment, Netns: s.Req.Netns, NS: s.NetnsID, Kind: s.Child.New.Kind,
		Master: s.Master.Index, InContainer: s.Child.masterInside(), VLAN: s.Child.New.VLAN}
	if s.Child.OneMode {
		r.Mode = s.Child.New.Mode
	}
	if err := s.refuseRecorded(records, r); err != nil {
		return err
	}
	s.Req.SignalsEndContext()
	if err := records.Put(r); err != nil {
		return err
	}
	s.Req.OnFail("delete the interface", func(ctx context.Context) error {
		l, err := r.locate(s.Cont)
		// A link that was marked before this ADD has one is that of a live attachment whose record was lost.
		if s.ContEnd.Index != 0 || l.Alias == "" {
			if err := r.deleteLink(&remains{conn: s.Cont, link: l, err: err}); err != nil {
				return err
			}
		}
		return childRecords().Drop(ctx, s.Req.Hash())
	})
	err = s.makeChild(ctx)
	if errors.Is(err, unix.EEXIST) && r.Kind == vlanKind {
		return s.vlanConflict(records, r, err)
	}
	if err != nil {
		return err
	}
	// The record has the index first: a change that the name makes fail may have reset the group, and gives no alias.
	r.Link = s.ContEnd.Index
	if err := records.Put(r); err != nil {
		return err
	}
	s.ContEnd.Name = s.Req.IfName
	change := rtnl.LinkChange{Alias: new(s.Req.Mark()), Group: new(uint32(0)), Name: s.Req.IfName}
	return s.Cont.SetLink(s.ContEnd.Index, change)
}

// makeChild makes the link, under a temporary name where the kernel refuses the final one: before
// 6.15 it does so when the host has the name.
func (s *Call) makeChild(ctx context.Context) error {
	name := s.Req.IfName
	err := s.Child.Make(ctx, s, name)
	if errors.Is(err, unix.EEXIST) {
		if err := s.RefuseTakenName(); err != nil {
			return err
		}
		name = temporaryName(s.Req.Attachment)
		err = s.Child.Make(ctx, s, name)
	}
	switch {
	case errors.Is(err, unix.EBUSY) && s.Child.Master != nil:
		upper := cmp.Or(upperLink(s.masterSide(), s.Master),
			"something that takes its frames, a macvlan or ipvlan perhaps")
		return cni.Errorf(cni.CodeConflict, "master: %q: is held by %s: %w", s.Master.Name, upper, err)
	case err != nil:
		return err
	}
	s.ContEnd, err = s.Cont.Link(name)
	return err
}

// raise brings the interface up. Only then the kernel finds a MAC address that the master knows already.
func (s *Call) raise() error {
	s.Req.Step("raise the interface")
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
func (s *Call) announce(res *cni.Result) error {
	if len(res.IPs) == 0 || s.Master.Index == 0 {
		return nil
	}
	err := iface.Announce(s.Cont, s.ContEnd)
	if errors.Is(err, unix.EOPNOTSUPP) { // an ipvlan has its master's MAC address
		return nil
	}
	return err
}

// ready is why an ADD could not make the child.
func (c ChildConfig) ready(host *rtnl.Conn) error {
	return errors.Join(statefile.Writable(childDir), c.masterReady(host), c.Link.SettleMTU(host),
		host.ProbeKind(c.New.Kind))
}

// MasterKeys are the configuration keys of an interface on another one.
type MasterKeys struct {
	Master          string `json:"master" help:"interface that the container's is on (that of the result before, or of the default route)" schema:"format=link empty"`
	LinkInContainer bool   `json:"linkInContainer" help:"the master is an interface of the container" default:"false"`
}

// findMaster finds the link that the child is to be on: the one that the key names; else the only interface of the
// result before us on the master's side; else, where that result has at most one interface, that of the default route.
func (s *Call) findMaster() error {
	if s.Child.Master == nil {
		return nil
	}
	name, err := s.Child.masterName(s.Req.PrevResult)
	if err != nil {
		return err
	}
	if name != "" {
		s.Master, err = findLink(s.masterSide(), name)
	} else {
		s.Master, err = defaultMaster(s.masterSide())
	}
	if err != nil {
		return err
	}
	return s.Child.refuseMaster(s.Master)
}

// masterReady is why no child could be on the configured master, if it is on the host.
func (c ChildConfig) masterReady(host *rtnl.Conn) error {
	if c.Master == nil || c.Master.Master == "" || c.Master.LinkInContainer {
		return nil
	}
	l, err := findLink(host, c.Master.Master)
	if err != nil {
		return err
	}
	if upper := upperLink(host, l); upper != "" && c.New.Kind != vlanKind {
		return fmt.Errorf("master: %q: is held by %s", l.Name, upper)
	}
	return c.refuseMaster(l)
}

func findLink(conn *rtnl.Conn, master string) (rtnl.Link, error) {
	l, err := conn.Link(master)
	if errors.Is(err, rtnl.ErrNoLink) {
		err = cni.Refuse("master", nil, fmt.Sprintf("%q: no such interface: %v", master, rtnl.ErrNoLink))
	}
	return l, err
}

// refuseMaster refuses a master that is too small, lo, on which the kernel makes no link, and a link of the host that
// belongs to another attachment.
func (c ChildConfig) refuseMaster(master rtnl.Link) error {
	const lo = 1 // the index in each namespace
	if master.Index == lo {
		return cni.Refuse("master", nil, fmt.Sprintf("%q: is the loopback interface, which can have no interface on it",
			master.Name))
	}
	if !c.masterInside() {
		if err := netplugin.RefuseOwned("master", master); err != nil {
			return err
		}
	}
	if c.Link.MTU > master.MTU {
		return cni.Refuse("mtu", c.Link.MTU,
			fmt.Sprintf("is above that of master %q: invalid MTU %d, must be [0, master MTU(%d)]", master.Name,
				c.Link.MTU, master.MTU))
	}
	return nil
}

// masterSide is the socket of the namespace that the master is in.
func (s *Call) masterSide() *rtnl.Conn {
	if s.Child.masterInside() {
		return s.Cont
	}
	return s.Host
}

func (c ChildConfig) masterInside() bool { return c.Master != nil && c.Master.LinkInContainer }

// masterName is the name that the key or the result before us gives; empty: neither names one. A result with several
// interfaces, not exactly one of them on the master's side, is an error, as in the reference's ipvlan: a guess, or the
// default route, could be the wrong network.
func (c ChildConfig) masterName(prev *cni.Result) (string, error) {
	if c.Master.Master != "" || prev == nil {
		return c.Master.Master, nil
	}
	alone := c.masterInside() && len(prev.Interfaces) == 1 // then it need not name its namespace
	var all, names []string
	for _, i := range prev.Interfaces {
		all = append(all, i.Name)
		if rightSide := (i.Sandbox != "") == c.masterInside(); i.Name != "" && (alone || rightSide) {
			names = append(names, i.Name)
		}
	}
	switch {
	case len(names) == 1:
		return names[0], nil
	case len(all) > 1:
		return "", cni.Refuse("master", nil, "missing, and the result before has several interfaces: "+
			strings.Join(all, ", ")).Suggest("name one of them")
	}
	return "", nil // the default route decides
}

// defaultMaster is the link of the default route: IPv4's before IPv6's, of several the one
// with the lowest metric, and the first of its next hops.
func defaultMaster(conn *rtnl.Conn) (rtnl.Link, error) {
	all, err := defaultRoutes(conn)
	if err != nil {
		return rtnl.Link{}, err
	}
	var defaults []rtnl.Route
	for _, c := range all {
		defaults = append(defaults, c.Route())
	}
	if len(defaults) == 0 {
		return rtnl.Link{}, cni.Refuse("master", nil, "missing, and no default route has an interface that it could be")
	}
	best := slices.MinFunc(defaults, func(a, b rtnl.Route) int {
		return cmp.Or(a.Dst.Addr().Compare(b.Dst.Addr()), cmp.Compare(a.Priority, b.Priority)) // IPv4 is less
	})
	return conn.LinkByIndex(best.OutIndex)
}

// upperLink names the bridge or bond that takes all frames of the link, so that no macvlan or ipvlan can be on
// it; empty: none that can be seen from here.
func upperLink(conn *rtnl.Conn, l rtnl.Link) string {
	if l.Master == 0 {
		return ""
	}
	m, err := conn.LinkByIndex(l.Master)
	if err != nil || m.Kind == "vrf" {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("%s %q", m.Kind, m.Name))
}
