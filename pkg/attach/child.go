package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const vlanKind = "vlan" // kind of a VLAN link. A master has at most one link of this kind for each VLAN

// ChildConfig describes the child that a plugin creates. The alias of the link is its owner's mark, and a record
// contains the namespace of the link.
type ChildConfig struct {
	New          rtnl.NewLink // the kind, and the fields that only this kind has
	SharesMode   bool         // all children of a master have the same New.Mode
	TakesPackets bool         // the child receives packets that arrive on the master for the child's addresses
	TakesMaster  bool         // the child receives all packets that arrive on the master; the host receives none
	Link         LinkConfig
	Master       *MasterKeys // nil = the child has no master
	DAD          bool        // duplicate address detection, because other hosts are on the network

	// Make creates the link in the container, down and in the group of the network, under a name that may be
	// temporary. The error matches EEXIST if the name is taken. MakeLink does this for rtnetlink's kinds.
	Make func(ctx context.Context, c *Call, name string) error
	// Probe returns an error if no link can be created. Without Probe, STATUS uses ProbeKind and checks the master.
	Probe  func() error
	Verify func(c *Call, l rtnl.Link) []string // returns drift that only this kind of child can have; may be nil
}

// ChildPlugin adds all verbs to a plugin that creates children of one kind.
func ChildPlugin(p skel.Plugin[ChildConfig], kind string) skel.Plugin[ChildConfig] {
	p.Add = AddChild
	p.Del = func(ctx context.Context, req *skel.Request) error { return delChild(ctx, req, kind) }
	p.Check = func(ctx context.Context, req *skel.Request, cfg ChildConfig) error {
		return Check(ctx, req, func(c *Call) []error {
			c.Child = cfg
			return c.verifyChild()
		})
	}
	p.GC = gcChildren
	p.List = func(context.Context, *skel.Request) ([]cni.Holding, error) { return listChildren(kind) }
	p.Status = statusChild
	return p
}

// AddChild implements ADD for a ChildPlugin.
func AddChild(ctx context.Context, req *skel.Request, cfg ChildConfig) (*cni.Result, error) {
	c, err := Open(req)
	if err != nil {
		return nil, err
	}
	c.Child = cfg
	if err := c.findMaster(); err != nil {
		return nil, err
	}
	if err := c.resolveChildMTU(); err != nil {
		return nil, err
	}
	if err := c.createChild(ctx); err != nil {
		return nil, err
	}
	if err := c.raiseChild(); err != nil {
		return nil, err
	}
	res, err := c.AssignAddresses(ctx, c.Child.Link, c.Target())
	if errors.Is(err, unix.EADDRINUSE) {
		err = cni.Errorf(cni.CodeConflict, "another interface on master %q has the address: %w", c.Master.Name, err)
	}
	if err != nil {
		return nil, err
	}
	return res, c.announceChild(res)
}

// createChild creates the link, down, and writes the owner's mark to it. It returns code 100 if the attachment exists.
// The lock of the records decides which of two concurrent ADDs is first.
func (c *Call) createChild(ctx context.Context) (err error) {
	c.Req.Step("make the interface")
	records, err := childRecords().Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, records.Close()) }()
	r := c.newChildRecord()
	if err := c.checkRecords(records, r); err != nil {
		return err
	}
	c.Req.CatchSignals()
	if err := records.Put(ctx, r); err != nil {
		return err
	}
	c.Req.OnFail("delete the interface", func(ctx context.Context) error { return c.undoChild(ctx, r) })
	err = c.makeChild(ctx)
	if errors.Is(err, unix.EEXIST) && r.Kind == vlanKind {
		return c.vlanConflict(records, r, err)
	}
	if err != nil {
		return err
	}
	// The record needs the index before the change below. If that change fails because the name is taken, the kernel
	// may have reset the group but not set the alias, so that only the index identifies the link.
	r.Link = c.ContEnd.Index
	if err := records.Put(ctx, r); err != nil {
		return err
	}
	c.ContEnd.Name = c.Req.IfName
	change := rtnl.LinkChange{Alias: new(c.Req.Mark()), Group: new(uint32(0)), Name: c.Req.IfName}
	return c.Cont.SetLink(c.ContEnd.Index, change)
}

// makeChild calls Child.Make and sets ContEnd. If the kernel refuses the final name, the link gets a temporary one.
// Before Linux 6.15, the kernel refuses a name that a link of the host has.
func (c *Call) makeChild(ctx context.Context) error {
	name := c.Req.IfName
	err := c.Child.Make(ctx, c, name)
	if errors.Is(err, unix.EEXIST) {
		if err := c.RefuseExisting(); err != nil {
			return err
		}
		name = temporaryName(c.Req.Attachment)
		err = c.Child.Make(ctx, c, name)
	}
	switch {
	case errors.Is(err, unix.EBUSY) && c.Child.Master != nil:
		upper := cmp.Or(upperDevice(c.masterConn(), c.Master),
			"an interface that receives all its frames, such as a macvlan or ipvlan")
		return cni.Errorf(cni.CodeConflict, "master: %q: is held by %s: %w", c.Master.Name, upper, err)
	case err != nil:
		return err
	}
	c.ContEnd, err = c.Cont.Link(name)
	return err
}

// MakeLink creates ChildConfig.New in the container, on the master if there is one.
func MakeLink(_ context.Context, c *Call, name string) error {
	l := c.Child.New
	l.Name, l.MTU, l.MAC = name, c.Child.Link.MTU, c.Child.Link.MAC
	l.Master, l.Group = c.Master.Index, cni.NetworkHash(c.Req.Network)
	if c.Child.isMasterInside() || l.Master == 0 {
		return c.Cont.AddLink(l)
	}
	l.NS = c.Req.NS
	return c.Host.AddLink(l)
}

