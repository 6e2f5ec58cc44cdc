package bridge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// bridgeCall is an ADD, a CHECK or a Reapply in progress, with the bridge of its configuration.
type bridgeCall struct {
	call   *attach.Call
	cfg    config
	bridge rtnl.Link
}

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	call, err := attach.Open(req)
	if err != nil {
		return nil, err
	}
	if err := cfg.Link.ResolveMTU(call.Host); err != nil {
		return nil, err
	}
	b := &bridgeCall{call: call, cfg: cfg}
	if err := b.connect(ctx); err != nil {
		return nil, err
	}
	answer, err := call.IPAMResult(ctx)
	if err != nil {
		return nil, err
	}
	res, gateways, err := makePlan(cfg, answer)
	if err != nil {
		return nil, err
	}
	return res, b.configure(ctx, res, gateways)
}

// connect connects the container to the bridge by a pair, and starts IPAM, which runs concurrently.
func (b *bridgeCall) connect(ctx context.Context) error {
	b.call.Req.Step("prepare the bridge")
	if err := b.prepareBridge(); err != nil {
		return err
	}
	if err := b.call.CreatePair(ctx, b.cfg.Link); err != nil {
		return err
	}
	if err := b.call.StartIPAM(ctx); err != nil {
		return err
	}
	if err := b.setUpPort(ctx); err != nil {
		return err
	}
	b.call.Req.Step("raise the interface")
	return b.raise()
}

// configure assigns the addresses and routes of res to the container, makes the bridge its gateway, and completes res
// with the interfaces.
func (b *bridgeCall) configure(ctx context.Context, res *cni.Result, gateways []netip.Prefix) error {
	if err := b.call.RefuseHostAddresses(res, b.bridge, b.cfg.Gateway); err != nil {
		return err
	}
	if err := b.refuseNeighbors(res); err != nil {
		return err
	}
	res.Interfaces = b.interfaces(b.bridge) // for iface.Configure, which finds the container's addresses by them
	b.call.Req.Step("prepare the gateway")
	gateway, err := b.prepareGateway(ctx, gateways)
	if err != nil {
		return err
	}
	b.call.Req.Step("configure the interface")
	if err := iface.Configure(ctx, b.target(), res); err != nil {
		return err
	}
	masq, err := b.cfg.resolveMasq(b.call.Host, gateway.Link, res.IPs)
	if err != nil {
		return err
	}
	if err := b.call.Masquerade(ctx, masq, res); err != nil {
		return err
	}
	if err := b.announce(ctx, res, gateway); err != nil {
		return err
	}
	// The port may have changed the bridge's MTU and MAC address.
	if b.bridge, err = b.call.Host.LinkByIndex(b.bridge.Index); err != nil {
		return err
	}
	res.Interfaces = b.interfaces(gateway.Link)
	return nil
}

// refuseNeighbors refuses addresses that a container of another network on the bridge, or in the VLAN, has.
func (b *bridgeCall) refuseNeighbors(res *cni.Result) (err error) {
	link := b.bridge
	if b.cfg.VLAN != 0 && len(res.IPs) > 0 {
		link, err = b.call.Host.Link(b.cfg.gatewayName())
	}
	if err == nil {
		err = b.call.RefuseNeighbors(res, link)
	}
	return netplugin.IgnoreNoLink(err)
}

// raise brings the container's interface up. On a layer 2 network, it leaves the sysctls of the interface as they are.
func (b *bridgeCall) raise() error {
	switch {
	case b.cfg.DisableContainerInterface:
		return nil
	case b.call.Req.IPAM != "":
		return iface.Raise(b.target())
	}
	return b.call.Cont.SetLink(b.call.ContEnd.Index, rtnl.LinkChange{Up: new(true)})
}

func (b *bridgeCall) target() iface.Target {
	t := b.call.Target()
	t.EnableDAD, t.NoRouterAdverts = b.cfg.EnableDAD, b.cfg.Gateway
	return t
}

// announce waits until the port forwards packets and IPv6 addresses are usable, and then announces them.
func (b *bridgeCall) announce(ctx context.Context, res *cni.Result, gw attach.Gateway) error {
	if b.cfg.DisableContainerInterface {
		return nil
	}
	if err := b.call.WaitUp(ctx, res, gw); err != nil || b.call.Req.IPAM == "" {
		return err
	}
	return iface.Announce(b.call.Cont, b.call.ContEnd)
}

