package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	if cfg.Device.Key == "" {
		return nil, missing()
	}
	s, err := attach.Open(req)
	if err != nil {
		return nil, err
	}
	r, err := take(ctx, s, cfg.Device)
	if err != nil {
		return nil, err
	}
	target := s.Target()
	target.EnableDAD = cfg.DAD
	if target.Index != 0 {
		if err := iface.Raise(target); err != nil {
			return nil, err
		}
	}
	res, err := s.Furnish(ctx, cfg.Link, target)
	if err != nil {
		return nil, err
	}
	res.Interfaces[0].Name, res.Interfaces[0].PCIID = s.IfName, r.PCI
	if target.Index == 0 || len(res.IPs) == 0 {
		return res, nil
	}
	// A driver may refuse what makes the kernel announce the addresses.
	return res, s.Tolerate(iface.Announce(s.Cont, s.ContEnd))
}

// take finds the device, writes the record and moves the device into the container, while
// other calls wait: a device on the host is nobody's.
func take(ctx context.Context, s *attach.Session, d device) (r record, err error) {
	if _, err := s.Cont.Link(s.IfName); err == nil {
		return r, s.Exists(fmt.Sprintf("interface %q: exists already in the container", s.IfName))
	} else if !errors.Is(err, rtnl.ErrNoLink) {
		return r, err
	}
	locked, err := records().Open(ctx)
	if err != nil {
		return r, err
	}
	defer locked.Close()
	f, err := findFree(s, locked, d)
	if err != nil {
		return r, err
	}
	warnOfUses(s, f.Link)
	r = record{Attachment: s.Attachment, Netns: s.Netns, NS: s.NetnsID, Device: d, PCI: f.PCI, Link: f.Link}
	if err = r.leaveMaster(s); err != nil {
		return r, err
	}
	if f.Link.Index != 0 {
		_, err = s.Cont.LinkByIndex(f.Link.Index)
		if r.KeepsIndex = errors.Is(err, rtnl.ErrNoLink); err != nil && !r.KeepsIndex {
			return r, err
		}
	}
	s.OnFail("bring the device home", func(ctx context.Context) error {
		locked, err := records().OpenExisting(ctx)
		if err != nil {
			return err
		}
		defer locked.Close()
		return r.end(locked, s.Host, s.Cont, s.Warn)
	})
	if err := locked.Put(r); err != nil || f.Link.Index == 0 {
		return r, err
	}
	// One message: whenever we are killed, the device has one name and says where it belongs.
	err = s.Host.SetLink(f.Link.Index, rtnl.Change{To: s.Cont, Name: s.IfName, Alias: &f.Link.Name})
	switch {
	case errors.Is(err, unix.EINVAL):
		err = cni.Refuse(d.Key, d.Value, fmt.Sprintf("is interface %q, which cannot move to a namespace: %v",
			f.Link.Name, err))
	case err != nil:
		err = fmt.Errorf("%s: move into the container: %w", r, err)
	}
	if err == nil || errors.Is(err, rtnl.ErrNoLink) { // it has moved, where only the answer was lost
		var lookErr error
		if s.ContEnd, lookErr = s.Cont.Link(s.IfName); lookErr == nil || err == nil {
			err = lookErr
		}
	}
	return r, err
}

// findFree finds the device on the host, and gives it its name back where the kernel brought it
// there. One that a container has is code 103, or 100 if that is this one.
func findFree(s *attach.Session, records *store, d device) (f found, err error) {
	all, err := records.All()
	if err != nil {
		return f, err
	}
	f, err = d.find(s.Host)
	for _, r := range all {
		onHost, concerns := f.Link.Index != 0, r.meets(d)
		if onHost {
			concerns = r.is(f.Link)
		}
		own := r.Attachment == s.Attachment // an attachment has one record: it counts whichever device it names
		if !own && !concerns {
			continue
		}
		if own || !onHost {
			if holdErr := r.held(s.Attachment); holdErr != nil {
				return f, holdErr
			}
		}
		if endErr := r.end(records, s.Host, nil, s.Warn); endErr != nil {
			return f, endErr
		}
		// Something else may still have the device's name. The new record gets its own name and alias, for DEL to
		// restore.
		if f, err = d.find(s.Host); err == nil && r.is(f.Link) {
			f.Link.Name, f.Link.Alias = r.Link.Name, r.Link.Alias
		}
	}
	if errors.Is(err, rtnl.ErrNoLink) {
		return f, cni.Refuse(d.Key, d.Value, fmt.Sprintf("no such interface on this host: %v", rtnl.ErrNoLink))
	}
	return f, err
}

