package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

const everything = `"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1","net.core.somaxconn":"77","net.ipv4.ip_local_port_range":"40000 50000"},` +
	`"mac":"02:00:00:00:00:02","promisc":true,"mtu":1400,"allmulti":true,"txQLen":55`

var _ = Describe("ADD", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("changes what is asked for", func() {
		w.add(everything)
		Expect(state(w.cont, "eth0")).To(Equal(otherMAC + " mtu 1400 txqlen 55 promisc allmulti"))
		Expect(w.cont.Sysctl("net/ipv4/conf/eth0/arp_filter")).To(Equal("1"))
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("77"))
		Expect(w.cont.Sysctl("net/ipv4/ip_local_port_range")).To(Equal("40000\t50000"))
		Expect(w.host.Sysctl("net/core/somaxconn")).NotTo(Equal("77"))
	})

	DescribeTable("changes one attribute alone", func(conf, want string) {
		w.add(conf)
		Expect(state(w.cont, "eth0")).To(Equal(want))
	},
		Entry("mac", `"mac":"02:00:00:00:00:02"`, otherMAC+" mtu 1500 txqlen 1000"),
		Entry("promisc", `"promisc":true`, untouched+" promisc"),
		Entry("mtu", `"mtu":1400`, firstMAC+" mtu 1400 txqlen 1000"),
		Entry("allmulti", `"allmulti":true`, untouched+" allmulti"),
		Entry("txQLen", `"txQLen":0`, firstMAC+" mtu 1500 txqlen 0"),
		Entry("nothing", ``, untouched),
		Entry("what is so already", `"mac":"02:00:00:00:00:01","mtu":1500,"allmulti":false,"txQLen":1000,"promisc":false`, untouched),
	)

	It("switches allmulti off", func() {
		w.cont.Cmd("ip", "link", "set", "eth0", "allmulticast", "on")
		w.add(`"allmulti":false`)
		Expect(state(w.cont, "eth0")).To(Equal(untouched))
	})

	It("serves an interface with a dot in its name", func() {
		w.link(w.cont, "net.5")
		w.ok(call{command: "ADD", ifName: "net.5", conf: `"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"},"mtu":1400`})
		Expect(w.cont.Sysctl("net/ipv4/conf/net.5/arp_filter")).To(Equal("1"))
		Expect(state(w.cont, "net.5")).To(ContainSubstring("mtu 1400"))
	})

	It("writes sysctls in their order", func() {
		// all overwrites what one interface has; only the one after it lasts.
		w.add(`"sysctl":{"net.ipv4.conf.all.forwarding":"1","net.ipv4.conf.IFNAME.forwarding":"0"}`)
		Expect(w.cont.Sysctl("net/ipv4/conf/eth0/forwarding")).To(Equal("0"))
		w.add(`"sysctl":{"net.ipv4.conf.IFNAME.forwarding":"0","net.ipv4.conf.all.forwarding":"0"},"dataDir":"` + w.dir + `2"`)
		w.add(`"sysctl":{"net.ipv4.conf.IFNAME.forwarding":"0","net.ipv4.conf.all.forwarding":"1"},"dataDir":"` + w.dir + `3"`)
		Expect(w.cont.Sysctl("net/ipv4/conf/eth0/forwarding")).To(Equal("1"))
	})

	It("writes a sysctl that can only be written", func() {
		w.add(`"sysctl":{"net.ipv4.route.flush":"1"}`)
		Expect(w.backup("c1_eth0.json")).To(Equal("{}"))
		w.ok(call{command: "CHECK", conf: `"sysctl":{"net.ipv4.route.flush":"1"}`})
		Expect(w.del("").stderr).To(BeEmpty())
	})

	It("writes sysctls where there is no interface", func() {
		w.ok(call{command: "ADD", ifName: "eth7", conf: `"sysctl":{"net.core.somaxconn":"77"}`})
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("77"))
	})

	It("keeps the values from before in the reference's format", func() {
		w.add(`"mac":"02:00:00:00:00:02","promisc":true,"mtu":1400,"allmulti":true,"txQLen":55`)
		Expect(w.backup("c1_eth0.json")).To(Equal("{\n \"mac\": \"02:00:00:00:00:01\",\n \"promisc\": false,\n \"mtu\": 1500,\n \"allmulti\": false,\n \"txQLen\": 1000\n}"))
	})

	It("keeps sysctls beside them", func() {
		w.add(`"sysctl":{"net.ipv4.ip_local_port_range":"40000 50000","net/core/somaxconn":"77"},"mtu":1400`)
		Expect(w.backup("c1_eth0.json")).To(Equal("{\n \"mtu\": 1500,\n \"sysctl\": {\n  \"net.ipv4.ip_local_port_range\": \"32768\\t60999\",\n  \"net.core.somaxconn\": \"4096\"\n }\n}"))
	})

	It("keeps them where nobody else can read them", func() {
		w.add(`"mtu":1400`)
		for path, mode := range map[string]os.FileMode{w.dir: 0o700, w.dir + "/..": 0o700, w.dir + "/.hawser": 0o700, w.dir + "/c1_eth0.json": 0o600} {
			info, err := os.Stat(path)
			Expect(err).NotTo(HaveOccurred())
			Expect(info.Mode().Perm()).To(Equal(mode), path)
		}
	})

	It("leaves no file where nothing is asked for", func() {
		w.add(``)
		Expect(w.dir).NotTo(BeADirectory())
	})

	It("a second time keeps what was there first", func() {
		w.add(`"mtu":1400,"sysctl":{"net.core.somaxconn":"77"}`)
		first := w.backup("c1_eth0.json")
		w.add(`"mtu":1300,"sysctl":{"net.core.somaxconn":"78"}`)
		Expect(w.backup("c1_eth0.json")).To(Equal(first))
		w.add(`"txQLen":55`) // another tuning of the same chain
		Expect(w.backup("c1_eth0.json")).To(ContainSubstring(`"mtu": 1500,` + "\n" + ` "txQLen": 1000`))
		w.del("")
		Expect(state(w.cont, "eth0")).To(Equal(untouched))
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("4096"))
		Expect(w.files()).To(BeEmpty())
	})

	It("forgets a former life of the container", func() {
		w.add(`"mtu":1400`)
		w.cont = nstest.NewNetns()
		w.link(w.cont, "eth0")
		w.cont.Cmd("ip", "link", "set", "eth0", "mtu", "1450")
		w.add(`"mtu":1300`)
		Expect(w.backup("c1_eth0.json")).To(Equal("{\n \"mtu\": 1450\n}"))
		Expect(w.files()).To(HaveLen(2))
	})

	It("replaces a backup that nobody can read", func() {
		w.put("c1_eth0.json", "{\n \"mt")
		Expect(w.add(`"mtu":1400`).stderr).To(ContainSubstring("c1_eth0.json: no backup: "))
		Expect(w.backup("c1_eth0.json")).To(Equal("{\n \"mtu\": 1500\n}"))
	})
})

