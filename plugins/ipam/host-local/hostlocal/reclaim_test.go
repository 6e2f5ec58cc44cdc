package hostlocal

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// addIn runs an ADD for a container in a namespace, and returns its address.
func (n network) addIn(id string, netns string) string {
	GinkgoHelper()
	c := n.call("ADD", id)
	c.Netns = netns
	return strings.Join(addresses(n.Add(c)), " ")
}

// changeNote changes a word of a lease's note.
func (n network) changeNote(name string, word int, to string) {
	GinkgoHelper()
	note := make([]byte, 100)
	words := strings.Fields(string(note[:nstest.Must(unix.Getxattr(n.path(name), "trusted.hawser", note))]))
	words[word] = to
	Expect(unix.Setxattr(n.path(name), "trusted.hawser", []byte(strings.Join(words, " ")), 0)).To(Succeed())
}

// end releases a namespace and waits until the kernel has removed it.
func end(h *nstest.Host) {
	GinkgoHelper()
	netns := nstest.Must(ns.Open(h.Path))
	id := nstest.Must(netns.Identity())
	Expect(netns.Close()).To(Succeed())
	h.Unpin()
	isGone, err := ns.Gone()
	nstest.NeedOK("a kernel that reports which namespaces no longer exist", err)
	Eventually(isGone).WithArguments(id).Should(BeTrue())
}

// small is a network with five addresses.
const small = `"ranges": [[{"subnet": "10.1.2.0/29"}]]`

