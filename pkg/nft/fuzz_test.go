package nft

import "testing"

// FuzzAnswer reads anything as what the kernel says of an object, and as what
// others have in the tables.
func FuzzAnswer(f *testing.F) {
	t := Table{INet, "t"}
	rule := Rule{InSet("s", IPSaddr), Goto("c")}
	chain := Chain{Name: "c", Hook: &Hook{Type: "nat", Priority: -99}, Rules: []Rule{rule}}
	for _, m := range []message{newChain(t, chain), newRule(t, "c", rule)} {
		f.Add(m.body)
	}
	elems := []Element{{Key: []byte{1, 2, 3, 4}, Goto: "c", Comment: "x"}, {Data: []byte{1}}}
	f.Add(elementList(elems, Element.encode))
	want := chain.compile(INet)
	f.Fuzz(func(t *testing.T, data []byte) {
		decodeChain(INet, data)
		decodeElements(data)
		live := decodeRule(data)
		live.Mentions([]byte{10, 1, 0, 2})
		missingRule(want, []LiveRule{live})
	})
}
