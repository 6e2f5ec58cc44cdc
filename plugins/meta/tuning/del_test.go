package main

import (
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = Describe("DEL", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("restores everything, and does it again", func() {
		before := w.cont.Snapshot() + w.values()
		w.add(everything)
		Expect(w.cont.Snapshot() + w.values()).NotTo(Equal(before))
		Expect(w.del("").stderr).To(BeEmpty())
		Expect(w.cont.Snapshot() + w.values()).To(Equal(before))
		Expect(w.files()).To(BeEmpty())
		Expect(w.del("").stderr).To(BeEmpty())
	})

	It("before ADD does nothing", func() {
		w.del(everything)
		Expect(w.values()).To(HavePrefix(untouched))
		Expect(w.dir).NotTo(BeADirectory())
	})

	It("where dataDir is no directory has nothing to do", func() {
		w.put("x", "")
		w.dir += "/x"
		w.del("")
	})

	It("restores sysctls that write each other", func() {
		w.cont.SetSysctl("net/ipv4/conf/eth0/forwarding", "1")
		before := w.cont.Snapshot("sysctls")
		// Written last, all must be restored first: it takes eth0 with it.
		w.add(`"sysctl":{"net.ipv4.conf.IFNAME.forwarding":"0","net.ipv4.conf.all.forwarding":"1"}`)
		w.del("")
		Expect(w.cont.Snapshot("sysctls")).To(Equal(before))
	})

	DescribeTable("forgets a container that is gone", func(netns string, unpin bool) {
		w.add(everything)
		if unpin {
			w.cont.Unpin()
		}
		Expect(w.ok(call{command: "DEL", netns: netns, prev: "none"}).stderr).To(BeEmpty())
		Expect(w.files()).To(BeEmpty())
	},
		Entry("with CNI_NETNS empty", "none", false),
		Entry("with its path gone", "", true),
		Entry("with a path that never was", "/nowhere/at/all", false),
	)

	It("takes a path that is no namespace for gone", func() {
		w.add(everything)
		Expect(w.ok(call{command: "DEL", netns: "/etc/passwd"}).stderr).To(ContainSubstring("taken for gone"))
		Expect(w.files()).To(BeEmpty())
	})

	It("without the interface restores the sysctls that are still there", func() {
		w.add(everything)
		w.cont.Cmd("ip", "link", "del", "eth0")
		Expect(w.del("").stderr).To(BeEmpty())
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("4096"))
		Expect(w.files()).To(BeEmpty())
	})

	It("leaves another interface of the same name alone", func() {
		w.add(everything)
		w.cont.Cmd("ip", "link", "del", "eth0")
		w.link(w.cont, "eth0")
		w.cont.Cmd("ip", "link", "set", "eth0", "mtu", "1300")
		w.cont.SetSysctl("net/ipv4/conf/eth0/arp_filter", "1")
		w.del("")
		Expect(state(w.cont, "eth0")).To(Equal(firstMAC + " mtu 1300 txqlen 1000"))
		Expect(w.cont.Sysctl("net/ipv4/conf/eth0/arp_filter")).To(Equal("1"))
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("4096"))
	})

	It("leaves a container alone to which the path leads by now", func() {
		w.add(everything)
		old := w.cont
		w.cont = nstest.NewNetns()
		w.link(w.cont, "eth0")
		w.ok(call{command: "ADD", id: "c2", conf: everything})
		before := w.cont.Snapshot() + w.values()
		w.del(everything) // c1's, with c2's path
		Expect(w.cont.Snapshot() + w.values()).To(Equal(before))
		Expect(w.files()).To(HaveLen(2))
		Expect(state(old, "eth0")).NotTo(Equal(untouched))
		w.ok(call{command: "DEL", id: "c2"})
		Expect(w.values()).To(HavePrefix(untouched))
	})

	DescribeTable("does not need the rest of the configuration", func(conf, args string) {
		w.add(everything)
		w.ok(call{command: "DEL", conf: conf, args: args, prev: "none"})
		Expect(w.values()).To(HavePrefix(untouched))
		Expect(w.files()).To(BeEmpty())
	},
		Entry("none of it", ``, ""),
		Entry("wrong types", `"mtu":"x","sysctl":[],"promisc":7,"args":5,"runtimeConfig":"x"`, ""),
		Entry("wrong values", `"mac":"x","sysctl":{"kernel/x":"1"}`, ""),
		Entry("wrong arguments", ``, "MAC=x;nonsense"),
	)

	It("does not need a prevResult that can be read", func() {
		w.add(everything)
		w.ok(call{command: "DEL", prev: `{"interfaces":7}`})
		Expect(w.files()).To(BeEmpty())
	})

	DescribeTable("survives what became of the files", func(record, backup string) {
		w.add(everything)
		names, err := filepath.Glob(w.dir + "/.hawser/*.*.*")
		Expect(err).NotTo(HaveOccurred())
		Expect(names).To(HaveLen(1))
		for path, content := range map[string]string{names[0]: record, w.dir + "/c1_eth0.json": backup} {
			switch content {
			case "same":
			case "gone":
				Expect(os.Remove(path)).To(Succeed())
			default:
				Expect(os.WriteFile(path, []byte(content), 0o600)).To(Succeed())
			}
		}
		w.del("")
		Expect(w.files()).To(BeEmpty())
	},
		Entry("a corrupt backup", "same", "{\n \"mt"),
		Entry("an empty backup", "same", ""),
		Entry("no backup", "same", "gone"),
		Entry("a corrupt record", `{"network":`, "same"),
		Entry("somebody's record", `{"network":"x"}`, "same"),
		Entry("no record", "gone", "same"),
		Entry("both corrupt", "\x00", "\x00"),
		Entry("neither", "gone", "gone"),
		Entry("values that nobody takes", `{"network":"x"}`, `{"mtu":99999999,"mac":"x"}`),
	)

	It("restores from the record where the backup is corrupt", func() {
		w.add(everything)
		w.put("c1_eth0.json", "")
		w.del("")
		Expect(w.values()).To(HavePrefix(untouched))
	})

	It("says what cannot be restored, and goes on", func() {
		w.cont.Cmd("ip", "link", "set", "eth0", "mtu", "68") // no IPv6 below 1280
		w.cont.Cmd("ip", "link", "set", "eth0", "mtu", "1500")
		w.add(`"mtu":1400,"sysctl":{"net.ipv4.ip_local_port_range":"40000 50000","net.core.somaxconn":"77"}`)
		names, err := filepath.Glob(w.dir + "/.hawser/*.*.*")
		Expect(err).NotTo(HaveOccurred())
		data, err := os.ReadFile(names[0])
		Expect(err).NotTo(HaveOccurred())
		text := string(data)
		for old, with := range map[string]string{`"mtu":1500`: `"mtu":70000`, `"32768\t60999"`: `"x"`} {
			text = replace(text, old, with)
		}
		Expect(os.WriteFile(names[0], []byte(text), 0o600)).To(Succeed())
		out := w.del("")
		Expect(out.stderr).To(And(ContainSubstring("restore mtu 70000: "), ContainSubstring(`sysctl net.ipv4.ip_local_port_range: write "x": invalid argument`)))
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("4096"))
		Expect(w.files()).To(BeEmpty())
	})
})