var _ = Describe("a full set", Label("reclaim"), func() {
	var n network
	var live *nstest.Host
	BeforeEach(func() {
		n = networkIn(tmpfs(0, ""), small) // which has extended attributes everywhere
		live = nstest.NewNetns()
	})

	// dead runs ADDs for containers and then ends their namespaces.
	dead := func(ids ...string) {
		GinkgoHelper()
		for _, id := range ids {
			h := nstest.NewNetns()
			n.addIn(id, h.Path)
			end(h)
		}
	}

	It("reclaims only the addresses of containers that no longer exist", func() {
		n.addIn("live", live.Path)
		dead("dead1", "dead2", "dead3")
		n.write("10.1.2.6", "for the printer")
		Expect(n.addIn("new1", live.Path)).To(Equal("10.1.2.3"), "the oldest stale lease")
		Expect(n.leases()).To(Equal(map[string]string{
			"10.1.2.2": ownerText("live", "eth0"), "10.1.2.3": ownerText("new1", "eth0"),
			"10.1.2.6": "for the printer"}))
	})

	It("also reclaims their addresses in other sets", func() {
		n.ipam = `"ranges": [[{"subnet": "10.1.2.0/29"}], [{"subnet": "2001:db8::/64"}]]`
		n.addIn("live", live.Path)
		dead("dead1", "dead2", "dead3", "dead4")
		n.changeNote("10.1.2.4", 0, "0123456789abcdef")
		n.changeNote("2001:db8::4", 0, "0123456789abcdef")
		n.write("2001:db8::5", ownerText("dead3", "eth1"))
		Expect(n.addIn("new", live.Path)).To(Equal("10.1.2.4 2001:db8::7"))
		Expect(slices.Sorted(maps.Keys(n.leases()))).To(Equal([]string{"10.1.2.2", "10.1.2.4", "2001:db8::2",
			"2001:db8::5", "2001:db8::7"}))
		Expect(n.addIn("newer", live.Path)).To(Equal("10.1.2.5 2001:db8::8"), "by a current index")

		By("in other sets first, so that a killed ADD leaves the lease that the next ADD examines")
		n.succeeds("DEL", "newer")
		dead("dead5", "dead6", "dead7")
		Expect(n.Call(n.call("ADD",
			"newest")).Stderr).To(MatchRegexp(`(?s)reclaimed 2001:.*:9 from .*reclaimed 10[.]1[.]2[.]`))
	})

	It("names the pod if the runtime's cache contains it", func() {
		dead("dead1", "dead2", "dead3", "dead4", "dead5")
		n.Do(func() {
			Expect(os.MkdirAll("/var/lib/cni/results", 0o755)).To(Succeed())
			Expect(os.WriteFile("/var/lib/cni/results/net-dead2-eth0", []byte(
				`{"cniArgs": [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "cart-0"]]}`), 0o600)).To(Succeed())
		})
		Expect(n.Call(n.call("ADD", "new")).Stderr).To(And(
			ContainSubstring(`reclaimed 10.1.2.2 from container "dead1", interface "eth0": `+
				"its network namespace no longer exists"),
			ContainSubstring(`reclaimed 10.1.2.3 from container "dead2", interface "eth0", pod "shop/cart-0": `)))
	})

	It("keeps leases of containers that may be live", func() {
		h := nstest.NewNetns()
		h.Start(nstest.Program{Path: "/bin/sleep", Args: []string{"600"}})
		for i := range 5 {
			n.addIn(fmt.Sprint("live", i), h.Path)
		}
		h.Unpin()
		Expect(n.fails("ADD", "new", cni.CodeTryAgain)).To(And(ContainSubstring("none can be reclaimed: "),
			ContainSubstring("; hawser gc lists the owners, hawser gc --yes releases leases")))
	})

	It("reclaims leases of another boot, but not leases without a note", func() {
		for i := range 4 {
			n.add(fmt.Sprint("unnoted", i)) // whose path is not a namespace
		}
		n.addIn("old", live.Path)
		n.changeNote("10.1.2.6", 0, "0123456789abcdef")
		Expect(n.addIn("new", live.Path)).To(Equal("10.1.2.6"))
		Expect(n.fails("ADD", "newer", cni.CodeTryAgain)).To(ContainSubstring("5 leases of 5 owners in " + n.dir() +
			"; none can be reclaimed: no lease is known to be stale (4 were written without an owner note, " +
			"for example by the reference plugin); hawser gc"))
	})

	It("reclaims leases of another boot first, and then the oldest", func() {
		dead("dead1", "dead2", "dead3", "dead4", "dead5")
		n.changeNote("10.1.2.3", 0, "0123456789abcdef")
		changed := func(addr string) time.Time {
			var st unix.Stat_t
			Expect(unix.Stat(n.path(addr), &st)).To(Succeed())
			return time.Unix(st.Ctim.Unix())
		}
		Eventually(func() time.Time {
			Expect(os.Chmod(n.path("10.1.2.2"), 0o600)).To(Succeed())
			return changed("10.1.2.2")
		}).Should(BeTemporally(">", changed("10.1.2.6")))
		n.withLeaseDir(func(s *leaseDir) {
			var order []string
			found, _ := s.findStale(set("10.1.2.0/29").Candidates(netip.Addr{}), 4)
			for _, l := range found {
				order = append(order, l.addr.String())
			}
			Expect(order).To(Equal([]string{"10.1.2.3", "10.1.2.4", "10.1.2.5", "10.1.2.6"}))
		})
	})

	It("keeps leases of another boot if other machines may use the directory", func() {
		n.addIn("old", live.Path)
		n.changeNote("10.1.2.2", 0, "0123456789abcdef")
		n.withLeaseDir(func(s *leaseDir) {
			j := nstest.Must(s.newReclaimer())
			addr := netip.MustParseAddr("10.1.2.2")
			for _, isOne := range []bool{true, false} {
				j.isOneMachine = isOne
				_, isDead := j.examine(addr)
				Expect(isDead).To(Equal(isOne))
			}
		})
		Expect(isLocal(nstest.Must(statefile.Open("/proc", 0)))).To(BeFalse()) // like an unknown file system
	})

	It("assigns an address that only a lease of another boot has, to its attachment or on request", func() {
		n.addIn("old", live.Path)
		asking := n.withKeys(`"args": {"cni": {"ips": ["10.1.2.2"]}}`)
		asking.fails("ADD", "new", cni.CodeConflict)
		n.fails("ADD", "old", cni.CodeExists)
		n.changeNote("10.1.2.2", 0, "0123456789abcdef")
		n.ipam += `, "reclaim": false`
		n.fails("ADD", "old", cni.CodeExists)
		n.ipam = small
		Expect(asking.addIn("new", live.Path)).To(Equal("10.1.2.2"))
		n.changeNote("10.1.2.2", 0, "0123456789abcdef")
		Expect(n.addIn("new", live.Path)).To(Equal("10.1.2.3"))
		Expect(n.leases()).To(HaveLen(1))
	})

	It("keeps a lease whose note was written for another owner", func() {
		dead("dead1", "dead2", "dead3", "dead4", "dead5")
		for i := range 5 {
			n.write(fmt.Sprint("10.1.2.", i+2), ownerText(fmt.Sprint("other", i), "eth0"))
		}
		n.changeNote("10.1.2.4", 0, "0123456789abcdef")
		n.fails("ADD", "new", cni.CodeTryAgain)
	})

	It("keeps the lease of a container that has its link on the host", func() {
		dead("dead1", "dead2", "dead3", "dead4", "dead5")
		a := cni.Attachment{Network: "net", ContainerID: "dead1", IfName: "eth0"}
		n.Cmd("ip", "link", "add", "end", "type", "veth", "peer", "name", "other")
		n.Cmd("ip", "link", "set", "end", "alias", a.Mark())
		Expect(n.addIn("new", live.Path)).To(Equal("10.1.2.3"))
		Expect(n.leases()).To(HaveKeyWithValue("10.1.2.2", ownerText("dead1", "eth0")))
	})

	It("reclaims the address of a container that left a link such as bandwidth's IFB", func() {
		dead("dead1", "dead2", "dead3", "dead4", "dead5")
		a := cni.Attachment{Network: "net", ContainerID: "dead1", IfName: "eth0"}
		n.Cmd("ip", "link", "add", "queue", "type", "bridge")
		n.Cmd("ip", "link", "set", "queue", "alias", a.Mark())
		Expect(n.addIn("new", live.Path)).To(Equal("10.1.2.2"))
	})

	It("has notes that fit into the inodes of leases on ext4", func() {
		n.addIn(strings.Repeat("x", 64), live.Path)
		size := nstest.Must(unix.Getxattr(n.path("10.1.2.2"), "trusted.hawser", make([]byte, 100)))
		Expect(size).To(BeNumerically("<=", 64))
		id := ns.Identity{Cookie: math.MaxUint64, Inode: math.MaxUint32}
		most := note{strings.Repeat("f", bootPrefixLen), id, math.MaxUint32, math.MaxUint32}
		Expect(len(most.String())).To(BeNumerically("<=", 64))
	})

	It("assigns with a note of CNI_NETNS, or without one if the path does not exist", Label("ipam-namespace"), func() {
		noted := func(ip string) error {
			_, err := unix.Getxattr(n.path(ip), "trusted.hawser", make([]byte, 100))
			return err
		}
		Expect(n.addIn("one", live.Path)).To(Equal("10.1.2.2"))
		Expect(n.addIn("two", "/nowhere")).To(Equal("10.1.2.3"))
		Expect(noted("10.1.2.2")).To(Succeed())
		Expect(noted("10.1.2.3")).To(MatchError(unix.ENODATA))
	})

	It("reclaims a lease without a note only if it is certainly older than this boot", func() {
		n.add("unnoted")
		n.withLeaseDir(func(s *leaseDir) {
			j, addr := nstest.Must(s.newReclaimer()), netip.MustParseAddr("10.1.2.2")
			isDead := func() bool { _, isDead := j.examine(addr); return isDead }
			Expect(j.bootTime).To(BeTemporally("<", time.Now()))
			Expect(isDead()).To(BeFalse())
			j.bootTime = time.Now().Add(time.Second)
			Expect(isDead()).To(BeTrue())
			j.bootTime = time.Time{} // the time of the boot is unknown
			Expect(isDead()).To(BeFalse())
		})
	})

	It("keeps a lease without a note that is younger than a pinned namespace", func() {
		began := time.Now()
		pins, booted := filepath.Dir(nstest.NewNetns().Path), time.Now().Add(time.Hour) // by a clock that was set back
		Expect(earliestPin(booted, pins)).To(BeTemporally("<", time.Now()))
		Expect(earliestPin(began.Add(-time.Hour), pins)).To(Equal(began.Add(-time.Hour)))
		Expect(earliestPin(booted, "/nowhere")).To(Equal(booted))
	})

	It("distinguishes a namespace from a later one with the same inode", func() {
		dead("dead1", "dead2", "dead3", "dead4", "dead5")
		inode := nstest.Must(os.Stat(live.Path)).Sys().(*syscall.Stat_t).Ino
		for i := range 5 {
			n.changeNote(fmt.Sprint("10.1.2.", i+2), 1, fmt.Sprintf("%x", inode))
		}
		Expect(n.addIn("new", live.Path)).To(Equal("10.1.2.2"))
	})

	It("reclaims nothing if reclaim is false, which the error names", func() {
		dead("dead1", "dead2", "dead3", "dead4", "dead5")
		n.ipam += `, "reclaim": false`
		Expect(n.fails("ADD", "new", cni.CodeTryAgain)).To(ContainSubstring(
			`none can be reclaimed: "reclaim" is false`))
	})

	It("is not full for STATUS if leases can be reclaimed", func() {
		n.ipam += `, "statusOnExhaustion": "fail"`
		for i := range 4 {
			n.addIn(fmt.Sprint("live", i), live.Path)
		}
		dead("dead")
		n.succeeds("STATUS", "")
		n.ipam += `, "reclaim": false`
		n.fails("STATUS", "", cni.CodeUnavailable)
	})

	It("keeps the addresses of all live containers during 64 parallel ADDs", Label("slow"), func() {
		n.ipam = `"ranges": [[{"subnet": "10.1.2.0/24"}]]`
		for i := range 253 {
			if i%2 == 1 {
				dead(fmt.Sprint("dead", i))
				continue
			}
			h := nstest.NewNetns()
			n.addIn(fmt.Sprint("live", i), h.Path)
			if i%4 == 0 { // the others keep their paths
				DeferCleanup(unix.Close, nstest.Must(unix.Open(h.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0)))
				h.Unpin()
			}
		}
		before := n.leases()
		answers := inParallel(64, func(i int) Answer {
			c := n.call("ADD", fmt.Sprint("new", i))
			c.Netns = live.Path
			return n.Call(c)
		})
		for _, answer := range answers {
			Expect(answer.Code).To(BeZero())
		}
		after := n.leases()
		for addr, owner := range before {
			if strings.HasPrefix(owner, "live") {
				Expect(after).To(HaveKeyWithValue(addr, owner))
			}
		}
		Expect(after).To(HaveLen(127 + 64))
	})
})

