package cni

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
)

// DecodeResult parses a result in the version that it names, or otherwise in version. The error has code 6, or code 1
// for an unknown version.
func DecodeResult(data []byte, version string) (*Result, error) {
	r, err := decodeResult(data, version)
	if err != nil {
		code := CodeDecode
		if AsError(err).Code == CodeIncompatibleVersion {
			code = CodeIncompatibleVersion
		}
		return nil, Errorf(code, "result: %w", err)
	}
	return r, nil
}

// decodeResult is DecodeResult with an unwrapped error, from which ProblemsOf returns each invalid value as a Problem.
func decodeResult(data []byte, version string) (*Result, error) {
	var head struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := decode(data, &head); err != nil {
		return nil, err
	}
	version = cmp.Or(head.CNIVersion, version, Oldest)
	if !Supports(version) {
		reason := "is not one of " + strings.Join(versions, ", ")
		return nil, Refuse("cniVersion", version, reason).WithCode(CodeIncompatibleVersion)
	}
	var wire interface{ parse() (*Result, error) } = &wire1{}
	if version < "0.3.0" {
		wire = &wire01{}
	}
	if err := decode(data, wire); err != nil {
		return nil, err
	}
	if err := CheckSizes(wire); err != nil {
		return nil, err
	}
	return wire.parse()
}

func (w wire1) parse() (*Result, error) {
	var problems Problems
	routes, err := ParseRoutes(w.Routes)
	problems.Add(err)
	for n, i := range w.Interfaces {
		problems.AddIn(fmt.Sprintf("interfaces[%d]", n), CheckName("name", i.Name))
	}
	r := &Result{Interfaces: w.Interfaces, Routes: routes}
	for n, ip := range w.IPs {
		parsed, err := ip.parse("address")
		problems.AddIn(fmt.Sprintf("ips[%d]", n), err)
		r.IPs = append(r.IPs, parsed)
	}
	if w.DNS != nil {
		r.DNS = *w.DNS
	}
	return r, problems.Err()
}

func (w wire01) parse() (*Result, error) {
	var problems Problems
	r := &Result{DNS: w.DNS}
	for i, v := range []*wireIP01{w.IP4, w.IP6} {
		if v == nil {
			continue
		}
		key := []string{"ip4", "ip6"}[i]
		ip, err := wireIP{Address: v.IP, Gateway: v.Gateway}.parse("ip")
		problems.AddIn(key, err)
		routes, err := ParseRoutes(v.Routes)
		problems.AddIn(key, err)
		r.IPs, r.Routes = append(r.IPs, ip), append(r.Routes, routes...)
	}
	return r, problems.Err()
}

// parse parses an address of a result. addressKey is the key of the address, which depends on the version.
func (w wireIP) parse(addressKey string) (ip IP, err error) {
	var problems Problems
	ip.Address, err = ParsePrefix(addressKey, w.Address)
	problems.Add(err)
	if w.Gateway != "" {
		ip.Gateway, err = ParseAddr("gateway", w.Gateway)
		problems.Add(err)
	}
	switch i := w.Interface; {
	case i == nil || *i == -1: // some plugins write -1 if the address has no interface
	case *i < 0:
		problems.Add(Refuse("interface", *i, "is not an index"))
	default:
		ip.Interface = i
	}
	return ip, problems.Err()
}

// ParseRoutes parses the routes of a configuration or a result. Its errors contain the key routes.
func ParseRoutes(in []WireRoute) (out []Route, err error) {
	var problems Problems
	for n, w := range in {
		r, err := w.parse()
		problems.AddIn(fmt.Sprintf("routes[%d]", n), err)
		out = append(out, r)
	}
	return out, problems.Err()
}

// Encode returns the JSON of the result in a version. The error for an unknown version has code 1. In 0.1.0 and 0.2.0,
// a result has only the first address of each family, and routes have no options. Before 1.0.0, interfaces have no MTU,
// socket path or PCI address.
func (r *Result) Encode(version string) ([]byte, error) {
	switch {
	case !Supports(version):
		return nil, Errorf(CodeIncompatibleVersion, "cniVersion: no result has version %q", version)
	case version < "0.3.0":
		return encode(r.wire01(version)), nil
	}
	return encode(r.wire1(version)), nil
}

func (r *Result) wire1(version string) wire1 {
	w := wire1{CNIVersion: version}
	old := version < "1.0.0"
	for _, i := range r.Interfaces {
		if old {
			i.MTU, i.SocketPath, i.PCIID = 0, "", ""
		}
		w.Interfaces = append(w.Interfaces, i)
	}
	for _, ip := range r.IPs {
		wire := wireIP{Interface: ip.Interface, Address: ip.Address.String(), Gateway: addrText(ip.Gateway)}
		switch {
		case old && ip.Address.Addr().Is4():
			wire.Version = "4"
		case old:
			wire.Version = "6"
		}
		w.IPs = append(w.IPs, wire)
	}
	for _, route := range r.Routes {
		w.Routes = append(w.Routes, WireRoute{Dst: route.Dst.String(), GW: addrText(route.GW), MTU: route.MTU,
			AdvMSS: route.AdvMSS, Priority: route.Priority, Table: route.Table, Scope: route.Scope})
	}
	if old || !r.DNS.IsZero() { // always printed before 1.0.0
		w.DNS = &r.DNS
	}
	return w
}

func (r *Result) wire01(version string) wire01 {
	w := wire01{CNIVersion: version, DNS: r.DNS}
	family := func(a netip.Addr) **wireIP01 {
		if a.Is4() {
			return &w.IP4
		}
		return &w.IP6
	}
	for _, ip := range r.IPs {
		if first := family(ip.Address.Addr()); *first == nil {
			*first = &wireIP01{IP: ip.Address.String(), Gateway: addrText(ip.Gateway)}
		}
	}
	for _, route := range r.Routes {
		if v := *family(route.Dst.Addr()); v != nil {
			v.Routes = append(v.Routes, WireRoute{Dst: route.Dst.String(), GW: addrText(route.GW)})
		}
	}
	return w
}

// encode returns the indented JSON of v without a final newline. It does not escape <, > and &.
func encode(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "    ")
	_ = enc.Encode(v)
	return bytes.TrimRight(b.Bytes(), "\n")
}
