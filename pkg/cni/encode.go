package cni

import (
	"bytes"
	"encoding/json"
	"net/netip"
)

// Encode writes the result in the shape of version; an unknown one is code 1. 0.1.0 and
// 0.2.0 have the first address of each family, and routes without options; versions
// before 1.0.0 have no MTU, socket path or PCI address of interfaces.
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
	if old || !r.DNS.IsZero() { // old versions always print it
		w.DNS = &r.DNS
	}
	return w
}

func (r *Result) wire01(version string) wire01 {
	w := wire01{CNIVersion: version, DNS: r.DNS}
	family := func(a netip.Addr) **wireV4 {
		if a.Is4() {
			return &w.IP4
		}
		return &w.IP6
	}
	for _, ip := range r.IPs {
		if first := family(ip.Address.Addr()); *first == nil {
			*first = &wireV4{IP: ip.Address.String(), Gateway: addrText(ip.Gateway)}
		}
	}
	for _, route := range r.Routes {
		if v := *family(route.Dst.Addr()); v != nil {
			v.Routes = append(v.Routes, WireRoute{Dst: route.Dst.String(), GW: addrText(route.GW)})
		}
	}
	return w
}

// encode writes a document indented, without a newline at its end, <, > and & as they are.
func encode(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "    ")
	_ = enc.Encode(v)
	return bytes.TrimRight(b.Bytes(), "\n")
}