// interfaces returns the links as a result lists them: bridge, host end, container's interface, and the VLAN gateway if
// gateway is one.
func (b *bridgeCall) interfaces(gateway rtnl.Link) []cni.Interface {
	list := append([]cni.Interface{iface.Describe(b.bridge)}, b.call.Interfaces()...)
	if gateway.Index != b.bridge.Index {
		list = append(list, iface.Describe(gateway))
	}
	return list
}

func del(ctx context.Context, req *skel.Request) error {
	w := wireConfig{Bridge: defaultBridge}
	if err := req.Decode(&w); err != nil { // the valid keys are decoded nevertheless
		req.Warn("%v", err)
	}
	return attach.Del(ctx, req, w.Bridge, func(ctx context.Context, nf *nft.Conn, again bool) error {
		return deleteSpoofCheck(ctx, nf, req.Attachment, again)
	})
}

func check(ctx context.Context, req *skel.Request, cfg config) error {
	return attach.Check(ctx, req, func(call *attach.Call) []error {
		return (&bridgeCall{call: call, cfg: cfg}).verify(ctx)
	})
}

// reapply restores the MAC spoof check, the masquerade and forwarding on the host.
func reapply(ctx context.Context, req *skel.Request, cfg config) error {
	call, err := attach.Open(req)
	if err != nil {
		return err
	}
	b := &bridgeCall{call: call, cfg: cfg}
	if b.bridge, err = findBridge(call.Host, cfg.Bridge); err != nil {
		return err
	}
	var spoofErr error
	if cfg.MacSpoofChk {
		spoofErr = b.reapplySpoofCheck(ctx)
	}
	masq, err := cfg.resolveMasq(call.Host, b.bridge, req.PrevResult.ContainerIPs(req.IfName))
	if err == nil {
		err = call.Reapply(ctx, masq, b.bridge.Index, cfg.Gateway)
	}
	return errors.Join(spoofErr, err)
}

func (b *bridgeCall) reapplySpoofCheck(ctx context.Context) error {
	if err := b.call.FindPair(b.bridge.Index); err != nil {
		return err
	}
	verify := func() error { return netplugin.NotRestored("macspoofchk", netplugin.VerifyAttached(b.call.Req)) }
	if err := verify(); err != nil {
		return err
	}
	err := b.formerSpoofCheck().add(ctx, b.call.NF)
	if reason := verify(); reason != nil { // a DEL may have run before the check was added
		return errors.Join(reason, deleteSpoofCheck(ctx, b.call.NF, b.call.Req.Attachment, true))
	}
	return err
}

// restore restores the masquerades of all requests. Each bridge is read once.
func restore(ctx context.Context, all []*skel.Request) map[string]error {
	bridges := map[string]rtnl.Link{}
	return attach.Restore(ctx, all, func(host *rtnl.Conn, req *skel.Request) (attach.Masq, error) {
		cfg, err := Plugin().Parse(req)
		if err != nil || !cfg.Masq.Enabled {
			return cfg.Masq, err
		}
		bridge, ok := bridges[cfg.Bridge]
		if !ok {
			if bridge, err = findBridge(host, cfg.Bridge); err != nil {
				return cfg.Masq, err
			}
			bridges[cfg.Bridge] = bridge
		}
		return cfg.resolveMasq(host, bridge, req.PrevResult.ContainerIPs(req.IfName))
	})
}

func gc(ctx context.Context, req *skel.Request) error {
	return attach.GC(ctx, req, func(ctx context.Context, nf *nft.Conn, _ bool) error {
		return collectSpoofChecks(ctx, nf, req.Valid)
	})
}

// list lists the ports, their masquerades and their MAC spoof checks.
func list(ctx context.Context, _ *skel.Request) ([]cni.Holding, error) {
	all, err := attach.ListPairs(ctx, true)
	nf := nft.New()
	defer nf.Close()
	checks, checkErr := listSpoofChecks(nf)
	return append(all, checks...), errors.Join(err, checkErr)
}

// status returns code 50 if ADD would fail because a link that is not a bridge has the bridge's name, because the
// kernel lacks a feature, or because IPAM reports an error.
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
