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
func (a *attachment) verify(ctx context.Context) []error {
	var err error
	if a.bridge, err = findBridge(a.call.Host, a.cfg.Bridge); err != nil {
		return []error{iface.AsDrift(err)}
	}
	if err := a.call.FindPair(a.bridge.Index); err != nil {
		return []error{err}
	}
	link := &a.cfg.Link
	if err := a.call.ExpectMTU(link, func() error { return link.ResolveMTU(a.call.Host) }); err != nil {
		return []error{err}
	}
	masq, err := a.cfg.masqConfig(a.call.Host, a.bridge, a.call.Req.PrevResult.ContainerIPs(a.call.Req.IfName))
	if err == nil {
		err = a.call.VerifyMasquerade(ctx, masq)
	}
	errs := []error{a.verifyContainer(), iface.AsDrift(err)}
	if !a.bridge.Up {
		errs = append(errs, cni.Drift("bridge %q: is down", a.bridge.Name))
	}
	if a.cfg.PromiscMode && !a.bridge.Promisc {
		errs = append(errs, cni.Drift("bridge %q: is not promiscuous", a.bridge.Name))
	}
	errs = append(errs, a.verifyPort()...)
	if a.cfg.MacSpoofChk {
		errs = append(errs, iface.AsDrift(a.spoofCheck().verify(a.call.NF)))
	}
	if a.call.Req.IPAM != "" && a.cfg.Gateway {
		errs = append(errs, a.verifyGateways()...)
	}
	return errs
}

// verifyContainer compares the container's interface with prevResult. If the interface must stay down, only its MAC
// address is compared, because it has no addresses and routes.
func (a *attachment) verifyContainer() error {
	if !a.cfg.DisableContainerInterface {
		return iface.Verify(a.target(), a.call.Req.PrevResult)
	}
	want, _ := a.call.Req.PrevResult.ContainerInterface(a.call.Req.IfName)
	if have := a.call.ContEnd.MAC.String(); want.MAC != "" && !strings.EqualFold(want.MAC, have) {
		return cni.Drift("link %q: MAC is %s instead of %s", a.call.Req.IfName, have, want.MAC)
	}
	return nil
}

// verifyPort compares the port with what setUpPort set.
func (a *attachment) verifyPort() []error {
	end := a.call.HostEnd
	errs := a.verifyMember(end, portVLANs(a.cfg.VLAN, a.cfg.Trunk), a.cfg.PreserveDefaultVLAN)
	if end.Master != a.bridge.Index {
		return errs
	}
	have, err := a.call.Host.Port(end.Index)
	if err != nil {
		return append(errs, err)
	}
	if end.MTU < min(a.cfg.Link.MTU, a.call.ContEnd.MTU) { // keepMTU may have raised the MTU of the host end
		errs = append(errs, a.drift(end, "MTU is %d, not %d", end.MTU, a.cfg.Link.MTU))
	}
	if have.Hairpin != a.cfg.HairpinMode {
		errs = append(errs, a.drift(end, "hairpin is %t, not %t", have.Hairpin, a.cfg.HairpinMode))
	}
	if a.cfg.PortIsolation && !have.Isolated { // not the reverse: firewall may isolate a port
		errs = append(errs, a.drift(end, "is not isolated"))
	}
	return errs
}

func (a *attachment) drift(end rtnl.Link, format string, args ...any) error {
	return cni.Drift("port %q of bridge %q: %s", end.Name, a.cfg.Bridge, fmt.Sprintf(format, args...))
}

// verifyMember compares the properties that all ports have: bridge, state, and the VLANs that setVLANs set.
func (a *attachment) verifyMember(end rtnl.Link, want []rtnl.VLAN, keepDefault bool) (errs []error) {
	if end.Master != a.bridge.Index {
		return []error{a.drift(end, "is not a port of the bridge")}
	}
	if !end.Up {
		errs = append(errs, a.drift(end, "is down"))
	}
	if len(want) == 0 {
		return errs
	}
	have, err := a.call.Host.VLANs(end.Index)
	if err != nil {
		return append(errs, err)
	}
	for _, v := range want {
		if !slices.Contains(have, v) {
			errs = append(errs, a.drift(end, "vlan %d is missing (pvid, untagged: %t)", v.ID, v.PVID))
		}
	}
	for _, v := range have {
		if !keepDefault && !slices.ContainsFunc(want, func(w rtnl.VLAN) bool { return w.ID == v.ID }) {
			errs = append(errs, a.drift(end, "vlan %d is unexpected", v.ID))
		}
	}
	return errs
}

// verifyGateways compares the gateway with what prepareGateway set: the addresses, and forwarding on the host.
func (a *attachment) verifyGateways() (errs []error) {
	link, err := a.call.Host.Link(a.cfg.gatewayName())
	if err != nil {
		return []error{iface.AsDrift(fmt.Errorf("gateway: %w", err))}
	}
	have, err := a.call.Host.Addrs(link.Index)
	if err != nil {
		return []error{err}
	}
	if !link.Up {
		errs = append(errs, cni.Drift("gateway %q: is down", link.Name))
	}
	for _, ip := range a.call.Req.PrevResult.ContainerIPs(a.call.Req.IfName) {
		if !ip.Gateway.IsValid() {
			continue
		}
		gw := netip.PrefixFrom(ip.Gateway, ip.Address.Bits())
		if !slices.ContainsFunc(have, func(h rtnl.Addr) bool { return h.Prefix == gw && !h.DADFailed }) {
			errs = append(errs, cni.Drift("gateway %q: address %s is missing", link.Name, gw))
		}
		errs = append(errs, iface.VerifyForwarding(gw.Addr().Is4()))
	}
	end, err := a.call.Host.OtherEnd(link, a.call.Host)
	if errors.Is(err, rtnl.ErrNoLink) { // the gateway is the bridge, or a link of the administrator
		return errs
	}
	if err != nil {
		return append(errs, err)
	}
	return append(errs, a.verifyMember(end, portVLANs(a.cfg.VLAN, nil), false)...)
}
