package sbr

import (
	"cmp"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const (
	firstTable    = 100  // lowest number of a new table, as in the reference
	defaultMetric = 1024 // metric that the kernel assigns to an IPv6 route without one
)

type address struct {
	Prefix       netip.Prefix // with its host bits
	Gateway      netip.Addr   // zero: unknown; unspecified: all destinations are on the link
	IsConfigured bool         // the gateway is from the configuration
	Default      cni.Route    // the result's default route of this family in the main table; zero: none
}

func (a address) is4() bool { return a.Prefix.Addr().Is4() }

// host returns the address as a prefix of full length, the form in a rule.
func (a address) host() netip.Prefix {
	return netip.PrefixFrom(a.Prefix.Addr(), a.Prefix.Addr().BitLen())
}

// routing is the state of the namespace that a plan depends on.
type routing struct {
	Link   int // index of the interface
	Rules  []rtnl.Rule
	Routes []rtnl.RouteCopy // of all links and tables
}

// route is a route of the main table, reduced to the next hops through the interface.
type route struct {
	rtnl.Route                // with the first of several next hops
	copy       rtnl.RouteCopy // with all attributes
	// isKept is true if the route must stay in the main table, because the kernel could delete it only together with
	// next hops through other interfaces.
	isKept bool
}

// mainRoutes returns the interface's unicast routes of the main table. Routes without a gateway come first, because the
// kernel accepts a gateway only if it has a route to it.
func (s routing) mainRoutes() []route {
	var direct, viaGateway []route
	for _, whole := range s.Routes {
		own, ok := whole.HopsThrough(s.Link)
		if !ok || whole.Table() != unix.RT_TABLE_MAIN || whole.Header.Type != unix.RTN_UNICAST {
			continue
		}
		_, shared := whole.HopsNotThrough(s.Link)
		r := route{own.Route(), own, shared && whole.Header.Family == unix.AF_INET}
		if own.HasGateway() {
			viaGateway = append(viaGateway, r)
		} else {
			direct = append(direct, r)
		}
	}
	return append(direct, viaGateway...)
}

// plan lists the rules and routes that an ADD creates and removes.
type plan struct {
	Rules    []rtnl.Rule      `json:"rules"`
	Copies   []rtnl.RouteCopy `json:"copies,omitempty"`   // copies in the new tables; routes without a gateway come first
	Defaults []rtnl.Route     `json:"defaults,omitempty"` // default routes of the new tables
	Moved    []rtnl.RouteCopy `json:"moved,omitempty"`    // routes removed from the main table
	Hints    []rtnl.Route     `json:"hints,omitempty"`    // routes added to the main table
}

// makePlan assigns a table to each address and decides which routes it contains.
func makePlan(cfg config, addrs []address, state routing) (p plan) {
	table, next := uint32(firstTable), state.priorities()
	for _, a := range addrs {
		if next[a.is4()] > 0 {
			next[a.is4()]--
		}
		rule := rtnl.Rule{Src: a.host(), Table: cfg.Table, Priority: next[a.is4()]}
		if cfg.Table == 0 {
			rule.Table = rtnl.FreeTable(table, state.Rules, state.Routes)
			table = rule.Table + 1
			p.addTable(a, addrs, state, rule.Table)
		}
		p.Rules = append(p.Rules, rule)
	}
	if cfg.Table != 0 {
		return p
	}
	if cfg.SourceHints {
		p.Hints = sourceHints(addrs, state.Link)
	}
	for _, r := range state.mainRoutes() {
		isHint := slices.ContainsFunc(p.Hints, func(h rtnl.Route) bool { return h.Dst == r.Dst })
		if !r.isKept && (!cfg.SourceHints || r.Scope != unix.RT_SCOPE_LINK || isHint) {
			p.Moved = append(p.Moved, r.copy)
		}
	}
	return p
}

// priorities returns the priority of the second rule of each family; the key is true for IPv4. Like the kernel, which
// inserts a rule without a priority just before the second one, makePlan counts down from it.
func (s routing) priorities() map[bool]uint32 {
	second, seen := map[bool]uint32{}, map[bool]int{}
	for _, r := range s.Rules {
		is4 := r.Src.Addr().Is4()
		if seen[is4]++; seen[is4] == 2 {
			second[is4] = r.Priority
		}
	}
	return second
}

// addTable plans the table of an address. It contains copies of the main table's routes that belong to this address or
// to no address, and a default route. The default route is the first of these that exists: a copy of the
// address's own default route in the main table; a copy of another address's, with the gateway replaced; a new route
// with the metrics of the result's default route.
func (p *plan) addTable(a address, all []address, state routing, table uint32) {
	var own, others []rtnl.RouteCopy // default routes of this address and of others
	isReachable := false             // a copied route reaches the gateway
	def := defaultRoute(a, state.Link, table)
	for _, r := range state.mainRoutes() {
		c, isOwn := copyFor(r, a, all, table), needsCopy(r.Route, a, all)
		switch isDefault := r.Dst == def.Dst && c.Header.Tos == 0; {
		case isDefault && isOwn:
			own = append(own, c)
		case isDefault:
			others = append(others, c)
		case isOwn:
			p.Copies = append(p.Copies, c)
			isReachable = isReachable || !c.HasGateway() && r.Dst.Contains(a.Gateway)
		}
	}
	def.OnLink = def.GW.IsValid() && !isReachable
	isBorrowed := len(own) == 0 && a.Gateway.IsValid()
	if isBorrowed && len(others) > 0 {
		own = others[:1] // for its metrics; the gateway is replaced below
	}
	for _, c := range own {
		if a.IsConfigured || isBorrowed {
			c = c.WithGateway(def.GW, def.OnLink)
		}
		p.Copies = append(p.Copies, c)
	}
	if len(own) == 0 && a.Gateway.IsValid() {
		p.Defaults = append(p.Defaults, def)
	}
}

// needsCopy reports whether the table of a needs a copy of a route of the main table: the route belongs to a, or it
// belongs to no address and has the family of a. As in the reference, a route of a family without addresses is copied
// to every table.
func needsCopy(r rtnl.Route, a address, all []address) bool {
	if slices.ContainsFunc(all, func(o address) bool { return o.owns(r) }) {
		return a.owns(r)
	}
	isOfFamily := func(o address) bool { return o.is4() == r.Dst.Addr().Is4() }
	return isOfFamily(a) || !slices.ContainsFunc(all, isOfFamily)
}

// owns reports whether the route belongs to the address: it has the address as its source, or its destination or its
// gateway is in the address's subnet.
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

// copyFor returns the copy of a route for the table of a. A source that is another address is replaced or removed.
func copyFor(r route, a address, all []address, table uint32) rtnl.RouteCopy {
	c := r.copy.WithTable(table)
	if !slices.ContainsFunc(all, func(o address) bool { return o != a && o.Prefix.Addr() == r.Src }) {
		return c
	}
	if !r.GW.IsValid() && r.Dst == a.Prefix.Masked() {
		return c.WithSource(a.Prefix.Addr())
	}
	return c.WithSource(netip.Addr{})
}

// defaultRoute returns the default route through the gateway of a, with the metrics of the result's default route.
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

// sourceHints returns routes to the subnets for the main table. They give packets a source address.
func sourceHints(addrs []address, link int) (hints []rtnl.Route) {
	for _, a := range addrs {
		// Only the protocol distinguishes it from the kernel's own route.
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

// addressesOf returns the interface's addresses in prevResult. The gateway of an address is the configured one,
// otherwise the address's gateway in prevResult, otherwise that of the default route of its family. Without addresses,
// the error has code 7.
func addressesOf(cfg config, req *skel.Request) (addrs []address, err error) {
	for _, ip := range req.PrevResult.ContainerIPs(req.IfName) {
		a := address{Prefix: ip.Address, Gateway: cfg.Gateways[ip.Address.Addr().Is4()]}
		if a.IsConfigured = a.Gateway.IsValid(); !a.IsConfigured {
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
		err = cni.Errorf(cni.CodeConfig, "prevResult: has no address of interface %q", req.IfName)
	}
	return addrs, err
}

// isDefault reports whether a route of the result is a default route of the family in the main table.
func isDefault(r cni.Route, is4 bool) bool {
	return r.Dst.Bits() == 0 && r.Dst.Addr().Is4() == is4 && r.InMain()
}

// withGateways returns a copy of the result whose default routes have the configured gateways, for later plugins.
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
