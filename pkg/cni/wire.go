package cni

import (
	"fmt"
	"math"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// wire1 is the JSON form of a result since 0.3.0. Until 0.4.0, addresses have a version.
type wire1 struct {
	CNIVersion string      `json:"cniVersion" help:"version of the specification" schema:"required enum=0.3.0|0.3.1|0.4.0|1.0.0|1.1.0"`
	Interfaces []Interface `json:"interfaces,omitempty" help:"created interfaces, in the container and on the host"`
	IPs        []wireIP    `json:"ips,omitempty" help:"addresses of the container"`
	Routes     []WireRoute `json:"routes,omitempty" help:"routes of the container" most:"1024"`
	DNS        *DNS        `json:"dns,omitempty" help:"resolver settings for the container"`
}

type wireIP struct {
	Version   string `json:"version,omitempty" help:"4 or 6, in versions 0.3.0 to 0.4.0"`
	Interface *int   `json:"interface,omitempty" help:"index into interfaces" schema:"min=0"`
	Address   string `json:"address" help:"address/length" schema:"required format=prefix"`
	Gateway   string `json:"gateway,omitempty" help:"gateway of the address" schema:"format=address empty"`
}

// WireRoute is the JSON form of a route in results and configurations.
type WireRoute struct {
	Dst      string  `json:"dst" help:"destination, as address/length" schema:"required format=prefix"`
	GW       string  `json:"gw,omitempty" help:"gateway (default: that of an address)" schema:"format=address empty"`
	MTU      int     `json:"mtu,omitempty" help:"MTU, bytes" schema:"min=0 max=2147483647"`
	AdvMSS   int     `json:"advmss,omitempty" help:"maximum segment size to advertise, bytes" schema:"min=0 max=2147483647"`
	Priority uint32  `json:"priority,omitempty" help:"metric" schema:"min=0 max=4294967295"`
	Table    *uint32 `json:"table,omitempty" help:"routing table" schema:"min=0 max=4294967295"`
	Scope    *int    `json:"scope,omitempty" help:"0 global, 253 link, 254 host" schema:"min=0 max=255"`
}

// wire01 is the JSON form of a result in 0.1.0 and 0.2.0, with one address of each family.
type wire01 struct {
	CNIVersion string    `json:"cniVersion" help:"version of the specification" schema:"required enum=0.1.0|0.2.0"`
	IP4        *wireIP01 `json:"ip4,omitempty" help:"the IPv4 address"`
	IP6        *wireIP01 `json:"ip6,omitempty" help:"the IPv6 address"`
	DNS        DNS       `json:"dns" help:"resolver settings for the container"`
}

// wireIP01 is the address of one family, IPv4 or IPv6, in 0.1.0 and 0.2.0, with the routes of that family.
type wireIP01 struct {
	IP      string      `json:"ip" help:"address/length" schema:"required format=prefix"`
	Gateway string      `json:"gateway,omitempty" help:"gateway of the address" schema:"format=address empty"`
	Routes  []WireRoute `json:"routes,omitempty" help:"routes of the container" most:"1024"`
}

// parse parses a route of a configuration or a result. The keys in its errors are relative to the route.
func (w WireRoute) parse() (r Route, err error) {
	var problems Problems
	r = Route{MTU: w.MTU, AdvMSS: w.AdvMSS, Priority: w.Priority, Table: w.Table, Scope: w.Scope}
	switch r.Dst, err = ParsePrefix("dst", w.Dst); {
	case w.Dst == "":
		problems.Add(Refuse("dst", nil, "missing").Suggest(`write "dst": "0.0.0.0/0" for the default route`))
	case w.Dst == "default":
		problems.Add(Refuse("dst", w.Dst, notPrefix).Suggest(`write "0.0.0.0/0", or "::/0" for IPv6`))
	default:
		problems.Add(err)
	}
	if w.GW != "" {
		r.GW, err = ParseAddr("gw", w.GW)
		problems.Add(err)
	}
	problems.Add(InRange("mtu", &w.MTU, 0, math.MaxInt32))
	problems.Add(InRange("advmss", &w.AdvMSS, 0, math.MaxInt32))
	problems.Add(InRange("scope", w.Scope, 0, 255))
	return r, problems.Err()
}

// InRange returns an error if the number of a key is less than least or greater than most. A nil number is valid.
func InRange[T int | int64 | uint32](key string, number *T, least, most T) error {
	if number == nil || (*number >= least && *number <= most) {
		return nil
	}
	return Refuse(key, *number, fmt.Sprintf("is not between %d and %d", least, most))
}

const notPrefix = "is not an address in CIDR notation"

// ParsePrefix parses the value of a key in CIDR notation and keeps its host bits. An IPv4-mapped address becomes IPv4.
func ParsePrefix(key, text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if p.Addr().Is4In6() {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	if err != nil || !p.IsValid() {
		return netip.Prefix{}, Refuse(key, text, notPrefix)
	}
	return p, nil
}

// LastOf returns the last address of a network.
func LastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// ParseNetworks parses the value of a key that is a list of addresses and networks.
func ParseNetworks(key string, texts []string) (all []netip.Prefix, err error) {
	var problems Problems
	for i, text := range texts {
		element := fmt.Sprintf("%s[%d]", key, i)
		if addr, err := ParseAddr(element, text); err == nil {
			all = append(all, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		p, err := ParsePrefix(element, text)
		switch {
		case err != nil:
		case p.Bits() == 0:
			err = Refuse(element, text, "contains all addresses")
		case p != p.Masked():
			err = Refuse(element, p, "has host bits set, the network is "+p.Masked().String()).
				Suggest("write %q", p.Masked())
		}
		problems.Add(err)
		all = append(all, p)
	}
	return all, problems.Err()
}

// ParseAddr parses the value of a key that is an address without a zone. IPv4-mapped IPv6 addresses become IPv4.
func ParseAddr(key, text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, Refuse(key, text, "is not an IP address")
	}
	return a.Unmap(), nil
}

// ParseTable returns the number of a routing table, or 0 if there is none. It refuses the kernel's own tables.
func ParseTable(problems *Problems, key string, table *int64) uint32 {
	err := InRange(key, table, 1, math.MaxUint32)
	if err == nil && table != nil && *table >= unix.RT_TABLE_DEFAULT && *table <= unix.RT_TABLE_LOCAL {
		err = Refuse(key, *table, "is one of the kernel's own tables (default, main, local)")
	}
	if problems.Add(err); table == nil || err != nil {
		return 0
	}
	return uint32(*table)
}

// ParseMAC parses the MAC address in a key. It returns nil for an empty text. An address of six bytes must be one that
// an interface can have. A longer one is for InfiniBand.
func ParseMAC(code uint, key, text string) (net.HardwareAddr, error) {
	if text == "" {
		return nil, nil
	}
	mac, err := net.ParseMAC(text)
	switch {
	case err != nil:
		return nil, RefuseMAC(code, key, text, "it is not six bytes like 02:00:00:00:00:01")
	case len(mac) != 6:
	case mac[0]&1 != 0:
		return nil, RefuseMAC(code, key, text, fmt.Sprintf("%02x is odd: multicast", mac[0]))
	case mac.String() == "00:00:00:00:00:00":
		return nil, RefuseMAC(code, key, text, "all bytes are zero")
	}
	return mac, nil
}

// RefuseMAC returns the error for a MAC address that an interface cannot have, with the reason.
func RefuseMAC(code uint, key, text, why string) *Error {
	return Refuse(key, text, "is not a MAC address of an interface: "+why).WithCode(code).
		Suggest("write it like 02:00:00:00:00:01, the second digit even")
}

func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.Unmap().String()
}
