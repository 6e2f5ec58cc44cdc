package hostdevice

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	if cfg.Device.Key == "" {
		return nil, missing()
	}
	s, err := attach.Open(req)
	if err != nil {
		return nil, err
	}
	s.Req.Step("move the device")
	r, err := take(ctx, s, cfg)
	if errors.Is(err, errNoAddress) {
		waitAddress(ctx, s.Host, cfg.Device)
		r, err = take(ctx, s, cfg)
	}
	if err != nil {
		return nil, err
	}
	target := s.Target()
	target.EnableDAD = cfg.DAD
	if target.Index != 0 {
		s.Req.Step("raise the interface")
		if err := iface.Raise(target); err != nil {
			return nil, err
		}
	}
	if r.Settings != nil {
		s.Req.Step("configure the device's network")
		if err := r.Settings.apply(ctx, s, target, r.Link); err != nil {
			return nil, err
		}
		if cfg.Link.Own, err = r.Settings.ips(s); err != nil {
			return nil, err
		}
	}
	res, err := s.AssignAddresses(ctx, cfg.Link, target)
	if err != nil {
		return nil, err
	}
	res.Interfaces[0].Name, res.Interfaces[0].PCIID = s.Req.IfName, r.PCI
	if r.Settings != nil {
		res.Routes = append(res.Routes, r.Settings.routes(s.Req.Version)...)
	}
	if target.Index == 0 || len(res.IPs) == 0 {
		return res, nil
	}
	// A driver may refuse what makes the kernel announce the addresses.
	return res, s.Tolerate(iface.Announce(s.Cont, s.ContEnd))
}

func del(ctx context.Context, req *skel.Request) error {
	locks, cancel := skel.WithTwoThirds(ctx)
	defer cancel()
	c, err := lock(locks, netplugin.OpenHost(req))
	if err != nil {
		return err
	}
	r, findErr := c.findDevice()
	return attach.DelInterface(ctx, req, func() error {
		if findErr != nil {
			return findErr
		}
		l, err := r.find(c.Cont)
		if err != nil {
			return err
		}
		return attach.Flush(c.Cont, l)
	}, func() (gone bool, err error) {
		if err = findErr; err == nil {
			err = c.bringHome(ctx, r, c.Cont)
		}
		if errors.Is(err, rtnl.ErrNoLink) {
			err = c.records.Drop(ctx, req.Hash()) // a damaged one
		}
		return err == nil, err
	})
}

func check(ctx context.Context, req *skel.Request, cfg config) error {
	return attach.Check(ctx, req, func(s *attach.Call) []error { return verify(s, cfg.Device) })
}

// gc brings the devices home that attachments have which are not valid.
func gc(ctx context.Context, req *skel.Request) error {
	return attach.GCInterfaces(ctx, req, func() error { return collect(ctx, req) })
}

// status is code 50 where ADD would not find the device, and else IPAM's answer.
func status(ctx context.Context, req *skel.Request, cfg config) error {
	probe := func(host *rtnl.Conn) error { return findOrHeld(req, host, cfg.Device) }
	if err := netplugin.Status(recordDir, probe); err != nil {
		return err
	}
	return attach.Status(ctx, req, attach.Masq{}, nil)
}

// call is a call while nobody else moves a device: the records are locked.
type call struct {
	*netplugin.Call
	records *store
}

