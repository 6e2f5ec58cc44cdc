package hostlocal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/ranges"
)

// model is a simple implementation of the expected state of the directory after calls of either program.
type model struct {
	sets  []ranges.Set
	last  []netip.Addr
	files map[netip.Addr]string
}

func (m *model) holds(owner string) bool {
	return slices.Contains(slices.Collect(maps.Values(m.files)), owner)
}

// add returns the expected addresses, or nil if ADD must fail.
func (m *model) add(owner string, byReference bool) []string {
	if m.holds(owner) {
		return nil
	}
	var took []netip.Addr
	for i, set := range m.sets {
		for a := range set.Candidates(m.last[i]) {
			if m.files[a] == "" {
				took = append(took, a)
				break
			}
		}
		if len(took) == i {
			if byReference { // it has already written the last addresses
				copy(m.last, took)
			}
			return nil
		}
	}
	var words []string
	for i, a := range took {
		m.last[i], m.files[a] = a, owner
		words = append(words, a.String())
	}
	return words
}

func (m *model) names() map[string]string {
	names := map[string]string{}
	for a, o := range m.files {
		names[a.String()] = o
	}
	return names
}

var _ = Describe("host-local and", func() {
	for _, ref := range nstest.QuickReferences() {
		Context(ref.Name, func() { besideReference(ref) })
	}
})

