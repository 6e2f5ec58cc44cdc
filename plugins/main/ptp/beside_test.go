package main

import (
	"os"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("an IPAM plugin that needs no interface", func() {
	names := iface.HostNames(cni.Attachment{Network: "net", ContainerID: "one", IfName: "eth0"})
	var w *World
	var c Call
	BeforeEach(func() {
		w = newWorld()
		Expect(os.Symlink("fake", w.Dir+"/host-local")).To(Succeed())
		c = Call{Netns: nstest.NewNetns().Path, Conf: conf(Object{"ipam": Object{"type": "host-local"}})}
	})
	// run runs the plugin as a process, in whose threads what it starts is on
	// this host.
	run := func(command string) Answer {
		GinkgoHelper()
		c.Command = command
		return Ran(w.Run(c.Program(w, nstest.Build("ptp"))))
	}

	It("works while it is made, and is told to release the addresses when it is gone", func() {
		w.On("ADD", "cat >/dev/null; until ip link show "+names[0]+" >/dev/null 2>&1; do :; done\ncat <<'E'\n"+Lease(nth(2)...)+"\nE")
		w.On("DEL", `cat >/dev/null; ip -br link show type veth >"$d/left"`)
		run("ADD").Added()
		Expect(run("DEL").Code).To(BeZero())
		Expect(w.Calls()).To(Equal([]string{"ADD one eth0", "DEL one eth0"}))
		Expect(os.ReadFile(w.Dir + "/left")).To(BeEmpty())
	})

	It("gives back what it may have reserved when it cannot be made", func() {
		for i, name := range names {
			IP(w.Host, "link add %s type veth peer name other%d", name, i)
		}
		w.On("ADD", "cat >/dev/null; exec sleep 1000")
		run("ADD").Failed(cni.CodeConflict)
		calls := w.Calls() // the first may have been ended before it could write
		Expect(calls[len(calls)-1]).To(Equal("DEL one eth0"))
	})
})
