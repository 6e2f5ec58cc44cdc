package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/hawser-cni/plugins/pkg/nft"
)

// table is shared with other plugins. Names in it carry the version of the
// layout.
var table = nft.Table{Family: nft.INet, Name: "hawser"}

const (
	tableComment = "Hawser CNI plugins"

	preroutingChain = "portmap_prerouting_v1"
	outputChain     = "portmap_output_v1"
	guardChain      = "portmap_guard_v1"
	localnetSet     = "portmap_localnet_v1"

	// dnatPriority is behind those who translate at -100: the services of
	// kube-proxy win, whoever came first.
	dnatPriority = -99
	snatPriority = 100
	rawPriority  = -300
)

// fam names what the layout has once for each family.
type fam struct {
	family       nft.Family
	v4           bool
	addr         nft.Type
	daddr, saddr nft.Field
	digit        string
}

func families() []fam {
	return []fam{
		{nft.IPv4, true, nft.IPv4Addr, nft.IPDaddr, nft.IPSaddr, "4"},
		{nft.IPv6, false, nft.IPv6Addr, nft.IP6Daddr, nft.IP6Saddr, "6"},
	}
}

func famOf(v4 bool) fam {
	if v4 {
		return families()[0]
	}
	return families()[1]
}

// anyMap has the host ports of all addresses, atMap those of one address.
func (f fam) anyMap() string { return "portmap" + f.digit + "_v1" }
func (f fam) atMap() string  { return "portmap" + f.digit + "_at_v1" }

// anyVia and atVia lead host ports through a chain on their way to the maps:
// one that marks what is to be masqueraded, or one with conditions.
func (f fam) anyVia() string { return "portmap" + f.digit + "_via_v1" }
func (f fam) atVia() string  { return "portmap" + f.digit + "_at_via_v1" }

func (f fam) localChain() string { return "portmap" + f.digit + "_local_v1" }
func (f fam) dnatChain() string  { return "portmap" + f.digit + "_dnat_v1" }
func (f fam) nearPrefix() string { return "portmap" + f.digit + "_near_v1_" }
func (f fam) whenPrefix() string { return "portmap" + f.digit + "_when_v1_" }

func snatChain(mark uint32) string { return fmt.Sprintf("portmap_snat%d_v1", markBit(mark)) }

func markBit(mark uint32) int { return len(strconv.FormatUint(uint64(mark), 2)) - 1 }

// loopback4 are the sources of a host that speaks to itself.
var loopback4 = netip.MustParsePrefix("127.0.0.0/8")

// sharedLayout is what all attachments use whose masquerade goes by this mark.
func sharedLayout(mark uint32) nft.Layout {
	l := nft.Layout{Table: table, Comment: tableComment}
	for _, f := range families() {
		l.Sets = append(l.Sets, f.sets()...)
		l.Chains = append(l.Chains, f.chains()...)
	}
	guard := guardLayout()
	l.Sets = append(l.Sets, guard.Sets...)
	l.Chains = append(l.Chains, guard.Chains...)
	var local []nft.Rule
	for _, f := range families() {
		local = append(local, nft.Rule{nft.IsFamily(f.family), nft.DaddrIsLocal(), nft.Jump(f.localChain())})
	}
	// No packet to a container can come from ::1, so it is left alone: it is
	// refused at once, or served by the host.
	loopback6 := nft.Rule{nft.InPrefix(nft.IP6Daddr, netip.PrefixFrom(netip.IPv6Loopback(), 128)), nft.Return()}
	l.Chains = append(l.Chains,
		nft.Chain{Name: preroutingChain, Comment: "host ports of what arrives",
			Hook: &nft.Hook{Type: "nat", Point: nft.Prerouting, Priority: dnatPriority}, Rules: local},
		nft.Chain{Name: outputChain, Comment: "host ports of what the host sends to itself",
			Hook: &nft.Hook{Type: "nat", Point: nft.Output, Priority: dnatPriority}, Rules: append([]nft.Rule{loopback6}, local...)},
		nft.Chain{Name: snatChain(mark), Comment: "masquerade of what was marked on its way to a host port",
			Hook:  &nft.Hook{Type: "nat", Point: nft.Postrouting, Priority: snatPriority},
			Rules: []nft.Rule{{nft.CtTranslated(), nft.MarkHas(mark), nft.Masquerade()}}},
	)
	return l
}

