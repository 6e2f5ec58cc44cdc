package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

func gcOf(c object, valid any) call {
	c = conf(c, object{"cni.dev/valid-attachments": valid})
	return call{command: "GC", conf: c}
}

func ref(id string) object { return object{"containerID": id, "ifname": "eth0"} }

var _ = Describe("GC", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	DescribeTable("removes what is not valid of its network, and nothing else", func(backend string) {
		if backend == "iptables" {
			nstest.Need("iptables")
		}
		c := everything(object{"ipMasqBackend": backend})
		keep := w.settle(w.attach("keep", c, "10.1.0.2/24", "2001:db8:1::2/64"))
		other := w.settle(w.attach("gone1", everything(object{"ipMasqBackend": backend, "name": "net2"}), "10.1.0.3/24", "2001:db8:1::3/64"))
		clean := w.Snapshot()
		w.attach("gone1", c, "10.1.0.4/24", "2001:db8:1::4/64")
		gone := w.attach("gone2", c, "10.1.0.5/24", "2001:db8:1::5/64")
		// Another interface of a valid container.
		w.lendAddrs("keep", "10.1.0.6/24")
		w.add(call{id: "keep", ifName: "eth1", netns: gone.Path, conf: c})
		w.calls()
		w.succeeds(gcOf(c, []object{ref("keep"), ref("never")}))
		Expect(w.calls()).To(Equal([]string{"GC one eth0"}))
		Eventually(func() string { return w.Snapshot() }, "3s").Should(Equal(clean))
		Expect(names(gone.Host, "")).To(BeEmpty())
		for _, a := range []attached{keep, other} {
			Expect(ping(a.Host, "10.1.0.1") && ping(a.Host, "2001:db8:1::1")).To(BeTrue())
			w.succeeds(a.as("CHECK"))
		}
		w.succeeds(gcOf(c, []object{ref("keep")}))
		Eventually(func() string { return w.Snapshot() }, "3s").Should(Equal(clean))
	},
		Entry("on nftables", "nftables"),
		Entry("on iptables", "iptables"),
	)

	DescribeTable("with no valid attachment at all", func(valid any) {
		a := w.attach("one", everything(), "10.1.0.2/24")
		w.calls()
		w.succeeds(gcOf(everything(), valid))
		Expect(names(a.Host, "")).To(BeEmpty())
		Expect(names(w.Host, "")).To(Equal([]string{"br"}))
		Expect(w.Snapshot("nftables")).NotTo(ContainSubstring("elements"))
		Expect(w.calls()).To(Equal([]string{"GC one eth0"}))
	},
		Entry("by an empty list", []object{}),
		Entry("by null", json.RawMessage("null")),
	)

	It("removes nothing without a list", func() {
		a := w.attach("one", everything(), "10.1.0.2/24")
		w.calls()
		before := w.Snapshot()
		Expect(w.fails(call{command: "GC", conf: everything()}, cni.CodeConfig)).To(ContainSubstring("cni.dev/valid-attachments"))
		Expect(w.fails(gcOf(everything(), "all"), cni.CodeConfig)).To(ContainSubstring("cni.dev/valid-attachments"))
		Expect(w.Snapshot()).To(Equal(before))
		Expect(w.calls()).To(BeEmpty())
		w.succeeds(a.as("CHECK"))
	})

	It("passes IPAM's error on, and does its own work", func() {
		w.attach("one", everything(), "10.1.0.2/24")
		w.on("GC", refusal)
		w.fails(gcOf(everything(), []object{}), 11)
		Expect(names(w.Host, "")).To(Equal([]string{"br"}))
	})

	It("on layer 2 asks no IPAM", func() {
		w.attach("one", conf())
		w.succeeds(gcOf(conf(), []object{}))
		Expect(names(w.Host, "")).To(Equal([]string{"br"}))
		Expect(w.calls()).To(BeEmpty())
	})

	It("removes a pair whose ADD was killed before it was marked", func() {
		const network = "net"
		ip(w.Host, "link add vethdeadbeef group %d type veth peer name a", cni.NetworkHash(network))
		ip(w.Host, "link add vethdeadbee0 type veth peer name b")
		w.succeeds(gcOf(conf(object{"name": network + "other"}), []object{}))
		Expect(names(w.Host, "")).To(HaveLen(4))
		w.succeeds(gcOf(conf(object{"name": network}), []object{}))
		Expect(names(w.Host, "")).To(ConsistOf("vethdeadbee0", "b"))
	})
})

