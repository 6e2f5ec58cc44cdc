package bridge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// verify compares the host with what ADD created. It ignores the bridge's MAC address, and additions of other programs.
func (b *bridgeCall) verify(ctx context.Context) []error {
	var err error
	if b.bridge, err = findBridge(b.call.Host, b.cfg.Bridge); err != nil {
		return []error{iface.AsDrift(err)}
	}
	if err := b.call.FindPair(b.bridge.Index); err != nil {
		return []error{err}
	}
	link := &b.cfg.Link
	if err := b.call.ExpectMTU(link, func() error { return link.ResolveMTU(b.call.Host) }); err != nil {
		return []error{err}
	}
	masq, err := b.cfg.resolveMasq(b.call.Host, b.bridge, b.call.Req.PrevResult.ContainerIPs(b.call.Req.IfName))
	if err == nil {
		err = b.call.VerifyMasquerade(ctx, masq)
	}
	errs := []error{b.verifyContainer(), iface.AsDrift(err)}
	if !b.bridge.Up {
		errs = append(errs, cni.Drift("bridge %q: is down", b.bridge.Name))
	}
	if b.cfg.PromiscMode && !b.bridge.Promisc {
		errs = append(errs, cni.Drift("bridge %q: is not promiscuous", b.bridge.Name))
	}
	errs = append(errs, b.verifyPort()...)
	if b.cfg.MacSpoofChk {
		errs = append(errs, iface.AsDrift(b.formerSpoofCheck().verify(b.call.NF)))
	}
	if b.call.Req.IPAM != "" && b.cfg.Gateway {
		errs = append(errs, b.verifyGateways()...)
	}
	return errs
}

// verifyContainer compares the container's interface with prevResult. If the interface must stay down, only its MAC
// address is compared, because it has no addresses and routes.
func (b *bridgeCall) verifyContainer() error {
	if !b.cfg.DisableContainerInterface {
		return iface.Verify(b.target(), b.call.Req.PrevResult)
	}
	want, _ := b.call.Req.PrevResult.ContainerInterface(b.call.Req.IfName)
	if have := b.call.ContEnd.MAC.String(); want.MAC != "" && !strings.EqualFold(want.MAC, have) {
		return cni.Drift("link %q: MAC is %s instead of %s", b.call.Req.IfName, have, want.MAC)
	}
	return nil
}

// verifyPort compares the port with what setUpPort set.
func (b *bridgeCall) verifyPort() []error {
	end := b.call.HostEnd
	errs := b.verifyMember(end, portVLANs(b.cfg.VLAN, b.cfg.Trunk), b.cfg.PreserveDefaultVLAN)
	if end.Master != b.bridge.Index {
		return errs
	}
	have, err := b.call.Host.Port(end.Index)
	if err != nil {
		return append(errs, err)
	}
	// keepMTU may have raised the host end's MTU, or lowered it, but not below the MTU of the container's interface.
	if end.MTU < min(b.cfg.Link.MTU, b.call.ContEnd.MTU) {
		errs = append(errs, b.drift(end, "MTU is %d, not %d", end.MTU, b.cfg.Link.MTU))
	}
	if have.Hairpin != b.cfg.HairpinMode {
		errs = append(errs, b.drift(end, "hairpin is %t, not %t", have.Hairpin, b.cfg.HairpinMode))
	}
	if b.cfg.PortIsolation && !have.Isolated { // not the reverse: firewall may isolate a port
		errs = append(errs, b.drift(end, "is not isolated"))
	}
	return errs
}

func (b *bridgeCall) drift(end rtnl.Link, format string, args ...any) error {
	return cni.Drift("port %q of bridge %q: %s", end.Name, b.cfg.Bridge, fmt.Sprintf(format, args...))
}

// verifyMember compares the properties that all ports have: bridge, state, and the VLANs that setVLANs set.
func (b *bridgeCall) verifyMember(end rtnl.Link, want []rtnl.VLAN, keepDefault bool) (errs []error) {
	if end.Master != b.bridge.Index {
		return []error{b.drift(end, "is not a port of the bridge")}
	}
	if !end.Up {
		errs = append(errs, b.drift(end, "is down"))
	}
	if len(want) == 0 {
		return errs
	}
	have, err := b.call.Host.VLANs(end.Index)
	if err != nil {
		return append(errs, err)
	}
	for _, v := range want {
		if !slices.Contains(have, v) {
			errs = append(errs, b.drift(end, "vlan %d is missing (pvid, untagged: %t)", v.ID, v.PVID))
		}
	}
	for _, v := range have {
		if !keepDefault && !slices.ContainsFunc(want, func(w rtnl.VLAN) bool { return w.ID == v.ID }) {
			errs = append(errs, b.drift(end, "vlan %d is unexpected", v.ID))
		}
	}
	return errs
}

// verifyGateways compares the gateway with what prepareGateway set: the addresses, and forwarding on the host.
func (b *bridgeCall) verifyGateways() (errs []error) {
	link, err := b.call.Host.Link(b.cfg.gatewayName())
	if err != nil {
		return []error{iface.AsDrift(fmt.Errorf("gateway: %w", err))}
	}
	have, err := b.call.Host.Addrs(link.Index)
	if err != nil {
		return []error{err}
	}
	if !link.Up {
		errs = append(errs, cni.Drift("gateway %q: is down", link.Name))
	}
	for _, ip := range b.call.Req.PrevResult.ContainerIPs(b.call.Req.IfName) {
		if !ip.Gateway.IsValid() {
			continue
		}
		gw := netip.PrefixFrom(ip.Gateway, ip.Address.Bits())
		if !slices.ContainsFunc(have, func(h rtnl.Addr) bool { return h.Prefix == gw && !h.DADFailed }) {
			errs = append(errs, cni.Drift("gateway %q: address %s is missing", link.Name, gw))
		}
		errs = append(errs, iface.VerifyForwarding(gw.Addr().Is4()))
	}
	end, err := b.call.Host.OtherEnd(link, b.call.Host)
	if errors.Is(err, rtnl.ErrNoLink) { // the gateway is the bridge, or a link of the administrator
		return errs
	}
	if err != nil {
		return append(errs, err)
	}
	return append(errs, b.verifyMember(end, portVLANs(b.cfg.VLAN, nil), false)...)
}
