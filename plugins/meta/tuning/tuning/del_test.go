package tuning

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

var _ = Describe("DEL", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("restores everything, and does it again", Label("tuning-restores"), func() {
		before := w.cont.Snapshot() + w.values()
		w.add(everything)
		Expect(w.cont.Snapshot() + w.values()).NotTo(Equal(before))
		Expect(w.del("").Stderr).To(BeEmpty())
		Expect(w.cont.Snapshot() + w.values()).To(Equal(before))
		Expect(w.files()).To(BeEmpty())
		Expect(w.del("").Stderr).To(BeEmpty())
	})

	It("before ADD does nothing", func() {
		w.del(everything)
		Expect(w.values()).To(HavePrefix(untouched))
		Expect(w.dir).NotTo(BeADirectory())
	})

	It("where dataDir is no directory has nothing to do", func() {
		put(w.dir+"/x", "")
		w.dir += "/x"
		w.del("")
	})

	It("restores sysctls that write each other", func() {
		w.cont.SetSysctl("net/ipv4/conf/eth0/forwarding", "1")
		before := w.cont.Snapshot("sysctls")
		// "all" was written last and must be restored first, because it also changes eth0.
		w.add(`"sysctl":{"net.ipv4.conf.IFNAME.forwarding":"0","net.ipv4.conf.all.forwarding":"1"}`)
		w.del("")
		Expect(w.cont.Snapshot("sysctls")).To(Equal(before))
	})

	DescribeTable("forgets a container that is gone", func(netns string, unpin bool) {
		w.add(everything)
		if unpin {
			w.cont.Unpin()
		}
		Expect(w.ok("DEL", call{Call: Call{Netns: netns}, prev: "none"}).Stderr).To(BeEmpty())
		Expect(w.files()).To(BeEmpty())
	},
		Entry("with CNI_NETNS empty", "none", false),
		Entry("with its path gone", "", true),
		Entry("with a path that never was", "/nowhere/at/all", false),
	)

	It("without the interface restores the sysctls that are still there", func() {
		w.add(everything)
		IP(w.cont, "link del eth0")
		Expect(w.del("").Stderr).To(BeEmpty())
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("4096"))
		Expect(w.files()).To(BeEmpty())
	})

	It("leaves another interface of the same name alone", func() {
		w.add(everything)
		IP(w.cont, "link del eth0")
		w.link(w.cont, "eth0")
		IP(w.cont, "link set eth0 mtu 1300")
		w.cont.SetSysctl("net/ipv4/conf/eth0/arp_filter", "1")
		w.del("")
		Expect(state(w.cont, "eth0")).To(Equal(firstMAC + " mtu 1300 txqlen 1000"))
		Expect(w.cont.Sysctl("net/ipv4/conf/eth0/arp_filter")).To(Equal("1"))
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("4096"))
	})

	It("leaves a container alone to which the path leads by now", Label("tuning-restores"), func() {
		w.add(everything)
		old := w.cont
		w.cont = nstest.NewNetns()
		w.link(w.cont, "eth0")
		w.ok("ADD", call{Call: Call{ID: "two"}, keys: everything})
		before := w.cont.Snapshot() + w.values()
		w.del(everything) // one's, with two's path
		Expect(w.cont.Snapshot() + w.values()).To(Equal(before))
		Expect(w.files()).To(HaveLen(2))
		Expect(state(old, "eth0")).NotTo(Equal(untouched))
		w.ok("DEL", call{Call: Call{ID: "two"}})
		Expect(w.values()).To(HavePrefix(untouched))
	})

	DescribeTable("before Linux 5.14 knows its namespace by the MAC address, too", Label("tuning-restores"), func(
		ifName string,
	) {
		exec := func(command, keys string) {
			GinkgoHelper()
			a := w.ExecWithoutCookie(w.call(call{Call: Call{Command: command}, keys: keys}))
			Expect(a.Code).To(BeZero(), "%+v", a)
		}
		exec("ADD", everything)
		exec("DEL", "")
		w.expectRestored()

		By("leaving another one alone that got its inode")
		exec("ADD", everything)
		old := w.cont
		w.cont = nstest.NewNetns()
		w.link(w.cont, ifName)
		w.cont.SetSysctl("net/core/somaxconn", "99")
		before := w.cont.Snapshot()
		w.ReuseInode(w.records(), old, w.cont)
		exec("DEL", "")
		Expect(w.cont.Snapshot()).To(Equal(before))
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("99"))
		Expect(w.files()).To(BeEmpty())
	},
		Entry("with an interface of another address", "eth0"),
		Entry("without the interface", "eth1"),
	)

	It("restores what was added under the network's former name", func() {
		w.add(everything)
		w.ok("DEL", call{network: "renamed", prev: "none"})
		w.expectRestored()
	})

	It("repeated for a network without an interface leaves another network's interface alone", func() {
		w.add(everything)
		before := w.values()
		w.ok("DEL", call{network: "former", prev: `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0",` +
			`"mac":"02:00:00:00:00:99","sandbox":"/run/netns/one"}]}`})
		Expect(w.values()).To(Equal(before))
		Expect(w.files()).To(HaveLen(2))
	})

	It("of a network that none of two attachments has leaves both alone", func() {
		w.add(everything)
		w.ok("ADD", call{network: "net2", keys: `"mtu":1300`})
		before := w.values()
		w.ok("DEL", call{network: "renamed", prev: "none"})
		Expect(w.values()).To(Equal(before))
		Expect(w.files()).To(HaveLen(2))
	})

	DescribeTable("does not need the rest of the configuration", func(keys, args, prev string) {
		w.add(everything)
		w.ok("DEL", call{Call: Call{Args: args}, keys: keys, prev: prev})
		Expect(w.values()).To(HavePrefix(untouched))
		Expect(w.files()).To(BeEmpty())
	},
		Entry("none of it", ``, "", "none"),
		Entry("wrong types", `"mtu":"x","sysctl":[],"promisc":7,"args":5,"runtimeConfig":"x"`, "", "none"),
		Entry("wrong values", `"mac":"x","sysctl":{"kernel/x":"1"}`, "", "none"),
		Entry("wrong arguments", ``, "MAC=x;nonsense", "none"),
		Entry("a prevResult that cannot be read", ``, "", `{"interfaces":7}`),
	)

	DescribeTable("survives what became of the files", func(record, backup string) {
		w.add(everything)
		files := map[string]string{w.record(): record, w.dir + "/one_eth0.json": backup}
		w.Do(func() {
			for path, content := range files {
				switch content {
				case "same":
				case "gone":
					Expect(os.Remove(path)).To(Succeed())
				default:
					put(path, content)
				}
			}
		})
		w.del("")
		if record == "same" {
			Expect(w.values()).To(HavePrefix(untouched + "\nnet/core/somaxconn=4096"))
		}
		Expect(w.files()).To(BeEmpty())
	},
		Entry("a corrupt backup", "same", "{\n \"mt"),
		Entry("an empty backup", "same", ""),
		Entry("no backup", "same", "gone"),
		Entry("a corrupt record", `{"netns":`, "same"),
		Entry("no record", "gone", "same"),
		Entry("both corrupt", "\x00", "\x00"),
		Entry("neither", "gone", "gone"),
		Entry("values that nobody takes", `{"values":[{"key":"../x"}]}`, `{"mtu":99999999,"mac":"x"}`),
	)

	Describe("of what is in dataDir", Label("tuning-records"), func() {
		const keys = `"mtu":1400,"sysctl":{"net.core.somaxconn":"77"}`
		// inDataDir moves the record to the directory of an earlier release.
		inDataDir := func(change func(text string) string) {
			GinkgoHelper()
			path := w.record()
			w.Do(func() {
				former := formerRecords(w.dir).Path + "/" + filepath.Base(path)
				put(former, change(string(nstest.Must(os.ReadFile(path)))))
			})
		}

		It("ignores records there, because a container may be able to write them", func() {
			w.add(keys)
			Expect(w.files()).To(ConsistOf(HavePrefix("record/"), "one_eth0.json"))
			inDataDir(func(text string) string {
				return replace(replace(text, `"4096"`, `"1"`), `"77"`, `"77","unknown":"x"`)
			})
			w.del("")
			w.expectRestored()
			w.del("")
			By("without a record of its own")
			w.add(keys)
			inDataDir(func(text string) string { return replace(text, `"4096"`, `"1"`) })
			path := w.record()
			w.Do(func() { Expect(os.Remove(path)).To(Succeed()) })
			w.ok("DEL", call{keys: keys}) // by the backup file, as the reference does
			Expect(w.values()).To(HavePrefix(untouched + "\nnet/core/somaxconn=77"))
			Expect(w.files()).To(BeEmpty())
		})

		It("needs nothing", func() {
			w.add(keys)
			Expect(os.RemoveAll(w.dir)).To(Succeed())
			w.del("")
			w.expectRestored()
			Expect(w.dir).NotTo(BeADirectory())
		})

		It("follows the records of an earlier release in the usual directory", func() {
			w.dir = defaultDataDir
			w.add(keys)
			var record struct {
				Changes []struct{ Netns json.RawMessage }
			}
			index, _, _ := strings.Cut(IP(w.cont, "-o link show dev eth0"), ":")
			inDataDir(func(text string) string {
				Expect(json.Unmarshal([]byte(text), &record)).To(Succeed())
				const owner = `{"network":"net1","containerID":"one","ifname":"eth0"}`
				return fmt.Sprintf(`{"netns":%s,"macs":{"eth0":%q},"values":[`+
					`{"key":"net.core.somaxconn","value":"4096","for":[%s,%s]},`+
					`{"key":"mtu","value":"1500","link":%s,"for":[%s]}]}`, record.Changes[0].Netns, firstMAC,
					owner, strings.Replace(owner, "net1", "net2", 1), index, owner)
			})
			path := w.record()
			w.Do(func() { Expect(os.Remove(path)).To(Succeed()) })
			Expect(w.Holdings(w.call(call{}).Stdin())).To(HaveLen(2))
			w.del("")
			Expect(w.values()).To(HavePrefix(untouched+"\nnet/core/somaxconn=77"), "net2 has changed it, too")
			Expect(w.files()).To(ConsistOf(HavePrefix("record/")))
			w.ok("DEL", call{network: "net2", prev: "none"})
			w.expectRestored()
		})
	})

	It("says what cannot be restored, and goes on", func() {
		w.add(`"mtu":1400,"sysctl":{"net.ipv4.ip_local_port_range":"40000 50000","net.core.somaxconn":"77"}`)
		w.editRecord(func(text string) string {
			return replace(replace(text, `"1500"`, `"70000"`), `"32768\t60999"`, `"x"`)
		})
		Expect(w.del("").Stderr).To(And(ContainSubstring("restore mtu: 70000: "),
			ContainSubstring(`restore sysctl net.ipv4.ip_local_port_range: write "x": invalid argument`)))
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("4096"))
		Expect(w.files()).To(BeEmpty())
	})
})

