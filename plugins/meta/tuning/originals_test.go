package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
)

func ptr[T any](v T) *T { return &v }

var _ = DescribeTable("the backup file", func(o originals, want string) {
	data, err := o.encode()
	Expect(err).NotTo(HaveOccurred())
	Expect(string(data)).To(Equal(want))
	Expect(decodeOriginals(data)).To(Equal(o))
},
	Entry("of all attributes",
		originals{MAC: "02:00:00:00:00:01", Promisc: ptr(false), MTU: 1500, AllMulti: ptr(false), TxQLen: ptr(1000)},
		"{\n \"mac\": \"02:00:00:00:00:01\",\n \"promisc\": false,\n \"mtu\": 1500,\n \"allmulti\": false,\n \"txQLen\": 1000\n}"),
	Entry("of some", originals{MTU: 1500, TxQLen: ptr(0)}, "{\n \"mtu\": 1500,\n \"txQLen\": 0\n}"),
	Entry("of sysctls, in their order", originals{MTU: 1500, Sysctls: pairs{{"net.b", "1"}, {"net.a", "4\t5"}}},
		"{\n \"mtu\": 1500,\n \"sysctl\": {\n  \"net.b\": \"1\",\n  \"net.a\": \"4\\t5\"\n }\n}"),
	Entry("of nothing", originals{}, "{}"),
)

var _ = DescribeTable("is no backup:", func(text string) {
	_, err := decodeOriginals([]byte(text))
	Expect(err).To(HaveOccurred())
},
	Entry("nothing", ""),
	Entry("half of it", "{\n \"mtu\": 15"),
	Entry("a number that is none", `{"mtu":"x"}`),
	Entry("a sysctl that is no string", `{"sysctl":{"net.x":1}}`),
	Entry("NULs", "\x00\x00"),
)

var _ = Describe("a record's place", func() {
	It("with a cookie is nobody else's", func() {
		p := place{Boot: "b", Cookie: 5, Device: 1, Inode: 2, MAC: "x"}
		Expect(p.isNow(place{Boot: "b", Cookie: 5, Device: 9, Inode: 9})).To(BeTrue())
		Expect(p.isNow(place{Boot: "b", Cookie: 6, Device: 1, Inode: 2, MAC: "x"})).To(BeFalse())
		Expect(p.isNow(place{Boot: "c", Cookie: 5, Device: 1, Inode: 2, MAC: "x"})).To(BeFalse())
	})
	It("without a cookie needs the MAC address too", func() {
		p := place{Boot: "b", Device: 1, Inode: 2, MAC: "x"}
		Expect(p.isNow(place{Boot: "b", Device: 1, Inode: 2, MAC: "x"})).To(BeTrue())
		Expect(p.isNow(place{Boot: "b", Device: 1, Inode: 2, MAC: "y"})).To(BeFalse())
		Expect(p.isNow(place{Boot: "b", Device: 1, Inode: 3, MAC: "x"})).To(BeFalse())
	})
	It("is told apart by names of records", func() {
		r := record{Network: "n", ContainerID: "a_b", IfName: "c", Place: place{Cookie: 255}}
		q := record{Network: "n", ContainerID: "a", IfName: "b_c", Place: place{Cookie: 255}}
		Expect(r.backup()).To(Equal(q.backup()))
		Expect(r.name()).NotTo(Equal(q.name()))
		owner := cni.Attachment{Network: "n", ContainerID: "a_b", IfName: "c"}.Hash()
		Expect(isRecord(r.name(), owner, backupHash("a_b_c.json"), "cff")).To(BeTrue())
		Expect(isRecord(q.name(), owner, "", "")).To(BeFalse())
		Expect(isRecord("lock", "", "", "")).To(BeFalse())
	})
})
