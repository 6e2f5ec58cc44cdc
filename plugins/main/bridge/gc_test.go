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
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func gcOf(c Object, valid any) Call {
	c = conf(c, Object{"cni.dev/valid-attachments": valid})
	return Call{Command: "GC", Conf: c}
}

func ref(id string) Object { return Object{"containerID": id, "ifname": "eth0"} }

var _ = Describe("GC", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	DescribeTable("removes what is not valid of its network, and nothing else", func(backend string) {
		if backend == "iptables" {
			nstest.Need("iptables")
		}
		c := everything(Object{"ipMasqBackend": backend})
		keep := w.settle(w.Attach("keep", c, "10.1.0.2/24", "2001:db8:1::2/64"))
		other := w.settle(w.Attach("gone1", everything(Object{"ipMasqBackend": backend, "name": "net2"}), "10.1.0.3/24", "2001:db8:1::3/64"))
		clean := w.Snapshot()
		w.Attach("gone1", c, "10.1.0.4/24", "2001:db8:1::4/64")
		gone := w.Attach("gone2", c, "10.1.0.5/24", "2001:db8:1::5/64")
		// Another interface of a valid container.
		w.LendAddrs("keep", "10.1.0.6/24")
		w.Add(Call{ID: "keep", IfName: "eth1", Netns: gone.Path, Conf: c})
		w.Calls()
		w.Succeeds(gcOf(c, []Object{ref("keep"), ref("never")}))
		Expect(w.Calls()).To(Equal([]string{"GC one eth0"}))
		Eventually(func() string { return w.Snapshot() }, "3s").Should(Equal(clean))
		Expect(Names(gone.Host, "")).To(BeEmpty())
		for _, a := range []Attached{keep, other} {
			Expect(Ping(a.Host, "10.1.0.1") && Ping(a.Host, "2001:db8:1::1")).To(BeTrue())
			w.Succeeds(a.As("CHECK"))
		}
		w.Succeeds(gcOf(c, []Object{ref("keep")}))
		Eventually(func() string { return w.Snapshot() }, "3s").Should(Equal(clean))
	},
		Entry("on nftables", "nftables"),
		Entry("on iptables", "iptables"),
	)

	DescribeTable("with no valid attachment at all", func(valid any) {
		a := w.Attach("one", everything(), "10.1.0.2/24")
		w.Calls()
		w.Succeeds(gcOf(everything(), valid))
		Expect(Names(a.Host, "")).To(BeEmpty())
		Expect(Names(w.Host, "")).To(Equal([]string{"br"}))
		Expect(w.Snapshot("nftables")).NotTo(ContainSubstring("elements"))
		Expect(w.Calls()).To(Equal([]string{"GC one eth0"}))
	},
		Entry("by an empty list", []Object{}),
		Entry("by null", json.RawMessage("null")),
	)

	It("removes nothing without a list", func() {
		a := w.Attach("one", everything(), "10.1.0.2/24")
		w.Calls()
		before := w.Snapshot()
		Expect(w.Call(Call{Command: "GC", Conf: everything()}).Stderr).To(ContainSubstring("cni.dev/valid-attachments: missing"))
		w.Succeeds(Call{Command: "GC", Conf: everything()})
		Expect(w.Fails(gcOf(everything(), "all"), cni.CodeConfig)).To(ContainSubstring("cni.dev/valid-attachments"))
		Expect(w.Snapshot()).To(Equal(before))
		Expect(w.Calls()).To(BeEmpty())
		w.Succeeds(a.As("CHECK"))
	})

	It("passes IPAM's error on, and does its own work", func() {
		w.Attach("one", everything(), "10.1.0.2/24")
		w.On("GC", Refusal)
		w.Fails(gcOf(everything(), []Object{}), 11)
		Expect(Names(w.Host, "")).To(Equal([]string{"br"}))
	})

	It("on layer 2 asks no IPAM", func() {
		w.Attach("one", conf())
		w.Succeeds(gcOf(conf(), []Object{}))
		Expect(Names(w.Host, "")).To(Equal([]string{"br"}))
		Expect(w.Calls()).To(BeEmpty())
	})

	It("removes a pair whose ADD was killed before it was marked", func() {
		const network = "net"
		IP(w.Host, "link add vethdeadbeef group %d type veth peer name a", cni.NetworkHash(network))
		IP(w.Host, "link add vethdeadbee0 type veth peer name b")
		w.Succeeds(gcOf(conf(Object{"name": network + "other"}), []Object{}))
		Expect(Names(w.Host, "")).To(HaveLen(4))
		w.Succeeds(gcOf(conf(Object{"name": network}), []Object{}))
		Expect(Names(w.Host, "")).To(ConsistOf("vethdeadbee0", "b"))
	})
})

