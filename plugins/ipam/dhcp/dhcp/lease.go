package dhcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// lease is what a server lends: its acknowledgement, or that of IPv6, and the times that follow from it, since boot.
type lease struct {
	ack                   *dhcpv4.DHCPv4
	six                   *lease6 // in place of ack
	since                 time.Duration
	renew, rebind, expiry time.Duration
}

// newLease refuses an answer that lacks something which a container's address needs.
func newLease(ack *dhcpv4.DHCPv4, now time.Duration) (*lease, error) {
	addr := address(ack.YourIPAddr)
	bits, _ := ack.SubnetMask().Size()         // 0 for a mask with a hole
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
	return &lease{ack: ack, since: now, renew: now + renew, rebind: now + rebind, expiry: now + whole}, nil
}

// prefix is the leased address, with the length of its subnet.
func (l *lease) prefix() netip.Prefix {
	return prefix(net.IPNet{IP: l.ack.YourIPAddr, Mask: l.ack.SubnetMask()})
}

// String lists the addresses.
func (l *lease) String() string {
	return strings.Trim(fmt.Sprint(cni.Addresses(l.result(options{}).IPs)), "[]")
}

// bytes are what a record keeps of the lease.
func (l *lease) bytes() []byte {
	if l.six == nil {
		return l.ack.ToBytes()
	}
	b, err := json.Marshal(l.six)
	if err != nil {
		panic(err) // of plain values
	}
	return b
}

// lender says whose address it is.
func (l *lease) lender() string {
	switch {
	case l.six == nil:
		return "server " + net.IP(l.ack.ServerIdentifier()).String()
	case l.six.Server == nil:
		return "router " + l.six.Router.String()
	}
	return fmt.Sprintf("server %x", l.six.Server)
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

// result returns the lease as the plugin gets it; without a lease it is empty.
func (l *lease) result(o options) *cni.Result {
	if l == nil {
		return &cni.Result{}
	}
	if l.six != nil {
		return l.six.result(o)
	}
	ip := cni.IP{Address: l.prefix()}
	for _, router := range l.ack.Router() {
		if isHost(address(router)) && !ip.Gateway.IsValid() {
			ip.Gateway = address(router)
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

// routesOf returns the routes of option 121, which replaces others (RFC 3442), or of option 33 and the default route.
func routesOf(ack *dhcpv4.DHCPv4, gateway netip.Addr) (routes []cni.Route) {
	for _, r := range ack.ClasslessStaticRoute() {
		route := cni.Route{Dst: prefix(*r.Dest).Masked(), GW: address(r.Router)}
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
		if isHost(address(dst)) { // the default route is no such route (RFC 2132, 5.8)
			subnet := prefix(net.IPNet{IP: dst, Mask: dst.DefaultMask()}).Masked()
			routes = append(routes, cni.Route{Dst: subnet, GW: address(pair[4:8])})
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
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	return name != "" && len(name) < 255 && strings.Trim(name, allowed) == ""
}

// address is the zero Addr where ip is no IPv4 address.
func address(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip.To4())
	return addr
}

func isHost(a netip.Addr) bool {
	return a.Is4() && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && a.As4()[0] < 240
}

// clientID is the reference's, so that a server knows a container whoever asks.
func clientID(a cni.Attachment) []byte {
	id := a.ContainerID + "/" + a.Network + "/" + a.IfName
	return append([]byte{0}, id[:min(len(id), 254)]...)
}

// record is a lease in a file, from before the plugin's answer until DEL, for the next daemon. Times are since boot.
type record struct {
	cni.Attachment
	Netns  string        `json:"netns"`
	NS     ns.Identity   `json:"ns"`
	Index  int           `json:"index"` // of the interface; 0: not known yet
	Client identity      `json:"client"`
	ACK    []byte        `json:"ack,omitempty"` // none: the lease is lost
	Since  time.Duration `json:"since,omitempty"`

	// While the interface is changed: the ACK whose address it may still have, and where its routes
	// were. After a lost lease only the routes are kept.
	FormerACK    []byte   `json:"had,omitempty"`
	FormerRoutes []placed `json:"routes,omitempty"`
}

// Plausible leaves out what no daemon has written.
func (r record) Plausible() bool { return r.Index > 0 && r.Netns != "" }

const (
	leaseRoot  = "/run/hawser/dhcp/"
	lease6Root = "/run/hawser/dhcp6/" // those of IPv6, which an older daemon would take for IPv4's
)

// list lists the leases of all sockets' daemons.
func list(context.Context, *skel.Request) (all []cni.Holding, err error) {
	dirs, _ := filepath.Glob(leaseRoot + "*") // a good pattern
	dirs6, _ := filepath.Glob(lease6Root + "*")
	boot := time.Now().Add(-sysctl.SinceBoot())
	var errs []error
	for _, dir := range append(dirs, dirs6...) {
		held, err := netplugin.Holdings(statefile.Records[record]{Path: dir}, func(r record) []cni.Holding {
			value := "lost"
			if l := r.leaseOf(r.ACK); l != nil {
				value = fmt.Sprintf("%s %s expires %s", l, l.lender(), boot.Add(l.expiry).UTC().Format(time.RFC3339))
			}
			h := cni.Holding{Attachment: r.Attachment, Kind: cni.HeldAddress, Value: value}
			return netplugin.WithNetns(r.Netns, r.NS, h)
		})
		all, errs = append(all, held...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// recordsIn are the leases that a socket's daemon holds, below one of the roots.
func recordsIn(root, socket string) statefile.Records[record] {
	return statefile.Records[record]{Path: root + cni.Digest(socket, 16), Wait: 10 * time.Second}
}

// setLease puts the lease, if any, into the record.
func (r *record) setLease(l *lease) {
	r.ACK, r.Since = nil, 0
	if l != nil {
		r.ACK, r.Since = l.bytes(), l.since
	}
}

// leaseOf reads an answer in the record, written by bytes; nil: there is none of the client's family.
func (r record) leaseOf(answer []byte) *lease {
	if r.Client.isV6() {
		var six lease6
		if json.Unmarshal(answer, &six) != nil {
			return nil
		}
		return newLease6(six, r.Since)
	}
	ack, err := dhcpv4.FromBytes(answer)
	if err != nil {
		return nil
	}
	l, _ := newLease(ack, r.Since)
	return l
}
