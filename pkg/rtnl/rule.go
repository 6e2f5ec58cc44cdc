package rtnl

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Rule is a rule of the routing policy, as far as it says that the packets of a
// source have a table of routes of their own.
type Rule struct {
	Src      netip.Prefix `json:"src"` // 0.0.0.0/0 or ::/0 = packets of any source
	Table    uint32       `json:"table"`
	Priority uint32       `json:"priority"`
}

// String is the rule as messages name it.
func (r Rule) String() string { return fmt.Sprintf("from %s lookup %d", r.Src, r.Table) }

// Rules lists the rules of both families, in their order. The error matches EOPNOTSUPP when the
// kernel has no routing policy.
func (c *Conn) Rules() (rules []Rule, err error) {
	// The library asks with the header of links, which a strict kernel refuses.
	err = c.useLeniently(func(h *netlink.Handle) error {
		list, err := h.RuleList(unix.AF_UNSPEC)
		rules = make([]Rule, len(list))
		for i, r := range list {
			rules[i] = Rule{Src: prefixOf(r.Src), Table: uint32(r.Table), Priority: uint32(r.Priority)}
			if r.Src == nil {
				rules[i].Src = everything(r.Family)
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	return rules, nil
}

// FreeTable is the first table from number first on that is not the kernel's, and that no rule and
// no route mentions, nor taken.
func FreeTable(first uint32, rules []Rule, routes []RouteCopy, taken ...uint32) uint32 {
	isUsed := func(table uint32) bool {
		return IsKernelTable(table) || slices.Contains(taken, table) ||
			slices.ContainsFunc(rules, func(r Rule) bool { return r.Table == table }) ||
			slices.ContainsFunc(routes, func(r RouteCopy) bool { return r.Table() == table })
	}
	for isUsed(first) {
		first++
	}
	return first
}

// IsKernelTable says whether a table is one that the kernel has, or none.
func IsKernelTable(table uint32) bool {
	return table == unix.RT_TABLE_UNSPEC || table >= unix.RT_TABLE_DEFAULT && table <= unix.RT_TABLE_LOCAL
}

// AddRule adds a rule with a source.
func (c *Conn) AddRule(r Rule) error {
	if err := c.use(func(h *netlink.Handle) error { return h.RuleAdd(r.encode()) }); err != nil {
		return fmt.Errorf("add rule %s: %w", r, err)
	}
	return nil
}

// DelRule deletes a rule with a source. That there is none is no error.
func (c *Conn) DelRule(r Rule) error {
	err := c.use(func(h *netlink.Handle) error { return h.RuleDel(r.encode()) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete rule %s: %w", r, err)
	}
	return nil
}

func (r Rule) encode() *netlink.Rule {
	out := netlink.NewRule()
	out.Src, out.Table, out.Priority = ipNet(r.Src), int(r.Table), int(r.Priority)
	return out
}
