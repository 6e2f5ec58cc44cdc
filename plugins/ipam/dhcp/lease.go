package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// lease is what a server lends: its acknowledgement, and the times that follow from
// it, since boot.
type lease struct {
	ack                   *dhcpv4.DHCPv4
	since                 time.Duration
	renew, rebind, expiry time.Duration
}

// newLease refuses an answer that lacks something which a container's address needs.
func newLease(ack *dhcpv4.DHCPv4, now time.Duration) (*lease, error) {
	addr, bits := address(ack.YourIPAddr), netmaskBits(ack)
	whole := ack.IPAddressLeaseTime(time.Hour) // as the reference, where the server does not say
	switch {
	case !isHost(addr):
		return nil, fmt.Errorf("%s is no address for a container", ack.YourIPAddr)
	case ack.SubnetMask() == nil:
		return nil, errors.New("DHCP option Subnet Mask not found in DHCPACK")
	case bits < 1:
		return nil, fmt.Errorf("%s is no subnet mask", net.IP(ack.SubnetMask()))
	case !isHost(address(ack.ServerIdentifier())):
		return nil, errors.New("the server does not say who it is")
	case whole <= 0:
		return nil, errors.New("the lease has no time")
	}
	rebind := ack.IPAddressRebindingTime(0)
	if rebind <= 0 || rebind >= whole {
		rebind = whole / 8 * 7
	}
	renew := ack.IPAddressRenewalTime(0)
	if renew <= 0 || renew >= rebind {
		renew = min(whole/2, rebind)
	}
	return &lease{ack, now, now + renew, now + rebind, now + whole}, nil
}

// prefix is the leased address, with the length of its subnet.
func (l *lease) prefix() netip.Prefix {
	return netip.PrefixFrom(address(l.ack.YourIPAddr), netmaskBits(l.ack))
}

// server returns the server's address and the next hop on the way to it: the server itself where it is on the
// link, else the gateway of a route; the zero Addr where none is known.
func (l *lease) server() (server, hop netip.Addr) {
	server = address(l.ack.ServerIdentifier())
	if l.prefix().Contains(server) {
		return server, server
	}
	bits := -1
	for _, r := range l.result(options{}).Routes {
		if r.Dst.Contains(server) && r.Dst.Bits() > bits {
			hop, bits = cmp.Or(r.GW, server), r.Dst.Bits() // a route without gateway leads to the server itself
		}
	}
	return server, hop
}

// result returns the lease as an IPAM plugin prints it; without a lease it is empty.
func (l *lease) result(o options) *cni.Result {
	if l == nil {
		return &cni.Result{}
	}
	ip := cni.IP{Address: l.prefix()}
	for _, router := range l.ack.Router() {
		if addr := address(router); isHost(addr) && !ip.Gateway.IsValid() {
			ip.Gateway = addr
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

// routesOf returns the routes of option 121, which replaces all others (RFC 3442), or those of
// option 33 and the default route.
func routesOf(ack *dhcpv4.DHCPv4, gateway netip.Addr) (routes []cni.Route) {
	for _, r := range ack.ClasslessStaticRoute() {
		bits, _ := r.Dest.Mask.Size()
		route := cni.Route{Dst: netip.PrefixFrom(address(r.Dest.IP), bits).Masked(), GW: address(r.Router)}
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
		bits, _ := dst.DefaultMask().Size()
		if isHost(address(dst)) { // the default route is no such route (RFC 2132, 5.8)
			to := netip.PrefixFrom(address(dst), bits).Masked()
			routes = append(routes, cni.Route{Dst: to, GW: address(pair[4:8])})
		}
	}
	if gateway.IsValid() {
		routes = append(routes, cni.Route{Dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0), GW: gateway})
	}
	return routes
}

// dnsOf returns the resolver settings. It drops names that are no domain names: the runtime writes
// them into the container's resolv.conf, where they could be any line.
func dnsOf(ack *dhcpv4.DHCPv4) (dns cni.DNS) {
	for _, ip := range ack.DNS() {
		dns.Nameservers = append(dns.Nameservers, address(ip).String())
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

func isDomain(name string) bool {
	strange := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r))
	}
	return name != "" && len(name) < 255 && !strings.ContainsFunc(name, strange)
}

// address is the zero Addr where ip is no IPv4 address.
func address(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip.To4())
	return addr
}

func isHost(a netip.Addr) bool {
	return a.Is4() && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && a.As4()[0] < 240
}

// netmaskBits is 0 where the mask is none, or has a hole.
func netmaskBits(ack *dhcpv4.DHCPv4) int {
	bits, _ := ack.SubnetMask().Size()
	return bits
}

// clientID is the reference's, so that a server knows a container whoever asks.
func clientID(a cni.Attachment) []byte {
	id := a.ContainerID + "/" + a.Network + "/" + a.IfName
	return append([]byte{0}, id[:min(len(id), 254)]...)
}
