package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// findBridge returns the bridge called name. It returns code 103 if the link is not a bridge, and an error that matches
// rtnl.ErrNoLink if there is no link.
func findBridge(host *rtnl.Conn, name string) (rtnl.Link, error) {
	l, err := host.Link(name)
	if err == nil && l.Kind != "bridge" {
		err = cni.Errorf(cni.CodeConflict, "bridge %q: the name is taken by an interface of kind %q: "+
			"%[1]q already exists but is not a bridge", name, l.Kind)
	}
	return l, err
}

// prepareBridge finds or creates the bridge, and brings it up. It has no undo, because other containers may use the
// bridge already. If the bridge is up, prepareBridge changes only promiscuous mode and accept_ra, and pins the MAC
// address of a gateway. It warns of other settings that contradict the configuration.
func (b *bridgeCall) prepareBridge() error {
	cfg := b.cfg
	br, err := findBridge(b.call.Host, cfg.Bridge)
	if errors.Is(err, rtnl.ErrNoLink) {
		br, err = b.createBridge()
	}
	if err != nil {
		return err
	}
	if cfg.Link.MTU != 0 && br.MTU != cfg.Link.MTU {
		b.call.Req.Warn("bridge %q: has MTU %d instead of the configured %d; an existing bridge is not changed",
			cfg.Bridge, br.MTU, cfg.Link.MTU)
	}
	if cfg.needsVLANFilter() && !br.VLANFiltering {
		b.call.Req.Warn("bridge %q: does not filter VLANs, so vlan and vlanTrunk have no effect "+
			"(ip link set %s type bridge vlan_filtering 1)", cfg.Bridge, cfg.Bridge)
	}
	if cfg.PromiscMode && !br.Promisc {
		if err := b.call.Host.SetLink(br.Index, rtnl.LinkChange{Promisc: new(true)}); err != nil {
			return err
		}
	}
	b.bridge = br
	if cfg.Gateway && b.call.Req.IPAM != "" {
		// The MAC address is pinned first, because a new port may change it, and because an ADD that fails or is killed
		// later may leave gateway addresses.
		if err := b.pinMAC(br); err != nil {
			return err
		}
	}
	if err := b.call.Tolerate(b.ignoreRouterAdverts()); err != nil {
		return err
	}
	if br.Up {
		return nil
	}
	// The bridge is brought up last, so that a bridge that is down is new or incomplete. Without an uplink, duplicate
	// address detection is not needed, because no other host can have the bridge's link-local address.
	hasUplink, err := b.hasUplink()
	if err != nil {
		return err
	}
	if !hasUplink {
		if err := b.call.Tolerate(iface.SkipDAD(br.Name)); err != nil {
			return err
		}
	}
	return b.call.Host.SetLink(br.Index, rtnl.LinkChange{Up: new(true)})
}

// ignoreRouterAdverts makes the bridge ignore router advertisements, with which containers could add routes to the
// host. A bridge that is up and has an uplink keeps its setting, because the host's own router may be on that network.
func (b *bridgeCall) ignoreRouterAdverts() error {
	if b.bridge.Up {
		accepts, err := iface.AcceptsRouterAdverts(b.bridge.Name)
		if err != nil || !accepts {
			return err
		}
		hasUplink, err := b.hasUplink()
		if err != nil || hasUplink {
			return err
		}
	}
	return iface.IgnoreRouterAdverts(b.bridge.Name)
}

// hasUplink reports whether the bridge may be connected to other hosts, that is, whether any port is not a veth.
func (b *bridgeCall) hasUplink() (bool, error) {
	ports, err := b.call.Host.Ports(b.bridge.Index)
	return slices.ContainsFunc(ports, func(l rtnl.Link) bool { return l.Kind != "veth" }), err
}

