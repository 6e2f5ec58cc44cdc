package cni

import (
	"encoding/json"
	"fmt"
	"strings"
)

// DecodeResult reads a result of any version. Its own cniVersion decides its
// shape; version is taken when it has none. Text that is no result is code 6,
// an unknown version code 1; the message names the key and the value.
func DecodeResult(data []byte, version string) (*Result, error) {
	var head struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, Errorf(CodeDecode, "result: %w", complaint(err))
	}
	if head.CNIVersion != "" {
		version = head.CNIVersion
	}
	if version == "" {
		version = Oldest
	}
	var r *Result
	var err error
	switch familyOf(version) {
	case family01:
		r, err = decode01(data)
	case family03, family1:
		r, err = decode1(data)
	default:
		return nil, Errorf(CodeIncompatibleVersion, "result: cniVersion: %q is none of %s", version, strings.Join(versions, ", "))
	}
	if err != nil {
		return nil, Errorf(CodeDecode, "result: %w", complaint(err))
	}
	return r, nil
}

func decode1(data []byte) (*Result, error) {
	var w wire1
	if err := json.Unmarshal(data, &w); err != nil {
		return nil, err
	}
	r := &Result{}
	for _, i := range w.Interfaces {
		r.Interfaces = append(r.Interfaces, Interface(i))
	}
	for n, ip := range w.IPs {
		parsed, err := fromWireIP(ip, "address")
		if err != nil {
			return nil, fmt.Errorf("ips[%d].%w", n, err)
		}
		r.IPs = append(r.IPs, parsed)
	}
	var err error
	if r.Routes, err = fromWireRoutes(w.Routes, "routes"); err != nil {
		return nil, err
	}
	if w.DNS != nil {
		r.DNS = *w.DNS
	}
	return r, nil
}

func decode01(data []byte) (*Result, error) {
	var w wire01
	if err := json.Unmarshal(data, &w); err != nil {
		return nil, err
	}
	r := &Result{DNS: w.DNS}
	for _, v := range []struct {
		key string
		ip  *wireV4
	}{{"ip4", w.IP4}, {"ip6", w.IP6}} {
		if v.ip == nil {
			continue
		}
		ip, err := fromWireIP(wireIP{Address: v.ip.IP, Gateway: v.ip.Gateway}, "ip")
		if err != nil {
			return nil, fmt.Errorf("%s.%w", v.key, err)
		}
		routes, err := fromWireRoutes(v.ip.Routes, v.key+".routes")
		if err != nil {
			return nil, err
		}
		r.IPs = append(r.IPs, ip)
		r.Routes = append(r.Routes, routes...)
	}
	return r, nil
}

func fromWireIP(w wireIP, addressKey string) (IP, error) {
	ip := IP{Interface: w.Interface}
	var err error
	if ip.Address, err = ParsePrefix(addressKey, w.Address); err != nil {
		return ip, err
	}
	if w.Gateway != "" {
		if ip.Gateway, err = ParseAddr("gateway", w.Gateway); err != nil {
			return ip, err
		}
	}
	if w.Interface != nil && *w.Interface < 0 {
		return ip, fmt.Errorf("interface: %d is no index", *w.Interface)
	}
	return ip, nil
}

func fromWireRoutes(in []WireRoute, key string) ([]Route, error) {
	var out []Route
	for n, w := range in {
		r, err := w.Parse()
		if err != nil {
			return nil, fmt.Errorf("%s[%d].%w", key, n, err)
		}
		out = append(out, r)
	}
	return out, nil
}