var _ = Describe("STATUS", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })
	status := func(c object) call { return call{command: "STATUS", conf: c} }

	It("is fine on a fresh host, and with a bridge", func() {
		before := w.Snapshot()
		w.succeeds(status(conf()))
		w.succeeds(status(everything()))
		Expect(w.calls()).To(Equal([]string{"STATUS one eth0"}))
		Expect(w.Snapshot()).To(Equal(before))
		w.attach("one", everything(), "10.1.0.2/24")
		w.succeeds(status(everything()))
	})

	It("is code 50 where something else has the bridge's name", func() {
		ip(w.Host, "link add name br type veth peer name x")
		Expect(w.fails(status(conf()), cni.CodeUnavailable)).To(ContainSubstring(`"br"`))
	})

	It("is IPAM's answer", func() {
		w.on("STATUS", `echo '{"cniVersion":"1.1.0","code":50,"msg":"full"}'; exit 1`)
		Expect(w.fails(status(l3()), 50)).To(ContainSubstring("full"))
	})

	It("refuses a bad configuration", func() {
		Expect(w.fails(status(conf(object{"mtu": 3})), cni.CodeConfig)).To(ContainSubstring("mtu: 3"))
	})

	It("is code 50 without the IPAM plugin", func() {
		Expect(w.fails(status(conf(object{"ipam": object{"type": "nowhere"}})), cni.CodeUnavailable)).To(ContainSubstring(`"nowhere"`))
	})

	DescribeTable("is code 50 where a backend cannot be used", func(c object, table, says string) {
		if table == "" {
			c["ipMasqBackend"] = "iptables"
			out := w.Run(nstest.Program{Path: nstest.Build("bridge"), Env: append(status(c).vars(w), "PATH=/nowhere"), Stdin: text(c)})
			Expect(failed(answer{out.Exit, out.Stdout, out.Stderr}, cni.CodeUnavailable)).To(ContainSubstring(says))
			return
		}
		w.owned(table)
		Expect(w.fails(status(c), cni.CodeUnavailable)).To(ContainSubstring(says))
	},
		Entry("for ipMasq: nftables", l3(object{"ipMasq": true}), "inet hawser", "ipMasq"),
		Entry("for ipMasq: iptables", l3(object{"ipMasq": true}), "", "ipMasq"),
		Entry("for macspoofchk", conf(object{"macspoofchk": true}), "bridge hawser", "macspoofchk"),
	)
})

var _ = Describe("at the same time", func() {
	It("20 first ADDs make one bridge, and 20 DELs leave it alone", func() {
		w := newWorld()
		const n = 20
		var conts [n]*nstest.Host
		var got [n]answer
		program := nstest.Build("bridge")
		for i := range n {
			conts[i] = nstest.NewNetns()
			w.lendAddrs(fmt.Sprint("c", i), fmt.Sprintf("10.1.0.%d/24", i+2), fmt.Sprintf("2001:db8:1::%x/64", i+2))
		}
		each := func(make func(i int) call) {
			GinkgoHelper()
			var wg sync.WaitGroup
			for i := range n {
				c := make(i)
				wg.Go(func() {
					defer GinkgoRecover()
					out := w.Run(nstest.Program{Path: program, Env: c.vars(w), Stdin: c.stdin()})
					got[i] = answer{out.Exit, out.Stdout, out.Stderr}
				})
			}
			wg.Wait()
			for i := range n {
				Expect(got[i].code).To(BeZero(), got[i].stdout)
			}
		}
		each(func(i int) call {
			return call{command: "ADD", id: fmt.Sprint("c", i), netns: conts[i].Path, conf: everything()}
		})
		Expect(names(w.Host, "bridge")).To(Equal([]string{"br"}))
		Expect(show(w.Host, "br").addrs()).To(ConsistOf("10.1.0.1/24", "2001:db8:1::1/64"))
		Expect(names(w.Host, "veth")).To(HaveLen(n))
		Expect(strings.Count(w.Snapshot("nftables"), "masquerade")).To(BeNumerically("<", 20))
		for i := range n {
			Expect(ping(conts[i], "10.1.0.1")).To(BeTrue())
			w.succeeds(call{command: "CHECK", id: fmt.Sprint("c", i), netns: conts[i].Path, conf: with(everything(), added(got[i]))})
		}
		each(func(i int) call {
			return call{command: "DEL", id: fmt.Sprint("c", i), netns: conts[i].Path, conf: everything()}
		})
		Expect(names(w.Host, "")).To(Equal([]string{"br"}))
		Expect(w.Snapshot("nftables")).NotTo(ContainSubstring("elements"))
	})

	It("two ADDs of one attachment make one, and the other fails", func() {
		w := newWorld()
		cont := nstest.NewNetns()
		w.lendAddrs("one", "10.1.0.2/24")
		c := call{command: "ADD", netns: cont.Path, conf: everything()}
		var got [4]answer
		var wg sync.WaitGroup
		for i := range got {
			wg.Go(func() {
				defer GinkgoRecover()
				got[i] = w.run(c)
			})
		}
		wg.Wait()
		var won answer
		for _, a := range got {
			if a.code == 0 {
				won = a
			} else {
				failed(a, cni.CodeExists)
			}
		}
		Expect(w.calls()).To(Equal([]string{"ADD one eth0"}))
		c.command, c.conf = "CHECK", with(everything(), added(won))
		w.succeeds(c)
	})
})
