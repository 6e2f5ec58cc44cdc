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

// verify compares what ADD made with what is there, but not the bridge's MAC address, nor what others added.
func (c *call) verify(ctx context.Context) []error {
	var err error
	if c.bridge, err = findBridge(c.Host, c.cfg.Bridge); err != nil {
		return []error{iface.Drifted(err)}
	}
	if err := c.FindPair(c.bridge.Index); err != nil {
		return []error{err}
	}
	link := &c.cfg.Link
	if err := c.ExpectMTU(link, func() error { return link.SettleMTU(c.Host) }); err != nil {
		return []error{err}
	}
	masq, err := c.cfg.masqFrom(c.Host, c.bridge, c.PrevResult.ContainerIPs(c.IfName))
	if err == nil {
		err = c.VerifyMasquerade(ctx, masq)
	}
	errs := []error{c.verifyContainer(), iface.Drifted(err)}
	if !c.bridge.Up {
		errs = append(errs, cni.Drift("bridge %q: is down", c.bridge.Name))
	}
	if c.cfg.PromiscMode && !c.bridge.Promisc {
		errs = append(errs, cni.Drift("bridge %q: is not promiscuous", c.bridge.Name))
	}
	errs = append(errs, c.verifyPort()...)
	if c.cfg.MacSpoofChk {
		errs = append(errs, iface.Drifted(c.spoofCheck().verify(c.NF)))
	}
	if c.IPAM != "" && c.cfg.Gateway {
		errs = append(errs, c.verifyGateways()...)
	}
	return errs
}

// verifyContainer compares the container's interface; one that is to be down has no addresses and routes.
func (c *call) verifyContainer() error {
	if !c.cfg.DisableContainerInterface {
		return iface.Verify(c.container(), c.PrevResult)
	}
	want, _ := c.PrevResult.ContainerInterface(c.IfName)
	if have := c.ContEnd.MAC.String(); want.MAC != "" && !strings.EqualFold(want.MAC, have) {
		return cni.Drift("link %q: MAC is %s instead of %s", c.IfName, have, want.MAC)
	}
	return nil
}

// verifyPort compares the port with what setUpPort made of it.
func (c *call) verifyPort() []error {
	end := c.HostEnd
	errs := c.verifyMember(end, portVLANs(c.cfg.VLAN, c.cfg.Trunk), c.cfg.PreserveDefaultVLAN)
	if end.Master != c.bridge.Index {
		return errs
	}
	have, err := c.Host.Port(end.Index)
	if err != nil {
		return append(errs, err)
	}
	if end.MTU < min(c.cfg.Link.MTU, c.ContEnd.MTU) { // the host end may have the MTU of others, see keepMTU
		errs = append(errs, c.drift(end, "MTU is %d, not %d", end.MTU, c.cfg.Link.MTU))
	}
	if have.Hairpin != c.cfg.HairpinMode {
		errs = append(errs, c.drift(end, "hairpin is %t, not %t", have.Hairpin, c.cfg.HairpinMode))
	}
	if c.cfg.PortIsolation && !have.Isolated { // the other way round it may be a firewall's
		errs = append(errs, c.drift(end, "is not isolated"))
	}
	return errs
}

func (c *call) drift(end rtnl.Link, format string, args ...any) error {
	return cni.Drift("port %q of bridge %q: %s", end.Name, c.cfg.Bridge, fmt.Sprintf(format, args...))
}

// verifyMember compares what the host end has in common with the port of a
// VLAN's gateway: the bridge, the state, and the VLANs that setVLANs gave it.
func (c *call) verifyMember(end rtnl.Link, want []rtnl.VLAN, keepDefault bool) (errs []error) {
	if end.Master != c.bridge.Index {
		return []error{c.drift(end, "is no port of the bridge")}
	}
	if !end.Up {
		errs = append(errs, c.drift(end, "is down"))
	}
	if len(want) == 0 {
		return errs
	}
	have, err := c.Host.VLANs(end.Index)
	if err != nil {
		return append(errs, err)
	}
	for _, v := range want {
		if !slices.Contains(have, v) {
			errs = append(errs, c.drift(end, "vlan %d is missing (pvid, untagged: %t)", v.ID, v.PVID))
		}
	}
	for _, v := range have {
		if !keepDefault && !slices.ContainsFunc(want, func(w rtnl.VLAN) bool { return w.ID == v.ID }) {
			errs = append(errs, c.drift(end, "vlan %d is there and should not be", v.ID))
		}
	}
	return errs
}

// verifyGateways looks for the addresses and the forwarding that prepareGateway made.
func (c *call) verifyGateways() (errs []error) {
	link, err := c.Host.Link(c.cfg.gatewayName())
	if err != nil {
		return []error{iface.Drifted(fmt.Errorf("gateway: %w", err))}
	}
	have, err := c.Host.Addrs(link.Index)
	if err != nil {
		return []error{err}
	}
	if !link.Up {
		errs = append(errs, cni.Drift("gateway %q: is down", link.Name))
	}
	for _, ip := range c.PrevResult.ContainerIPs(c.IfName) {
		if !ip.Gateway.IsValid() {
			continue
		}
		gw := netip.PrefixFrom(ip.Gateway, ip.Address.Bits())
		if !slices.ContainsFunc(have, func(h rtnl.Addr) bool { return h.Prefix == gw && !h.DADFailed }) {
			errs = append(errs, cni.Drift("gateway %q: address %s is missing", link.Name, gw))
		}
		errs = append(errs, iface.VerifyForwarding(gw.Addr().Is4()))
	}
	end, err := c.Host.OtherEnd(link, c.Host)
	if errors.Is(err, rtnl.ErrNoLink) { // the bridge itself, or the administrator's link
		return errs
	}
	if err != nil {
		return append(errs, err)
	}
	return append(errs, c.verifyMember(end, portVLANs(c.cfg.VLAN, nil), false)...)
}
