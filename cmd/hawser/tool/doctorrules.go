package tool

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// acceptMark returns the fwmark that Hawser's firewall sets on accepted packets of a list's containers. It returns 0 if
// the list or one of its attachments uses another backend than nftables.
func acceptMark(list node.List, attachments []*node.Attachment) uint32 {
	bit, isMarked := uint32(12), uses(list, "firewall")
	for _, e := range list.Plugins {
		_ = json.Unmarshal(e.Raw["markAcceptBit"], &bit)
		backend := rawText(e.Raw["backend"])
		isMarked = isMarked && (!e.Is("firewall") || backend == "" || backend == "nftables")
	}
	for _, a := range attachments {
		isOther := func(value string) bool { return !strings.Contains(value, " nftables ") }
		isMarked = isMarked && (a.Network != list.Name || !slices.ContainsFunc(a.Held(cni.HeldAccept), isOther))
	}
	if !isMarked {
		return 0
	}
	return 1 << (bit & 31)
}

// drops finds chains that drop packets of a list's containers: packets that they send, or answers to them.
func drops(f *facts) {
	for _, d := range f.baseChains {
		if f.noRules || d.IsOurs() || isFirewalld(d) || strings.HasSuffix(d.Table, " firewalld_policy_drop") {
			continue
		}
		for _, list := range f.lists {
			if f.findDrop(d, list) {
				break // the other lists probably lack the same rule
			}
		}
	}
}

// isFirewalld reports whether a chain is firewalld's, or has its rules (backend iptables).
func isFirewalld(b *node.BaseChain) bool {
	isZones := func(r node.RuleSummary) bool { return strings.HasPrefix(r.Target, "FORWARD_") }
	return strings.HasSuffix(b.Table, " firewalld") || slices.ContainsFunc(b.Rules, isZones)
}

// findDrop adds a finding if a chain drops packets of a list's containers, and reports whether it has added one. It
// reports a rule with conditions only if the rule certainly drops all packets, and other drops only in forward chains.
func (f *facts) findDrop(d *node.BaseChain, list node.List) bool {
	var dropped []*node.Packet
	var worst node.Decision
	for _, p := range f.packets(d, list) {
		switch decision := d.Decide(p); {
		case !decision.Drops:
		case decision.Rule != nil && !decision.Rule.IsUnconditional():
			if decision.IsCertain && !decision.PassICMP {
				f.add("drop-policy", "rule %d of %s drops all packets of containers of %s", decision.Rule.Number,
					chainOf(d, decision.Rule.Chain), titleOf(list))
				return true
			}
		case d.Hook != "forward" || f.isFirewallsChain(d, list):
		default:
			dropped = append(dropped, p)
			worst.IsCertain = worst.IsCertain || decision.IsCertain
			worst.PassICMP = worst.PassICMP || decision.PassICMP
		}
	}
	if dropped != nil {
		f.addDropPolicy(d, list, dropped, worst)
	}
	return dropped != nil
}

// packets returns the packets of a list's containers that the host routes through a chain: packets that they send, and
// answers to them. Before prerouting has translated them, answers have another destination.
func (f *facts) packets(d *node.BaseChain, list node.List) (all []*node.Packet) {
	bridge, _ := ownBridge(list)
	ends := []string{bridge}
	for _, a := range f.attachments {
		if bridge == "" && a.Network == list.Name && a.IsLive() {
			ends = append(ends, node.FirstWord(a.HostEnd()))
		}
	}
	template := newPacket(list, f.uplink, f.links, ends)
	if template.Links == nil && bridge != "" { // the first ADD creates it
		template.Links = []rtnl.Link{{Name: bridge}}
	}
	isOurs := func(e node.Entry) bool { return e.Is("firewall") && f.programs[e.Type].kind == ours }
	if slices.ContainsFunc(list.Plugins, isOurs) {
		template.Mark = acceptMark(list, f.attachments)
	}
	for _, r := range slices.Concat(list.RangeSets()...) {
		hasFamily := d.Family == nft.INet || d.Family == nft.FamilyOf(r.Subnet.Addr())
		if !hasFamily || !isRouted(list) {
			continue
		}
		sent := template
		sent.Range = r.Subnet
		all = append(all, &sent)
		if answer := sent; d.Hook != "prerouting" {
			answer.ToContainer, answer.IsAnswer = true, true
			all = append(all, &answer)
		}
	}
	return all
}

// newPacket returns the packets of a list's containers, without addresses. ends are the names of the host's interfaces
// to the containers.
func newPacket(list node.List, uplink rtnl.Link, links []rtnl.Link, ends []string) node.Packet {
	p := node.Packet{Uplink: uplink, IsAccepted: uses(list, "firewall")}
	for _, l := range links {
		switch {
		case slices.Contains(ends, l.Name):
			p.Links = append(p.Links, l)
		case isInner(links, l):
			p.Inner = append(p.Inner, l)
		}
	}
	return p
}

// isInner reports whether a link is lo or a bridge without uplinks, which leads to other machines only if it is the
// uplink itself.
func isInner(links []rtnl.Link, l rtnl.Link) bool {
	if l.Kind != "bridge" {
		return l.Name == "lo"
	}
	uplinks, _ := uplinksOf(links, l, 0)
	return uplinks == nil
}

