package cni

import (
	"bytes"
	"encoding/json"
)

// Encode writes the result in exactly the shape of version. What a version
// has no room for is left out: 0.1.0 and 0.2.0 take the first address of each
// family and the routes' destinations and gateways, versions before 1.0.0 no
// interface MTU, socket path or PCI address. An unknown version is code 1.
func (r *Result) Encode(version string) ([]byte, error) {
	switch {
	case !Supports(version):
		return nil, Errorf(CodeIncompatibleVersion, "cniVersion: no result has version %q", version)
	case version < "0.3.0":
		return encode(r.wire01(version)), nil
	case version < "1.0.0":
		return encode(r.wire03(version)), nil
	}
	return encode(r.wire1(version)), nil
}

func (r *Result) wire1(version string) wire1 {
	w := wire1{CNIVersion: version}
	for _, i := range r.Interfaces {
		w.Interfaces = append(w.Interfaces, wireInterface(i))
	}
	for _, ip := range r.IPs {
		w.IPs = append(w.IPs, wireIP{Interface: ip.Interface, Address: ip.Address.String(),
			Gateway: addrText(ip.Gateway)})
	}
	for _, route := range r.Routes {
		w.Routes = append(w.Routes, toWireRoute(route))
	}
	if !r.DNS.IsZero() {
		w.DNS = &r.DNS
	}
	return w
}

func (r *Result) wire03(version string) wire1 {
	w := r.wire1(version)
	for i := range w.Interfaces {
		w.Interfaces[i].MTU, w.Interfaces[i].SocketPath, w.Interfaces[i].PCIID = 0, "", ""
	}
	for i, ip := range r.IPs {
		w.IPs[i].Version = "6"
		if ip.Address.Addr().Is4() {
			w.IPs[i].Version = "4"
		}
	}
	w.DNS = &r.DNS // these versions always print it
	return w
}

func (r *Result) wire01(version string) wire01 {
	w := wire01{CNIVersion: version, DNS: r.DNS}
	for _, ip := range r.IPs {
		v4 := ip.Address.Addr().Is4()
		slot := &w.IP6
		if v4 {
			slot = &w.IP4
		}
		if *slot != nil {
			continue
		}
		*slot = &wireV4{IP: ip.Address.String(), Gateway: addrText(ip.Gateway), Routes: r.wireRoutes01(v4)}
	}
	return w
}

func (r *Result) wireRoutes01(v4 bool) []WireRoute {
	var out []WireRoute
	for _, route := range r.Routes {
		if route.Dst.Addr().Is4() == v4 {
			out = append(out, WireRoute{Dst: route.Dst.String(), GW: addrText(route.GW)})
		}
	}
	return out
}

// encode writes a document as plugins print it: indented, no trailing newline,
// with <, > and & as they are. All that we print can be encoded.
func encode(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "    ")
	_ = enc.Encode(v)
	return bytes.TrimRight(b.Bytes(), "\n")
}
