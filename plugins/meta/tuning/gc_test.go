package main

import (
	"context"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// replace is strings.Replace that must find something.
func replace(text, old, with string) string {
	GinkgoHelper()
	Expect(text).To(ContainSubstring(old))
	return strings.Replace(text, old, with, 1)
}

var _ = Describe("GC", func() {
	var w *world
	BeforeEach(func() {
		w = newWorld()
		for _, id := range []string{"c1", "c2"} {
			for _, network := range []string{"net1", "net2"} {
				w.ok(call{command: "ADD", id: id, network: network, ifName: "eth0", conf: `"mtu":1400`})
			}
		}
		w.put("c9_eth0.json", "{}")
		Expect(w.files()).To(HaveLen(7))
	})
	gc := func(valid string) {
		GinkgoHelper()
		Expect(w.ok(call{command: "GC", conf: `"cni.dev/valid-attachments":` + valid, prev: "none"}).stdout).To(BeEmpty())
	}

	It("keeps what is valid", func() {
		gc(`[{"containerID":"c1","ifname":"eth0"},{"containerID":"c2","ifname":"eth0"}]`)
		Expect(w.files()).To(HaveLen(7))
	})

	It("removes what is not, of this network alone", func() {
		gc(`[{"containerID":"c2","ifname":"eth0"},{"containerID":"c1","ifname":"eth1"}]`)
		Expect(w.files()).To(HaveLen(6))
		Expect(w.backup("c1_eth0.json")).To(ContainSubstring("1500")) // net2 has its share
		w.network2()
		Expect(w.files()).To(ConsistOf(HavePrefix(".hawser/"), "c2_eth0.json", "c9_eth0.json"))
	})

	DescribeTable("removes all where none is valid", func(valid string) {
		gc(valid)
		w.network2()
		Expect(w.files()).To(ConsistOf("c9_eth0.json"))
	},
		Entry("an empty list", "[]"),
		Entry("null", "null"),
	)

	It("leaves the kernel alone", func() {
		before := w.cont.Snapshot()
		gc("null")
		Expect(w.cont.Snapshot()).To(Equal(before))
	})

	It("removes nothing without a list", func() {
		w.ok(call{command: "GC", prev: "none"})
		Expect(w.files()).To(HaveLen(7))
	})

	It("leaves records that it cannot read, and says so", func() {
		w.put(".hawser/0123456789abcdef.0123456789abcdef.c5", "{")
		out := w.ok(call{command: "GC", conf: `"cni.dev/valid-attachments":null`, prev: "none"})
		Expect(out.stderr).To(ContainSubstring("record 0123456789abcdef.0123456789abcdef.c5: "))
		Expect(w.files()).To(ContainElement(".hawser/0123456789abcdef.0123456789abcdef.c5"))
	})

	It("has nothing to do where there is no directory", func() {
		w.dir += "/absent"
		gc("null")
		Expect(w.dir).NotTo(BeADirectory())
	})
})

// network2 collects the other network's garbage.
func (w *world) network2() {
	GinkgoHelper()
	w.ok(call{command: "GC", network: "net2", conf: `"cni.dev/valid-attachments":null`, prev: "none"})
}

var _ = Describe("STATUS", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })
	status := func(conf string) outcome {
		GinkgoHelper()
		return w.run(call{command: "STATUS", conf: conf, prev: "none"})
	}

	It("is well, and touches nothing", func() {
		out := status(everything)
		Expect(out).To(Equal(outcome{}))
		Expect(w.dir).NotTo(BeADirectory())
		w.add(everything)
		Expect(status(everything)).To(Equal(outcome{}))
	})

	It("refuses a bad configuration", func() {
		Expect(status(`"mtu":-1`).code).To(Equal(int(cni.CodeConfig)))
	})

	It("is not well where the allow-list forbids a sysctl", func() {
		w.allow("^net\\.core\\.x$")
		out := status(everything)
		Expect(out.code).To(Equal(int(cni.CodeUnavailable)))
		Expect(out.msg).To(HavePrefix(`sysctl["net.ipv4.conf.IFNAME.arp_filter"]: "1": not allowed by `))
		Expect(status(`"mtu":1400`).exit).To(Equal(0))
	})

	It("is not well with an allow-list that is broken", func() {
		w.allow("net\n(")
		out := status(everything)
		Expect(out.code).To(Equal(int(cni.CodeUnavailable)))
		Expect(out.msg).To(ContainSubstring(`line "("`))
	})

	It("is not well where dataDir cannot be written", func() {
		w.host.Cmd("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", "/run/lock")
		for _, dir := range []string{"/run/lock", "/run/lock/a/b"} {
			out := status(`"mtu":1400,"dataDir":"` + dir + `"`)
			Expect(out.code).To(Equal(int(cni.CodeUnavailable)), dir)
			Expect(out.msg).To(HavePrefix("dataDir: "), dir)
		}
		Expect(status(`"dataDir":"/run/lock"`).exit).To(Equal(0))
	})

	It("is not well where dataDir is a file", func() {
		w.put("x", "")
		Expect(status(`"mtu":1400,"dataDir":"` + w.dir + `/x"`).code).To(Equal(int(cni.CodeUnavailable)))
	})
})

