package nft

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

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
