package masq

import (
	"context"
	"net/netip"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

const (
	nat         = "nat"
	postrouting = "POSTROUTING"
	// chainPrefix begins the names of the chains that the reference makes for masquerade.
	chainPrefix = "CNI-"
)

func chainOf(network, containerID string) string {
	return ipt.ContainerChain(chainPrefix, network, containerID)
}

// ofFamily selects the addresses of the family.
func ofFamily(f nft.Family, addrs []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(distinct(addrs), func(p netip.Prefix) bool { return nft.FamilyOf(p.Addr()) != f })
}

// natChain is the reference's chain of a container on a network, as it is to be. It has no room for the interface, so
// all of the container's interfaces on that network share it.
type natChain struct {
	ipt.Chain
	comment string         // of every rule in it and to it
	keep    []netip.Prefix // addresses that have a jump to it
	gone    []netip.Prefix // addresses that have one no more; none: all but those to keep
}

func newNATChain(f nft.Family, a cni.Attachment, keep, gone []netip.Prefix) natChain {
	return natChain{ipt.Chain{Family: f, Table: nat, Name: chainOf(a.Network, a.ContainerID), From: postrouting},
		ipt.OwnerComment("", a.Network, a.ContainerID), ofFamily(f, keep), ofFamily(f, gone)}
}

func (c natChain) rule(chain, target string, match ...string) ipt.Rule {
	return ipt.NewRule(chain, append(match, "-m", "comment", "--comment", c.comment, "-j", target)...)
}

// jumps lead the packets of the addresses to the chain.
func (c natChain) jumps() []ipt.Rule {
	var out []ipt.Rule
	for _, p := range c.keep {
		single := netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
		out = append(out, c.rule(postrouting, c.Name, "-s", single.String()))
	}
	return out
}

// rules are the rules in the chain: packets to the addresses' prefixes keep their source. All accepts come before the
// masquerade: in the order in which the reference adds a second prefix, its own traffic would be masqueraded.
func (c natChain) rules() []ipt.Rule {
	var out []ipt.Rule
	for _, p := range c.keep {
		if r := c.rule(c.Name, "ACCEPT", "-d", p.Masked().String()); !slices.ContainsFunc(out, r.Equal) {
			out = append(out, r)
		}
	}
	return append(out, c.rule(c.Name, "MASQUERADE", "!", "-d", multicast(c.Family)))
}

// edit makes the chain with a jump from each address to keep, and deletes those from addresses that are gone. Other
// jumps were made by the reference for another interface of the container: they and their rules in the chain stay.
func (c natChain) edit(e *ipt.Edit) {
	rules, jumps := c.rules(), c.jumps()
	isForeign := func(r ipt.Rule) bool { return c.IsJump(r) && !slices.ContainsFunc(jumps, r.Equal) }
	e.Delete(func(r ipt.Rule) bool { return isForeign(r) && !r.IsFrom(c.keep) && r.IsFrom(c.gone) })
	if slices.ContainsFunc(e.Rules, isForeign) {
		others := slices.DeleteFunc(slices.Clone(e.Rules), func(r ipt.Rule) bool { return r.Chain != c.Name })
		rules = append(ipt.Without(others, rules), rules...)
	}
	e.Fill(c.Name, rules)
	e.Last(jumps...)
}

// apply makes the chain, with its jumps, in one variant. Where the variant has no such chain no program looks at the
// table, and nf_tables need none where no address is to be kept.
func (c natChain) apply(ctx context.Context, nf *nft.Conn, tool ipt.Tool) error {
	if len(c.keep) == 0 {
		return c.Remove(ctx, nf, tool.Variant, c.gone)
	}
	return tool.EditFound(ctx, nat, func() (*ipt.Edit, error) {
		where, err := c.Variants(ctx, nf)
		if slices.Contains(where, tool.Variant) {
			return tool.Look(ctx, nat)
		}
		if ipt.NotInstalled(err) {
			err = nil
		}
		return &ipt.Edit{}, err
	}, c.edit)
}
