package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// call is an ADD or CHECK under way.
type attachment struct {
	call   *attach.Call
	cfg    config
	bridge rtnl.Link
}

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	s, err := attach.Open(req)
	if err != nil {
		return nil, err
	}
	if err := cfg.Link.ResolveMTU(s.Host); err != nil {
		return nil, err
	}
	a := &attachment{call: s, cfg: cfg}
	s.Req.Step("prepare the bridge")
	if err := a.prepareBridge(); err != nil {
		return nil, err
	}
	if err := a.call.CreatePair(ctx, cfg.Link); err != nil {
		return nil, err
	}
	if err := a.call.StartIPAM(ctx); err != nil {
		return nil, err
	}
	if err := a.setUpPort(ctx); err != nil {
		return nil, err
	}
	s.Req.Step("raise the interface")
	if err := a.raise(); err != nil {
		return nil, err
	}
	answer, err := a.call.IPAMResult(ctx)
	if err != nil {
		return nil, err
	}
	res, gateways, err := makePlan(cfg, answer)
	if err != nil {
		return nil, err
	}
	if err := a.call.RefuseHostAddresses(res, a.bridge, cfg.Gateway); err != nil {
		return nil, err
	}
	res.Interfaces = a.links(a.bridge) // Configure finds the addresses by them; the final ones are below
	s.Req.Step("prepare the gateway")
	gateway, err := a.prepareGateway(ctx, gateways)
	if err != nil {
		return nil, err
	}
	s.Req.Step("configure the interface")
	if err := iface.Configure(ctx, a.container(), res); err != nil {
		return nil, err
	}
	if err := a.masquerade(ctx, gateway.Link, res); err != nil {
		return nil, err
	}
	if err := a.announce(ctx, res, gateway); err != nil {
		return nil, err
	}
	if a.bridge, err = a.call.Host.LinkByIndex(a.bridge.Index); err != nil { // it may have other values by now
		return nil, err
	}
	res.Interfaces = a.links(gateway.Link)
	return res, nil
}

// masquerade makes the rules for packets that the gateway, or the bridge, receives.
func (a *attachment) masquerade(ctx context.Context, from rtnl.Link, res *cni.Result) error {
	m, err := a.cfg.masqFrom(a.call.Host, from, res.IPs)
	if err != nil {
		return err
	}
	return a.call.Masquerade(ctx, m, res)
}

func del(ctx context.Context, req *skel.Request) error {
	w := wireConfig{Bridge: defaultBridge}
	if err := req.Decode(&w); err != nil { // a key that cannot be read does not stand in the way of others
		req.Warn("%v", err)
	}
	return attach.Del(ctx, req, w.Bridge, func(ctx context.Context, nf *nft.Conn, again bool) error {
		return deleteSpoofCheck(ctx, nf, req.Attachment, again)
	})
}

func check(ctx context.Context, req *skel.Request, cfg config) error {
	return attach.Check(ctx, req, func(s *attach.Call) []error {
		return (&attachment{call: s, cfg: cfg}).verify(ctx)
	})
}

func reapply(ctx context.Context, req *skel.Request, cfg config) error {
	s, err := attach.Open(req)
	if err != nil {
		return err
	}
	a := &attachment{call: s, cfg: cfg}
	if a.bridge, err = findBridge(s.Host, cfg.Bridge); err != nil {
		return err
	}
	masq, err := cfg.masqFrom(s.Host, a.bridge, s.Req.PrevResult.ContainerIPs(s.Req.IfName))
	if err != nil {
		return err
	}
	if err := a.call.Reapply(ctx, masq, a.bridge.Index, cfg.Gateway); err != nil || !cfg.MacSpoofChk {
		return err
	}
	err = a.spoofCheck().add(ctx, a.call.NF)
	// A DEL may have run before the check was added.
	if gone := netplugin.NotRestored("macspoofchk", netplugin.VerifyAttached(req)); gone != nil {
		return errors.Join(gone, deleteSpoofCheck(ctx, a.call.NF, req.Attachment, true))
	}
	return err
}

func restore(ctx context.Context, all []*skel.Request) map[string]error {
	bridges := map[string]rtnl.Link{}
	return attach.Restore(ctx, all, func(host *rtnl.Conn, req *skel.Request) (attach.Masq, error) {
		cfg, err := Plugin().Parse(req)
		if err != nil || !cfg.Masq.On {
			return cfg.Masq, err
		}
		bridge, ok := bridges[cfg.Bridge]
		if !ok {
			if bridge, err = findBridge(host, cfg.Bridge); err != nil {
				return cfg.Masq, err
			}
			bridges[cfg.Bridge] = bridge
		}
		return cfg.masqFrom(host, bridge, req.PrevResult.ContainerIPs(req.IfName))
	})
}

func gc(ctx context.Context, req *skel.Request) error {
	return attach.GC(ctx, req, func(ctx context.Context, nf *nft.Conn, _ bool) error {
		return collectSpoofChecks(ctx, nf, req.Valid)
	})
}

// list lists the ports, their masquerades and their MAC checks.
func list(ctx context.Context, _ *skel.Request) ([]cni.Holding, error) {
	all, err := attach.ListPairs(ctx, true)
	nf := nft.New()
	defer nf.Close()
	checks, checkErr := listSpoofChecks(nf)
	return append(all, checks...), errors.Join(err, checkErr)
}

