package node

import (
	"cmp"
	"context"
	"errors"
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
	Rules    []RuleSummary `json:"-"`
	// isPartial is true if Rules has only the rules of this chain, without the rules of chains to which they jump.
	isPartial bool
}

// CNIForward is the chain in which firewall accepts packets of containers. The reference's firewall has the same chain.
const CNIForward = "CNI-FORWARD"

// IsOurs reports whether the chain is in Hawser's table.
func (b *BaseChain) IsOurs() bool { return b.Table == nft.INet.String()+" "+nft.TableName }

// hooks are the hooks that packets to and from containers pass, in this order.
var hooks = []string{"prerouting", "forward", "postrouting"}

// BaseChains returns the base chains of the hooks that packets of containers pass, in the order in which packets pass
// them. It reads nftables over netlink, and iptables-legacy with its program if the node has such tables. With an error
// it returns the chains that could be read.
func BaseChains(ctx context.Context) ([]*BaseChain, error) {
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

func nftablesChains(nf *nft.Conn) (all []*BaseChain, err error) {
	chains, err := nf.Chains(nft.Table{})
	if err != nil {
		return nil, err
	}
	points := map[uint32]string{nft.Prerouting: hooks[0], nft.Forward: hooks[1], nft.Postrouting: hooks[2]}
	for _, c := range chains {
		if c.Hook == nil || !IsRouted(c.Table) || points[c.Hook.Point] == "" {
			continue
		}
		rules, isPartial, err := readReached(nf, c)
		if err != nil {
			return all, err
		}
		b := &BaseChain{Table: c.Table.String(), Name: c.Name, Hook: points[c.Hook.Point], Type: c.Hook.Type,
			Priority: c.Hook.Priority, Comment: c.Comment, Drops: c.Drops, Family: c.Table.Family,
			isPartial: isPartial}
		all = append(all, b.withRules(rules))
	}
	return all, nil
}

// maxReached is the number of chains below a base chain that are read.
const maxReached = 200

// readReached returns the rules of a base chain and of the chains to which they jump. It returns only the rules of the
// base chain if this is a nat chain, which has no rules that drop, or if there are more than maxReached other chains.
// isPartial is true if rules are missing.
func readReached(nf *nft.Conn, base nft.LiveChain) (rules []RuleSummary, isPartial bool, err error) {
	rules, err = ReadRules(nf, base.Table, base.Name)
	seen, baseCount := map[string]bool{}, len(rules)
	for i := 0; i < len(rules) && err == nil; i++ {
		target := rules[i].Target
		if target == "" || seen[target] {
			continue
		}
		if seen[target] = true; base.Hook.Type == "nat" || len(seen) > maxReached {
			return rules[:baseCount], true, nil
		}
		var reached []RuleSummary
		reached, err = ReadRules(nf, base.Table, target)
		rules = append(rules, reached...)
	}
	return rules, false, err
}

func legacyChains(family nft.Family, table string, edit *ipt.Edit) (all []*BaseChain) {
	var rules []RuleSummary
	numbers := map[string]int{}
	for _, r := range edit.Rules {
		numbers[r.Chain]++
		rules = append(rules, readLegacyRule(r, numbers[r.Chain], edit.HasChain))
	}
	priorities := map[string]int32{"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}
	for _, hook := range hooks {
		name := strings.ToUpper(hook)
		if !edit.HasChain(name) {
			continue
		}
		b := &BaseChain{Table: "legacy " + family.String() + " " + table, Name: name, Hook: hook, Type: table,
			Priority: priorities[table], Drops: slices.Contains(edit.Drops, name), Family: family}
		if table == "nat" && hook == "postrouting" {
			b.Priority = 100
		}
		all = append(all, b.withRules(rules))
	}
	return all
}

// withRules returns the chain with its rules and the facts that follow from them.
func (b *BaseChain) withRules(rules []RuleSummary) *BaseChain {
	b.Rules = rules
	for i := range rules {
		if r := &rules[i]; r.Chain == b.Name {
			b.Count = r.Number
			if b.DropsAt == 0 && r.Drops && r.IsUnconditional() {
				b.DropsAt = r.Number
			}
		}
	}
	return b
}
