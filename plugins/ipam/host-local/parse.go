package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
)

func (w wireRange) parse(path string) (ipRange, error) {
	if w.Subnet == nil {
		return ipRange{}, fmt.Errorf("%s.subnet: is missing", path)
	}
	subnet, err := parsePrefix(*w.Subnet)
	if err != nil {
		return ipRange{}, fmt.Errorf("%s.subnet: %w", path, err)
	}
	r, err := newRange(subnet)
	if err != nil {
		return ipRange{}, fmt.Errorf("%s.subnet: %w", path, err)
	}
	for _, end := range []struct {
		key, text string
		to        *netip.Addr
	}{{"rangeStart", w.RangeStart, &r.start}, {"rangeEnd", w.RangeEnd, &r.end}} {
		if end.text == "" {
			continue
		}
		if *end.to, err = parseAddr(end.text); err != nil {
			return ipRange{}, fmt.Errorf("%s.%s: %w", path, end.key, err)
		}
		if !subnet.Contains(*end.to) {
			return ipRange{}, fmt.Errorf("%s.%s: %s is not in the subnet %s", path, end.key, *end.to, subnet)
		}
	}
	if r.end.Less(r.start) {
		return ipRange{}, fmt.Errorf("%s.rangeEnd: %s is before the start, %s", path, r.end, r.start)
	}
	if w.Gateway == "" {
		return r, nil
	}
	if r.gateway, err = parseAddr(w.Gateway); err != nil {
		return ipRange{}, fmt.Errorf("%s.gateway: %w", path, err)
	}
	if r.gateway.BitLen() != r.start.BitLen() {
		return ipRange{}, fmt.Errorf("%s.gateway: %s is not of the address family of %s", path, r.gateway, subnet)
	}
	return r, nil
}

func (w wireRoute) parse(path string) (cni.Route, error) {
	route := cni.Route{MTU: w.MTU, AdvMSS: w.AdvMSS, Priority: w.Priority, Table: w.Table, Scope: w.Scope}
	var err error
	if route.Dst, err = parsePrefix(w.Dst); err != nil {
		return route, fmt.Errorf("%s.dst: %w", path, err)
	}
	if w.GW == "" {
		return route, nil
	}
	if route.GW, err = parseAddr(w.GW); err != nil {
		return route, fmt.Errorf("%s.gw: %w", path, err)
	}
	return route, nil
}

// parseAddr reads an address in any spelling and returns the one that stands
// for all of them: an IPv4 address in IPv6 clothes is IPv4.
func parseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return addr, fmt.Errorf("%q is no IP address", text)
	}
	if addr.Zone() != "" {
		return addr, fmt.Errorf("%q has a zone, which an address that is given away cannot have", text)
	}
	return addr.Unmap(), nil
}

// parsePrefix reads address/length and keeps the host bits.
func parsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("%q is not of the form address/length", text)
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return p, fmt.Errorf("%q is neither IPv4 nor IPv6", text)
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p, nil
}

// parseAskedAddr reads an address or address/length, whose length means
// nothing: the range knows it.
func parseAskedAddr(text string) (netip.Addr, error) {
	if strings.Contains(text, "/") {
		p, err := parsePrefix(text)
		return p.Addr(), err
	}
	return parseAddr(text)
}

// readDNS reads a file in the format of resolv.conf(5).
func readDNS(path string) (cni.DNS, error) {
	if path == "" {
		return cni.DNS{}, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return cni.DNS{}, fmt.Errorf("ipam.resolvConf: %w", err)
	}
	return parseDNS(string(text)), nil
}

func parseDNS(text string) (dns cni.DNS) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0][0] == '#' || f[0][0] == ';' {
			continue
		}
		switch f[0] {
		case "nameserver":
			dns.Nameservers = append(dns.Nameservers, f[1])
		case "domain":
			dns.Domain = f[1]
		case "search":
			dns.Search = append(dns.Search, f[1:]...)
		case "options":
			dns.Options = append(dns.Options, f[1:]...)
		}
	}
	return dns
}
