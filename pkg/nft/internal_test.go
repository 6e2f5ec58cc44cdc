package nft

import (
	"encoding/binary"
	"slices"
	"syscall"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// UpdateUnlocked is Update for somebody who does not take the lock.
func UpdateUnlocked(c *Conn, change func(*Tx) error) error { return Owned{}.update(c, change) }

// AskAndLeave sends a request whose answer nobody reads.
func AskAndLeave(c *Conn, t Table) error {
	if err := c.dial(); err != nil {
		return err
	}
	c.sock.Seq++
	req := t.message(unix.NFT_MSG_GETTABLE, "").request(unix.NLM_F_ACK)
	req.Seq = c.sock.Seq
	return c.sock.Socket.Send(req)
}

// AskNothing sends what the kernel does not answer.
func AskNothing(c *Conn) error {
	if err := c.dial(); err != nil {
		return err
	}
	return c.exchange([]message{{typ: unix.NLMSG_NOOP}}, func(int, syscall.NetlinkMessage) bool { return false })
}

var _ = DescribeTable("what a kernel does not know names the module that it may lack", Label("kernel-lacks"),
	func(m message, module string) {
		err := refusal([]message{m}, 1, unix.ENOENT)
		Expect(err).To(MatchError(ErrUnsupported))
		Expect(err).To(MatchError(HaveSuffix(", which may lack " + module)))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeUnsupportedField))
	},
	Entry("a rule", newRule(Table{INet, "any"}, "chain", Rule{Masquerade()}), "nft_masq"),
	Entry("a rule of nothing special", newRule(Table{INet, "any"}, "chain", Rule{Drop()}), "nf_tables"),
	Entry("a chain of NAT", newChain(Table{INet, "any"}, Chain{Hook: &Hook{Type: "nat"}}), "nft_chain_nat"),
	Entry("a table", newTable(Table{INet, "any"}), "nf_tables"))

var _ = Describe("attributes", func() {
	It("are read as they were written", func() {
		b := list(attrBytes(2, []byte{1, 2, 3, 4, 5}), attrText(3, "abc"), attrNest(4, attrBytes(1, []byte{7})),
			attrNet32(6, 0x01020304))
		Expect(len(b) % 4).To(BeZero())
		Expect(attribute(b, 2)).To(Equal([]byte{1, 2, 3, 4, 5}))
		Expect(attribute(b, 3)).To(Equal([]byte("abc\x00")))
		Expect(textOf(attribute(b, 3))).To(Equal("abc"))
		Expect(attribute(b, 4, 1)).To(Equal([]byte{7}))
		Expect(attribute(b, 4, 2)).To(BeNil())
		Expect(attribute(b, 6)).To(Equal([]byte{1, 2, 3, 4}))
		Expect(attribute(b, 7, 1)).To(BeNil())
		Expect(textOf(nil)).To(BeEmpty())
	})

	It("end where a length makes no sense", func() {
		for _, n := range []uint16{0, 3, 9} {
			b := binary.NativeEndian.AppendUint16(attrNet32(1, 1), n)
			count := 0
			for range attributes(append(b, 1, 0, 0, 0)) {
				count++
			}
			Expect(count).To(Equal(1))
		}
	})
})

var _ = DescribeTable("a list contains another one", func(have, wanted []byte, is bool) {
	Expect(containsAttrs(have, wanted)).To(Equal(is))
},
	Entry("with the same values",
		list(attrText(1, "a"), attrNet32(2, 5)), list(attrNet32(2, 5), attrText(1, "a")), true),
	Entry("with fewer values", list(attrText(1, "a"), attrNet32(2, 5)), attrText(1, "a"), true),
	Entry("not with more values", attrText(1, "a"), list(attrText(1, "a"), attrNet32(2, 5)), false),
	Entry("with zeros that are left out", attrText(1, "a"), list(attrText(1, "a"), attrNet32(2, 0)), true),
	Entry("not with zeros that are something else", attrNet32(2, 5), attrNet32(2, 0), false),
	Entry("not with another value", attrNet32(2, 4), attrNet32(2, 5), false),
	Entry("not with a longer value", attrBytes(2, []byte{1, 2}), attrBytes(2, []byte{1, 2, 0, 0}), false),
	Entry("in others, whatever their flags",
		attrBytes(3, attrNest(1, attrNet32(2, 5))), attrNest(3, attrNest(1, attrNet32(2, 5))), true),
	Entry("in others, unless they differ",
		attrNest(3, attrNest(1, attrNet32(2, 5))), attrNest(3, attrNest(1, attrNet32(2, 4))), false),
	Entry("of kinds with flags", attrBytes(2|unix.NLA_F_NET_BYTEORDER, []byte{1}), attrBytes(2, []byte{1}), true),
)

