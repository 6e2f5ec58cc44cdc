package bridge

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// setUpPort makes the host end a port of the bridge. The port is brought up last, when all restrictions are in place.
func (b *bridgeCall) setUpPort(ctx context.Context) error {
	if err := b.keepMTU(&b.call.HostEnd); err != nil {
		return err
	}
	if err := b.call.MarkHostEnd(b.bridge.Index); err != nil {
		return err
	}
	flags := rtnl.Port{Hairpin: b.cfg.HairpinMode, Isolated: b.cfg.PortIsolation}
	if flags.Hairpin || flags.Isolated { // both are off for a new port
		if err := b.call.Host.SetPort(b.call.HostEnd.Index, flags); err != nil {
			return err
		}
	}
	vlans := portVLANs(b.cfg.VLAN, b.cfg.Trunk)
	if err := b.setVLANs(b.call.HostEnd, vlans, b.cfg.PreserveDefaultVLAN); err != nil {
		return b.cfg.vlanError(err)
	}
	if b.cfg.MacSpoofChk {
		b.call.Req.OnFail("remove the MAC spoof check", func(ctx context.Context) error {
			return deleteSpoofCheck(ctx, b.call.NF, b.call.Req.Attachment, false)
		})
		if err := b.spoofCheck().add(ctx, b.call.NF); err != nil {
			return err
		}
	}
	return b.call.Host.SetLink(b.call.HostEnd.Index, rtnl.LinkChange{Up: new(true)})
}

// keepMTU keeps a new port with a smaller MTU from lowering the bridge's MTU while other ports use it.
//
// Linux lowers the MTU of a bridge to the smallest MTU of its ports, and removes the bridge's IPv6 addresses if that is
// less than 1280 bytes. Therefore, keepMTU raises the MTU of the new port's host end to the largest MTU that any
// container uses. If this MTU is less than the bridge's, earlier ADDs have raised ports to an MTU that is no longer in
// use. keepMTU lowers these ports to the largest MTU in use, and the kernel then lowers the bridge's MTU.
func (b *bridgeCall) keepMTU(end *rtnl.Link) error {
	if end.MTU >= b.bridge.MTU {
		return b.raiseMTU(end.MTU)
	}
	ports, err := b.call.Host.Ports(b.bridge.Index)
	if err != nil {
		return err
	}
	largest := end.MTU
	for _, p := range ports {
		if largest = max(largest, b.usedMTU(p)); largest >= b.bridge.MTU {
			largest, ports = b.bridge.MTU, nil // no port is lowered
			break
		}
	}
	for _, p := range ports {
		if p.MTU <= largest {
			continue
		}
		err := b.call.Host.SetLink(p.Index, rtnl.LinkChange{MTU: largest})
		if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
			return err
		}
	}
	if end.MTU == largest {
		return nil
	}
	end.MTU = largest
	return b.call.Host.SetLink(end.Index, rtnl.LinkChange{MTU: largest})
}

// raiseMTU raises the MTU of a bridge to MTUMin6 when an interface with at least this MTU becomes a port. Otherwise, a
// first container with a smaller MTU would prevent IPv6 for all later containers on the bridge. raiseMTU changes the
// smaller ports, and the kernel then changes the bridge.
func (b *bridgeCall) raiseMTU(mtu int) error {
	if mtu < attach.MTUMin6 || b.bridge.MTU >= attach.MTUMin6 {
		return nil
	}
	ports, err := b.call.Host.Ports(b.bridge.Index)
	for _, p := range ports {
		if p.MTU < attach.MTUMin6 {
			setErr := b.call.Host.SetLink(p.Index, rtnl.LinkChange{MTU: attach.MTUMin6})
			err = errors.Join(err, netplugin.IgnoreNoLink(setErr))
		}
	}
	if err != nil {
		return err
	}
	return b.call.Tolerate(b.ignoreRouterAdverts()) // the bridge's IPv6 settings are new
}

// usedMTU returns the MTU that a port needs. For the port of a container or a VLAN gateway, this is the smaller MTU of
// the port and its peer, because keepMTU may have raised the port's. All other ports belong to the administrator and
// need the MTU that they have.
func (b *bridgeCall) usedMTU(port rtnl.Link) int {
	peer, err := b.call.Host.Peer(port)
	_, isContainer := cni.ParseMark(port.Alias)
	isGateway := port.PeerNS == -1 && strings.HasPrefix(peer.Name, b.bridge.Name+".")
	if err != nil || !isContainer && !isGateway {
		return port.MTU
	}
	return min(port.MTU, peer.MTU)
}

func (b *bridgeCall) spoofCheck() spoofCheck {
	return spoofCheck{Attachment: b.call.Req.Attachment, Port: b.call.HostEnd.Name, MAC: b.call.ContEnd.MAC}
}

// formerSpoofCheck returns the check that ADD added. Its MAC address is from prevResult, because the container may have
// changed the address of its interface since then. Results before version 0.3.0 do not have it, so an existing check
// keeps its address.
func (b *bridgeCall) formerSpoofCheck() spoofCheck {
	s := b.spoofCheck()
	i, _ := b.call.Req.PrevResult.ContainerInterface(b.call.Req.IfName)
	mac, err := net.ParseMAC(i.MAC)
	if i.MAC == "" {
		mac, err = s.existingMAC(b.call.NF)
	}
	if err == nil && len(mac) == len(s.MAC) {
		s.MAC = mac
	}
	return s
}

// setVLANs adds the VLANs to a new port and removes the bridge's default VLAN from it, unless keepDefault is set. A
// port that gets no VLANs keeps the default VLAN, because it would carry no frames without it.
func (b *bridgeCall) setVLANs(end rtnl.Link, vlans []rtnl.VLAN, keepDefault bool) error {
	if len(vlans) == 0 {
		return nil
	}
	defaultID := b.bridge.DefaultPVID
	keepDefault = keepDefault || slices.ContainsFunc(vlans, func(v rtnl.VLAN) bool { return v.ID == defaultID })
	if defaultID != 0 && !keepDefault {
		if err := b.call.Host.DelVLAN(end.Index, defaultID); err != nil {
			return err
		}
	}
	return b.call.Host.AddVLANs(end.Index, vlans)
}

// portVLANs returns a port's VLANs: vlan untagged (0: none), trunk tagged. A trunk without vlan has VLAN 1 untagged.
func portVLANs(vlan int, trunk []uint16) (out []rtnl.VLAN) {
	native := uint16(vlan)
	if native == 0 && len(trunk) > 0 {
		native = 1
	}
	if native != 0 {
		out = append(out, rtnl.VLAN{ID: native, PVID: true, Untagged: true})
	}
	for _, id := range trunk {
		if id != native {
			out = append(out, rtnl.VLAN{ID: id})
		}
	}
	return out
}
