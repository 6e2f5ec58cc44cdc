package iface

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// Verify compares the interface with the result. It returns all differences joined, with code 101.
func Verify(t Target, res *cni.Result) error {
	want := newWantedState(t, res)
	link, err := t.Conn.Link(t.Name)
	if err != nil {
		return AsDrift(err)
	}
	return AsDrift(errors.Join(slices.Concat(
		verifyLink(t, link, want.self),
		verifyAddrs(t, link, want.addrs),
		verifyRoutes(t, link, want.routes),
	)...))
}

func verifyLink(t Target, link rtnl.Link, want cni.Interface) (diffs []error) {
	addDiff := func(format string, args ...any) {
		diffs = append(diffs, fmt.Errorf("link %q: "+format, append([]any{t.Name}, args...)...))
	}
	if !link.Up {
		addDiff("is down")
	}
	if want.MAC != "" && !strings.EqualFold(want.MAC, link.MAC.String()) {
		addDiff("MAC is %s instead of %s", link.MAC, want.MAC)
	}
	if want.MTU != 0 && want.MTU != link.MTU {
		addDiff("MTU is %d instead of %d", link.MTU, want.MTU)
	}
	return diffs
}

func verifyAddrs(t Target, link rtnl.Link, want []netip.Prefix) (diffs []error) {
	if len(want) == 0 {
		return nil
	}
	have, err := t.Conn.Addrs(link.Index)
	if err != nil {
		return []error{err}
	}
	for _, p := range want {
		i := slices.IndexFunc(have, func(a rtnl.Addr) bool { return a.Prefix == p })
		switch {
		case i < 0:
			diffs = append(diffs, fmt.Errorf("link %q: address %s: missing", t.Name, p))
		case have[i].DADFailed:
			diffs = append(diffs, fmt.Errorf("link %q: address %s: %w", t.Name, p, rtnl.ErrDuplicate))
		}
	}
	return diffs
}

func verifyRoutes(t Target, link rtnl.Link, want []route) (diffs []error) {
	if len(want) == 0 {
		return nil
	}
	family := want[0].family()
	if slices.ContainsFunc(want, func(r route) bool { return r.family() != family }) {
		family = unix.AF_UNSPEC
	}
	have, err := t.Conn.Routes(link.Index, family)
	if err != nil {
		return []error{err}
	}
	for _, r := range want {
		if err := r.verify(have); err != nil {
			diffs = append(diffs, fmt.Errorf("link %q: route %s: %w", t.Name, r, err))
		}
	}
	return diffs
}

// AsDrift returns err with code 101 (drift), unless err is nil or has a code.
func AsDrift(err error) error {
	if err == nil || errors.As(err, new(*cni.Error)) {
		return err
	}
	return cni.Drift("%w", err)
}

// wantedState is the part of a result that one interface must match.
type wantedState struct {
	self   cni.Interface // the result's entry for the interface; zero = none
	addrs  []netip.Prefix
	routes []route
	v6     bool // the interface needs IPv6
}

// route is a wanted route. Table is 0 if the result has no table or the main table. Any table is then accepted.
type route struct {
	rtnl.Route
	hasScope bool // Scope must match
}

func newWantedState(t Target, res *cni.Result) (w wantedState) {
	w.self, _ = res.ContainerInterface(t.Name)
	for _, ip := range res.ContainerIPs(t.Name) {
		w.addrs = append(w.addrs, ip.Address)
		w.v6 = w.v6 || ip.Address.Addr().Is6()
	}
	for _, r := range t.Routes {
		r.Dst = r.Dst.Masked()
		w.routes = append(w.routes, route{Route: r, hasScope: r.Dst.Addr().Is4()})
	}
	for _, r := range res.Routes {
		w.routes = append(w.routes, newRoute(r, res))
		w.v6 = w.v6 || r.Dst.Addr().Is6()
	}
	return w
}

// newRoute returns the wanted route for a route of the result. A route without a gateway gets the result's gateway,
// unless its scope excludes one.
func newRoute(r cni.Route, res *cni.Result) route {
	out := route{
		Route:    rtnl.Route{Dst: r.Dst.Masked(), GW: r.GW, MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority},
		hasScope: r.Scope != nil,
	}
	if r.Scope != nil {
		out.Scope = *r.Scope
	}
	if !r.InMain() {
		out.Table = *r.Table
	}
	// With scope link or host, the destination is not behind a gateway.
	if !r.GW.IsValid() && out.Scope < unix.RT_SCOPE_LINK {
		out.GW = res.Gateway(r.Dst.Addr().Is4())
	}
	if !out.GW.IsValid() && r.Scope == nil {
		out.Scope = unix.RT_SCOPE_LINK
	}
	if r.Dst.Addr().Is6() {
		out.Scope, out.hasScope = 0, false // IPv6 routes have no scope
	}
	return out
}

func (r route) family() int { return rtnl.FamilyOf(r.Dst.Addr()) }

// verify returns nil if have contains the route. Otherwise the error has the differences from the most similar route.
func (r route) verify(have []rtnl.Route) error {
	var nearest []string // differences from the most similar route
	for _, h := range have {
		isOtherTable := r.Table != 0 && r.Table != h.Table
		if h.Type != unix.RTN_UNICAST || h.Dst != r.Dst || isOtherTable {
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

func (r route) differences(have rtnl.Route) (d []string) {
	compare := func(name string, isRelevant bool, want, have any) {
		if isRelevant && want != have {
			d = append(d, fmt.Sprintf("%s is %v instead of %v", name, have, want))
		}
	}
	lacksGateway := !have.GW.IsValid() && r.GW.IsUnspecified() // 0.0.0.0 means no gateway
	compare("gateway", !lacksGateway, addrText(r.GW), addrText(have.GW))
	compare("source", r.Src.Is4(), r.Src, have.Src) // the kernel reports one source for all next hops of an IPv6 route
	compare("mtu", r.MTU != 0, r.MTU, have.MTU)
	compare("advmss", r.AdvMSS != 0, r.AdvMSS, have.AdvMSS)
	compare("priority", r.Priority != 0, r.Priority, have.Priority)
	compare("scope", r.hasScope, r.Scope, have.Scope)
	return d
}

func addrText(ip netip.Addr) string {
	if !ip.IsValid() {
		return "none"
	}
	return ip.String()
}
