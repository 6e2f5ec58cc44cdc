package ipt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/nft"
)

// IsContainerChain says whether a name is one that ContainerChain makes with the prefix.
func IsContainerChain(prefix, name string) bool {
	hash, ok := strings.CutPrefix(name, prefix)
	return ok && len(name) == chainNameMax && strings.Trim(hash, "0123456789abcdef") == ""
}

// ParseOwner is the reverse of OwnerComment with any prefix, for comments that were not cut.
func ParseOwner(comment string) (network, containerID string, ok bool) {
	_, owner, _ := strings.Cut(comment, "name: ")
	n, err := fmt.Sscanf(owner, "%q id: %q", &network, &containerID)
	return network, containerID, n == 2 && err == nil
}

// Rules returns, of both variants, the rules in chains with such names and those that lead from c.From to them: their
// comments tell whose the chains are. If nf_tables have no such chain, no program looks there. If iptables-legacy is
// not installed, nobody can have left anything in it lately.
func (c Chain) Rules(ctx context.Context, nf *nft.Conn, named func(chain string) bool) (out []Rule, err error) {
	live, err := nf.Chains(c.nftTable())
	variants := []Variant{Legacy}
	if slices.ContainsFunc(live, func(l nft.LiveChain) bool { return named(l.Name) }) {
		variants = append(variants, NFT)
	}
	err = nft.IfSupported(err)
	for _, v := range variants {
		table, lookErr := Tool{Family: c.Family, Variant: v}.Look(ctx, c.Table)
		if lookErr != nil {
			if v == NFT || !NotInstalled(lookErr) {
				err = errors.Join(err, lookErr)
			}
			continue
		}
		for _, r := range table.Rules {
			if named(r.Chain) || r.Chain == c.From && named(r.Option("-j")) {
				out = append(out, r)
			}
		}
	}
	return out, err
}

// Containers returns the containers of a network that have such chains in either variant, by the comments of the
// rules in these chains and of those that lead to them from c.From.
func (c Chain) Containers(ctx context.Context, nf *nft.Conn, prefix, network string) (ids []string, err error) {
	rules, err := c.Rules(ctx, nf, func(chain string) bool { return IsContainerChain(prefix, chain) })
	for _, r := range rules {
		name, id, ok := ParseOwner(r.Option("--comment"))
		if ok && name == network && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, err
}