var _ = Describe("a backup of other software", func() {
	const keys = `"mac":"02:00:00:00:00:02","mtu":1400`
	var w *world
	BeforeEach(func() {
		w = newWorld()
		put(w.dir+"/one_eth0.json", "{\n \"mac\": \"02:00:00:00:00:01\",\n \"mtu\": 1500\n}")
		IP(w.cont, "link set eth0 mtu 1400 address "+otherMAC)
	})

	DescribeTable("is restored", func(keys, prev string) {
		w.ok("DEL", call{keys: keys, prev: prev})
		Expect(state(w.cont, "eth0")).To(Equal(untouched))
		Expect(w.files()).To(BeEmpty())
	},
		Entry("where prevResult has the interface's address", ``,
			`{"interfaces":[{"name":"eth0","mac":"02:00:00:00:00:02","sandbox":"/x"}]}`),
		Entry("where all is as configured", keys, "none"),
		Entry("where prevResult says nothing", keys, `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.1/24"}}`),
	)

	DescribeTable("is only forgotten", func(keys, prev string) {
		w.ok("DEL", call{keys: keys, prev: prev})
		Expect(state(w.cont, "eth0")).To(Equal(otherMAC + " mtu 1400 txqlen 1000"))
		Expect(w.files()).To(BeEmpty())
	},
		Entry("where prevResult has another address", keys,
			`{"interfaces":[{"name":"eth0","mac":"02:00:00:00:00:03","sandbox":"/x"}]}`),
		Entry("where something is not as configured", `"mac":"02:00:00:00:00:02","mtu":1300`, "none"),
		Entry("where not all is configured", `"mtu":1400`, "none"),
		Entry("where nothing is configured", ``, "none"),
		Entry("where the configuration is refused", `"mac":"x"`, "none"),
	)

	It("is forgotten with the namespace gone", func() {
		w.ok("DEL", call{Call: Call{Netns: "none"}})
		Expect(w.files()).To(BeEmpty())
	})

	It("counts as the first ADD", func() {
		w.add(`"mac":"02:00:00:00:00:05","txQLen":7`)
		Expect(w.backup()).To(Equal("{\n \"mac\": \"02:00:00:00:00:01\",\n \"mtu\": 1500,\n \"txQLen\": 1000\n}"))
		w.del("")
		Expect(state(w.cont, "eth0")).To(Equal(untouched))
	})
})

