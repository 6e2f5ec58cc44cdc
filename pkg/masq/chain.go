package masq

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
)

const (
	nat         = "nat"
	postrouting = "POSTROUTING"
)

var families = [...]ipt.Family{ipt.IPv4, ipt.IPv6}

// of selects the addresses of the family.
func of(f ipt.Family, addrs []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(distinct(addrs), func(p netip.Prefix) bool { return p.Addr().Is4() != (f == ipt.IPv4) })
}

// natChain is the reference's chain of a container on a network. It has no room for the interface, so all
// of the container's interfaces on that network share it.
type natChain struct {
	ipt.Chain
	comment string // of every rule in it and to it
}

func natChainOf(f ipt.Family, a cni.Attachment) natChain {
	return natChain{ipt.Chain{Family: f, Table: nat, Name: chainOf(a.Network, a.ContainerID), From: postrouting},
		commentOf(a.Network, a.ContainerID)}
}

func chainOf(network, containerID string) string { return "CNI-" + cni.Digest(network+containerID, 24) }

func isChainName(name string) bool { return len(name) == len("CNI-")+24 && name[:4] == "CNI-" }

// commentMax is how many bytes of a comment iptables keeps.
const commentMax = 255

// commentOf names the container. A comment that iptables would cut is cut here, so that the rule is found
// again.
func commentOf(network, containerID string) string {
	c := fmt.Sprintf("name: %q id: %q", network, containerID)
	if len(c) > commentMax {
		c = c[:commentMax-3] + "..."
	}
	return c
}

// parseComment is the reverse of commentOf.
func parseComment(comment string) (network, containerID string, ok bool) {
	n, err := fmt.Sscanf(comment, "name: %q id: %q", &network, &containerID)
	return network, containerID, n == 2 && err == nil
}

func (c natChain) rule(chain string, match ...string) func(target string) ipt.Rule {
	return func(target string) ipt.Rule {
		return ipt.NewRule(chain, append(match, "-m", "comment", "--comment", c.comment, "-j", target)...)
	}
}

// jumps lead the packets of the addresses to the chain.
func (c natChain) jumps(addrs []netip.Prefix) []ipt.Rule {
	var out []ipt.Rule
	for _, p := range addrs {
		single := netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
		out = append(out, c.rule(postrouting, "-s", single.String())(c.Name))
	}
	return out
}

// rules are the rules in the chain for these addresses: packets to their prefixes keep their source. All
// accepts come before the masquerade: in the order in which the reference adds a second prefix, its own
// traffic would be masqueraded.
func (c natChain) rules(addrs []netip.Prefix) []ipt.Rule {
	var out []ipt.Rule
	for _, p := range addrs {
		if r := c.rule(c.Name, "-d", p.Masked().String())("ACCEPT"); !slices.ContainsFunc(out, r.Equal) {
			out = append(out, r)
		}
	}
	multicast := multicast4
	if c.Family == ipt.IPv6 {
		multicast = multicast6
	}
	return append(out, c.rule(c.Name, "!", "-d", multicast)("MASQUERADE"))
}

// plan returns the lines of a restore that make the chain and the jumps of the addresses to keep, and remove the
// jumps for which gone is true. Other jumps stay, with the rules in the chain: the reference made them for another
// interface of the container. The chain is removed with its last jump.
func (c natChain) plan(live liveChain, keep []netip.Prefix, gone func(jump ipt.Rule) bool) []string {
	var stale []ipt.Rule
	foreign := false
	want := c.jumps(keep)
	for _, j := range live.jumps {
		switch {
		case slices.ContainsFunc(want, j.Equal):
		case gone(j):
			stale = append(stale, j)
		default:
			foreign = true
		}
	}
	var lines []string
	switch {
	case len(keep) == 0 && !foreign && live.exists:
		return c.Clear(stale)
	case len(keep) > 0:
		lines = c.repair(live.rules, c.rules(keep), foreign)
	}
	for _, j := range stale {
		lines = append(lines, j.Delete())
	}
	for _, j := range missing(want, live.jumps) {
		lines = append(lines, j.Append())
	}
	return lines
}

// repair returns the lines that fill the chain, none when it has just the wanted rules, in any order. With foreign
// jumps its other rules stay.
func (c natChain) repair(live, want []ipt.Rule, foreign bool) []string {
	other := missing(live, want)
	if len(missing(want, live)) == 0 && (foreign || len(other) == 0) {
		return nil
	}
	if foreign {
		want = append(other, want...)
	}
	return c.Fill(want)
}

// missing are those of the wanted rules that are not live.
func missing(want, live []ipt.Rule) []ipt.Rule {
	var out []ipt.Rule
	for _, r := range want {
		if !slices.ContainsFunc(live, r.Equal) {
			out = append(out, r)
		}
	}
	return out
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
