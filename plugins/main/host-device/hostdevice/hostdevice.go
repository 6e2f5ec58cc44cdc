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
		return nil, missingSelector()
	}
	s, err := attach.Open(req)
	if err != nil {
		return nil, err
	}
	s.Req.Step("move the device")
	r, err := moveIn(ctx, s, cfg)
	if errors.Is(err, errNoAddress) {
		waitAddress(ctx, s.Host, cfg.Device)
		r, err = moveIn(ctx, s, cfg)
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
	if r.DeviceNetwork != nil {
		s.Req.Step("configure the device's network")
		if err := r.DeviceNetwork.apply(ctx, s, target, r.Link); err != nil {
			return nil, err
		}
		if cfg.Link.OwnAddrs, err = r.DeviceNetwork.ips(s); err != nil {
			return nil, err
		}
	}
	res, err := s.AssignAddresses(ctx, cfg.Link, target)
	if err != nil {
		return nil, err
	}
	res.Interfaces[0].Name, res.Interfaces[0].PCIID = s.Req.IfName, r.PCI
	if r.DeviceNetwork != nil {
		res.Routes = append(res.Routes, r.DeviceNetwork.routes(s.Req.Version)...)
		warnHidden(s.Req, res.IPs)
	}
	if target.Index == 0 || len(res.IPs) == 0 {
		return res, nil
	}
	// Announce sets the MAC address, which some drivers refuse.
	return res, s.Tolerate(iface.Announce(s.Cont, s.ContEnd))
}

func del(ctx context.Context, req *skel.Request) error {
	// Both steps lock and read the record, because the lock is free while IPAM runs, which may take long. In that time,
	// another call may move the device or change the record.
	return attach.DelInterface(ctx, req, func() error {
		return withRecord(ctx, req, func(c call, r *record, err error) error {
			if err != nil {
				return err
			}
			l, err := r.findDevice(c.Cont)
			if err != nil {
				return err
			}
			return attach.Flush(c.Cont, l)
		})
	}, func() (isDeleted bool, err error) {
		err = withRecord(ctx, req, func(c call, r *record, err error) error {
			if err == nil {
				err = c.moveBack(ctx, r, c.Cont)
			}
			if errors.Is(err, rtnl.ErrNoLink) {
				err = c.records.Drop(ctx, req.Hash()) // there is no device, but perhaps a damaged record
			}
			return err
		})
		return err == nil, err
	})
}

func check(ctx context.Context, req *skel.Request, cfg config) error {
	return attach.Check(ctx, req, func(s *attach.Call) []error { return verify(s, cfg.Device) })
}

// gc brings home the devices of attachments that are not valid.
func gc(ctx context.Context, req *skel.Request) error {
	return attach.GCInterfaces(ctx, req, func() error { return collect(ctx, req) })
}

// status returns code 50 if ADD would not find the device, and IPAM's answer otherwise.
func status(ctx context.Context, req *skel.Request, cfg config) error {
	probe := func(host *rtnl.Conn) error { return verifyExists(req, host, cfg.Device) }
	if err := netplugin.Status(recordDir, probe); err != nil {
		return err
	}
	return attach.Status(ctx, req, attach.Masq{}, nil)
}

// call is a plugin call that holds the lock of the records, so that no other call moves a device.
type call struct {
	*netplugin.Call
	records *store
}

// moveIn finds the device, writes the record and moves the device into the container. It holds the lock of the records,
// because nothing on the host shows that another call is about to move the device. The error matches errNoAddress if
// the configuration asks for the device's network and the device has no address.
func moveIn(ctx context.Context, s *attach.Call, cfg config) (*record, error) {
	d := cfg.Device
	if err := s.RefuseExisting(); err != nil {
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
		c, err := lock(ctx, s.Call)
		if err != nil {
			return err
		}
		return c.moveBack(ctx, r, s.Cont)
	})
	if err := locked.Put(ctx, *r); err != nil || l.Index == 0 {
		return r, err
	}
	if r.DeviceNetwork != nil {
		if err := r.DeviceNetwork.keepOtherHops(c.Host, l); err != nil {
			return r, err
		}
	}
	// One message, so that a killed call leaves the device either on the host under its name, or in the container with
	// the alias by which the reference plugin's DEL finds it.
	err = c.Host.SetLink(l.Index, rtnl.LinkChange{Netns: c.Cont, Name: c.Req.IfName, Alias: &l.Name})
	if errors.Is(err, unix.EINVAL) {
		return r, cni.Refuse(d.Key, d.Value, fmt.Sprintf("is interface %q, which cannot move to a namespace: %v",
			l.Name, err))
	}
	if err == nil || errors.Is(err, rtnl.ErrNoLink) { // it has moved, perhaps with a lost answer
		err = c.FindInterface()
	}
	if err == nil && r.Inside != c.ContEnd.Index && r.Link.Kind != "" {
		r.Inside = c.ContEnd.Index
		err = locked.Put(ctx, *r)
	}
	if err != nil {
		err = fmt.Errorf("%s: move into the container: %w", r, err)
	}
	return r, err
}