var _ = Describe("two attachments", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	DescribeTable("of one container are independent", func(first, second string) {
		w.link(w.cont, "eth1")
		keys := map[string]string{"eth0": `"mtu":1400,"sysctl":{"net.core.somaxconn":"77"}`,
			"eth1": `"mtu":1300,"sysctl":{"net.core.somaxconn":"78"}`}
		for _, ifName := range []string{"eth0", "eth1"} {
			w.ok("ADD", call{Call: Call{IfName: ifName}, keys: keys[ifName]})
		}
		w.ok("DEL", call{Call: Call{IfName: first}})
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("78"), "the other has changed it too")
		Expect(state(w.cont, first)).To(Equal(untouched))
		Expect(state(w.cont, second)).NotTo(Equal(untouched))
		w.ok("DEL", call{Call: Call{IfName: second}})
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("4096"))
		Expect(state(w.cont, second)).To(Equal(untouched))
		Expect(w.files()).To(BeEmpty())
	},
		Entry("the last goes first", "eth1", "eth0"), Entry("the first goes first", "eth0", "eth1"),
	)

	DescribeTable("of two networks on one interface share what was there before", func(first, second, between string) {
		keys := map[string]string{"net1": `"mtu":1400,"mac":"02:00:00:00:00:02"`, "net2": `"mtu":1300,"txQLen":5`}
		w.ok("ADD", call{network: "net1", keys: keys["net1"]})
		w.ok("ADD", call{network: "net2", keys: keys["net2"]})
		Expect(w.backup()).To(Equal("{\n \"mac\": \"02:00:00:00:00:01\",\n \"mtu\": 1500,\n \"txQLen\": 1000\n}"))
		w.ok("DEL", call{network: first})
		Expect(state(w.cont, "eth0")).To(Equal(between))
		Expect(w.backup()).To(ContainSubstring(`"mtu": 1500`))
		w.ok("DEL", call{network: second})
		Expect(state(w.cont, "eth0")).To(Equal(untouched))
		Expect(w.files()).To(BeEmpty())
	},
		Entry("the last goes first", "net2", "net1", otherMAC+" mtu 1300 txqlen 1000"),
		Entry("the first goes first", "net1", "net2", firstMAC+" mtu 1300 txqlen 5"),
	)

	It("at the same time do not fail because of each other, and all is restored", func() {
		all := func(command string) {
			GinkgoHelper()
			nstest.AtOnce(12, func(n int) {
				w.ok(command, call{network: fmt.Sprintf("net%d", n), keys: fmt.Sprintf(
					`"mtu":%d,"txQLen":%d,"sysctl":{"net.core.somaxconn":"%d"}`, 1300+n, n, 100+n)})
			})
		}
		all("ADD")
		Expect(w.backup()).To(Equal("{\n \"mtu\": 1500,\n \"txQLen\": 1000\n}"))
		all("DEL")
		w.expectRestored()
	})
})

