package cni

import (
	"cmp"
	"fmt"
	"strings"
)

// DecodeResult reads a result of any version. Its own cniVersion decides its
// shape; version is taken when it has none. Text that is no result is code 6,
// an unknown version code 1; the message names the key and the value.
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

// decodeResult is DecodeResult with the Problems of each key.
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
	r := &Result{Routes: parseRoutes(w.Routes, "", &problems)}
	for _, i := range w.Interfaces {
		r.Interfaces = append(r.Interfaces, Interface(i))
	}
	for n, ip := range w.IPs {
		parsed, err := ip.parse("address")
		problems.AddIn(fmt.Sprintf("ips[%d].", n), err)
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
	for _, v := range []struct {
		prefix string
		ip     *wireV4
	}{{"ip4.", w.IP4}, {"ip6.", w.IP6}} {
		if v.ip == nil {
			continue
		}
		ip, err := wireIP{Address: v.ip.IP, Gateway: v.ip.Gateway}.parse("ip")
		problems.AddIn(v.prefix, err)
		r.IPs = append(r.IPs, ip)
		r.Routes = append(r.Routes, parseRoutes(v.ip.Routes, v.prefix, &problems)...)
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

func parseRoutes(in []WireRoute, prefix string, problems *Problems) []Route {
	var out []Route
	for n, w := range in {
		r, err := w.Parse()
		problems.AddIn(fmt.Sprintf("%sroutes[%d].", prefix, n), err)
		out = append(out, r)
	}
	return out
}
