package portmap

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/process"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const nftProgram = "nft" // used only to parse conditions, which are written in its language

// compileConditions runs nft(8) to add the rules with the attachment's conditions. Until then, packets to its host
// ports are not translated. Because nft parses text of a configuration, it runs without the lock of the records, and
// cannot resolve names.
func (r *record) compileConditions(ctx context.Context) error {
	if r.Backend != nftables {
		return nil
	}
	for _, a := range r.publishedAddrs() {
		if r.conditionChain(a.family()) == "" {
			continue
		}
		conditions, key := r.Options.conditions(a.family())
		path, err := process.LookPath(nftProgram)
		var stderr strings.Builder
		if err == nil {
			script := []byte(r.conditionScript(a))
			command := process.Command{Path: path, Args: []string{"-f", "-"}, Stdin: script, Stderr: &stderr}
			err = command.RunNameless(ctx)
		}
		text := strings.Join(strings.Fields(stderr.String()), " ")
		if errors.As(err, new(*process.ExitError)) {
			return cni.Errorf(cni.CodeConfig, "%s: %q: refused by nft: %s", key, conditions, text)
		}
		if err != nil {
			return fmt.Errorf("%s: the nft program has to compile them: %w %s", key, err, text)
		}
	}
	return nil
}

// delNFTables removes the attachment's elements, and its link from the guard if no other attachment needs it.
func (c call) delNFTables(ctx context.Context, s *store, r *record) error {
	o := owned(r.Options.MarkBit)
	found, err := o.Live(c.NF, r.items(), r.Owns)
	if err != nil {
		return err
	}
	isLast := r.Localnet != ""
	if isLast {
		isUsed, err := s.Any(func(o record) bool { return o.Localnet == r.Localnet && o.Hash() != r.Hash() })
		if err != nil {
			return err
		}
		isLast = !isUsed
	}
	chains := r.ownChains()
	if len(found) == 0 && len(chains) == 0 && !isLast {
		return nil
	}
	return o.Update(ctx, c.NF, func(tx *nft.Tx) error {
		tx.Drop(chains...)
		if err := tx.Remove(found, r.Owns); err != nil || !isLast {
			return err
		}
		return releaseLocalnet(tx, r)
	})
}

// verifyNFTables compares the kernel's state with the attachment's elements and chains and with the shared layout.
func (c call) verifyNFTables(r *record) error {
	diffs := []error{owned(r.Options.MarkBit).Verify(c.NF, r.items())}
	for _, a := range r.publishedAddrs() {
		chain := r.conditionChain(a.family())
		if chain == "" {
			continue
		}
		rules, err := c.NF.Rules(table, chain)
		if err != nil {
			return err
		}
		if len(rules) != 1 || rules[0].Target != r.conditionTarget(a) {
			_, key := r.Options.conditions(a.family())
			diffs = append(diffs, cni.Drift("nftables chain %q: does not have the rule of %s", chain, key))
		}
		if masq, ok := chainByName(r.masqChain(a)); ok {
			diffs = append(diffs, c.NF.Verify(nft.Layout{Table: table, Chains: []nft.Chain{masq}}))
		}
	}
	return errors.Join(diffs...)
}

// restore restores elements and shared rules from the records, except records with conditions. Like DEL, it holds the
// lock of the records. It reads the containers' namespaces before it locks.
func restore(ctx context.Context, all []*skel.Request) map[string]error {
	nf, host := nft.New(), rtnl.Host()
	defer func() { _ = errors.Join(nf.Close(), host.Close()) }()
	var lacking []string
	_, byBit := restorable(records(), all)
	for bit, items := range byBit {
		owners, _ := owned(bit).Lacking(nf, items) // Restore returns the error
		lacking = append(lacking, owners...)
	}
	attached, missing := netplugin.Attached(all, lacking), map[string]error{}
	_ = records().Locked(ctx, func(s *store) error { // best effort: CHECK reports what is still missing
		restored, byBit := restorable(s, all)
		for bit, items := range byBit {
			part, _ := owned(bit).Restore(ctx, nf, items, attached)
			maps.Copy(missing, part)
		}
		if len(missing) == 0 {
			return nil
		}
		return flushAdded(host, restored...)
	})
	return missing
}