// findFree finds the device on the host. If the kernel moved it there from an ended namespace, findFree first restores
// its name and settings. It returns code 103 if another attachment has the device, and code 100 if this attachment has
// one.
func (c call) findFree(ctx context.Context, d selector) (l rtnl.Link, err error) {
	all, err := c.records.All()
	if err != nil {
		return l, err
	}
	l, err = d.findDevice(c.Host)
	for _, r := range all {
		isOnHost, isSameDevice := l.Index != 0, r.isSelectedBy(d)
		if isOnHost {
			isSameDevice = r.isDevice(l)
		}
		isOwn := r.Attachment == c.Req.Attachment // such a record prevents ADD even if it names another device
		if !isOwn && !isSameDevice {
			continue
		}
		switch err := r.refuseHeld(c.Req.Attachment); {
		case err == nil: // the container no longer has the device
		case isOwn || !isOnHost:
			return l, err
		case !l.IsHardware():
			continue // the container has its device, so l is another one with the same name and MAC address
		}
		// No container has the device; refuseHeld may have failed for hardware, but l shows that it is on the host.
		if err := c.moveBack(ctx, r, nil); err != nil {
			return l, err
		}
		// Another interface may still have the device's name. The new record gets the name and the alias of the old
		// one, because DEL must restore them.
		if l, err = d.findDevice(c.Host); err == nil && r.isDevice(l) {
			l.Name, l.Alias = r.Link.Name, r.Link.Alias
		}
	}
	if errors.Is(err, rtnl.ErrNoLink) {
		return l, cni.Refuse(d.Key, d.Value, fmt.Sprintf("no such interface on this host: %v", rtnl.ErrNoLink))
	}
	return l, err
}

// refuseHeld returns an error if the container of the record still has the device: code 100 if the record belongs to
// attachment a, otherwise code 103.
func (r *record) refuseHeld(a cni.Attachment) error {
	cont, err := netplugin.DialNetns(new(ns.Finder).Open, r.NetnsPath, r.Netns)
	if err == nil && r.Link.Index != 0 {
		_, err = r.findDevice(cont)
	}
	_ = cont.Close()
	if errors.Is(err, rtnl.ErrNoLink) {
		return nil
	}
	if a == r.Attachment {
		return a.Exists(fmt.Sprintf("%s: this attachment has it already", r))
	}
	return cni.Errorf(cni.CodeConflict, "%s: is held by %s", r, r.Attachment)
}

