package nft

import (
	"slices"
	"syscall"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nlattr"
)

// UpdateUnlocked is Update without the lock.
func UpdateUnlocked(c *Conn, change func(*Tx) error) error { return Owned{}.update(c, change) }

// SendUnread sends a request without reading its answer.
func SendUnread(c *Conn, t Table) error {
	if err := c.dial(); err != nil {
		return err
	}
	c.sock.Seq++
	req := t.message(unix.NFT_MSG_GETTABLE, "").request(unix.NLM_F_ACK)
	req.Seq = c.sock.Seq
	return c.sock.Socket.Send(req)
}

// SendUnanswered sends a message that the kernel does not answer.
func SendUnanswered(c *Conn) error {
	if err := c.dial(); err != nil {
		return err
	}
	return c.exchange([]message{{typ: unix.NLMSG_NOOP}}, func(int, syscall.NetlinkMessage) bool { return false })
}

var _ = DescribeTable("an error for an unsupported object names a module that may be missing", Label("kernel-lacks"),
	func(m message, module string) {
		err := batchError([]message{m}, 1, unix.ENOENT)
		Expect(err).To(MatchError(ErrUnsupported))
		Expect(err).To(MatchError(HaveSuffix(", which may lack " + module)))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeUnsupportedField))
	},
	Entry("a rule", newRule(Table{INet, "any"}, "chain", Rule{Masquerade()}), "nft_masq"),
	Entry("a rule with basic expressions", newRule(Table{INet, "any"}, "chain", Rule{Drop()}), "nf_tables"),
	Entry("a chain of NAT", newChain(Table{INet, "any"}, Chain{Hook: &Hook{Type: "nat"}}), "nft_chain_nat"),
	Entry("a table", newTable(Table{INet, "any"}), "nf_tables"))

var _ = DescribeTable("a live rule", func(want, live Stmt, same bool) {
	list := func(s Stmt) (all []byte) {
		for _, x := range s.exprs {
			all = append(all, nlattr.Nest(unix.NFTA_LIST_ELEM, x)...)
		}
		return all
	}
	Expect(LiveRule{Exprs: list(live)}.hasExprs(want.exprs)).To(Equal(same))
},
	Entry("equals the rule that was sent", InSet("a", IPSaddr), InSet("a", IPSaddr), true),
	Entry("has another set", InSet("a", IPSaddr), InSet("b", IPSaddr), false),
	Entry("has another field", InSet("a", IPSaddr), InSet("a", IPDaddr), false),
	Entry("is inverted", InSet("a", IPSaddr), NotInSet("a", IPSaddr), false),
	Entry("has more expressions", Return(), Stmt{exprs: append(FwmarkHas(1).exprs, Return().exprs...)}, false),
	Entry("has fewer expressions", FwmarkHas(1), Stmt{exprs: FwmarkHas(1).exprs[:1]}, false),
	Entry("has another expression", Masquerade(), Stmt{exprs: [][]byte{expression("redir")}}, false),
	Entry("omits options with value 0", Masquerade(), Stmt{exprs: [][]byte{expression("masq")}}, true),
	Entry("has other options", Masquerade(),
		Stmt{exprs: [][]byte{expression("masq", nlattr.Net32(unix.NFTA_MASQ_FLAGS, 4))}}, false),
	Entry("has attributes of a later kernel", Masquerade(),
		Stmt{exprs: [][]byte{expression("masq", nlattr.Net32(77, 5))}}, true),
	Entry("compares with another value", FwmarkHas(1), FwmarkHas(2), false),
	Entry("goes to another chain", Goto("a"), Goto("b"), false),
	Entry("jumps instead of going", Goto("a"), Jump("a"), false),
	Entry("has another verdict", Return(), Drop(), false),
)

// FuzzAnswer decodes any bytes as the kernel's answer about an object, which another program may have created.
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

// FuzzFlow decodes any bytes as an entry.
func FuzzFlow(f *testing.F) {
	tuple := slices.Concat(
		nlattr.Nest(nl.CTA_TUPLE_IP, nlattr.Bytes(nl.CTA_IP_V4_SRC, []byte{10, 1, 0, 2}),
			nlattr.Bytes(nl.CTA_IP_V6_DST, make([]byte, 16))),
		nlattr.Nest(nl.CTA_TUPLE_PROTO, nlattr.Bytes(nl.CTA_PROTO_NUM, []byte{17}),
			nlattr.Bytes(nl.CTA_PROTO_DST_PORT, []byte{0, 53})))
	f.Add(slices.Concat(nlattr.Nest(nl.CTA_TUPLE_ORIG, tuple), nlattr.Nest(nl.CTA_TUPLE_REPLY, tuple),
		nlattr.Bytes(nl.CTA_ID, []byte{1, 2, 3, 4})))
	f.Fuzz(func(t *testing.T, data []byte) {
		flow, _ := decodeFlow(data)
		flow.Translated()
		for range nlattr.All(flow.id) {
		}
	})
}
