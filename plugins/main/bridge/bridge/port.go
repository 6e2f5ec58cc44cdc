package bridge

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// setUpPort makes the host end a port of the bridge. The port is brought up last, when all restrictions are in place.
func (a *attachment) setUpPort(ctx context.Context) error {
	if err := a.keepMTU(&a.call.HostEnd); err != nil {
		return err
	}
	if err := a.call.MarkHostEnd(a.bridge.Index); err != nil {
		return err
	}
	flags := rtnl.Port{Hairpin: a.cfg.HairpinMode, Isolated: a.cfg.PortIsolation}
	if flags.Hairpin || flags.Isolated { // both are off for a new port
		if err := a.call.Host.SetPort(a.call.HostEnd.Index, flags); err != nil {
			return err
		}
	}
	vlans := portVLANs(a.cfg.VLAN, a.cfg.Trunk)
	if err := a.setVLANs(a.call.HostEnd, vlans, a.cfg.PreserveDefaultVLAN); err != nil {
		return a.cfg.vlanError(err)
	}
	if a.cfg.MacSpoofChk {
		a.call.Req.OnFail("remove the MAC spoof check", func(ctx context.Context) error {
			return deleteSpoofCheck(ctx, a.call.NF, a.call.Req.Attachment, false)
		})
		if err := a.spoofCheck().add(ctx, a.call.NF); err != nil {
			return err
		}
	}
	return a.call.Host.SetLink(a.call.HostEnd.Index, rtnl.LinkChange{Up: new(true)})
}

// keepMTU keeps a new port with a smaller MTU from lowering the bridge's MTU while other ports use it.
//
// Linux lowers the MTU of a bridge to the smallest MTU of its ports, and removes the bridge's IPv6 addresses if that is
// less than 1280 bytes. So keepMTU raises the MTU of the new port's host end to the largest MTU that any container
// uses. If no container uses the bridge's MTU any more, keepMTU lowers the ports whose MTU an earlier ADD raised to the
// largest MTU in use, and the kernel lowers the bridge's MTU.
func (a *attachment) keepMTU(end *rtnl.Link) error {
	if end.MTU >= a.bridge.MTU {
		return a.raiseMTU(end.MTU)
	}
	ports, err := a.call.Host.Ports(a.bridge.Index)
	if err != nil {
		return err
	}
	largest := end.MTU
	for _, p := range ports {
		if largest = max(largest, a.usedMTU(p)); largest >= a.bridge.MTU {
			largest, ports = a.bridge.MTU, nil // no port is lowered
			break
		}
	}
	for _, p := range ports {
		if p.MTU <= largest {
			continue
		}
		err := a.call.Host.SetLink(p.Index, rtnl.LinkChange{MTU: largest})
		if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
			return err
		}
	}
	if end.MTU == largest {
		return nil
	}
	end.MTU = largest
	return a.call.Host.SetLink(end.Index, rtnl.LinkChange{MTU: largest})
}

// raiseMTU raises the MTU of a bridge to MTUMin6 when an interface with at least this MTU becomes a port. Without it, a
// first container with a smaller MTU would prevent IPv6 for all later containers on the bridge.
func (a *attachment) raiseMTU(mtu int) error {
	if mtu < attach.MTUMin6 || a.bridge.MTU >= attach.MTUMin6 {
		return nil
	}
	ports, err := a.call.Host.Ports(a.bridge.Index)
	for _, p := range ports {
		if p.MTU < attach.MTUMin6 {
			setErr := a.call.Host.SetLink(p.Index, rtnl.LinkChange{MTU: attach.MTUMin6})
			err = errors.Join(err, netplugin.IgnoreNoLink(setErr))
		}
	}
	if err != nil {
		return err
	}
	return a.call.Tolerate(a.ignoreRouterAdverts()) // the bridge's IPv6 settings are new
}

// usedMTU returns the MTU that a port needs. For the port of a container or a VLAN gateway, that is the MTU of the peer
// if it is smaller than the port's, because keepMTU may have raised the port's. All other ports belong to the
// administrator and need the MTU that they have.
func (a *attachment) usedMTU(port rtnl.Link) int {
	peer, err := a.call.Host.Peer(port)
	_, isContainer := cni.ParseMark(port.Alias)
	isGateway := port.PeerNS == -1 && strings.HasPrefix(peer.Name, a.bridge.Name+".")
	if err != nil || !isContainer && !isGateway {
		return port.MTU
	}
	return min(port.MTU, peer.MTU)
}

func (a *attachment) spoofCheck() spoofCheck {
	return spoofCheck{Attachment: a.call.Req.Attachment, Port: a.call.HostEnd.Name, MAC: a.call.ContEnd.MAC}
}

// setVLANs adds the VLANs to a new port and removes the bridge's default VLAN from it, unless keepDefault is set. A
// port that gets no VLANs keeps the default VLAN, because it would carry no frames without it.
func (a *attachment) setVLANs(end rtnl.Link, vlans []rtnl.VLAN, keepDefault bool) error {
	if len(vlans) == 0 {
		return nil
	}
	defaultID := a.bridge.DefaultPVID
	keepDefault = keepDefault || slices.ContainsFunc(vlans, func(v rtnl.VLAN) bool { return v.ID == defaultID })
	if defaultID != 0 && !keepDefault {
		if err := a.call.Host.DelVLAN(end.Index, defaultID); err != nil {
			return err
		}
	}
	return a.call.Host.AddVLANs(end.Index, vlans)
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
