package main

import (
	"context"
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
	errs := []error{p.verifyBridge(), p.verifyContainer(), p.VerifyMasquerade(ctx, p.cfg.Masq)}
	errs = append(errs, p.verifyPort()...)
	if p.cfg.SpoofCheck {
		errs = append(errs, iface.Drifted(p.spoofCheck().check(p.NF)))
	}
	if p.cfg.IPAM && p.cfg.Gateway {
		errs = append(errs, p.verifyGateways()...)
	}
	return errs
}

func (p *port) verifyBridge() error {
	if !p.bridge.Up {
		return cni.Errorf(cni.CodeDrift, "bridge %q: is down", p.bridge.Name)
	}
	if p.cfg.Promisc && !p.bridge.Promisc {
		return cni.Errorf(cni.CodeDrift, "bridge %q: is not promiscuous", p.bridge.Name)
	}
	return nil
}

func (p *port) verifyContainer() error {
	if p.cfg.KeepDown { // such an interface is down, without addresses and routes
		return iface.Drifted(p.verifyMAC())
	}
	return iface.Verify(p.container(), p.PrevResult)
}

func (p *port) verifyMAC() error {
	want, _ := p.PrevResult.ContainerInterface(p.IfName)
	if have := p.ContEnd.MAC.String(); want.MAC != "" && !strings.EqualFold(want.MAC, have) {
		return fmt.Errorf("link %q: MAC is %s instead of %s", p.IfName, have, want.MAC)
	}
	return nil
}

// verifyGateways looks for the addresses and the forwarding that
// prepareGateway made.
func (p *port) verifyGateways() []error {
	link, err := p.Host.Link(p.cfg.gatewayName())
	if err != nil {
		return []error{iface.Drifted(fmt.Errorf("gateway: %w", err))}
	}
	have, err := p.Host.Addrs(link.Index)
	if err != nil {
		return []error{err}
	}
	var errs []error
	if !link.Up {
		errs = append(errs, cni.Errorf(cni.CodeDrift, "gateway %q: is down", link.Name))
	}
	for _, ip := range p.PrevResult.ContainerIPs(p.IfName) {
		if !ip.Gateway.IsValid() {
			continue
		}
		gw := netip.PrefixFrom(ip.Gateway, ip.Address.Bits())
		if !slices.ContainsFunc(have, func(h rtnl.Addr) bool { return h.Prefix == gw && !h.DADFailed }) {
			errs = append(errs, cni.Errorf(cni.CodeDrift, "gateway %q: address %s is missing", link.Name, gw))
		}
		errs = append(errs, iface.VerifyForwarding(gw.Addr().Is4()))
	}
	if link.Name == p.bridge.Name {
		return errs
	}
	end, ok, err := p.vlanGatewayPort(link)
	if err != nil || !ok {
		return append(errs, err)
	}
	return append(errs, p.verifyMember(end, p.vlanGatewaySettings())...)
}
