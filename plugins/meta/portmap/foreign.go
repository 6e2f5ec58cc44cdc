package main

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// foreignOwner is a container of which the reference plugins have rules in
// iptables: they come before ours in nftables, and before those that are added
// later. There is no record of it.
type foreignOwner struct {
	network, containerID string
	forwards             []forward
}

// refuseForeign fails when rules of the reference's in iptables have a port
// that is wanted. Rules of a container whose address is ours by now are a
// leftover and removed.
func (c *call) refuseForeign(ctx context.Context, s *store, st *state) error {
	for _, t := range st.Targets {
		f := famOf(t.v4())
		where, err := f.variants(c.nf, hostportDNAT)
		if ipt.NotInstalled(err) {
			c.Warn("chain %q may have rules of other plugins for the same ports: %v", hostportDNAT, err)
			err = nil
		}
		if err != nil {
			return err
		}
		for _, v := range where {
			strange, err := f.hasStrangers(c.nf, v, s.ledger, st)
			if err != nil {
				return err
			}
			if !strange {
				continue
			}
			tool, err := ipt.FindVariant(ctx, f.ipt(), v)
			if ipt.NotInstalled(err) {
				c.Warn("chain %q of iptables-%s may have rules of other plugins for the same ports: %v", hostportDNAT, v, err)
				continue
			}
			if err != nil {
				return err
			}
			others, err := owners(ctx, tool, s.ledger, st)
			if err != nil {
				return err
			}
			if err := f.refuse(ctx, c.nf, st, others); err != nil {
				return err
			}
		}
	}
	return nil
}

// hasStrangers says whether a rule leads to a chain of which we have no
// record. The legacy tables do not tell without a program.
func (f fam) hasStrangers(nf *nft.Conn, v ipt.Variant, l ledger, st *state) (bool, error) {
	if v == ipt.Legacy {
		return true, nil
	}
	live, err := nf.Rules(f.nat(), hostportDNAT)
	for _, r := range live {
		if isStranger(r.Target, l, st) {
			return true, err
		}
	}
	return false, err
}

func isStranger(chain string, l ledger, st *state) bool {
	if len(chain) != len(dnPrefix)+21 || chain == dnChain(st.Network, st.ContainerID) {
		return false
	}
	return !l.hasGroup(groupKey(chain[len(dnPrefix):]))
}

// owners reads the reference's rules: those that lead to the chains of
// containers, and the chains of those that have a port that is wanted.
func owners(ctx context.Context, tool ipt.Tool, l ledger, st *state) ([]foreignOwner, error) {
	entries, err := tool.List(ctx, natTable, hostportDNAT)
	if err != nil {
		return nil, err
	}
	var out []foreignOwner
	seen := map[string]bool{}
	for _, entry := range entries {
		chain := entry.Option("-j")
		if seen[chain] || !isStranger(chain, l, st) || !st.wants(entry) {
			continue
		}
		seen[chain] = true
		o := foreignOwner{network: "?", containerID: entry.Option("--comment")}
		if network, id, ok := parseComment(o.containerID); ok {
			o.network, o.containerID = network, id
		}
		rules, err := tool.List(ctx, natTable, chain)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			if f, ok := forwardOf(r); ok {
				o.forwards = append(o.forwards, f)
			}
		}
		out = append(out, o)
	}
	return out, nil
}

// wants says whether one of the state's ports is among those of an entry rule.
func (s *state) wants(entry ipt.Rule) bool {
	ports := strings.Split(entry.Option("--dports"), ",")
	return slices.ContainsFunc(s.Mappings, func(m mapping) bool {
		return m.Proto.String() == entry.Option("-p") && slices.Contains(ports, strconv.Itoa(int(m.HostPort)))
	})
}

// forwardOf reads a rule that translates.
func forwardOf(r ipt.Rule) (f forward, ok bool) {
	to, err := netip.ParseAddrPort(r.Option("--to-destination"))
	port, perr := strconv.ParseUint(r.Option("--dport"), 10, 16)
	p, known := protocols[r.Option("-p")]
	if err != nil || perr != nil || !known || r.Option("-j") != "DNAT" {
		return f, false
	}
	f = forward{p, netip.IPv4Unspecified(), uint16(port), to}
	if to.Addr().Is6() {
		f.host = netip.IPv6Unspecified()
	}
	if d, err := netip.ParsePrefix(r.Option("-d")); err == nil {
		f.host = d.Addr()
	}
	return f, true
}

func (f fam) refuse(ctx context.Context, nf *nft.Conn, st *state, others []foreignOwner) error {
	for _, o := range others {
		taken, ok := o.collides(st)
		if !ok {
			continue
		}
		if !o.leadsTo(st) {
			return portTaken("host port %s: held by network %q, container %q, through the iptables rules of other plugins (DEL or GC of that network removes them)",
				taken, o.network, o.containerID)
		}
		gone := &state{Network: o.network, ContainerID: o.containerID}
		if err := errors.Join(rules{nf: nf, fam: f, st: gone}.remove(ctx)...); err != nil {
			return err
		}
	}
	return nil
}

func (o foreignOwner) collides(st *state) (forward, bool) {
	for _, want := range st.forwards() {
		for _, f := range o.forwards {
			if f.proto == want.proto && f.port == want.port && f.v4() == want.v4() && collide(f.host, want.host) {
				return want, true
			}
		}
	}
	return forward{}, false
}

// leadsTo says whether the rules lead to an address that the attachment has:
// IPAM lends an address once, so the other one is dead.
func (o foreignOwner) leadsTo(st *state) bool {
	for _, f := range o.forwards {
		for _, t := range st.Targets {
			if f.to.Addr() == t.Addr.Addr() {
				return true
			}
		}
	}
	return false
}

// refuseReference is refuseForeign for the rules that the reference plugins have
// in nftables.
func refuseReference(ctx context.Context, nf *nft.Conn, st *state) error {
	for _, t := range st.Targets {
		f := famOf(t.v4())
		there, err := nf.HasTable(f.referenceTable())
		if absent(err) != nil {
			return err
		}
		if !there {
			continue
		}
		for _, chain := range referenceChains[:2] {
			rules, err := nf.Rules(f.referenceTable(), chain)
			if err != nil {
				return err
			}
			for _, r := range rules {
				if err := refuseRule(ctx, nf, st, r); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func refuseRule(ctx context.Context, nf *nft.Conn, st *state, r nft.LiveRule) error {
	taken, ok := st.collides(r)
	if !ok {
		return nil
	}
	if st.mentioned(r) { // its container's address is ours by now
		return delReference(ctx, nf, &state{ContainerID: r.Comment, Targets: st.Targets})
	}
	return portTaken("host port %s: held by container %q, through the nftables rules of other plugins (its DEL removes them)", taken, r.Comment)
}

// collides says whether a rule of the reference's has one of the state's ports.
func (s *state) collides(r nft.LiveRule) (forward, bool) {
	compares := func(value []byte) bool {
		return slices.ContainsFunc(r.Compared(len(value)), func(v []byte) bool { return bytes.Equal(v, value) })
	}
	for _, f := range s.forwards() {
		if !compares([]byte{byte(f.port >> 8), byte(f.port)}) || !compares([]byte{byte(f.proto)}) {
			continue
		}
		host := nft.AddrKey(f.host)
		if f.host.IsUnspecified() || compares(host) || len(r.Compared(len(host))) == 0 {
			return f, true
		}
	}
	return forward{}, false
}
