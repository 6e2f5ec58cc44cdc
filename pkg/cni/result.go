package cni

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Result is what ADD made, in the newest shape (specification, section 5).
// Older shapes are read into it by DecodeResult and written from it by
// Encode.
type Result struct {
	Interfaces []Interface
	IPs        []IP
	Routes     []Route
	DNS        DNS
}

// Interface is an interface that the attachment has, in the container or on
// the host.
type Interface struct {
	Name       string
	MAC        string // as text; empty where the interface has none
	MTU        int    // bytes; 0 = not said
	Sandbox    string // the container's namespace path; empty on the host
	SocketPath string
	PCIID      string
}

// IP is an address of the attachment.
type IP struct {
	Address   netip.Prefix // the address with its subnet's length, host bits kept
	Gateway   netip.Addr   // the zero Addr = none
	Interface *int         // index into Result.Interfaces; nil = not said
}

// Route is a route of the container.
type Route struct {
	Dst      netip.Prefix
	GW       netip.Addr // the zero Addr: the gateway of an address of this family
	MTU      int        // bytes; 0 = not said, as for all numbers here
	AdvMSS   int        // bytes
	Priority uint32
	Table    *uint32
	Scope    *int // as in rtnetlink: 0 global, 253 link, 254 host
}

// InMain says whether the route is the main table's, which has those that name no table.
func (r Route) InMain() bool {
	return r.Table == nil || *r.Table == unix.RT_TABLE_MAIN || *r.Table == unix.RT_TABLE_UNSPEC
}

// DNS is resolver configuration for the container.
type DNS struct {
	Nameservers []string `json:"nameservers,omitempty" help:"addresses of resolvers, the first one first"`
	Domain      string   `json:"domain,omitempty" help:"domain that short names are looked up in"`
	Search      []string `json:"search,omitempty" help:"list of such domains"`
	Options     []string `json:"options,omitempty" help:"options of the resolver, as in resolv.conf(5)"`
}

// IsSet reports whether the configuration said anything at all: an empty list
// counts, it overrides like any other.
func (d DNS) IsSet() bool {
	return d.Nameservers != nil || d.Domain != "" || d.Search != nil || d.Options != nil
}

// IsZero reports whether there is nothing to print.
func (d DNS) IsZero() bool {
	return len(d.Nameservers) == 0 && d.Domain == "" && len(d.Search) == 0 && len(d.Options) == 0
}

// Clone returns a copy with interfaces, addresses and routes of its own.
func (r *Result) Clone() *Result {
	c := *r
	c.Interfaces, c.IPs, c.Routes = slices.Clone(r.Interfaces), slices.Clone(r.IPs), slices.Clone(r.Routes)
	return &c
}

// Gateway returns the gateway of the first address of this family that has
// one; the zero Addr when none has.
func (r *Result) Gateway(v4 bool) netip.Addr {
	for _, ip := range r.IPs {
		if ip.Gateway.IsValid() && ip.Gateway.Is4() == v4 {
			return ip.Gateway
		}
	}
	return netip.Addr{}
}

// ContainerInterface returns the entry of the container's interface called
// name: one with a sandbox.
func (r *Result) ContainerInterface(name string) (Interface, bool) {
	if r == nil {
		return Interface{}, false
	}
	i := slices.IndexFunc(r.Interfaces, func(i Interface) bool { return i.Name == name && i.Sandbox != "" })
	if i < 0 {
		return Interface{}, false
	}
	return r.Interfaces[i], true
}

// ContainerIPs returns the addresses of the container's interface called
// name. A chain's result may hold those of other interfaces too; an address
// that says nothing of its interface counts. A nil result has none.
func (r *Result) ContainerIPs(name string) []IP {
	if r == nil {
		return nil
	}
	var out []IP
	for _, ip := range r.IPs {
		if i := ip.Interface; i != nil && *i < len(r.Interfaces) &&
			(r.Interfaces[*i].Name != name || r.Interfaces[*i].Sandbox == "") {
			continue
		}
		out = append(out, ip)
	}
	return out
}

// Addresses returns the addresses of ips, in their order.
func Addresses(ips []IP) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(ips))
	for _, ip := range ips {
		out = append(out, ip.Address)
	}
	return out
}
