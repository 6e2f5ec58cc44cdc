package hostlocal

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// in is an ADD of a container in a namespace.
func (n network) in(id string, netns string) string {
	GinkgoHelper()
	c := n.call("ADD", id)
	c.Netns = netns
	return strings.Join(addresses(n.Add(c)), " ")
}

// small has room for five containers.
const small = `"ranges": [[{"subnet": "10.1.2.0/29"}]]`

var _ = Describe("a full set", Label("reclaim"), func() {
	var n network
	var live *nstest.Host
	BeforeEach(func() {
		n = newNetwork(small)
		live = nstest.NewNetns()
	})

	// dead are ADDs of containers whose namespaces are gone then.
	dead := func(ids ...string) {
		GinkgoHelper()
		for _, id := range ids {
			gone := nstest.NewNetns()
			n.in(id, gone.Path)
			gone.Unpin()
		}
	}

	It("takes the addresses of the dead back, and of nobody else", func() {
		n.in("live", live.Path)
		dead("dead1", "dead2", "dead3")
		n.write("10.1.2.6", "for the printer")
		Expect(n.in("new1", live.Path)).To(Equal("10.1.2.3"), "the oldest one's")
		Expect(n.leases()).To(Equal(map[string]string{
			"10.1.2.2": ownerText("live", "eth0"), "10.1.2.3": ownerText("new1", "eth0"),
			"10.1.2.6": "for the printer"}))
	})

	It("says each on standard error", func() {
		dead("dead1", "dead2", "dead3", "dead4", "dead5")
		answer := n.Call(n.call("ADD", "new"))
		for i := range 5 {
			Expect(answer.Stderr).To(ContainSubstring(`took 10.1.2.%d back from container "dead%d", interface "eth0": `+
				"no process or mount has its network namespace", i+2, i+1))
		}
	})

	DescribeTable("keeps what may live", func(hold func(h *nstest.Host)) {
		h := nstest.NewNetns()
		hold(h)
		for i := range 5 {
			n.in(fmt.Sprint("live", i), h.Path)
		}
		h.Unpin()
		Expect(n.fails("ADD", "new", cni.CodeTryAgain)).To(ContainSubstring(
			"none was taken back: of none it is certain that its container is gone"))
	},
		Entry("by an open descriptor", func(h *nstest.Host) {
			f := nstest.Must(os.Open(h.Path))
			DeferCleanup(f.Close)
		}),
		Entry("by a process", func(h *nstest.Host) {
			h.Start(nstest.Program{Path: "/bin/sleep", Args: []string{"600"}})
		}),
		Entry("by one thread", func(h *nstest.Host) {
			ready, end := make(chan bool), make(chan bool)
			go h.Do(func() { ready <- true; <-end })
			<-ready
			DeferCleanup(func() { close(end) })
		}),
		Entry("by a mount in another mount namespace", func(h *nstest.Host) {
			path := filepath.Join(GinkgoT().TempDir(), "held")
			Expect(os.WriteFile(path, nil, 0o600)).To(Succeed())
			c := exec.Command("/bin/sh", "-c", `mount --bind "$0" "$1" && echo && exec sleep 600`, h.Path, path)
			c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
			out := nstest.Must(c.StdoutPipe())
			Expect(c.Start()).To(Succeed())
			DeferCleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
			Expect(out.Read(make([]byte, 1))).To(Equal(1))
		}),
		Entry("by a process in a user namespace", func(h *nstest.Host) {
			h.Do(func() {
				c := exec.Command("/bin/sleep", "600")
				c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
				Expect(c.Start()).To(Succeed())
				DeferCleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
			})
		}),
	)

	It("takes what is of another boot, and not what has no note", func() {
		for i := range 4 {
			n.add(fmt.Sprint("unnoted", i)) // its path is no namespace
		}
		n.reserve("10.1.2.6", ownerText("old", "eth0"))
		Expect(unix.Setxattr(n.path("10.1.2.6"), "trusted.hawser", []byte("0123 1 2 3"), 0)).To(Succeed())
		Expect(n.in("new", live.Path)).To(Equal("10.1.2.6"))
		Expect(n.fails("ADD", "newer", cni.CodeTryAgain)).To(ContainSubstring("files 5, owners 5"))
	})

	It("takes what has no note where its file is older than this boot for certain", func() {
		n.add("unnoted")
		n.within(func(s *leaseDir) {
			j := nstest.Must(s.newJudge())
			Expect(j.why(s, "10.1.2.2")).To(BeEmpty())
			Expect(j.booted).To(BeTemporally("<", time.Now()))
			j.booted = time.Now().Add(time.Second)
			Expect(j.why(s, "10.1.2.2")).To(Equal("it is of an earlier boot"))
			j.booted = time.Time{} // nothing says when it was
			Expect(j.why(s, "10.1.2.2")).To(BeEmpty())
		})
	})

	It("does not trust a note of a process that saw other processes", func() {
		dead("dead1", "dead2", "dead3", "dead4", "dead5")
		for i := range 5 {
			path := n.path(fmt.Sprint("10.1.2.", i+2))
			note := make([]byte, 100)
			note = note[:nstest.Must(unix.Getxattr(path, "trusted.hawser", note))]
			words := strings.Fields(string(note))
			words[3] = "1"
			Expect(unix.Setxattr(path, "trusted.hawser", []byte(strings.Join(words, " ")), 0)).To(Succeed())
		}
		n.fails("ADD", "new", cni.CodeTryAgain)
	})

	It("tells a namespace from a later one with its inode", func() {
		dead("dead1", "dead2", "dead3", "dead4", "dead5")
		inode := nstest.Must(os.Stat(live.Path)).Sys().(*syscall.Stat_t).Ino
		for i := range 5 {
			path := n.path(fmt.Sprint("10.1.2.", i+2))
			note := make([]byte, 100)
			note = note[:nstest.Must(unix.Getxattr(path, "trusted.hawser", note))]
			words := strings.Fields(string(note))
			words[1] = fmt.Sprintf("%x", inode)
			Expect(unix.Setxattr(path, "trusted.hawser", []byte(strings.Join(words, " ")), 0)).To(Succeed())
		}
		Expect(n.in("new", live.Path)).To(Equal("10.1.2.2"))
	})

	It("takes nothing back with reclaim false, and says so", func() {
		dead("dead1", "dead2", "dead3", "dead4", "dead5")
		n.ipam += `, "reclaim": false`
		Expect(n.fails("ADD", "new", cni.CodeTryAgain)).To(ContainSubstring(`none was taken back: "reclaim" is false`))
	})

	It("is not full for STATUS where some are dead", func() {
		n.ipam += `, "statusOnExhaustion": "fail"`
		for i := range 4 {
			n.in(fmt.Sprint("live", i), live.Path)
		}
		dead("dead")
		n.succeeds("STATUS", "")
		n.ipam += `, "reclaim": false`
		n.fails("STATUS", "", cni.CodeUnavailable)
	})

	It("keeps every live one's address beside 64 ADDs at once", func() {
		n.ipam = `"ranges": [[{"subnet": "10.1.2.0/24"}]]`
		for i := range 253 {
			if i%2 == 0 {
				n.in(fmt.Sprint("live", i), live.Path)
			} else {
				dead(fmt.Sprint("dead", i))
			}
		}
		before := n.leases()
		var failed atomic.Int32
		var group sync.WaitGroup
		for i := range 64 {
			group.Go(func() {
				defer GinkgoRecover()
				c := n.call("ADD", fmt.Sprint("new", i))
				c.Netns = live.Path
				if n.Call(c).Code != 0 {
					failed.Add(1)
				}
			})
		}
		group.Wait()
		Expect(failed.Load()).To(BeZero())
		for addr, owner := range before {
			if strings.HasPrefix(owner, "live") {
				Expect(n.leases()).To(HaveKeyWithValue(addr, owner))
			}
		}
	})
})

