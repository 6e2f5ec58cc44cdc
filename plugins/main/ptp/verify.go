package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// verify compares everything that ADD made, on both sides, with what is
// there, and returns each difference.
func (a *attachment) verify(ctx context.Context) []error {
	if _, ok := a.PrevResult.ContainerInterface(a.IfName); !ok {
		return []error{cni.Errorf(cni.CodeDrift, "prevResult: has no interface %q in a container", a.IfName)}
	}
	own := &cni.Result{IPs: a.PrevResult.ContainerIPs(a.IfName)}
	if len(own.IPs) == 0 {
		return []error{cni.Errorf(cni.CodeDrift, "prevResult: has no address of interface %q", a.IfName)}
	}
	p, err := makePlan(a.cfg, own)
	if err != nil {
		return []error{cni.Errorf(cni.CodeDrift, "prevResult: %w", err)}
	}
	if err := a.findLinks(); err != nil {
		return []error{err}
	}
	errs := []error{iface.Drifted(iface.Verify(a.target(p.visible()), a.PrevResult))}
	errs = append(errs, a.verifyHost(p)...)
	if a.cfg.Masq {
		errs = append(errs, iface.Drifted(masq.Check(ctx, a.nf, masq.Config{
			Attachment: a.Attachment, Backend: a.cfg.MasqBackend, Addrs: cni.Addresses(own.IPs),
		})))
	}
	return errs
}

// visible are the container's routes with what the kernel shows of them: of an
// IPv6 route with several next hops, as two attachments to one subnet make it,
// one source for all.
func (p plan) visible() []rtnl.Route {
	out := slices.Clone(p.ContRoutes)
	for i, r := range out {
		if r.GW.Is6() {
			out[i].Src = netip.Addr{}
		}
	}
	return out
}

func (a *attachment) findLinks() error {
	var err error
	if a.contEnd, err = a.cont.Link(a.IfName); err != nil {
		return iface.Drifted(fmt.Errorf("container: %w", err))
	}
	a.hostEnd, err = iface.FindHostEnd(a.host, a.Attachment)
	if errors.Is(err, rtnl.ErrNoLink) { // made by other software, perhaps
		a.hostEnd, err = iface.Search{Host: a.host, Master: iface.NoMaster}.PeerOf(a.contEnd)
	}
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return cni.Errorf(cni.CodeDrift, "interface %q: has no host end", a.IfName)
	case err != nil:
		return err
	case a.hostEnd.Peer != a.contEnd.Index:
		return cni.Errorf(cni.CodeDrift, "interface %q: is not the other end of host interface %q", a.IfName, a.hostEnd.Name)
	}
	return nil
}

// verifyHost looks for what setUpHost made.
func (a *attachment) verifyHost(p plan) []error {
	var errs []error
	drift := func(format string, args ...any) {
		errs = append(errs, cni.Errorf(cni.CodeDrift, "host interface %q: %s", a.hostEnd.Name, fmt.Sprintf(format, args...)))
	}
	if !a.hostEnd.Up {
		drift("is down")
	}
	if want := a.wantedMTU(); want != 0 && want != a.hostEnd.MTU {
		drift("MTU is %d instead of %d", a.hostEnd.MTU, want)
	}
	addrs, err := a.host.Addrs(a.hostEnd.Index)
	if err != nil {
		return append(errs, err)
	}
	for _, gw := range p.Gateways {
		if !slices.ContainsFunc(addrs, func(h rtnl.Addr) bool { return h.Prefix == gw }) {
			drift("gateway address %s is missing", gw)
		}
		errs = append(errs, iface.VerifyForwarding(gw.Addr().Is4()))
	}
	routes, err := a.host.Routes(a.hostEnd.Index, unix.AF_UNSPEC)
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
func (a *attachment) wantedMTU() int {
	for _, i := range a.PrevResult.Interfaces {
		if i.Name == a.hostEnd.Name && i.Sandbox == "" {
			return cmp.Or(i.MTU, a.cfg.MTU)
		}
	}
	return a.cfg.MTU
}

func isHostRoute(have, want rtnl.Route) bool {
	return have.Dst == want.Dst && have.Type == unix.RTN_UNICAST && have.Table == unix.RT_TABLE_MAIN && !have.GW.IsValid()
}
