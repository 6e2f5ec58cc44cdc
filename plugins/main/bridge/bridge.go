package main

import (
	"context"
	"errors"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// port is an ADD or CHECK under way, of one container's port of the bridge.
type port struct {
	*attach.Session
	cfg    config
	bridge rtnl.Link
}

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	s, err := attach.Open(req)
	if err != nil {
		return nil, err
	}
	p := &port{Session: s, cfg: cfg}
	if err := p.prepareBridge(); err != nil {
		return nil, err
	}
	if err := p.CreatePair(ctx, cfg.Link); err != nil {
		return nil, err
	}
	if err := p.StartIPAM(ctx); err != nil {
		return nil, err
	}
	if err := p.setUpPort(ctx); err != nil {
		return nil, err
	}
	if err := p.raise(); err != nil {
		return nil, err
	}
	answer, err := p.IPAMResult(ctx)
	if err != nil {
		return nil, err
	}
	plan, err := makePlan(cfg, answer)
	if err != nil {
		return nil, err
	}
	plan.Result.Interfaces = p.links() // by which Configure finds the container's addresses
	gateway, err := p.prepareGateway(ctx, plan.Gateways)
	if err != nil {
		return nil, err
	}
	if err := iface.Configure(ctx, p.container(), plan.Result); err != nil {
		return nil, err
	}
	if err := p.Masquerade(ctx, cfg.Masq, plan.Result); err != nil {
		return nil, err
	}
	if err := p.announce(ctx, plan.Result, gateway); err != nil {
		return nil, err
	}
	return plan.Result, p.describeLinks(plan.Result, gateway.Link)
}

func del(ctx context.Context, req *skel.Request) error {
	master := func(host *rtnl.Conn) (int, error) {
		br, err := findBridge(host, bridgeName(req))
		return br.Index, err
	}
	return attach.Del(ctx, req, master, func(ctx context.Context, nf *nft.Conn) error {
		return deleteSpoofCheck(ctx, nf, req.Attachment)
	})
}

func check(ctx context.Context, req *skel.Request, cfg config) error {
	return attach.Check(ctx, req, func(s *attach.Session) []error {
		p := &port{Session: s, cfg: cfg}
		return p.verify(ctx)
	})
}

func gc(ctx context.Context, req *skel.Request) error {
	return attach.GC(ctx, req, func(ctx context.Context, nf *nft.Conn) error {
		return collectSpoofChecks(ctx, nf, req.Valid)
	})
}

// status looks for what would make ADD fail: a bridge name that something else
// has, a missing backend, IPAM's answer.
func status(ctx context.Context, req *skel.Request, cfg config) error {
	host, err := rtnl.Dial(nil)
	if err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	defer host.Close()
	if _, err := findBridge(host, cfg.Bridge); err != nil && !errors.Is(err, rtnl.ErrNoLink) {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	if cfg.SpoofCheck {
		nf := nft.New()
		defer nf.Close()
		if err := nf.Probe(spoofLayout()); err != nil {
			return cni.Errorf(cni.CodeUnavailable, "macspoofchk: %w", err)
		}
	}
	return attach.Status(ctx, req, cfg.Masq)
}

// raise brings the container's interface up; in a layer 2 network with the kernel's settings.
func (p *port) raise() error {
	switch {
	case p.cfg.KeepDown:
		return nil
	case p.cfg.IPAM:
		return iface.Raise(p.container())
	}
	return p.Cont.SetLink(p.ContEnd.Index, rtnl.Change{Up: new(true)})
}

// container is the container's interface, for pkg/iface.
func (p *port) container() iface.Target {
	t := p.Target()
	t.EnableDAD, t.NoRouterAdverts = p.cfg.DAD, p.cfg.Gateway
	return t
}

// announce waits until the bridge forwards through the port and the IPv6
// addresses can be used, and then has the kernel tell the neighbours where the
// addresses are now.
func (p *port) announce(ctx context.Context, res *cni.Result, gw attach.Gateway) error {
	if p.cfg.KeepDown {
		return nil
	}
	if err := p.WaitUp(ctx, res, gw); err != nil || !p.cfg.IPAM {
		return err
	}
	return iface.Announce(p.Cont, p.ContEnd)
}

// links lists the links as results do: the bridge, the host end and the
// container's interface.
func (p *port) links() []cni.Interface {
	return append([]cni.Interface{iface.Describe(p.bridge)}, p.Interfaces()...)
}

// describeLinks lists the links as they are at the end, and the VLAN's gateway if
// there is one.
func (p *port) describeLinks(res *cni.Result, gateway rtnl.Link) (err error) {
	if p.bridge, err = p.Host.LinkByIndex(p.bridge.Index); err != nil {
		return err
	}
	res.Interfaces = p.links()
	if gateway.Index != p.bridge.Index {
		res.Interfaces = append(res.Interfaces, iface.Describe(gateway))
	}
	return nil
}
