package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/process"
)

// addNFTables makes the attachment's elements and removes those of the owners that are gone, in one batch.
func (c *call) addNFTables(ctx context.Context, r *record, gone []*record) error {
	if err := c.compileConditions(ctx, r); err != nil {
		return err
	}
	return owned(r.Options.MarkBit).Update(ctx, c.nf, func(ch *nft.Change) error {
		for _, o := range gone {
			if err := ch.Remove(o.items(), o.Owns); err != nil {
				return err
			}
		}
		err := ch.Put(r.items(), func(old nft.Item) error {
			return portTaken(elementPort(old), unrecorded(old.Comment))
		})
		if err != nil {
			return err
		}
		return stageGuard(ch.Tx, r)
	})
}

// compileConditions has nft(8) make the chains with the attachment's conditions. Nothing leads to them yet.
func (c *call) compileConditions(ctx context.Context, r *record) error {
	for _, a := range r.served() {
		if r.conditionChain(a.v4()) == "" {
			continue
		}
		err := owned(r.Options.MarkBit).Update(ctx, c.nf,
			func(ch *nft.Change) error { return ch.Ensure(r.masqChain(a)) })
		if err != nil {
			return err
		}
		conditions, key := r.Options.conditions(a.v4())
		err = runNft(ctx, r.conditionScript(a))
		if errors.Is(err, errRefused) {
			return cni.Errorf(cni.CodeConfig, "%s: %q: %w", key, conditions, err)
		}
		if err != nil {
			return fmt.Errorf("%s: the nft program has to compile them: %w", key, err)
		}
	}
	return nil
}

// errRefused says that nft(8) did not accept a script.
var errRefused = errors.New("refused by nft")

// runNft has nft(8) run a script, everything or nothing. The error matches errRefused when the program ran and did
// not accept it, and has what the program said.
func runNft(ctx context.Context, script string) error {
	path, err := process.LookPath(nftProgram)
	if err != nil {
		return err
	}
	var errs strings.Builder
	err = process.Command{Path: path, Args: []string{"-f", "-"}, Stdin: []byte(script), Stderr: &errs}.Run(ctx)
	text := strings.Join(strings.Fields(errs.String()), " ")
	if errors.As(err, new(*process.ExitError)) {
		return fmt.Errorf("%w: %s", errRefused, text)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", nftProgram, err, text)
	}
	return nil
}

// nftProgram is needed for text that an administrator wrote in its language, and for nothing else.
const nftProgram = "nft"

// delNFTables removes the attachment's elements, and its link from the guard when it was the last one there.
func (c *call) delNFTables(ctx context.Context, r *record, last bool) error {
	o, mine := owned(r.Options.MarkBit), r.Owns
	found, err := o.Live(c.nf, r.items(), mine)
	if err != nil {
		return err
	}
	var chains []string // an ADD that ended early leaves them without an element
	for _, a := range r.Addrs {
		if chain := r.conditionChain(a.v4()); chain != "" {
			chains = append(chains, chain, r.masqChain(a))
		}
	}
	if len(found) == 0 && len(chains) == 0 && !last {
		return nil
	}
	return o.Update(ctx, c.nf, func(ch *nft.Change) error {
		ch.Drop(chains...)
		if err := ch.Remove(found, mine); err != nil || !last {
			return err
		}
		return takeBackLocalnet(ch.Tx, r.Localnet, r.LocalnetWas)
	})
}

// checkNFTables compares the attachment's elements and what it shares with others with the kernel's.
func (c *call) checkNFTables(r *record) error {
	diffs := []error{owned(r.Options.MarkBit).Verify(c.nf, r.items())}
	for _, a := range r.served() {
		chain := r.conditionChain(a.v4())
		if chain == "" {
			continue
		}
		rules, err := c.nf.Rules(table, chain)
		if err != nil {
			return err
		}
		if len(rules) != 1 || rules[0].Target != r.afterConditions(a) {
			_, key := r.Options.conditions(a.v4())
			diffs = append(diffs, drift("nftables chain %q: does not have the rule of %s", chain, key))
		}
		if masq, ok := chainNamed(r.masqChain(a)); ok {
			diffs = append(diffs, c.nf.Verify(nft.Layout{Table: table, Chains: []nft.Chain{masq}}))
		}
	}
	return errors.Join(diffs...)
}

