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

// Chain identifies a chain, usually of one container, in a table that other programs also use.
type Chain struct {
	Family      nft.Family
	Table, Name string
	From        string // the shared chain with jumps to it, for IsJump, Remove and Rules
}

const commentMax = 255 // maximum length of a comment, in bytes

// ContainerChain returns the reference plugin's chain name for a container on a network: the plugin's prefix and a
// hash. The name does not depend on the interface, so all of the container's interfaces on the network share the chain.
func ContainerChain(prefix, network, containerID string) string {
	return prefix + cni.Digest(network+containerID, chainNameMax-len(prefix))
}

// OwnerComment returns the reference plugin's comment on rules for a container on a network. A comment that iptables
// would cut is cut here, so that it still matches the rule.
func OwnerComment(prefix, network, containerID string) string {
	c := fmt.Sprintf("%sname: %q id: %q", prefix, network, containerID)
	if len(c) > commentMax {
		c = c[:commentMax-3] + "..."
	}
	return c
}

func (c Chain) nftTable() nft.Table { return nft.Table{Family: c.Family, Name: c.Table} }

// Variants returns the variants that have the chain. It reads nf_tables over netlink, and runs a program only if the
// kernel has the legacy table. If that program is not installed, NotInstalled reports true for the error, and the
// result is still valid for nf_tables.
func (c Chain) Variants(ctx context.Context, nf *nft.Conn) (have []Variant, err error) {
	live, err := nf.Chain(c.nftTable(), c.Name)
	if live != nil {
		have = append(have, NFT)
	}
	legacy, legacyErr := Tool{Family: c.Family, Variant: Legacy}.Read(ctx, c.Table)
	if legacyErr == nil && legacy.HasChain(c.Name) {
		have = append(have, Legacy)
	}
	return have, errors.Join(nft.IfSupported(err), legacyErr)
}

// Verify reads the table in the first variant that has the chain, and returns the differences that compare returns. A
// missing chain is also a difference, unless a program is missing that is necessary to find it.
func (c Chain) Verify(ctx context.Context, nf *nft.Conn, compare func(*Edit) []error) error {
	where, err := c.Variants(ctx, nf)
	if len(where) > 0 {
		found, err := Tool{Family: c.Family, Variant: where[0]}.Read(ctx, c.Table)
		if err != nil {
			return err
		}
		return errors.Join(compare(found)...)
	}
	if err != nil {
		return err
	}
	return cni.Drift("%s chain %q: is missing", programName(c.Family), c.Name)
}

// IsJump reports whether the rule jumps from c.From to the chain.
func (c Chain) IsJump(r Rule) bool { return r.Chain == c.From && r.Option("-j") == c.Name }

// Remove removes jumps to the chain for packets from these addresses, in one variant. Without addresses, it removes all
// jumps. It removes the chain with the last jump. For nf_tables, it uses netlink and no program.
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

// IsFrom reports whether the rule matches packets from one of the addresses or, as in older releases of the reference
// plugins, from the prefix of one. Without addresses, it returns true.
func (r Rule) IsFrom(addrs []netip.Prefix) bool {
	if len(addrs) == 0 {
		return true
	}
	src, _ := netip.ParsePrefix(r.Option("-s"))
	return slices.ContainsFunc(addrs, func(p netip.Prefix) bool {
		return src == p.Masked() || src == netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
	})
}

// isFrom is Rule.IsFrom for a rule in nf_tables, which compares a prefix of whole bytes without a mask.
func isFrom(r nft.LiveRule, addrs []netip.Prefix) bool {
	return len(addrs) == 0 || slices.ContainsFunc(addrs, func(p netip.Prefix) bool {
		masked := nft.AddrKey(p.Masked().Addr())
		return r.Mentions(nft.AddrKey(p.Addr())) || r.Mentions(masked) ||
			p.Bits()%8 == 0 && r.Mentions(masked[:p.Bits()/8])
	})
}
