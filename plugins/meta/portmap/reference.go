package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// The reference plugins' host ports in nftables: rules in tables of their own whose comment is the
// container ID, without a network.
func (f family) referenceTable() nft.Table { return nft.Table{Family: f.Family, Name: "cni_hostport"} }

var referenceChains = []string{"hostports", "hostip_hostports", "masquerading"}

// hostPortOf reads the host port of an iptables rule that translates one.
func hostPortOf(r ipt.Rule) (p hostPort, ok bool) {
	to, err := netip.ParseAddrPort(r.Option("--to-destination"))
	port, portErr := strconv.ParseUint(r.Option("--dport"), 10, 16)
	number, known := protocolOf(r.Option("-p"))
	if err != nil || portErr != nil || !known || r.Option("-j") != "DNAT" {
		return p, false
	}
	p = hostPort{number, netip.IPv4Unspecified(), uint16(port), to}
	if to.Addr().Is6() {
		p.Addr = netip.IPv6Unspecified()
	}
	if d, err := netip.ParsePrefix(r.Option("-d")); err == nil {
		p.Addr = d.Addr()
	}
	return p, true
}

func (r *record) hasAddr(addr netip.Addr) bool {
	return slices.ContainsFunc(r.Addrs, func(a address) bool { return a.Addr.Addr() == addr })
}

// isReference says whether the reference makes such rules for containers.
func isReference(rule nft.LiveRule) bool { return slices.Contains(referenceChains, rule.Chain) }

// isIn says whether a rule of the reference's translates the host port.
func (p hostPort) isIn(rule nft.LiveRule) bool {
	compares := func(value []byte) bool {
		return slices.ContainsFunc(rule.Compared(len(value)), func(v []byte) bool { return bytes.Equal(v, value) })
	}
	if !compares([]byte{byte(p.Port >> 8), byte(p.Port)}) || !compares([]byte{byte(p.Proto)}) {
		return false
	}
	addr := nft.AddrKey(p.Addr)
	return p.Addr.IsUnspecified() || compares(addr) || len(rule.Compared(len(addr))) == 0
}

// isMentioned says whether the rule is about an address of the record.
func (r *record) isMentioned(rule nft.LiveRule) bool {
	return slices.ContainsFunc(r.Addrs, func(a address) bool { return rule.Mentions(nft.AddrKey(a.Addr.Addr())) })
}

// isReferenceRule says whether the reference made the rule for the record's container. Without addresses in the
// record any rule of the container ID is.
func (r *record) isReferenceRule(rule nft.LiveRule) bool {
	return rule.Comment == r.ContainerID && (len(r.Addrs) == 0 || r.isMentioned(rule))
}

// checkReference compares the reference's nftables rules of the container, if it has any, with those that
// the reference makes.
func (c *call) checkReference(r *record) (found bool, err error) {
	var diffs []error
	for _, a := range r.served() {
		f := familyOf(a.v4())
		differs := func(format string, args ...any) {
			diffs = append(diffs, drift("nftables table %q: %s", f.referenceTable(), fmt.Sprintf(format, args...)))
		}
		all, err := c.nf.Rules(f.referenceTable(), "")
		if err != nil {
			return false, nft.IfSupported(err)
		}
		own := slices.DeleteFunc(slices.Clone(all), func(rule nft.LiveRule) bool {
			return rule.Comment != r.ContainerID || !isReference(rule)
		})
		found = found || len(own) > 0
		for _, p := range r.hostPorts() {
			if p.Addr.Is4() == a.v4() && !slices.ContainsFunc(own, p.isTranslatedBy) {
				differs("no rule of host port %s", p)
			}
		}
		for _, way := range [][2]string{{"prerouting", "hostports_all"}, {"output", "hostports_all"},
			{"hostports_all", "hostports"}} {
			leads := func(rule nft.LiveRule) bool { return rule.Chain == way[0] && rule.Target == way[1] }
			if !slices.ContainsFunc(all, leads) {
				differs("no rule leads from chain %q to chain %q", way[0], way[1])
			}
		}
		masqueraded := slices.DeleteFunc(own, func(rule nft.LiveRule) bool {
			return rule.Chain != "masquerading" || !rule.Mentions(nft.AddrKey(a.Addr.Addr()))
		})
		if len(masqueraded) < len(r.masqueraded(a)) {
			differs("%d rules masquerade what comes to %s", len(masqueraded), a.Addr.Addr())
		}
	}
	return found, errors.Join(diffs...)
}

// isTranslatedBy says whether a rule of the reference's leads this host port, and no other one, to the container.
func (p hostPort) isTranslatedBy(rule nft.LiveRule) bool {
	if p.Addr.IsUnspecified() != (len(rule.Compared(len(nft.AddrKey(p.Addr)))) == 0) {
		return false
	}
	port := p.To.Port()
	return p.isIn(rule) && rule.Mentions(nft.AddrKey(p.To.Addr())) && rule.Mentions([]byte{byte(port >> 8), byte(port)})
}

// delReference removes the reference's nftables rules that match.
func delReference(ctx context.Context, nf *nft.Conn, matches func(nft.LiveRule) bool) error {
	for _, f := range families() {
		err := nft.Leftover{Table: f.referenceTable(), Rule: func(rule nft.LiveRule) bool {
			return isReference(rule) && matches(rule)
		}}.Remove(ctx, nf)
		if err != nil {
			return nft.IfSupported(err)
		}
	}
	return nil
}