func drift(format string, args ...any) error { return cni.Errorf(cni.CodeDrift, format, args...) }

// table is shared with other plugins.
var table = nft.Table{Family: nft.INet, Name: nft.TableName}

const (
	preroutingChain = "portmap_prerouting_v1"
	outputChain     = "portmap_output_v1"
	guardChain      = "portmap_guard_v1"
	localnetSet     = "portmap_localnet_v1"

	// dnatPriority is behind those who translate at -100: the services of kube-proxy win, whoever came first.
	dnatPriority = -99
	snatPriority = 100
	rawPriority  = -300
)

// family has the names and values in which IPv4 and IPv6 differ.
type family struct {
	nft.Family
	all netip.Addr // all addresses of the host
}

func families() []family {
	return []family{{nft.IPv4, netip.IPv4Unspecified()}, {nft.IPv6, netip.IPv6Unspecified()}}
}

func familyOf(v4 bool) family {
	if v4 {
		return families()[0]
	}
	return families()[1]
}

func (f family) v4() bool { return f.Family == nft.IPv4 }

// anyMap has the host ports of all addresses, atMap those of one address.
func (f family) anyMap() string { return "portmap" + f.Digit() + "_v1" }
func (f family) atMap() string  { return "portmap" + f.Digit() + "_at_v1" }

// anyVia and atVia say through which chain the packets of a host port pass before those maps translate them:
// one that sets the fwmark of packets to be masqueraded, or one with conditions.
func (f family) anyVia() string { return "portmap" + f.Digit() + "_via_v1" }
func (f family) atVia() string  { return "portmap" + f.Digit() + "_at_via_v1" }

func (f family) localChain() string { return "portmap" + f.Digit() + "_local_v1" }
func (f family) dnatChain() string  { return "portmap" + f.Digit() + "_dnat_v1" }

func snatChain(bit int) string { return fmt.Sprintf("portmap_snat%d_v1", bit) }

// loopback4 are the sources of a host that speaks to itself.
var loopback4 = netip.MustParsePrefix("127.0.0.0/8")

// sharedLayout is the layout of all attachments that masquerade by this bit of the fwmark.
func sharedLayout(bit int) nft.Layout {
	l := nft.Layout{Table: table}
	for _, f := range families() {
		l.Sets = append(l.Sets, f.sets()...)
		l.Chains = append(l.Chains, f.chains()...)
	}
	guard := guardLayout()
	l.Sets = append(l.Sets, guard.Sets...)
	l.Chains = append(l.Chains, guard.Chains...)
	var local []nft.Rule
	for _, f := range families() {
		local = append(local, nft.Rule{nft.IsFamily(f.Family), nft.DaddrIsLocal(), nft.Jump(f.localChain())})
	}
	// No packet to a container can come from ::1, so it is left alone: it is refused at once, or served by the host.
	loopback6 := nft.Rule{nft.InPrefix(nft.IP6Daddr, netip.PrefixFrom(netip.IPv6Loopback(), 128)), nft.Return()}
	l.Chains = append(l.Chains,
		nft.Chain{Name: preroutingChain, Comment: "host ports of what arrives",
			Hook: &nft.Hook{Type: "nat", Point: nft.Prerouting, Priority: dnatPriority}, Rules: local},
		nft.Chain{Name: outputChain, Comment: "host ports of what the host sends to itself",
			Hook: &nft.Hook{Type: "nat", Point: nft.Output,
				Priority: dnatPriority}, Rules: append([]nft.Rule{loopback6}, local...)},
		nft.Chain{Name: snatChain(bit), Comment: "masquerade of what was marked on its way to a host port",
			Hook:  &nft.Hook{Type: "nat", Point: nft.Postrouting, Priority: snatPriority},
			Rules: []nft.Rule{{nft.CtTranslated(), nft.FwmarkHas(1 << bit), nft.Masquerade()}}},
	)
	return l
}

