package main

import (
	"encoding/json"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// readOnlyProc makes the sysctls of the host unwritable.
func readOnlyProc(w *world) {
	GinkgoHelper()
	w.Cmd("mount", "--bind", "/proc/sys", "/proc/sys")
	w.Cmd("mount", "-o", "remount,ro,bind", "/proc/sys")
}

// onlyIPv4 runs fn with no programs but iptables.
func onlyIPv4(variant string, fn func()) {
	GinkgoHelper()
	name := "iptables-" + variant
	nstest.WithPrograms([]string{"iptables", "iptables-restore", name, name + "-restore"}, fn)
}

// settled is a world with what is shared and stays, a container without host ports, and the rules.
func settled(k kind) (w *world, c *container, before string) {
	GinkgoHelper()
	w = newWorld()
	w.settle(k)
	c = w.container(1, 2)
	return w, c, w.rules()
}

var _ = Describe("an ADD that fails", Label("kernel"), func() {
	eachBackend(func(k kind) {
		// fails expects everything to be as it was.
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

		It("at the configuration touches nothing", func() { fails(nil, "portMappings[0].hostPort", ports("0:80")) })
		It("for want of an address touches nothing", func() {
			fails(nil, "has no address of interface", Object{"prevResult": Object{"cniVersion": "1.1.0"}})
		})
		It("at the sysctl takes back the rules", func() { fails(readOnlyProc, "read-only file system") })

		It("at the result takes back everything", func() {
			w, c, before := settled(k)
			call := c.as("ADD", k.config, ports(all...))
			call.Stdout = BrokenPipe{}
			Expect(w.Call(call).Code).To(Equal(1))
			Expect(w.rules()).To(Equal(before))
			Expect(w.Files("/run/hawser/portmap")).NotTo(ContainSubstring(".json"))
		})

		It("at its record touches nothing", func() {
			w := newWorld()
			w.Cmd("sh", "-ec", "mkdir /run/hawser; echo >/run/hawser/portmap")
			c := w.container(1, 2)
			before := w.rules()
			o := c.call("ADD", k.config, ports(all...))
			Expect(o.exit).To(Equal(1))
			Expect(o.Msg).To(ContainSubstring("/run/hawser/portmap"))
			Expect(w.rules()).To(Equal(before))
			o = w.status(k.config)
			Expect(o.Code).To(Equal(cni.CodeUnavailable), o.text())
		})
	})

	It("at a foreign element under our key takes back the rest", func() {
		w, c, _ := settled(kinds[0])
		w.Cmd("nft", "add", "element", "inet", "hawser", "portmap6_via_v1", "{ udp . 53 : goto portmap6_dnat_v1 }")
		before := w.rules()
		c.fails("ADD", cni.CodePortTaken, ports(all...))
		Expect(w.rules()).To(Equal(before))
	})

	It("at conditions that nft does not understand takes back the rest", func() {
		w, c, before := settled(kinds[0])
		o := c.call("ADD", Object{"conditionsV4": []string{"ip saddr 10.0.0.0/8"},
			"conditionsV6": []string{"nonsense"}}, ports(all...))
		Expect(o.Msg).To(And(HavePrefix(`conditionsV6: ["nonsense"]: refused by nft`), ContainSubstring("unexpected")))
		Expect(o.Code).To(Equal(cni.CodeConfig))
		Expect(w.rules()).To(Equal(before))
	})

	It("for want of the nft program says so, and so does STATUS", func() {
		w, c, before := settled(kinds[0])
		cond := Object{"conditionsV4": []string{"ip saddr 10.0.0.0/8"}}
		var o, st outcome
		nstest.WithoutPrograms(func() { o, st = c.call("ADD", cond, ports(all...)), w.status(cond) })
		Expect(o.Msg).To(And(ContainSubstring("conditionsV4"), ContainSubstring(`"nft": executable file not found`)))
		Expect(st.Code).To(Equal(cni.CodeUnavailable))
		Expect(w.rules()).To(Equal(before))
	})

	for _, k := range kinds[1:] {
		It("for want of ip6tables on "+k.name+" takes back what iptables did, and STATUS warns of it", func() {
			nstest.UseVariant(k.variant)
			w, c, before := settled(k)
			var o, st outcome
			onlyIPv4(k.variant, func() { o, st = c.call("ADD", k.config, ports(all...)), w.status(k.config) })
			Expect(o.Msg).To(ContainSubstring(`": executable file not found`))
			Expect(st.exit).To(BeZero(), "containers may have IPv4 alone")
			Expect(st.stderr).To(And(ContainSubstring("no host ports of containers with an IPv6 address"),
				ContainSubstring("not found")))
			Expect(w.rules()).To(Equal(before))
			Expect(w.Files("/run/hawser/portmap")).NotTo(ContainSubstring(".json"))
		})

		It("for want of a writable /run on "+k.name+" says so, and so does STATUS", func() {
			nstest.UseVariant(k.variant)
			w, c := newContainer()
			Expect(w.status(k.config).text()).To(Equal("exit 0  "))
			w.Cmd("mount", "-o", "remount,ro", "/run")
			for _, o := range []outcome{c.call("ADD", k.config, ports("8080:80")), w.status(k.config)} {
				Expect(o.Msg).To(ContainSubstring("read-only file system"))
			}
		})

		It("at a condition that "+k.name+" does not understand takes back the rest", func() {
			nstest.UseVariant(k.variant)
			w, c, before := settled(k)
			o := c.call("ADD", Object{"conditionsV6": []string{"-m", "nonsense"}}, ports(all...))
			Expect(o.Msg).To(ContainSubstring("nonsense"))
			Expect(w.rules()).To(Equal(before))
		})
	}
})

var _ = Describe("STATUS", Label("kernel"), func() {
	It("is content without programs on a kernel with nftables", func() {
		w := newWorld()
		nstest.WithoutPrograms(func() { Expect(w.status().text()).To(Equal("exit 0  ")) })
		Expect(w.Cmd("nft", "list", "ruleset")).To(BeEmpty())
		Expect(w.status(Object{"backend": "iptables"}).text()).To(Equal("exit 0  "))
		Expect(w.status(Object{"backend": "none"}).Code).To(Equal(cni.CodeConfig))
	})

	It("names a fault of the directory and one of the kernel together", func() {
		w := newWorld()
		w.Cmd("sh", "-ec", "mkdir -p /run/hawser; echo >/run/hawser/portmap")
		o := w.run(Call{Command: "STATUS", Conf: conf(Object{"backend": "nftables"}),
			Before: nstest.RefuseNetfilterSockets})
		Expect(o.Code).To(Equal(cni.CodeUnavailable), o.text())
		Expect(o.Msg).To(And(ContainSubstring("/run/hawser/portmap"), ContainSubstring("not supported")))
	})

	It("fails where the kernel does not say whether kube-proxy is in its mode ipvs", func() {
		const question = 48 // bytes of the request for the link "kube-ipvs0"
		says := newWorld().Fails(Call{Command: "STATUS", Conf: conf(Object{"backend": "nftables"}), Before: func() {
			nstest.FailCall(unix.SYS_SENDTO, unix.EPERM, nstest.Arg{Number: 2, Value: question})
		}}, cni.CodeUnavailable)
		Expect(says).To(ContainSubstring(`link "kube-ipvs0": operation not permitted`))
	})
})

var _ = Describe("ADD again, of a container that is gone", Label("kernel"), func() {
	It("fails where the program is missing that removes the rules it had, and keeps their record", func() {
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

var _ = Describe("a kernel without nf_tables", Label("kernel"), func() {
	It("gets iptables, and no host ports of 127.0.0.1, since nothing would guard the host's loopback", func() {
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
		w.Cmd("iptables-legacy-save", "-t", "nat") // makes the table
		nstest.WithoutPrograms(func() {
			Expect(run("ADD", ports("8080:80")).Msg).To(ContainSubstring(`program "iptables-restore"`))
		})
		Expect(w.Files("/run/hawser/portmap")).NotTo(ContainSubstring(".json"))
		o := run("ADD", ports("8080:80"))
		Expect(o.exit).To(BeZero(), o.text())
		Expect(o.stderr).To(ContainSubstring("host ports of 127.0.0.1 lead nowhere: the kernel has no nf_tables"))
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
