package hostdevice

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const (
	// addressTimeout is how long ADD waits for a device's address, for example after a DEL has just brought it home.
	addressTimeout = 5 * time.Second
	// settleTime is how long the network of such a device must stay the same after it got an address: a network manager
	// adds routes and rules after the address.
	settleTime = time.Second
	// routerTimeout is how long a router advertisement may take. Routers answer solicitations within 3.5 seconds
	// (RFC 4861, section 6.2.6), and the kernel repeats a lost solicitation after 4.
	routerTimeout = 10 * time.Second
	// homeDADTimeout is how long duplicate address detection may take on the host. It takes one to two seconds.
	homeDADTimeout = 3 * time.Second
)

// network is the network configuration of a device (key useInterfaceNetwork). The kernel removes addresses and routes
// from a device that moves, so the record has the network before ADD changes anything.
type network struct {
	ReadAt uint32           `json:"read"` // time of reading, in seconds since the boot
	Addrs  []rtnl.AddrCopy  `json:"addrs"`
	Routes []rtnl.RouteCopy `json:"routes"` // in an order that the kernel accepts
	Rules  []rtnl.RouteCopy `json:"rules"`
	// ADD adds InsideRoutes and InsideRules in the container. The routes have the device's index on the host.
	InsideRoutes []rtnl.RouteCopy `json:"insideRoutes"`
	InsideRules  []rtnl.RouteCopy `json:"insideRules"`
	// Refusals are routes without a device that ADD adds in the container, such as unreachable ones.
	Refusals []rtnl.RouteCopy `json:"refusals"`
	// Advertised are the prefixes of addresses that come from router advertisements, on the host and in the container.
	Advertised []netip.Prefix `json:"advertised"`

	omitted []rtnl.Route // routes for which the container has a route through another interface
}

// errNoAddress is the error of an ADD that would leave the container without an address.
var errNoAddress = &cni.Error{Code: cni.CodeTryAgain,
	Msg: "useInterfaceNetwork: the device has no address on the host; wait until the host has configured it"}

// waitAddress waits up to addressTimeout until a device has an address for the container and its network is stable.
func waitAddress(ctx context.Context, host *rtnl.Conn, d selector) {
	ctx, cancel := context.WithTimeout(ctx, addressTimeout)
	defer cancel()
	l, err := d.findDevice(host)
	if err != nil {
		return
	}
	err = host.WaitAddrs(ctx, l.Index, func(addrs []rtnl.AddrCopy) string { // best effort: ADD reads them again
		var n network
		if n.keepAddrs(addrs); n.hasAddress() {
			return ""
		}
		return "an address"
	})
	if err == nil {
		host.WaitQuiet(ctx, l.Index, settleTime)
	}
}

// hasAddress reports whether the container gets an address.
func (n *network) hasAddress() bool {
	return slices.ContainsFunc(n.Addrs, isGlobal) || len(n.Advertised) > 0
}

// isGlobal reports whether an address is not an IPv6 link-local address, which each link has.
func isGlobal(a rtnl.AddrCopy) bool { return !a.IsLinkLocal6() }

// now returns the seconds since the boot.
func now() uint32 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // every kernel has this clock
	return uint32(t.Sec)
}

// readNetwork reads the network of the device l, and decides what the container gets.
func (c call) readNetwork(l rtnl.Link) (*network, error) {
	n := &network{ReadAt: now()}
	addrs, err := c.Host.AddrCopies(l.Index)
	if err != nil {
		return nil, err
	}
	n.keepAddrs(addrs)
	if !n.hasAddress() {
		return nil, errNoAddress
	}
	routes, err := c.Host.LinkRoutes(l.Index)
	if err != nil {
		return nil, err
	}
	isOmitted := func(r rtnl.RouteCopy) bool { return isRecreated(r, addrs) }
	n.Routes = rtnl.GatewaysLast(slices.DeleteFunc(routes, isOmitted))
	rules, err := c.Host.RuleCopies()
	for _, r := range rules {
		isSource := func(a rtnl.AddrCopy) bool { return r.RuleSrc().Contains(a.Prefix().Addr()) }
		if slices.ContainsFunc(addrs, isSource) && slices.ContainsFunc(n.Routes, isIn(r)) {
			n.Rules = append(n.Rules, r)
		}
	}
	if err != nil {
		return nil, err
	}
	return n, c.planInside(n, l)
}

// keepAddrs adds the addresses of the device on the host, except addresses that the kernel or a router recreates, and
// expired addresses, which the kernel is about to remove.
func (n *network) keepAddrs(addrs []rtnl.AddrCopy) {
	for _, a := range addrs {
		a, isValid := a.RemainingAfter(0)
		switch {
		case !isValid:
		case a.IsAutomatic():
			if a.IsAdvertised() && !a.IsTemporary() && !a.Has(unix.IFA_F_DEPRECATED) {
				n.Advertised = append(n.Advertised, a.Prefix().Masked())
			}
		case a.Header.Family == unix.AF_INET6: // reversed, because the kernel lists the newest one first
			n.Addrs = append([]rtnl.AddrCopy{a}, n.Addrs...)
		default:
			n.Addrs = append(n.Addrs, a)
		}
	}
}

