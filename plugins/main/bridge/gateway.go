package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// ensureGateways gives the bridge, or the gateway of the VLAN, the gateway
// addresses and lets the host forward. All of it is shared and stays.
func (a *attachment) ensureGateways(ctx context.Context, want []netip.Prefix) error {
	if len(want) == 0 {
		return nil
	}
	link := a.bridge
	if a.cfg.Port.VLAN != 0 {
		var err error
		if link, err = a.ensureVLANGateway(ctx); err != nil {
			return err
		}
	}
	have, err := a.host.Addrs(link.Index)
	if err == nil {
		have, err = a.retryDuplicates(ctx, gateways{link, want}, have)
	}
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(slices.Clone(want), func(gw netip.Prefix) bool {
		return slices.ContainsFunc(have, func(h rtnl.Addr) bool { return h.Prefix == gw })
	})
	for _, h := range have {
		if slices.Contains(want, h.Prefix) && !h.Prefix.Addr().Is4() && !h.Tentative && !h.DADFailed {
			a.ready = append(a.ready, h.Prefix.Addr())
		}
		i := slices.IndexFunc(missing, func(gw netip.Prefix) bool { return contradict(h.Prefix, gw) })
		if i < 0 || slices.Contains(want, h.Prefix) {
			continue
		}
		if err := a.clearConflict(link, h.Prefix, missing[i]); err != nil {
			return err
		}
	}
	for _, gw := range missing {
		if err := a.addGateway(link, gw); err != nil {
			return err
		}
	}
	if link.Index == a.bridge.Index {
		if err := a.keepMAC(len(missing) > 0); err != nil {
			return err
		}
	}
	for _, gw := range want {
		if err := iface.EnableForwarding(gw.Addr().Is4()); err != nil {
			return err
		}
	}
	return nil
}

// keepMAC sets the MAC address of a bridge that becomes a gateway to what it is. A bridge whose
// address was never set takes that of one of its ports, and another when that port goes: then
// containers lose their gateway until their neighbour caches expire. A bridge that was a gateway
// before belongs to somebody else: ADD only warns. Where /sys cannot tell there is no warning.
func (a *attachment) keepMAC(becomesGateway bool) error {
	if !becomesGateway {
		kind, err := os.ReadFile("/sys/class/net/" + a.bridge.Name + "/addr_assign_type")
		if err == nil && strings.TrimSpace(string(kind)) != macWasSet {
			a.Warn("bridge %q: its MAC address was never set and changes with its ports (ip link set dev %s address %s)",
				a.bridge.Name, a.bridge.Name, a.bridge.MAC)
		}
		return nil
	}
	br, err := a.host.LinkByIndex(a.bridge.Index) // the port that ADD just made may have changed it
	if err != nil {
		return err
	}
	return a.host.SetLink(br.Index, rtnl.Change{MAC: br.MAC})
}

// macWasSet is the kernel's NET_ADDR_SET, addr_assign_type of a link whose MAC address was set.
const macWasSet = "3"

// gateways are the addresses that a link is to have.
type gateways struct {
	link rtnl.Link
	want []netip.Prefix
}

// retryDuplicates tries gateway addresses again that somebody else had: he may
// have gone, and as they are they answer to nobody.
func (a *attachment) retryDuplicates(ctx context.Context, g gateways, have []rtnl.Addr) ([]rtnl.Addr, error) {
	duplicate := func(h rtnl.Addr) bool { return h.DADFailed && slices.Contains(g.want, h.Prefix) }
	if !slices.ContainsFunc(have, duplicate) {
		return have, nil
	}
	for _, h := range slices.DeleteFunc(have, func(h rtnl.Addr) bool { return !duplicate(h) }) {
		if err := errors.Join(a.host.DelAddr(g.link.Index, h.Prefix), a.addGateway(g.link, h.Prefix)); err != nil {
			return nil, err
		}
	}
	// It ends with any duplicate on the link; which it is the addresses tell.
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	_ = a.host.WaitDAD(ctx, g.link.Index)
	have, err := a.host.Addrs(g.link.Index)
	if i := slices.IndexFunc(have, duplicate); err == nil && i >= 0 {
		err = cni.Errorf(cni.CodeConflict, "bridge %q: gateway %s: %w", g.link.Name, have[i].Prefix, rtnl.ErrDuplicate)
	}
	return have, err
}