func (f family) sets() []nft.Set {
	service := []nft.Type{nft.InetProto, nft.InetService}
	at := []nft.Type{nft.InetProto, f.Addr(), nft.InetService}
	to := []nft.Type{f.Addr(), nft.InetService}
	verdict := []nft.Type{nft.Verdict}
	return []nft.Set{
		{Name: f.anyMap(), Key: service, Data: to, Comment: "host port : container"},
		{Name: f.atMap(), Key: at, Data: to, Comment: "host address and port : container"},
		{Name: f.anyVia(), Key: service, Data: verdict, Comment: "host port : chain on its way"},
		{Name: f.atVia(), Key: at, Data: verdict, Comment: "host address and port : chain on its way"},
	}
}

func (f family) chains() []nft.Chain {
	any := []nft.Field{nft.L4Proto, nft.THDport}
	at := []nft.Field{nft.L4Proto, f.Daddr(), nft.THDport}
	return []nft.Chain{
		{Name: f.dnatChain(), Rules: []nft.Rule{
			{nft.DNATMap(f.Family, f.atMap(), at...)},
			{nft.DNATMap(f.Family, f.anyMap(), any...)},
		}},
		{Name: f.localChain(), Rules: []nft.Rule{
			{nft.VerdictMap(f.atVia(), at...)},
			{nft.VerdictMap(f.anyVia(), any...)},
			{nft.Goto(f.dnatChain())},
		}},
	}
}

// guardLayout keeps containers from what the host serves on its loopback only: route_localnet, without
// which 127.0.0.1 leads to no container, would let them reach it.
func guardLayout() nft.Layout {
	in := nft.InSet(localnetSet, nft.IIFName)
	return nft.Layout{
		Table: table,
		Sets:  []nft.Set{{Name: localnetSet, Key: []nft.Type{nft.IfName}, Comment: "interfaces with route_localnet"}},
		Chains: []nft.Chain{{Name: guardChain, Comment: "nothing from or to 127.0.0.0/8 comes from containers",
			Hook: &nft.Hook{Type: "filter", Point: nft.Prerouting, Priority: rawPriority},
			Rules: []nft.Rule{
				{in, nft.InPrefix(nft.IPDaddr, loopback4), nft.Drop()},
				{in, nft.InPrefix(nft.IPSaddr, loopback4), nft.Drop()},
			}}},
	}
}

// owned is the layout of the attachments that masquerade by this bit of the fwmark, with the elements of all
// attachments.
func owned(bit int) nft.Owned {
	o := nft.Owned{Layout: sharedLayout(bit), Chain: chainNamed}
	for _, f := range families() {
		o.Sets = append(o.Sets, f.anyMap(), f.atMap(), f.anyVia(), f.atVia())
	}
	return o
}

// chainNamed makes a chain to which elements lead, from its name alone. A chain with conditions comes without
// rules: nft(8) makes them.
func chainNamed(name string) (nft.Chain, bool) {
	for _, f := range families() {
		if strings.HasPrefix(name, f.conditionPrefix()) {
			return nft.Chain{Name: name}, true
		}
		rest, isMasq := strings.CutPrefix(name, f.masqPrefix())
		number, from, _ := strings.Cut(rest, "_")
		bit, err := strconv.Atoi(number)
		near, notPrefix := netip.ParsePrefix(strings.ReplaceAll(from, "-", ":"))
		if !isMasq || err != nil || bit < 0 || bit > 31 || from != "all" && notPrefix != nil {
			continue
		}
		fwmark := nft.FwmarkWith(1 << bit)
		rules := []nft.Rule{{fwmark}}
		if from != "all" {
			rules = []nft.Rule{{nft.InPrefix(f.Saddr(), near), fwmark}}
			if f.v4() {
				rules = append(rules, nft.Rule{nft.InPrefix(f.Saddr(), loopback4), fwmark})
			}
		}
		return nft.Chain{Name: name, Rules: append(rules, nft.Rule{nft.Goto(f.dnatChain())})}, true
	}
	return nft.Chain{}, false
}

