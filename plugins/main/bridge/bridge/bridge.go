package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/frame"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// call is an ADD or CHECK under way.
type call struct {
	*attach.Session
	cfg    config
	bridge rtnl.Link
}

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	s, err := attach.Open(req)
	if err != nil {
		return nil, err
	}
	if err := cfg.Link.SettleMTU(s.Host); err != nil {
		return nil, err
	}
	c := &call{Session: s, cfg: cfg}
	s.Step("prepare the bridge")
	if err := c.prepareBridge(); err != nil {
		return nil, err
	}
	if err := c.CreatePair(ctx, cfg.Link); err != nil {
		return nil, err
	}
	if err := c.StartIPAM(ctx); err != nil {
		return nil, err
	}
	if err := c.setUpPort(ctx); err != nil {
		return nil, err
	}
	s.Step("raise the interface")
	if err := c.raise(); err != nil {
		return nil, err
	}
	answer, err := c.IPAMResult(ctx)
	if err != nil {
		return nil, err
	}
	res, gateways, err := makePlan(cfg, answer)
	if err != nil {
		return nil, err
	}
	if err := c.RefuseHostAddresses(res, c.bridge, cfg.Gateway); err != nil {
		return nil, err
	}
	res.Interfaces = c.links(c.bridge) // Configure finds the addresses by them; the final ones are below
	s.Step("prepare the gateway")
	gateway, err := c.prepareGateway(ctx, gateways)
	if err != nil {
		return nil, err
	}
	s.Step("configure the interface")
	if err := iface.Configure(ctx, c.container(), res); err != nil {
		return nil, err
	}
	if err := c.masquerade(ctx, gateway.Link, res); err != nil {
		return nil, err
	}
	if err := c.announce(ctx, res, gateway); err != nil {
		return nil, err
	}
	if c.bridge, err = c.Host.LinkByIndex(c.bridge.Index); err != nil { // it may have other values by now
		return nil, err
	}
	res.Interfaces = c.links(gateway.Link)
	return res, nil
}

// masquerade makes the rules for packets that the gateway, or the bridge, receives.
func (c *call) masquerade(ctx context.Context, from rtnl.Link, res *cni.Result) error {
	m, err := c.cfg.masqFrom(c.Host, from, res.IPs)
	if err != nil {
		return err
	}
	return c.Masquerade(ctx, m, res)
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
	return attach.Check(ctx, req, func(s *attach.Session) []error {
		return (&call{Session: s, cfg: cfg}).verify(ctx)
	})
}