// prepare completes the record, and warns about a device ID that names another device and about default routes that the
// host loses. It takes the device out of its bond or team.
func (c call) prepare(r *record, cfg config) (err error) {
	if r.Link.Index == 0 {
		if cfg.UseNetwork {
			return cni.Refuse("useInterfaceNetwork", true, fmt.Sprintf("%s has a userspace driver and no interface", r))
		}
		return nil
	}
	if cfg.UnusedID != "" {
		other, err := selector{byID, cfg.UnusedID}.findDevice(c.Host)
		if err != nil || other.Index != r.Link.Index {
			c.Req.Warn("runtimeConfig.deviceID: %q is ignored, because %q names the device", cfg.UnusedID, r.Device.Key)
		}
	}
	if cfg.UseNetwork {
		if r.DeviceNetwork, err = c.readNetwork(r.Link); err != nil {
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
	if errors.Is(err, rtnl.ErrNoLink) {
		r.Inside = r.Link.Index
	} else if err != nil {
		return err
	}
	return c.leaveMaster(r)
}

// leaveMaster warns if the device is a port, and takes it out of a bond or team. The kernel then restores the device's
// own MAC address and MTU and sets it down, and the record must have these values. A failed ADD makes it a port again.
func (c call) leaveMaster(r *record) error {
	index, masterIndex := r.Link.Index, r.Link.Master
	if masterIndex == 0 {
		return nil
	}
	master, err := c.Host.LinkByIndex(masterIndex)
	if err != nil {
		return err
	}
	c.Req.Warn("device %q: is a port of %q, and will not be a port after DEL; add it again with: "+
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

// lock locks the records until the call ends.
func lock(ctx context.Context, c *netplugin.Call) (call, error) {
	locked, err := records().OpenExisting(ctx)
	if err == nil {
		c.Req.OnDone(func() { _ = errors.Join(locked.Close(), c.Cont.Close()) })
	}
	return call{c, locked}, err
}

// withRecord locks the records while work runs, which receives the record or the error that findRecord returns.
func withRecord(ctx context.Context, req *skel.Request, work func(call, *record, error) error) error {
	lockCtx, cancel := skel.WithTwoThirds(ctx)
	defer cancel()
	c, err := lock(lockCtx, netplugin.OpenHost(req))
	if err != nil {
		return err
	}
	defer c.records.Close()
	r, err := c.findRecord()
	return work(c, r, err)
}

// findRecord returns the attachment's record, or a record of a device that the reference plugin moved, and opens Cont.
// The error matches rtnl.ErrNoLink if there is no device.
func (c call) findRecord() (*record, error) {
	r, ok, err := c.records.Get(c.Req.Hash())
	if err != nil {
		return nil, err
	}
	if !ok {
		return c.findReference()
	}
	c.Cont, err = netplugin.DialNetns((&ns.Finder{Alternative: c.Req.Netns}).Open, r.NetnsPath, r.Netns)
	return &r, netplugin.IgnoreNoLink(err) // the kernel may have moved the device to the host
}

// verify compares the interface with the result, and with the device that ADD moved.
func verify(s *attach.Call, d selector) []error {
	r, ok, err := records().Get(s.Req.Hash())
	if i, _ := s.Req.PrevResult.ContainerInterface(s.Req.IfName); i.MAC == "" && r.Link.Index == 0 {
		return []error{err} // a userspace driver has the device
	}
	if err := errors.Join(err, s.VerifyInterface()); err != nil {
		return []error{err}
	}
	errs := []error{iface.Verify(s.Target(), s.Req.PrevResult)}
	if ok && (!r.isDevice(s.ContEnd) || d.Key != "" && !r.isSelectedBy(d)) {
		errs = append(errs, cni.Drift("interface %q: is not the device %q", s.Req.IfName, d.Value))
	}
	if alias := s.ContEnd.Alias; alias == "" || ok && alias != r.Link.Name {
		errs = append(errs, cni.Drift("interface %q: alias is %q instead of the device's name on the host",
			s.Req.IfName, alias))
	}
	if ok {
		errs = append(errs, r.DeviceNetwork.verify(s.Cont))
	}
	return errs
}

func collect(ctx context.Context, req *skel.Request) error {
	c, err := lock(ctx, netplugin.OpenHost(req))
	if err != nil {
		return err
	}
	defer c.records.Close() // before IPAM runs, which may take long
	all, err := c.records.All()
	errs := []error{err}
	var finder ns.Finder
	for _, r := range all {
		if !req.Valid.Excludes(r.Attachment) {
			continue
		}
		cont, err := netplugin.DialNetns(finder.Open, r.NetnsPath, r.Netns)
		if err == nil || errors.Is(err, rtnl.ErrNoLink) {
			err = c.moveBack(ctx, r, cont)
		}
		errs = append(errs, err, cont.Close())
	}
	return errors.Join(errs...)
}

// verifyExists returns an error if neither the host nor a container has the device. It warns if a container has it.
func verifyExists(req *skel.Request, host *rtnl.Conn, d selector) error {
	if d.Key == "" { // the runtime names the device in ADD
		return nil
	}
	_, findErr := d.findDevice(host)
	if !errors.Is(findErr, rtnl.ErrNoLink) {
		return findErr
	}
	held, err := records().Any(func(r record) bool {
		if r.isSelectedBy(d) {
			req.Warn("%s: is held by %s", r, r.Attachment)
		}
		return r.isSelectedBy(d)
	})
	if held {
		return nil
	}
	return cmp.Or(err, findErr)
}