var _ = It("takes leases back among 65,533 in less than a tenth of a second", Label("reclaim-cost"), func() {
	n := networkIn(tmpfs(0, ""), `"ranges": [[{"subnet": "10.1.0.0/16"}]]`)
	live, gone := nstest.NewNetns(), nstest.NewNetns()
	var s leaseDir
	notes := map[bool][]byte{true: s.noteOf(gone.Path), false: s.noteOf(live.Path)}
	n.in("first", live.Path) // has 10.1.0.2
	dir := nstest.Must(statefile.Open(filepath.Join(n.dataDir, "net"), 0))
	DeferCleanup(dir.Close)
	i := 0
	for addr := range set("10.1.0.0/16").after(netip.MustParseAddr("10.1.0.2")) {
		if i++; i < 65532 { // all but one, a thousand of the dead
			owner := ownerText(fmt.Sprint("c", i), "eth0")
			Expect(dir.Create(addr.String(), []byte(owner), notes[i%65 == 0], 0o600)).To(Succeed())
		}
	}
	gone.Unpin()
	best, free := time.Hour, 1
	for i := range 3 {
		for k := range free {
			n.in(fmt.Sprintf("more%d-%d", i, k), live.Path)
		}
		free = reclaimedAtOnce - 1
		began := time.Now()
		n.in(fmt.Sprint("new", i), live.Path)
		best = min(best, time.Since(began))
	}
	Expect(best).To(BeNumerically("<", 100*time.Millisecond))
	GinkgoWriter.Println(best)
	Expect(n.leases()).To(HaveLen(65533 - free))
})