// isIn returns a function that reports whether a route is in the table of a rule.
func isIn(rule rtnl.RouteCopy) func(rtnl.RouteCopy) bool {
	return func(r rtnl.RouteCopy) bool { return r.Header.Family == rule.Header.Family && r.Table() == rule.Table() }
}

// isRecreated reports whether the kernel or a router recreates a route of the device, which has these addresses.
func isRecreated(r rtnl.RouteCopy, addrs []rtnl.AddrCopy) bool {
	dst := r.Route().Dst
	isLinkLocal := dst.Addr().Is6() && dst.Bits() > 0 && dst.Addr().IsLinkLocalUnicast()
	return isLinkLocal || r.Table() == unix.RT_TABLE_LOCAL || r.IsAutomatic(addrs)
}

// planInside decides which of the device's routes and rules the container gets. It adds the routes without a device,
// such as unreachable ones, from the tables of these rules. It omits routes and rules that the container already has,
// because DEL would otherwise remove them.
func (c call) planInside(n *network, l rtnl.Link) error {
	rules, err := c.Cont.RuleCopies()
	if err != nil {
		return err
	}
	existing, err := c.Cont.RouteCopies()
	if err != nil {
		return err
	}
	for _, r := range n.Routes {
		own, _ := r.HopsThrough(l.Index)
		if !slices.ContainsFunc(existing, own.HasSameKey) {
			n.InsideRoutes = append(n.InsideRoutes, own)
			continue
		}
		c.Req.Warn("route %s of table %d: the container has a route with this destination and metric through another "+
			"interface; the route of device %q is omitted; chain sbr to route by source address", r, r.Table(), l.Name)
		n.omitted = append(n.omitted, own.Hops()...)
	}
	for _, r := range n.Rules {
		rule := r.RenameLink(l.Name, c.Req.IfName)
		if !slices.ContainsFunc(rules, rule.Equal) {
			n.InsideRules = append(n.InsideRules, rule)
		}
		if rtnl.IsKernelTable(r.Table()) || slices.ContainsFunc(n.Refusals, isIn(r)) {
			continue
		}
		refusals, err := c.Host.Refusals(r)
		for _, refusal := range refusals {
			if !slices.ContainsFunc(existing, refusal.HasSameKey) {
				n.Refusals = append(n.Refusals, refusal)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// keepOtherHops keeps the host's IPv4 routes that also have next hops through other interfaces. The kernel would remove
// the whole route when the device leaves.
func (n *network) keepOtherHops(host *rtnl.Conn, l rtnl.Link) error {
	for _, r := range n.Routes {
		if r.Header.Family == unix.AF_INET {
			if err := host.KeepOtherHops(l.Index, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// apply configures the container's interface, which is up, with the device's network. l is the device on the host.
func (n *network) apply(ctx context.Context, s *attach.Call, t iface.Target, l rtnl.Link) error {
	isIPv6 := func(a rtnl.AddrCopy) bool { return a.Header.Family == unix.AF_INET6 }
	if len(n.Advertised) > 0 || slices.ContainsFunc(n.Addrs, isIPv6) {
		if err := t.EnableIPv6(); err != nil {
			return err
		}
	}
	if err := n.addAddrs(t.Conn, t.Index, false, false); err != nil {
		return err
	}
	if t.EnableDAD {
		if err := t.WaitDAD(ctx); err != nil { // the kernel refuses a route with a tentative source
			return err
		}
	}
	if err := n.waitAdvertised(ctx, s, t.Index); err != nil {
		return err
	}
	for _, r := range append(n.Refusals, n.InsideRoutes...) {
		r = r.MoveTo(l.Index, t.Index)
		err := t.Conn.AddCopy(r)
		if src := r.Route().Src; errors.Is(err, unix.EINVAL) && src.IsValid() {
			s.Req.Warn("route %s of table %d: added without its source %s, which the container lacks", r,
				r.Table(), src)
			err = t.Conn.AddCopy(r.WithSource(netip.Addr{}))
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("useInterfaceNetwork: table %d: %w", r.Table(), err)
		}
	}
	return each(n.InsideRules, t.Conn.AddRuleCopy)
}

// each calls do for each element of a list, and continues after an error.
func each(list []rtnl.RouteCopy, do func(rtnl.RouteCopy) error) error {
	var errs []error
	for _, r := range list {
		errs = append(errs, do(r))
	}
	return errors.Join(errs...)
}

// addAddrs adds the addresses that have not expired since they were read. In the container, IPv4 addresses do not
// expire, because no DHCP client renews their leases. addAddrs stops at the first error, because a later IPv4 address
// of the subnet would become the primary one. If continueOnError is set, it continues.
func (n *network) addAddrs(conn *rtnl.Conn, link int, isHost, continueOnError bool) error {
	var errs []error
	for _, a := range n.Addrs {
		a, ok := a.RemainingAfter(now() - n.ReadAt)
		if !isHost {
			a = a.Without(unix.IFA_LABEL) // the label begins with the name on the host
		}
		if !isHost && a.Header.Family == unix.AF_INET {
			a, ok = a.Permanent(), true
		}
		if !ok {
			continue
		}
		err := conn.AddAddrCopy(link, a)
		if isHost && a.Header.Family == unix.AF_INET6 && errors.Is(err, unix.EACCES) {
			continue // IPv6 is disabled on the link; NetworkManager disables it when a device appears
		}
		if err != nil && !continueOnError {
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// waitAdvertised waits for the addresses from router advertisements. If the wait fails, it returns code 11, or only
// warns if the device has other addresses.
func (n *network) waitAdvertised(ctx context.Context, s *attach.Call, link int) error {
	if len(n.Advertised) == 0 {
		return nil
	}
	s.Req.Step("wait for a router advertisement")
	ctx, cancel := context.WithTimeout(ctx, routerTimeout)
	defer cancel()
	err := s.Cont.WaitAddrs(ctx, link, func(addrs []rtnl.AddrCopy) string {
		for _, p := range n.Advertised {
			isUsable := func(a rtnl.AddrCopy) bool {
				return a.Prefix().Masked() == p && !a.Has(unix.IFA_F_TENTATIVE)
			}
			if !slices.ContainsFunc(addrs, isUsable) {
				return "an address in " + p.String()
			}
		}
		return ""
	})
	switch {
	case err == nil:
		return nil
	case !slices.ContainsFunc(n.Addrs, isGlobal):
		return cni.Errorf(cni.CodeTryAgain, "useInterfaceNetwork: no router advertisement in the container: %w", err)
	}
	s.Req.Warn("useInterfaceNetwork: no router advertisement in the container: %v", err)
	return nil
}

// ips returns the addresses of the container's interface, as a result contains them. The gateway of an address is the
// next hop of a default route of the device.
func (n *network) ips(s *attach.Call) (ips []cni.IP, err error) {
	addrs, err := s.Cont.AddrCopies(s.ContEnd.Index)
	if err != nil {
		return nil, err
	}
	routes, err := s.Cont.Routes(s.ContEnd.Index, unix.AF_UNSPEC)
	if err != nil {
		return nil, err
	}
	routes = append(routes, n.omitted...)
	for _, a := range addrs {
		if isGlobal(a) && !a.IsTemporary() {
			ips = append(ips, cni.IP{Address: a.Prefix(), Gateway: gateway(a.Prefix(), routes), Interface: new(0)})
		}
	}
	return ips, nil
}

// warnHidden warns of addresses that the result lacks: before version 0.3.0, a result has one address of each family.
func warnHidden(req *skel.Request, ips []cni.IP) {
	hasFamily := map[bool]bool{}
	for _, ip := range ips {
		is4 := ip.Address.Addr().Is4()
		if req.Version < "0.3.0" && hasFamily[is4] {
			req.Warn("address %s: is not in the result, because version %s has one address of each family",
				ip.Address, req.Version)
		}
		hasFamily[is4] = true
	}
}

// gateway returns the next hop of the default route for packets from an address: preferably a next hop in its subnet,
// otherwise a link-local one. For a single address (/32 or /128), it is any next hop of its family.
func gateway(p netip.Prefix, routes []rtnl.Route) netip.Addr {
	find := func(fits func(gw netip.Addr) bool) netip.Addr {
		i := slices.IndexFunc(routes, func(r rtnl.Route) bool {
			return r.Dst.Bits() == 0 && r.GW.IsValid() && r.GW.Is4() == p.Addr().Is4() && fits(r.GW)
		})
		if i < 0 {
			return netip.Addr{}
		}
		return routes[i].GW
	}
	if gw := find(p.Contains); gw.IsValid() {
		return gw
	}
	return find(func(gw netip.Addr) bool { return p.IsSingleIP() || gw.IsLinkLocalUnicast() })
}

// routes returns the routes that the container got, as a result contains them. Before version 1.1.0 a result has
// neither tables nor scopes. Other plugins would mistake routes of other tables for routes of the main table, and
// routes without a gateway for routes through the default gateway, so both are omitted.
func (n *network) routes(version string) (list []cni.Route) {
	for _, r := range n.InsideRoutes {
		for _, hop := range r.Hops() {
			out := cni.Route{Dst: hop.Dst, GW: hop.GW, MTU: hop.MTU, AdvMSS: hop.AdvMSS, Priority: hop.Priority,
				Table: new(hop.Table)}
			switch {
			case hop.Scope != 0:
				out.Scope = new(hop.Scope)
			case !hop.GW.IsValid() && hop.Dst.Addr().Is6():
				out.Scope = new(unix.RT_SCOPE_LINK)
			case !hop.GW.IsValid(): // would mean a route through the default gateway
				continue
			}
			if version >= "1.1.0" || out.InMain() && hop.GW.IsValid() {
				list = append(list, out)
			}
		}
	}
	return list
}

// verify returns drift for rules and routes that DEL must remove and that the container no longer has.
func (n *network) verify(cont *rtnl.Conn) error {
	if n == nil {
		return nil
	}
	rules, err := cont.RuleCopies()
	if err != nil {
		return err
	}
	routes, err := cont.RouteCopies()
	if err != nil {
		return err
	}
	return errors.Join(each(n.InsideRules, func(r rtnl.RouteCopy) error {
		if slices.ContainsFunc(rules, r.Equal) {
			return nil
		}
		return cni.Drift("rule from %s lookup %d: missing", r.RuleSrc(), r.Table())
	}), each(n.Refusals, func(r rtnl.RouteCopy) error {
		if slices.ContainsFunc(routes, r.Equal) {
			return nil
		}
		return cni.Drift("table %d: route %s: missing", r.Table(), r)
	}))
}

// removeInside removes the rules and routes that the kernel does not remove from the container with the device. cont is
// nil if the namespace no longer exists.
func (n *network) removeInside(cont *rtnl.Conn) error {
	if n == nil || cont == nil {
		return nil
	}
	return errors.Join(each(n.InsideRules, cont.DelRuleCopy), each(n.Refusals, cont.DelCopy))
}

// restoreNetwork restores the network of the device, except addresses that have expired. The device is on the host
// again, and up if it was up before. If it has another address, a network manager has configured it, and restoreNetwork
// changes nothing. It also keeps a route that now has another next hop. If IPv6 is disabled on the device, it restores
// only IPv4.
func (r *record) restoreNetwork(ctx context.Context, host *rtnl.Conn, link int) error {
	n := r.DeviceNetwork
	if n == nil {
		return nil
	}
	current, err := host.AddrCopies(link)
	if err != nil {
		return err
	}
	isForeign := func(a rtnl.AddrCopy) bool {
		isOwn := func(o rtnl.AddrCopy) bool { return o.Prefix().Addr() == a.Prefix().Addr() }
		return isGlobal(a) && !a.IsAutomatic() && !slices.ContainsFunc(n.Addrs, isOwn)
	}
	if slices.ContainsFunc(current, isForeign) {
		return nil
	}
	addrErr := n.addAddrs(host, link, true, r.Failed)
	existing, err := host.LinkRoutes(link)
	var routes []rtnl.RouteCopy
	for _, route := range n.Routes {
		routes = append(routes, route.MoveTo(r.Link.Index, link))
	}
	awaitSources(ctx, host, link, routes)
	return errors.Join(addrErr, err, each(routes, func(r rtnl.RouteCopy) error {
		isOther := func(o rtnl.RouteCopy) bool { return o.HasSameKey(r) && !slices.ContainsFunc(routes, o.Equal) }
		if slices.ContainsFunc(existing, isOther) {
			return nil
		}
		return host.RestoreShared(link, r)
	}), each(n.Rules, host.AddRuleCopy))
}

// awaitSources waits for duplicate address detection of routes' sources, because the kernel refuses tentative ones.
func awaitSources(ctx context.Context, host *rtnl.Conn, link int, routes []rtnl.RouteCopy) {
	ctx, cancel := context.WithTimeout(ctx, homeDADTimeout)
	defer cancel()
	_ = host.WaitAddrs(ctx, link, func(addrs []rtnl.AddrCopy) string {
		for _, a := range addrs {
			isSource := func(r rtnl.RouteCopy) bool { return r.Route().Src == a.Prefix().Addr() }
			if a.Has(unix.IFA_F_TENTATIVE) && slices.ContainsFunc(routes, isSource) {
				return "a source"
			}
		}
		return ""
	})
}

// isPlausible reports whether an ADD can have written the network. DEL restores it on the host.
func (n *network) isPlausible(link int) bool {
	if n == nil {
		return true
	}
	for _, a := range n.Addrs {
		if !a.Prefix().IsValid() {
			return false
		}
	}
	for _, r := range n.Routes {
		if _, isOwn := r.HopsThrough(link); !isOwn || r.Table() == unix.RT_TABLE_LOCAL {
			return false
		}
	}
	for _, r := range n.Rules {
		if !r.RuleSrc().IsValid() {
			return false
		}
	}
	return true
}