// status looks for what would make ADD fail: a bridge name that something else
// has, a missing backend, IPAM's answer.
func status(ctx context.Context, req *skel.Request, cfg config) error {
	return attach.Status(ctx, req, cfg.Masq, func(host *rtnl.Conn) error {
		_, err := findBridge(host, cfg.Bridge)
		if errors.Is(err, rtnl.ErrNoLink) {
			err = host.ProbeKind("bridge")
		}
		if err = errors.Join(err, host.ProbeKind("veth")); err != nil {
			return err
		}
		if err := cfg.Link.ResolveMTU(host); err != nil || !cfg.MacSpoofChk {
			return err
		}
		nf := nft.New()
		defer nf.Close()
		if err := nf.Probe(spoofElements().Layout); err != nil {
			return fmt.Errorf("macspoofchk: %w", err)
		}
		return nil
	})
}

// raise brings the container's interface up. In a layer 2 network its settings stay the kernel's.
func (a *attachment) raise() error {
	switch {
	case a.cfg.DisableContainerInterface:
		return nil
	case a.call.Req.IPAM != "":
		return iface.Raise(a.container())
	}
	return a.call.Cont.SetLink(a.call.ContEnd.Index, rtnl.LinkChange{Up: new(true)})
}

// container is the container's interface, for pkg/iface.
func (a *attachment) container() iface.Target {
	t := a.call.Target()
	t.EnableDAD, t.NoRouterAdverts = a.cfg.EnableDAD, a.cfg.Gateway
	return t
}

// announce waits until the port forwards and IPv6 addresses can be used, and has the kernel announce the addresses.
func (a *attachment) announce(ctx context.Context, res *cni.Result, gw attach.Gateway) error {
	if a.cfg.DisableContainerInterface {
		return nil
	}
	if err := a.call.WaitUp(ctx, res, gw); err != nil || a.call.Req.IPAM == "" {
		return err
	}
	return iface.Announce(a.call.Cont, a.call.ContEnd)
}

// links lists the links as results do: bridge, host end, container's interface, and the VLAN's gateway if there is one.
func (a *attachment) links(gateway rtnl.Link) []cni.Interface {
	links := append([]cni.Interface{iface.Describe(a.bridge)}, a.call.Interfaces()...)
	if gateway.Index != a.bridge.Index {
		links = append(links, iface.Describe(gateway))
	}
	return links
}

// setUpPort makes the host end a port of the bridge. It comes up last, when every restriction is in place.
func (a *attachment) setUpPort(ctx context.Context) error {
	if err := a.keepMTU(&a.call.HostEnd); err != nil {
		return err
	}
	if err := a.call.MarkHostEnd(a.bridge.Index); err != nil {
		return err
	}
	flags := rtnl.Port{Hairpin: a.cfg.HairpinMode, Isolated: a.cfg.PortIsolation}
	if flags.Hairpin || flags.Isolated { // a new port is neither
		if err := a.call.Host.SetPort(a.call.HostEnd.Index, flags); err != nil {
			return err
		}
	}
	vlans := portVLANs(a.cfg.VLAN, a.cfg.Trunk)
	if err := a.setVLANs(a.call.HostEnd, vlans, a.cfg.PreserveDefaultVLAN); err != nil {
		return a.cfg.unsupportedVLANs(err)
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

// keepMTU keeps the bridge's MTU when an interface with a smaller MTU becomes a port, if other ports use the bridge's.
// Linux lowers the MTU of a bridge to the smallest one of its ports, and removes all IPv6 addresses below 1280 bytes.
// The interface gets the largest MTU in use, as do ports that have more from an earlier ADD, and with them the bridge.
func (a *attachment) keepMTU(end *rtnl.Link) error {
	if end.MTU >= a.bridge.MTU {
		return nil
	}
	ports, err := a.call.Host.Ports(a.bridge.Index)
	if err != nil {
		return err
	}
	largest := end.MTU
	for _, p := range ports {
		if largest = max(largest, a.usedMTU(p)); largest >= a.bridge.MTU {
			largest, ports = a.bridge.MTU, nil
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

// usedMTU returns the MTU of a port, or the smaller one of the container or VLAN gateway behind the port: keepMTU may
// have raised the port's. Other pairs are the administrator's.
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

// setVLANs gives a new port its VLANs, and takes the kernel's default one from it. A port without VLANs keeps that one:
// it would carry nothing.
func (a *attachment) setVLANs(end rtnl.Link, vlans []rtnl.VLAN, keepDefault bool) error {
	if len(vlans) == 0 {
		return nil
	}
	byDefault := a.bridge.DefaultPVID
	wanted := keepDefault || slices.ContainsFunc(vlans, func(v rtnl.VLAN) bool { return v.ID == byDefault })
	if byDefault != 0 && !wanted {
		if err := a.call.Host.DelVLAN(end.Index, byDefault); err != nil {
			return err
		}
	}
	return a.call.Host.AddVLANs(end.Index, vlans)
}

// portVLANs lists what a port carries. A trunk without a VLAN of its own has VLAN 1 untagged.
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
