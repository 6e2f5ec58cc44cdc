package cni

import (
	"cmp"
	"fmt"
	"strings"
)

// DecodeResult reads a result of its cniVersion, or of version when it has none. Text
// that is no result is code 6, an unknown version code 1.
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

// decodeResult is DecodeResult with the problem of each key.
func decodeResult(data []byte, version string) (*Result, error) {
	var head struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := decode(data, &head); err != nil {
		return nil, err
	}
	version = cmp.Or(head.CNIVersion, version, Oldest)
	switch {
	case !Supports(version):
		reason := "is none of " + strings.Join(versions, ", ")
		return nil, Refuse("cniVersion", version, reason).WithCode(CodeIncompatibleVersion)
	case version < "0.3.0":
		var w wire01
		if err := decode(data, &w); err != nil {
			return nil, err
		}
		return w.parse()
	}
	var w wire1
	if err := decode(data, &w); err != nil {
		return nil, err
	}
	return w.parse()
}

func (w wire1) parse() (*Result, error) {
	var problems Problems
	routes, err := ParseRoutes(w.Routes)
	problems.Add(err)
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
	for i, v := range []*wireV4{w.IP4, w.IP6} {
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

// parse checks an address of a result; addressKey is how its version calls it.
func (w wireIP) parse(addressKey string) (IP, error) {
	var ip IP
	var problems Problems
	var err error
	ip.Address, err = ParsePrefix(addressKey, w.Address)
	problems.Add(err)
	if w.Gateway != "" {
		ip.Gateway, err = ParseAddr("gateway", w.Gateway)
		problems.Add(err)
	}
	switch i := w.Interface; {
	case i == nil || *i == -1: // -1: how some plugins write that the address has no interface
	case *i < 0:
		problems.Add(Refuse("interface", *i, "is no index"))
	default:
		ip.Interface = i
	}
	return ip, problems.Err()
}

// ParseRoutes checks the routes of a configuration or a result. Its errors name the key routes.
func ParseRoutes(in []WireRoute) (out []Route, err error) {
	var problems Problems
	for n, w := range in {
		r, err := w.Parse()
		problems.AddIn(fmt.Sprintf("routes[%d]", n), err)
		out = append(out, r)
	}
	return out, problems.Err()
}