// restorable returns the records from which restore restores, and their items, by the bit of the fwmark.
func restorable(s *store, all []*skel.Request) (restored []*record, byBit [32][]nft.Item) {
	for _, req := range all {
		r, ok, err := s.Get(req.Hash())
		if err != nil || r.checkRestorable(ok, req) != nil || r.Backend != nftables || len(r.ownChains()) > 0 {
			continue
		}
		restored = append(restored, &r)
		items := r.items()
		if r.Localnet != "" {
			items = append(items, r.guardItem())
		}
		byBit[r.Options.MarkBit] = append(byBit[r.Options.MarkBit], items...)
	}
	return restored, byBit
}

var table = nft.Table{Family: nft.INet, Name: nft.TableName} // table that all plugins share

const (
	preroutingChain = "portmap_prerouting_v1"
	outputChain     = "portmap_output_v1"
	guardChain      = "portmap_guard_v2"
	formerGuard     = "portmap_guard_v1"
	localnetSet     = "portmap_localnet_v1"
	dnatPriority    = -99 // after the usual -100, so that kube-proxy's services always take precedence over host ports
	snatPriority    = 100
	rawPriority     = -300
)

// The maps and chains of a family. layoutName returns their full names.
const (
	portMap     = ""    // host port of all addresses : container
	addrPortMap = "_at" // host port of one address : container
	// Host port : chain that packets pass before one of the above maps translates them. The chain sets the fwmark of
	// packets to be masqueraded, or has conditions.
	portChainMap     = "_via"
	addrPortChainMap = "_at_via"

	localChain = "_local"
	dnatChain  = "_dnat"
	// In a chain's name, masqChains is followed by the bit of the fwmark and the sources, so that the name determines
	// the rules. conditionChains is followed by the hash of the owner.
	masqChains      = "_masq"
	conditionChains = "_conditions"
)

func layoutName(f nft.Family, kind string) string { return "portmap" + f.Digit() + kind + "_v1" }

// loopback4 returns the source addresses of connections from the host to itself.
func loopback4() netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8) }

// sharedLayout returns the layout of all attachments that use this bit of the fwmark.
func sharedLayout(bit int) nft.Layout {
	l := nft.Layout{Table: table}
	var local []nft.Rule
	for _, f := range nft.Families() {
		l.Sets = append(l.Sets, mapsOf(f)...)
		l.Chains = append(l.Chains, chainsOf(f)...)
		local = append(local, nft.Rule{nft.IsFamily(f), nft.DaddrIsLocal(), nft.Jump(layoutName(f, localChain))})
	}
	guard := guardLayout()
	l.Sets = append(l.Sets, guard.Sets...)
	l.Chains = append(l.Chains, guard.Chains...)
	// Packets to ::1 are not translated, because they have the source ::1, which no packet to a container can have.
	loopback6 := nft.Rule{nft.InPrefix(nft.IP6Daddr, netip.PrefixFrom(netip.IPv6Loopback(), 128)), nft.Return()}
	l.Chains = append(l.Chains,
		nft.Chain{Name: preroutingChain, Comment: "host ports of packets that arrive",
			Hook: &nft.Hook{Type: "nat", Point: nft.Prerouting, Priority: dnatPriority}, Rules: local},
		nft.Chain{Name: outputChain, Comment: "host ports of packets that the host sends to itself",
			Hook:  &nft.Hook{Type: "nat", Point: nft.Output, Priority: dnatPriority},
			Rules: append([]nft.Rule{loopback6}, local...)},
		nft.Chain{Name: fmt.Sprintf("portmap_snat%d_v1", bit),
			Comment: "masquerade of marked packets to host ports",
			Hook:    &nft.Hook{Type: "nat", Point: nft.Postrouting, Priority: snatPriority},
			Rules:   []nft.Rule{{nft.CtTranslated(), nft.FwmarkHas(1 << bit), nft.Masquerade()}}},
	)
	return l
}

func mapsOf(f nft.Family) []nft.Set {
	port := []nft.Type{nft.InetProto, nft.InetService}
	addrPort := []nft.Type{nft.InetProto, f.Addr(), nft.InetService}
	target := []nft.Type{f.Addr(), nft.InetService}
	verdict := []nft.Type{nft.Verdict}
	return []nft.Set{
		{Name: layoutName(f, portMap), Key: port, Data: target, Comment: "host port : container"},
		{Name: layoutName(f, addrPortMap), Key: addrPort, Data: target, Comment: "host address and port : container"},
		{Name: layoutName(f, portChainMap), Key: port, Data: verdict, Comment: "host port : first chain"},
		{Name: layoutName(f, addrPortChainMap), Key: addrPort, Data: verdict,
			Comment: "host address and port : first chain"},
	}
}

