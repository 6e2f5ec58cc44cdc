package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/hawser-cni/plugins/pkg/nft"
)

// near is a chain that marks what is to be masqueraded: what comes from a
// prefix, or everything.
type near struct {
	fam    fam
	mark   uint32
	prefix netip.Prefix // zero: everything
}

// name says all of the chain, so that it can be made anew from its name. nft
// takes no colons in names.
func (n near) name() string {
	from := "all"
	if n.prefix.IsValid() {
		from = strings.ReplaceAll(n.prefix.String(), ":", "-")
	}
	return fmt.Sprintf("%s%d_%s", n.fam.nearPrefix(), markBit(n.mark), from)
}

// parseNear reads a chain's name; ok is false for one that is none of these.
func parseNear(name string) (n near, ok bool) {
	for _, f := range families() {
		rest, found := strings.CutPrefix(name, f.nearPrefix())
		bit, from, cut := strings.Cut(rest, "_")
		number, err := strconv.Atoi(bit)
		if !found || !cut || err != nil || number < 0 || number > 31 {
			continue
		}
		n = near{fam: f, mark: 1 << number}
		if from == "all" {
			return n, true
		}
		n.prefix, err = netip.ParsePrefix(strings.ReplaceAll(from, "-", ":"))
		return n, err == nil
	}
	return near{}, false
}

func (n near) chain() nft.Chain {
	c := nft.Chain{Name: n.name()}
	mark := nft.MarkWith(n.mark)
	if n.prefix.IsValid() {
		c.Rules = append(c.Rules, nft.Rule{nft.InPrefix(n.fam.saddr, n.prefix), mark})
		if n.fam.v4 {
			c.Rules = append(c.Rules, nft.Rule{nft.InPrefix(n.fam.saddr, loopback4), mark})
		}
	} else {
		c.Rules = append(c.Rules, nft.Rule{mark})
	}
	c.Rules = append(c.Rules, nft.Rule{nft.Goto(n.fam.dnatChain())})
	return c
}

func nearLayout(list []near) nft.Layout {
	l := nft.Layout{Table: table, Comment: tableComment}
	seen := map[string]bool{}
	for _, n := range list {
		if c := n.chain(); !seen[c.Name] {
			seen[c.Name] = true
			l.Chains = append(l.Chains, c)
		}
	}
	return l
}

// nears are the marking chains that the attachment uses.
func (s *state) nears() []near {
	var out []near
	for _, t := range s.served() {
		if n, ok := s.near(t.v4()); ok {
			out = append(out, n)
		}
	}
	return out
}

func (s *state) near(v4 bool) (n near, ok bool) {
	if !s.Options.SNAT {
		return near{}, false
	}
	n = near{fam: famOf(v4), mark: s.Options.mark()}
	for _, t := range s.Targets {
		if t.v4() == v4 && !s.Options.MasqAll {
			n.prefix = t.Near
		}
	}
	return n, true
}

// when is the attachment's own chain with the conditions of a family; empty
// when it has none.
func (s *state) when(v4 bool) string {
	if len(s.Options.conditions(v4)) == 0 {
		return ""
	}
	return famOf(v4).whenPrefix() + s.attachment().Hash()
}

// via is the chain through which the attachment's ports go first; empty when
// they are translated at once.
func (s *state) via(v4 bool) string {
	if when := s.when(v4); when != "" {
		return when
	}
	return s.beyondWhen(v4)
}

// beyondWhen is where what meets the conditions goes.
func (s *state) beyondWhen(v4 bool) string {
	if n, ok := s.near(v4); ok {
		return n.name()
	}
	return ""
}

// conditionScript is what nft is told about the conditions of a family: they
// stand in front of the way to the translation.
func (s *state) conditionScript(v4 bool) string {
	chain, beyond := s.when(v4), s.beyondWhen(v4)
	if beyond == "" {
		beyond = famOf(v4).dnatChain()
	}
	where := fmt.Sprintf("%s %s", table, chain)
	return fmt.Sprintf("add chain %s\nflush chain %s\nadd rule %s %s goto %s\n",
		where, where, where, strings.Join(s.Options.conditions(v4), " "), beyond)
}
