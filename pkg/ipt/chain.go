package ipt

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// Chain names a chain in a table that others use too: mostly that of one container.
type Chain struct {
	Family      nft.Family
	Table, Name string
	From        string // the shared chain whose rules lead to it, for IsJump, Remove and Rules
}

// commentMax is how many bytes the match comment takes.
const commentMax = 255

// ContainerChain is the reference's chain of a container on a network: a prefix, which says of which plugin, and
// a hash. It has no room for the interface, so all of the container's interfaces on that network share it.
func ContainerChain(prefix, network, containerID string) string {
	return prefix + cni.Digest(network+containerID, chainNameMax-len(prefix))
}

// OwnerComment is the reference's comment of rules about a container on a network. One that iptables would cut is
// cut here, so that the rule is found again.
func OwnerComment(prefix, network, containerID string) string {
	c := fmt.Sprintf("%sname: %q id: %q", prefix, network, containerID)
	if len(c) > commentMax {
		c = c[:commentMax-3] + "..."
	}
	return c
}

// nftTable is where the programs for nf_tables keep the table.
func (c Chain) nftTable() nft.Table { return nft.Table{Family: c.Family, Name: c.Table} }

// Variants says which iptables have the chain. nf_tables are asked over netlink, and a program runs only where there is
// a legacy table: when it is not installed, the error says so (NotInstalled), and nf_tables' answer counts.
func (c Chain) Variants(ctx context.Context, nf *nft.Conn) (have []Variant, err error) {
	live, err := nf.Chain(c.nftTable(), c.Name)
	if live != nil {
		have = append(have, NFT)
	}
	legacy, lookErr := Tool{Family: c.Family, Variant: Legacy}.Look(ctx, c.Table)
	if lookErr == nil && legacy.HasChain(c.Name) {
		have = append(have, Legacy)
	}
	return have, errors.Join(nft.IfSupported(err), lookErr)
}

// Verify looks at the table in the first variant that has the chain, and joins what compare finds in it. That none has
// the chain is a difference, unless a program is missing that could show it.
func (c Chain) Verify(ctx context.Context, nf *nft.Conn, compare func(*Edit) []error) error {
	where, err := c.Variants(ctx, nf)
	if len(where) > 0 {
		found, err := Tool{Family: c.Family, Variant: where[0]}.Look(ctx, c.Table)
		if err != nil {
			return err
		}
		return errors.Join(compare(found)...)
	}
	if err != nil {
		return err
	}
	return cni.Drift("%s chain %q: is missing", c.Family, c.Name)
}

// IsJump says whether the rule leads from c.From to the chain.
func (c Chain) IsJump(r Rule) bool { return r.Chain == c.From && r.Option("-j") == c.Name }

// Remove removes the rules that lead to the chain from these addresses, from any where there are none, and the chain
// with the last such rule, in one variant: in nf_tables over netlink, without a program.
func (c Chain) Remove(ctx context.Context, nf *nft.Conn, v Variant, addrs []netip.Prefix) error {
	if v == Legacy {
		return Tool{Family: c.Family, Variant: v}.Edit(ctx, c.Table, func(e *Edit) {
			e.Delete(func(r Rule) bool { return c.IsJump(r) && r.IsFrom(addrs) })
			e.Remove(c.Name)
		})
	}
	return nf.Update(ctx, nft.Removal{Table: c.nftTable(), Chain: c.From, Drop: []string{c.Name},
		Rule: func(r nft.LiveRule) bool { return r.Target == c.Name && isFrom(r, addrs) }}.Stage)
}

// IsFrom says whether the rule is about packets from one of the addresses, or from the whole prefix of one, as older
// releases of the reference have it. Without addresses any rule is.
func (r Rule) IsFrom(addrs []netip.Prefix) bool {
	if len(addrs) == 0 {
		return true
	}
	src, _ := netip.ParsePrefix(r.Option("-s"))
	return slices.ContainsFunc(addrs, func(p netip.Prefix) bool {
		return src == p.Masked() || src == netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
	})
}

// isFrom says the same of a rule in nf_tables, where a prefix of whole bytes is compared as those bytes.
func isFrom(r nft.LiveRule, addrs []netip.Prefix) bool {
	return len(addrs) == 0 || slices.ContainsFunc(addrs, func(p netip.Prefix) bool {
		masked := nft.AddrKey(p.Masked().Addr())
		return r.Mentions(nft.AddrKey(p.Addr())) || r.Mentions(masked) ||
			p.Bits()%8 == 0 && r.Mentions(masked[:p.Bits()/8])
	})
}