func (f fam) sets() []nft.Set {
	service := []nft.Type{nft.InetProto, nft.InetService}
	at := []nft.Type{nft.InetProto, f.addr, nft.InetService}
	to := []nft.Type{f.addr, nft.InetService}
	verdict := []nft.Type{nft.Verdict}
	return []nft.Set{
		{Name: f.anyMap(), Key: service, Data: to, Comment: "host port : container"},
		{Name: f.atMap(), Key: at, Data: to, Comment: "host address and port : container"},
		{Name: f.anyVia(), Key: service, Data: verdict, Comment: "host port : chain on its way"},
		{Name: f.atVia(), Key: at, Data: verdict, Comment: "host address and port : chain on its way"},
	}
}

func (f fam) chains() []nft.Chain {
	any := []nft.Field{nft.L4Proto, nft.THDport}
	at := []nft.Field{nft.L4Proto, f.daddr, nft.THDport}
	return []nft.Chain{
		{Name: f.dnatChain(), Rules: []nft.Rule{
			{nft.DNATMap(f.family, f.atMap(), at...)},
			{nft.DNATMap(f.family, f.anyMap(), any...)},
		}},
		{Name: f.localChain(), Rules: []nft.Rule{
			{nft.VerdictMap(f.atVia(), at...)},
			{nft.VerdictMap(f.anyVia(), any...)},
			{nft.Goto(f.dnatChain())},
		}},
	}
}

// guardLayout keeps containers from what the host serves on its loopback
// only: route_localnet, without which 127.0.0.1 leads to no container, would
// let them reach it.
func guardLayout() nft.Layout {
	in := nft.InSet(localnetSet, nft.IIFName)
	return nft.Layout{
		Table:   table,
		Comment: tableComment,
		Sets: []nft.Set{{Name: localnetSet, Key: []nft.Type{nft.IfName},
			Comment: "interfaces with route_localnet"}},
		Chains: []nft.Chain{{Name: guardChain, Comment: "nothing from or to 127.0.0.0/8 comes from containers",
			Hook: &nft.Hook{Type: "filter", Point: nft.Prerouting, Priority: rawPriority},
			Rules: []nft.Rule{
				{in, nft.InPrefix(nft.IPDaddr, loopback4), nft.Drop()},
				{in, nft.InPrefix(nft.IPSaddr, loopback4), nft.Drop()},
			}}},
	}
}

// item is an element and where it belongs.
type item struct {
	set string
	nft.Element
}

// items are the elements of the attachment.
func (s *state) items() []item {
	mark := s.attachment().Mark()
	var out []item
	for _, fw := range s.forwards() {
		f := famOf(fw.v4())
		port := binary.BigEndian.AppendUint16(nil, fw.port)
		to := nft.Key(nft.AddrKey(fw.to.Addr()), binary.BigEndian.AppendUint16(nil, fw.to.Port()))
		key, set, viaSet := nft.Key([]byte{byte(fw.proto)}, port), f.anyMap(), f.anyVia()
		if !fw.host.IsUnspecified() {
			key, set, viaSet = nft.Key([]byte{byte(fw.proto)}, nft.AddrKey(fw.host), port), f.atMap(), f.atVia()
		}
		out = append(out, item{set, nft.Element{Key: key, Data: to, Comment: mark}})
		if via := s.via(fw.v4()); via != "" {
			out = append(out, item{viaSet, nft.Element{Key: key, Goto: via, Comment: mark}})
		}
	}
	return out
}

// itemSets are all sets that hold elements of attachments.
func itemSets() []string {
	var out []string
	for _, f := range families() {
		out = append(out, f.anyMap(), f.atMap(), f.anyVia(), f.atVia())
	}
	return out
}