// chainOf names a chain in the table of a base chain, for findings.
func chainOf(d *node.BaseChain, name string) string {
	if legacy, ok := strings.CutPrefix(d.Table, "legacy "); ok {
		return "chain " + legacy + " " + name + " of iptables-legacy"
	}
	return "chain " + d.Table + " " + name + " of nf_tables"
}

// addDropPolicy adds a finding about a chain that drops packets of the list's containers. It is a warning if no drop is
// certain.
func (f *facts) addDropPolicy(d *node.BaseChain, list node.List, dropped []*node.Packet, worst node.Decision) {
	what := "has no rule that accepts packets of"
	isReceived := func(p *node.Packet) bool { return p.ToContainer }
	isSent := func(p *node.Packet) bool { return !p.ToContainer }
	switch {
	case !worst.IsCertain:
		what = "has rules that accept some packets, but may not accept the packets of"
	case !slices.ContainsFunc(dropped, isReceived):
		what = "has no rule that accepts packets from"
	case !slices.ContainsFunc(dropped, isSent):
		what = "has no rule that accepts packets to"
	}
	if worst.PassICMP {
		what = strings.Replace(what, "accepts packets", "accepts packets other than ICMP", 1)
	}
	item := f.add("drop-policy", "%s drops packets and %s containers of %s", chainOf(d, d.Name), what, titleOf(list))
	if !worst.IsCertain {
		item.Severity = doubtful
	}
	item.Advice = "accept the containers: " + acceptCommands(d, dropped)
	if !uses(list, "firewall") && isFilterForward(d) {
		item.Advice = "add the plugin firewall to the list, or " + item.Advice
	}
}

// isFilterForward reports whether a chain is FORWARD in the table filter of iptables, where firewall accepts packets.
func isFilterForward(d *node.BaseChain) bool {
	family, table, _ := strings.Cut(strings.TrimPrefix(d.Table, "legacy "), " ")
	return table == "filter" && d.Name == "FORWARD" && (family == "ip" || family == "ip6")
}

// acceptCommands returns commands that insert rules into a chain so that it accepts the packets.
func acceptCommands(d *node.BaseChain, packets []*node.Packet) string {
	table, isLegacy := strings.CutPrefix(d.Table, "legacy ")
	var commands []string
	for _, p := range packets {
		end := "s" // source address
		if p.ToContainer {
			end = "d"
		}
		family := nft.FamilyOf(p.Range.Addr()).String()
		tableFamily, name, _ := strings.Cut(table, " ")
		command := fmt.Sprintf("nft insert rule %s %s %s %saddr %s accept", table, d.Name, family, end, p.Range)
		switch {
		case isLegacy || tableFamily == family && d.Name == strings.ToUpper(d.Hook): // iptables
			program := family + "tables"
			if isLegacy {
				program += "-legacy"
			}
			command = fmt.Sprintf("%s -t %s -I %s -%s %s -j ACCEPT", program, name, d.Name, end, p.Range)
			command = strings.Replace(command, " -t filter", "", 1)
		case p.Mark != 0 && d.IsMarked():
			command = fmt.Sprintf("nft insert rule %s %s meta mark and %#x == %#[3]x accept", table, d.Name, p.Mark)
		}
		if !slices.Contains(commands, command) {
			commands = append(commands, command)
		}
	}
	return strings.Join(commands, "; ")
}

// isFirewallsChain reports whether the plugin firewall is responsible for the missing rule: either its first ADD will
// create the rule, because no container is attached, or a drift already reports the loss of the rule.
func (f *facts) isFirewallsChain(d *node.BaseChain, list node.List) bool {
	if !uses(list, "firewall") || !isFilterForward(d) {
		return false
	}
	isAttached := func(a *node.Attachment) bool { return a.IsLive() && a.Network == list.Name }
	isLost := func(found *finding) bool {
		return found.ID == "drift" && strings.Contains(found.What, fmt.Sprintf("on %q: firewall: ", list.Name))
	}
	return !slices.ContainsFunc(f.attachments, isAttached) || slices.ContainsFunc(f.found, isLost)
}

// isLoopbackGuarded reports whether a rule of another program drops or rejects packets to 127.0.0.0/8, as a kubelet's
// does. It returns true if the rules cannot be read.
func (f *facts) isLoopbackGuarded() bool {
	isGuard := func(r node.RuleSummary) bool {
		return r.DropsTo(netip.MustParsePrefix("127.0.0.0/8"))
	}
	nf := nft.New()
	defer nf.Close()
	seen := map[nft.Table]bool{}
	for _, c := range f.chains {
		if seen[c.Table] || !node.IsRouted(c.Table) || c.Table == ownTable() {
			continue
		}
		seen[c.Table] = true
		rules, err := node.ReadRules(nf, c.Table, "")
		if f.addError(err); err != nil {
			return true
		}
		if slices.ContainsFunc(rules, isGuard) {
			return true
		}
	}
	return slices.ContainsFunc(f.baseChains, func(b *node.BaseChain) bool { // chains of iptables-legacy
		return !b.IsOurs() && slices.ContainsFunc(b.Rules, isGuard) // Hawser's guard only covers the links of its set
	})
}
