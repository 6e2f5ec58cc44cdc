package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// gatewayTimeout is how long the kernel may take to detect duplicates of gateway
// addresses, and to bring the port of a VLAN's gateway up.
const gatewayTimeout = 5 * time.Second

// prepareGateway gives the bridge, or the gateway of the VLAN, the gateway
// addresses and lets the host forward. All of it is shared and stays.
func (p *port) prepareGateway(ctx context.Context, want []netip.Prefix) (gw attach.Gateway, err error) {
	gw.Link = p.bridge
	if len(want) == 0 {
		return gw, nil
	}
	if p.cfg.Port.VLAN != 0 {
		if gw.Link, err = p.ensureVLANGateway(ctx); err != nil {
			return gw, err
		}
	}
	have, err := p.Host.Addrs(gw.Link.Index)
	if err != nil {
		return gw, err
	}
	plan, err := planGateways(p.cfg, gw.Link.Name, have, want)
	if err != nil {
		return gw, err
	}
	gw.Addrs = plan.Usable
	if gw.Link.Index == p.bridge.Index && len(plan.Add) > 0 {
		// First: an ADD that fails or is killed leaves the addresses.
		if err := p.keepMAC(); err != nil {
			return gw, err
		}
	}
	for _, a := range slices.Concat(plan.Remove, plan.Retry) {
		if err := p.Host.DelAddr(gw.Link.Index, a); err != nil {
			return gw, err
		}
	}
	for _, a := range slices.Concat(plan.Retry, plan.Add) {
		usable, err := p.addGateway(gw.Link, a)
		if err != nil {
			return gw, err
		}
		if usable {
			gw.Addrs = append(gw.Addrs, a)
		}
	}
	if len(plan.Retry) > 0 {
		if err := p.refuseDuplicate(ctx, gw.Link); err != nil {
			return gw, err
		}
	}
	for _, a := range want {
		if err := iface.EnableForwarding(a.Addr().Is4()); err != nil {
			return gw, err
		}
	}
	return gw, nil
}

// keepMAC sets the MAC address of a bridge that becomes a gateway: to its present one, or to the one before
// this ADD, if there was one, where it has taken that of the new port. A bridge whose address was never set
// takes that of one of its ports, and another when that port goes: then containers lose their gateway until
// their neighbour caches expire.
func (p *port) keepMAC() error {
	br, err := p.Host.LinkByIndex(p.bridge.Index)
	if err != nil {
		return err
	}
	if len(p.bridge.MAC) > 0 && bytes.Equal(br.MAC, p.HostEnd.MAC) { // a bridge that had ports may have none
		br.MAC = p.bridge.MAC
	}
	return p.Host.SetLink(br.Index, rtnl.Change{MAC: br.MAC})
}

// refuseDuplicate waits for the duplicate address detection of gateway addresses that failed it before.
func (p *port) refuseDuplicate(ctx context.Context, link rtnl.Link) error {
	ctx, cancel := context.WithTimeout(ctx, gatewayTimeout)
	defer cancel()
	if err := p.Host.WaitDAD(ctx, link.Index); errors.Is(err, rtnl.ErrDuplicate) {
		return cni.Errorf(cni.CodeConflict, "bridge %q: gateway: %w", link.Name, err)
	}
	return nil // what takes longer the kernel ends later
}

// addGateway adds a gateway address. ADD waits for an IPv6 one that is usable at
// once, since nobody but containers with exclusive leases could have the same
// address; where the bridge has an uplink the kernel's duplicate detection runs.
func (p *port) addGateway(link rtnl.Link, gw netip.Prefix) (usable bool, err error) {
	addr := rtnl.Addr{Prefix: gw}
	if gw.Addr().Is6() {
		uplink, err := p.hasUplink()
		if err != nil {
			return false, err
		}
		addr.NoDAD = !uplink
	}
	err = p.Host.AddAddr(link.Index, addr)
	switch {
	case errors.Is(err, unix.EEXIST): // another ADD was quicker
		err = nil
	case errors.Is(err, unix.EACCES):
		err = cni.Errorf(cni.CodeConflict, "bridge %q: gateway %s: IPv6 is off on the interface "+
			"(sysctl -w net/ipv6/conf/%s/disable_ipv6=0 turns it on): %w", link.Name, gw, link.Name, err)
	}
	return addr.NoDAD, err
}

// ensureVLANGateway finds or makes the gateway of the VLAN: a veth pair called
// <bridge>.<vlan> whose other end is a port of the bridge in that VLAN. Both
// ends come up last, so one that is down was left half-made and is finished.
// A link of that name that is no veth is the administrator's and used as found.
func (p *port) ensureVLANGateway(ctx context.Context) (rtnl.Link, error) {
	name := p.cfg.gatewayName()
	// The other end's name says what it belongs to.
	portName := iface.HostNames(cni.Attachment{Network: p.cfg.Bridge, IfName: name})[0]
	gw, err := p.Host.Link(name)
	if errors.Is(err, rtnl.ErrNoLink) {
		err = p.Host.AddLink(rtnl.NewLink{Kind: "veth", Name: name, MTU: p.cfg.Link.MTU,
			Peer: rtnl.Peer{Name: portName}})
		if err == nil || errors.Is(err, unix.EEXIST) { // another ADD was quicker
			gw, err = p.Host.Link(name)
		}
	}
	if err != nil || gw.Up {
		return gw, err
	}
	end, ok, err := p.vlanGatewayPort(gw)
	switch {
	case err != nil:
		return gw, err
	case !ok:
		return gw, p.Host.SetLink(gw.Index, rtnl.Change{Up: new(true)})
	}
	return gw, p.finishVLANGateway(ctx, gw, end)
}

// vlanGatewayPort finds the other end of a VLAN's gateway. ok is false for a
// gateway that is no pair of this host: the administrator's.
func (p *port) vlanGatewayPort(gw rtnl.Link) (end rtnl.Link, ok bool, err error) {
	if gw.Kind != "veth" || gw.PeerNS >= 0 {
		return end, false, nil
	}
	end, err = p.Host.LinkByIndex(gw.Peer)
	return end, err == nil, err
}

// vlanGatewaySettings is how the port of the VLAN's gateway is set up.
func (p *port) vlanGatewaySettings() portConfig { return portConfig{VLAN: p.cfg.Port.VLAN} }

// finishVLANGateway makes the other end a port of the bridge in the VLAN, and brings both ends up.
func (p *port) finishVLANGateway(ctx context.Context, gw, end rtnl.Link) error {
	err := p.Tolerate(errors.Join(iface.IgnoreRouterAdverts(gw.Name), iface.IgnoreRouterAdverts(end.Name)))
	if err == nil {
		err = p.Host.SetLink(end.Index, rtnl.Change{Master: &p.bridge.Index})
	}
	if err == nil {
		err = setVLANs(p.Host, end.Index, p.bridge.DefaultPVID, p.vlanGatewaySettings())
	}
	for _, index := range []int{end.Index, gw.Index} {
		if err == nil {
			err = p.Host.SetLink(index, rtnl.Change{Up: new(true)})
		}
	}
	if err != nil {
		return fmt.Errorf("gateway of vlan %d: %w", p.cfg.Port.VLAN, err)
	}
	ctx, cancel := context.WithTimeout(ctx, gatewayTimeout)
	defer cancel()
	_, err = p.Host.WaitUp(ctx, end.Index)
	return err
}