func besideReference(ref nstest.Reference) {
	// programs are this plugin and the reference plugin.
	programs := func(n network) []func(Call) Answer {
		return []func(Call) Answer{n.Exec, func(c Call) Answer { return n.Reference(ref, c) }}
	}

	It("assign, in one directory, the addresses that one plugin would assign", Label("leases-shared"), func() {
		random, seed := dice()
		n := newNetwork(`"ranges": [[{"subnet": "10.1.2.0/28"}, {"subnet": "10.1.9.0/29", "gateway": "10.1.9.3"}],
			[{"subnet": "2001:db8::/64", "rangeStart": "2001:db8::5", "rangeEnd": "2001:db8::16"}]]`)
		n.version = "1.0.0"
		m := &model{last: make([]netip.Addr, 2), files: map[netip.Addr]string{}, sets: []ranges.Set{
			set("10.1.2.0/28", "10.1.9.0/29 gw 10.1.9.3"), set("2001:db8::/64 2001:db8::5-2001:db8::16")}}
		steps := 500
		if nstest.Quick() {
			steps = 150
		}
		for step := range steps {
			who := random.IntN(2)
			run := programs(n)[who]
			c := n.call("", fmt.Sprint("c", random.IntN(24)))
			c.IfName = fmt.Sprint("eth", random.IntN(2))
			owner := ownerText(c.ID, c.IfName)
			at := fmt.Sprintf("seed %d, step %d, program %d", seed, step, who)
			switch random.IntN(7) {
			case 0, 1, 2:
				c.Command = "ADD"
				want := m.add(owner, who == 1)
				a := run(c)
				if want == nil {
					Expect(a.Code).NotTo(BeZero(), at)
					break
				}
				Expect(addresses(a.Added())).To(Equal(want), at)
			case 3, 4:
				c.Command = "DEL"
				maps.DeleteFunc(m.files, func(_ netip.Addr, o string) bool { return o == owner })
				Expect(run(c).Code).To(BeZero(), at)
			case 5:
				c.Command = "CHECK"
				Expect(run(c).Code == 0).To(Equal(m.holds(owner)), at)
			case 6: // an administrator, without the lock
				a := netip.AddrFrom4([4]byte{10, 1, 2, byte(2 + random.IntN(12))})
				switch {
				case m.files[a] == "":
					n.write(a.String(), "word")
					m.files[a] = "word"
				case m.files[a] == "word":
					Expect(os.Remove(n.path(a.String()))).To(Succeed())
					delete(m.files, a)
				}
			}
			Expect(n.leases()).To(Equal(m.names()), at)
		}
	})

	elsewhere, otherFamily := "accepted", "ours differs"
	if ref == nstest.Newest() { // it refuses a gateway outside the subnet
		elsewhere, otherFamily = "ours differs", "refused"
	}
	DescribeTable("agree, except on known differences, about", func(accepted, ipam, keys, args string) {
		var got []string
		for i := range 2 {
			n := newNetwork(ipam)
			n.version = "1.0.0"
			if keys != "" {
				n = n.withKeys(keys)
			}
			c := n.call("ADD", "c1")
			c.Args = args
			a := programs(n)[i](c)
			answer := "refused"
			if a.Code == 0 {
				var r struct{ IPs, Routes any }
				Expect(json.Unmarshal([]byte(a.Stdout), &r)).To(Succeed())
				answer = fmt.Sprint(r, n.leases())
			} else {
				Expect(n.leases()).To(BeEmpty())
			}
			got = append(got, answer)
		}
		if accepted == "ours differs" {
			Expect(got[0]).NotTo(Equal(got[1]))
			return
		}
		Expect(got[0]).To(Equal(got[1]))
		Expect(got[0] != "refused").To(Equal(accepted == "accepted"))
	},
		Entry("one range", "accepted", slash24, "", ""),
		Entry("the old form", "accepted",
			`"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.7", "rangeEnd": "10.1.2.9", "gateway": "10.1.2.8"`, "", ""),
		Entry("both forms", "accepted", `"subnet": "10.1.3.0/24", `+slash24, "", ""),
		Entry("both forms and the runtime's", "accepted", `"subnet": "10.1.3.0/24", `+slash24,
			`"runtimeConfig": {"ipRanges": [[{"subnet": "2001:db8::/64"}]]}`, ""),
		Entry("a start in addition to ranges", "accepted", `"rangeStart": "10.1.3.1", `+slash24, "", ""),
		Entry("the network's address",
			"accepted", `"ranges": [[{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.0"}]]`, "", ""),
		Entry("the broadcast address", "accepted",
			`"ranges": [[{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.255", "rangeEnd": "10.1.2.255"}]]`, "", ""),
		Entry("a gateway outside the subnet",
			elsewhere, `"ranges": [[{"subnet": "10.1.2.0/24", "gateway": "192.0.2.1"}]]`, "", ""),
		Entry("a gateway that is the only address",
			"refused", `"ranges": [[{"subnet": "10.1.2.0/24", "rangeEnd": "10.1.2.1"}]]`, "", ""),
		Entry("a /30", "accepted", `"ranges": [[{"subnet": "10.1.2.0/30"}]]`, "", ""),
		Entry("a /31", "refused", `"ranges": [[{"subnet": "10.1.2.0/31"}]]`, "", ""),
		Entry("a /126", "accepted", `"ranges": [[{"subnet": "2001:db8::/126"}]]`, "", ""),
		Entry("host bits", "refused", `"ranges": [[{"subnet": "10.1.2.1/24"}]]`, "", ""),
		Entry("an empty set", "refused", `"ranges": [[]]`, "", ""),
		Entry("mixed families",
			"refused", `"ranges": [[{"subnet": "10.1.2.0/24"}, {"subnet": "2001:db8::/64"}]]`, "", ""),
		Entry("an overlap",
			"refused", `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.2.0/25"}]]`, "", ""),
		Entry("one subnet in two ranges", "accepted",
			`"ranges": [[{"subnet": "10.1.2.0/24", "rangeEnd": "10.1.2.99"},
				{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.200"}]]`,
			"", ""),
		Entry("keys in another case",
			"accepted", `"Ranges": [[{"Subnet": "10.1.2.0/24", "RANGESTART": "10.1.2.9"}]]`, "", ""),
		Entry("routes",
			"accepted", slash24+`, "routes": [{"dst": "10.0.0.5/8", "gw": "10.1.2.9"}, {"dst": "::/0"}]`, "", ""),
		Entry("a route without a destination", "ours differs", slash24+`, "routes": [{"gw": "10.1.2.9"}]`, "", ""),
		Entry("a requested address in CNI_ARGS", "accepted", slash24, "", "IP=10.1.2.9"),
		Entry("one with a prefix length", "accepted", slash24, "", "IP=10.1.2.9/8"),
		Entry("one with unknown arguments", "refused", slash24, "", "IP=10.1.2.9;FOO=1"),
		Entry("one with unknown arguments, ignored", "accepted", slash24, "", "IP=10.1.2.9;FOO=1;IgnoreUnknown=1"),
		Entry("one in two places", "accepted", `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "2001:db8::/64"}]]`,
			`"args": {"cni": {"ips": ["10.1.2.9"]}}, "runtimeConfig": {"ips": ["2001:db8::9", "10.1.2.9"]}`, ""),
		Entry("a requested address outside", "refused", slash24, `"runtimeConfig": {"ips": ["10.1.3.9"]}`, ""),
		Entry("a request for the gateway", "refused", slash24, `"runtimeConfig": {"ips": ["10.1.2.1"]}`, ""),
		Entry("two requests in a set", "refused", slash24, `"runtimeConfig": {"ips": ["10.1.2.9", "10.1.2.8"]}`, ""),
		Entry("a missing resolv.conf", "refused", slash24+`, "resolvConf": "/none"`, "", ""),
		Entry("a gateway of the other family", otherFamily,
			`"ranges": [[{"subnet": "10.1.2.0/24", "gateway": "2001:db8::1"}]]`, "", ""))

	if ref == nstest.Newest() { // older releases have no GC
		It("keep valid leases of the other in GC, and continue to assign addresses", func() {
			n := newNetwork(slash24)
			ours := n.add("one", "stale")
			valid := n.withKeys(`"cni.dev/valid-attachments": [{"containerID": "one", "ifname": "eth0"}]`)
			Expect(n.Reference(ref, valid.call("GC", "")).Code).To(BeZero())
			Expect(n.leases()).To(Equal(map[string]string{ours[0]: "one\r\neth0"}))
			n.succeeds("CHECK", "one")
			Expect(n.add("two")).NotTo(ContainElement(ours[0]))
			for _, id := range []string{"three", "four"} {
				n.Reference(ref, n.call("ADD", id)).Added()
			}
			n.gc("one", "three")
			Expect(n.Reference(ref, n.call("CHECK", "three")).Code).To(BeZero())
			Expect(n.leases()).To(HaveLen(2))
			n.succeeds("DEL", "one", "three")
			Expect(n.leases()).To(BeEmpty())
		})

		It("differ in GC: only the reference's removes reservations, and all leases without a list", func() {
			for i, keeps := range []bool{true, false} {
				n := newNetwork(slash24)
				n.add("one")
				n.write("10.1.2.50", "reserved for the printer")
				for _, valid := range []network{n.withKeys(`"cni.dev/valid-attachments": [{"containerID": "one",
					"ifname": "eth0"}]`), n} {
					before := n.leases()
					Expect(programs(n)[i](valid.call("GC", "")).Code).To(BeZero())
					if keeps {
						Expect(n.leases()).To(Equal(before))
						continue
					}
					Expect(n.leases()).To(HaveLen(len(before) - 1))
				}
			}
		})

		It("differ in DEL: only the reference's keeps a lease if the gateway is outside the subnet", func() {
			n := newNetwork(`"ranges": [[{"subnet": "10.1.2.0/24", "gateway": "169.254.1.1"}]]`)
			n.version = "1.0.0"
			n.add("one")
			Expect(n.Reference(ref, n.call("DEL", "one")).Code).NotTo(BeZero())
			Expect(n.leases()).To(HaveLen(1))
			n.succeeds("DEL", "one")
			Expect(n.leases()).To(BeEmpty())
		})
	}

	It("share the lock", func() {
		n := newNetwork(slash24)
		n.version = "1.0.0"
		seen := map[string]bool{}
		call := func(who int, command string, i int) Answer {
			return programs(n)[who](n.call(command, fmt.Sprint("c", i)))
		}
		for _, a := range inParallel(100, func(i int) Answer { return call(i%2, "ADD", i) }) {
			seen[addresses(a.Added())[0]] = true
		}
		Expect(seen).To(HaveLen(100))
		for _, a := range inParallel(100, func(i int) Answer { return call((i+1)%2, "DEL", i) }) {
			Expect(a.Code).To(BeZero(), a.Stdout)
		}
		Expect(n.leases()).To(BeEmpty())
	})
}