// createBridge creates the bridge, or returns the one that a concurrent ADD created.
func (b *bridgeCall) createBridge() (rtnl.Link, error) {
	err := b.call.Host.AddLink(rtnl.NewLink{
		Kind: "bridge", Name: b.cfg.Bridge, MTU: b.cfg.Link.MTU, VLANFiltering: b.cfg.needsVLANFilter(),
		MAC: randomMAC(), // otherwise the address changes with the ports, see pinMAC
	})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return rtnl.Link{}, b.cfg.vlanError(err)
	}
	return findBridge(b.call.Host, b.cfg.Bridge)
}

// vlanError returns code 2 if err means that the kernel has no VLAN filtering, and err otherwise.
func (c config) vlanError(err error) error {
	if !c.needsVLANFilter() || !errors.Is(err, unix.EOPNOTSUPP) || cni.AsError(err).Code == cni.CodeUnsupportedField {
		return err
	}
	key := fmt.Sprint("vlan: ", c.VLAN)
	if c.VLAN == 0 {
		key = fmt.Sprint("vlanTrunk: ", c.Trunk)
	}
	return cni.LacksModules(fmt.Errorf("%s: %w", key, err), "CONFIG_BRIDGE_VLAN_FILTERING")
}

// randomMAC returns a locally administered unicast address.
func randomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = unix.Getrandom(mac, 0) // never fails for so few bytes
	mac[0] = mac[0]&^1 | 2
	return mac
}

// gatewayTimeout limits the wait for duplicate address detection of gateway addresses, and for the VLAN gateway's port.
const gatewayTimeout = 5 * time.Second

// prepareGateway adds the gateway addresses to the bridge or to the VLAN gateway, and enables forwarding on the host.
// It has no undo, because other containers may use the gateway already.
func (b *bridgeCall) prepareGateway(ctx context.Context, want []netip.Prefix) (gw attach.Gateway, err error) {
	gw.Link = b.bridge
	if len(want) == 0 {
		return gw, nil
	}
	if b.cfg.VLAN != 0 {
		if gw.Link, err = b.ensureVLANGateway(ctx); err == nil {
			err = b.pinMAC(gw.Link)
		}
		if err != nil {
			return gw, err
		}
	}
	have, err := b.call.Host.Addrs(gw.Link.Index)
	if err != nil {
		return gw, err
	}
	plan, err := planGateways(b.cfg, gw.Link.Name, have, want)
	if err != nil {
		return gw, err
	}
	if err := b.refuseGateways(plan, gw.Link); err != nil {
		return gw, err
	}
	gw.Addrs = plan.Usable
	for _, addr := range plan.Remove {
		if err := b.call.Host.DelAddr(gw.Link.Index, addr); err != nil {
			return gw, err
		}
	}
	for _, addr := range plan.Add {
		usable, err := b.addGateway(gw.Link, addr)
		if err != nil {
			return gw, err
		}
		if usable {
			gw.Addrs = append(gw.Addrs, addr)
		}
	}
	if plan.AwaitsDAD {
		if err := b.waitGatewayDAD(ctx, gw.Link); err != nil {
			return gw, err
		}
	}
	for _, addr := range want {
		if err := iface.EnableForwarding(addr.Addr().Is4()); err != nil {
			return gw, err
		}
	}
	return gw, nil
}

