package node

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nlattr"
)

// droppedPacketsFrom returns the expressions of the rule "iifname NAME drop".
func droppedPacketsFrom(name string) []byte {
	expr := func(name string, attrs ...[]byte) []byte {
		return nlattr.Nest(unix.NFTA_LIST_ELEM, nlattr.String(unix.NFTA_EXPR_NAME, name),
			nlattr.Nest(unix.NFTA_EXPR_DATA, attrs...))
	}
	return slices.Concat(
		expr("meta", nlattr.Net32(unix.NFTA_META_KEY, unix.NFT_META_IIFNAME)),
		expr("cmp", nlattr.Net32(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ),
			nlattr.Nest(unix.NFTA_CMP_DATA, nlattr.String(unix.NFTA_DATA_VALUE, name))),
		expr("immediate", nlattr.Nest(unix.NFTA_IMMEDIATE_DATA,
			nlattr.Nest(unix.NFTA_DATA_VERDICT, nlattr.Net32(unix.NFTA_VERDICT_CODE, verdictDrop)))))
}

func TestReadRule(t *testing.T) {
	rule := nft.LiveRule{Chain: "forward", Exprs: droppedPacketsFrom("eth0")}
	rules, err := readRule(rule, 1, nil)
	if err != nil || len(rules) != 1 || !rules[0].Drops || rules[0].Chain != "forward" {
		t.Fatalf("got %+v, %v", rules, err)
	}
	p := &Packet{Links: []Link{{Name: "eth0", Index: 2}}, Range: netip.MustParsePrefix("10.88.0.0/24")}
	d := (&BaseChain{Name: "forward", Rules: rules}).Decide(p)
	if !d.Drops || !d.IsCertain || d.Rule == nil {
		t.Errorf("packets from eth0: got %+v", d)
	}
	p.ToContainer = true
	if d := (&BaseChain{Name: "forward", Rules: rules}).Decide(p); d.Drops {
		t.Errorf("packets to eth0: got %+v", d)
	}
}

// FuzzReadRule reads any bytes as the expressions of a rule.
func FuzzReadRule(f *testing.F) {
	f.Add(droppedPacketsFrom("eth0"))
	f.Add(bytes.TrimRight(droppedPacketsFrom("eth0"), "\x00"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = readRule(nft.LiveRule{Exprs: data}, 1, func(string) ([]nft.Element, error) {
			return []nft.Element{{Key: data, Accepts: true}}, nil
		})
	})
}