func reapply(ctx context.Context, req *skel.Request, cfg config) error {
	s, err := attach.Open(req)
	if err != nil {
		return err
	}
	c := &call{Session: s, cfg: cfg}
	if c.bridge, err = findBridge(s.Host, cfg.Bridge); err != nil {
		return err
	}
	masq, err := cfg.masqFrom(s.Host, c.bridge, s.PrevResult.ContainerIPs(s.IfName))
	if err != nil {
		return err
	}
	if err := c.Reapply(ctx, masq, c.bridge.Index, cfg.Gateway); err != nil || !cfg.MacSpoofChk {
		return err
	}
	err = c.spoofCheck().add(ctx, c.NF)
	if gone := frame.NotRestored("macspoofchk", frame.Attached(req)); gone != nil { // its DEL may have been before
		return errors.Join(gone, deleteSpoofCheck(ctx, c.NF, req.Attachment, true))
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
		if err := cfg.Link.SettleMTU(host); err != nil || !cfg.MacSpoofChk {
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
func (c *call) raise() error {
	switch {
	case c.cfg.DisableContainerInterface:
		return nil
	case c.IPAM != "":
		return iface.Raise(c.container())
	}
	return c.Cont.SetLink(c.ContEnd.Index, rtnl.LinkChange{Up: new(true)})
}

// container is the container's interface, for pkg/iface.
func (c *call) container() iface.Target {
	t := c.Target()
	t.EnableDAD, t.NoRouterAdverts = c.cfg.EnableDAD, c.cfg.Gateway
	return t
}

// announce waits until the port forwards and IPv6 addresses can be used, and has the kernel announce the addresses.
func (c *call) announce(ctx context.Context, res *cni.Result, gw attach.Gateway) error {
	if c.cfg.DisableContainerInterface {
		return nil
	}
	if err := c.WaitUp(ctx, res, gw); err != nil || c.IPAM == "" {
		return err
	}
	return iface.Announce(c.Cont, c.ContEnd)
}

// links lists the links as results do: bridge, host end, container's interface, and the VLAN's gateway if there is one.
func (c *call) links(gateway rtnl.Link) []cni.Interface {
	links := append([]cni.Interface{iface.Describe(c.bridge)}, c.Interfaces()...)
	if gateway.Index != c.bridge.Index {
		links = append(links, iface.Describe(gateway))
	}
	return links
}

// setUpPort makes the host end a port of the bridge. It comes up last, when every restriction is in place.
func (c *call) setUpPort(ctx context.Context) error {
	if err := c.keepMTU(&c.HostEnd); err != nil {
		return err
	}
	if err := c.MarkHostEnd(c.bridge.Index); err != nil {
		return err
	}
	flags := rtnl.Port{Hairpin: c.cfg.HairpinMode, Isolated: c.cfg.PortIsolation}
	if flags.Hairpin || flags.Isolated { // a new port is neither
		if err := c.Host.SetPort(c.HostEnd.Index, flags); err != nil {
			return err
		}
	}
	vlans := portVLANs(c.cfg.VLAN, c.cfg.Trunk)
	if err := c.setVLANs(c.HostEnd, vlans, c.cfg.PreserveDefaultVLAN); err != nil {
		return c.cfg.unsupportedVLANs(err)
	}
	if c.cfg.MacSpoofChk {
		c.OnFail("remove the MAC spoof check", func(ctx context.Context) error {
			return deleteSpoofCheck(ctx, c.NF, c.Attachment, false)
		})
		if err := c.spoofCheck().add(ctx, c.NF); err != nil {
			return err
		}
	}
	return c.Host.SetLink(c.HostEnd.Index, rtnl.LinkChange{Up: new(true)})
}

// keepMTU keeps the bridge's MTU when an interface with a smaller MTU becomes a port, if other ports use the bridge's.
// Linux lowers the MTU of a bridge to the smallest one of its ports, and removes all IPv6 addresses below 1280 bytes.
// The interface gets the largest MTU in use, as do ports that have more from an earlier ADD, and with them the bridge.
func (c *call) keepMTU(end *rtnl.Link) error {
	if end.MTU >= c.bridge.MTU {
		return nil
	}
	ports, err := c.Host.Ports(c.bridge.Index)
	if err != nil {
		return err
	}
	largest := end.MTU
	for _, p := range ports {
		if largest = max(largest, c.usedMTU(p)); largest >= c.bridge.MTU {
			largest, ports = c.bridge.MTU, nil
			break
		}
	}
	for _, p := range ports {
		if p.MTU <= largest {
			continue
		}
		err := c.Host.SetLink(p.Index, rtnl.LinkChange{MTU: largest})
		if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
			return err
		}
	}
	if end.MTU == largest {
		return nil
	}
	end.MTU = largest
	return c.Host.SetLink(end.Index, rtnl.LinkChange{MTU: largest})
}

// usedMTU returns the MTU of a port, or the smaller one of the container or VLAN gateway behind the port: keepMTU may
// have raised the port's. Other pairs are the administrator's.
func (c *call) usedMTU(port rtnl.Link) int {
	peer, err := c.Host.Peer(port)
	_, isContainer := cni.ParseMark(port.Alias)
	isGateway := port.PeerNS == -1 && strings.HasPrefix(peer.Name, c.bridge.Name+".")
	if err != nil || !isContainer && !isGateway {
		return port.MTU
	}
	return min(port.MTU, peer.MTU)
}

func (c *call) spoofCheck() spoofCheck {
	return spoofCheck{Attachment: c.Attachment, Port: c.HostEnd.Name, MAC: c.ContEnd.MAC}
}

// setVLANs gives a new port its VLANs, and takes the kernel's default one from it. A port without VLANs keeps that one:
// it would carry nothing.
func (c *call) setVLANs(end rtnl.Link, vlans []rtnl.VLAN, keepDefault bool) error {
	if len(vlans) == 0 {
		return nil
	}
	byDefault := c.bridge.DefaultPVID
	wanted := keepDefault || slices.ContainsFunc(vlans, func(v rtnl.VLAN) bool { return v.ID == byDefault })
	if byDefault != 0 && !wanted {
		if err := c.Host.DelVLAN(end.Index, byDefault); err != nil {
			return err
		}
	}
	return c.Host.AddVLANs(end.Index, vlans)
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