func inParallel(n int, do func(i int) Answer) []Answer {
	answers := make([]Answer, n)
	nstest.AtOnce(n, func(i int) { answers[i] = do(i) })
	return answers
}

var _ = Describe("in parallel,", func() {
	It("200 processes on a /24 get 200 addresses", Label("parallel"), func() {
		n := newNetwork(slash24)
		seen := map[string]bool{}
		for _, a := range inParallel(200, func(i int) Answer { return n.Exec(n.call("ADD", fmt.Sprint("c", i))) }) {
			seen[addresses(a.Added())[0]] = true
		}
		Expect(seen).To(HaveLen(200))
		Expect(n.leases()).To(HaveLen(200))
		for _, a := range inParallel(200, func(i int) Answer { return n.Exec(n.call("DEL", fmt.Sprint("c", i))) }) {
			Expect(a).To(Equal(Answer{}))
		}
		Expect(n.leases()).To(BeEmpty())
	})

	It("a call waits for the lock until its deadline, and names the holder", Label("nft-lock"), func() {
		n := newNetwork(slash24)
		n.write("lock", "")
		defer flock(n.path("lock"))()
		c := n.call("ADD", "c1")
		c.Ctx = nstest.DeadlineWhen(func() bool {
			return strings.Contains(string(nstest.Must(os.ReadFile("/proc/locks"))), "-> FLOCK")
		})
		comm := nstest.Must(os.ReadFile("/proc/self/comm"))
		Expect(n.Fails(c, cni.CodeTryAgain)).To(ContainSubstring(
			"%s: held by process %d (%s)", n.path("lock"), os.Getpid(), strings.TrimSpace(string(comm))))
	})
})

