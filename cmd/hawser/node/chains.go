package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// BaseChain is a chain of anybody through which the kernel leads packets.
type BaseChain struct {
	Table    string     `json:"table"` // as nft(8) names it, with "legacy" before one of iptables-legacy
	Name     string     `json:"chain"`
	Hook     string     `json:"hook"`
	Type     string     `json:"type"`
	Priority int32      `json:"priority"`
	Comment  string     `json:"comment,omitempty"`
	Rules    int        `json:"rules"`
	Drops    bool       `json:"drops,omitempty"`   // its policy
	DropsAt  int        `json:"dropsAt,omitempty"` // the first rule that drops all, counted from 1
	Accepts  bool       `json:"accepts,omitempty"` // firewall has a rule in it that accepts packets of its containers
	Family   nft.Family `json:"-"`
}

// cniForward is the chain in which firewall, the reference's too, accepts packets of containers.
const cniForward = "CNI-FORWARD"

// IsOurs says whether the plugins made it.
func (b BaseChain) IsOurs() bool { return b.Table == nft.INet.String()+" "+nft.TableName }

// hooks are those that packets to and from containers pass, in their order.
var hooks = []string{"prerouting", "forward", "postrouting"}

// BaseChains are the base chains of those hooks, in the order in which packets pass them: of nftables over netlink, of
// iptables-legacy by its program, where the node has such a table. What could be read comes beside an error.
func BaseChains(ctx context.Context) (all []BaseChain, err error) {
	nf := nft.New()
	defer nf.Close()
	all, err = nftablesChains(nf)
	errs := []error{nft.IfSupported(err)}
	for _, f := range nft.Families() {
		for _, t := range legacyTables() {
			edit, err := ipt.Tool{Family: f, Variant: ipt.Legacy}.Look(ctx, t.name)
			errs = append(errs, err)
			if err == nil {
				all = append(all, t.chains(f, edit)...)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b BaseChain) int {
		return cmp.Or(slices.Index(hooks, a.Hook)-slices.Index(hooks, b.Hook), cmp.Compare(a.Priority, b.Priority))
	})
	return all, errors.Join(errs...)
}

// IsRouted says whether packets that the host routes pass the table.
func IsRouted(t nft.Table) bool {
	return slices.Contains([]nft.Family{nft.INet, nft.IPv4, nft.IPv6}, t.Family)
}

func nftablesChains(nf *nft.Conn) (all []BaseChain, err error) {
	chains, err := nf.Chains(nft.Table{})
	if err != nil {
		return nil, err
	}
	points := map[uint32]string{nft.Prerouting: hooks[0], nft.Forward: hooks[1], nft.Postrouting: hooks[2]}
	for _, c := range chains {
		if c.Hook == nil || !IsRouted(c.Table) || points[c.Hook.Point] == "" {
			continue
		}
		rules, err := nf.Rules(c.Table, c.Name)
		if err != nil {
			return all, err
		}
		all = append(all, BaseChain{Table: fmt.Sprint(c.Table), Name: c.Name, Hook: points[c.Hook.Point],
			Type: c.Hook.Type, Priority: c.Hook.Priority, Comment: c.Comment, Rules: len(rules), Drops: c.Drops,
			DropsAt: slices.IndexFunc(rules, nft.LiveRule.EndsAll) + 1, Family: c.Table.Family,
			Accepts: slices.ContainsFunc(rules, func(r nft.LiveRule) bool { return r.Target == cniForward }),
		})
	}
	return all, nil
}

// legacyTable is a table of iptables-legacy, with the priorities of its chains.
type legacyTable struct {
	name           string
	priority, snat int32
}

func legacyTables() []legacyTable {
	return []legacyTable{{"raw", -300, -300}, {"mangle", -150, -150}, {"nat", -100, 100}, {"filter", 0, 0},
		{"security", 50, 50}}
}

func (t legacyTable) chains(f nft.Family, edit *ipt.Edit) (all []BaseChain) {
	for _, hook := range hooks {
		name := strings.ToUpper(hook)
		if !edit.HasChain(name) {
			continue
		}
		b := BaseChain{Table: "legacy " + f.String() + " " + t.name, Name: name, Hook: hook, Type: t.name,
			Priority: t.priority, Drops: slices.Contains(edit.Drops, name), Family: f}
		if hook == "postrouting" {
			b.Priority = t.snat
		}
		for _, r := range edit.Rules {
			if r.Chain != name {
				continue
			}
			b.Rules++
			target := r.Option("-j")
			b.Accepts = b.Accepts || target == cniForward
			if b.DropsAt == 0 && len(r.Args) == 2 && (target == "DROP" || target == "REJECT") {
				b.DropsAt = b.Rules
			}
		}
		all = append(all, b)
	}
	return all
}

// The verdicts: for certain, or where other rules decide.
const (
	StopsIt   = "stops it"
	MayStopIt = "may stop it"
)

// Stops says what the chain does to a packet that nothing in it accepts; nothing where it lets it pass.
func (b BaseChain) Stops() (verdict, why string) {
	switch {
	case b.DropsAt == 1:
		return StopsIt, "its first rule drops every packet"
	case b.DropsAt > 1:
		return MayStopIt, fmt.Sprintf("its rule %d drops every packet that none before it accepts", b.DropsAt)
	case b.Drops && b.Rules == 0:
		return StopsIt, "its policy is to drop, and it has no rules"
	case b.Drops && b.Accepts:
		return MayStopIt, "its policy is to drop; firewall accepts its containers' packets there, by " + cniForward
	case b.Drops:
		return MayStopIt, "its policy is to drop what none of its rules accepts"
	}
	return "", ""
}