// take finds the device, writes the record and moves the device into the container. It returns the PCI address. Other
// calls wait meanwhile: on the host nothing says that somebody takes the device.
func take(ctx context.Context, s *attach.Call, cfg config) (*record, error) {
	d := cfg.Device
	if err := s.RefuseTakenName(); err != nil {
		return nil, err
	}
	locked, err := records().Open(ctx)
	if err != nil {
		return nil, err
	}
	defer locked.Close()
	c := call{s.Call, locked}
	l, err := c.findFree(ctx, d)
	if err != nil {
		return nil, err
	}
	r := &record{Attachment: c.Req.Attachment, NetnsPath: c.Req.Netns, Netns: c.NetnsID, Device: d, Link: l,
		PCI: cmp.Or(pciAddress(d.Value), pciAddress(l.Parent))}
	if err := c.prepare(r, cfg); err != nil {
		return nil, err
	}
	c.Req.OnFail("bring the device home", func(ctx context.Context) error {
		again, err := lock(ctx, s.Call)
		if err != nil {
			return err
		}
		return again.bringHome(ctx, r, s.Cont)
	})
	if err := locked.Put(ctx, *r); err != nil || l.Index == 0 {
		return r, err
	}
	if r.Settings != nil {
		if err := r.Settings.keepOthers(c.Host, l); err != nil {
			return r, err
		}
	}
	// One message: whenever we are killed, the device has one name and says where it belongs.
	err = c.Host.SetLink(l.Index, rtnl.LinkChange{To: c.Cont, Name: c.Req.IfName, Alias: &l.Name})
	if errors.Is(err, unix.EINVAL) {
		return r, cni.Refuse(d.Key, d.Value, fmt.Sprintf("is interface %q, which cannot move to a namespace: %v",
			l.Name, err))
	}
	if err == nil || errors.Is(err, rtnl.ErrNoLink) { // it has moved, also where only the answer was lost
		err = c.FindInterface()
	}
	if err != nil {
		err = fmt.Errorf("%s: move into the container: %w", r, err)
	}
	return r, err
}

// findFree finds the device on the host, under its own name again where the kernel brought it there. One that a
// container has is code 103, or 100 if that is this one.
func (c call) findFree(ctx context.Context, d selector) (l rtnl.Link, err error) {
	all, err := c.records.All()
	if err != nil {
		return l, err
	}
	l, err = d.find(c.Host)
	for _, r := range all {
		onHost, concerns := l.Index != 0, r.isMeant(d)
		if onHost {
			concerns = r.isOf(l)
		}
		own := r.Attachment == c.Req.Attachment // an attachment has one record: it counts whichever device it names
		if !own && !concerns {
			continue
		}
		if own || !onHost {
			if err := r.refuseHeld(c.Req.Attachment); err != nil {
				return l, err
			}
		}
		if err := c.bringHome(ctx, r, nil); err != nil {
			return l, err
		}
		// Something else may still have its name: DEL has to restore that and the alias.
		if l, err = d.find(c.Host); err == nil && r.isOf(l) {
			l.Name, l.Alias = r.Link.Name, r.Link.Alias
		}
	}
	if errors.Is(err, rtnl.ErrNoLink) {
		return l, cni.Refuse(d.Key, d.Value, fmt.Sprintf("no such interface on this host: %v", rtnl.ErrNoLink))
	}
	return l, err
}

// refuseHeld is the error of a device that its container has; by is who wants it.
func (r *record) refuseHeld(by cni.Attachment) error {
	cont, err := netplugin.DialNetns(ns.OpenAs, r.NetnsPath, r.Netns)
	if err == nil && r.Link.Index != 0 {
		_, err = r.find(cont)
	}
	_ = cont.Close()
	if errors.Is(err, rtnl.ErrNoLink) {
		return nil
	}
	if by == r.Attachment {
		return by.Exists(fmt.Sprintf("%s: is held already", r))
	}
	return cni.Errorf(cni.CodeConflict, "%s: is held by %s", r, r.Attachment)
}

// prepare warns of the default routes that the host loses with the device, and completes the record.
func (c call) prepare(r *record, cfg config) (err error) {
	if r.Link.Index == 0 {
		if cfg.UseNetwork {
			return cni.Refuse("useInterfaceNetwork", true, fmt.Sprintf("%s has a userspace driver and no interface", r))
		}
		return nil
	}
	if cfg.UseNetwork {
		if r.Settings, err = c.readNetwork(r.Link); err != nil {
			return err
		}
	}
	routes, _ := c.Host.Routes(r.Link.Index, unix.AF_UNSPEC)
	for _, route := range routes {
		if route.Dst.Bits() == 0 && route.Table == unix.RT_TABLE_MAIN {
			c.Req.Warn("device %q: the host loses its default route %s with the device", r.Link.Name, route)
		}
	}
	_, err = c.Cont.LinkByIndex(r.Link.Index)
	r.KeepsIndex = errors.Is(err, rtnl.ErrNoLink)
	if err != nil && !r.KeepsIndex {
		return err
	}
	return c.leaveMaster(r)
}

