package masq

import (
	"net/netip"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

const (
	nat         = "nat"
	postrouting = "POSTROUTING"
)

// of selects the addresses of the family.
func of(f nft.Family, addrs []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(distinct(addrs), func(p netip.Prefix) bool { return nft.FamilyOf(p.Addr()) != f })
}

// natChain is the reference's chain of a container on a network. It has no room for the interface, so all
// of the container's interfaces on that network share it.
type natChain struct {
	ipt.Chain
	comment string // of every rule in it and to it
}

func natChainOf(f nft.Family, a cni.Attachment) natChain {
	return natChain{ipt.Chain{Family: f, Table: nat, Name: chainOf(a.Network, a.ContainerID), From: postrouting},
		ipt.OwnerComment("", a.Network, a.ContainerID)}
}

// chainPrefix begins the names of the chains that the reference makes for masquerade.
const chainPrefix = "CNI-"

func chainOf(network, containerID string) string {
	return ipt.ContainerChain(chainPrefix, network, containerID)
}

func (c natChain) rule(chain, target string, match ...string) ipt.Rule {
	return ipt.NewRule(chain, append(match, "-m", "comment", "--comment", c.comment, "-j", target)...)
}

// jumps lead the packets of the addresses to the chain.
func (c natChain) jumps(addrs []netip.Prefix) []ipt.Rule {
	var out []ipt.Rule
	for _, p := range addrs {
		single := netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
		out = append(out, c.rule(postrouting, c.Name, "-s", single.String()))
	}
	return out
}

// rules are the rules in the chain for these addresses: packets to their prefixes keep their source. All
// accepts come before the masquerade: in the order in which the reference adds a second prefix, its own
// traffic would be masqueraded.
func (c natChain) rules(addrs []netip.Prefix) []ipt.Rule {
	var out []ipt.Rule
	for _, p := range addrs {
		if r := c.rule(c.Name, "ACCEPT", "-d", p.Masked().String()); !slices.ContainsFunc(out, r.Equal) {
			out = append(out, r)
		}
	}
	return append(out, c.rule(c.Name, "MASQUERADE", "!", "-d", multicast(c.Family)))
}

// lines are those of a restore that make the chain and the jumps of the addresses to keep, and remove the jumps for
// which gone is true. Other jumps stay, with the rules in the chain: the reference made them for another
// interface of the container. The chain is removed with its last jump.
func (c natChain) lines(live liveChain, keep []netip.Prefix, gone func(jump ipt.Rule) bool) []string {
	want := c.jumps(keep)
	others := ipt.Without(live.jumps, want)
	stale := slices.DeleteFunc(slices.Clone(others), func(j ipt.Rule) bool { return !gone(j) })
	foreign := len(stale) < len(others)
	if len(keep) == 0 && !foreign && live.exists {
		return c.Clear(stale)
	}
	var lines []string
	if len(keep) > 0 {
		rules, more := c.rules(keep), ipt.Without(live.rules, c.rules(keep))
		if foreign {
			rules = append(more, rules...)
		}
		if len(ipt.Without(rules, live.rules)) > 0 || len(rules) < len(live.rules) {
			lines = c.Fill(rules)
		}
	}
	for _, j := range stale {
		lines = append(lines, j.Delete())
	}
	return append(lines, ipt.AppendAll(ipt.Without(want, live.jumps))...)
}

// isFrom says whether a jump is that of one of the addresses. An older release of the reference made jumps from
// the whole prefix: they count too.
func isFrom(r ipt.Rule, addrs []netip.Prefix) bool {
	src, err := netip.ParsePrefix(r.Option("-s"))
	if err != nil {
		addr, err := netip.ParseAddr(r.Option("-s"))
		if err != nil {
			return false
		}
		src = netip.PrefixFrom(addr, addr.BitLen())
	}
	return slices.ContainsFunc(addrs, func(p netip.Prefix) bool {
		return src.IsSingleIP() && src.Addr() == p.Addr() || src == p.Masked()
	})
}
