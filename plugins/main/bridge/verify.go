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
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// verify compares everything that ADD made with what is there, and returns
// each difference. The bridge's MAC address is no part of it, and neither is
// what others add.
func (a *attachment) verify(ctx context.Context) []error {
	if err := a.findLinks(); err != nil {
		return []error{err}
	}
	errs := []error{a.verifyBridge(), a.verifyContainer()}
	errs = append(errs, a.verifyPort()...)
	if a.cfg.SpoofCheck {
		errs = append(errs, iface.Drifted(a.spoofCheck().check(a.nf)))
	}
	if !a.cfg.IPAM {
		return errs
	}
	if a.cfg.Gateway {
		errs = append(errs, a.verifyGateways()...)
	}
	if a.cfg.Masq {
		errs = append(errs, iface.Drifted(masq.Check(ctx, a.nf, masq.Config{
			Attachment: a.Attachment, Backend: a.cfg.MasqBackend, Addrs: cni.Addresses(a.PrevResult.ContainerIPs(a.IfName)),
		})))
	}
	return errs
}

// findLinks looks up the bridge and both ends of the pair.
func (a *attachment) findLinks() error {
	var err error
	if a.bridge, err = findBridge(a.host, a.cfg.Bridge); err != nil {
		return iface.Drifted(err)
	}
	if a.contEnd, err = a.cont.Link(a.IfName); err != nil {
		return iface.Drifted(fmt.Errorf("container: %w", err))
	}
	a.hostEnd, err = iface.FindHostEnd(a.host, a.Attachment)
	if errors.Is(err, rtnl.ErrNoLink) { // made by other software, perhaps
		a.hostEnd, err = iface.Search{Host: a.host, Master: a.bridge.Index}.PeerOf(a.contEnd)
	}
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return cni.Errorf(cni.CodeDrift, "interface %q: its host end is no port of bridge %q", a.IfName, a.cfg.Bridge)
	case err != nil:
		return err
	case a.hostEnd.Peer != a.contEnd.Index:
		return cni.Errorf(cni.CodeDrift, "interface %q: is not the other end of host interface %q", a.IfName, a.hostEnd.Name)
	}
	return nil
}

func (a *attachment) verifyBridge() error {
	if !a.bridge.Up {
		return cni.Errorf(cni.CodeDrift, "bridge %q: is down", a.bridge.Name)
	}
	if a.cfg.Promisc && !a.bridge.Promisc {
		return cni.Errorf(cni.CodeDrift, "bridge %q: is not promiscuous", a.bridge.Name)
	}
	return nil
}

func (a *attachment) verifyContainer() error {
	if _, ok := a.PrevResult.ContainerInterface(a.IfName); !ok {
		return cni.Errorf(cni.CodeDrift, "prevResult: has no interface %q in a container", a.IfName)
	}
	if a.cfg.KeepDown { // of such a link there is no more to see than its MAC address
		return iface.Drifted(a.verifyMAC())
	}
	return iface.Drifted(iface.Verify(a.target(), a.PrevResult))
}

func (a *attachment) verifyMAC() error {
	want, _ := a.PrevResult.ContainerInterface(a.IfName)
	if have := a.contEnd.MAC.String(); want.MAC != "" && !strings.EqualFold(want.MAC, have) {
		return fmt.Errorf("link %q: MAC is %s instead of %s", a.IfName, have, want.MAC)
	}
	return nil
}

// verifyGateways looks for the addresses and the forwarding that
// ensureGateways made.
func (a *attachment) verifyGateways() []error {
	link, err := a.host.Link(a.cfg.gatewayName())
	if err != nil {
		return []error{iface.Drifted(fmt.Errorf("gateway: %w", err))}
	}
	have, err := a.host.Addrs(link.Index)
	if err != nil {
		return []error{err}
	}
	var errs []error
	if !link.Up {
		errs = append(errs, cni.Errorf(cni.CodeDrift, "gateway %q: is down", link.Name))
	}
	for _, ip := range a.PrevResult.ContainerIPs(a.IfName) {
		if !ip.Gateway.IsValid() {
			continue
		}
		gw := netip.PrefixFrom(ip.Gateway, ip.Address.Bits())
		if !slices.ContainsFunc(have, func(h rtnl.Addr) bool { return h.Prefix == gw && !h.DADFailed }) {
			errs = append(errs, cni.Errorf(cni.CodeDrift, "gateway %q: address %s is missing", link.Name, gw))
		}
		errs = append(errs, iface.VerifyForwarding(gw.Addr().Is4()))
	}
	if link.Name != a.bridge.Name {
		errs = append(errs, a.verifyVLANGateway(link)...)
	}
	return errs
}

// verifyVLANGateway looks for what finishVLANGateway made.
func (a *attachment) verifyVLANGateway(gw rtnl.Link) []error {
	end, ok, err := a.vlanGatewayPort(gw)
	if err != nil || !ok {
		return []error{err}
	}
	var errs []error
	drift := func(text string) {
		errs = append(errs, cni.Errorf(cni.CodeDrift, "gateway %q: port %q of bridge %q: %s", gw.Name, end.Name, a.bridge.Name, text))
	}
	switch {
	case end.Master != a.bridge.Index:
		drift("is no port of the bridge")
		return errs
	case !end.Up:
		drift("is down")
	}
	for _, text := range a.vlanDrift(end.Index, a.vlanGatewaySettings()) {
		drift(text)
	}
	return errs
}
