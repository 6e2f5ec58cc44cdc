package bridge

import (
	"bytes"
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
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// findBridge looks the bridge up. A link of that name that is no bridge is code 103.
func findBridge(host *rtnl.Conn, name string) (rtnl.Link, error) {
	l, err := host.Link(name)
	if err == nil && l.Kind != "bridge" {
		err = cni.Errorf(cni.CodeConflict, "bridge %q: the name is taken by an interface of kind %q: "+
			"%[1]q already exists but is not a bridge", name, l.Kind)
	}
	return l, err
}

// prepareBridge finds the bridge or makes it, and brings it up. It is shared and stays when ADD fails. Of a bridge that
// is up only promiscuous mode and accept_ra change; what contradicts the configuration is a warning.
func (a *attachment) prepareBridge() error {
	cfg := a.cfg
	br, err := findBridge(a.call.Host, cfg.Bridge)
	if errors.Is(err, rtnl.ErrNoLink) {
		br, err = a.makeBridge()
	}
	if err != nil {
		return err
	}
	if cfg.Link.MTU != 0 && br.MTU != cfg.Link.MTU {
		a.call.Req.Warn("bridge %q: has mtu %d, the configuration says %d; an existing bridge is not changed",
			cfg.Bridge, br.MTU, cfg.Link.MTU)
	}
	if cfg.filtersVLANs() && !br.VLANFiltering {
		a.call.Req.Warn("bridge %q: does not filter VLANs, so vlan and vlanTrunk have no effect "+
			"(ip link set %s type bridge vlan_filtering 1)", cfg.Bridge, cfg.Bridge)
	}
	if cfg.PromiscMode && !br.Promisc {
		if err := a.call.Host.SetLink(br.Index, rtnl.LinkChange{Promisc: new(true)}); err != nil {
			return err
		}
	}
	a.bridge = br
	if cfg.Gateway && a.call.Req.IPAM != "" {
		// First: a port changes it, and an ADD that fails or is killed may leave gateway addresses.
		if err := a.pinMAC(br); err != nil {
			return err
		}
	}
	if err := a.call.Tolerate(a.ignoreRouterAdverts()); err != nil {
		return err
	}
	if br.Up {
		return nil
	}
	// It comes up last: one that is down is new or incomplete. Without an uplink nobody else can have its MAC address:
	// there is no duplicate to detect, and the host can ask for neighbours at once.
	uplink, err := a.hasUplink()
	if err != nil {
		return err
	}
	if !uplink {
		if err := a.call.Tolerate(iface.SkipDAD(br.Name)); err != nil {
			return err
		}
	}
	return a.call.Host.SetLink(br.Index, rtnl.LinkChange{Up: new(true)})
}

// ignoreRouterAdverts keeps containers from giving the host routes. A bridge that is up and has an uplink keeps its
// setting: the host's router may be there.
func (a *attachment) ignoreRouterAdverts() error {
	if a.bridge.Up {
		accepts, err := iface.AcceptsRouterAdverts(a.bridge.Name)
		if err != nil || !accepts {
			return err
		}
		uplink, err := a.hasUplink()
		if err != nil || uplink {
			return err
		}
	}
	return iface.IgnoreRouterAdverts(a.bridge.Name)
}

// hasUplink tells whether the bridge may lead out of the host: whether one of its ports is no veth.
func (a *attachment) hasUplink() (bool, error) {
	ports, err := a.call.Host.Ports(a.bridge.Index)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(ports, func(l rtnl.Link) bool { return l.Kind != "veth" }), nil
}

// makeBridge makes the bridge, or finds the one that another ADD has made meanwhile.
func (a *attachment) makeBridge() (rtnl.Link, error) {
	err := a.call.Host.AddLink(rtnl.NewLink{
		Kind: "bridge", Name: a.cfg.Bridge, MTU: a.cfg.Link.MTU, VLANFiltering: a.cfg.filtersVLANs(),
		MAC: randomMAC(), // without it the bridge would take a port's address, see pinMAC
	})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return rtnl.Link{}, a.cfg.unsupportedVLANs(err)
	}
	return findBridge(a.call.Host, a.cfg.Bridge)
}

