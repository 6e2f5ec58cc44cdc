package nft

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzAnswer reads anything as the kernel's answer, and as what others have in
// the tables.
func FuzzAnswer(f *testing.F) {
	t := Table{INet, "t"}
	rule := Rule{InSet("s", IPSaddr), Goto("c")}
	chain := Chain{Name: "c", Hook: &Hook{Type: "nat", Priority: -99}, Rules: []Rule{rule}}
	list, err := newRule(t, "c", rule)
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range []message{newChain(t, chain), list, {typ: unix.NLMSG_DONE, flags: unix.NLM_F_DUMP_INTR},
		{typ: unix.NLMSG_ERROR, flags: unix.NLM_F_ACK_TLVS | unix.NLM_F_CAPPED, body: make(attrs, 40)}} {
		f.Add(m.encode(nil, 1, 0))
	}
	for _, m := range elementMessages(unix.NFT_MSG_NEWSETELEM, t, "s", []Element{{Key: []byte{1, 2, 3, 4}, Goto: "c", Comment: "x"}, {Data: []byte{1}}}) {
		f.Add(m.encode(nil, 2, 0))
	}
	want, err := chain.expressions(INet)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		replies, err := parse(data)
		if err != nil {
			replies = []reply{{data: data}}
		}
		for _, r := range answersTo(slices.Clone(replies), 1, 2) {
			if r.seq < 1 || r.seq > 2 {
				t.Fatalf("not asked for: %d", r.seq)
			}
		}
		for _, r := range replies {
			_ = r.err()
			decodeChain(Table{}, r.data)
			decodeElements(r.data)
			live := decodeRule(r.data)
			live.Mentions([]byte{10, 1, 0, 2})
			live.Text()
			missingRule(want, []LiveRule{live})
		}
	})
}
