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

type wireConfig struct {
	skel.LogKey
	attach.MasqKeys
	DeviceType string              `json:"deviceType" help:"kind of the pair: veth or netkit" default:"veth" schema:"enum=veth|netkit"`
	IPAM       attach.RequiredIPAM `json:"ipam" help:"the IPAM plugin's part; required" schema:"required"`
	attach.MTUKeys
	attach.LinkKeys
}

type config struct {
	Link attach.LinkConfig
	Masq attach.Masq
}

func parseConfig(req *skel.Request, w wireConfig, problems *cni.Problems) config {
	problems.Add(w.IPAM.Check("ptp needs an IPAM plugin", "host-local"))
	c := config{Masq: w.MasqKeys.Parse(problems),
		Link: w.LinkKeys.Parse(problems, w.MTUKeys, cni.PairsOf(req.Args, "MAC"), "")}
	c.Link.Netkit = w.DeviceType == "netkit"
	if !c.Link.Netkit && w.DeviceType != "veth" {
		problems.Add(cni.Refuse("deviceType", w.DeviceType, `is neither "veth" nor "netkit"`))
	}
	return c
}

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	c, err := attach.Open(req)
	if err != nil {
		return nil, err
	}
	if err := cfg.Link.ResolveMTU(c.Host); err != nil {
		return nil, err
	}
	err = c.CreatePair(ctx, cfg.Link)
	if cfg.Link.Netkit && errors.Is(err, unix.EOPNOTSUPP) {
		err = cni.Errorf(cni.CodeUnsupportedField, "deviceType: %w", err)
	}
	if err != nil {
		return nil, err
	}
	if err := c.StartIPAM(ctx); err != nil {
		return nil, err
	}
	if err := c.MarkHostEnd(0); err != nil {
		return nil, err
	}
	c.Req.Step("raise the interface")
	if err := iface.Raise(target(c, nil)); err != nil {
		return nil, err
	}
	answer, err := c.IPAMResult(ctx)
	if err != nil {
		return nil, err
	}
	p, err := makePlan(cfg, answer)
	if err != nil {
		return nil, fmt.Errorf("IPAM plugin %q: %w", req.IPAM, err)
	}
	if err := refuseAddresses(c, p); err != nil {
		return nil, err
	}
	p.Result.Interfaces = c.Interfaces()
	c.Req.Step("raise the host end")
	if err := raiseHostEnd(c, p); err != nil {
		return nil, err
	}
	c.Req.Step("configure the interface")
	if err := iface.Configure(ctx, target(c, p.ContRoutes), p.Result); err != nil {
		return nil, err
	}
	c.Req.Step("route to the container")
	if err := routeToContainer(c, p); err != nil {
		return nil, err
	}
	if err := c.Masquerade(ctx, cfg.Masq, p.Result); err != nil {
		return nil, err
	}
	return p.Result, c.WaitUp(ctx, p.Result, attach.Gateway{Link: c.HostEnd, Addrs: p.Gateways})
}

func del(ctx context.Context, req *skel.Request) error { return attach.Del(ctx, req, "") }

func check(ctx context.Context, req *skel.Request, cfg config) error {
	return attach.Check(ctx, req, func(c *attach.Call) []error { return verify(ctx, c, cfg) })
}