// command returns a call of the built plugin that is not started yet.
func (n network) command(name, id string) *exec.Cmd {
	GinkgoHelper()
	c := n.call(name, id)
	cmd := exec.Command(nstest.Build("host-local"))
	cmd.Env, cmd.Stdin = c.Vars(n.World), strings.NewReader(c.Stdin())
	return cmd
}

var _ = Describe("after kills at any point,", func() {
	// kill starts ADDs and DELs, kills most of them, and returns the addresses of the containers whose ADD succeeded.
	kill := func(n network, seed uint64) map[string]string {
		GinkgoHelper()
		random := rand.New(rand.NewPCG(seed, seed))
		told := map[string]string{}
		for i := range 150 {
			name, id := "ADD", fmt.Sprint("c", i)
			if i%3 == 2 {
				name, id = "DEL", fmt.Sprint("c", i-1)
				delete(told, id)
			}
			cmd := n.command(name, id)
			var out bytes.Buffer
			cmd.Stdout = &out
			Expect(cmd.Start()).To(Succeed())
			<-time.After(time.Duration(500+random.IntN(4000)) * time.Microsecond)
			_ = cmd.Process.Kill()
			if cmd.Wait() == nil && name == "ADD" {
				told[id] = strings.Join(addresses(Answer{Stdout: out.String()}.Added()), " ")
			}
		}
		return told
	}
	verify := func(n network, told map[string]string, seed uint64) {
		GinkgoHelper()
		files := n.leases()
		for id, list := range told {
			for _, addr := range strings.Fields(list) {
				Expect(files).To(HaveKeyWithValue(addr, id+"\r\neth0"), "seed %d", seed)
			}
			n.succeeds("CHECK", id)
		}
		for name, content := range files {
			if strings.HasPrefix(name, ".") && strings.HasSuffix(name, ".tmp") {
				continue // temporary file of the last killed call, which the next call removes
			}
			Expect(content).To(MatchRegexp(`^c\d+\r\neth0$`), name)
		}
	}
	two := `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "2001:db8::/64"}]]`

	It("no address is assigned twice, and DEL releases each", Label("killed"), func() {
		seed := uint64(GinkgoRandomSeed())
		n := newNetwork(two)
		verify(n, kill(n, seed), seed)
		for i := range 150 {
			n.succeeds("DEL", fmt.Sprint("c", i))
		}
		Expect(n.leases()).To(BeEmpty())
	})
})

