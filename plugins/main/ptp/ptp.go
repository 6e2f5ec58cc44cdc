package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	s, err := attach.Open(req)
	if err != nil {
		return nil, err
	}
	err = s.CreatePair(ctx, cfg.Link)
	if cfg.Link.Netkit && errors.Is(err, unix.EOPNOTSUPP) {
		err = cni.Errorf(cni.CodeUnsupportedField, "deviceType: netkit: not supported by this kernel: %w", err)
	}
	if err != nil {
		return nil, err
	}
	if err := s.StartIPAM(ctx); err != nil {
		return nil, err
	}
	if err := s.MarkHostEnd(0); err != nil {
		return nil, err
	}
	if err := iface.Raise(target(s, nil)); err != nil {
		return nil, err
	}
	answer, err := s.IPAMResult(ctx)
	if err != nil {
		return nil, err
	}
	p, err := makePlan(cfg, answer)
	if err != nil {
		return nil, cni.Errorf(cni.CodeIPAM, "IPAM plugin %q: %w", req.IPAM, err)
	}
	p.Result.Interfaces = s.Interfaces()
	if err := raiseHostEnd(s, p); err != nil {
		return nil, err
	}
	if err := iface.Configure(ctx, target(s, p.ContRoutes), p.Result); err != nil {
		return nil, err
	}
	if err := routeToContainer(s, p); err != nil {
		return nil, err
	}
	if err := s.Masquerade(ctx, cfg.Masq, p.Result); err != nil {
		return nil, err
	}
	return p.Result, s.WaitUp(ctx, p.Result, attach.Gateway{Link: s.HostEnd, Addrs: p.Gateways})
}

func del(ctx context.Context, req *skel.Request) error { return attach.Del(ctx, req, "") }

func check(ctx context.Context, req *skel.Request, cfg config) error {
	return attach.Check(ctx, req, func(s *attach.Session) []error { return verify(ctx, s, cfg) })
}

func gc(ctx context.Context, req *skel.Request) error { return attach.GC(ctx, req) }

func status(ctx context.Context, req *skel.Request, cfg config) error {
	if !cfg.Link.Netkit {
		return attach.Status(ctx, req, cfg.Masq, nil)
	}
	return attach.Status(ctx, req, cfg.Masq, func(host *rtnl.Conn) error {
		if err := host.ProbeKind("netkit"); err != nil {
			return fmt.Errorf("deviceType: %w", err)
		}
		return nil
	})
}

// raiseHostEnd brings the host end up, after what must hold before.
func raiseHostEnd(s *attach.Session, p plan) error {
	if slices.ContainsFunc(p.Gateways, func(gw netip.Prefix) bool { return gw.Addr().Is6() }) {
		// The host may have IPv6 off by default; this link needs it.
		if err := iface.EnableIPv6(s.HostEnd.Name); err != nil {
			return err
		}
		// Nobody else is on this link, so there is no duplicate to detect.
		if err := s.Tolerate(iface.SkipDAD(s.HostEnd.Name)); err != nil {
			return err
		}
	}
	return s.Host.SetLink(s.HostEnd.Index, rtnl.LinkChange{Up: new(true)})
}

// target is the container's interface. The kernel makes no route to its subnet:
// that leads through the gateway like everything else.
func target(s *attach.Session, routes []rtnl.Route) iface.Target {
	t := s.Target()
	t.NoSubnetRoutes, t.Routes = true, routes
	return t
}

// routeToContainer gives the host end the gateway addresses, and the host a
// route to each address of the container.
func routeToContainer(s *attach.Session, p plan) error {
	for _, gw := range p.Gateways {
		if err := s.Host.AddAddr(s.HostEnd.Index, rtnl.Addr{Prefix: gw, NoDAD: gw.Addr().Is6()}); err != nil {
			return err
		}
		if err := iface.EnableForwarding(gw.Addr().Is4()); err != nil {
			return err
		}
	}
	for _, r := range p.HostRoutes {
		r.OutIndex = s.HostEnd.Index
		if err := s.Host.AddRoute(r); err != nil {
			return fmt.Errorf("host interface %q: %w", s.HostEnd.Name, err)
		}
	}
	return nil
}
