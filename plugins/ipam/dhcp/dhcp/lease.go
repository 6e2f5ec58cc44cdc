package dhcp

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// lease is a lease of IPv4, with the server's DHCPACK, or of IPv6. Times are since boot.
type lease struct {
	ack                   *dhcpv4.DHCPv4 // nil for IPv6
	v6                    *lease6        // nil for IPv4
	since                 time.Duration
	renew, rebind, expiry time.Duration
}

// newLease returns the lease in a DHCPACK or DHCPOFFER. It refuses a message that lacks what an address needs.
func newLease(ack *dhcpv4.DHCPv4, now time.Duration) (*lease, error) {
	addr := addrOf(ack.YourIPAddr)
	bits, _ := ack.SubnetMask().Size()            // 0 for a mask with a hole
	lifetime := ack.IPAddressLeaseTime(time.Hour) // default of the reference plugin
	switch {
	case !isHostAddr(addr):
		return nil, fmt.Errorf("%s is not an address for a container", ack.YourIPAddr)
	case ack.SubnetMask() == nil:
		return nil, errors.New("DHCP option Subnet Mask not found in DHCPACK")
	case bits < 1:
		return nil, fmt.Errorf("%s is not a subnet mask", net.IP(ack.SubnetMask()))
	case !isHostAddr(addrOf(ack.ServerIdentifier())):
		return nil, errors.New("the server sent no server identifier")
	case lifetime <= 0:
		return nil, errors.New("the lease time is 0")
	}
	rebind := ack.IPAddressRebindingTime(0)
	if rebind <= 0 || rebind >= lifetime {
		rebind = lifetime / 8 * 7
	}
	renew := ack.IPAddressRenewalTime(0)
	if renew <= 0 || renew >= rebind {
		renew = min(lifetime/2, rebind)
	}
	return &lease{ack: ack, since: now, renew: now + renew, rebind: now + rebind, expiry: now + lifetime}, nil
}

// prefix returns the leased address with its subnet's length.
func (l *lease) prefix() netip.Prefix {
	return prefix(net.IPNet{IP: l.ack.YourIPAddr, Mask: l.ack.SubnetMask()})
}

// String returns the addresses.
func (l *lease) String() string {
	return strings.Trim(fmt.Sprint(cni.Addresses(l.result(options{}).IPs)), "[]")
}

// encode returns the lease for a record; record.decodeLease reads it.
func (l *lease) encode() []byte {
	if l.v6 == nil {
		return l.ack.ToBytes()
	}
	b, err := json.Marshal(l.v6)
	if err != nil {
		panic(err) // impossible: the fields are plain values
	}
	return b
}

// source describes the server or router that granted the lease.
func (l *lease) source() string {
	switch {
	case l.v6 == nil:
		return "server " + net.IP(l.ack.ServerIdentifier()).String()
	case l.v6.Server == nil:
		return "router " + l.v6.Router.String()
	}
	return fmt.Sprintf("server %x", l.v6.Server)
}

// server returns the server's address and the next hop to it: the server itself if it is on the link, otherwise the
// gateway of the lease's most specific route to it. nextHop is the zero Addr if there is no such route.
func (l *lease) server() (server, nextHop netip.Addr) {
	server = addrOf(l.ack.ServerIdentifier())
	if l.prefix().Contains(server) {
		return server, server
	}
	bits := -1
	for _, r := range l.result(options{}).Routes {
		if r.Dst.Contains(server) && r.Dst.Bits() > bits {
			nextHop, bits = cmp.Or(r.GW, server), r.Dst.Bits() // without a gateway, the server is on the link
		}
	}
	return server, nextHop
}

// result returns the lease as the plugin's result. If l is nil, the result is empty.
func (l *lease) result(o options) *cni.Result {
	if l == nil {
		return &cni.Result{}
	}
	if l.v6 != nil {
		return l.v6.result(o)
	}
	ip := cni.IP{Address: l.prefix()}
	for _, router := range l.ack.Router() {
		if isHostAddr(addrOf(router)) && !ip.Gateway.IsValid() {
			ip.Gateway = addrOf(router)
		}
	}
	res := &cni.Result{IPs: []cni.IP{ip}, Routes: routesOf(l.ack, ip.Gateway)}
	for i := range res.Routes {
		res.Routes[i].Priority = o.Priority
	}
	if o.DNS {
		res.DNS = dnsOf(l.ack)
	}
	return res
}

