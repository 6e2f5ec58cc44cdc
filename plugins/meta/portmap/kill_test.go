package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = Describe("an ADD that is killed", Label("kernel"), func() {
	eachKind(func(k kind) {
		It("leaves nothing that DEL does not find, wherever it was", func() {
			binary := nstest.Build("portmap")
			w := newWorld()
			w.bridge(1)
			w.settle(k)
			c := w.container(1, 2)
			before := w.rules()
			in, err := json.Marshal(conf(object{"prevResult": c.prevResult()}, k.config, ports(all...)))
			Expect(err).NotTo(HaveOccurred())
			killed := 0
			for i := range 6 {
				cmd := exec.Command(binary)
				cmd.Stdin = bytes.NewReader(in)
				cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID="+c.id, "CNI_NETNS="+c.Path,
					"CNI_IFNAME=eth0", "CNI_PATH=/x")
				w.Do(func() {
					Expect(cmd.Start()).To(Succeed())
					timer := time.AfterFunc(nstest.Patience(time.Duration(1000+3500*i)*time.Microsecond),
						func() { _ = cmd.Process.Kill() })
					if cmd.Wait() != nil {
						killed++
					}
					timer.Stop()
				})
				c.del()
				Expect(w.rules()).To(Equal(before))
			}
			AddReportEntry("killed", killed, ReportEntryVisibilityNever)
			c.add(k.config, ports(all...))
			c.check(k.config, ports(all...))
		})
	})
})
