package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// portTimeout is how long a port may take to forward once both ends are up.
const portTimeout = 5 * time.Second

// addressTimeout is how long an IPv6 address may take to be of use once it is
// added.
const addressTimeout = 2 * time.Second

// attachPort sets the host end up as a port and brings it up last, so that
// nothing passes before every restriction is in place.
func (a *attachment) attachPort(ctx context.Context) error {
	if err := a.tolerate(iface.IgnoreRouterAdverts(a.hostEnd.Name)); err != nil {
		return err
	}
	p := a.cfg.Port
	if p.Hairpin || p.Isolated { // a new port is neither
		if err := a.host.SetPort(a.hostEnd.Index, rtnl.Port{Hairpin: p.Hairpin, Isolated: p.Isolated}); err != nil {
			return err
		}
	}
	if p.Filtering {
		if err := setVLANs(a.host, a.hostEnd.Index, a.bridge.DefaultPVID, p); err != nil {
			return a.cfg.unsupportedVLANs(err)
		}
	}
	if a.cfg.SpoofCheck {
		a.OnFail("remove the MAC address check", func(ctx context.Context) error {
			return deleteSpoofCheck(ctx, a.nf, a.Attachment)
		})
		if err := a.spoofCheck().add(ctx, a.nf); err != nil {
			return err
		}
	}
	return a.host.SetLink(a.hostEnd.Index, rtnl.Change{Up: ptr(true)})
}

func (a *attachment) spoofCheck() spoofCheck {
	return spoofCheck{Attachment: a.Attachment, Port: a.hostEnd.Name, MAC: a.contEnd.MAC}
}

// setVLANs gives a new port its VLANs, and takes from it the one that every
// new port of the bridge is given by the kernel. A port without VLANs would
// carry nothing: it keeps that one.
func setVLANs(host *rtnl.Conn, index int, defaultPVID uint16, p port) error {
	vlans := p.vlans()
	if len(vlans) == 0 {
		return nil
	}
	if !p.KeepDefault && defaultPVID != 0 {
		wanted := func(v rtnl.VLAN) bool { return v.ID == defaultPVID }
		if !slices.ContainsFunc(vlans, wanted) {
			if err := host.DelVLANs(index, []uint16{defaultPVID}); err != nil {
				return err
			}
		}
	}
	return host.AddVLANs(index, vlans)
}

// vlans lists what the port carries. A trunk without a VLAN of its own has
// VLAN 1 untagged.
func (p port) vlans() []rtnl.VLAN {
	var out []rtnl.VLAN
	native := p.VLAN
	if native == 0 && len(p.Trunk) > 0 {
		native = 1
	}
	if native != 0 {
		out = append(out, rtnl.VLAN{ID: native, PVID: true, Untagged: true})
	}
	for _, id := range p.Trunk {
		if id != native {
			out = append(out, rtnl.VLAN{ID: id})
		}
	}
	return out
}

// waitForPort waits until the bridge forwards through the port: the kernel
// notices a moment after the container's end came up.
func (a *attachment) waitForPort(ctx context.Context) error {
	if a.cfg.KeepDown {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	if err := a.host.WaitUp(ctx, a.hostEnd.Index); err != nil {
		return fmt.Errorf("port %q of bridge %q: %w", a.hostEnd.Name, a.cfg.Bridge, err)
	}
	return nil
}

// tolerate tells of what makes a network better and is no reason to fail: where
// /proc/sys is read-only, for instance. It returns what may succeed a moment later.
func (a *attachment) tolerate(err error) error {
	if err == nil || cni.Transient(err) {
		return err
	}
	a.Warn("%v", err)
	return nil
}

// waitForAddresses waits until the kernel has finished the IPv6 addresses on
// both sides, for else the first packets are lost and neighbours ask again only
// after a second. It does so within milliseconds; if not, that is no failure.
func (a *attachment) waitForAddresses(ctx context.Context, res *cni.Result) {
	ctx, cancel := context.WithTimeout(ctx, addressTimeout)
	defer cancel()
	var inside []netip.Addr
	for _, ip := range res.IPs {
		if !ip.Address.Addr().Is4() {
			inside = append(inside, ip.Address.Addr())
		}
	}
	err := errors.Join(a.cont.WaitLocal(ctx, a.contEnd.Index, inside...), a.host.WaitLocal(ctx, a.bridge.Index, a.ready...))
	if err != nil {
		a.Warn("%v", err)
	}
}

// verifyPort compares the port with what attachPort made of it.
func (a *attachment) verifyPort() []error {
	var errs []error
	drift := func(format string, args ...any) {
		errs = append(errs, cni.Errorf(cni.CodeDrift, "port %q of bridge %q: %s", a.hostEnd.Name, a.cfg.Bridge, fmt.Sprintf(format, args...)))
	}
	if a.hostEnd.Master != a.bridge.Index {
		drift("is no port of the bridge")
		return errs
	}
	if !a.hostEnd.Up {
		drift("is down")
	}
	have, err := a.host.Port(a.hostEnd.Index)
	if err != nil {
		return append(errs, err)
	}
	want := a.cfg.Port
	if a.cfg.MTU != 0 && a.hostEnd.MTU != a.cfg.MTU {
		drift("MTU is %d, not %d", a.hostEnd.MTU, a.cfg.MTU)
	}
	if have.Hairpin != want.Hairpin {
		drift("hairpin is %t, not %t", have.Hairpin, want.Hairpin)
	}
	if have.Isolated != want.Isolated {
		drift("isolated is %t, not %t", have.Isolated, want.Isolated)
	}
	for _, text := range a.vlanDrift(a.hostEnd.Index, want) {
		drift("%s", text)
	}
	return errs
}

// vlanDrift compares the VLANs of a port with those that setVLANs gave it.
func (a *attachment) vlanDrift(index int, p port) (diffs []string) {
	want := p.vlans()
	if len(want) == 0 {
		return nil
	}
	have, err := a.host.VLANs(index)
	if err != nil {
		return []string{err.Error()}
	}
	for _, v := range want {
		if !slices.Contains(have, v) {
			diffs = append(diffs, fmt.Sprintf("vlan %d is missing (pvid, untagged: %t)", v.ID, v.PVID))
		}
	}
	for _, v := range have {
		if !p.KeepDefault && !slices.ContainsFunc(want, func(w rtnl.VLAN) bool { return w.ID == v.ID }) {
			diffs = append(diffs, fmt.Sprintf("vlan %d is there and should not be", v.ID))
		}
	}
	return diffs
}