func list(attrs ...[]byte) (all []byte) {
	for _, a := range attrs {
		all = append(all, a...)
	}
	return all
}

var _ = DescribeTable("a rule of the kernel's", func(want, live Stmt, same bool) {
	list := func(s Stmt) (all []byte) {
		for _, x := range s.exprs {
			all = append(all, attrNest(unix.NFTA_LIST_ELEM, x)...)
		}
		return all
	}
	Expect(LiveRule{exprs: list(live)}.runs(want.exprs)).To(Equal(same))
},
	Entry("is what was sent", InSet("a", IPSaddr), InSet("a", IPSaddr), true),
	Entry("is about another set", InSet("a", IPSaddr), InSet("b", IPSaddr), false),
	Entry("is about another field", InSet("a", IPSaddr), InSet("a", IPDaddr), false),
	Entry("is the opposite", InSet("a", IPSaddr), NotInSet("a", IPSaddr), false),
	Entry("does more", Return(), Stmt{exprs: append(FwmarkHas(1).exprs, Return().exprs...)}, false),
	Entry("does less", FwmarkHas(1), Stmt{exprs: FwmarkHas(1).exprs[:1]}, false),
	Entry("is another expression", Masquerade(), Stmt{exprs: [][]byte{expression("redir")}}, false),
	Entry("has zeros that were left out", Masquerade(), Stmt{exprs: [][]byte{expression("masq")}}, true),
	Entry("has other options", Masquerade(),
		Stmt{exprs: [][]byte{expression("masq", attrNet32(unix.NFTA_MASQ_FLAGS, 4))}}, false),
	Entry("has what a later kernel adds", Masquerade(),
		Stmt{exprs: [][]byte{expression("masq", attrNet32(77, 5))}}, true),
	Entry("compares with something else", FwmarkHas(1), FwmarkHas(2), false),
	Entry("leads elsewhere", Goto("a"), Goto("b"), false),
	Entry("leads there in another way", Goto("a"), Jump("a"), false),
	Entry("ends otherwise", Return(), Drop(), false),
)

// FuzzAnswer reads anything as what the kernel says of an object, and as what others have in the tables.
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
		live.meaning()
		missingRule(want, []LiveRule{live})
	})
}

// FuzzFlow reads anything as an entry.
func FuzzFlow(f *testing.F) {
	tuple := slices.Concat(
		attrNest(nl.CTA_TUPLE_IP, attrBytes(nl.CTA_IP_V4_SRC, []byte{10, 1, 0, 2}),
			attrBytes(nl.CTA_IP_V6_DST, make([]byte, 16))),
		attrNest(nl.CTA_TUPLE_PROTO, attrBytes(nl.CTA_PROTO_NUM, []byte{17}),
			attrBytes(nl.CTA_PROTO_DST_PORT, []byte{0, 53})))
	f.Add(slices.Concat(attrNest(nl.CTA_TUPLE_ORIG, tuple), attrNest(nl.CTA_TUPLE_REPLY, tuple),
		attrBytes(nl.CTA_ID, []byte{1, 2, 3, 4})))
	f.Fuzz(func(t *testing.T, data []byte) {
		flow, _ := decodeFlow(data)
		flow.Translated()
		for range attributes(flow.id) {
		}
	})
}
