package node

import (
	"bytes"
	"reflect"
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
	got := readRule(nft.LiveRule{Chain: "forward", Exprs: droppedPacketsFrom("eth0")}).RuleSummary
	want := RuleSummary{Chain: "forward", Drops: true, MatchesOne: true, Links: []string{"eth0"},
		Compared: []string{"eth0\x00"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// FuzzReadRule reads any bytes as the expressions of a rule.
func FuzzReadRule(f *testing.F) {
	f.Add(droppedPacketsFrom("eth0"))
	f.Add(bytes.TrimRight(droppedPacketsFrom("eth0"), "\x00"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		readRule(nft.LiveRule{Exprs: data})
	})
}