var _ = Describe("ADD that fails", func() {
	var w *world
	var before string
	BeforeEach(func() {
		w = newWorld()
		w.cont.SetSysctl("net/ipv4/ip_local_port_range", "20000 30000")
		before = w.cont.Snapshot() + w.values()
	})
	AfterEach(func() {
		Expect(w.cont.Snapshot() + w.values()).To(Equal(before))
		Expect(w.files()).To(BeEmpty())
	})
	fails := func(c call, code uint, msg string) {
		GinkgoHelper()
		c.command = "ADD"
		out := w.run(c)
		Expect(out.exit).To(Equal(1))
		Expect(out.msg).To(Equal(msg))
		Expect(out.code).To(Equal(int(code)))
		Expect(out.details).To(BeEmpty())
	}

	DescribeTable("before anything is touched", func(conf string, code uint, msg string) {
		fails(call{conf: conf}, code, msg)
		Expect(w.dir).NotTo(BeADirectory())
	},
		Entry("a sysctl that is not there", `"sysctl":{"net.core.somaxconn":"77","net.core.nothing":"1"}`, cni.CodeConfig,
			`sysctl["net.core.nothing"]: "1": no such sysctl in the container's network namespace`),
		Entry("a directory of sysctls", `"sysctl":{"net.core":"77"}`, cni.CodeConfig, `sysctl["net.core"]: "77": is a directory of sysctls`),
		Entry("a bad value", `"mtu":-3,"sysctl":{"net.core.somaxconn":"77"}`, cni.CodeConfig, `mtu: -3 is not between 0 and 2147483647`),
		Entry("a MAC address of another length", `"mac":"02:00:00:00:00:00:00:01"`, cni.CodeConfig, `mac: "02:00:00:00:00:00:00:01": an address of "eth0" has 6 bytes`),
	)

	It("without prevResult", func() {
		fails(call{conf: `"mtu":1400`, prev: "none"}, cni.CodeConfig, "prevResult: missing; tuning changes what another plugin of the chain made")
	})

	It("without the interface", func() {
		fails(call{conf: `"mtu":1400`, ifName: "eth7"}, cni.CodeEnvironment, fmt.Sprintf(`CNI_IFNAME "eth7": no such interface in CNI_NETNS %q`, w.cont.Path))
	})

	It("with a sysctl that is not allowed", func() {
		w.allow("^net\\.core\\.somaxconn$\n")
		fails(call{conf: `"sysctl":{"net.core.somaxconn":"77","net.ipv4.ip_forward":"1"}`}, cni.CodeConfig,
			fmt.Sprintf(`sysctl["net.ipv4.ip_forward"]: "1": not allowed by %s, which allows ["^net\\.core\\.somaxconn$"]`, w.tuning.allowList.Path))
	})

	It("with a container ID that makes no file name", func() {
		id := strings.Repeat("c", 250)
		out := w.run(call{command: "ADD", id: id, conf: `"mtu":1400`})
		Expect(out.code).To(Equal(int(cni.CodeEnvironment)))
		Expect(w.run(call{command: "DEL", id: id, conf: `"mtu":1400`}).exit).To(Equal(0))
	})

	DescribeTable("half-way", func(conf string, msg string) {
		fails(call{conf: conf}, cni.CodeConfig, msg)
	},
		Entry("at the first sysctl", `"sysctl":{"net.core.somaxconn":"x","net.ipv4.ip_local_port_range":"40000 50000"}`,
			`sysctl["net.core.somaxconn"]: sysctl net.core.somaxconn: write "x": invalid argument`),
		Entry("at the second sysctl", `"sysctl":{"net.ipv4.ip_local_port_range":"40000 50000","net.ipv4.conf.IFNAME.arp_filter":"x"}`,
			`sysctl["net.ipv4.conf.IFNAME.arp_filter"]: sysctl net.ipv4.conf.eth0.arp_filter: write "x": invalid argument`),
		Entry("at the sysctl of args.cni", `"sysctl":{"net.ipv4.ip_local_port_range":"40000 50000"},"args":{"cni":{"sysctl":{"net.core.somaxconn":"x"}}}`,
			`args.cni.sysctl["net.core.somaxconn"]: sysctl net.core.somaxconn: write "x": invalid argument`),
		Entry("at the MTU", `"sysctl":{"net.ipv4.ip_local_port_range":"40000 50000","net.ipv4.conf.IFNAME.forwarding":"1"},"mac":"02:00:00:00:00:02","promisc":true,"mtu":70000`,
			`mtu: 70000: link "eth0": change: invalid argument: mtu greater than device maximum`),
	)

	DescribeTable("at its very end", func(conf string) {
		out := w.run(call{command: "ADD", conf: conf, stdout: full{}})
		Expect(out.exit).To(Equal(1))
		Expect(out.stderr).To(And(ContainSubstring("no room"), Not(ContainSubstring("roll-back"))))
	},
		Entry("with everything", everything),
		Entry("with the queue length alone", `"txQLen":3`),
		Entry("with allmulti alone", `"allmulti":true`),
		Entry("with promisc alone", `"promisc":true`),
		Entry("with a list of ports", `"sysctl":{"net.ipv4.ip_local_reserved_ports":"80,81"}`),
		Entry("with sysctls that write each other", `"sysctl":{"net.ipv4.conf.all.forwarding":"1","net.ipv4.conf.IFNAME.forwarding":"0","net.ipv4.ip_forward":"1"}`),
	)
})