func reapply(ctx context.Context, req *skel.Request, cfg config) error {
	c, err := attach.Open(req)
	if err != nil {
		return err
	}
	return c.Reapply(ctx, cfg.Masq, 0, true)
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

// refuseAddresses refuses addresses and gateways with which the host could no longer reach its router or another
// container, or would lose packets to itself.
func refuseAddresses(c *attach.Call, p plan) error {
	if err := c.RefuseHostAddresses(p.Result, c.HostEnd, true); err != nil {
		return err
	}
	for _, gw := range p.Gateways {
		if err := errors.Join(c.RefuseRouter(gw), c.RefuseUsedAddress(gw.Addr())); err != nil {
			return err
		}
	}
	for _, r := range p.HostRoutes {
		if err := c.RefuseUsedAddress(r.Dst.Addr()); err != nil {
			return err
		}
	}
	return nil
}

// raiseHostEnd sets the host end's IPv6 sysctls, which must be set while it is down, and brings it up.
func raiseHostEnd(c *attach.Call, p plan) error {
	if slices.ContainsFunc(p.Gateways, func(gw netip.Prefix) bool { return gw.Addr().Is6() }) {
		// The host may have IPv6 turned off by default.
		if err := iface.EnableIPv6(c.HostEnd.Name); err != nil {
			return err
		}
		// Only the container is on this link, so that duplicate address detection is not needed.
		if err := c.Tolerate(iface.SkipDAD(c.HostEnd.Name)); err != nil {
			return err
		}
	}
	return c.Host.SetLink(c.HostEnd.Index, rtnl.LinkChange{Up: new(true)})
}

// target returns the container's interface for package iface. The kernel must not add a route to the subnet, because
// the container reaches its subnet through the gateway.
func target(c *attach.Call, routes []rtnl.Route) iface.Target {
	t := c.Target()
	t.NoSubnetRoutes, t.Routes = true, routes
	return t
}

// routeToContainer adds the gateway addresses to the host end, enables forwarding, and adds the host's routes.
func routeToContainer(c *attach.Call, p plan) error {
	for _, gw := range p.Gateways {
		if err := c.Host.AddAddr(c.HostEnd.Index, rtnl.Addr{Prefix: gw, NoDAD: gw.Addr().Is6()}); err != nil {
			return err
		}
		if err := iface.EnableForwarding(gw.Addr().Is4()); err != nil {
			return err
		}
	}
	for _, r := range p.HostRoutes {
		r.OutIndex = c.HostEnd.Index
		if err := c.Host.AddRoute(r); err != nil {
			return fmt.Errorf("host interface %q: %w", c.HostEnd.Name, err)
		}
	}
	return nil
}

// verify compares the container and the host with what ADD configured, and returns all differences.
func verify(ctx context.Context, c *attach.Call, cfg config) []error {
	answer := &cni.Result{IPs: c.Req.PrevResult.ContainerIPs(c.Req.IfName)}
	if len(answer.IPs) == 0 {
		return []error{cni.Drift("prevResult: has no address of interface %q", c.Req.IfName)}
	}
	p, err := makePlan(cfg, answer)
	if err != nil {
		return []error{cni.Drift("prevResult: %w", err)}
	}
	if err := c.FindPair(0); err != nil {
		return []error{err}
	}
	if err := c.ExpectMTU(&cfg.Link, func() error { return cfg.Link.ResolveMTU(c.Host) }); err != nil {
		return []error{err}
	}
	insideErr := iface.Verify(target(c, p.ContRoutes), c.Req.PrevResult)
	return append([]error{insideErr, c.VerifyMasquerade(ctx, cfg.Masq)}, verifyHost(c, cfg, p)...)
}

// verifyHost compares the host with what raiseHostEnd and routeToContainer configured.
func verifyHost(c *attach.Call, cfg config, p plan) []error {
	var errs []error
	drift := func(format string, args ...any) {
		errs = append(errs, cni.Drift("host interface %q: %s", c.HostEnd.Name, fmt.Sprintf(format, args...)))
	}
	if !c.HostEnd.Up {
		drift("is down")
	}
	if want := wantedMTU(c, cfg); want != 0 && want != c.HostEnd.MTU {
		drift("MTU is %d instead of %d", c.HostEnd.MTU, want)
	}
	addrs, err := c.Host.Addrs(c.HostEnd.Index)
	if err != nil {
		return append(errs, err)
	}
	for _, gw := range p.Gateways {
		if !slices.ContainsFunc(addrs, func(h rtnl.Addr) bool { return h.Prefix == gw }) {
			drift("gateway address %s is missing", gw)
		}
		errs = append(errs, iface.VerifyForwarding(gw.Addr().Is4()))
	}
	routes, err := c.Host.Routes(c.HostEnd.Index, unix.AF_UNSPEC)
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

// wantedMTU returns the MTU of the host end that ADD reported or, because results before version 1.0.0 have no MTU, the
// configured MTU. It returns 0 if the MTU is unknown.
func wantedMTU(c *attach.Call, cfg config) int {
	for _, i := range c.Req.PrevResult.Interfaces {
		if i.Name == c.HostEnd.Name && i.Sandbox == "" {
			return cmp.Or(i.MTU, cfg.Link.MTU)
		}
	}
	return cfg.Link.MTU
}

// isHostRoute reports whether have, a route of the kernel, is the route want of a plan.
func isHostRoute(have, want rtnl.Route) bool {
	return have.Dst == want.Dst && have.Type == unix.RTN_UNICAST && have.Table == unix.RT_TABLE_MAIN &&
		!have.GW.IsValid()
}