var _ = Describe("STATUS", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })
	status := func(c Object) Call { return Call{Command: "STATUS", Conf: c} }

	It("is fine on a fresh host, and with a bridge", func() {
		before := w.Snapshot()
		w.Succeeds(status(conf()))
		w.Succeeds(status(everything()))
		Expect(w.Calls()).To(Equal([]string{"STATUS one eth0"}))
		Expect(w.Snapshot()).To(Equal(before))
		w.Attach("one", everything(), "10.1.0.2/24")
		w.Succeeds(status(everything()))
	})

	It("is code 50 where something else has the bridge's name", func() {
		IP(w.Host, "link add name br type veth peer name x")
		Expect(w.Fails(status(conf()), cni.CodeUnavailable)).To(ContainSubstring(`"br"`))
	})

	It("is IPAM's answer", func() {
		w.On("STATUS", `echo '{"cniVersion":"1.1.0","code":50,"msg":"full"}'; exit 1`)
		Expect(w.Fails(status(l3()), 50)).To(ContainSubstring("full"))
	})

	It("refuses a bad configuration", func() {
		Expect(w.Fails(status(conf(Object{"mtu": 3})), cni.CodeConfig)).To(ContainSubstring("mtu: 3"))
	})

	It("is code 50 without the IPAM plugin", func() {
		Expect(w.Fails(status(conf(Object{"ipam": Object{"type": "nowhere"}})), cni.CodeUnavailable)).To(ContainSubstring(`"nowhere"`))
	})

	DescribeTable("is code 50 where no lock can be made", func(c Object) {
		w.Cmd("mount", "-o", "remount,bind,ro", "/run")
		Expect(w.Fails(status(c), cni.CodeUnavailable)).To(ContainSubstring("write in /run: read-only file system"))
	},
		Entry("for ipMasq: nftables", l3(Object{"ipMasq": true})),
		Entry("for ipMasq: iptables", l3(Object{"ipMasq": true, "ipMasqBackend": "iptables"})),
		Entry("for macspoofchk", conf(Object{"macspoofchk": true})),
	)

	DescribeTable("is code 50 where a backend cannot be used", func(c Object, table, says string) {
		if table == "" {
			c["ipMasqBackend"] = "iptables"
			out := w.Run(nstest.Program{Path: nstest.Build("bridge"), Env: append(status(c).Vars(w.World), "PATH=/nowhere"), Stdin: Text(c)})
			Expect(Ran(out).Failed(cni.CodeUnavailable)).To(ContainSubstring(says))
			return
		}
		w.owned(table)
		Expect(w.Fails(status(c), cni.CodeUnavailable)).To(ContainSubstring(says))
	},
		Entry("for ipMasq: nftables", l3(Object{"ipMasq": true}), "inet hawser", "ipMasq"),
		Entry("for ipMasq: iptables", l3(Object{"ipMasq": true}), "", "ipMasq"),
		Entry("for macspoofchk", conf(Object{"macspoofchk": true}), "bridge hawser", "macspoofchk"),
	)
})

var _ = Describe("at the same time", func() {
	It("20 first ADDs make one bridge, and 20 DELs leave it alone", func() {
		w := newWorld()
		const n = 20
		var conts [n]*nstest.Host
		var got [n]Answer
		program := nstest.Build("bridge")
		for i := range n {
			conts[i] = nstest.NewNetns()
			w.LendAddrs(fmt.Sprint("c", i), fmt.Sprintf("10.1.0.%d/24", i+2), fmt.Sprintf("2001:db8:1::%x/64", i+2))
		}
		each := func(make func(i int) Call) {
			GinkgoHelper()
			var wg sync.WaitGroup
			for i := range n {
				c := make(i)
				wg.Go(func() {
					defer GinkgoRecover()
					out := w.Run(nstest.Program{Path: program, Env: c.Vars(w.World), Stdin: c.Stdin()})
					got[i] = Ran(out)
				})
			}
			wg.Wait()
			for i := range n {
				Expect(got[i].Code).To(BeZero(), got[i].Stdout)
			}
		}
		each(func(i int) Call {
			return Call{Command: "ADD", ID: fmt.Sprint("c", i), Netns: conts[i].Path, Conf: everything()}
		})
		Expect(Names(w.Host, "bridge")).To(Equal([]string{"br"}))
		Expect(Show(w.Host, "br").Addrs()).To(ConsistOf("10.1.0.1/24", "2001:db8:1::1/64"))
		Expect(Names(w.Host, "veth")).To(HaveLen(n))
		Expect(strings.Count(w.Snapshot("nftables"), "masquerade")).To(BeNumerically("<", 20))
		for i := range n {
			Expect(Ping(conts[i], "10.1.0.1")).To(BeTrue())
			w.Succeeds(Call{Command: "CHECK", ID: fmt.Sprint("c", i), Netns: conts[i].Path, Conf: With(everything(), got[i].Added())})
		}
		each(func(i int) Call {
			return Call{Command: "DEL", ID: fmt.Sprint("c", i), Netns: conts[i].Path, Conf: everything()}
		})
		Expect(Names(w.Host, "")).To(Equal([]string{"br"}))
		Expect(w.Snapshot("nftables")).NotTo(ContainSubstring("elements"))
	})

	It("two ADDs of one attachment make one, and the other fails", func() {
		w := newWorld()
		cont := nstest.NewNetns()
		w.LendAddrs("one", "10.1.0.2/24")
		c := Call{Command: "ADD", Netns: cont.Path, Conf: everything()}
		var got [4]Answer
		var wg sync.WaitGroup
		for i := range got {
			wg.Go(func() {
				defer GinkgoRecover()
				got[i] = w.Call(c)
			})
		}
		wg.Wait()
		var won Answer
		for _, a := range got {
			if a.Code == 0 {
				won = a
			} else {
				a.Failed(cni.CodeExists)
			}
		}
		Expect(w.Calls()).To(Equal([]string{"ADD one eth0"}))
		c.Command, c.Conf = "CHECK", With(everything(), won.Added())
		w.Succeeds(c)
	})
})