func chainsOf(f nft.Family) []nft.Chain {
	port := []nft.Field{nft.L4Proto, nft.THDport}
	addrPort := []nft.Field{nft.L4Proto, f.Daddr(), nft.THDport}
	return []nft.Chain{
		{Name: layoutName(f, dnatChain), Rules: []nft.Rule{
			{nft.DNATMap(f, layoutName(f, addrPortMap), addrPort...)},
			{nft.DNATMap(f, layoutName(f, portMap), port...)},
		}},
		{Name: layoutName(f, localChain), Rules: []nft.Rule{
			{nft.VerdictMap(layoutName(f, addrPortChainMap), addrPort...)},
			{nft.VerdictMap(layoutName(f, portChainMap), port...)},
			{nft.Goto(layoutName(f, dnatChain))},
		}},
	}
}

// guardLayout returns the guard: rules that drop packets from containers to and from 127.0.0.0/8. With route_localnet,
// which host ports of 127.0.0.1 need, containers could otherwise reach services on the host's loopback. Every packet
// passes the guard, so its rules compare the addresses before they look up the interface.
func guardLayout() nft.Layout {
	hook := &nft.Hook{Type: "filter", Point: nft.Prerouting, Priority: rawPriority}
	link := nft.InSet(localnetSet, nft.IIFName)
	daddr, saddr := nft.InPrefix(nft.IPDaddr, loopback4()), nft.InPrefix(nft.IPSaddr, loopback4())
	return nft.Layout{
		Table: table,
		Sets:  []nft.Set{{Name: localnetSet, Key: []nft.Type{nft.IfName}, Comment: "interfaces with route_localnet"}},
		Chains: []nft.Chain{{Name: guardChain, Comment: "no packets of containers from or to 127.0.0.0/8",
			Hook: hook, Rules: []nft.Rule{{daddr, link, nft.Drop()}, {saddr, link, nft.Drop()}},
			Former: []nft.Chain{{Name: formerGuard, Hook: hook,
				Rules: []nft.Rule{{link, daddr, nft.Drop()}, {link, saddr, nft.Drop()}}}}}},
	}
}

// owned returns the layout for a bit of the fwmark, and the maps with the attachments' elements.
func owned(bit int) nft.Owned {
	o := nft.Owned{Layout: sharedLayout(bit), Chain: chainByName}
	for _, f := range nft.Families() {
		for _, m := range mapsOf(f) {
			o.Sets = append(o.Sets, m.Name)
		}
	}
	return o
}

// chainByName returns a chain that elements go to, with the rules that its name determines. A chain with conditions has
// no rules here, because nft(8) adds them.
func chainByName(name string) (nft.Chain, bool) {
	for _, f := range nft.Families() {
		if strings.HasPrefix(name, layoutName(f, conditionChains)+"_") {
			return nft.Chain{Name: name}, true
		}
		rest, isMasq := strings.CutPrefix(name, layoutName(f, masqChains)+"_")
		number, sources, _ := strings.Cut(rest, "_")
		bit, err := strconv.Atoi(number)
		if !isMasq || err != nil || bit < 0 || bit > 31 {
			continue
		}
		fwmark, dnat := nft.SetFwmark(1<<bit), nft.Rule{nft.Goto(layoutName(f, dnatChain))}
		if sources == "all" {
			return nft.Chain{Name: name, Rules: []nft.Rule{{fwmark}, dnat}}, true
		}
		prefix, err := netip.ParsePrefix(strings.ReplaceAll(sources, "-", ":")) // nft accepts no colons in a name
		if err != nil {
			continue
		}
		rules := []nft.Rule{{nft.InPrefix(f.Saddr(), prefix), fwmark}}
		if f == nft.IPv4 {
			rules = append(rules, nft.Rule{nft.InPrefix(f.Saddr(), loopback4()), fwmark})
		}
		return nft.Chain{Name: name, Rules: append(rules, dnat)}, true
	}
	return nft.Chain{}, false
}