// routesOf returns the routes of option 121, which replaces the other options (RFC 3442). Without that option, it
// returns the routes of option 33 and the default route.
func routesOf(ack *dhcpv4.DHCPv4, gateway netip.Addr) (routes []cni.Route) {
	for _, r := range ack.ClasslessStaticRoute() {
		route := cni.Route{Dst: prefix(*r.Dest).Masked(), GW: addrOf(r.Router)}
		if route.GW.IsUnspecified() {
			route.GW, route.Scope = netip.Addr{}, new(unix.RT_SCOPE_LINK)
		}
		routes = append(routes, route)
	}
	if routes != nil {
		return routes
	}
	for pair := ack.Options[dhcpv4.OptionStaticRoutingTable.Code()]; len(pair) >= 8; pair = pair[8:] {
		dst := net.IP(pair[:4])
		if isHostAddr(addrOf(dst)) { // option 33 cannot contain a default route (RFC 2132, section 5.8)
			subnet := prefix(net.IPNet{IP: dst, Mask: dst.DefaultMask()}).Masked()
			routes = append(routes, cni.Route{Dst: subnet, GW: addrOf(pair[4:8])})
		}
	}
	if gateway.IsValid() {
		routes = append(routes, cni.Route{Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0), GW: gateway})
	}
	return routes
}

// dnsOf returns the resolver settings. It drops names that are not domain names, because the runtime writes them into
// the container's resolv.conf, where other text could add arbitrary lines.
func dnsOf(ack *dhcpv4.DHCPv4) (dns cni.DNS) {
	for _, ip := range ack.DNS() {
		dns.Nameservers = append(dns.Nameservers, addrOf(ip).String())
	}
	if domain := strings.TrimRight(ack.DomainName(), ".\x00"); isDomain(domain) {
		dns.Domain = domain
	}
	if search := ack.DomainSearch(); search != nil {
		for _, domain := range search.Labels {
			if isDomain(domain) {
				dns.Search = append(dns.Search, domain)
			}
		}
	}
	return dns
}

// lease6 is an IPv6 lease: the router's configuration and the addresses. Times are since boot.
type lease6 struct {
	raState
	Addrs  []addr6       `json:"addrs"`
	Server []byte        `json:"server,omitempty"` // DUID of the DHCPv6 server; none: the addresses are from SLAAC
	Renew  time.Duration `json:"renew,omitempty"`
	Rebind time.Duration `json:"rebind,omitempty"`
	DNS    cni.DNS       `json:"dns"`
}

// raState is the configuration from the last router advertisement, and the link-local address that received it.
type raState struct {
	LinkLocal netip.Addr     `json:"own"` // SLAAC addresses have its interface identifier
	Router    netip.Addr     `json:"router"`
	IsDefault bool           `json:"default"`
	OnLink    []netip.Prefix `json:"onLink,omitempty"`
	Refresh   time.Duration  `json:"refresh"` // time of the next router solicitation
}

// addr6 is an address and the end of its valid lifetime.
type addr6 struct {
	Prefix netip.Prefix  `json:"prefix"`
	Until  time.Duration `json:"until"`
}

// newLease6 returns the lease, which expires when its last address does. It returns nil if l is incomplete or has an
// address that a container cannot have.
func newLease6(l lease6, since time.Duration) *lease {
	if len(l.Addrs) == 0 || !l.Router.IsValid() || !l.LinkLocal.IsLinkLocalUnicast() {
		return nil
	}
	lease := &lease{v6: &l, since: since, renew: l.Refresh}
	for _, a := range l.Addrs {
		if !isHostAddr6(a.Prefix.Addr()) {
			return nil
		}
		lease.expiry = max(lease.expiry, a.Until)
		lease.renew = min(lease.renew, a.Until) // so that the machine removes an expired address in time
	}
	lease.rebind = lease.expiry
	if l.Server != nil {
		lease.renew, lease.rebind = min(lease.renew, l.Renew), l.Rebind
	}
	return lease
}

func (l *lease6) result(o options) *cni.Result {
	res := &cni.Result{}
	subnets := []netip.Prefix{}
	for _, a := range l.Addrs {
		ip := cni.IP{Address: a.Prefix}
		if l.IsDefault {
			ip.Gateway = l.Router
		}
		res.IPs, subnets = append(res.IPs, ip), append(subnets, a.Prefix.Masked())
	}
	for _, p := range l.OnLink {
		if !slices.Contains(subnets, p) { // the kernel adds routes to the addresses' subnets
			res.Routes = append(res.Routes, cni.Route{Dst: p, Scope: new(unix.RT_SCOPE_LINK), Priority: o.Priority})
		}
	}
	if l.IsDefault {
		anyDst := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		res.Routes = append(res.Routes, cni.Route{Dst: anyDst, GW: l.Router, Priority: o.Priority})
	}
	if o.DNS {
		res.DNS = l.DNS
	}
	return res
}

// mergeDNS returns the settings of a, followed by the settings of b that a lacks.
func mergeDNS(a, b cni.DNS) cni.DNS {
	merge := func(dst, src []string) []string {
		for _, s := range src {
			if !slices.Contains(dst, s) {
				dst = append(dst, s)
			}
		}
		return dst
	}
	a.Nameservers, a.Search = merge(a.Nameservers, b.Nameservers), merge(a.Search, b.Search)
	a.Domain = cmp.Or(a.Domain, b.Domain)
	return a
}