// cpuTime returns the CPU time of this process, in which calls are served. Unlike elapsed time, it does not depend on
// other load.
func cpuTime() time.Duration {
	var u unix.Rusage
	Expect(unix.Getrusage(unix.RUSAGE_SELF, &u)).To(Succeed())
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

var _ = It("reclaims leases among 65,533 with less than 0.1 seconds of CPU time", Label("reclaim-cost"), func() {
	n := networkIn(tmpfs(0, ""), `"ranges": [[{"subnet": "10.1.0.0/16"}]]`)
	live, gone := nstest.NewNetns(), nstest.NewNetns()
	var s leaseDir
	n.addIn("first", live.Path) // gets 10.1.0.2
	dir := nstest.Must(statefile.Open(filepath.Join(n.dataDir, "net"), 0))
	DeferCleanup(dir.Close)
	i := 0
	for addr := range set("10.1.0.0/16").Candidates(netip.MustParseAddr("10.1.0.2")) {
		if i++; i < 65532 { // all but one; a thousand become stale
			owner := ownerText(fmt.Sprint("c", i), "eth0")
			netns := live.Path
			if i%65 == 0 {
				netns = gone.Path
			}
			Expect(createFile(dir, addr.String(), []byte(owner), s.ownerNote(netns, owner))).To(Succeed())
		}
	}
	n.addIn("last", live.Path)
	adds := func(id string) (answer Answer, used time.Duration) {
		c := n.call("ADD", id)
		c.Netns = live.Path
		before := cpuTime()
		answer = n.Call(c)
		return answer, cpuTime() - before
	}
	answer, used := adds("none")
	Expect(answer.Stdout).To(ContainSubstring(`"code": 11,`))
	AddReportEntry("CPU time of ADD in a full set without stale leases", used.String())
	end(gone)
	least := time.Hour // of three, because other load also costs CPU time: it evicts this process from the caches
	for round := range 3 {
		answer, used = adds(fmt.Sprint("new", round))
		Expect(answer.Code).To(BeZero(), answer.Stdout)
		Expect(n.leases()).To(HaveLen(65533 - (maxReclaims - 1)))
		least = min(least, used)
		for i := range maxReclaims - 1 { // the set is full again
			n.addIn(fmt.Sprint("more", round, "-", i), live.Path)
		}
	}
	AddReportEntry("CPU time of ADD with a thousand stale leases", least.String())
	Expect(least).To(BeNumerically("<", 100*time.Millisecond))
})