// refuseGateways refuses new gateway addresses with which the host could no longer reach its router or a container of
// another network. It also refuses to replace an address that is the gateway of such a container.
func (b *bridgeCall) refuseGateways(plan gatewayPlan, link rtnl.Link) error {
	for _, addr := range plan.Add {
		err := errors.Join(b.call.RefuseRouter(addr, b.bridge, link), b.call.RefuseGateway(addr, b.bridge, link))
		if err != nil {
			return err
		}
	}
	for _, addr := range plan.Remove {
		if slices.Contains(plan.Add, addr) { // a duplicate
			continue
		}
		holder, _, err := b.call.FindHolder(link, addr.Masked())
		if err == nil && holder != "" {
			err = cni.Errorf(cni.CodeConflict, "forceAddress: bridge %q: gateway %s is in use by %s; remove that "+
				"container first", link.Name, addr, holder)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pinMAC sets the MAC address of a gateway interface to its current address, unless it was set before. Linux gives a
// bridge whose address was not set the lowest address of its ports, and another address when that port is removed.
// Containers would then lose their gateway until their neighbor entries expire. A bridge that has lost all its ports
// has the zero address, and gets a random one.
func (b *bridgeCall) pinMAC(l rtnl.Link) error {
	if isSet, err := iface.IsMACSet(l); isSet && err == nil {
		return nil
	}
	if l.MAC == nil { // the zero address
		l.MAC = randomMAC()
	}
	return b.call.Host.SetLink(l.Index, rtnl.LinkChange{MAC: l.MAC})
}

// waitGatewayDAD waits for the duplicate address detection of gateway addresses for which an earlier detection failed.
// If it takes longer than gatewayTimeout, the result is ignored.
func (b *bridgeCall) waitGatewayDAD(ctx context.Context, link rtnl.Link) error {
	ctx, cancel := context.WithTimeout(ctx, gatewayTimeout)
	defer cancel()
	if err := b.call.Host.WaitDAD(ctx, link.Index); errors.Is(err, rtnl.ErrDuplicate) {
		return cni.Errorf(cni.CodeConflict, "bridge %q: gateway: %w", link.Name, err)
	}
	return nil
}

// addGateway adds a gateway address. usable is true for an IPv6 address without duplicate address detection. Without an
// uplink, detection is not needed, because only containers are on the network, and their leases are exclusive.
func (b *bridgeCall) addGateway(link rtnl.Link, gw netip.Prefix) (usable bool, err error) {
	if gw.Addr().Is6() {
		hasUplink, err := b.hasUplink()
		if err != nil {
			return false, err
		}
		usable = !hasUplink
	}
	err = b.call.Host.AddAddr(link.Index, rtnl.Addr{Prefix: gw, NoDAD: usable})
	switch {
	case errors.Is(err, unix.EEXIST): // a concurrent ADD added it
		err = nil
	case errors.Is(err, unix.EACCES):
		remedy := "sysctl -w " + strings.Join(iface.IPv6Remedy(link.Name), " ")
		err = cni.Errorf(cni.CodeConflict, "bridge %q: gateway %s: IPv6 is off on the interface; turn it on with %q: "+
			"%w", link.Name, gw, remedy, err)
	}
	return usable, err
}

// ensureVLANGateway finds or creates the VLAN gateway: a veth pair called <bridge>.<vlan> whose other end is a port of
// the bridge. It completes a gateway that is down, which is incomplete because both ends are brought up last. It also
// completes a gateway whose other end is not a port, because its bridge was deleted and created again. A link of that
// name that is not a pair of this host belongs to the administrator, and is only brought up. A bridge of that name is
// refused if another network may have created it.
func (b *bridgeCall) ensureVLANGateway(ctx context.Context) (rtnl.Link, error) {
	name := b.cfg.gatewayName()
	gw, err := b.call.Host.Link(name)
	if errors.Is(err, rtnl.ErrNoLink) {
		// The name of the other end is derived from the bridge and the gateway.
		portName := iface.HostNames(cni.Attachment{Network: b.cfg.Bridge, IfName: name})[0]
		err = b.call.Host.AddLink(rtnl.NewLink{Kind: "veth", Name: name, MTU: b.cfg.Link.MTU,
			MAC: randomMAC(), Peer: rtnl.Peer{Name: portName}})
		if err == nil || errors.Is(err, unix.EEXIST) { // EEXIST: a concurrent ADD created it
			gw, err = b.call.Host.Link(name)
		}
	}
	if err == nil && gw.Kind == "bridge" {
		err = b.refuseGatewayBridge(gw)
	}
	if err != nil {
		return gw, err
	}
	end, err := b.call.Host.OtherEnd(gw, b.call.Host)
	switch {
	case errors.Is(err, rtnl.ErrNoLink) && gw.Up:
		err = nil
	case errors.Is(err, rtnl.ErrNoLink):
		err = b.call.Host.SetLink(gw.Index, rtnl.LinkChange{Up: new(true)})
	case err == nil && (!gw.Up || end.Master == 0):
		err = b.completeVLANGateway(ctx, gw, end)
	}
	if err != nil {
		return gw, fmt.Errorf("gateway of vlan %d: %w", b.cfg.VLAN, err)
	}
	return gw, nil
}

// refuseGatewayBridge returns code 103 if another network may have created the bridge that has the VLAN gateway's name.
// All ports of such a bridge are host ends of containers, or belong to its own VLAN gateways. A port of another kind,
// or a pair to this attachment's bridge, shows that the administrator created the bridge.
func (b *bridgeCall) refuseGatewayBridge(gw rtnl.Link) error {
	ports, err := b.call.Host.Ports(gw.Index)
	if err != nil {
		return err
	}
	for _, p := range ports {
		if !p.IsPairEnd() {
			return nil
		}
		if p.PeerNS != -1 {
			continue
		}
		peer, err := b.call.Host.LinkByIndex(p.Peer)
		if err == nil && peer.Master == b.bridge.Index {
			return nil
		}
		if netplugin.IgnoreNoLink(err) != nil {
			return err
		}
	}
	return cni.Errorf(cni.CodeConflict, "gateway of vlan %d: the name %q is taken by a bridge of another network",
		b.cfg.VLAN, gw.Name)
}

// completeVLANGateway makes the other end a port of the bridge in the VLAN, and brings both ends up.
func (b *bridgeCall) completeVLANGateway(ctx context.Context, gw, end rtnl.Link) error {
	err := b.call.Tolerate(errors.Join(iface.IgnoreRouterAdverts(gw.Name), iface.IgnoreRouterAdverts(end.Name)))
	if err != nil {
		return err
	}
	if err := b.keepMTU(&end); err != nil {
		return err
	}
	if err := b.call.Host.SetLink(end.Index, rtnl.LinkChange{Master: &b.bridge.Index}); err != nil {
		return err
	}
	if err := b.setVLANs(end, portVLANs(b.cfg.VLAN, nil), false); err != nil {
		return err
	}
	for _, index := range []int{end.Index, gw.Index} {
		if err := b.call.Host.SetLink(index, rtnl.LinkChange{Up: new(true)}); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, gatewayTimeout)
	defer cancel()
	_, err = b.call.Host.WaitUp(ctx, end.Index)
	return err
}

// resolveMasq returns the configured masquerade with Link set to the interface on which the container's packets arrive,
// or its VRF. With isGateway and vlan, that interface is the VLAN gateway. Without isGateway, it is the link through
// which the host routes to the container, if that is a VLAN link or VLAN gateway of the bridge. Otherwise, and if the
// VLAN gateway is missing, it is the bridge.
func (c config) resolveMasq(host *rtnl.Conn, bridge rtnl.Link, ips []cni.IP) (m attach.Masq, err error) {
	if m = c.Masq; !m.Enabled {
		return m, nil
	}
	ingress := bridge
	switch {
	case c.Gateway && bridge.Name != c.gatewayName():
		if ingress, err = host.Link(c.gatewayName()); errors.Is(err, rtnl.ErrNoLink) {
			ingress, err = bridge, nil
		}
	case !c.Gateway && len(ips) > 0:
		if index, err := host.RouteTo(ips[0].Address.Addr()); err == nil && index != bridge.Index {
			link, err := host.LinkByIndex(index)
			if err == nil && (link.Peer == bridge.Index || strings.HasPrefix(link.Name, bridge.Name+".")) {
				ingress = link
			}
		}
	}
	if err == nil {
		m.Link, err = attach.Ingress(host, ingress)
	}
	return m, err
}