// clearConflict refuses to add a gateway address that another one contradicts,
// or with forceAddress removes that one.
func (a *attachment) clearConflict(link rtnl.Link, have, gw netip.Prefix) error {
	if !a.cfg.ForceAddress {
		return cni.Errorf(cni.CodeConflict, "bridge %q: gateway %s: the interface has address %s (forceAddress replaces it)", link.Name, gw, have)
	}
	return a.host.DelAddr(link.Index, have)
}

// contradict tells what cannot stand beside a new gateway address: any other
// IPv4 address, and an IPv6 address whose subnet overlaps, but not the
// link-local ones that every interface has.
func contradict(have, gw netip.Prefix) bool {
	if have.Addr().Is4() || gw.Addr().Is4() {
		return have.Addr().Is4() && gw.Addr().Is4()
	}
	return !have.Addr().IsLinkLocalUnicast() && have.Overlaps(gw)
}

// addGateway adds a gateway address. An IPv6 one answers at once where nobody
// but containers with exclusive leases could have the same address; where the
// bridge has an uplink the kernel's duplicate detection runs, and ADD does not
// wait for it.
func (a *attachment) addGateway(link rtnl.Link, gw netip.Prefix) error {
	addr := rtnl.Addr{Prefix: gw}
	if !gw.Addr().Is4() {
		uplink, err := a.hasUplink()
		if err != nil {
			return err
		}
		addr.NoDAD = !uplink
	}
	if addr.NoDAD {
		a.ready = append(a.ready, gw.Addr())
	}
	err := a.host.AddAddr(link.Index, addr)
	if errors.Is(err, unix.EEXIST) { // another ADD was quicker
		return nil
	}
	return err
}

// ensureVLANGateway finds or makes the gateway of the VLAN: a veth pair called
// <bridge>.<vlan> whose other end is a port of the bridge in that VLAN. Both
// ends come up last, so one that is down was left half-made and is finished.
// A link of that name that is no veth is the administrator's and used as found.
func (a *attachment) ensureVLANGateway(ctx context.Context) (rtnl.Link, error) {
	name := a.cfg.gatewayName()
	// The other end's name says what it belongs to.
	portName := iface.HostNames(cni.Attachment{Network: a.cfg.Bridge, IfName: name})[0]
	gw, err := a.host.Link(name)
	if errors.Is(err, rtnl.ErrNoLink) {
		gw, err = a.host.AddVeth(rtnl.Veth{Name: name, MTU: a.cfg.MTU, Peer: rtnl.Peer{Name: portName}})
		if errors.Is(err, unix.EEXIST) { // another ADD was quicker
			gw, err = a.host.Link(name)
		}
	}
	if err != nil || gw.Up {
		return gw, err
	}
	end, ok, err := a.vlanGatewayPort(gw)
	switch {
	case err != nil:
		return gw, err
	case !ok:
		return gw, a.host.SetLink(gw.Index, rtnl.Change{Up: ptr(true)})
	}
	return gw, a.finishVLANGateway(ctx, gw, end)
}

// vlanGatewayPort finds the other end of a VLAN's gateway. ok is false for a
// gateway that is no pair of this host: the administrator's.
func (a *attachment) vlanGatewayPort(gw rtnl.Link) (end rtnl.Link, ok bool, err error) {
	if gw.Kind != "veth" || gw.PeerNS >= 0 {
		return end, false, nil
	}
	end, err = a.host.LinkByIndex(gw.Peer)
	return end, err == nil, err
}

// vlanGatewaySettings is how the port of the VLAN's gateway is set up.
func (a *attachment) vlanGatewaySettings() port { return port{VLAN: a.cfg.Port.VLAN} }

func (a *attachment) finishVLANGateway(ctx context.Context, gw, end rtnl.Link) error {
	if err := a.tolerate(errors.Join(iface.IgnoreRouterAdverts(gw.Name), iface.IgnoreRouterAdverts(end.Name))); err != nil {
		return err
	}
	steps := []func() error{
		func() error { return a.host.SetLink(end.Index, rtnl.Change{Master: &a.bridge.Index}) },
		func() error { return setVLANs(a.host, end.Index, a.bridge.DefaultPVID, a.vlanGatewaySettings()) },
		func() error { return a.host.SetLink(end.Index, rtnl.Change{Up: ptr(true)}) },
		func() error { return a.host.SetLink(gw.Index, rtnl.Change{Up: ptr(true)}) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("gateway of vlan %d: %w", a.cfg.Port.VLAN, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	return a.host.WaitUp(ctx, end.Index)
}
