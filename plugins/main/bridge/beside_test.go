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

var _ = Describe("an IPAM plugin", func() {
	var w *world
	var cont *nstest.Host
	BeforeEach(func() {
		w, cont = newWorld(), nstest.NewNetns()
		Expect(os.Symlink("fake", w.Dir+"/host-local")).To(Succeed())
	})
	with := func(ipam string, more ...Object) Call {
		return Call{ID: "one", Netns: cont.Path, Conf: conf(append([]Object{{"isGateway": true, "ipam": Object{"type": ipam}}}, more...)...)}
	}
	// run runs the plugin as a process, in whose threads what it starts is on
	// this host.
	run := func(c Call, command string) Answer {
		GinkgoHelper()
		c.Command = command
		return Ran(w.Run(c.Program(w.World, nstest.Build("bridge"))))
	}
	port := iface.HostNames(cni.Attachment{Network: "net", ContainerID: "one", IfName: "eth0"})[0]
	answer := "\ncat <<'E'\n" + Lease("10.1.0.2/24") + "\nE"

	It("that needs no interface works while it is made", func() {
		w.On("ADD", "cat >/dev/null; until ip link show "+port+" >/dev/null 2>&1; do :; done"+answer)
		// It waits for what comes only if nobody waits for it.
		Expect(run(with("host-local"), "ADD").Added().IPs).To(HaveLen(1))
		Expect(w.Calls()).To(Equal([]string{"ADD one eth0"}))
	})

	It("of another kind finds the interface made", func() {
		w.On("ADD", `cat >/dev/null; nsenter --net="$CNI_NETNS" ip link show eth0 >/dev/null || exit 1`+answer)
		Expect(run(with("fake"), "ADD").Added().IPs).To(HaveLen(1))
	})

	It("gives back what it may have reserved for an interface that cannot be made", func() {
		for i, name := range iface.HostNames(cni.Attachment{Network: "net", ContainerID: "one", IfName: "eth0"}) {
			IP(w.Host, "link add %s type veth peer name other%d", name, i)
		}
		w.On("ADD", "cat >/dev/null; exec sleep 1000")
		run(with("host-local"), "ADD").Failed(cni.CodeConflict)
		calls := w.Calls() // the first may have been ended before it could write
		Expect(calls[len(calls)-1]).To(Equal("DEL one eth0"))
		Expect(Names(cont, "")).To(BeEmpty())
	})

	It("is not asked by the second of two ADDs of one attachment", func() {
		w.On("ADD", `cat >/dev/null; read go <"$d/go"`+answer)
		Expect(os.MkdirAll(w.Dir, 0o755)).To(Succeed())
		w.Cmd("mkfifo", w.Dir+"/go")
		first := make(chan Answer, 1)
		go func() {
			defer GinkgoRecover()
			first <- run(with("host-local"), "ADD")
		}()
		Eventually(func() string { calls, _ := os.ReadFile(w.Dir + "/calls"); return string(calls) }).
			WithTimeout(nstest.Patience(5e9)).Should(Equal("ADD one eth0\n"))
		run(with("host-local"), "ADD").Failed(cni.CodeExists)
		Expect(os.WriteFile(w.Dir+"/go", []byte("go\n"), 0o600)).To(Succeed())
		(<-first).Added()
		Expect(w.Calls()).To(Equal([]string{"ADD one eth0"}))
		Expect(run(with("host-local"), "DEL").Code).To(BeZero())
		Expect(w.Calls()).To(Equal([]string{"DEL one eth0"}))
	})

	It("is told to release the addresses when the interface is gone", func() {
		w.On("ADD", "cat >/dev/null"+answer)
		w.On("DEL", `cat >/dev/null; ip -br link show type veth >"$d/left"`)
		run(with("host-local"), "ADD").Added()
		Expect(run(with("host-local"), "DEL").Code).To(BeZero())
		Expect(os.ReadFile(w.Dir + "/left")).To(BeEmpty())
	})

	It("is not told to while the interface cannot be deleted", func() {
		nstest.NeedProgram("setpriv")
		w.On("ADD", "cat >/dev/null"+answer)
		w.On("DEL", `cat >"$d/told"`)
		run(with("host-local"), "ADD").Added()
		c := with("host-local")
		c.Command = "DEL"
		out := w.Run(c.Program(w.World, "setpriv", "--bounding-set", "-all", "--inh-caps", "-all", nstest.Build("bridge")))
		Expect(out.Exit).To(Equal(1))
		Expect(out.Stdout).To(ContainSubstring("not asked to release"))
		if told, err := os.ReadFile(w.Dir + "/told"); err == nil {
			Expect(told).To(BeEmpty())
		}
	})
})