var _ = Describe("GC", func() {
	var w *world
	BeforeEach(func() {
		w = newWorld()
		for _, id := range []string{"one", "two"} {
			for _, network := range []string{"net1", "net2"} {
				w.ok("ADD", call{Call: Call{ID: id}, network: network, keys: `"mtu":1400`})
			}
		}
		put(w.dir+"/nine_eth0.json", "{}")
		Expect(w.files()).To(HaveLen(5))
	})
	gc := func(network, valid string) {
		GinkgoHelper()
		Expect(w.ok("GC", call{network: network, keys: `"cni.dev/valid-attachments":` + valid,
			prev: "none"}).Stdout).To(BeEmpty())
	}

	It("keeps what is valid", func() {
		gc("net1", `[{"containerID":"one","ifname":"eth0"},{"containerID":"two","ifname":"eth0"}]`)
		Expect(w.files()).To(HaveLen(5))
	})

	It("removes what is not, of this network alone, and leaves the kernel alone", func() {
		before := w.cont.Snapshot()
		gc("net1", `[{"containerID":"two","ifname":"eth0"},{"containerID":"one","ifname":"eth1"}]`)
		Expect(w.files()).To(HaveLen(5))
		Expect(w.backup()).To(ContainSubstring("1500")) // net2 has its share
		gc("net2", "[]")
		Expect(w.files()).To(ConsistOf(HavePrefix("record/"), "two_eth0.json", "nine_eth0.json"))
		gc("net1", "null")
		Expect(w.files()).To(ConsistOf("nine_eth0.json"))
		Expect(w.cont.Snapshot()).To(Equal(before))
	})

	It("has nothing to do where there is no directory", func() {
		w.dir = filepath.Join(w.dir, "absent")
		gc("net1", "null")
		Expect(w.dir).NotTo(BeADirectory())
	})
})