var _ = Describe("CHECK", func() {
	var w *world
	BeforeEach(func() {
		w = newWorld()
		w.add(everything)
	})
	check := func(conf string) outcome { return w.run(call{command: "CHECK", conf: conf}) }

	It("is content after ADD, in every spelling", func() {
		Expect(check(everything)).To(Equal(outcome{}))
		Expect(check(replace(everything, "40000 50000", " 40000\\t50000 \\n"))).To(Equal(outcome{}))
		Expect(check(`"mac":"02-00-00-00-00-02"`)).To(Equal(outcome{}))
	})

	It("does not mind the case of a MAC address", func() {
		w.cont.Cmd("ip", "link", "set", "eth0", "address", "02:aa:bb:cc:dd:ee")
		Expect(check(`"mac":"02:AA:BB:CC:DD:EE"`)).To(Equal(outcome{}))
	})

	It("knows a list of ports as the kernel writes it", func() {
		conf := `"sysctl":{"net.ipv4.ip_local_reserved_ports":"81,80,443"}`
		w.add(conf)
		Expect(check(conf)).To(Equal(outcome{}))
	})

	DescribeTable("finds", func(msg string, command ...string) {
		w.cont.Cmd(command[0], command[1:]...)
		out := check(everything)
		Expect(out.code).To(Equal(int(cni.CodeDrift)))
		Expect(out.msg).To(Equal(msg))
	},
		Entry("another MAC address", `interface "eth0": mac is not 02:00:00:00:00:02`, "ip", "link", "set", "eth0", "address", "02:00:00:00:00:03"),
		Entry("another MTU", `interface "eth0": mtu is not 1400`, "ip", "link", "set", "eth0", "mtu", "1399"),
		Entry("promisc off", `interface "eth0": promisc is not true`, "ip", "link", "set", "eth0", "promisc", "off"),
		Entry("allmulti off", `interface "eth0": allmulti is not true`, "ip", "link", "set", "eth0", "allmulticast", "off"),
		Entry("another queue length", `interface "eth0": txQLen is not 55`, "ip", "link", "set", "eth0", "txqueuelen", "56"),
		Entry("another sysctl", `sysctl["net.core.somaxconn"]: is "78", want "77"`, "sh", "-c", "echo 78 >/proc/sys/net/core/somaxconn"),
		Entry("two things", "interface \"eth0\": mtu is not 1400\ninterface \"eth0\": txQLen is not 55", "ip", "link", "set", "eth0", "mtu", "1399", "txqueuelen", "3"),
	)

	It("finds the interface gone", func() {
		w.cont.Cmd("ip", "link", "del", "eth0")
		out := check(everything)
		Expect(out.code).To(Equal(int(cni.CodeDrift)))
		Expect(out.msg).To(And(ContainSubstring(`interface "eth0": is gone`), ContainSubstring(`arp_filter`)))
	})

	DescribeTable("does not mind what was not asked for", func(command ...string) {
		w.cont.Cmd(command[0], command[1:]...)
		Expect(check(`"txQLen":55`)).To(Equal(outcome{}))
	},
		Entry("mac", "ip", "link", "set", "eth0", "address", "02:00:00:00:00:03"),
		Entry("mtu", "ip", "link", "set", "eth0", "mtu", "1399"),
		Entry("promisc", "ip", "link", "set", "eth0", "promisc", "off"),
		Entry("allmulti", "ip", "link", "set", "eth0", "allmulticast", "off"),
	)

	It("needs prevResult", func() {
		out := w.run(call{command: "CHECK", conf: everything, prev: "none"})
		Expect(out.code).To(Equal(int(cni.CodeConfig)))
		Expect(out.msg).To(HavePrefix("prevResult: missing"))
	})

	It("does not ask the allow-list", func() {
		w.allow("")
		Expect(check(everything)).To(Equal(outcome{}))
	})
})

var _ = Describe("dataDir that is locked", func() {
	It("makes ADD say by whom, when it is told to stop", func() {
		dir := GinkgoT().TempDir()
		Expect(os.Mkdir(dir+"/.hawser", 0o700)).To(Succeed())
		held, err := statefile.Lock(context.Background(), dir+"/.hawser/lock", 0o600)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(held.Unlock)
		ctx, cancel := context.WithTimeout(context.Background(), 1)
		defer cancel()
		_, err = openStore(ctx, dir, func(string, ...any) {})
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeTryAgain))
		Expect(err).To(MatchError(ContainSubstring("dataDir: lock " + dir + "/.hawser/lock: held by process")))
	})
})
