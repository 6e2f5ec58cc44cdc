package cni

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Result describes what ADD created (specification, section 5), in the form of the newest version.
type Result struct {
	Interfaces []Interface
	IPs        []IP
	Routes     []Route
	DNS        DNS
}

// Interface is an interface of the attachment, in the container or on the host.
type Interface struct {
	Name       string `json:"name" help:"name of the interface" schema:"required"`
	MAC        string `json:"mac,omitempty" help:"MAC address"`
	MTU        int    `json:"mtu,omitempty" help:"MTU, bytes"`
	Sandbox    string `json:"sandbox,omitempty" help:"path of the container's network namespace; empty on the host"`
	SocketPath string `json:"socketPath,omitempty" help:"socket that the interface is, for some plugins"`
	PCIID      string `json:"pciID,omitempty" help:"PCI device that the interface is, for some plugins"`
}

// IP is an address of the attachment.
type IP struct {
	Address   netip.Prefix // the address with its subnet's length, host bits kept
	Gateway   netip.Addr   // the zero Addr means none
	Interface *int         // index into Result.Interfaces; nil means not specified
}

// Route is a route of the container.
type Route struct {
	Dst      netip.Prefix
	GW       netip.Addr // the zero Addr means the gateway of an address of this family
	MTU      int        // bytes; 0 means not specified, as for all numbers here
	AdvMSS   int        // bytes
	Priority uint32
	Table    *uint32
	Scope    *int // as in rtnetlink: 0 global, 253 link, 254 host
}

// InMain reports whether the route is in the main table, which is the default.
func (r Route) InMain() bool {
	return r.Table == nil || *r.Table == unix.RT_TABLE_MAIN || *r.Table == unix.RT_TABLE_UNSPEC
}

// DNS is resolver configuration for the container.
type DNS struct {
	Nameservers []string `json:"nameservers,omitempty" help:"addresses of resolvers, the first one first"`
	Domain      string   `json:"domain,omitempty" help:"local domain, used for short names"`
	Search      []string `json:"search,omitempty" help:"additional search domains"`
	Options     []string `json:"options,omitempty" help:"resolver options, as in resolv.conf(5)"`
}

// IsSet reports whether a configuration has any of the keys. An empty list counts, because it overrides other settings.
func (d DNS) IsSet() bool {
	return d.Nameservers != nil || d.Domain != "" || d.Search != nil || d.Options != nil
}

// IsZero reports whether there is nothing to print.
func (d DNS) IsZero() bool {
	return len(d.Nameservers) == 0 && d.Domain == "" && len(d.Search) == 0 && len(d.Options) == 0
}

// Clone returns a copy whose lists of interfaces, addresses and routes can be changed independently.
func (r *Result) Clone() *Result {
	c := *r
	c.Interfaces, c.IPs, c.Routes = slices.Clone(r.Interfaces), slices.Clone(r.IPs), slices.Clone(r.Routes)
	return &c
}

// Gateway returns the first gateway of an address family, or the zero Addr.
func (r *Result) Gateway(v4 bool) netip.Addr {
	for _, ip := range r.IPs {
		if ip.Gateway.IsValid() && ip.Gateway.Is4() == v4 {
			return ip.Gateway
		}
	}
	return netip.Addr{}
}

// ContainerInterface returns the interface with a name that is in the container (it has a sandbox).
func (r *Result) ContainerInterface(name string) (Interface, bool) {
	if r == nil {
		return Interface{}, false
	}
	for _, i := range r.Interfaces {
		if i.Name == name && i.Sandbox != "" {
			return i, true
		}
	}
	return Interface{}, false
}

// ContainerIPs returns the addresses of the container's interface with a name, and the addresses without an interface.
func (r *Result) ContainerIPs(name string) []IP {
	if r == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(r.IPs), func(ip IP) bool {
		if ip.Interface == nil || *ip.Interface >= len(r.Interfaces) {
			return false
		}
		i := r.Interfaces[*ip.Interface]
		return i.Name != name || i.Sandbox == ""
	})
}

// Addresses returns the addresses of ips.
func Addresses(ips []IP) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(ips))
	for _, ip := range ips {
		out = append(out, ip.Address)
	}
	return out
}
