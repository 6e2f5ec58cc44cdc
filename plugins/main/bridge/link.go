package main

import (
	"errors"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// findBridge looks the bridge up. A link of that name that is no bridge is
// code 103.
func findBridge(host *rtnl.Conn, name string) (rtnl.Link, error) {
	l, err := host.Link(name)
	if err == nil && l.Kind != "bridge" {
		err = cni.Errorf(cni.CodeConflict, "bridge %q: the name is taken by an interface of kind %q: "+
			"%[1]q already exists but is not a bridge", name, l.Kind)
	}
	return l, err
}

// prepareBridge finds the bridge or makes it, and brings it up. It is shared, so it
// stays when the ADD that made it fails. Of a bridge that is up prepareBridge changes
// promiscuous mode and accept_ra alone, and warns of what contradicts the configuration.
func (p *port) prepareBridge() error {
	cfg := p.cfg
	br, err := findBridge(p.Host, cfg.Bridge)
	if errors.Is(err, rtnl.ErrNoLink) {
		br, err = p.makeBridge()
	}
	if err != nil {
		return err
	}
	if cfg.Link.MTU != 0 && br.MTU != cfg.Link.MTU {
		p.Warn("bridge %q: has mtu %d, the configuration says %d; an existing bridge is not changed",
			cfg.Bridge, br.MTU, cfg.Link.MTU)
	}
	if cfg.Port.Filtering && !br.VLANFiltering {
		p.Warn("bridge %q: does not filter VLANs, so vlan and vlanTrunk have no effect "+
			"(ip link set %s type bridge vlan_filtering 1)", cfg.Bridge, cfg.Bridge)
	}
	if cfg.Promisc && !br.Promisc {
		if err := p.Host.SetLink(br.Index, rtnl.LinkChange{Promisc: new(true)}); err != nil {
			return err
		}
	}
	p.bridge = br
	if err := p.Tolerate(p.ignoreRouterAdverts()); err != nil {
		return err
	}
	if br.Up {
		return nil
	}
	// It comes up last, so one that is down is new or incomplete. Its MAC address is
	// ours alone, unless it leads out of the host: there is no duplicate to detect,
	// and the host can ask for neighbours at once.
	uplink, err := p.hasUplink()
	if err != nil {
		return err
	}
	if !uplink {
		if err := p.Tolerate(iface.SkipDAD(br.Name)); err != nil {
			return err
		}
	}
	return p.Host.SetLink(br.Index, rtnl.LinkChange{Up: new(true)})
}

// ignoreRouterAdverts has the host ignore router advertisements on the bridge, so
// that no container gives it routes. A bridge that is up and has an uplink keeps its
// setting: the host's router may be there.
func (p *port) ignoreRouterAdverts() error {
	if p.bridge.Up {
		accepts, err := iface.AcceptsRouterAdverts(p.bridge.Name)
		if err != nil || !accepts {
			return err
		}
		uplink, err := p.hasUplink()
		if err != nil || uplink {
			return err
		}
	}
	return iface.IgnoreRouterAdverts(p.bridge.Name)
}

// hasUplink tells whether the bridge may lead out of the host: whether one of its
// ports is no veth.
func (p *port) hasUplink() (bool, error) {
	ports, err := p.Host.Ports(p.bridge.Index)
	return slices.ContainsFunc(ports, func(l rtnl.Link) bool { return l.Kind != "veth" }), err
}

// makeBridge makes the bridge, or finds the one that another ADD has made
// meanwhile.
func (p *port) makeBridge() (rtnl.Link, error) {
	err := p.Host.AddLink(rtnl.NewLink{
		Kind: "bridge", Name: p.cfg.Bridge, MTU: p.cfg.Link.MTU, VLANFiltering: p.cfg.Port.Filtering,
		MAC: randomMAC(), // without one it would take that of a port, see keepMAC
	})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return rtnl.Link{}, p.cfg.unsupportedVLANs(err)
	}
	return findBridge(p.Host, p.cfg.Bridge)
}

// unsupportedVLANs gives the answer of a kernel without VLAN filtering code 2.
func (c config) unsupportedVLANs(err error) error {
	if !c.Port.Filtering || !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	if c.Port.VLAN != 0 {
		return cni.Errorf(cni.CodeUnsupportedField, "vlan: %d: not supported by this kernel: %w", c.Port.VLAN, err)
	}
	return cni.Errorf(cni.CodeUnsupportedField, "vlanTrunk: %v: not supported by this kernel: %w", c.Port.Trunk, err)
}

// randomMAC returns a locally administered unicast address.
func randomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = unix.Getrandom(mac, 0) // never fails for so few bytes
	mac[0] = mac[0]&^1 | 2
	return mac
}