// unsupportedVLANs gives the answer of a kernel without VLAN filtering code 2, and leaves that of one without bridges.
func (c config) unsupportedVLANs(err error) error {
	if !c.filtersVLANs() || !errors.Is(err, unix.EOPNOTSUPP) || cni.AsError(err).Code == cni.CodeUnsupportedField {
		return err
	}
	key := fmt.Sprint("vlan: ", c.VLAN)
	if c.VLAN == 0 {
		key = fmt.Sprint("vlanTrunk: ", c.Trunk)
	}
	return cni.Lacking(fmt.Errorf("%s: %w", key, err), "CONFIG_BRIDGE_VLAN_FILTERING")
}

// randomMAC returns a locally administered unicast address.
func randomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = unix.Getrandom(mac, 0) // never fails for so few bytes
	mac[0] = mac[0]&^1 | 2
	return mac
}

// gatewayTimeout is for the detection of duplicates of gateway addresses, and for the port of a VLAN's gateway.
const gatewayTimeout = 5 * time.Second

// prepareGateway gives the bridge, or the VLAN's gateway, the addresses, and lets the host forward. All of it stays.
func (a *attachment) prepareGateway(ctx context.Context, want []netip.Prefix) (gw attach.Gateway, err error) {
	gw.Link = a.bridge
	if len(want) == 0 {
		return gw, nil
	}
	if a.cfg.VLAN != 0 {
		if gw.Link, err = a.ensureVLANGateway(ctx); err == nil {
			err = a.pinMAC(gw.Link)
		}
		if err != nil {
			return gw, err
		}
	}
	have, err := a.call.Host.Addrs(gw.Link.Index)
	if err != nil {
		return gw, err
	}
	plan, err := planGateways(a.cfg, gw.Link.Name, have, want)
	if err != nil {
		return gw, err
	}
	for _, addr := range plan.Add {
		if err := a.call.RefuseRouter(addr, a.bridge, gw.Link); err != nil {
			return gw, err
		}
	}
	gw.Addrs = plan.Usable
	for _, addr := range plan.Remove {
		if err := a.call.Host.DelAddr(gw.Link.Index, addr); err != nil {
			return gw, err
		}
	}
	for _, addr := range plan.Add {
		usable, err := a.addGateway(gw.Link, addr)
		if err != nil {
			return gw, err
		}
		if usable {
			gw.Addrs = append(gw.Addrs, addr)
		}
	}
	if plan.Again {
		if err := a.detectDuplicate(ctx, gw.Link); err != nil {
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

// pinMAC sets the MAC address of a gateway interface to its present address, unless it was set before. A bridge whose
// address was not set has the lowest address of its ports, and changes it when that port is removed. Containers would
// then lose their gateway until their neighbor entries expire. A bridge that lost all its ports has no address, and
// gets a random one.
func (a *attachment) pinMAC(l rtnl.Link) error {
	if set, err := iface.IsMACSet(l); set && err == nil || len(l.MAC) == 0 {
		return nil
	}
	if bytes.Equal(l.MAC, make(net.HardwareAddr, len(l.MAC))) {
		l.MAC = randomMAC()
	}
	return a.call.Host.SetLink(l.Index, rtnl.LinkChange{MAC: l.MAC})
}

// detectDuplicate waits for the duplicate address detection of gateway addresses that failed it before.
func (a *attachment) detectDuplicate(ctx context.Context, link rtnl.Link) error {
	ctx, cancel := context.WithTimeout(ctx, gatewayTimeout)
	defer cancel()
	if err := a.call.Host.WaitDAD(ctx, link.Index); errors.Is(err, rtnl.ErrDuplicate) {
		return cni.Errorf(cni.CodeConflict, "bridge %q: gateway: %w", link.Name, err)
	}
	return nil // a detection that takes longer goes on without us
}

// addGateway adds a gateway address. usable is true for an IPv6 one that needs no duplicate address detection: only
// containers with exclusive leases could have it, unless the bridge has an uplink.
func (a *attachment) addGateway(link rtnl.Link, gw netip.Prefix) (usable bool, err error) {
	if gw.Addr().Is6() {
		uplink, err := a.hasUplink()
		if err != nil {
			return false, err
		}
		usable = !uplink
	}
	err = a.call.Host.AddAddr(link.Index, rtnl.Addr{Prefix: gw, NoDAD: usable})
	switch {
	case errors.Is(err, unix.EEXIST): // another ADD was quicker
		err = nil
	case errors.Is(err, unix.EACCES):
		remedy := "sysctl -w " + strings.Join(iface.IPv6Disabled(link.Name), " ")
		err = cni.Errorf(cni.CodeConflict, "bridge %q: gateway %s: IPv6 is off on the interface; turn it on with %q: "+
			"%w", link.Name, gw, remedy, err)
	}
	return usable, err
}

// masqFrom returns the masquerade with the interface that packets come from: the gateway, which is the bridge, or what
// the VLAN's is called, or, where ADD makes none, the interface by which the host reaches the container.
func (c config) masqFrom(host *rtnl.Conn, bridge rtnl.Link, ips []cni.IP) (m attach.Masq, err error) {
	if m = c.Masq; !m.On {
		return m, nil
	}
	from := bridge
	switch {
	case c.Gateway && bridge.Name != c.gatewayName():
		if from, err = host.Link(c.gatewayName()); errors.Is(err, rtnl.ErrNoLink) {
			from, err = bridge, nil
		}
	case !c.Gateway && len(ips) > 0:
		if index, err := host.RouteTo(ips[0].Address.Addr()); err == nil && index != bridge.Index {
			link, err := host.LinkByIndex(index)
			if err == nil && (link.Peer == bridge.Index || strings.HasPrefix(link.Name, bridge.Name+".")) {
				from = link
			}
		}
	}
	if err == nil {
		m.Link, err = attach.Ingress(host, from)
	}
	return m, err
}

// ensureVLANGateway finds or makes the gateway of the VLAN: a veth pair called <bridge>.<vlan> whose other end is a
// port of the bridge. Both ends come up last, so one that is down is finished. A link of that name that is no pair of
// this host is the administrator's and used as found.
func (a *attachment) ensureVLANGateway(ctx context.Context) (rtnl.Link, error) {
	name := a.cfg.gatewayName()
	gw, err := a.call.Host.Link(name)
	if errors.Is(err, rtnl.ErrNoLink) {
		// The other end's name says what it belongs to.
		portName := iface.HostNames(cni.Attachment{Network: a.cfg.Bridge, IfName: name})[0]
		err = a.call.Host.AddLink(rtnl.NewLink{Kind: "veth", Name: name, MTU: a.cfg.Link.MTU,
			MAC: randomMAC(), Peer: rtnl.Peer{Name: portName}})
		if err == nil || errors.Is(err, unix.EEXIST) { // another ADD was quicker
			gw, err = a.call.Host.Link(name)
		}
	}
	if err != nil || gw.Up {
		return gw, err
	}
	end, err := a.call.Host.OtherEnd(gw, a.call.Host)
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		err = a.call.Host.SetLink(gw.Index, rtnl.LinkChange{Up: new(true)})
	case err == nil:
		err = a.finishVLANGateway(ctx, gw, end)
	}
	if err != nil {
		return gw, fmt.Errorf("gateway of vlan %d: %w", a.cfg.VLAN, err)
	}
	return gw, nil
}

// finishVLANGateway makes the other end a port of the bridge in the VLAN, and brings both ends up.
func (a *attachment) finishVLANGateway(ctx context.Context, gw, end rtnl.Link) error {
	err := a.call.Tolerate(errors.Join(iface.IgnoreRouterAdverts(gw.Name), iface.IgnoreRouterAdverts(end.Name)))
	if err != nil {
		return err
	}
	if err := a.keepMTU(&end); err != nil {
		return err
	}
	if err := a.call.Host.SetLink(end.Index, rtnl.LinkChange{Master: &a.bridge.Index}); err != nil {
		return err
	}
	if err := a.setVLANs(end, portVLANs(a.cfg.VLAN, nil), false); err != nil {
		return err
	}
	for _, index := range []int{end.Index, gw.Index} {
		if err := a.call.Host.SetLink(index, rtnl.LinkChange{Up: new(true)}); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, gatewayTimeout)
	defer cancel()
	_, err = a.call.Host.WaitUp(ctx, end.Index)
	return err
}
