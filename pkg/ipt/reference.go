package ipt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/nft"
)

// IsContainerChain reports whether ContainerChain can have returned a name for the prefix.
func IsContainerChain(prefix, name string) bool {
	hash, ok := strings.CutPrefix(name, prefix)
	return ok && len(name) == chainNameMax && strings.Trim(hash, "0123456789abcdef") == ""
}

// ParseOwner returns the network and container of a comment that OwnerComment returned for any prefix. It does not
// parse comments that were cut.
func ParseOwner(comment string) (network, containerID string, ok bool) {
	_, owner, _ := strings.Cut(comment, "name: ")
	n, err := fmt.Sscanf(owner, "%q id: %q", &network, &containerID)
	return network, containerID, n == 2 && err == nil
}

// Rules returns, from both variants, the rules in chains whose names match, and the jumps from c.From to these chains.
// The comments of the jumps name the owners. Rules runs the program for nf_tables only if netlink shows such a chain. A
// missing iptables-legacy is not an error, because then no program can have added rules there recently.
func (c Chain) Rules(ctx context.Context, nf *nft.Conn, named func(chain string) bool) (out []Rule, err error) {
	live, err := nf.Chains(c.nftTable())
	variants := []Variant{Legacy}
	if slices.ContainsFunc(live, func(l nft.LiveChain) bool { return named(l.Name) }) {
		variants = append(variants, NFT)
	}
	err = nft.IfSupported(err)
	for _, v := range variants {
		table, readErr := Tool{Family: c.Family, Variant: v}.Read(ctx, c.Table)
		if readErr != nil {
			if v == NFT || !NotInstalled(readErr) {
				err = errors.Join(err, readErr)
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

// Containers returns the containers of a network that have a chain with the prefix in either variant. It reads the
// comments of the rules that Rules returns.
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
