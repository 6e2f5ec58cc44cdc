package nft

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// masquerade with what a kernel may add to it, and translation.
var (
	lookupIn = expression{"lookup", []attr{str(unix.NFTA_LOOKUP_SET, "a"), num(unix.NFTA_LOOKUP_SREG, 1),
		num(unix.NFTA_LOOKUP_SET_ID, 0)}}
	natFlags = attr{kind: unix.NFTA_NAT_FLAGS, value: num(0, 2).value, moot: 3}
	nat      = expression{"nat", []attr{num(unix.NFTA_NAT_TYPE, 1), natFlags}}
)

var _ = DescribeTable("an expression of the kernel's", func(want, live expression, same bool) {
	Expect(want.same(live.encode())).To(Equal(same))
},
	Entry("is what was sent", lookupIn, lookupIn, true),
	Entry("has another name", lookupIn, expression{"map", lookupIn.attrs}, false),
	Entry("lacks what is zero", lookupIn, expression{"lookup", lookupIn.attrs[:2]}, true),
	Entry("lacks something", lookupIn, expression{"lookup", lookupIn.attrs[:1]}, false),
	Entry("has another value", lookupIn,
		expression{"lookup", []attr{str(unix.NFTA_LOOKUP_SET, "b"), lookupIn.attrs[1]}}, false),
	Entry("has a default besides", lookupIn,
		expression{"lookup", append(lookupIn.attrs[:2:2], num(unix.NFTA_LOOKUP_FLAGS, 0))}, true),
	Entry("has something besides that means something", lookupIn,
		expression{"lookup", append(lookupIn.attrs[:2:2], num(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV))}, false),
	Entry("has something besides that came with a later kernel", lookupIn,
		expression{"lookup", append(lookupIn.attrs[:2:2], num(77, 5))}, true),
	Entry("has other options", expression{name: "masq"}, expression{"masq", []attr{num(unix.NFTA_MASQ_FLAGS, 4)}}, false),
	Entry("has the flags that newer kernels set", nat,
		expression{"nat", []attr{nat.attrs[0], num(unix.NFTA_NAT_FLAGS, 3)}}, true),
	Entry("has not the flags that newer kernels set", nat,
		expression{"nat", nat.attrs[:1]}, true),
	Entry("has other flags", nat, expression{"nat", []attr{nat.attrs[0], num(unix.NFTA_NAT_FLAGS, 6)}}, false),
	Entry("compares with something else", isEqual([]byte{1, 2}), isEqual([]byte{1, 3}), false),
	Entry("compares with more", isEqual([]byte{1, 2}), isEqual([]byte{1, 2, 0, 0}), false),
	Entry("leads elsewhere", verdict(unix.NFT_GOTO, "a"), verdict(unix.NFT_GOTO, "b"), false),
	Entry("leads there in another way", verdict(unix.NFT_GOTO, "a"), verdict(unix.NFT_JUMP, "a"), false),
	Entry("ends otherwise", verdict(acceptPacket, ""), verdict(dropPacket, ""), false),
	Entry("is another comparison", compare(unix.NFT_CMP_NEQ, []byte{1}), isEqual([]byte{1}), false),
)
