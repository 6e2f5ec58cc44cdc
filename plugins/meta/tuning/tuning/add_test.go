package tuning

import (
	"fmt"
	"os"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("ADD", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("changes what is asked for", func() {
		w.add(everything)
		Expect(state(w.cont, "eth0")).To(Equal(otherMAC + " mtu 1400 txqlen 55 promisc allmulti"))
		Expect(w.cont.Sysctl("net/ipv4/conf/eth0/arp_filter")).To(Equal("1"))
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("77"))
		Expect(w.cont.Sysctl("net/ipv4/ip_local_port_range")).To(Equal("40000\t50000"))
		Expect(w.Sysctl("net/core/somaxconn")).NotTo(Equal("77"))
	})

	Describe("that only checks sysctls", Label("sysctl-check"), func() {
		const conf = `"sysctlMode":"check","sysctl":{"net.core.somaxconn":"77","net.ipv4.conf.IFNAME.arp_filter":"1",` +
			`"net.ipv4.ip_local_port_range":"32768 60999"}`
		right := func() {
			w.cont.SetSysctl("net/core/somaxconn", "77")
			w.cont.SetSysctl("net/ipv4/conf/eth0/arp_filter", "1")
		}
		It("names each that differs, with both values, and changes nothing", func() {
			a := w.run("ADD", call{keys: conf + `,"mtu":1400`})
			code, msg := a.Error()
			Expect(code).To(Equal(cni.CodeConfig))
			Expect(msg).To(And(HavePrefix(`sysctlMode "check" writes no sysctl: `),
				ContainSubstring(`sysctl["net.core.somaxconn"]: is "4096", want "77"`),
				ContainSubstring(`sysctl["net.ipv4.conf.IFNAME.arp_filter"]: is "0", want "1"`),
				Not(ContainSubstring("port_range"))))
			Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("4096"))
			Expect(state(w.cont, "eth0")).To(Equal(untouched))
			Expect(w.dir).NotTo(BeADirectory())
		})
		It("is content with values that are right, and keeps none of them", func() {
			right()
			w.add(conf)
			Expect(w.dir).NotTo(BeADirectory())
			w.ok("CHECK", call{keys: conf})
			w.del(conf)
			Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("77"))
		})
		It("changes the interface, and restores that alone; CHECK follows the sysctls", func() {
			right()
			w.add(conf + `,"mtu":1400`)
			Expect(state(w.cont, "eth0")).To(ContainSubstring("mtu 1400"))
			w.cont.SetSysctl("net/core/somaxconn", "78")
			code, msg := w.run("CHECK", call{keys: conf + `,"mtu":1400`}).Error()
			Expect(code).To(Equal(cni.CodeDrift))
			Expect(msg).To(ContainSubstring(`is "78", want "77"`))
			w.del(conf)
			Expect(state(w.cont, "eth0")).To(Equal(untouched))
			Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("78"))
		})
		It("refuses what has no value, and what the allow-list forbids", func() {
			says := func(keys, words string) {
				GinkgoHelper()
				code, msg := w.run("ADD", call{keys: `"sysctlMode":"check","sysctl":` + keys}).Error()
				Expect(code).To(Equal(cni.CodeConfig))
				Expect(msg).To(ContainSubstring(words))
			}
			says(`{"net.ipv4.route.flush":"1"}`, "permission denied")
			says(`{"net.core.nothing":"1"}`, "no such file")
			Expect(os.WriteFile(w.allow, []byte("^net.ipv4"), 0o600)).To(Succeed())
			says(`{"net.core.somaxconn":"4096"}`, "not allowed")
		})
	})

	It("switches allmulti off", func() {
		IP(w.cont, "link set eth0 allmulticast on")
		w.add(`"allmulti":false`)
		Expect(state(w.cont, "eth0")).To(Equal(untouched))
	})

	It("writes a sysctl that can only be written", func() {
		w.add(`"sysctl":{"net.ipv4.route.flush":"1"}`)
		w.ok("CHECK", call{keys: `"sysctl":{"net.ipv4.route.flush":"1"}`})
		Expect(w.del("").Stderr).To(BeEmpty())
	})

	It("writes sysctls where there is no interface", func() {
		c := call{Call: Call{IfName: "eth7"}, keys: `"sysctl":{"net.core.somaxconn":"77"}`}
		w.ok("ADD", c)
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("77"))
		w.ok("DEL", c)
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("4096"))
	})

	It("keeps the values from before in the reference's format, where nobody else can read them", func() {
		w.add(everything)
		Expect(w.backup()).To(Equal("{\n \"mac\": \"02:00:00:00:00:01\",\n \"promisc\": false,\n \"mtu\": 1500,\n" +
			" \"allmulti\": false,\n \"txQLen\": 1000\n}"))
		record := w.record()
		w.Do(func() {
			for path, mode := range map[string]os.FileMode{
				w.dir: 0o700, w.dir + "/..": 0o700, w.records(): 0o700, w.dir + "/one_eth0.json": 0o600, record: 0o600,
			} {
				info := nstest.Must(os.Stat(path))
				Expect(info.Mode().Perm()).To(Equal(mode), path)
			}
		})
	})

	It("makes no backup file of sysctls, which the reference does not know", func() {
		w.add(`"sysctl":{"net.core.somaxconn":"77"}`)
		Expect(w.files()).To(ConsistOf(HavePrefix("record/")))
	})

	It("leaves no file where nothing is asked for", func() {
		w.add(``)
		Expect(w.dir).NotTo(BeADirectory())
	})

	It("a second time keeps what was there first", func() {
		w.add(`"mtu":1400,"sysctl":{"net.core.somaxconn":"77"}`)
		first := w.backup()
		w.add(`"mtu":1300,"sysctl":{"net.core.somaxconn":"78"}`)
		Expect(w.backup()).To(Equal(first))
		w.add(`"txQLen":55`) // another tuning of the same chain
		w.add(`"sysctl":{"net.core.somaxconn":"79"}`)
		Expect(w.backup()).To(Equal("{\n \"mtu\": 1500,\n \"txQLen\": 1000\n}"))
		w.del("")
		w.expectRestored()
	})

	It("forgets a former life of the container", func() {
		w.add(`"mtu":1400`)
		w.cont = nstest.NewNetns()
		w.link(w.cont, "eth0")
		IP(w.cont, "link set eth0 mtu 1450")
		w.add(`"mtu":1300`)
		Expect(w.backup()).To(Equal("{\n \"mtu\": 1450\n}"))
		Expect(w.files()).To(HaveLen(2))
	})

	It("replaces a backup that nobody can read", func() {
		put(w.dir+"/one_eth0.json", "{\n \"mt")
		Expect(w.add(`"mtu":1400`).Stderr).To(ContainSubstring("one_eth0.json: not a backup file: "))
		Expect(w.backup()).To(Equal("{\n \"mtu\": 1500\n}"))
	})

	// whileWaiting runs an ADD that waits for the lock while something happens.
	whileWaiting := func(keys string, happens func()) {
		GinkgoHelper()
		held, info := w.lock()
		done := make(chan Answer, 1)
		go func() {
			defer GinkgoRecover()
			done <- w.run("ADD", call{network: "net2", keys: keys})
		}()
		waiter := fmt.Sprintf(`-> FLOCK .*:%d `, info.Sys().(*syscall.Stat_t).Ino)
		Eventually(os.ReadFile).WithArguments("/proc/locks").
			Should(WithTransform(func(b []byte) string { return string(b) }, MatchRegexp(waiter)))
		happens()
		Expect(held.Unlock()).To(Succeed())
		Expect((<-done).Code).To(BeZero())
	}

	It("looks again once it has the lock", func() {
		w.add(`"txQLen":5`)
		whileWaiting(`"mtu":1400`, func() { IP(w.cont, "link set eth0 mtu 1450") })
		Expect(w.backup()).To(ContainSubstring(`"mtu": 1450`))
	})

	It("notes the interface that there is once it has the lock", func() {
		w.add(`"sysctl":{"net.core.somaxconn":"77"}`)
		whileWaiting(`"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"}`, func() {
			IP(w.cont, "link del eth0")
			w.link(w.cont, "eth0")
		})
		w.ok("DEL", call{network: "net2", prev: "none"})
		Expect(w.cont.Sysctl("net/ipv4/conf/eth0/arp_filter")).To(Equal("0"))
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
		Expect(w.run("ADD", c).Failed(code)).To(Equal(msg + "\n"))
	}

	DescribeTable("before anything is touched", func(keys string, msg string) {
		fails(call{keys: keys}, cni.CodeConfig, msg)
		Expect(w.dir).NotTo(BeADirectory())
	},
		Entry("a sysctl that is not there", `"sysctl":{"net.core.somaxconn":"77","net.core.nothing":"1"}`,
			`sysctl["net.core.nothing"]: "1": no such sysctl in the container's network namespace`),
		Entry("a directory of sysctls", `"sysctl":{"net.core":"77"}`,
			`sysctl["net.core"]: "77": is a directory of sysctls`),
		Entry("a bad value", `"mtu":-3,"sysctl":{"net.core.somaxconn":"77"}`,
			`mtu: -3 is not between 0 and 2147483647`),
		Entry("a MAC address of another length", `"mac":"02:00:00:00:00:00:00:01"`,
			`mac: "02:00:00:00:00:00:00:01": an address of "eth0" has 6 bytes`),
	)

	It("without the interface", func() {
		fails(call{Call: Call{IfName: "eth7"}, keys: `"mtu":1400`}, cni.CodeEnvironment,
			fmt.Sprintf(`CNI_IFNAME "eth7": no such interface in CNI_NETNS %q: Link not found`, w.cont.Path))
	})

	It("with a sysctl that is not allowed", func() {
		put(w.allow, "^net\\.core\\.somaxconn$\n")
		fails(call{keys: `"sysctl":{"net.core.somaxconn":"77","net.ipv4.ip_forward":"1"}`}, cni.CodeConfig,
			fmt.Sprintf(`sysctl["net.ipv4.ip_forward"]: "1": not allowed by %s,`+
				` which allows ["^net\\.core\\.somaxconn$"]`, w.allow))
	})

	DescribeTable("half-way", Label("tuning-restores"), func(keys string, msg string) {
		fails(call{keys: keys}, cni.CodeConfig, msg)
	},
		Entry("at the first sysctl", `"sysctl":{"net.core.somaxconn":"x","net.ipv4.ip_local_port_range":"40000 50000"}`,
			`sysctl["net.core.somaxconn"]: sysctl net.core.somaxconn: write "x": invalid argument`),
		Entry("at the second sysctl",
			`"sysctl":{"net.ipv4.ip_local_port_range":"40000 50000","net.ipv4.conf.IFNAME.arp_filter":"x"}`,
			`sysctl["net.ipv4.conf.IFNAME.arp_filter"]: `+
				`sysctl net.ipv4.conf.eth0.arp_filter: write "x": invalid argument`),
		Entry("at the sysctl of args.cni", `"sysctl":{"net.ipv4.ip_local_port_range":"40000 50000"},`+
			`"args":{"cni":{"sysctl":{"net.core.somaxconn":"x"}}}`,
			`args.cni.sysctl["net.core.somaxconn"]: sysctl net.core.somaxconn: write "x": invalid argument`),
		Entry("at the MTU",
			`"sysctl":{"net.ipv4.ip_local_port_range":"40000 50000","net.ipv4.conf.IFNAME.forwarding":"1"},`+
				`"mac":"02:00:00:00:00:02","promisc":true,"mtu":70000`,
			`mtu: 70000: link "eth0": change: invalid argument: mtu greater than device maximum`),
	)

	DescribeTable("at its very end", func(keys string) {
		a := w.run("ADD", call{Call: Call{Stdout: BrokenPipe{}}, keys: keys})
		Expect(a.Code).To(Equal(1))
		Expect(a.Stderr).To(And(ContainSubstring("broken pipe"), Not(ContainSubstring("roll-back"))))
	},
		Entry("with everything", everything),
		Entry("with the queue length alone", `"txQLen":3`),
		Entry("with allmulti alone", `"allmulti":true`),
		Entry("with promisc alone", `"promisc":true`),
		Entry("with a list of ports", `"sysctl":{"net.ipv4.ip_local_reserved_ports":"80,81"}`),
		Entry("with sysctls that write each other", `"sysctl":{"net.ipv4.conf.all.forwarding":"1",`+
			`"net.ipv4.conf.IFNAME.forwarding":"0","net.ipv4.ip_forward":"1"}`),
	)
})

