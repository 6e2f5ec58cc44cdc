package runtimes_test

import (
	"os"
	"os/exec"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// daemon is a runtime on a machine, with a kubelet that speaks to it.
type daemon struct {
	*machine
	*kubelet
	program nstest.Program
	socket  string
	netconf string // directory of network configurations
	process *exec.Cmd
}

// serve starts the daemon, and returns when pods can be started.
func (d *daemon) serve() {
	GinkgoHelper()
	d.launch()
	d.kubelet = newKubelet(d.socket, d.machine)
	d.ready()
}

// launch starts the daemon, for the first time or again.
func (d *daemon) launch() {
	GinkgoHelper()
	d.process = d.Start(d.program)
}

// crash kills the daemon as the kernel would. What it has called comes to its end.
func (d *daemon) crash() {
	GinkgoHelper()
	Expect(d.process.Process.Kill()).To(Succeed())
	_ = d.process.Wait()
	pods.Settle(d.plugins)
}

// ready returns when pods can be started: STATUS, where the runtime calls it, has succeeded, and GC has ended.
func (d *daemon) ready() {
	GinkgoHelper()
	Eventually(d.network).Should(Equal("ready"))
}

func (d *daemon) restart() {
	GinkgoHelper()
	d.crash()
	d.launch()
	d.ready()
}

// configure writes the network. Not by a rename: containerd 1.6 would not notice.
func (d *daemon) configure(conflist string) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(d.netconf, "pods.conflist"), []byte(conflist), 0o644)).To(Succeed())
}

// sandboxed is a pod and the runtime's name for it.
type sandboxed struct {
	pods.Pod
	id string
}

// startTwo starts a client and a server with host ports.
func (d *daemon) startTwo() (client, server sandboxed) {
	GinkgoHelper()
	client.id, client.Pod = d.start("client")
	server.id, server.Pod = d.start("server", tcp(8080, 80), udp(8080, 80), on(pods.HostAddr, tcp(8081, 80)),
		on(pods.HostAddr6, tcp(8081, 80)))
	return client, server
}

// expectChecked runs CHECK of both.
func (d *daemon) expectChecked(conflist string, client, server sandboxed) {
	GinkgoHelper()
	Expect(d.check(conflist, client.id, client.Pod)).To(Succeed())
	Expect(d.check(conflist, server.id, server.Pod)).To(Succeed())
}
