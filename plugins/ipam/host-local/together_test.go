package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// world says what the directory should be after any sequence of calls of
// either program, by the plainest rules.
type world struct {
	sets  []rangeSet
	last  []netip.Addr
	files map[netip.Addr]string
}

func (w *world) holds(owner string) bool {
	for _, o := range w.files {
		if o == owner {
			return true
		}
	}
	return false
}

// next tries one address after the other.
func (w *world) next(set int) (netip.Addr, bool) {
	for _, s := range w.sets[set].after(w.last[set]) {
		for a := s.from; ; a = a.Next() {
			if w.files[a] == "" {
				return a, true
			}
			if a == s.to {
				break
			}
		}
	}
	return netip.Addr{}, false
}

// add returns the addresses to expect, nil for a failure.
func (w *world) add(owner string, byReference bool) []string {
	if w.holds(owner) {
		return nil
	}
	var took []netip.Addr
	for i := range w.sets {
		a, ok := w.next(i)
		if !ok {
			if byReference { // it has written these files by then
				copy(w.last, took)
			}
			return nil
		}
		took = append(took, a)
	}
	var words []string
	for i, a := range took {
		w.last[i], w.files[a] = a, owner
		words = append(words, a.String())
	}
	return words
}

func (w *world) del(owner string) {
	maps.DeleteFunc(w.files, func(_ netip.Addr, o string) bool { return o == owner })
}

func (w *world) names() map[string]string {
	m := map[string]string{}
	for a, o := range w.files {
		m[a.String()] = o
	}
	return m
}

var _ = Describe("beside the reference", func() {
	for _, ref := range nstest.References() {
		Context("of "+ref.Name, func() { besideReference(ref) })
	}
})

