package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// legacyIPTables makes the older variant the one that is called iptables.
func legacyIPTables() {
	GinkgoHelper()
	nstest.Need("iptables-legacy")
	dir := GinkgoT().TempDir()
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, tail := range []string{"", "-restore"} {
			real, err := exec.LookPath(name + "-legacy" + tail)
			Expect(err).NotTo(HaveOccurred())
			Expect(os.Symlink(real, filepath.Join(dir, name+tail))).To(Succeed())
		}
	}
	GinkgoT().Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

var _ = Describe("the lock of legacy iptables, held by a program that hangs,", Label("kernel"), func() {
	var w *world
	var holder string

	// hold takes the lock until the spec ends, or release is called.
	hold := func() (release func()) {
		GinkgoHelper()
		holding := w.Start(nstest.Program{Path: "flock", Args: []string{"-o", "/run/xtables.lock", "sh", "-c",
			"exec sleep 60 >/dev/null 2>&1"}})
		Eventually(func() string { return w.Cmd("cat", "/proc/locks") }).
			Should(ContainSubstring(fmt.Sprint(holding.Process.Pid)))
		holder = fmt.Sprintf("held by process %d (flock)", holding.Process.Pid)
		return func() { Expect(holding.Process.Signal(os.Kill)).To(Succeed()) }
	}
	waitedFor := func() bool { return strings.Contains(w.Cmd("cat", "/proc/locks"), "-> FLOCK") }
	both := l3(Object{"isGateway": true, "ipMasq": true, "ipMasqBackend": "iptables"})
	addrs := func(n int) []string {
		return []string{fmt.Sprintf("10.1.0.%d/24 10.1.0.1", n), fmt.Sprintf("2001:db8:1::%d/64 2001:db8:1::1", n)}
	}

	BeforeEach(func() {
		legacyIPTables()
		w = newWorld()
	})

	It("ends ADD at the deadline of the call, and what it made goes", Label("lock-deadline"), func() {
		w.Attach("live", both, addrs(2)...)
		w.Calls()
		before := w.Snapshot()
		release := hold()
		cont := nstest.NewNetns()
		w.LendAddrs("two", addrs(3)...)
		began := time.Now()
		says := w.Fails(Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: both,
			Ctx: nstest.DeadlineWhen(waitedFor)},
			cni.CodeTryAgain)
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Hang))
		Expect(says).To(And(ContainSubstring(holder), Not(ContainSubstring("roll-back"))))
		Expect(w.Calls()).To(Equal([]string{"ADD two eth0", "DEL two eth0"}))
		release()
		Expect(w.Snapshot()).To(Equal(before))
		Expect(Names(cont, "")).To(BeEmpty())
	})

	It("leaves DEL the time for the interface and the addresses, and the rest to the next", Label("lock-del"), func() {
		before := w.Snapshot("iptables-legacy")
		began := time.Now()
		a := w.Attach("one", both, addrs(2)...)
		// Two thirds are for the lock, and the rest for more than all of an ADD.
		given := nstest.Patience(max(2*time.Second, 30*time.Since(began)))
		w.Calls()
		release := hold()
		del := a.As("DEL")
		ctx, cancel := context.WithTimeout(context.Background(), given)
		defer cancel()
		del.Ctx = ctx
		says := w.Fails(del, cni.CodeTryAgain)
		Expect(says).To(ContainSubstring(holder))
		Expect(Names(a.Host, "")).To(BeEmpty())
		Expect(w.Calls()).To(Equal([]string{"DEL one eth0"}))
		release()
		w.Succeeds(a.As("DEL"))
		Expect(w.Snapshot("iptables-legacy")).To(Equal(before))
	})
})
