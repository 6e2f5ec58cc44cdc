package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("STATUS", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })
	status := func(keys string) Answer {
		GinkgoHelper()
		return w.run("STATUS", call{keys: keys, prev: "none"})
	}

	It("is well, and touches nothing", func() {
		Expect(status(everything)).To(Equal(Answer{}))
		Expect(w.dir).NotTo(BeADirectory())
		w.add(everything)
		Expect(status(everything)).To(Equal(Answer{}))
	})

	It("is not well where the allow-list forbids a sysctl", func() {
		put(w.allow, "^net\\.core\\.x$")
		Expect(status(everything).Failed(cni.CodeUnavailable)).
			To(HavePrefix(`sysctl["net.ipv4.conf.IFNAME.arp_filter"]: "1": not allowed by `))
		Expect(status(`"mtu":1400`)).To(Equal(Answer{}))
	})

	It("is not well with an allow-list that is broken", func() {
		put(w.allow, "net\n(")
		Expect(status(everything).Failed(cni.CodeUnavailable)).To(ContainSubstring(`line "("`))
	})

	It("is not well where dataDir cannot be written", func() {
		w.Cmd("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", "/run/lock")
		for _, dir := range []string{"/run/lock", "/run/lock/a/b"} {
			Expect(status(`"mtu":1400,"dataDir":"`+dir+`"`).Failed(cni.CodeUnavailable)).To(HavePrefix("dataDir: "),
				dir)
		}
		Expect(status(`"dataDir":"/run/lock"`)).To(Equal(Answer{}))
	})

	It("is not well where dataDir is a file", func() {
		put(w.dir+"/x", "")
		status(`"mtu":1400,"dataDir":"` + w.dir + `/x"`).Failed(cni.CodeUnavailable)
	})
})

var _ = Describe("CHECK", func() {
	var w *world
	BeforeEach(func() {
		w = newWorld()
		w.add(everything)
	})
	check := func(keys string) Answer {
		GinkgoHelper()
		return w.run("CHECK", call{keys: keys})
	}

	It("is content after ADD, in every spelling", func() {
		Expect(check(everything)).To(Equal(Answer{}))
		Expect(check(replace(everything, "40000 50000", " 40000\\t50000 \\n"))).To(Equal(Answer{}))
		Expect(check(`"mac":"02-00-00-00-00-02"`)).To(Equal(Answer{}))
	})

	It("does not mind the case of a MAC address", func() {
		IP(w.cont, "link set eth0 address 02:aa:bb:cc:dd:ee")
		Expect(check(`"mac":"02:AA:BB:CC:DD:EE"`)).To(Equal(Answer{}))
	})

	It("knows a list of ports as the kernel writes it", func() {
		keys := `"sysctl":{"net.ipv4.ip_local_reserved_ports":"81,80,443"}`
		w.add(keys)
		Expect(check(keys)).To(Equal(Answer{}))
	})

	DescribeTable("finds", func(msg string, change string) {
		w.cont.Cmd("sh", "-c", change)
		Expect(check(everything).Failed(cni.CodeDrift)).To(Equal(msg + "\n"))
	},
		Entry("another MAC address", `interface "eth0": mac is not 02:00:00:00:00:02`,
			"ip link set eth0 address 02:00:00:00:00:03"),
		Entry("another MTU", `interface "eth0": mtu is not 1400`, "ip link set eth0 mtu 1399"),
		Entry("promisc off", `interface "eth0": promisc is not true`, "ip link set eth0 promisc off"),
		Entry("allmulti off", `interface "eth0": allmulti is not true`, "ip link set eth0 allmulticast off"),
		Entry("another queue length", `interface "eth0": txQLen is not 55`, "ip link set eth0 txqueuelen 56"),
		Entry("another sysctl", `sysctl["net.core.somaxconn"]: is "78", want "77"`,
			"echo 78 >/proc/sys/net/core/somaxconn"),
		Entry("two things", "interface \"eth0\": mtu is not 1400\ninterface \"eth0\": txQLen is not 55",
			"ip link set eth0 mtu 1399 txqueuelen 3"),
	)

	It("finds the interface gone", func() {
		IP(w.cont, "link del eth0")
		Expect(check(everything).Failed(cni.CodeDrift)).
			To(And(ContainSubstring(`interface "eth0": is gone`), ContainSubstring(`arp_filter`)))
	})

	DescribeTable("does not mind what was not asked for", func(change string) {
		w.cont.Cmd("sh", "-c", change)
		Expect(check(`"txQLen":55`)).To(Equal(Answer{}))
	},
		Entry("mac", "ip link set eth0 address 02:00:00:00:00:03"),
		Entry("mtu", "ip link set eth0 mtu 1399"),
		Entry("promisc", "ip link set eth0 promisc off"),
		Entry("allmulti", "ip link set eth0 allmulticast off"),
	)

	It("does not ask the allow-list", func() {
		put(w.allow, "")
		Expect(check(everything)).To(Equal(Answer{}))
	})
})