// held is the error of a device that its container has, for another.
func (r record) held(by cni.Attachment) error {
	cont, err := attach.Enter(r.Netns, r.NS)
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

// warnOfUses tells which routes the host loses with the device.
func warnOfUses(s *attach.Session, l rtnl.Link) {
	if l.Index == 0 {
		return
	}
	routes, _ := s.Host.Routes(l.Index, unix.AF_UNSPEC)
	for _, r := range routes {
		if r.Dst.Bits() == 0 {
			s.Warn("device %q: has the host's default route %s, which is lost", l.Name, r)
		}
	}
}

// leaveMaster warns that the device is a port, and takes it out of a bond or team, before the move would do so.
// That gives the device its own MAC address and MTU back and brings it down: the record has to have these values. An
// ADD that fails makes it a port again.
func (r *record) leaveMaster(s *attach.Session) error {
	index, masterIndex := r.Link.Index, r.Link.Master
	if masterIndex == 0 {
		return nil
	}
	master, err := s.Host.LinkByIndex(masterIndex)
	if err != nil {
		return err
	}
	s.Warn("device %q: is a port of %q, and will not be when it comes home; make it one again with: "+
		"ip link set %s master %s", r.Link.Name, master.Name, r.Link.Name, master.Name)
	if master.Kind != "bond" && master.Kind != "team" {
		return nil
	}
	s.OnFail("make the device a port again", func(context.Context) error {
		l, err := r.findHome(s.Host)
		if err != nil {
			return err
		}
		return s.Host.SetLink(l.Index, rtnl.Change{Master: &masterIndex})
	})
	none := 0
	if err := s.Host.SetLink(index, rtnl.Change{Master: &none}); err != nil {
		return err
	}
	l, err := s.Host.LinkByIndex(index)
	if err == nil {
		r.Link = l
	}
	return err
}

func del(ctx context.Context, req *skel.Request) error {
	locks, cancel := skel.WithTwoThirds(ctx)
	defer cancel()
	b, err := find(locks, req)
	defer b.close()
	return attach.Release(ctx, req, func() error {
		l, findErr := b.find(b.cont)
		if err := cmp.Or(err, findErr); err != nil {
			return err
		}
		return attach.Flush(b.cont, l)
	}, func() (bool, error) {
		if err == nil {
			err = b.end(b.records, b.host, b.cont, req.Warn)
		}
		if errors.Is(err, rtnl.ErrNoLink) {
			err = b.records.Drop(req.Hash()) // a damaged one
		}
		return err == nil, err
	})
}

// borrowed is a device that DEL found.
type borrowed struct {
	record
	records    *store
	host, cont *rtnl.Conn // cont is nil where the namespace is gone
}

func (b *borrowed) close() {
	if b.records != nil {
		_ = b.records.Close()
	}
	_ = errors.Join(b.host.Close(), b.cont.Close())
}

// find finds the attachment's device, by the record or by what the reference left in the
// namespace. The error matches rtnl.ErrNoLink when there is none.
func find(ctx context.Context, req *skel.Request) (b borrowed, err error) {
	if b.host, err = rtnl.Dial(nil); err != nil {
		return b, err
	}
	if b.records, err = records().OpenExisting(ctx); err != nil {
		return b, err
	}
	r, ok, err := b.records.Get(req.Hash())
	switch {
	case err != nil:
	case ok:
		b.record = r
		if b.cont, err = attach.Enter(r.Netns, r.NS); errors.Is(err, rtnl.ErrNoLink) {
			b.cont, err = attach.Enter(req.Netns, r.NS) // by another path
		}
		if errors.Is(err, rtnl.ErrNoLink) {
			err = nil // it may be on the host
		}
	case req.NS == nil:
		err = rtnl.ErrNoLink
	default:
		if err = b.refuseRecorded(req); err != nil {
			return b, err
		}
		b.Attachment = req.Attachment // its record may be damaged
		if b.cont, err = rtnl.Dial(req.NS); err == nil {
			b.Link, err = foreign(req, b.cont)
		}
	}
	return b, err
}

// refuseRecorded is rtnl.ErrNoLink where the interface in the namespace is another attachment's:
// the path leads to another container by now.
func (b *borrowed) refuseRecorded(req *skel.Request) error {
	id, err := req.NS.Identity()
	if err != nil {
		return err
	}
	held, err := b.records.Any(func(r record) bool { return r.NS.Is(id) && r.IfName == req.IfName })
	if held {
		return rtnl.ErrNoLink
	}
	return err
}

// foreign finds the device that the reference moved, as it was on the host: its alias is the
// name there. The result or the configuration must know it, too, since a container can give
// anything an alias.
func foreign(req *skel.Request, cont *rtnl.Conn) (rtnl.Link, error) {
	l, err := cont.Link(req.IfName)
	if err != nil {
		return l, err
	}
	var w wireConfig
	_ = req.Decode(&w)
	d, _ := w.device()
	l.Name, l.Alias, l.Up = l.Alias, "", false
	known := (record{Link: l, PCI: l.Parent}).meets(d)
	if req.PrevResult != nil {
		i, _ := req.PrevResult.ContainerInterface(req.IfName)
		known = known || strings.EqualFold(i.MAC, l.MAC.String())
	}
	if !known || !cni.ValidIfName(l.Name) {
		return l, rtnl.ErrNoLink
	}
	return l, nil
}

func check(ctx context.Context, req *skel.Request, cfg config) error {
	return attach.Check(ctx, req, func(s *attach.Session) []error { return verify(ctx, s, cfg.Device) })
}

// verify compares the interface with the result, and with the device that ADD took.
func verify(ctx context.Context, s *attach.Session, d device) []error {
	r, ok, err := records().Get(s.Hash())
	if i, _ := s.PrevResult.ContainerInterface(s.IfName); i.MAC == "" && r.Link.Index == 0 {
		return []error{err} // a device without interface
	}
	l, linkErr := s.Cont.Link(s.IfName)
	if err := errors.Join(err, iface.Drifted(linkErr)); err != nil {
		return []error{err}
	}
	errs := []error{iface.Verify(s.Target(), s.PrevResult)}
	if ok && (!r.is(l) || d.Key != "" && !r.meets(d)) {
		errs = append(errs, cni.Drift("interface %q: is not the device %q", s.IfName, d.Value))
	}
	if ok && l.Alias != r.Link.Name || l.Alias == "" {
		errs = append(errs, cni.Drift(
			"interface %q: alias is %q instead of the device's name on the host", s.IfName, l.Alias))
	}
	return errs
}

// gc brings the devices home that attachments have which are not valid.
func gc(ctx context.Context, req *skel.Request) error {
	return attach.Collect(ctx, req, collect(ctx, req))
}

func collect(ctx context.Context, req *skel.Request) error {
	host, err := rtnl.Dial(nil)
	if err != nil {
		return err
	}
	defer host.Close()
	locked, err := records().OpenExisting(ctx)
	if err != nil {
		return err
	}
	defer locked.Close()
	all, err := locked.All()
	errs := []error{err}
	for _, r := range all {
		if !req.Valid.Excludes(r.Attachment) {
			continue
		}
		cont, err := attach.Enter(r.Netns, r.NS)
		if err == nil || errors.Is(err, rtnl.ErrNoLink) {
			err = r.end(locked, host, cont, req.Warn)
		}
		errs = append(errs, err, cont.Close())
	}
	return errors.Join(errs...)
}

// status is code 50 where ADD would not find the device, and else IPAM's answer. A device that
// a container has is where it is meant to be.
func status(ctx context.Context, req *skel.Request, cfg config) error {
	err := statefile.Writable(recordDir)
	if err == nil && cfg.Device.Key != "" {
		err = available(ctx, req, cfg.Device)
	}
	if err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	return attach.Status(ctx, req, attach.Masq{})
}

func available(ctx context.Context, req *skel.Request, d device) error {
	host, err := rtnl.Dial(nil)
	if err != nil {
		return err
	}
	defer host.Close()
	if _, err = d.find(host); !errors.Is(err, rtnl.ErrNoLink) {
		return err
	}
	held, listErr := records().Any(func(r record) bool {
		if r.meets(d) {
			req.Warn("%s: is held by %s", r, r.Attachment)
		}
		return r.meets(d)
	})
	if held {
		return nil
	}
	return cmp.Or(listErr, err)
}
