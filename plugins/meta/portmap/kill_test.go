package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = Describe("an ADD that is killed", Label("kernel"), func() {
	It("beside a dead attachment of the same name, before its rules, hides none of that one's from a conflict", func() {
		binary := nstest.Build("portmap")
		w := newWorld()
		w.bridge(1)
		a, b := w.container(1, 2), w.container(1, 3)
		b.serve(80)
		a.add(ports("192.0.2.1:8080:80"))
		a.vanish()
		again := w.container(1, 2)
		in, err := json.Marshal(conf(object{"prevResult": again.prevResult()}, ports("9000:80")))
		Expect(err).NotTo(HaveOccurred())
		holding := w.Start(nstest.Program{Path: "flock",
			Args: []string{"-o", "/run/hawser/nft.lock", "sh", "-c", "exec sleep 60 >/dev/null 2>&1"}})
		locks := func() string { return w.Cmd("cat", "/proc/locks") }
		Eventually(locks).Should(ContainSubstring(fmt.Sprint(holding.Process.Pid)))
		adding := exec.Command(binary)
		adding.Stdin = bytes.NewReader(in)
		adding.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID="+again.id, "CNI_NETNS="+again.Path,
			"CNI_IFNAME=eth0", "CNI_PATH=/x")
		w.Do(func() { Expect(adding.Start()).To(Succeed()) })
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
