package portmap

import (
	"context"
	"encoding/json"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// settle creates the empty tables and chains that the first ADD of a host leaves behind, so that they are not a
// difference.
func (w *world) settle(k kind) {
	GinkgoHelper()
	c := w.container(1, 200)
	c.add(k.config, ports("60000:80"))
	c.del()
}

var all = []string{"8080:80", "192.0.2.1:8081:81", "53:53/udp", "127.0.0.1:9:9/sctp"}

var _ = Describe("DEL", Label("kernel"), func() {
	eachKind(func(k kind) {
		var w *world
		var a, b *container
		var empty, before string

		BeforeEach(func() {
			w = newWorld()
			w.settle(k)
			a, b = w.container(1, 2), w.container(1, 3)
			empty = w.rules()
			b.add(k.config, ports("7000:70"))
			before = w.rules()
			a.add(k.config, ports(all...))
			Expect(w.rules()).NotTo(Equal(before))
		})

		AfterEach(func() {
			a.Path = ""
			Expect(w.rules()).To(Equal(before))
			b.check(k.config, ports("7000:70"))
			a.del(k.config, ports(all...)) // again
			Expect(w.rules()).To(Equal(before))
			b.del()
			Expect(w.rules()).To(Equal(empty))
			Expect(w.Files("/run/hawser/portmap")).NotTo(ContainSubstring(".json"))
		})

		// after runs a DEL, which must restore the host, and the ADD again.
		after := func(del func()) {
			GinkgoHelper()
			del()
			Expect(w.rules()).To(Equal(before))
			a.add(k.config, ports(all...))
		}

		It("leaves nothing behind, whatever the runtime sends", Label("portmap-del"), func() {
			By("with everything that it may send")
			after(func() { a.del(k.config, ports(all...)) })
			By("needs no runtimeConfig")
			after(func() { a.del(k.config) })
			By("needs no prevResult")
			after(func() { a.del(k.config, ports(all...), Object{"prevResult": nil}) })
			By("needs neither, nor the backend")
			after(func() { a.del(Object{"prevResult": nil}) })
			By("ignores another backend in the configuration")
			after(func() { a.del(Object{"backend": "iptables", "conditionsV4": []string{"-s", "10.0.0.0/8"}}) })
			By("ignores a configuration that ADD would refuse")
			after(func() { a.del(Object{"backend": "none", "markMasqBit": 99}, ports("99999:0/icmp")) })
			By("ignores a prevResult that cannot be read")
			o := a.call("DEL", Object{"prevResult": Object{"cniVersion": "9.9.9"}})
			Expect(o.exit).To(BeZero(), o.text())
		})

		It("needs no namespace", func() {
			path := a.Path
			for _, other := range []string{"", b.Path, "/etc/passwd", "/run/netns/none"} {
				By("at " + other)
				after(func() {
					a.Path = other
					o := a.call("DEL", ports(all...))
					Expect(o.exit).To(BeZero(), o.text())
					Expect(o.stdout).To(BeEmpty())
					a.Path = path
				})
			}
			By("that ended with the interface")
			a.vanish()
			a.del(ports(all...))
		})

		It("needs no record", func() {
			if k.name != "nftables" {
				// The chains of iptables identify the container and its network.
				w.Cmd("sh", "-c", "rm /run/hawser/portmap/*.json")
				a.del()
				b.del()
				b.add(k.config, ports("7000:70"))
				return
			}
			w.Cmd("rm", "-rf", "/run/hawser/portmap")
			other := w.container(1, 9)
			other.add(ports("7500:75"))
			a.del()
			other.check(ports("7500:75"))
			other.del()
			b.del()
			b.add(k.config, ports("7000:70"))
		})

		It("needs no programs if the kernel has the rules in nf_tables", Label("portmap-del"), func() {
			if k.variant != "legacy" {
				nstest.WithoutPrograms(func() { a.del() })
				return
			}
			nstest.WithoutPrograms(func() {
				Expect(a.w.Warns(a.as("DEL"))).To(ContainSubstring("executable file not found"))
			})
			a.del()
		})
	})

	It("succeeds before any ADD, and creates nothing", func() {
		w, c := newContainer()
		before := w.rules()
		c.del(ports("8080:80"))
		c.del()
		w.gc("net1")
		Expect(w.rules()).To(Equal(before))
		Expect(w.Files("/run/hawser")).To(BeEmpty())
	})

	It("resets route_localnet of a bridge after the last container, unless it was on before", func() {
		w := newWorld()
		w.SetSysctl("net/ipv4/conf/br2/route_localnet", "1")
		a, b, c := w.container(1, 2), w.container(1, 3), w.container(2, 2)
		for i, x := range []*container{a, b, c} {
			x.add(ports(string(rune('1'+i)) + "000:80"))
		}
		Expect(w.localnet()).To(Equal("11"))
		Expect(parts(w.Cmd("nft", "list", "ruleset"))).
			To(ContainSubstring(`@portmap_localnet_v1
elements = { "br1" comment "route_localnet was 0",
"br2" comment "route_localnet was 1" }`))
		a.del()
		Expect(w.localnet()).To(Equal("11"))
		b.del()
		c.del()
		Expect(w.localnet()).To(Equal("01"))
		Expect(parts(w.Cmd("nft", "list", "ruleset"))).To(Equal("\n"))
	})

	It("also resets route_localnet if all rules were flushed", Label("loopback-guard"), func() {
		w := newWorld()
		w.SetSysctl("net/ipv4/conf/br2/route_localnet", "1")
		a, c := w.container(1, 2), w.container(2, 2)
		a.add(ports("1000:80"))
		c.add(ports("2000:80"))
		w.Cmd("nft", "flush", "ruleset")
		b := w.container(1, 3)
		b.add(ports("3000:80"))
		w.Cmd("nft", "flush", "ruleset")
		a.del()
		Expect(w.localnet()).To(Equal("11"))
		b.del()
		c.del()
		Expect(w.localnet()).To(Equal("01"))
	})
})

var _ = Describe("route_localnet of a stale owner", Label("kernel"), func() {
	eachBackend(func(k kind) {
		It("is reset on the owner's link", func() {
			w := newWorld()
			w.settle(k)
			for i, id := range []string{"c1-2", "c2-2"} { // the same attachment, another one
				old := w.container(1, 2)
				old.add(k.config, ports("8080:80"))
				old.vanish()
				c := w.container(2, 3+i)
				c.network, c.id = "net1", id
				c.add(k.config, ports("8080:80"))
				Expect(w.Sysctl("net/ipv4/conf/br1/route_localnet")).To(Equal("0"), id)
				Expect(w.ruleset()).NotTo(ContainSubstring("br1"), id)
				c.check(k.config, ports("8080:80"))
				c.del()
			}
		})
	})
})

// chain returns the name of the container's chain in iptables.
func (c *container) chain() string { return ipt.ContainerChain(dnPrefix, c.network, c.id) }

func ownerHash(c *container) string {
	return cni.Attachment{Network: c.network, ContainerID: c.id, IfName: c.ifName}.Hash()
}

var _ = Describe("GC", Label("kernel"), func() {
	eachKind(func(k kind) {
		It("removes nothing without a list or from another network, and with a list the stale attachments", func() {
			w := newWorld()
			w.settle(k)
			a, b, other := w.container(1, 2), w.container(1, 3), w.container(2, 2)
			other.add(k.config, ports("8003:80"))
			b.add(k.config, ports("8002:80"))
			before := w.rules()
			a.add(k.config, ports("8001:80"))
			Expect(w.run(Call{Command: "GC", Conf: conf()}).Code).To(BeZero())
			a.check(k.config, ports("8001:80"))
			a.vanish()
			w.gc("net1", "c1-3/eth0")
			Expect(w.rules()).To(Equal(before))
			other.check(k.config, ports("8003:80"))
		})

		It("removes rules without a record", func() {
			w := newWorld()
			w.settle(k)
			before := w.ruleset()
			a := w.container(1, 2)
			a.add(k.config, ports("8001:80"))
			w.Cmd("rm", "-rf", "/run/hawser/portmap")
			w.gc("net2")
			Expect(w.ruleset()).NotTo(Equal(before))
			w.Cmd("ip", "link", "del", "br1")
			w.gc("net1")
			Expect(w.ruleset()).To(Equal(before))
		})
	})
})

// delOn runs a DEL of the container on a thread that prepare has changed.
func (c *container) delOn(prepare func(*nft.Conn)) error {
	GinkgoHelper()
	var err error
	c.w.Do(func() {
		under := newCall(&skel.Request{Attachment: cni.Attachment{Network: c.network, ContainerID: c.id,
			IfName: c.ifName}})
		defer under.NF.Close()
		defer under.Host.Close()
		prepare(under.NF)
		err = under.remove(context.Background())
	})
	return err
}

var _ = Describe("a DEL that is repeated", Label("kernel"), func() {
	eachBackend(func(k kind) {
		It("ends the flows that the first one could not end", func() {
			nstest.Need("conntrack")
			w, c := newContainer()
			c.add(k.config, ports("53:53/udp"))
			w.Cmd("conntrack", "-I", "-p", "udp", "-t", "300", "-s", "192.0.2.2", "--sport", "1000", "-d", "192.0.2.1",
				"--dport", "53",
				"-r", "10.1.0.2", "--reply-port-src", "53", "-q", "192.0.2.2", "--reply-port-dst", "1000")
			Expect(c.delOn(func(nf *nft.Conn) {
				_, err := nf.Chain(table, outputChain) // opens its socket, so that only conntrack's fails
				Expect(err).NotTo(HaveOccurred())
				nstest.FailNetfilterSockets(unix.EMFILE)
			})).To(MatchError(ContainSubstring("conntrack")))
			Expect(w.Cmd("conntrack", "-L", "-p", "udp")).To(ContainSubstring("10.1.0.2"))
			c.del()
			Expect(w.Cmd("conntrack", "-L", "-p", "udp")).NotTo(ContainSubstring("10.1.0.2"))
			Expect(w.Files("/run/hawser/portmap")).NotTo(ContainSubstring(".json"))
		})
	})

	It("leaves nothing after the DEL of the container's other interface on the network", func() {
		nstest.UseVariant("nft")
		k := kinds[1]
		w, first, before := settled(k)
		second := first.second("eth1", 1, 20)
		first.add(k.config, ports("8080:80"))
		second.add(k.config, ports("8081:80"))
		Expect(first.delOn(func(nf *nft.Conn) {
			_, err := nf.Chain(table, outputChain) // opens its socket, so that only iptables' fails
			Expect(err).NotTo(HaveOccurred())
			nstest.FailNetfilterSockets(unix.EMFILE)
		})).To(MatchError(ContainSubstring("iptables")))
		second.del()
		Expect(w.natRules()).NotTo(ContainSubstring("CNI-DN-"))
		first.del()
		Expect(w.rules()).To(Equal(before))
	})

	It("is not needed if iptables is missing and never had the host ports", func() {
		nstest.UseVariant("nft")
		w := newWorld()
		w.Cmd("iptables-legacy-save", "-t", "nat") // creates the table
		c := w.container(1, 2)
		c.add(ports("8080:80"))
		var o outcome
		nstest.WithoutPrograms(func() { o = c.call("DEL") })
		Expect(o.exit).To(BeZero(), o.text())
		Expect(o.stderr).To(ContainSubstring(`"iptables-legacy-save": executable file not found`))
		Expect(w.Files("/run/hawser/portmap")).NotTo(ContainSubstring(".json"))
	})

	It("is needed if iptables is missing and something else also failed", func() {
		nstest.UseVariant("legacy")
		w, c := newContainer()
		c.add(kinds[2].config, ports("8080:80"))
		w.Cmd("sh", "-ec", "rm "+nft.LockPath+"; mkdir "+nft.LockPath)
		nstest.WithoutPrograms(func() {
			Expect(c.call("DEL").Msg).To(And(ContainSubstring(nft.LockPath+": is a directory"),
				ContainSubstring("executable file not found")))
		})
	})
})

var _ = Describe("a former owner's rules", Label("kernel"), func() {
	It("are removed once, also if the transaction starts again", func() {
		w := newWorld()
		for _, id := range []string{"c1-2", "c1-3"} { // the same attachment, another one
			old := w.container(1, 2)
			old.add(ports("8080:80"))
			old.vanish()
			c := w.container(1, 3)
			c.id = id
			// What a kill left of an ADD before the records were lost.
			mark := cni.Attachment{Network: c.network, ContainerID: c.id, IfName: c.ifName}.Mark()
			w.Cmd("nft", "add", "element", "inet", "hawser", "portmap4_v1",
				`{ tcp . 9000 comment "`+mark+`" : 10.1.0.9 . 80 }`)
			c.add(ports("8080:80", "9000:80"))
			c.check(ports("8080:80", "9000:80"))
			c.del()
			c.vanish()
		}
	})
})

// onlyIPv4 runs fn with no programs but iptables.
func onlyIPv4(variant string, fn func()) {
	GinkgoHelper()
	name := "iptables-" + variant
	nstest.WithPrograms([]string{"iptables", "iptables-restore", name, name + "-restore"}, fn)
}

// settled returns a world with the shared tables and chains, a container without host ports, and the rules.
func settled(k kind) (w *world, c *container, before string) {
	GinkgoHelper()
	w = newWorld()
	w.settle(k)
	c = w.container(1, 2)
	return w, c, w.rules()
}

var _ = Describe("an ADD that fails", Label("kernel"), func() {
	eachBackend(func(k kind) {
		// fails checks that an ADD fails, and that nothing has changed.
		fails := func(prepare func(*world), want string, more ...Object) {
			GinkgoHelper()
			w := newWorld()
			w.settle(k)
			b, c := w.container(1, 3), w.container(1, 2)
			b.add(k.config, ports("7000:70"))
			w.SetSysctl("net/ipv4/conf/br1/route_localnet", "0")
			if prepare != nil {
				prepare(w)
			}
			before, files := w.rules(), w.Files("/run/hawser")
			o := c.call("ADD", append([]Object{k.config, ports(all...)}, more...)...)
			Expect(o.exit).To(Equal(1), o.text())
			Expect(o.stdout).To(ContainSubstring(want))
			var one any
			Expect(json.Unmarshal([]byte(o.stdout), &one)).To(Succeed(), "one document")
			Expect(w.rules()).To(Equal(before))
			Expect(w.Files("/run/hawser")).To(Equal(files))
		}

		It("in its configuration changes nothing", func() { fails(nil, "portMappings[0].hostPort", ports("0:80")) })
		It("without an address changes nothing", func() {
			fails(nil, "has no address of interface", Object{"prevResult": Object{"cniVersion": "1.1.0"}})
		})
	})

	It("because of another program's element removes its other elements", func() {
		w, c, _ := settled(kinds[0])
		w.Cmd("nft", "add", "element", "inet", "hawser", "portmap6_via_v1", "{ udp . 53 : goto portmap6_dnat_v1 }")
		before := w.rules()
		c.fails("ADD", cni.CodePortTaken, ports(all...))
		Expect(w.rules()).To(Equal(before))
	})

	It("because of a condition that nft refuses removes its elements", func() {
		w, c, before := settled(kinds[0])
		o := c.call("ADD", Object{"conditionsV4": []string{"ip saddr 10.0.0.0/8"},
			"conditionsV6": []string{"ip6 saddr limit"}}, ports(all...))
		Expect(o.Msg).To(And(HavePrefix(`conditionsV6: ["ip6 saddr limit"]: refused by nft`),
			ContainSubstring("unexpected")))
		Expect(o.Code).To(Equal(cni.CodeConfig))
		Expect(w.rules()).To(Equal(before))
	})

	It("without the nft program names it, and so does STATUS", func() {
		w, c, before := settled(kinds[0])
		cond := Object{"conditionsV4": []string{"ip saddr 10.0.0.0/8"}}
		var o, st outcome
		nstest.WithoutPrograms(func() { o, st = c.call("ADD", cond, ports(all...)), w.status(cond) })
		Expect(o.Msg).To(And(ContainSubstring("conditionsV4"), ContainSubstring(`"nft": executable file not found`)))
		Expect(st.Code).To(Equal(cni.CodeUnavailable))
		Expect(w.rules()).To(Equal(before))
	})

	for _, k := range kinds[1:] {
		more := nstest.Variant(k.variant)
		It("without ip6tables on "+k.name+" removes the rules of iptables, and STATUS warns", more, func() {
			nstest.UseVariant(k.variant)
			w, c, before := settled(k)
			var o, st outcome
			onlyIPv4(k.variant, func() { o, st = c.call("ADD", k.config, ports(all...)), w.status(k.config) })
			Expect(o.Msg).To(ContainSubstring(`": executable file not found`))
			Expect(st.exit).To(BeZero(), "containers may have IPv4 only")
			Expect(st.stderr).To(And(ContainSubstring("no host ports of containers with an IPv6 address"),
				ContainSubstring("not found")))
			Expect(w.rules()).To(Equal(before))
			Expect(w.Files("/run/hawser/portmap")).NotTo(ContainSubstring(".json"))
		})

		It("because of a condition that "+k.name+" refuses removes its rules", more, func() {
			nstest.UseVariant(k.variant)
			w, c, before := settled(k)
			o := c.call("ADD", Object{"conditionsV6": []string{"-s", "nonsense"}}, ports(all...))
			Expect(o.Msg).To(ContainSubstring("nonsense"))
			Expect(w.rules()).To(Equal(before))
		})
	}
})

var _ = Describe("STATUS", Label("kernel"), func() {
	It("fails if the kernel has no nf_tables and iptables needs them", Label("status-variant"), func() {
		w := newWorld()
		call := Call{Command: "STATUS", Conf: conf(), Before: nstest.RefuseNetfilterSockets}
		nstest.UseVariant("legacy")
		w.Succeeds(call)
		nstest.UseVariant("nft")
		Expect(w.Fails(call, cni.CodeUnavailable)).To(ContainSubstring("xtables-nft-multi needs nf_tables"))
	})

	It("fails if the kernel does not tell whether kube-proxy is in ipvs mode", func() {
		const question = 48 // bytes of the request for the link "kube-ipvs0"
		says := newWorld().Fails(Call{Command: "STATUS", Conf: conf(Object{"backend": "nftables"}), Before: func() {
			nstest.FailCall(unix.SYS_SENDTO, unix.EPERM, nstest.Arg{Number: 2, Value: question})
		}}, cni.CodeUnavailable)
		Expect(says).To(ContainSubstring(`link "kube-ipvs0": operation not permitted`))
	})
})

var _ = Describe("a new ADD of a container that no longer exists", Label("kernel"), func() {
	It("fails without the program that removes its former rules, and keeps their record", func() {
		nstest.UseVariant("legacy")
		w, c := newContainer()
		c.add(Object{"backend": "iptables"}, ports("8080:80"))
		c.vanish()
		next := w.container(1, 2)
		before := w.Files("/run/hawser/portmap")
		nstest.WithoutPrograms(func() {
			o := next.call("ADD", Object{"backend": "nftables"}, ports("8081:80"))
			Expect(o.Code).To(Equal(cni.CodeIO), o.text())
			Expect(o.stderr).To(ContainSubstring("iptables-legacy"))
		})
		Expect(w.Files("/run/hawser/portmap")).To(Equal(before))
		next.add(Object{"backend": "nftables"}, ports("8081:80"))
		Expect(w.Cmd("iptables-legacy", "-t", "nat", "-S")).NotTo(ContainSubstring("CNI-DN"))
	})
})

var _ = Describe("a DEL that fails", Label("kernel", "tool-ending"), func() {
	It("releases the ports to another container, although its own container is live", func() {
		nstest.UseVariant("legacy")
		w, c := newContainer()
		c.add(Object{"backend": "iptables"}, ports("8080:80"))
		next := w.container(1, 3)
		next.serve(80)
		Expect(next.call("ADD", Object{"backend": "iptables"}, ports("8080:80")).Code).To(Equal(cni.CodePortTaken))
		nstest.WithoutPrograms(func() { c.call("DEL") })
		Expect(w.Files("/run/hawser/portmap")).To(ContainSubstring("ending"))
		next.add(Object{"backend": "iptables"}, ports("8080:80"))
		Expect(w.reach(8080)).To(Equal("192.0.2.2"))
		Expect(w.Files("/run/hawser/portmap")).NotTo(ContainSubstring("ending"))
	})
})

var _ = Describe("a kernel without nf_tables", Label("kernel"), func() {
	It("gets iptables without host ports of 127.0.0.1, because it has no guard for the host's loopback", func() {
		nstest.UseVariant("legacy")
		w := newWorld()
		a := w.container(1, 2)
		a.serve(80)
		run := func(command string, more ...Object) outcome {
			GinkgoHelper()
			call := a.as(command, more...)
			call.Before = nstest.RefuseNetfilterSockets
			return w.run(call)
		}
		w.Cmd("iptables-legacy-save", "-t", "nat") // creates the table
		nstest.WithoutPrograms(func() {
			Expect(run("ADD", ports("8080:80")).Msg).To(And(ContainSubstring(`program "iptables-restore"`),
				ContainSubstring("which may lack nfnetlink")))
		})
		Expect(w.Files("/run/hawser/portmap")).NotTo(ContainSubstring(".json"))
		o := run("ADD", ports("8080:80"))
		Expect(o.exit).To(BeZero(), o.text())
		Expect(o.stderr).To(ContainSubstring("host ports of 127.0.0.1 do not work: the kernel has no nf_tables"))
		Expect(w.reach(8080)).To(Equal("192.0.2.2"))
		Expect(w.Sysctl("net/ipv4/conf/br1/route_localnet")).To(Equal("0"))
		o = run("CHECK", ports("8080:80"))
		Expect(o.text()).To(Equal("exit 0  "))
		o = run("DEL")
		Expect(o.text()).To(Equal("exit 0  "))
		Expect(w.Cmd("iptables-legacy", "-t", "nat", "-S")).NotTo(ContainSubstring("CNI-DN"))
		Expect(run("ADD", Object{"backend": "nftables"}, ports("8080:80")).Msg).
			To(ContainSubstring("not supported by this kernel"))
		Expect(w.Cmd("nft", "list", "ruleset")).To(BeEmpty())
	})
})

var _ = Describe("List", Label("kernel"), func() {
	DescribeTable("names the host ports until DEL, and changes nothing", func(backend string) {
		nstest.NeedBackend(backend)
		w := NewWorld(Plugin())
		n := 1
		w.ExpectHeld(func(id, network string) (Call, []string) {
			n++
			published := ports(fmt.Sprintf("808%d:80", n), fmt.Sprintf("10.1.0.1:5%d:53/udp", n))
			a := w.AttachBehind(id, network, Merge(Object{"backend": backend}, published), Addrs(n)[0],
				fmt.Sprintf("fd00::%d/64", n))
			return a.As("DEL"), []string{
				fmt.Sprintf("host port: 0.0.0.0:808%d/tcp to 10.1.0.%d:80", n, n),
				fmt.Sprintf("host port: [::]:808%d/tcp to [fd00::%d]:80", n, n),
				fmt.Sprintf("host port: 10.1.0.1:5%d/udp to 10.1.0.%d:53", n, n)}
		})
	}, Entry(nil, "nftables"), Entry(nil, "iptables"))

	for _, ref := range nstest.QuickReferences() {
		DescribeTable("names the host ports of "+ref.Name, func(backend, want string) {
			nstest.NeedBackend(backend)
			w, c := newContainer()
			keys := Merge(ports("8080:80", "192.0.2.1:53:5353/udp"), Object{"backend": backend})
			c.reference(ref, "ADD", keys)
			if ref == nstest.Debian() && backend == "nftables" {
				want = "net1 c1-2  "
			}
			Expect(Held(w.Holdings(""))).To(ConsistOf(
				want+"host port: 0.0.0.0:8080/tcp to 10.1.0.2:80 (reference)",
				want+"host port: [::]:8080/tcp to [fd00:1::2]:80 (reference)",
				want+"host port: 192.0.2.1:53/udp to 10.1.0.2:5353 (reference)"))
			c.reference(ref, "DEL", keys)
			Expect(w.Holdings("")).To(BeEmpty())
		},
			Entry("with iptables", "iptables", "net1 c1-2  "),
			Entry("with nftables", "nftables", " c1-2  "),
		)
	}
})

var _ = DescribeTable("reads records of earlier versions, and writes current ones",
	ExpectFormerRecord[location],
	Entry("before 0.2.0",
		`"netns": "/run/netns/c1", "cookie": 7, "device": 4, "inode": 4026532000, "mac": "02:00:00:00:00:01"`,
		`"netnsPath": "/run/netns/c1", "netns": ID, "mac": "02:00:00:00:00:01"`))
