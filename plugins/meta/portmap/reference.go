package main

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// The reference plugins' host ports in nftables: rules in tables of their own whose comment is the
// container ID, without a network.
func (f family) referenceTable() nft.Table { return nft.Table{Family: f.Family, Name: "cni_hostport"} }

var referenceChains = []string{"hostports", "hostip_hostports", "masquerading"}

// entries are the iptables rules, of either variant, that lead to the chains of containers that which selects.
func (f family) entries(ctx context.Context, nf *nft.Conn, which func(chain string) bool) ([]ipt.Rule, error) {
	return ipt.Chain{Family: f.ipt, Table: natTable, From: hostportDNAT}.Rules(ctx, nf, func(chain string) bool {
		return strings.HasPrefix(chain, dnPrefix) && which(chain)
	})
}

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

// referenceRules are the rules of chains of the reference's; none where it has no table.
func (f family) referenceRules(nf *nft.Conn, chains ...string) ([]nft.LiveRule, error) {
	all, err := nf.Rules(f.referenceTable(), "")
	return slices.DeleteFunc(all, func(r nft.LiveRule) bool { return !slices.Contains(chains, r.Chain) }), err
}

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

// isMentioned says whether the rule is about an address of the record. With a record without addresses any rule is.
func (r *record) isMentioned(rule nft.LiveRule) bool {
	return len(r.Addrs) == 0 || slices.ContainsFunc(r.Addrs, func(a address) bool {
		return rule.Mentions(nft.AddrKey(a.Addr.Addr()))
	})
}

// checkReference compares the reference's nftables rules of the container, if it has any, with those that
// the reference makes.
func (c *call) checkReference(r *record) (found bool, err error) {
	var diffs []error
	for _, a := range r.served() {
		f := familyOf(a.v4())
		all, err := f.referenceRules(c.nf, referenceChains...)
		if err != nil {
			return false, nft.IfSupported(err)
		}
		own := slices.DeleteFunc(all, func(rule nft.LiveRule) bool { return rule.Comment != r.ContainerID })
		found = found || len(own) > 0
		for _, p := range r.hostPorts() {
			if p.Addr.Is4() == a.v4() && !slices.ContainsFunc(own, p.isTranslatedBy) {
				diffs = append(diffs, drift("nftables table %q: no rule of host port %s", f.referenceTable(), p))
			}
		}
		for _, way := range [][2]string{{"prerouting", "hostports_all"}, {"output", "hostports_all"},
			{"hostports_all", "hostports"}} {
			rules, err := f.referenceRules(c.nf, way[0])
			if err != nil {
				return found, err
			}
			if !slices.ContainsFunc(rules, func(rule nft.LiveRule) bool { return rule.Target == way[1] }) {
				diffs = append(diffs, drift("nftables table %q: no rule leads from chain %q to chain %q",
					f.referenceTable(), way[0], way[1]))
			}
		}
		masqueraded, err := f.referenceRules(c.nf, "masquerading")
		if err != nil {
			return found, err
		}
		if n := r.countMentioned(masqueraded, a); r.Options.SNAT && n < len(r.masqueraded(a)) {
			diffs = append(diffs, drift("nftables table %q: %d rules masquerade what comes to %s", f.referenceTable(),
				n, a.Addr.Addr()))
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

// countMentioned counts the container's rules that are about the address.
func (r *record) countMentioned(rules []nft.LiveRule, a address) (n int) {
	for _, rule := range rules {
		if rule.Comment == r.ContainerID && rule.Mentions(nft.AddrKey(a.Addr.Addr())) {
			n++
		}
	}
	return n
}

// collectReference removes the reference's nftables rules of containers that have nothing valid, where it is
// known that this network gave them the address: they name no network.
func (c *call) collectReference(ctx context.Context, all []*record) error {
	var left []nft.LiveRule
	for _, f := range families() {
		rules, err := f.referenceRules(c.nf, referenceChains...)
		if err != nil {
			return nft.IfSupported(err)
		}
		left = append(left,
			slices.DeleteFunc(rules, func(rule nft.LiveRule) bool { return c.Valid.HasContainer(rule.Comment) })...)
	}
	if len(left) == 0 {
		return nil
	}
	known, err := ipam.Known(c.Conf, c.Network)
	if err != nil {
		return err
	}
	for _, r := range all {
		for _, a := range r.Addrs {
			known[a.Addr.Addr()] = known[a.Addr.Addr()] || r.Network == c.Network
		}
	}
	garbage := map[string]*record{}
	for _, rule := range left {
		for addr, ours := range known {
			if ours && rule.Mentions(nft.AddrKey(addr)) {
				garbage[rule.Comment] = garbage[rule.Comment].withAddr(rule.Comment, addr)
			}
		}
	}
	var errs []error
	for _, r := range garbage {
		errs = append(errs, delReference(ctx, c.nf, r))
	}
	return errors.Join(errs...)
}

func (r *record) withAddr(containerID string, addr netip.Addr) *record {
	if r == nil {
		r = &record{ContainerID: containerID}
	}
	r.Addrs = append(r.Addrs, address{Addr: netip.PrefixFrom(addr, addr.BitLen())})
	return r
}

// delReference removes the reference's nftables rules of the container that are about its addresses.
func delReference(ctx context.Context, nf *nft.Conn, r *record) error {
	for _, f := range families() {
		err := nft.Leftover{Table: f.referenceTable(), Rule: func(rule nft.LiveRule) bool {
			return slices.Contains(referenceChains, rule.Chain) && rule.Comment == r.ContainerID && r.isMentioned(rule)
		}}.Remove(ctx, nf)
		if err != nil {
			return nft.IfSupported(err)
		}
	}
	return nil
}

// referenceContainers lists the containers for which iptables has chains of the network, in either variant.
func (c *call) referenceContainers(ctx context.Context) ([]string, error) {
	var ids []string
	var errs []error
	for _, f := range families() {
		entries, err := f.entries(ctx, c.nf, func(string) bool { return true })
		errs = append(errs, err)
		for _, rule := range entries {
			name, id, ok := parseComment(rule.Option("--comment"))
			if ok && name == c.Network && rule.Option("-j") == dnChain(name, id) && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids, errors.Join(errs...)
}
