package masq

import (
	"net/netip"
	"slices"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

const (
	nat         = "nat"
	postrouting = "POSTROUTING"
)

// family is one of the two families of iptables, with what depends on it.
type family struct {
	ipt       ipt.Family
	table     nft.Table // in which iptables for nf_tables keeps its nat
	multicast string
}

func families() []family {
	return []family{
		{ipt.IPv4, nft.Table{Family: nft.IPv4, Name: nat}, multicast4},
		{ipt.IPv6, nft.Table{Family: nft.IPv6, Name: nat}, multicast6},
	}
}

// of selects the addresses of the family.
func (f family) of(addrs []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range distinct(addrs) {
		if p.Addr().Is4() == (f.ipt == ipt.IPv4) {
			out = append(out, p)
		}
	}
	return out
}

// natChain is the reference's chain of a container on a network: the rules in it, and those that lead
// to it from POSTROUTING.
type natChain struct {
	name    string
	comment string
}

func natChainOf(network, containerID string) natChain {
	return natChain{chainOf(network, containerID), commentOf(network, containerID)}
}

func (c natChain) rule(chain string, match []string, target string) ipt.Rule {
	args := append(match, "-m", "comment", "--comment", c.comment, "-j", target)
	return ipt.NewRule(chain, args...)
}

// jump leads packets from the address to the chain.
func (c natChain) jump(p netip.Prefix) ipt.Rule {
	single := netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
	return c.rule(postrouting, []string{"-s", single.String()}, c.name)
}

// accept leaves the source of packets to the prefix alone.
func (c natChain) accept(p netip.Prefix) ipt.Rule {
	return c.rule(c.name, []string{"-d", p.Masked().String()}, "ACCEPT")
}

func (c natChain) masquerade(f family) ipt.Rule {
	return c.rule(c.name, []string{"!", "-d", f.multicast}, "MASQUERADE")
}

// rules are the rules in the chain for these addresses. All accepts come before the masquerade: in
// the order in which the reference adds a second prefix, its own traffic would be masqueraded.
func (c natChain) rules(f family, addrs []netip.Prefix) []ipt.Rule {
	var out []ipt.Rule
	for _, p := range addrs {
		if r := c.accept(p); !slices.ContainsFunc(out, r.Equal) {
			out = append(out, r)
		}
	}
	return append(out, c.masquerade(f))
}

// fill are the lines of a restore that make the chain anew with these rules, whether it exists or not.
func (c natChain) fill(rules []ipt.Rule) []string {
	lines := []string{":" + c.name + " - [0:0]"}
	for _, r := range rules {
		lines = append(lines, r.Append())
	}
	return lines
}

// clear are the lines that remove the chain.
func (c natChain) clear() []string { return []string{"-F " + c.name, "-X " + c.name} }

// leads says whether the rule is a jump to the chain.
func (c natChain) leads(r ipt.Rule) bool { return r.Option("-j") == c.name }

// isFrom says whether a jump is that of one of the addresses, also in the older form that was made
// with the prefix and so stands for the whole of it.
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