var _ = Describe("a backup of other software", func() {
	const text = "{\n \"mac\": \"02:00:00:00:00:01\",\n \"mtu\": 1500\n}"
	const conf = `"mac":"02:00:00:00:00:02","mtu":1400`
	var w *world
	BeforeEach(func() {
		w = newWorld()
		w.put("c1_eth0.json", text)
		w.cont.Cmd("ip", "link", "set", "eth0", "mtu", "1400", "address", otherMAC)
	})

	DescribeTable("is restored", func(conf, prev string) {
		w.ok(call{command: "DEL", conf: conf, prev: prev})
		Expect(state(w.cont, "eth0")).To(Equal(untouched))
		Expect(w.files()).To(BeEmpty())
	},
		Entry("where prevResult has the interface's address", ``, `{"interfaces":[{"name":"eth0","mac":"02:00:00:00:00:02","sandbox":"/x"}]}`),
		Entry("in any case of letters", ``, `{"interfaces":[{"name":"eth0","mac":"02:00:00:00:00:02","sandbox":"/x"}]}`),
		Entry("where all is as configured", conf, "none"),
		Entry("where prevResult says nothing", conf, `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.1/24"}}`),
	)

	DescribeTable("is only forgotten", func(conf, prev string) {
		w.ok(call{command: "DEL", conf: conf, prev: prev})
		Expect(state(w.cont, "eth0")).To(Equal(otherMAC + " mtu 1400 txqlen 1000"))
		Expect(w.files()).To(BeEmpty())
	},
		Entry("where prevResult has another address", conf, `{"interfaces":[{"name":"eth0","mac":"02:00:00:00:00:03","sandbox":"/x"}]}`),
		Entry("where something is not as configured", `"mac":"02:00:00:00:00:02","mtu":1300`, "none"),
		Entry("where not all is configured", `"mtu":1400`, "none"),
		Entry("where nothing is configured", ``, "none"),
		Entry("where the configuration is refused", `"mac":"x"`, "none"),
	)

	It("is forgotten with the namespace gone", func() {
		w.ok(call{command: "DEL", netns: "none"})
		Expect(w.files()).To(BeEmpty())
	})

	It("counts as the first ADD", func() {
		w.add(`"mac":"02:00:00:00:00:05","txQLen":7`)
		Expect(w.backup("c1_eth0.json")).To(Equal("{\n \"mac\": \"02:00:00:00:00:01\",\n \"mtu\": 1500,\n \"txQLen\": 1000\n}"))
		w.del("")
		Expect(state(w.cont, "eth0")).To(Equal(untouched))
	})
})