// masqPrefix begins the names of the chains that set the fwmark of packets to be masqueraded. The rest of a name
// is the bit and the sources, so the name says all of the chain; nft takes no colons in it.
func (f family) masqPrefix() string { return "portmap" + f.Digit() + "_masq_v1_" }

// masqChain is the chain of the sources near to the address; empty where nothing is masqueraded.
func (r *record) masqChain(a address) string {
	from := "all"
	if !r.Options.MasqAll {
		from = strings.ReplaceAll(a.Near.String(), ":", "-")
	}
	if !r.Options.SNAT {
		return ""
	}
	return fmt.Sprintf("%s%d_%s", familyOf(a.v4()).masqPrefix(), r.Options.MarkBit, from)
}

// conditionPrefix begins the names of the chains with conditions. Each belongs to one attachment.
func (f family) conditionPrefix() string { return "portmap" + f.Digit() + "_conditions_v1_" }

// conditionChain is the attachment's own chain with its conditions; empty when it has none.
func (r *record) conditionChain(v4 bool) string {
	if conditions, _ := r.Options.conditions(v4); len(conditions) == 0 {
		return ""
	}
	return familyOf(v4).conditionPrefix() + r.Hash()
}

// afterConditions is the chain to which packets go that meet the conditions.
func (r *record) afterConditions(a address) string {
	return cmp.Or(r.masqChain(a), familyOf(a.v4()).dnatChain())
}

// conditionScript is the script by which nft(8) makes the chain with the conditions of a family.
func (r *record) conditionScript(a address) string {
	conditions, _ := r.Options.conditions(a.v4())
	where := fmt.Sprintf("%s %s", table, r.conditionChain(a.v4()))
	return fmt.Sprintf("add chain %s\nflush chain %s\nadd rule %s %s goto %s\n",
		where, where, where, strings.Join(conditions, " "), r.afterConditions(a))
}

// items are the elements of the attachment.
func (r *record) items() []nft.Item {
	mark := r.Mark()
	via := map[bool]string{} // the chain through which the host ports of a family go first
	for _, a := range r.Addrs {
		via[a.v4()] = cmp.Or(r.conditionChain(a.v4()), r.masqChain(a))
	}
	var out []nft.Item
	for _, p := range r.hostPorts() {
		set, viaSet, key := p.place()
		to := nft.Key(nft.AddrKey(p.To.Addr()), binary.BigEndian.AppendUint16(nil, p.To.Port()))
		out = append(out, nft.Item{Set: set, Element: nft.Element{Key: key, Data: to, Comment: mark}, Name: p.String()})
		if chain := via[p.Addr.Is4()]; chain != "" {
			out = append(out, nft.Item{Set: viaSet, Element: nft.Element{Key: key, Goto: chain, Comment: mark},
				Name: p.String()})
		}
	}
	return out
}

// place says where the element of a host port is: in which maps, and by which key.
func (p hostPort) place() (set, viaSet string, key []byte) {
	f := familyOf(p.Addr.Is4())
	proto, port := []byte{byte(p.Proto)}, binary.BigEndian.AppendUint16(nil, p.Port)
	if p.Addr.IsUnspecified() {
		return f.anyMap(), f.anyVia(), nft.Key(proto, port)
	}
	return f.atMap(), f.atVia(), nft.Key(proto, nft.AddrKey(p.Addr), port)
}

// elementPort is the host port of an element. Each field of its key is padded to four bytes.
func elementPort(it nft.Item) hostPort {
	f := familyOf(strings.HasPrefix(it.Set, "portmap4"))
	p := hostPort{Proto: proto(it.Key[0]), Addr: f.all, Port: binary.BigEndian.Uint16(it.Key[len(it.Key)-4:])}
	if len(it.Key) > 8 {
		p.Addr, _ = netip.AddrFromSlice(it.Key[4 : len(it.Key)-4])
	}
	return p
}
