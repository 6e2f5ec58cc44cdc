package main

import (
	"encoding/json"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func gcOf(c Object, valid any) Call {
	return Call{Command: "GC", Conf: Merge(c, Object{"cni.dev/valid-attachments": valid})}
}

func ref(id string) Object { return Object{"containerID": id, "ifname": "eth0"} }

var _ = Describe("GC", func() {
	var w *World
	BeforeEach(func() { w = newWorld() })

	DescribeTable("removes what is not valid of its network, and nothing else", func(backend string) {
		if backend == "iptables" {
			nstest.Need("iptables")
		}
		c := everything(Object{"ipMasqBackend": backend})
		keep := settle(w, w.Attach("keep", c, nth(2)...))
		other := settle(w, w.Attach("gone1", Merge(c, Object{"name": "net2"}), nth(3)...))
		clean := w.Snapshot()
		w.Attach("gone1", c, nth(4)...)
		gone := w.Attach("gone2", c, nth(5)...)
		// Another interface of a valid container.
		w.LendAddrs("keep", nth(6)...)
		w.Add(Call{ID: "keep", IfName: "eth1", Netns: gone.Path, Conf: c})
		for range 2 {
			w.Calls()
			w.Succeeds(gcOf(c, []Object{ref("keep"), ref("never")}))
			Expect(w.Calls()).To(Equal([]string{"GC one eth0"}))
			Eventually(func() string { return w.Snapshot() }, nstest.Patience(3e9)).Should(Equal(clean))
			Expect(Names(gone.Host, "")).To(BeEmpty())
			for _, a := range []Attached{keep, other} {
				Expect(alive(a)).To(BeTrue())
				w.Succeeds(a.As("CHECK"))
			}
		}
	},
		Entry("on nftables", "nftables"),
		Entry("on iptables", "iptables"),
	)

	DescribeTable("with no valid attachment at all", func(valid any) {
		a := w.Attach("one", everything(), nth(2)...)
		w.Calls()
		w.Succeeds(gcOf(everything(), valid))
		Expect(Names(a.Host, "")).To(BeEmpty())
		Expect(Names(w.Host, "")).To(BeEmpty())
		Expect(w.Snapshot("nftables")).NotTo(ContainSubstring("elements"))
		Expect(w.Calls()).To(Equal([]string{"GC one eth0"}))
	},
		Entry("by an empty list", []Object{}),
		Entry("by null", json.RawMessage("null")),
	)

	It("removes nothing without a list", func() {
		a := w.Attach("one", everything(), nth(2)...)
		w.Calls()
		before := w.Snapshot()
		Expect(w.Call(Call{Command: "GC", Conf: everything()}).Stderr).To(ContainSubstring("cni.dev/valid-attachments: missing"))
		w.Succeeds(Call{Command: "GC", Conf: everything()})
		Expect(w.Fails(gcOf(everything(), "all"), cni.CodeConfig)).To(ContainSubstring("cni.dev/valid-attachments"))
		Expect(w.Snapshot()).To(Equal(before))
		Expect(w.Calls()).To(BeEmpty())
		w.Succeeds(a.As("CHECK"))
	})

	It("looks at no key but ipam.type", func() {
		w.Attach("one", everything(), nth(2)...)
		w.Succeeds(gcOf(conf(Object{"mtu": "x", "ipMasqBackend": 5, "ipam": nil}), []Object{}))
		Expect(Names(w.Host, "")).To(BeEmpty())
	})

	It("passes IPAM's error on, and does its own work", func() {
		w.Attach("one", everything(), nth(2)...)
		w.On("GC", Refusal)
		Expect(w.Fails(gcOf(everything(), []Object{}), 11)).To(Equal("later\npool"))
		Expect(Names(w.Host, "")).To(BeEmpty())
	})

	It("does not ask IPAM while an interface cannot be deleted", func() {
		nstest.NeedProgram("setpriv")
		a := w.Attach("one", everything(), nth(2)...)
		w.Calls()
		c := gcOf(everything(), []Object{})
		out := w.Run(c.Program(w, "setpriv", "--bounding-set", "-all", "--inh-caps", "-all", nstest.Build("ptp")))
		Expect(out.Exit).To(Equal(1))
		Expect(out.Stdout).To(ContainSubstring(hostEnd(a.Result)))
		Expect(w.Calls()).To(BeEmpty())
		w.Succeeds(c)
		Expect(w.Calls()).To(Equal([]string{"GC one eth0"}))
	})

	It("removes a pair whose ADD was killed before it was marked", func() {
		IP(w.Host, "link add vethdeadbeef group %d type veth peer name a", cni.NetworkHash("net"))
		IP(w.Host, "link add vethdeadbee0 type veth peer name b")
		w.Succeeds(gcOf(conf(Object{"name": "other"}), []Object{}))
		Expect(Names(w.Host, "")).To(HaveLen(4))
		w.Succeeds(gcOf(conf(), []Object{}))
		Expect(Names(w.Host, "")).To(ConsistOf("vethdeadbee0", "b"))
	})
})

var _ = Describe("STATUS", func() {
	var w *World
	BeforeEach(func() { w = newWorld() })
	status := func(c Object) Call { return Call{Command: "STATUS", Conf: c} }

	It("is fine on a fresh host, which it leaves as it is, and with containers", func() {
		before := w.Snapshot()
		w.Succeeds(status(conf()))
		w.Succeeds(status(everything()))
		Expect(w.Calls()).To(Equal([]string{"STATUS one eth0", "STATUS one eth0"}))
		Expect(w.Snapshot()).To(Equal(before))
		w.Attach("one", everything(), nth(2)...)
		w.Succeeds(status(everything()))
	})

	It("is IPAM's answer", func() {
		w.On("STATUS", `echo '{"cniVersion":"1.1.0","code":50,"msg":"full"}'; exit 1`)
		Expect(w.Fails(status(conf()), 50)).To(ContainSubstring("full"))
	})

	It("refuses a bad configuration, and one without IPAM", func() {
		Expect(w.Fails(status(conf(Object{"mtu": 3})), cni.CodeConfig)).To(ContainSubstring("mtu: 3"))
		Expect(w.Fails(status(conf(Object{"ipam": nil})), cni.CodeConfig)).To(ContainSubstring("ipam.type"))
		Expect(w.Fails(status(conf(Object{"ipam": Object{"type": "nowhere"}})), cni.CodeUnavailable)).To(ContainSubstring("nowhere"))
		Expect(w.Calls()).To(BeEmpty())
	})

	It("is code 50 where the kernel refuses the rules of ipMasq", func() {
		// Somebody has another chain of the name.
		w.Cmd("nft", "add table inet hawser; add set inet hawser masq4_v1 { type ether_addr; }")
		Expect(w.Fails(status(everything()), cni.CodeUnavailable)).To(ContainSubstring("ipMasq"))
		w.Succeeds(status(conf()))
	})
})