// leaveMaster warns that the device is a port, and takes it out of a bond or team, before the move would do so.
// That gives the device its own MAC address and MTU back and brings it down: the record has to have these values. An
// ADD that fails makes it a port again.
func (c call) leaveMaster(r *record) error {
	index, masterIndex := r.Link.Index, r.Link.Master
	if masterIndex == 0 {
		return nil
	}
	master, err := c.Host.LinkByIndex(masterIndex)
	if err != nil {
		return err
	}
	c.Req.Warn("device %q: is a port of %q, and will not be when it comes home; make it one again with: "+
		"ip link set %s master %s", r.Link.Name, master.Name, r.Link.Name, master.Name)
	if master.Kind != "bond" && master.Kind != "team" {
		return nil
	}
	c.Req.OnFail("make the device a port again", func(context.Context) error {
		l, err := r.findHome(c.Host)
		if err != nil {
			return err
		}
		return c.Host.SetLink(l.Index, rtnl.LinkChange{Master: &masterIndex})
	})
	if err := c.Host.SetLink(index, rtnl.LinkChange{Master: new(0)}); err != nil {
		return err
	}
	l, err := c.Host.LinkByIndex(index)
	if err == nil {
		r.Link = l
	}
	return err
}

// lock locks the records until the call is over.
func lock(ctx context.Context, c *netplugin.Call) (call, error) {
	locked, err := records().OpenExisting(ctx)
	if err == nil {
		c.Req.OnDone(func() { _ = errors.Join(locked.Close(), c.Cont.Close()) })
	}
	return call{c, locked}, err
}

// findDevice finds the attachment's device, by the record or by what the reference left, and opens Cont. The error
// matches rtnl.ErrNoLink when there is none.
func (c call) findDevice() (*record, error) {
	r, ok, err := c.records.Get(c.Req.Hash())
	if err != nil {
		return nil, err
	}
	if !ok {
		return c.findReference()
	}
	c.Cont, err = netplugin.DialNetns((&ns.Finder{Also: c.Req.Netns}).Open, r.NetnsPath, r.Netns)
	return &r, netplugin.IgnoreNoLink(err) // it may be on the host
}

// verify compares the interface with the result, and with the device that ADD took.
func verify(s *attach.Call, d selector) []error {
	r, ok, err := records().Get(s.Req.Hash())
	if i, _ := s.Req.PrevResult.ContainerInterface(s.Req.IfName); i.MAC == "" && r.Link.Index == 0 {
		return []error{err} // a device without interface
	}
	if err := errors.Join(err, s.VerifyInterface()); err != nil {
		return []error{err}
	}
	errs := []error{iface.Verify(s.Target(), s.Req.PrevResult)}
	if ok && (!r.isOf(s.ContEnd) || d.Key != "" && !r.isMeant(d)) {
		errs = append(errs, cni.Drift("interface %q: is not the device %q", s.Req.IfName, d.Value))
	}
	if alias := s.ContEnd.Alias; alias == "" || ok && alias != r.Link.Name {
		errs = append(errs, cni.Drift("interface %q: alias is %q instead of the device's name on the host",
			s.Req.IfName, alias))
	}
	if ok {
		errs = append(errs, r.Settings.verify(s.Cont))
	}
	return errs
}

func collect(ctx context.Context, req *skel.Request) error {
	c, err := lock(ctx, netplugin.OpenHost(req))
	if err != nil {
		return err
	}
	defer c.records.Close() // before IPAM is asked, which may take its time
	all, err := c.records.All()
	errs := []error{err}
	var finder ns.Finder
	for _, r := range all {
		if !req.Valid.Excludes(r.Attachment) {
			continue
		}
		cont, err := netplugin.DialNetns(finder.Open, r.NetnsPath, r.Netns)
		if err == nil || errors.Is(err, rtnl.ErrNoLink) {
			err = c.bringHome(ctx, r, cont)
		}
		errs = append(errs, err, cont.Close())
	}
	return errors.Join(errs...)
}

// findOrHeld is the error of a device that neither the host nor a container has; it warns of the container.
func findOrHeld(req *skel.Request, host *rtnl.Conn, d selector) error {
	if d.Key == "" { // the runtime names the device in ADD
		return nil
	}
	_, findErr := d.find(host)
	if !errors.Is(findErr, rtnl.ErrNoLink) {
		return findErr
	}
	held, err := records().Any(func(r record) bool {
		if r.isMeant(d) {
			req.Warn("%s: is held by %s", r, r.Attachment)
		}
		return r.isMeant(d)
	})
	if held {
		return nil
	}
	return cmp.Or(err, findErr)
}