var _ = Describe("what is recorded of another boot", Label("tuning-reboot"), func() {
	var w *world
	const keys = `"mtu":1400,"sysctl":{"net.core.somaxconn":"77"}`
	BeforeEach(func() {
		w = newWorld()
		w.link(w.cont, "eth1")
		w.add(keys)
		w.ok("ADD", call{Call: Call{IfName: "eth1"}, keys: keys})
		w.editRecord(func(text string) string {
			return strings.ReplaceAll(text, nstest.Must(sysctl.BootID()), "00000000-0000-4000-8000-000000000000")
		})
		// A namespace of this boot may have the same cookie and inode number.
		IP(w.cont, "link set eth0 mtu 1450")
		w.cont.SetSysctl("net/core/somaxconn", "99")
	})

	It("is not restored by DEL", func() {
		before := w.values()
		w.del("")
		Expect(w.values()).To(Equal(before))
		w.ok("DEL", call{Call: Call{IfName: "eth1"}})
		Expect(w.files()).To(BeEmpty())
	})

	It("is nobody's for ADD, whichever interface it is of", func() {
		before := w.values()
		w.add(keys)
		Expect(w.backup()).To(Equal("{\n \"mtu\": 1450\n}"))
		Expect(w.files()).To(ConsistOf(HavePrefix("record/"), "one_eth0.json"))
		w.del("")
		Expect(w.values()).To(Equal(before))
		Expect(w.files()).To(BeEmpty())
	})

	It("is no part of what another attachment of this boot shares", func() {
		w.ok("ADD", call{network: "net2", keys: `"sysctl":{"net.core.somaxconn":"78"}`})
		w.ok("DEL", call{network: "net2"})
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("99"))
	})

	It("is not listed", func() {
		Expect(w.Holdings(w.call(call{}).Stdin())).To(BeEmpty())
	})

	It("does not count in a backup file without a record", func() {
		path, before := w.record(), w.values()
		w.Do(func() { Expect(os.Remove(path)).To(Succeed()) })
		booted := time.Now().Add(-sysctl.Uptime() - time.Minute)
		Expect(os.Chtimes(w.dir+"/one_eth0.json", booted, booted)).To(Succeed())
		w.add(`"mtu":1300`)
		Expect(w.backup()).To(Equal("{\n \"mtu\": 1450\n}"))
		w.del("")
		Expect(w.values()).To(Equal(before))
	})

	It("is dropped by GC, also of a container that is valid", func() {
		w.ok("GC", call{keys: `"cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"},` +
			`{"containerID":"one","ifname":"eth1"}]`, prev: "none"})
		Expect(w.files()).To(BeEmpty())
	})
})