// masqChain returns the name of the chain that marks packets to the address for masquerading, or "" without snat.
func (r *record) masqChain(a address) string {
	if !r.Options.SNAT {
		return ""
	}
	sources := "all"
	if !r.Options.MasqAll {
		sources = strings.ReplaceAll(a.MasqSources.String(), ":", "-")
	}
	return fmt.Sprintf("%s_%d_%s", layoutName(a.family(), masqChains), r.Options.MarkBit, sources)
}

// conditionChain returns the name of the chain with the attachment's conditions, or "" if it has no conditions.
func (r *record) conditionChain(f nft.Family) string {
	if conditions, _ := r.Options.conditions(f); len(conditions) == 0 {
		return ""
	}
	return layoutName(f, conditionChains) + "_" + r.Hash()
}

// ownChains returns the chains with conditions and the chains that they go to. An ADD that was killed may have left
// them without an element that refers to them.
func (r *record) ownChains() (chains []string) {
	for _, a := range r.Addrs {
		if chain := r.conditionChain(a.family()); chain != "" {
			chains = append(chains, r.masqChain(a), chain)
		}
	}
	return chains
}

// conditionTarget returns the chain for packets that meet the conditions.
func (r *record) conditionTarget(a address) string {
	return cmp.Or(r.masqChain(a), layoutName(a.family(), dnatChain))
}

// conditionScript returns the script with which nft(8) fills the chain with the conditions for an address.
func (r *record) conditionScript(a address) string {
	conditions, _ := r.Options.conditions(a.family())
	chain := fmt.Sprintf("%s %s", table, r.conditionChain(a.family()))
	return fmt.Sprintf("flush chain %s\nadd rule %s %s goto %s\n", chain, chain, strings.Join(conditions, " "),
		r.conditionTarget(a))
}

// items returns the attachment's elements. On the backend iptables, they are used only to find other owners.
func (r *record) items() (out []nft.Item) {
	for _, a := range r.Addrs {
		firstChain := cmp.Or(r.conditionChain(a.family()), r.masqChain(a))
		for _, p := range r.addrPorts(a) {
			target := nft.Key(nft.AddrKey(p.Target.Addr()), binary.BigEndian.AppendUint16(nil, p.Target.Port()))
			out = append(out, p.item(portMap, nft.Element{Data: target, Comment: r.Mark()}))
			if firstChain != "" && r.Backend != iptables {
				out = append(out, p.item(portChainMap, nft.Element{Goto: firstChain, Comment: r.Mark()}))
			}
		}
	}
	return out
}

// conflictItems returns an item for each of the attachment's host ports of a single address. Its key is the key that
// the same port of all addresses has. The items are used to find other owners, because the two ports conflict.
func (r *record) conflictItems() (out []nft.Item) {
	for _, p := range r.hostPorts() {
		if !p.Addr.IsUnspecified() {
			p.Addr = unspecified(nft.FamilyOf(p.Addr))
			out = append(out, p.item(portMap, nft.Element{Comment: r.Mark()}))
		}
	}
	return out
}

// item returns a host port's element in a map. kind is portMap or portChainMap. A host port of a single address is in
// addrPortMap or addrPortChainMap instead.
func (p hostPort) item(kind string, e nft.Element) nft.Item {
	proto, port := []byte{byte(p.Proto)}, binary.BigEndian.AppendUint16(nil, p.Port)
	e.Key = nft.Key(proto, port)
	if !p.Addr.IsUnspecified() {
		e.Key = nft.Key(proto, nft.AddrKey(p.Addr), port)
		kind = addrPortMap + kind // also the prefix of addrPortChainMap
	}
	return nft.Item{Set: layoutName(nft.FamilyOf(p.Addr), kind), Element: e, Name: p.String()}
}

// elementPort returns the host port of an element. Each field of its key is padded to four bytes.
func elementPort(it nft.Item) hostPort {
	p := hostPort{Proto: proto(it.Key[0]), Addr: netip.IPv6Unspecified(),
		Port: binary.BigEndian.Uint16(it.Key[len(it.Key)-4:])}
	if strings.HasPrefix(it.Set, "portmap4") {
		p.Addr = netip.IPv4Unspecified()
	}
	if len(it.Key) > 8 {
		p.Addr, _ = netip.AddrFromSlice(it.Key[4 : len(it.Key)-4])
	}
	return p
}
