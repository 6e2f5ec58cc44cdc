package sbr

import (
	"cmp"
	"net/netip"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const (
	// firstTable is the first number that may be that of a new table, as with the reference.
	firstTable = 100
	// defaultMetric is what the kernel gives to an IPv6 route without a metric.
	defaultMetric = 1024
)

// address is an address of the interface.
type address struct {
	Prefix  netip.Prefix // host bits kept
	Gateway netip.Addr   // zero = none is known; unspecified = everything is on the link
	Asked   bool         // the configuration names the gateway
	Default cni.Route    // of its family in the main table, as the result has it; zero = none
}

func (a address) is4() bool { return a.Prefix.Addr().Is4() }

// host is the address alone, as a rule has it.
func (a address) host() netip.Prefix {
	return netip.PrefixFrom(a.Prefix.Addr(), a.Prefix.Addr().BitLen())
}

// routing is what the plan depends on in the namespace.
type routing struct {
	Link   int // the interface's index
	Rules  []rtnl.Rule
	Routes []rtnl.RouteCopy // of all links and tables
}

// route is a route of the main table, with those next hops alone that are the interface's.
type route struct {
	rtnl.Route                // as a Route, of several next hops the first
	copy       rtnl.RouteCopy // whole
	// stays says that the main table keeps the route: the kernel would delete it with the hops of other interfaces.
	stays bool
}

// mainRoutes are the interface's unicast routes of the main table, those without gateway first: the kernel needs the
// way to a gateway.
func (f routing) mainRoutes() (routes []route) {
	for _, whole := range f.Routes {
		own, ok := whole.HopsOf(f.Link)
		if !ok || whole.Table() != unix.RT_TABLE_MAIN || whole.Header.Type != unix.RTN_UNICAST {
			continue
		}
		_, shared := whole.OtherHops(f.Link)
		routes = append(routes, route{own.Route(), own, shared && whole.Header.Family == unix.AF_INET})
	}
	sort.SliceStable(routes, func(i, j int) bool { return rtnl.GatewaysLast(routes[i].copy, routes[j].copy) < 0 })
	return routes
}

// plan is what an ADD makes and takes away.
type plan struct {
	Rules    []rtnl.Rule      `json:"rules"`
	Copies   []rtnl.RouteCopy `json:"copies,omitempty"`   // of routes, for the tables; those to a gateway come first
	Defaults []rtnl.Route     `json:"defaults,omitempty"` // the tables' default routes
	Moved    []rtnl.RouteCopy `json:"moved,omitempty"`    // routes that leave the main table
	Hints    []rtnl.Route     `json:"hints,omitempty"`    // routes that the main table gets
}

// makePlan decides which tables the addresses get and what is in them.
func makePlan(cfg config, addrs []address, here routing) (p plan) {
	table, next := uint32(firstTable), here.priorities()
	for _, a := range addrs {
		if next[a.is4()] > 0 {
			next[a.is4()]--
		}
		rule := rtnl.Rule{Src: a.host(), Table: cfg.Table, Priority: next[a.is4()]}
		if cfg.Table == 0 {
			rule.Table = rtnl.FreeTable(table, here.Rules, here.Routes)
			table = rule.Table + 1
			p.addTable(a, addrs, here, rule.Table)
		}
		p.Rules = append(p.Rules, rule)
	}
	if cfg.Table != 0 {
		return p
	}
	if cfg.SourceHints {
		p.Hints = sourceHints(addrs, here.Link)
	}
	for _, r := range here.mainRoutes() {
		isHint := slices.ContainsFunc(p.Hints, func(h rtnl.Route) bool { return h.Dst == r.Dst })
		if !r.stays && (!cfg.SourceHints || r.Scope != unix.RT_SCOPE_LINK || isHint) {
			p.Moved = append(p.Moved, r.copy)
		}
	}
	return p
}

// priorities returns, by "is IPv4", what the second rule of each family has. The kernel puts a new rule just before it.
func (f routing) priorities() map[bool]uint32 {
	second, seen := map[bool]uint32{}, map[bool]int{}
	for _, r := range f.Rules {
		is4 := r.Src.Addr().Is4()
		if seen[is4]++; seen[is4] == 2 {
			second[is4] = r.Priority
		}
	}
	return second
}

// addTable plans an address's table: copies of the main table's routes that are the address's or nobody's, and a
// default route. That is a copy of the interface's own in the main table; else one with the metrics of another
// address's default route, or of the result's.
func (p *plan) addTable(a address, all []address, here routing, table uint32) {
	var own, others []rtnl.RouteCopy // default routes
	leads := false
	def := defaultRoute(a, here.Link, table)
	for _, r := range here.mainRoutes() {
		c, isOwn := copyFor(r, a, all, table), isFor(r.Route, a, all)
		switch isDefault := r.Dst == def.Dst && c.Header.Tos == 0; {
		case isDefault && isOwn:
			own = append(own, c)
		case isDefault:
			others = append(others, c)
		case isOwn:
			p.Copies = append(p.Copies, c)
			leads = leads || !c.HasGateway() && r.Dst.Contains(a.Gateway)
		}
	}
	def.OnLink = def.GW.IsValid() && !leads
	isBorrowed := len(own) == 0 && a.Gateway.IsValid()
	if isBorrowed && len(others) > 0 {
		own = others[:1] // its metrics, our gateway
	}
	for _, c := range own {
		if a.Asked || isBorrowed {
			c = c.ViaGateway(def.GW, def.OnLink)
		}
		p.Copies = append(p.Copies, c)
	}
	if len(own) == 0 && a.Gateway.IsValid() {
		p.Defaults = append(p.Defaults, def)
	}
}

// isFor says whether a route of the main table belongs into the table of a: one that is the address's own, or no
// address's and of its family. A route of a family without an address goes into every table, as with the reference.
func isFor(r rtnl.Route, a address, all []address) bool {
	if slices.ContainsFunc(all, func(o address) bool { return o.owns(r) }) {
		return a.owns(r)
	}
	isOfFamily := func(o address) bool { return o.is4() == r.Dst.Addr().Is4() }
	return isOfFamily(a) || !slices.ContainsFunc(all, isOfFamily)
}

// owns says whether the route has the address as its source, or leads to its subnet or through a gateway there.
func (a address) owns(r rtnl.Route) bool {
	switch {
	case !r.GW.IsValid() && r.Dst == a.Prefix.Masked():
		return true
	case r.Src.IsValid():
		return r.Src == a.Prefix.Addr()
	case r.GW.IsValid():
		return a.Prefix.Contains(r.GW)
	}
	return a.Prefix.Bits() <= r.Dst.Bits() && a.Prefix.Contains(r.Dst.Addr())
}

// copyFor is the route in the table of a, where the source address of another one does not fit.
func copyFor(r route, a address, all []address, table uint32) rtnl.RouteCopy {
	c := r.copy.InTable(table)
	if !slices.ContainsFunc(all, func(o address) bool { return o != a && o.Prefix.Addr() == r.Src }) {
		return c
	}
	if !r.GW.IsValid() && r.Dst == a.Prefix.Masked() {
		return c.WithSource(a.Prefix.Addr())
	}
	return c.WithSource(netip.Addr{})
}

func defaultRoute(a address, link int, table uint32) rtnl.Route {
	r := rtnl.Route{Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0), GW: a.Gateway, OutIndex: link, Table: table,
		MTU: a.Default.MTU, AdvMSS: a.Default.AdvMSS, Priority: a.Default.Priority}
	if a.Gateway.IsUnspecified() {
		r.GW = netip.Addr{}
	}
	if !a.is4() {
		r.Dst, r.Priority = netip.PrefixFrom(netip.IPv6Unspecified(), 0), cmp.Or(r.Priority, defaultMetric)
	}
	return r
}

