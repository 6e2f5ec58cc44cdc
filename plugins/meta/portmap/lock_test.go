package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

var _ = Describe("the lock", Label("kernel", "lock-deadline"), func() {
	It("of legacy iptables is waited for until a deadline, and its holder is named", func() {
		useVariant("legacy")
		w := newWorld()
		w.bridge(1)
		a := w.container(1, 2)
		w.settle(kinds[2])
		before := w.rules()
		holding := w.Start(nstest.Program{Path: "flock",
			Args: []string{"-o", "/run/xtables.lock", "sh", "-c", "exec sleep 60 >/dev/null 2>&1"}})
		Eventually(func() string {
			return w.Cmd("cat",
				"/proc/locks")
		}).Should(ContainSubstring(fmt.Sprint(holding.Process.Pid)))
		in, err := json.Marshal(conf(object{"prevResult": a.prevResult(), "backend": "iptables"}, ports("8080:80")))
		Expect(err).NotTo(HaveOccurred())
		var out, errs bytes.Buffer
		w.Do(func() {
			ctx, cancel := timeout(1500 * time.Millisecond)
			defer cancel()
			Expect(skel.Run(ctx, plugin(), skel.Env{Stdin: bytes.NewReader(in), Stdout: &out, Stderr: &errs,
				Vars: append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID="+a.id, "CNI_NETNS="+a.Path,
					"CNI_IFNAME=eth0")})).To(Equal(1))
		})
		Expect(out.String()).To(And(ContainSubstring(fmt.Sprintf("held by process %d (flock)", holding.Process.Pid)),
			ContainSubstring(`"code": 11`)))
		Expect(holding.Process.Signal(os.Kill)).To(Succeed())
		a.del(object{"backend": "iptables"})
		Expect(w.rules()).To(Equal(before))
	})
})