var _ = Describe("the cost of a call", func() {
	// count returns the number of reads and writes of a call, as counted by the kernel.
	count := func(cmd *exec.Cmd) int {
		GinkgoHelper()
		Expect(cmd.Start()).To(Succeed())
		var info unix.Siginfo
		Expect(unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil)).To(Succeed())
		counters := nstest.Must(os.ReadFile(fmt.Sprintf("/proc/%d/io", cmd.Process.Pid)))
		Expect(cmd.Wait()).To(Succeed())
		var bytes, reads, writes int
		Expect(fmt.Sscanf(string(counters), "rchar: %d\nwchar: %d\nsyscr: %d\nsyscw: %d", &bytes, &bytes, &reads,
			&writes)).To(Equal(4))
		Expect(reads + writes).To(BeNumerically(">", 5))
		return reads + writes
	}

	// filled creates leases of many owners, beginning with an address.
	filled := func(ipam, from string, size int) network {
		GinkgoHelper()
		n := networkIn(tmpfs(0, ""), ipam)
		addr := netip.MustParseAddr(from)
		for i := range size {
			n.write(addr.String(), "other"+strconv.Itoa(i)+"\r\neth0")
			addr = addr.Next()
		}
		return n
	}

	It("is the same with 10 and with 20,000 leases", Label("leases-cost"), func() {
		costs := map[string][]int{}
		for _, size := range []int{10, 20_000} {
			n := filled(`"ranges": [[{"subnet": "10.0.0.0/16"}], [{"subnet": "2001:db8::/64"}]]`, "10.0.0.2", size)
			Expect(n.command("ADD", "first").Run()).To(Succeed()) // reads the directory
			for _, command := range []string{"ADD", "CHECK", "STATUS", "DEL", "DEL"} {
				costs[command] = append(costs[command], count(n.command(command, "c1")))
			}
		}
		AddReportEntry("reads and writes", costs)
		for command, n := range costs {
			half := len(n) / 2
			for i := range half {
				Expect(n[half+i]).To(BeNumerically("~", n[i], 8), "%s: %v", command, n)
			}
		}
	})

	It("does not grow if the only free address is tried last", func() {
		n := filled(`"ranges": [[{"subnet": "10.0.0.0/19"}]]`, "10.0.0.1", 8189) // all but .31.254
		n.write("last_reserved_ip.0", "10.0.0.1")
		n.succeeds("CHECK", "other1") // reads the directory
		Expect(count(n.command("ADD", "c1"))).To(BeNumerically("<", 100))
		n.succeeds("CHECK", "c1")
		Expect(n.path("10.0.31.254")).To(BeARegularFile())
	})

	It("does not grow if STATUS finds no free address, or only one", Label("leases-cost"), func() {
		n := filled(`"ranges": [[{"subnet": "10.0.0.0/19"}]]`, "10.0.0.2", 8189)
		n.succeeds("CHECK", "other1") // reads the directory
		Expect(n.Call(n.call("STATUS", "")).Stderr).To(ContainSubstring("no address is left"))
		Expect(count(n.command("STATUS", ""))).To(BeNumerically("<", 100))
		n.succeeds("DEL", "other8000")
		Expect(n.Call(n.call("STATUS", ""))).To(Equal(Answer{}))
		Expect(count(n.command("STATUS", ""))).To(BeNumerically("<", 100))
	})
})
