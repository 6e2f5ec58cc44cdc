package ipt

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/ns"
)

// Chain names a chain in a table that others use too: mostly that of one container.
type Chain struct {
	Family      nft.Family
	Table, Name string
	From        string // the shared chain whose rules lead to it; not needed by Variants
}

// nftTable is where the programs for nf_tables keep the table.
func (c Chain) nftTable() nft.Table { return nft.Table{Family: c.Family, Name: c.Table} }

// Variants says which iptables have the chain. It runs a program only where there is a legacy table: when
// that program is not installed, the error says so (NotInstalled), and what is said of nf_tables counts.
func (c Chain) Variants(ctx context.Context, nf *nft.Conn) ([]Variant, error) {
	var out []Variant
	live, err := nf.Chain(c.nftTable(), c.Name)
	if err := nft.IfSupported(err); err != nil {
		return nil, err
	}
	if live != nil {
		out = append(out, NFT)
	}
	legacy, err := Save(ctx, c.Family, Legacy, c.Table)
	if slices.Contains(legacy.Chains, c.Name) {
		out = append(out, Legacy)
	}
	return out, err
}

// hasLegacyTable asks /proc. Root in a user namespace may not read it when both namespaces were made by
// one call, as in a container of LXC: nobody owns the file. Then the program tells.
func hasLegacyTable(f nft.Family, table string) (bool, error) {
	name := "ip_tables_names"
	if f == nft.IPv6 {
		name = "ip6_tables_names"
	}
	data, err := os.ReadFile(ns.Proc() + "/net/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return slices.Contains(strings.Fields(string(data)), table), err
}

// Live returns the rules of the chain, and those that lead to it.
func (c Chain) Live(ctx context.Context, t Tool) (rules, jumps []Rule, err error) {
	saved, err := Save(ctx, c.Family, t.Variant, c.Table)
	rules, jumps = c.in(saved)
	return rules, jumps, err
}

func (c Chain) in(s Saved) (rules, jumps []Rule) {
	for _, r := range s.Rules {
		switch {
		case r.Chain == c.Name:
			rules = append(rules, r)
		case r.Chain == c.From && r.Option("-j") == c.Name:
			jumps = append(jumps, r)
		}
	}
	return rules, jumps
}

// Has says whether nf_tables has all of the rules, those in the chain itself in this order, by one run of a program
// whose time does not grow with the chains of others. No more is known of a no: the program may be missing.
func (c Chain) Has(ctx context.Context, rules []Rule) bool {
	tool, err := FindVariant(ctx, c.Family, NFT)
	if err != nil {
		return false
	}
	var own []Rule
	lines := []string{"-S " + c.Name}
	for _, r := range rules {
		if r.Chain == c.Name {
			own = append(own, r)
		} else {
			lines = append(lines, "-C "+r.String())
		}
	}
	var live strings.Builder
	_, err = tool.run(ctx, c.Table, lines, &live)
	return err == nil && len(Lacking(parseRules(strings.Split(live.String(), "\n")), own)) == 0
}

// Fill returns the lines of a restore that make the chain, or make it anew, with these rules.
func (c Chain) Fill(rules []Rule) []string {
	return append([]string{":" + c.Name + " - [0:0]"}, AppendAll(rules)...)
}

// Clear returns the lines that remove the chain with its jumps.
func (c Chain) Clear(jumps []Rule) []string {
	var lines []string
	for _, j := range jumps {
		lines = append(lines, j.Delete())
	}
	return append(lines, "-F "+c.Name, "-X "+c.Name)
}

// Remove removes the chain and all that leads to it from one variant: for nf_tables over netlink,
// without a program.
func (c Chain) Remove(ctx context.Context, nf *nft.Conn, v Variant) error {
	if v == NFT {
		jumps := func(r nft.LiveRule) bool { return r.Target == c.Name }
		return nf.Update(ctx, nft.Leftover{Table: c.nftTable(),
			Chain: c.From, Rule: jumps, Drop: []string{c.Name}}.Stage)
	}
	tool, err := FindVariant(ctx, c.Family, v)
	if err != nil {
		return err
	}
	return tool.Change(ctx, c.Table, func() ([]string, error) {
		saved, err := Save(ctx, c.Family, v, c.Table)
		if err != nil || !slices.Contains(saved.Chains, c.Name) {
			return nil, err
		}
		_, jumps := c.in(saved)
		return c.Clear(jumps), nil
	})
}

// LeadsOnlyFrom says whether everything in nf_tables that leads to the chain names one of the addresses.
func (c Chain) LeadsOnlyFrom(nf *nft.Conn, addrs []netip.Prefix) (bool, error) {
	rules, err := nf.Rules(c.nftTable(), c.From)
	for _, r := range rules {
		from := func(p netip.Prefix) bool { return r.Mentions(nft.AddrKey(p.Addr())) }
		if r.Target == c.Name && !slices.ContainsFunc(addrs, from) {
			return false, err
		}
	}
	return true, err
}

// Rules returns, of either variant, the rules in chains with such names and those that lead from c.From to them:
// their comments tell whose the chains are. Where nf_tables has no such chain no program runs for it.
func (c Chain) Rules(ctx context.Context, nf *nft.Conn, named func(chain string) bool) ([]Rule, error) {
	live, err := nf.Chains(c.nftTable())
	if err := nft.IfSupported(err); err != nil {
		return nil, err
	}
	var out []Rule
	for _, v := range []Variant{NFT, Legacy} {
		if v == NFT && !slices.ContainsFunc(live, func(l nft.LiveChain) bool { return named(l.Name) }) {
			continue
		}
		saved, err := Save(ctx, c.Family, v, c.Table)
		if err != nil && !(v == Legacy && NotInstalled(err)) { // without it nobody can have left anything there lately
			return out, err
		}
		for _, r := range saved.Rules {
			if named(r.Chain) || r.Chain == c.From && named(r.Option("-j")) {
				out = append(out, r)
			}
		}
	}
	return out, nil
}