var update = flag.Bool("update", false, "write the golden files anew")

// chain returns a result like bridge's; the host's interface has the container's name.
const chain = `{"cniVersion":"VERSION","interfaces":[
	{"name":"cni0","mac":"02:00:00:00:00:07"},
	{"name":"eth0","mac":"02:00:00:00:00:08"},
	{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"NETNS"},
	{"name":"eth1","mac":"02:00:00:00:00:09","sandbox":"NETNS"}],
	"ips":[{"address":"10.1.2.3/24","gateway":"10.1.2.1","interface":2V4}],
	"routes":[{"dst":"0.0.0.0/0"}],"dns":{"nameservers":["10.1.0.1"]}}`

// exec runs the compiled program.
func (w *world) exec(command string, c call) Answer {
	GinkgoHelper()
	c.Command = command
	return w.Exec(w.call(c))
}

var _ = Describe("the program", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })
	prev := func(version string) string {
		v4 := ""
		if version < "1" {
			v4 = `,"version":"4"`
		}
		return strings.NewReplacer("VERSION", version, "NETNS", w.cont.Path, "V4", v4).Replace(chain)
	}

	DescribeTable("prints the result in version", func(version string) {
		a := w.exec("ADD", call{version: version, prev: prev(version), keys: `"mac":"02-AA-00-00-00-01","mtu":1400`})
		Expect(a.Code).To(BeZero(), "%+v", a)
		Expect(a.Stderr).To(BeEmpty())
		golden, have := filepath.Join("testdata", "add-"+version+".json"), strings.ReplaceAll(a.Stdout, w.cont.Path,
			"NETNS")+"\n"
		if *update {
			Expect(os.WriteFile(golden, []byte(have), 0o644)).To(Succeed())
		}
		want := nstest.Must(os.ReadFile(golden))
		Expect(have).To(Equal(string(want)))
		Expect(state(w.cont, "eth0")).To(Equal("02:aa:00:00:00:01 mtu 1400 txqlen 1000"))
	},
		Entry(nil, "0.3.1"), Entry(nil, "0.4.0"), Entry(nil, "1.0.0"), Entry(nil, "1.1.0"),
	)

	It("reads the administrator's allow-list", func() {
		w.Cmd("mount", "-t", "tmpfs", "tmpfs", "/etc")
		Expect(w.exec("ADD", call{keys: everything}).Code).To(BeZero())
		w.Cmd("mkdir", "-p", "/etc/cni/tuning")
		w.Cmd("sh", "-c", "echo '^net.core.somaxconn$' >/etc/cni/tuning/allowlist.conf")
		Expect(w.exec("ADD", call{keys: `"sysctl":{"net.core.somaxconn":"78"}`}).Code).To(BeZero())
		Expect(w.exec("ADD", call{keys: everything}).Failed(cni.CodeConfig)).
			To(ContainSubstring("not allowed by /etc/cni/tuning/allowlist.conf"))
	})
})

