package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// parse reads a range, which is at path.
func (w wireRange) parse(path string) (ipRange, error) {
	if w.Subnet == nil {
		return ipRange{}, cni.Refuse(path+".subnet", nil, "is missing")
	}
	subnet, err := parsePrefix(*w.Subnet)
	if err != nil {
		return ipRange{}, cni.Refuse(path+".subnet", *w.Subnet, err.Error())
	}
	r, err := newRange(subnet)
	if err != nil {
		refused := cni.Refuse(path+".subnet", subnet, err.Error())
		if subnet != subnet.Masked() {
			refused.Suggest("write %q", subnet.Masked())
		}
		return ipRange{}, refused
	}
	var problems cni.Problems
	for _, end := range []struct {
		key, text string
		to        *netip.Addr
	}{{"rangeStart", w.RangeStart, &r.start}, {"rangeEnd", w.RangeEnd, &r.end}} {
		if end.text == "" {
			continue
		}
		addr, err := parseAddr(end.text)
		switch {
		case err != nil:
			problems.Add(cni.Refuse(path+"."+end.key, end.text, err.Error()))
		case !subnet.Contains(addr):
			problems.Add(cni.Refuse(path+"."+end.key, addr, fmt.Sprintf("is not in the subnet %s", subnet)))
		}
		*end.to = addr
	}
	if problems.Err() == nil && r.end.Less(r.start) {
		problems.Add(cni.Refuse(path+".rangeEnd", r.end, fmt.Sprintf("is before the start, %s", r.start)))
	}
	if w.Gateway == "" {
		return r, problems.Err()
	}
	if r.gateway, err = parseAddr(w.Gateway); err != nil {
		problems.Add(cni.Refuse(path+".gateway", w.Gateway, err.Error()))
	} else if r.gateway.BitLen() != subnet.Addr().BitLen() {
		problems.Add(cni.Refuse(path+".gateway", r.gateway, fmt.Sprintf("is not of the address family of %s", subnet)))
	}
	return r, problems.Err()
}

// parse reads a route, which is at path.
func (w wireRoute) parse(path string) (cni.Route, error) {
	route := cni.Route{MTU: w.MTU, AdvMSS: w.AdvMSS, Priority: w.Priority, Table: w.Table, Scope: w.Scope}
	var problems cni.Problems
	var err error
	switch route.Dst, err = parsePrefix(w.Dst); {
	case w.Dst == "":
		problems.Add(cni.Refuse(path+".dst", nil, "missing").Suggest(`write "dst": "0.0.0.0/0" for the default route`))
	case w.Dst == "default":
		problems.Add(cni.Refuse(path+".dst", w.Dst, err.Error()).Suggest(`write "0.0.0.0/0", or "::/0" for IPv6`))
	case err != nil:
		problems.Add(cni.Refuse(path+".dst", w.Dst, err.Error()))
	}
	if w.GW != "" {
		if route.GW, err = parseAddr(w.GW); err != nil {
			problems.Add(cni.Refuse(path+".gw", w.GW, err.Error()))
		}
	}
	problems.AddIn(path+".", route.CheckNumbers())
	return route, problems.Err()
}

// parseAddr reads an address in any spelling and returns the one that stands
// for all of them: an IPv4 address in IPv6 clothes is IPv4. The error goes on
// after the text.
func parseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return addr, errors.New("is no IP address")
	}
	if addr.Zone() != "" {
		return addr, errors.New("has a zone, which an address that is given away cannot have")
	}
	return addr.Unmap(), nil
}

// parsePrefix reads address/length and keeps the host bits. The error goes on
// after the text.
func parsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, errors.New("is not of the form address/length")
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return p, errors.New("is neither IPv4 nor IPv6")
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
