package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

var _ = Describe("calls at the same time", func() {
	It("do not fail because of each other, and all is restored", func() {
		w := newWorld()
		const networks = 12
		all := func(command string) {
			GinkgoHelper()
			var wg sync.WaitGroup
			outs := make([]outcome, networks)
			for n := range networks {
				wg.Go(func() {
					defer GinkgoRecover()
					outs[n] = w.run(call{command: command, network: fmt.Sprintf("net%d", n),
						conf: fmt.Sprintf(`"mtu":%d,"txQLen":%d,"sysctl":{"net.core.somaxconn":"%d"}`, 1300+n, n, 100+n)})
				})
			}
			wg.Wait()
			for _, out := range outs {
				Expect(out.exit).To(Equal(0), "%+v", out)
				Expect(out.stderr).To(BeEmpty())
			}
		}
		all("ADD")
		Expect(w.backup("c1_eth0.json")).To(Equal("{\n \"mtu\": 1500,\n \"txQLen\": 1000,\n \"sysctl\": {\n  \"net.core.somaxconn\": \"4096\"\n }\n}"))
		all("DEL")
		Expect(w.values()).To(HavePrefix(untouched + "\nnet/core/somaxconn=4096"))
		Expect(w.files()).To(BeEmpty())
	})

	It("look again once they have the lock", func() {
		w := newWorld()
		w.add(`"txQLen":5`)
		held, err := statefile.Lock(context.Background(), w.dir+"/.hawser/lock", 0o600)
		Expect(err).NotTo(HaveOccurred())
		done := make(chan outcome, 1)
		go func() {
			defer GinkgoRecover()
			done <- w.run(call{command: "ADD", network: "net2", conf: `"mtu":1400`})
		}()
		info, err := os.Stat(w.dir + "/.hawser/lock")
		Expect(err).NotTo(HaveOccurred())
		waiter := fmt.Sprintf(`-> FLOCK .*:%d `, info.Sys().(*syscall.Stat_t).Ino)
		Eventually(func() (string, error) {
			data, err := os.ReadFile("/proc/locks")
			return string(data), err
		}, nstest.Patience(10*time.Second)).Should(MatchRegexp(waiter))
		w.cont.Cmd("ip", "link", "set", "eth0", "mtu", "1450")
		Expect(held.Unlock()).To(Succeed())
		Expect((<-done).exit).To(Equal(0))
		Expect(w.backup("c1_eth0.json")).To(ContainSubstring(`"mtu": 1450`))
	})
})
