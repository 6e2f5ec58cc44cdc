package cni

import (
	"encoding/json"
	"fmt"
	"net/netip"
)

// The shapes of a result on the wire. wire1 is that of 1.0.0 and later, and
// with the address versions filled in that of 0.3.0 to 0.4.0.
type wire1 struct {
	CNIVersion string          `json:"cniVersion"`
	Interfaces []wireInterface `json:"interfaces,omitempty"`
	IPs        []wireIP        `json:"ips,omitempty"`
	Routes     []wireRoute     `json:"routes,omitempty"`
	DNS        *DNS            `json:"dns,omitempty"`
}

type wireInterface struct {
	Name       string `json:"name"`
	MAC        string `json:"mac,omitempty"`
	MTU        int    `json:"mtu,omitempty"`
	Sandbox    string `json:"sandbox,omitempty"`
	SocketPath string `json:"socketPath,omitempty"`
	PCIID      string `json:"pciID,omitempty"`
}

type wireIP struct {
	Version   string `json:"version,omitempty"`
	Interface *int   `json:"interface,omitempty"`
	Address   string `json:"address"`
	Gateway   string `json:"gateway,omitempty"`
}

type wireRoute struct {
	Dst      string `json:"dst"`
	GW       string `json:"gw,omitempty"`
	MTU      int    `json:"mtu,omitempty"`
	AdvMSS   int    `json:"advmss,omitempty"`
	Priority int64  `json:"priority,omitempty"`
	Table    *int64 `json:"table,omitempty"`
	Scope    *int   `json:"scope,omitempty"`
}

// wire01 is the shape of 0.1.0 and 0.2.0: one address of each family.
type wire01 struct {
	CNIVersion string  `json:"cniVersion"`
	IP4        *wireV4 `json:"ip4,omitempty"`
	IP6        *wireV4 `json:"ip6,omitempty"`
	DNS        DNS     `json:"dns"`
}

type wireV4 struct {
	IP      string      `json:"ip"`
	Gateway string      `json:"gateway,omitempty"`
	Routes  []wireRoute `json:"routes,omitempty"`
}

// MarshalJSON writes the route as the lists of results and of plugin
// configurations spell it.
func (r Route) MarshalJSON() ([]byte, error) { return json.Marshal(toWireRoute(r)) }

// UnmarshalJSON reads a route from a result or a plugin configuration; dst is
// required. Errors name the key and the value.
func (r *Route) UnmarshalJSON(data []byte) error {
	var w wireRoute
	if err := json.Unmarshal(data, &w); err != nil {
		return err
	}
	parsed, err := fromWireRoute(w)
	if err != nil {
		return err
	}
	*r = parsed
	return nil
}

func toWireRoute(r Route) wireRoute {
	return wireRoute{
		Dst: r.Dst.String(), GW: addrText(r.GW), MTU: r.MTU, AdvMSS: r.AdvMSS,
		Priority: int64(r.Priority), Table: converted[int64](r.Table), Scope: r.Scope,
	}
}

func fromWireRoute(w wireRoute) (Route, error) {
	r := Route{
		MTU: w.MTU, AdvMSS: w.AdvMSS,
		Priority: uint32(w.Priority), Table: converted[uint32](w.Table), Scope: w.Scope,
	}
	var err error
	if r.Dst, err = ParsePrefix(w.Dst); err != nil {
		return r, fmt.Errorf("dst: %w", err)
	}
	if w.GW != "" {
		if r.GW, err = ParseAddr(w.GW); err != nil {
			return r, fmt.Errorf("gw: %w", err)
		}
	}
	return r, w.checkNumbers()
}

// CheckNumbers refuses, with code 7, numbers that no route can have.
func (r Route) CheckNumbers() error { return toWireRoute(r).checkNumbers() }

func (w wireRoute) checkNumbers() error {
	var problems Problems
	for _, n := range []struct {
		key   string
		value int64
		most  int64
	}{
		{"mtu", int64(w.MTU), 1<<31 - 1},
		{"advmss", int64(w.AdvMSS), 1<<31 - 1},
		{"priority", w.Priority, 1<<32 - 1},
		{"table", orZero(w.Table), 1<<32 - 1},
		{"scope", int64(orZero(w.Scope)), 255},
	} {
		if n.value < 0 || n.value > n.most {
			problems.Add(Refuse(n.key, n.value, fmt.Sprintf("is not between 0 and %d", n.most)))
		}
	}
	return problems.Err()
}

func orZero[T int | int64](p *T) T {
	if p == nil {
		return 0
	}
	return *p
}

// converted is the number that p points to, of another size.
func converted[To, From uint32 | int64](p *From) *To {
	if p == nil {
		return nil
	}
	n := To(*p)
	return &n
}

// ParsePrefix reads an address in CIDR notation and keeps its host bits. An
// IPv4 address mapped into IPv6 becomes the IPv4 address it stands for.
func ParsePrefix(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is no address in CIDR notation", s)
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, fmt.Errorf("%q mixes IPv4 and IPv6", s)
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p, nil
}

// ParseAddr reads an address without zone. An IPv4 address mapped into IPv6
// becomes the IPv4 address it stands for.
func ParseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q is no IP address", s)
	}
	return a.Unmap(), nil
}

func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.Unmap().String()
}
