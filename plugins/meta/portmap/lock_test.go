package main

import (
	"context"
	"fmt"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = Describe("the lock", Label("kernel", "lock-deadline"), func() {
	It("of legacy iptables is waited for until a deadline, and its holder is named", func() {
		useVariant("legacy")
		w := newWorld()
		a := w.container(1, 2)
		w.settle(kinds[2])
		before := w.rules()
		holding := w.Start(nstest.Program{Path: "flock",
			Args: []string{"-o", "/run/xtables.lock", "sh", "-c", "exec sleep 60 >/dev/null 2>&1"}})
		locks := func() string { return w.Cmd("cat", "/proc/locks") }
		Eventually(locks).Should(ContainSubstring(fmt.Sprint(holding.Process.Pid)))
		call := a.as("ADD", kinds[2].config, ports("8080:80"))
		ctx, cancel := context.WithTimeout(context.Background(), 1500*time.Millisecond)
		defer cancel()
		call.Ctx = ctx
		o := w.run(call)
		Expect(o.Code).To(Equal(cni.CodeTryAgain), o.text())
		Expect(o.Msg).To(ContainSubstring("held by process %d (flock)", holding.Process.Pid))
		Expect(holding.Process.Signal(os.Kill)).To(Succeed())
		a.del(kinds[2].config)
		Expect(w.rules()).To(Equal(before))
	})
})

var _ = Describe("an ADD that is killed", Label("kernel"), func() {
	It("beside a dead attachment of the same name, before its rules, hides none of that one's from a conflict", func() {
		w := newWorld()
		a, b := w.container(1, 2), w.container(1, 3)
		b.serve(80)
		a.add(ports("192.0.2.1:8080:80"))
		a.vanish()
		again := w.container(1, 2)
		holding := w.Start(nstest.Program{Path: "flock",
			Args: []string{"-o", "/run/hawser/nft.lock", "sh", "-c", "exec sleep 60 >/dev/null 2>&1"}})
		locks := func() string { return w.Cmd("cat", "/proc/locks") }
		Eventually(locks).Should(ContainSubstring(fmt.Sprint(holding.Process.Pid)))
		adding := w.Start(again.as("ADD", ports("9000:80")).Program(w.World, nstest.Build("portmap")))
		Eventually(locks).Should(MatchRegexp(fmt.Sprintf(`-> FLOCK +ADVISORY +WRITE %d `, adding.Process.Pid)))
		Expect(adding.Process.Kill()).To(Succeed())
		Expect(adding.Wait()).NotTo(Succeed())
		Expect(holding.Process.Kill()).To(Succeed())
		b.add(ports("8080:80"))
		Expect(w.reach(8080)).To(Equal("192.0.2.2"))
		again.del()
		b.del()
		Expect(w.Snapshot("nftables")).NotTo(MatchRegexp("8080|9000"))
	})
})