var _ = Describe("a second ADD that fails", func() {
	It("leaves the first as it was", func() {
		w := newWorld()
		w.add(`"mtu":1400,"sysctl":{"net.core.somaxconn":"77"}`)
		before, file := w.values(), w.backup()
		a := w.run("ADD", call{Call: Call{Stdout: BrokenPipe{}}, keys: `"mac":"02:00:00:00:00:02","mtu":1300,` +
			`"sysctl":{"net.core.somaxconn":"78"}`})
		Expect(a.Code).To(Equal(1))
		Expect(w.values()).To(Equal(before))
		Expect(w.backup()).To(Equal(file))
		w.del("")
		Expect(w.values()).To(HavePrefix(untouched + "\nnet/core/somaxconn=4096"))
	})

	It("leaves the reference's backup as it was", func() {
		w := newWorld()
		text := "{\n \"mac\": \"02:00:00:00:00:09\",\n \"mtu\": 1450\n}"
		put(w.dir+"/one_eth0.json", text)
		Expect(w.run("ADD", call{Call: Call{Stdout: BrokenPipe{}}, keys: `"mtu":1300,"txQLen":5`}).Code).To(Equal(1))
		Expect(w.backup()).To(Equal(text))
		Expect(w.files()).To(HaveLen(1))
	})
})

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

	It("is not well where the allow-list is broken, or forbids a sysctl", func() {
		put(w.allow, "net\n(")
		Expect(status(everything).Failed(cni.CodeUnavailable)).To(ContainSubstring(`line "("`))
		put(w.allow, "^net\\.core\\.x$")
		Expect(status(everything).Failed(cni.CodeUnavailable)).
			To(HavePrefix(`sysctl["net.ipv4.conf.IFNAME.arp_filter"]: "1": not allowed by `))
		Expect(status(`"mtu":1400`)).To(Equal(Answer{}))
	})

	It("is not well where dataDir cannot be written", func() {
		w.Cmd("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", "/run/lock")
		for _, dir := range []string{"/run/lock", "/run/lock/a/b"} {
			Expect(status(`"mtu":1400,"dataDir":"`+dir+`"`).Failed(cni.CodeUnavailable)).To(HavePrefix("dataDir: "),
				dir)
		}
		Expect(status(`"dataDir":"/run/lock"`)).To(Equal(Answer{}))
		checks := `"sysctlMode":"check","sysctl":{"net.core.somaxconn":"77"},"dataDir":"/run/lock"`
		Expect(status(checks)).To(Equal(Answer{}), "nothing is kept")
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
			To(And(ContainSubstring(`interface "eth0": is missing`), ContainSubstring(`arp_filter`)))
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