var _ = Describe("beside the reference plugin", func() {
	for _, ref := range nstest.QuickReferences() {
		Context("of "+ref.Name, func() { besideReference(ref) })
	}
})

func besideReference(ref nstest.Reference) {
	// The keys of Debian's version, which never restores sysctls.
	const keys = `"mac":"02:00:00:00:00:02","promisc":true,"mtu":1400,"allmulti":true,` +
		`"sysctl":{"net.core.somaxconn":"77"}`
	type program = func(command string, c call) Answer
	var w *world
	var ours, reference program
	BeforeEach(func() {
		w = newWorld()
		ours = w.exec
		reference = func(command string, c call) Answer {
			c.Command = command
			return w.Reference(ref, w.call(c))
		}
	})
	add := func(by program) string {
		GinkgoHelper()
		a := by("ADD", call{version: "1.0.0", keys: keys})
		Expect(a.Code).To(BeZero(), "%+v", a)
		Expect(state(w.cont, "eth0")).To(HavePrefix(otherMAC + " mtu 1400 "))
		return w.backup()
	}
	del := func(by program, prev string) {
		GinkgoHelper()
		a := by("DEL", call{version: "1.0.0", keys: keys, prev: prev})
		Expect(a.Code).To(BeZero(), "%+v", a)
		Expect(a.Stderr).To(BeEmpty())
	}
	tuned := func() string {
		return `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","mac":"` + strings.ToUpper(otherMAC) +
			`","sandbox":"` + w.cont.Path + `"}]}`
	}

	It("writes the same backup", func() {
		theirs := add(reference)
		del(reference, "none")
		Expect(w.files()).To(BeEmpty())
		Expect(add(ours)).To(Equal(theirs))
	})

	It("restores what the reference changed after it had removed ours with another interface", func() {
		add(ours)
		del(reference, "none")
		IP(w.cont, "link del eth0")
		w.link(w.cont, "eth0")
		IP(w.cont, "link set eth0 mtu 1450")
		add(reference)
		del(ours, tuned())
		Expect(state(w.cont, "eth0")).To(Equal(firstMAC + " mtu 1450 txqlen 1000"))
		Expect(w.files()).To(BeEmpty())
	})

	It("leaves what the reference restores", func() {
		add(ours)
		del(reference, "none")
		Expect(state(w.cont, "eth0")).To(Equal(untouched))
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("77"))
		Expect(w.files()).To(ConsistOf(HavePrefix("record/")))
		del(ours, "none") // and restores what the reference does not
		Expect(w.cont.Sysctl("net/core/somaxconn")).To(Equal("4096"))
		Expect(w.files()).To(BeEmpty())
	})

	It("keeps the reference's originals in a second ADD", func() {
		first := add(reference)
		w.cont.SetSysctl("net/core/somaxconn", "4096")
		second := add(ours)
		Expect(second).To(Equal(first))
		del(ours, tuned())
		Expect(w.values()).To(HavePrefix(untouched + "\nnet/core/somaxconn=4096"))
	})
}

var _ = It("is listed until DEL, and the list changes nothing", func() {
	w := NewWorld(Plugin())
	n := 1
	w.ExpectHeld(func(id, network string) (Call, []string) {
		n++
		a := w.AttachBehind(id, network, Object{"mtu": 1400, "promisc": true,
			"sysctl": Object{"net.ipv4.conf.IFNAME.arp_filter": "1"}}, Addrs(n)...)
		for _, h := range w.Holdings(a.As("DEL").Stdin()) {
			Expect(h.NetnsPath).To(Equal(a.As("DEL").Netns))
		}
		return a.As("DEL"), []string{"setting: mtu 1400 (was 1500)", "setting: promisc true (was false)",
			"setting: net.ipv4.conf.eth0.arp_filter = 1 (was 0)"}
	})
})