func besideReference(ref nstest.Reference) {
	reference := func() string { return ref.Program("host-local") }
	It("gives what one of them alone would have given, whoever is called", func() {
		seed := uint64(GinkgoRandomSeed())
		random := rand.New(rand.NewPCG(seed, seed))
		programs := []string{ours(), reference()}
		n := newNetwork(`"ranges": [[{"subnet": "10.1.2.0/28"}, {"subnet": "10.1.9.0/29", "gateway": "10.1.9.3"}], [{"subnet": "2001:db8::/64", "rangeStart": "2001:db8::5", "rangeEnd": "2001:db8::16"}]]`)
		n.version = "1.0.0"
		w := &world{sets: []rangeSet{set("10.1.2.0/28", "10.1.9.0/29 gw 10.1.9.3"), set("2001:db8::/64 2001:db8::5-2001:db8::16")},
			last: make([]netip.Addr, 2), files: map[netip.Addr]string{}}
		for step := range 500 {
			who := random.IntN(2)
			c := n.call(programs[who], "", fmt.Sprint("c", random.IntN(24)))
			c.ifName = fmt.Sprint("eth", random.IntN(2))
			owner := ownerText(c.id, c.ifName)
			at := fmt.Sprintf("seed %d, step %d, %s", seed, step, c.program)
			switch random.IntN(7) {
			case 0, 1, 2:
				c.command = "ADD"
				want := w.add(owner, who == 1)
				a := c.run()
				if want == nil {
					Expect(a.status).NotTo(BeZero(), at)
					break
				}
				Expect(a.status).To(BeZero(), at+a.out)
				Expect(a.addrs()).To(Equal(want), at)
			case 3, 4:
				c.command = "DEL"
				w.del(owner)
				Expect(c.run().status).To(BeZero(), at)
			case 5:
				c.command = "CHECK"
				Expect(c.run().status == 0).To(Equal(w.holds(owner)), at)
			case 6: // an administrator, without the lock
				a := plus(netip.MustParseAddr("10.1.2.0"), uint64(2+random.IntN(12)))
				switch {
				case w.files[a] == "":
					n.write(a.String(), "word")
					w.files[a] = "word"
				case w.files[a] == "word":
					Expect(os.Remove(n.path(a.String()))).To(Succeed())
					delete(w.files, a)
				}
			}
			Expect(n.leases()).To(Equal(w.names()), at)
		}
	})

	DescribeTable("answers a configuration as the reference does", func(ipam, rest, args, accepted string) {
		var got []string
		for _, program := range []string{ours(), reference()} {
			n := newNetwork(ipam)
			n.version = "1.0.0"
			if rest != "" {
				n = n.with(rest)
			}
			c := n.call(program, "ADD", "c1")
			c.args = args
			a := c.run()
			answer := "refused"
			if a.status == 0 {
				var r struct{ IPs, Routes any }
				Expect(json.Unmarshal([]byte(a.out), &r)).To(Succeed())
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
		Entry("one range", slash24, "", "", "accepted"),
		Entry("the old form", `"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.7", "rangeEnd": "10.1.2.9", "gateway": "10.1.2.8"`, "", "", "accepted"),
		Entry("both forms", `"subnet": "10.1.3.0/24", `+slash24, "", "", "accepted"),
		Entry("and the runtime's", `"subnet": "10.1.3.0/24", `+slash24, `"runtimeConfig": {"ipRanges": [[{"subnet": "2001:db8::/64"}]]}`, "", "accepted"),
		Entry("a start beside ranges", `"rangeStart": "10.1.3.1", `+slash24, "", "", "accepted"),
		Entry("the network's address", `"ranges": [[{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.0"}]]`, "", "", "accepted"),
		Entry("the broadcast address", `"ranges": [[{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.255", "rangeEnd": "10.1.2.255"}]]`, "", "", "accepted"),
		Entry("a gateway elsewhere", `"ranges": [[{"subnet": "10.1.2.0/24", "gateway": "192.0.2.1"}]]`, "", "", "accepted"),
		Entry("a gateway that is the only address", `"ranges": [[{"subnet": "10.1.2.0/24", "rangeEnd": "10.1.2.1"}]]`, "", "", "refused"),
		Entry("a /30", `"ranges": [[{"subnet": "10.1.2.0/30"}]]`, "", "", "accepted"),
		Entry("a /31", `"ranges": [[{"subnet": "10.1.2.0/31"}]]`, "", "", "refused"),
		Entry("a /126", `"ranges": [[{"subnet": "2001:db8::/126"}]]`, "", "", "accepted"),
		Entry("host bits", `"ranges": [[{"subnet": "10.1.2.1/24"}]]`, "", "", "refused"),
		Entry("an empty set", `"ranges": [[]]`, "", "", "refused"),
		Entry("mixed families", `"ranges": [[{"subnet": "10.1.2.0/24"}, {"subnet": "2001:db8::/64"}]]`, "", "", "refused"),
		Entry("an overlap", `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.2.0/25"}]]`, "", "", "refused"),
		Entry("one subnet in two ranges", `"ranges": [[{"subnet": "10.1.2.0/24", "rangeEnd": "10.1.2.99"}, {"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.200"}]]`, "", "", "accepted"),
		Entry("keys in another case", `"Ranges": [[{"Subnet": "10.1.2.0/24", "RANGESTART": "10.1.2.9"}]]`, "", "", "accepted"),
		Entry("routes", slash24+`, "routes": [{"dst": "10.0.0.5/8", "gw": "10.1.2.9"}, {"dst": "::/0"}]`, "", "", "accepted"),
		Entry("a route to nowhere", slash24+`, "routes": [{"gw": "10.1.2.9"}]`, "", "", "ours differs"),
		Entry("an address asked for in CNI_ARGS", slash24, "", "IP=10.1.2.9", "accepted"),
		Entry("with a length", slash24, "", "IP=10.1.2.9/8", "accepted"),
		Entry("with unknown arguments", slash24, "", "IP=10.1.2.9;FOO=1", "refused"),
		Entry("which may be ignored", slash24, "", "IP=10.1.2.9;FOO=1;IgnoreUnknown=1", "accepted"),
		Entry("in two places", `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "2001:db8::/64"}]]`,
			`"args": {"cni": {"ips": ["10.1.2.9"]}}, "runtimeConfig": {"ips": ["2001:db8::9", "10.1.2.9"]}`, "", "accepted"),
		Entry("outside", slash24, `"runtimeConfig": {"ips": ["10.1.3.9"]}`, "", "refused"),
		Entry("the gateway", slash24, `"runtimeConfig": {"ips": ["10.1.2.1"]}`, "", "refused"),
		Entry("two of a set", slash24, `"runtimeConfig": {"ips": ["10.1.2.9", "10.1.2.8"]}`, "", "refused"),
		Entry("no resolv.conf", slash24+`, "resolvConf": "/none"`, "", "", "refused"),
		Entry("a gateway of the other family", `"ranges": [[{"subnet": "10.1.2.0/24", "gateway": "2001:db8::1"}]]`, "", "", "ours differs"))

	It("shares the lock", func() {
		n := newNetwork(slash24)
		n.version = "1.0.0"
		programs := []string{ours(), reference()}
		seen := map[string]bool{}
		for _, a := range inParallel(100, func(i int) answer { return n.call(programs[i%2], "ADD", fmt.Sprint("c", i)).run() }) {
			Expect(a.status).To(BeZero(), a.out)
			for _, addr := range a.addrs() {
				Expect(seen[addr]).To(BeFalse(), addr)
				seen[addr] = true
			}
		}
		Expect(seen).To(HaveLen(100))
		for _, a := range inParallel(100, func(i int) answer { return n.call(programs[(i+1)%2], "DEL", fmt.Sprint("c", i)).run() }) {
			Expect(a.status).To(BeZero(), a.out)
		}
		Expect(n.leases()).To(BeEmpty())
	})
}

func inParallel(n int, do func(i int) answer) []answer {
	answers := make([]answer, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			defer GinkgoRecover()
			answers[i] = do(i)
		})
	}
	wg.Wait()
	return answers
}

var _ = Describe("many at once", func() {
	It("200 processes on a /24 get 200 addresses", func() {
		n := newNetwork(slash24)
		seen := map[string]bool{}
		for _, a := range inParallel(200, func(i int) answer { return n.call(ours(), "ADD", fmt.Sprint("c", i)).run() }) {
			Expect(a.status).To(BeZero(), a.out)
			seen[a.addrs()[0]] = true
		}
		Expect(seen).To(HaveLen(200))
		Expect(n.leases()).To(HaveLen(200))
		for _, a := range inParallel(200, func(i int) answer { return n.call(ours(), "DEL", fmt.Sprint("c", i)).run() }) {
			Expect(a).To(Equal(answer{}))
		}
		Expect(n.leases()).To(BeEmpty())
	})

	It("a held lock is waited for until the deadline, and its holder named", func() {
		n := newNetwork(slash24)
		n.write("lock", "")
		defer flock(n.path("lock"))()
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		c := n.call("", "ADD", "c1")
		cmd := c.cmd()
		var out, errs bytes.Buffer
		code := skel.Run(ctx, plugin(), skel.Env{Vars: cmd.Env, Stdin: cmd.Stdin, Stdout: &out, Stderr: &errs})
		Expect(code).To(Equal(1))
		comm, err := os.ReadFile("/proc/self/comm")
		Expect(err).NotTo(HaveOccurred())
		Expect(out.String()).To(And(ContainSubstring(fmt.Sprintf(`"code": %d`, cni.CodeTryAgain)),
			ContainSubstring("%s: held by process %d (%s)", n.path("lock"), os.Getpid(), strings.TrimSpace(string(comm)))))
	})
})

var _ = Describe("killed at any point", func() {
	// kill starts ADDs and DELs and kills most of them; it returns which
	// containers have been told an address.
	kill := func(n network, seed uint64) map[string]string {
		GinkgoHelper()
		random := rand.New(rand.NewPCG(seed, seed))
		told := map[string]string{}
		for i := range 150 {
			c := n.call(ours(), "ADD", fmt.Sprint("c", i))
			if i%3 == 2 {
				c.command, c.id = "DEL", fmt.Sprint("c", i-1)
				delete(told, c.id)
			}
			cmd := c.cmd()
			var out bytes.Buffer
			cmd.Stdout = &out
			Expect(cmd.Start()).To(Succeed())
			<-time.After(time.Duration(500+random.IntN(4000)) * time.Microsecond)
			_ = cmd.Process.Kill()
			if cmd.Wait() == nil && c.command == "ADD" {
				told[c.id] = strings.Join(answer{out: out.String()}.addrs(), " ")
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
			n.call(ours(), "CHECK", id).ok()
		}
		for name, content := range files {
			Expect(content).To(MatchRegexp(`^c\d+\r\neth0$`), name)
		}
	}
	two := `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "2001:db8::/64"}]]`

	It("no address is given twice, and DEL recovers each", func() {
		seed := uint64(GinkgoRandomSeed())
		n := newNetwork(two)
		verify(n, kill(n, seed), seed)
		for i := range 150 {
			n.call(ours(), "DEL", fmt.Sprint("c", i)).ok()
		}
		Expect(n.leases()).To(BeEmpty())
	})

	It("no address is given twice, and GC recovers each", func() {
		seed := uint64(GinkgoRandomSeed()) + 1
		n := newNetwork(two)
		told := kill(n, seed)
		verify(n, told, seed)
		var valid []string
		for id := range told {
			valid = append(valid, fmt.Sprintf(`{"containerID": %q, "ifname": "eth0"}`, id))
		}
		n.with(`"cni.dev/valid-attachments": [`+strings.Join(valid, ",")+`]`).call(ours(), "GC", "").ok()
		Expect(n.leases()).To(HaveLen(2 * len(told)))
		verify(n, told, seed)
	})
})

var _ = Describe("what a call costs", func() {
	// count returns how many reads and writes a call makes, as the kernel
	// counted them.
	count := func(c call) int {
		GinkgoHelper()
		cmd := c.cmd()
		Expect(cmd.Start()).To(Succeed())
		var info unix.Siginfo
		Expect(unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil)).To(Succeed())
		counters, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", cmd.Process.Pid))
		Expect(err).NotTo(HaveOccurred())
		Expect(cmd.Wait()).To(Succeed())
		sum := 0
		for line := range strings.Lines(string(counters)) {
			if key, value, _ := strings.Cut(strings.TrimSpace(line), ": "); key == "syscr" || key == "syscw" {
				n, err := strconv.Atoi(value)
				Expect(err).NotTo(HaveOccurred())
				sum += n
			}
		}
		Expect(sum).To(BeNumerically(">", 5))
		return sum
	}

	// fill makes reservations of many owners, where there is no disk to wait for
	// if it can be had.
	fill := func(n network, from string, size int) {
		GinkgoHelper()
		Expect(os.MkdirAll(n.dataDir, 0o755)).To(Succeed())
		if unix.Mount("none", n.dataDir, "tmpfs", 0, "") == nil {
			DeferCleanup(unix.Unmount, n.dataDir, 0)
		}
		for i := range size {
			n.write(plus(netip.MustParseAddr(from), uint64(i)).String(), "other"+strconv.Itoa(i)+"\r\neth0")
		}
	}

	It("is the same with 10 and with 20,000 reservations", func() {
		costs := map[string][]int{}
		for _, size := range []int{10, 20_000} {
			n := newNetwork(`"ranges": [[{"subnet": "10.0.0.0/16"}], [{"subnet": "2001:db8::/64"}]]`)
			fill(n, "10.0.0.2", size)
			n.call(ours(), "ADD", "first").ok() // reads the directory
			for _, command := range []string{"ADD", "CHECK", "STATUS", "DEL", "DEL"} {
				costs[command] = append(costs[command], count(n.call(ours(), command, "c1")))
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

	It("does not grow when the one free address is the last to be tried", func() {
		n := newNetwork(`"ranges": [[{"subnet": "10.0.0.0/19"}]]`)
		fill(n, "10.0.0.1", 8189) // all but .31.254
		n.write("last_reserved_ip.0", "10.0.0.1")
		n.call(ours(), "CHECK", "other1").ok() // reads the directory
		c := n.call(ours(), "ADD", "c1")
		Expect(count(c)).To(BeNumerically("<", 100))
		n.call(ours(), "CHECK", "c1").ok()
		Expect(n.path("10.0.31.254")).To(BeARegularFile())
	})
})
