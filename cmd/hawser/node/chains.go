package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// BaseChain is a chain of any program that is attached to a netfilter hook.
type BaseChain struct {
	Table    string        `json:"table"` // as nft(8) names it; with the prefix "legacy" for iptables-legacy
	Name     string        `json:"chain"`
	Hook     string        `json:"hook"`
	Type     string        `json:"type"`
	Priority int32         `json:"priority"`
	Comment  string        `json:"comment,omitempty"`
	Count    int           `json:"rules"`
	Drops    bool          `json:"drops,omitempty"`   // the policy is drop
	DropsAt  int           `json:"dropsAt,omitempty"` // number of the first rule that drops every packet, from 1; 0 = none
	Family   nft.Family    `json:"-"`
	Rules    []RuleSummary `json:"-"` // for legacy tables and forward chains that drop, also other chains' rules
}

// CNIForward is the chain in which firewall accepts packets of containers. The reference's firewall has the same chain.
const CNIForward = "CNI-FORWARD"

// IsOurs reports whether the chain is in Hawser's table.
func (b BaseChain) IsOurs() bool { return b.Table == nft.INet.String()+" "+nft.TableName }

// hooks are the hooks that packets to and from containers pass, in this order.
var hooks = []string{"prerouting", "forward", "postrouting"}

// BaseChains returns the base chains of the hooks that packets of containers pass, in the order in which packets pass
// them. It reads nftables over netlink, and iptables-legacy with its program if the node has such tables. With an error
// it returns the chains that could be read.
func BaseChains(ctx context.Context) ([]BaseChain, error) {
	nf := nft.New()
	defer nf.Close()
	all, err := nftablesChains(nf)
	errs := []error{nft.IfSupported(err)}
	for _, family := range nft.Families() {
		for _, table := range []string{"raw", "mangle", "nat", "filter", "security"} {
			edit, err := ipt.Tool{Family: family, Variant: ipt.Legacy}.Read(ctx, table)
			if errs = append(errs, err); err == nil {
				all = append(all, legacyChains(family, table, edit)...)
			}
		}
	}
	sort.SliceStable(all, func(i, j int) bool {
		a, b := all[i], all[j]
		return cmp.Or(slices.Index(hooks, a.Hook)-slices.Index(hooks, b.Hook), cmp.Compare(a.Priority, b.Priority)) < 0
	})
	return all, errors.Join(errs...)
}

// IsRouted reports whether packets that the host routes pass the table.
func IsRouted(t nft.Table) bool {
	return slices.Contains([]nft.Family{nft.INet, nft.IPv4, nft.IPv6}, t.Family)
}

func nftablesChains(nf *nft.Conn) (all []BaseChain, err error) {
	chains, err := nf.Chains(nft.Table{})
	if err != nil {
		return nil, err
	}
	points := map[uint32]string{nft.Prerouting: hooks[0], nft.Forward: hooks[1], nft.Postrouting: hooks[2]}
	for _, c := range chains {
		if c.Hook == nil || !IsRouted(c.Table) || points[c.Hook.Point] == "" {
			continue
		}
		rules, err := ReadRules(nf, c.Table, c.Name)
		if err == nil && c.Hook.Point == nft.Forward && (c.Drops || slices.ContainsFunc(rules, endsAll)) {
			rules, err = ReadRules(nf, c.Table, "")
		}
		if err != nil {
			return all, err
		}
		b := BaseChain{Table: c.Table.String(), Name: c.Name, Hook: points[c.Hook.Point], Type: c.Hook.Type,
			Priority: c.Hook.Priority, Comment: c.Comment, Drops: c.Drops, Family: c.Table.Family}
		all = append(all, b.withRules(rules))
	}
	return all, nil
}

func legacyChains(family nft.Family, table string, edit *ipt.Edit) (all []BaseChain) {
	var rules []RuleSummary
	for _, r := range edit.Rules {
		rules = append(rules, readLegacyRule(r))
	}
	priorities := map[string]int32{"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}
	for _, hook := range hooks {
		name := strings.ToUpper(hook)
		if !edit.HasChain(name) {
			continue
		}
		b := BaseChain{Table: "legacy " + family.String() + " " + table, Name: name, Hook: hook, Type: table,
			Priority: priorities[table], Drops: slices.Contains(edit.Drops, name), Family: family}
		if table == "nat" && hook == "postrouting" {
			b.Priority = 100
		}
		all = append(all, b.withRules(rules))
	}
	return all
}

// readLegacyRule returns the summary of a rule of iptables-legacy.
func readLegacyRule(r ipt.Rule) RuleSummary {
	target, conditions := r.Option("-j")+r.Option("-g"), len(r.Args)-2 // without the target option and its value
	if r.Option("--reject-with") != "" {
		conditions -= 2
	}
	m := RuleSummary{Chain: r.Chain, Target: target, MayAccept: target == "ACCEPT",
		Drops: target == "DROP" || target == "REJECT", Unconditional: conditions == 0}
	for _, option := range []string{"-i", "-o"} {
		if name := r.Option(option); name != "" {
			m.Links = append(m.Links, strings.Replace(name, "+", "*", 1))
		}
	}
	for _, option := range []string{"-s", "-d"} {
		if p, err := netip.ParsePrefix(r.Option(option)); err == nil {
			m.Networks = append(m.Networks, p)
		}
	}
	m.MatchesOne = conditions == 2 && len(m.Links)+len(m.Networks) == 1
	return m
}

// endsAll reports whether a rule drops or rejects every packet.
func endsAll(r RuleSummary) bool { return r.Drops && r.Unconditional }

// withRules returns the chain with its rules and the facts that follow from them.
func (b BaseChain) withRules(rules []RuleSummary) BaseChain {
	b.Rules = rules
	for _, r := range rules {
		if r.Chain != b.Name {
			continue
		}
		b.Count++
		if b.DropsAt == 0 && endsAll(r) {
			b.DropsAt = b.Count
		}
	}
	return b
}

// FirstDrop returns the number, from 1, of the chain's first rule that matches and drops all packets of one interface
// or network; 0 if no rule does so. The drop is certain if no earlier rule may accept packets or jumps.
func (b BaseChain) FirstDrop(matches func(RuleSummary) bool) (place int, isCertain bool) {
	isCertain = true
	for _, r := range b.Rules {
		if r.Chain != b.Name {
			continue
		}
		place++
		if r.Drops && r.MatchesOne && matches(r) {
			return place, isCertain
		}
		isCertain = isCertain && !r.MayAccept && r.Target == ""
	}
	return 0, false
}

// The verdicts about an obstacle: certain, or dependent on rules that are not evaluated.
const (
	StopsIt   = "stops it"
	MayStopIt = "may stop it"
)

// Verdict returns StopsIt or MayStopIt, and the reason, if the chain drops packets that none of its rules accepts. It
// returns an empty verdict if the chain lets such packets pass.
func (b BaseChain) Verdict() (verdict, why string) {
	switch {
	case b.DropsAt == 1:
		return StopsIt, "its first rule drops every packet"
	case b.DropsAt > 1:
		return MayStopIt, fmt.Sprintf("its rule %d drops every packet that no earlier rule accepts", b.DropsAt)
	case b.Drops && b.Count == 0:
		return StopsIt, "its policy is drop, and it has no rules"
	case b.Drops:
		return MayStopIt, "its policy is drop, unless one of its rules accepts the packet"
	}
	return "", ""
}
