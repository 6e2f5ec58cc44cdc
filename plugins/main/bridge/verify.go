package main

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

// verify compares everything that ADD made with what is there, and returns
// each difference. It does not look at the bridge's MAC address, nor at what
// others added.
func (p *port) verify(ctx context.Context) []error {
	var err error
	if p.bridge, err = findBridge(p.Host, p.cfg.Bridge); err != nil {
		return []error{iface.Drifted(err)}
	}
	if err := p.FindPair(p.bridge.Index); err != nil {
		return []error{err}
	}
	errs := []error{p.verifyContainer(), p.VerifyMasquerade(ctx, p.cfg.Masq)}
	if !p.bridge.Up {
		errs = append(errs, cni.Drift("bridge %q: is down", p.bridge.Name))
	}
	if p.cfg.PromiscMode && !p.bridge.Promisc {
		errs = append(errs, cni.Drift("bridge %q: is not promiscuous", p.bridge.Name))
	}
	errs = append(errs, p.verifyPort()...)
	if p.cfg.MacSpoofChk {
		errs = append(errs, iface.Drifted(p.spoofCheck().check(p.NF)))
	}
	if p.IPAM != "" && p.cfg.Gateway {
		errs = append(errs, p.verifyGateways()...)
	}
	return errs
}

// verifyContainer compares the container's interface; one that is to be down has no addresses and routes.
func (p *port) verifyContainer() error {
	if !p.cfg.DisableContainerInterface {
		return iface.Verify(p.container(), p.PrevResult)
	}
	want, _ := p.PrevResult.ContainerInterface(p.IfName)
	if have := p.ContEnd.MAC.String(); want.MAC != "" && !strings.EqualFold(want.MAC, have) {
		return cni.Drift("link %q: MAC is %s instead of %s", p.IfName, have, want.MAC)
	}
	return nil
}

// verifyPort compares the port with what setUpPort made of it.
func (p *port) verifyPort() []error {
	end := p.HostEnd
	errs := p.verifyMember(end, portVLANs(p.cfg.VLAN, p.cfg.Trunk), p.cfg.PreserveDefaultVLAN)
	if end.Master != p.bridge.Index {
		return errs
	}
	have, err := p.Host.Port(end.Index)
	if err != nil {
		return append(errs, err)
	}
	if p.cfg.Link.MTU != 0 && end.MTU != p.cfg.Link.MTU {
		errs = append(errs, p.drift(end, "MTU is %d, not %d", end.MTU, p.cfg.Link.MTU))
	}
	if have.Hairpin != p.cfg.HairpinMode {
		errs = append(errs, p.drift(end, "hairpin is %t, not %t", have.Hairpin, p.cfg.HairpinMode))
	}
	if p.cfg.PortIsolation && !have.Isolated { // the other way round it may be a firewall's
		errs = append(errs, p.drift(end, "is not isolated"))
	}
	return errs
}

func (p *port) drift(end rtnl.Link, format string, args ...any) error {
	return cni.Drift("port %q of bridge %q: %s", end.Name, p.cfg.Bridge, fmt.Sprintf(format, args...))
}

// verifyMember compares what the host end has in common with the port of a
// VLAN's gateway: the bridge, the state, and the VLANs that setVLANs gave it.
func (p *port) verifyMember(end rtnl.Link, want []rtnl.VLAN, keepDefault bool) (errs []error) {
	if end.Master != p.bridge.Index {
		return []error{p.drift(end, "is no port of the bridge")}
	}
	if !end.Up {
		errs = append(errs, p.drift(end, "is down"))
	}
	if len(want) == 0 {
		return errs
	}
	have, err := p.Host.VLANs(end.Index)
	if err != nil {
		return append(errs, err)
	}
	for _, v := range want {
		if !slices.Contains(have, v) {
			errs = append(errs, p.drift(end, "vlan %d is missing (pvid, untagged: %t)", v.ID, v.PVID))
		}
	}
	for _, v := range have {
		if !keepDefault && !slices.ContainsFunc(want, func(w rtnl.VLAN) bool { return w.ID == v.ID }) {
			errs = append(errs, p.drift(end, "vlan %d is there and should not be", v.ID))
		}
	}
	return errs
}

// verifyGateways looks for the addresses and the forwarding that prepareGateway made.
func (p *port) verifyGateways() (errs []error) {
	link, err := p.Host.Link(p.cfg.gatewayName())
	if err != nil {
		return []error{iface.Drifted(fmt.Errorf("gateway: %w", err))}
	}
	have, err := p.Host.Addrs(link.Index)
	if err != nil {
		return []error{err}
	}
	if !link.Up {
		errs = append(errs, cni.Drift("gateway %q: is down", link.Name))
	}
	for _, ip := range p.PrevResult.ContainerIPs(p.IfName) {
		if !ip.Gateway.IsValid() {
			continue
		}
		gw := netip.PrefixFrom(ip.Gateway, ip.Address.Bits())
		if !slices.ContainsFunc(have, func(h rtnl.Addr) bool { return h.Prefix == gw && !h.DADFailed }) {
			errs = append(errs, cni.Drift("gateway %q: address %s is missing", link.Name, gw))
		}
		errs = append(errs, iface.VerifyForwarding(gw.Addr().Is4()))
	}
	end, err := p.Host.OtherEnd(link)
	if errors.Is(err, rtnl.ErrNoLink) { // the bridge itself, or the administrator's link
		return errs
	}
	if err != nil {
		return append(errs, err)
	}
	return append(errs, p.verifyMember(end, portVLANs(p.cfg.VLAN, nil), false)...)
}