// values are what snapshots do not show.
func (w *world) values() string {
	GinkgoHelper()
	s := state(w.cont, "eth0")
	for _, key := range []string{"net/core/somaxconn", "net/ipv4/ip_local_port_range", "net/ipv4/ip_local_reserved_ports"} {
		s += "\n" + key + "=" + w.cont.Sysctl(key)
	}
	return s
}

var _ = Describe("a second ADD that fails", func() {
	It("leaves the first as it was", func() {
		w := newWorld()
		w.add(`"mtu":1400,"sysctl":{"net.core.somaxconn":"77"}`)
		before, file := w.values(), w.backup("c1_eth0.json")
		Expect(w.run(call{command: "ADD", conf: `"mac":"02:00:00:00:00:02","mtu":1300,"sysctl":{"net.core.somaxconn":"78"}`, stdout: full{}}).exit).To(Equal(1))
		Expect(w.values()).To(Equal(before))
		Expect(w.backup("c1_eth0.json")).To(Equal(file))
		w.del("")
		Expect(state(w.cont, "eth0")).To(Equal(untouched))
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("4096"))
	})
	It("leaves a backup that it cannot read as it was", func() {
		w := newWorld()
		text := "{\n \"mtu\": 1450\n}"
		w.put("c1_eth0.json", text)
		Expect(os.Chmod(filepath.Join(w.dir, "c1_eth0.json"), 0)).To(Succeed())
		nstest.WithoutDAC(func() {
			s, err := openStore(context.Background(), w.dir, func(string, ...any) {})
			Expect(err).NotTo(HaveOccurred())
			_, err = s.inherit(&record{Network: "net1", ContainerID: "c1", IfName: "eth0"})
			Expect(err).To(MatchError(unix.EACCES))
			Expect(s.close()).To(Succeed())
		})
		Expect(w.backup("c1_eth0.json")).To(Equal(text))
	})
	It("leaves the reference's backup as it was", func() {
		w := newWorld()
		text := "{\n \"mac\": \"02:00:00:00:00:09\",\n \"mtu\": 1450\n}"
		w.put("c1_eth0.json", text)
		Expect(w.run(call{command: "ADD", conf: `"mtu":1300,"txQLen":5`, stdout: full{}}).exit).To(Equal(1))
		Expect(w.backup("c1_eth0.json")).To(Equal(text))
		Expect(w.files()).To(HaveLen(1))
	})
})
