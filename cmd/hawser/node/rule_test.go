package node

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nlattr"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

func expr(name string, attrs ...[]byte) []byte {
	return nlattr.Nest(unix.NFTA_LIST_ELEM, nlattr.String(unix.NFTA_EXPR_NAME, name),
		nlattr.Nest(unix.NFTA_EXPR_DATA, attrs...))
}

func loadInput() []byte { return expr("meta", nlattr.Net32(unix.NFTA_META_KEY, unix.NFT_META_IIFNAME)) }

func equals(value []byte) []byte {
	return expr("cmp", nlattr.Net32(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ),
		nlattr.Nest(unix.NFTA_CMP_DATA, nlattr.Bytes(unix.NFTA_DATA_VALUE, value)))
}

func verdict(code int32) []byte {
	return expr("immediate", nlattr.Nest(unix.NFTA_IMMEDIATE_DATA,
		nlattr.Nest(unix.NFTA_DATA_VERDICT, nlattr.Net32(unix.NFTA_VERDICT_CODE, uint32(code)))))
}

// droppedPacketsFrom returns the expressions of the rule "iifname NAME drop".
func droppedPacketsFrom(name string) []byte {
	return slices.Concat(loadInput(), equals(append([]byte(name), 0)), verdict(verdictDrop))
}

func TestReadRule(t *testing.T) {
	rule := nft.LiveRule{Chain: "forward", Exprs: droppedPacketsFrom("eth0")}
	rules, err := readRule(rule, 1, nil)
	if err != nil || len(rules) != 1 || !rules[0].Drops || rules[0].Chain != "forward" {
		t.Fatalf("got %+v, %v", rules, err)
	}
	p := &Packet{Links: []rtnl.Link{{Name: "eth0", Index: 2}}, Range: netip.MustParsePrefix("10.88.0.0/24")}
	d := (&BaseChain{Name: "forward", Rules: rules}).Decide(p)
	if !d.Drops || !d.IsCertain || d.Rule == nil {
		t.Errorf("packets from eth0: got %+v", d)
	}
	p.ToContainer = true
	if d := (&BaseChain{Name: "forward", Rules: rules}).Decide(p); d.Drops {
		t.Errorf("packets to eth0: got %+v", d)
	}
}

// TestDecideUncertain evaluates chains that drop what a rule of an unknown effect does not accept: no drop is certain.
// A rule for ICMP between the two does not make it certain.
func TestDecideUncertain(t *testing.T) {
	interval := func(string) ([]nft.Element, error) { // neither one name nor all names with a prefix
		key := func(name string) []byte { return append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...) }
		return []nft.Element{{Key: key("cni")}, {Key: key("eth"), IsEnd: true}}, nil
	}
	fromCNI := slices.Concat(loadInput(), equals([]byte("cni0\x00")))
	for text, exprs := range map[string][]byte{
		`iifname "cni0" fib daddr type unicast accept`: slices.Concat(fromCNI, expr("fib"),
			equals([]byte{1, 0, 0, 0}), verdict(verdictAccept)),
		`iifname { "cni"-"eth" } accept`: slices.Concat(loadInput(),
			expr("lookup", nlattr.String(unix.NFTA_LOOKUP_SET, "__set0")), verdict(verdictAccept)),
		`tcp dport 80 return`:     slices.Concat(expr("payload"), equals([]byte{0, 80}), verdict(unix.NFT_RETURN)),
		`tcp dport 80 goto empty`: slices.Concat(expr("payload"), equals([]byte{0, 80}), verdict(unix.NFT_GOTO)),
	} {
		rules, err := readRule(nft.LiveRule{Chain: "forward", Exprs: exprs}, 1, interval)
		icmp := condition{field: protocol, values: []value{{number: unix.IPPROTO_ICMP}}}
		rules = append(rules, RuleSummary{Chain: "forward", Number: 2, Returns: true, conditions: []condition{icmp}},
			RuleSummary{Chain: "forward", Number: 3, Drops: true})
		p := &Packet{Links: []rtnl.Link{{Name: "cni0", Index: 2}}, Range: netip.MustParsePrefix("10.88.0.0/24")}
		if d := (&BaseChain{Name: "forward", Rules: rules}).Decide(p); err != nil || !d.Drops || d.IsCertain {
			t.Errorf("%s: got %+v, %v", text, d, err)
		}
	}
}

// TestDecideReturn evaluates a chain that ordinary packets leave before a rule drops the others.
func TestDecideReturn(t *testing.T) {
	rules := []RuleSummary{
		{Chain: "forward", Number: 1, Returns: true,
			conditions: []condition{{field: outLink, values: []value{{link: "eth0"}}}}},
		{Chain: "forward", Number: 2, Drops: true},
	}
	p := &Packet{Uplink: rtnl.Link{Name: "eth0", Index: 1}, Range: netip.MustParsePrefix("10.88.0.0/24")}
	if d := (&BaseChain{Name: "forward", Rules: rules}).Decide(p); d.Drops {
		t.Errorf("got %+v", d)
	}
}

// TestReadRuleError reads a rule with two sets, of which the first cannot be read.
func TestReadRuleError(t *testing.T) {
	elements := func(set string) ([]nft.Element, error) {
		if set == "first" {
			return nil, unix.ENOENT
		}
		return nil, nil
	}
	lookup := func(set string) []byte { return expr("lookup", nlattr.String(unix.NFTA_LOOKUP_SET, set)) }
	exprs := slices.Concat(loadInput(), lookup("first"), loadInput(), lookup("second"))
	if rules, err := readRule(nft.LiveRule{Exprs: exprs}, 1, elements); !errors.Is(err, unix.ENOENT) {
		t.Errorf("got %+v, %v", rules, err)
	}
}

// TestReadLegacyComment reads an unconditional rule with a comment that looks like an option.
func TestReadLegacyComment(t *testing.T) {
	rule := ipt.NewRule("FORWARD", "-m", "comment", "--comment", "-s", "-j", "DROP")
	if r := readLegacyRule(rule, 1, func(string) bool { return false }); !r.IsUnconditional() || !r.Drops {
		t.Errorf("got %+v", r)
	}
}

// FuzzReadRule reads any bytes as the expressions of a rule.
func FuzzReadRule(f *testing.F) {
	f.Add(droppedPacketsFrom("eth0"))
	f.Add(bytes.TrimRight(droppedPacketsFrom("eth0"), "\x00"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = readRule(nft.LiveRule{Exprs: data}, 1, func(string) ([]nft.Element, error) {
			return []nft.Element{{Key: data, Verdict: data}, {Key: data, IsEnd: true}}, nil
		})
	})
}
