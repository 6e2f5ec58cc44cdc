package iface

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// wanted is what a result asks of one interface.
type wanted struct {
	self   *cni.Interface // the result's entry for it; nil = none
	addrs  []netip.Prefix
	routes []route
	v6     bool
}

// route is a route. Its table is 0 where the result names none, or main: then it may be in any table, since a later
// plugin (sbr, vrf) may have moved it.
type route struct {
	rtnl.Route
	scoped bool // its scope was asked for
}

func wantedOf(t Target, res *cni.Result) (w wanted) {
	if self, ok := res.ContainerInterface(t.Name); ok {
		w.self = &self
	}
	for _, ip := range res.ContainerIPs(t.Name) {
		w.addrs = append(w.addrs, ip.Address)
		w.v6 = w.v6 || ip.Address.Addr().Is6()
	}
	for _, r := range t.Routes {
		r.Dst = r.Dst.Masked()
		w.routes = append(w.routes, route{Route: r, scoped: r.Dst.Addr().Is4()})
	}
	for _, r := range res.Routes {
		w.routes = append(w.routes, newRoute(r, res))
		w.v6 = w.v6 || r.Dst.Addr().Is6()
	}
	return w
}

func newRoute(r cni.Route, res *cni.Result) route {
	out := route{
		Route: rtnl.Route{
			Dst: r.Dst.Masked(), GW: r.GW, MTU: r.MTU, AdvMSS: r.AdvMSS,
			Priority: r.Priority,
		},
		scoped: r.Scope != nil,
	}
	if r.Scope != nil {
		out.Scope = *r.Scope
	}
	if !r.InMain() {
		out.Table = *r.Table
	}
	// A destination on the link, or on the host itself, is not behind a gateway.
	if !r.GW.IsValid() && out.Scope < unix.RT_SCOPE_LINK {
		out.GW = res.Gateway(r.Dst.Addr().Is4())
	}
	if !out.GW.IsValid() && r.Scope == nil {
		out.Scope = unix.RT_SCOPE_LINK
	}
	if r.Dst.Addr().Is6() {
		out.Scope, out.scoped = 0, false // the kernel keeps none for IPv6
	}
	return out
}

func (r route) family() int {
	if r.Dst.Addr().Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// verify returns nil when the route is among have, else the differences of the
// route that is nearest to it.
func (r route) verify(have []rtnl.Route) error {
	var nearest []string
	for _, h := range have {
		if h.Type != unix.RTN_UNICAST || h.Dst != r.Dst || r.Table != 0 && r.Table != h.Table {
			continue
		}
		d := r.differences(h)
		if len(d) == 0 {
			return nil
		}
		if nearest == nil || len(d) < len(nearest) {
			nearest = d
		}
	}
	switch {
	case nearest != nil:
		return errors.New(strings.Join(nearest, ", "))
	case r.Table != 0:
		return fmt.Errorf("missing in table %d", r.Table)
	}
	return errors.New("missing")
}

// differences names the values of the kernel's route that are not those asked
// for.
func (r route) differences(have rtnl.Route) []string {
	var d []string
	noGateway := !have.GW.IsValid() && r.GW.IsUnspecified() // 0.0.0.0 asks for none
	if have.GW != r.GW && !noGateway {
		d = append(d, fmt.Sprintf("gateway is %s instead of %s", or(have.GW, "none"), or(r.GW, "none")))
	}
	if r.Src.IsValid() && have.Src != r.Src {
		d = append(d, fmt.Sprintf("source is %s instead of %s", or(have.Src, "none"), r.Src))
	}
	number := func(name string, asked bool, want, is int64) {
		if asked && want != is {
			d = append(d, fmt.Sprintf("%s is %d instead of %d", name, is, want))
		}
	}
	number("mtu", r.MTU != 0, int64(r.MTU), int64(have.MTU))
	number("advmss", r.AdvMSS != 0, int64(r.AdvMSS), int64(have.AdvMSS))
	number("priority", r.Priority != 0, int64(r.Priority), int64(have.Priority))
	number("scope", r.scoped, int64(r.Scope), int64(have.Scope))
	return d
}

func or(ip netip.Addr, none string) string {
	if ip.IsValid() {
		return ip.String()
	}
	return none
}