// undoChild deletes the link and the record of an ADD that failed. If ContEnd is set, this ADD created the link.
// Otherwise, the kernel may have created the link although its answer was lost; that link has no mark yet. A link with
// the mark belongs to a live attachment whose record was lost, and is kept.
func (c *Call) undoChild(ctx context.Context, r childRecord) error {
	l, err := r.locate(c.Cont)
	if c.ContEnd.Index != 0 || l.Alias == "" {
		if err := r.deleteLink(&foundLink{conn: c.Cont, link: l, err: err}); err != nil {
			return err
		}
	}
	return childRecords().Drop(ctx, c.Req.Hash())
}

// raiseChild brings the interface up. The kernel checks for a duplicate MAC address on the master only now.
func (c *Call) raiseChild() error {
	c.Req.Step("raise the interface")
	err := iface.Raise(c.Target())
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return cni.Errorf(cni.CodeConflict, "MAC address %s: another interface on master %q has it: %w", c.ContEnd.MAC,
			c.Master.Name, err)
	case errors.Is(err, unix.ENETDOWN):
		return cni.Errorf(cni.CodeConflict, "master: %q: is down: %w", c.Master.Name, err)
	}
	return err
}

func (c *Call) announceChild(res *cni.Result) error {
	if len(res.IPs) == 0 || c.Master.Index == 0 {
		return nil
	}
	err := iface.Announce(c.Cont, c.ContEnd)
	if errors.Is(err, unix.EOPNOTSUPP) { // an ipvlan has its master's MAC address
		return nil
	}
	return err
}

// delChild deletes whatever exists of an attachment with a child.
func delChild(ctx context.Context, req *skel.Request, kind string) error {
	lockCtx, cancel := skel.WithTwoThirds(ctx)
	defer cancel()
	child := findChild(req, kind)
	defer child.close()
	return DelInterface(ctx, req, child.flush, func() (isDeleted bool, err error) {
		// After any error the record stays, because the link may exist in a namespace that cannot be entered.
		if _, err := child.delete(); err != nil {
			return false, fmt.Errorf("interface %q: %w", req.IfName, err)
		}
		return true, childRecords().Drop(lockCtx, req.Hash())
	})
}

// gcChildren deletes the children of attachments on the network that are not valid.
func gcChildren(ctx context.Context, req *skel.Request) error {
	isStale := func(r childRecord) bool { return req.Valid.Excludes(r.Attachment) }
	var finder ns.Finder
	return GCInterfaces(ctx, req, func() error {
		lockCtx, cancel := skel.WithTwoThirds(ctx)
		defer cancel()
		return childRecords().Collect(lockCtx, isStale, func(r childRecord) error {
			child := r.findLink(finder.Open)
			defer child.close()
			return r.deleteLink(child)
		})
	})
}

func (c *Call) verifyChild() []error {
	cfg := c.Child
	l, err := c.Cont.Link(c.Req.IfName)
	if err != nil {
		return []error{iface.AsDrift(fmt.Errorf("container: %w", err))}
	}
	drift := func(format string, args ...any) error {
		return cni.Drift("interface %q: %s", c.Req.IfName, fmt.Sprintf(format, args...))
	}
	if l.Kind != cfg.New.Kind {
		return []error{drift("is of kind %q instead of %q", l.Kind, cfg.New.Kind)}
	}
	r, hasRecord, err := childRecords().Get(c.Req.Hash())
	if err != nil {
		return []error{err}
	}
	var errs []error
	// The container may have removed the alias. The reference plugin's link has no alias and no record.
	isOwn := c.Req.Owns(l.Alias) || hasRecord && r.Link == l.Index || !hasRecord && l.Alias == ""
	if !isOwn {
		errs = append(errs, drift("is not the one that ADD created"))
	}
	if err := c.verifyMaster(r, l); err != nil {
		errs = append(errs, iface.AsDrift(err))
	}
	if l.Mode != cfg.New.Mode {
		errs = append(errs, drift("mode is %q instead of %q", l.Mode, cfg.New.Mode))
	}
	if l.VLAN != cfg.New.VLAN {
		errs = append(errs, drift("VLAN is %d instead of %d", l.VLAN, cfg.New.VLAN))
	}
	if cfg.Verify != nil {
		for _, text := range cfg.Verify(c, l) {
			errs = append(errs, drift("%s", text))
		}
	}
	errs = append(errs, c.ExpectMTU(&c.Child.Link, c.resolveChildMTU))
	want := c.Req.PrevResult.Clone()
	for i := range want.Interfaces {
		if cfg.Link.MTU == 0 && cfg.Link.AutoFrom == nil { // the MTU is the master's, which may change
			want.Interfaces[i].MTU = 0
		}
	}
	return append(errs, iface.Verify(c.Target(), want))
}

func statusChild(ctx context.Context, req *skel.Request, cfg ChildConfig) error {
	if cfg.Probe == nil {
		return Status(ctx, req, Masq{}, cfg.probeKind)
	}
	if err := netplugin.Unavailable("", statefile.Writable(childDir), cfg.Probe()); err != nil {
		return err
	}
	var probe func(*rtnl.Conn) error // nil saves the socket
	if cfg.Link.AutoFrom != nil {
		probe = cfg.Link.ResolveMTU
	}
	return Status(ctx, req, Masq{}, probe)
}

// probeKind returns an error if ADD could not create the child with rtnetlink.
func (cfg ChildConfig) probeKind(host *rtnl.Conn) error {
	return errors.Join(statefile.Writable(childDir), cfg.probeMaster(host), cfg.Link.ResolveMTU(host),
		host.ProbeKind(cfg.New.Kind))
}
