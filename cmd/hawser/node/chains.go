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

// BaseChain is a chain of anybody through which the kernel leads packets.
type BaseChain struct {
	Table    string        `json:"table"` // as nft(8) names it, with "legacy" before one of iptables-legacy
	Name     string        `json:"chain"`
	Hook     string        `json:"hook"`
	Type     string        `json:"type"`
	Priority int32         `json:"priority"`
	Comment  string        `json:"comment,omitempty"`
	Count    int           `json:"rules"`
	Drops    bool          `json:"drops,omitempty"`   // its policy
	DropsAt  int           `json:"dropsAt,omitempty"` // the first rule that drops all, counted from 1
	Accepts  bool          `json:"accepts,omitempty"` // firewall has a rule in it that accepts packets of its containers
	Family   nft.Family    `json:"-"`
	Rules    []RuleSummary `json:"-"` // and, where it drops what is forwarded, those of all chains of its table
}

// CNIForward is the chain in which firewall, the reference's too, accepts packets of containers.
const CNIForward = "CNI-FORWARD"

// IsOurs says whether the plugins made it.
func (b BaseChain) IsOurs() bool { return b.Table == nft.INet.String()+" "+nft.TableName }

// hooks are those that packets to and from containers pass, in their order.
var hooks = []string{"prerouting", "forward", "postrouting"}

// BaseChains are the base chains of those hooks, in the order in which packets pass them: of nftables over netlink, of
// iptables-legacy by its program, where the node has such a table. What could be read comes beside an error.
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

// IsRouted says whether packets that the host routes pass the table.
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
		all = append(all, b.with(rules))
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
		all = append(all, b.with(rules))
	}
	return all
}

// readLegacyRule returns the summary of a rule of iptables-legacy.
func readLegacyRule(r ipt.Rule) RuleSummary {
	target, conditions := r.Option("-j")+r.Option("-g"), len(r.Args)-2 // an option and its value
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

// endsAll says whether a rule drops or rejects every packet.
func endsAll(r RuleSummary) bool { return r.Drops && r.Unconditional }

// with is the chain with the rules of its table.
func (b BaseChain) with(rules []RuleSummary) BaseChain {
	b.Rules = rules
	for _, r := range rules {
		if r.Chain != b.Name {
			continue
		}
		b.Count++
		b.Accepts = b.Accepts || r.Target == CNIForward
		if b.DropsAt == 0 && endsAll(r) {
			b.DropsAt = b.Count
		}
	}
	return b
}

// DropOf is the place, counted from 1, of its first rule that drops all of one interface or network which is asked
// for; 0 for none. It is certain where no rule before may accept or jumps.
func (b BaseChain) DropOf(is func(RuleSummary) bool) (place int, isCertain bool) {
	isCertain = true
	for _, r := range b.Rules {
		if r.Chain != b.Name {
			continue
		}
		place++
		if r.Drops && r.MatchesOne && is(r) {
			return place, isCertain
		}
		isCertain = isCertain && !r.MayAccept && r.Target == ""
	}
	return 0, false
}

// The verdicts: for certain, or where other rules decide.
const (
	StopsIt   = "stops it"
	MayStopIt = "may stop it"
)

// Stops says what the chain does to a packet that nothing in it accepts; nothing where it lets it pass.
func (b BaseChain) Stops() (verdict, why string) {
	switch {
	case b.DropsAt == 1:
		return StopsIt, "its first rule drops every packet"
	case b.DropsAt > 1:
		return MayStopIt, fmt.Sprintf("its rule %d drops every packet that none before it accepts", b.DropsAt)
	case b.Drops && b.Count == 0:
		return StopsIt, "its policy is to drop, and it has no rules"
	case b.Drops && b.Accepts:
		return MayStopIt, "its policy is to drop; firewall accepts its containers' packets there, by " + CNIForward
	case b.Drops:
		return MayStopIt, "its policy is to drop what none of its rules accepts"
	}
	return "", ""
}