// sourceHints are routes to the subnets in the main table, which give a source address to what has none yet.
func sourceHints(addrs []address, link int) (hints []rtnl.Route) {
	for _, a := range addrs {
		// The protocol tells it from the kernel's own, which is equal otherwise.
		h := rtnl.Route{Dst: a.Prefix.Masked(), Src: a.Prefix.Addr(), OutIndex: link, Table: unix.RT_TABLE_MAIN,
			Protocol: unix.RTPROT_BOOT}
		if a.is4() {
			h.Scope = unix.RT_SCOPE_LINK
		} else {
			h.Priority = defaultMetric
		}
		if !slices.ContainsFunc(hints, func(o rtnl.Route) bool { return o.Dst == h.Dst }) {
			hints = append(hints, h)
		}
	}
	return hints
}

// addressesOf are the interface's addresses in the result of the chain, which get a rule each, with their gateways: the
// configuration's, else the address's own, else that of a default route of the family.
func addressesOf(cfg config, req *skel.Request) (addrs []address, err error) {
	for _, ip := range req.PrevResult.ContainerIPs(req.IfName) {
		a := address{Prefix: ip.Address, Gateway: cfg.Gateways[ip.Address.Addr().Is4()]}
		if a.Asked = a.Gateway.IsValid(); !a.Asked {
			a.Gateway = ip.Gateway
		}
		for _, r := range slices.Backward(req.PrevResult.Routes) {
			if isDefault(r, a.is4()) {
				a.Default = r
			}
		}
		if !a.Gateway.IsValid() {
			a.Gateway = a.Default.GW
		}
		addrs = append(addrs, a)
	}
	if len(addrs) == 0 {
		err = cni.Errorf(cni.CodeConfig, "prevResult: no address of the interface %q to route by", req.IfName)
	}
	return addrs, err
}

// isDefault says whether a route of the result is the main table's default route of the family.
func isDefault(r cni.Route, is4 bool) bool {
	return r.Dst.Bits() == 0 && r.Dst.Addr().Is4() == is4 && r.InMain()
}

// withGateways is the result with the configuration's gateways in its default routes, which other plugins of the chain
// check.
func (cfg config) withGateways(res *cni.Result) *cni.Result {
	res = res.Clone()
	for i, r := range res.Routes {
		gw := cfg.Gateways[r.Dst.Addr().Is4()]
		if cfg.Table == 0 && gw.IsValid() && isDefault(r, gw.Is4()) {
			res.Routes[i].GW, res.Routes[i].Scope = gw, nil
		}
	}
	return res
}