var _ = Describe("two attachments", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })
	somaxconn := func() string { return w.cont.Sysctl("net/core/somaxconn") }

	DescribeTable("of one container are independent", func(first, second string, between string) {
		w.link(w.cont, "eth1")
		conf := map[string]string{"eth0": `"mtu":1400,"sysctl":{"net.core.somaxconn":"77"}`, "eth1": `"mtu":1300,"sysctl":{"net.core.somaxconn":"78"}`}
		w.ok(call{command: "ADD", ifName: "eth0", conf: conf["eth0"]})
		w.ok(call{command: "ADD", ifName: "eth1", conf: conf["eth1"]})
		w.ok(call{command: "DEL", ifName: first})
		Expect(somaxconn()).To(Equal(between))
		Expect(state(w.cont, first)).To(Equal(untouched))
		w.ok(call{command: "CHECK", ifName: second, conf: conf[second]})
		w.ok(call{command: "DEL", ifName: second})
		Expect(somaxconn()).To(Equal("4096"))
		Expect(state(w.cont, second)).To(Equal(untouched))
		Expect(w.files()).To(BeEmpty())
	},
		Entry("the last goes first", "eth1", "eth0", "77"),
		Entry("the first goes first", "eth0", "eth1", "78"),
	)

	DescribeTable("of two networks on one interface are independent", func(first, second, between string) {
		conf := map[string]string{"net1": `"mtu":1400,"mac":"02:00:00:00:00:02","sysctl":{"net.core.somaxconn":"77"}`, "net2": `"mtu":1300,"txQLen":5,"sysctl":{"net.core.somaxconn":"78"}`}
		w.ok(call{command: "ADD", network: "net1", conf: conf["net1"]})
		w.ok(call{command: "ADD", network: "net2", conf: conf["net2"]})
		Expect(w.backup("c1_eth0.json")).To(Equal("{\n \"mac\": \"02:00:00:00:00:01\",\n \"mtu\": 1500,\n \"txQLen\": 1000,\n \"sysctl\": {\n  \"net.core.somaxconn\": \"4096\"\n }\n}"))
		w.ok(call{command: "DEL", network: first})
		Expect(state(w.cont, "eth0")).To(Equal(between))
		w.ok(call{command: "CHECK", network: second, conf: conf[second]})
		Expect(w.backup("c1_eth0.json")).To(ContainSubstring(`"mtu": 1500`))
		w.ok(call{command: "DEL", network: second})
		Expect(w.values()).To(HavePrefix(untouched + "\nnet/core/somaxconn=4096"))
		Expect(w.files()).To(BeEmpty())
	},
		Entry("the last goes first", "net2", "net1", otherMAC+" mtu 1400 txqlen 1000"),
		Entry("the first goes first", "net1", "net2", firstMAC+" mtu 1300 txqlen 5"),
	)

	DescribeTable("of two networks with containers of one name are independent", func(first, second string) {
		one, two := w.cont, nstest.NewNetns()
		w.link(two, "eth0")
		netns := map[string]*nstest.Host{"net1": one, "net2": two}
		w.ok(call{command: "ADD", network: "net1", netns: one.Path, conf: `"mtu":1400`})
		w.ok(call{command: "ADD", network: "net2", netns: two.Path, conf: `"mtu":1300,"txQLen":3`})
		Expect(w.backup("c1_eth0.json")).To(Equal("{\n \"mtu\": 1500\n}")) // the first's
		w.ok(call{command: "DEL", network: first, netns: netns[first].Path})
		Expect(state(netns[first], "eth0")).To(Equal(untouched))
		Expect(state(netns[second], "eth0")).NotTo(Equal(untouched))
		w.ok(call{command: "DEL", network: second, netns: netns[second].Path})
		Expect(state(netns[second], "eth0")).To(Equal(untouched))
		Expect(w.files()).To(BeEmpty())
	},
		Entry("in one order", "net1", "net2"),
		Entry("in the other", "net2", "net1"),
	)

	It("whose backups have one name are independent", func() {
		w.link(w.cont, "b_c")
		w.link(w.cont, "c")
		w.ok(call{command: "ADD", id: "a", ifName: "b_c", conf: `"mtu":1400`})
		w.ok(call{command: "ADD", id: "a_b", ifName: "c", conf: `"mtu":1300`})
		w.ok(call{command: "DEL", id: "a", ifName: "b_c"})
		Expect(state(w.cont, "b_c")).To(Equal(untouched))
		Expect(w.backup("a_b_c.json")).To(Equal("{\n \"mtu\": 1500\n}"))
		w.ok(call{command: "DEL", id: "a_b", ifName: "c"})
		Expect(state(w.cont, "c")).To(Equal(untouched))
		Expect(w.files()).To(BeEmpty())
	})

	It("leave the other's backup when one has none", func() {
		w.ok(call{command: "ADD", network: "net1", conf: `"mtu":1400`})
		w.ok(call{command: "DEL", network: "net2", conf: `"mtu":1400`})
		Expect(state(w.cont, "eth0")).To(ContainSubstring("mtu 1400"))
		Expect(w.files()).To(HaveLen(2))
	})
})
