package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// verify compares everything that ADD made, on both sides, with what is
// there, and returns each difference.
func verify(ctx context.Context, s *attach.Session, cfg config) []error {
	own := &cni.Result{IPs: s.PrevResult.ContainerIPs(s.IfName)}
	if len(own.IPs) == 0 {
		return []error{cni.Drift("prevResult: has no address of interface %q", s.IfName)}
	}
	p, err := makePlan(cfg, own)
	if err != nil {
		return []error{cni.Drift("prevResult: %w", err)}
	}
	if err := s.FindPair(0); err != nil {
		return []error{err}
	}
	inside := iface.Verify(target(s, p.ContRoutes), s.PrevResult)
	return append([]error{inside, s.VerifyMasquerade(ctx, cfg.Masq)}, verifyHost(s, cfg, p)...)
}

// verifyHost looks for what raiseHostEnd and routeToContainer made.
func verifyHost(s *attach.Session, cfg config, p plan) []error {
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
func wantedMTU(s *attach.Session, cfg config) int {
	for _, i := range s.PrevResult.Interfaces {
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
