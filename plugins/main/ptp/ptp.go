package main

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	a, err := attach.Open(req)
	if err != nil {
		return nil, err
	}
	if err := a.Veth(ctx, cfg.Link, 0); err != nil {
		return nil, err
	}
	if err := a.StartIPAM(ctx); err != nil {
		return nil, err
	}
	lease, err := a.Lease(ctx)
	if err != nil {
		return nil, err
	}
	p, err := makePlan(cfg, lease)
	if err != nil {
		return nil, cni.Errorf(cni.CodeIPAM, "IPAM plugin %q: %w", req.IPAM, err)
	}
	p.Result.Interfaces = a.Interfaces()
	if err := raiseHostEnd(a, p); err != nil {
		return nil, err
	}
	if err := iface.Configure(ctx, target(a, p.ContRoutes), p.Result); err != nil {
		return nil, err
	}
	if err := routeToContainer(a, p); err != nil {
		return nil, err
	}
	if err := a.Masquerade(ctx, cfg.Masq, p.Result); err != nil {
		return nil, err
	}
	return p.Result, a.WaitUp(ctx, p.Result, attach.Gateway{Link: a.HostEnd, Addrs: v6(p.Gateways)})
}

func del(ctx context.Context, req *skel.Request) error { return attach.Del(ctx, req, attach.NoMaster) }

func check(ctx context.Context, req *skel.Request, cfg config) error {
	return attach.Check(ctx, req, func(a *attach.Call) []error { return verify(ctx, a, cfg) })
}

func gc(ctx context.Context, req *skel.Request) error { return attach.GC(ctx, req) }

func status(ctx context.Context, req *skel.Request, cfg config) error {
	return attach.Status(ctx, req, cfg.Masq)
}

// raiseHostEnd brings the host end up, after what must hold before.
func raiseHostEnd(a *attach.Call, p plan) error {
	if len(v6(p.Gateways)) > 0 {
		// The host may have IPv6 off by default; this link needs it.
		if err := iface.EnableIPv6(a.HostEnd.Name); err != nil {
			return err
		}
		// Nobody else is on this link, so there is no duplicate to detect.
		if err := a.Tolerate(iface.SkipDAD(a.HostEnd.Name)); err != nil {
			return err
		}
	}
	up := true
	return a.Host.SetLink(a.HostEnd.Index, rtnl.Change{Up: &up})
}

// target is the container's interface. The kernel makes no route to its subnet:
// that leads through the gateway like everything else.
func target(a *attach.Call, routes []rtnl.Route) iface.Target {
	t := a.Target()
	t.NoSubnetRoutes, t.Routes = true, routes
	return t
}

// routeToContainer gives the host end the gateway addresses, and the host a
// route to each address of the container.
func routeToContainer(a *attach.Call, p plan) error {
	for _, gw := range p.Gateways {
		if err := a.Host.AddAddr(a.HostEnd.Index, rtnl.Addr{Prefix: gw, NoDAD: gw.Addr().Is6()}); err != nil {
			return err
		}
		if err := iface.EnableForwarding(gw.Addr().Is4()); err != nil {
			return err
		}
	}
	for _, r := range p.HostRoutes {
		r.OutIndex = a.HostEnd.Index
		if err := a.Host.AddRoute(r); err != nil {
			return fmt.Errorf("host interface %q: %w", a.HostEnd.Name, err)
		}
	}
	return nil
}

// v6 returns the IPv6 addresses among them.
func v6(all []netip.Prefix) (addrs []netip.Addr) {
	for _, p := range all {
		if p.Addr().Is6() {
			addrs = append(addrs, p.Addr())
		}
	}
	return addrs
}
