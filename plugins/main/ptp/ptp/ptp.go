package ptp

import (
	"cmp"
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
	if err := cfg.Link.ResolveMTU(s.Host); err != nil {
		return nil, err
	}
	err = s.CreatePair(ctx, cfg.Link)
	if cfg.Link.Netkit && errors.Is(err, unix.EOPNOTSUPP) {
		err = cni.Errorf(cni.CodeUnsupportedField, "deviceType: %w", err)
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
	s.Req.Step("raise the interface")
	if err := iface.Raise(target(s, nil)); err != nil {
		return nil, err
	}
	answer, err := s.IPAMResult(ctx)
	if err != nil {
		return nil, err
	}
	p, err := makePlan(cfg, answer)
	if err != nil {
		return nil, fmt.Errorf("IPAM plugin %q: %w", req.IPAM, err)
	}
	if err := refuseAddresses(s, p); err != nil {
		return nil, err
	}
	p.Result.Interfaces = s.Interfaces()
	s.Req.Step("raise the host end")
	if err := raiseHostEnd(s, p); err != nil {
		return nil, err
	}
	s.Req.Step("configure the interface")
	if err := iface.Configure(ctx, target(s, p.ContRoutes), p.Result); err != nil {
		return nil, err
	}
	s.Req.Step("route to the container")
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
	return attach.Check(ctx, req, func(s *attach.Call) []error { return verify(ctx, s, cfg) })
}

func reapply(ctx context.Context, req *skel.Request, cfg config) error {
	s, err := attach.Open(req)
	if err != nil {
		return err
	}
	return s.Reapply(ctx, cfg.Masq, 0, true)
}

func restore(ctx context.Context, all []*skel.Request) map[string]error {
	return attach.Restore(ctx, all, func(_ *rtnl.Conn, req *skel.Request) (attach.Masq, error) {
		cfg, err := Plugin().Parse(req)
		return cfg.Masq, err
	})
}

func gc(ctx context.Context, req *skel.Request) error { return attach.GC(ctx, req) }

func list(ctx context.Context, _ *skel.Request) ([]cni.Holding, error) {
	return attach.ListPairs(ctx, false)
}

func status(ctx context.Context, req *skel.Request, cfg config) error {
	return attach.Status(ctx, req, cfg.Masq, func(host *rtnl.Conn) error {
		if err := cfg.Link.ResolveMTU(host); err != nil {
			return err
		}
		if !cfg.Link.Netkit {
			return host.ProbeKind("veth")
		}
		if err := host.ProbeKind("netkit"); err != nil {
			return fmt.Errorf("deviceType: %w", err)
		}
		return nil
	})
}

// refuseAddresses refuses addresses and gateways by which the host would lose its router, another container, or packets
// for itself.
func refuseAddresses(s *attach.Call, p plan) error {
	if err := s.RefuseHostAddresses(p.Result, s.HostEnd, true); err != nil {
		return err
	}
	for _, gw := range p.Gateways {
		if err := errors.Join(s.RefuseRouter(gw), s.RefuseTaken(gw.Addr())); err != nil {
			return err
		}
	}
	for _, r := range p.HostRoutes {
		if err := s.RefuseTaken(r.Dst.Addr()); err != nil {
			return err
		}
	}
	return nil
}

// raiseHostEnd brings the host end up, after what must hold before.
func raiseHostEnd(s *attach.Call, p plan) error {
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
func target(s *attach.Call, routes []rtnl.Route) iface.Target {
	t := s.Target()
	t.NoSubnetRoutes, t.Routes = true, routes
	return t
}

// routeToContainer gives the host end the gateway addresses, and the host a
// route to each address of the container.
func routeToContainer(s *attach.Call, p plan) error {
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

// verify compares everything that ADD made, on both sides, with what is
// there, and returns each difference.
func verify(ctx context.Context, s *attach.Call, cfg config) []error {
	own := &cni.Result{IPs: s.Req.PrevResult.ContainerIPs(s.Req.IfName)}
	if len(own.IPs) == 0 {
		return []error{cni.Drift("prevResult: has no address of interface %q", s.Req.IfName)}
	}
	p, err := makePlan(cfg, own)
	if err != nil {
		return []error{cni.Drift("prevResult: %w", err)}
	}
	if err := s.FindPair(0); err != nil {
		return []error{err}
	}
	if err := s.ExpectMTU(&cfg.Link, func() error { return cfg.Link.ResolveMTU(s.Host) }); err != nil {
		return []error{err}
	}
	inside := iface.Verify(target(s, p.ContRoutes), s.Req.PrevResult)
	return append([]error{inside, s.VerifyMasquerade(ctx, cfg.Masq)}, verifyHost(s, cfg, p)...)
}

// verifyHost looks for what raiseHostEnd and routeToContainer made.
func verifyHost(s *attach.Call, cfg config, p plan) []error {
	var errs []error
	drift := func(format string, args ...any) {
		errs = append(errs, cni.Drift("host interface %q: %s", s.HostEnd.Name, fmt.Sprintf(format,
			args...)))
	}
	if !s.HostEnd.Up {
		drift("is down")
	}
	if want := wantedMTU(s, cfg); want != 0 && want != s.HostEnd.MTU {
		drift("MTU is %d instead of %d", s.HostEnd.MTU, want)
	}
	addrs, err := s.Host.Addrs(s.HostEnd.Index)
	if err != nil {
		return append(errs, err)
	}
	for _, gw := range p.Gateways {
		if !slices.ContainsFunc(addrs, func(h rtnl.Addr) bool { return h.Prefix == gw }) {
			drift("gateway address %s is missing", gw)
		}
		errs = append(errs, iface.VerifyForwarding(gw.Addr().Is4()))
	}
	routes, err := s.Host.Routes(s.HostEnd.Index, unix.AF_UNSPEC)
	if err != nil {
		return append(errs, err)
	}
	for _, want := range p.HostRoutes {
		if !slices.ContainsFunc(routes, func(h rtnl.Route) bool { return isHostRoute(h, want) }) {
			drift("the host's route to %s is missing", want.Dst)
		}
	}
	return errs
}

// wantedMTU is the host end's as ADD reported it, or as the configuration says:
// results before 1.0.0 have none. 0 is unknown.
func wantedMTU(s *attach.Call, cfg config) int {
	for _, i := range s.Req.PrevResult.Interfaces {
		if i.Name == s.HostEnd.Name && i.Sandbox == "" {
			return cmp.Or(i.MTU, cfg.Link.MTU)
		}
	}
	return cfg.Link.MTU
}

func isHostRoute(have, want rtnl.Route) bool {
	return have.Dst == want.Dst && have.Type == unix.RTN_UNICAST && have.Table == unix.RT_TABLE_MAIN &&
		!have.GW.IsValid()
}
