package faults_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// lend starts a DHCP server, which lends each container an address of its own, and the daemon.
func (n *node) lend() {
	n.host.IP("link add cni0 type bridge", "addr add 10.1.0.1/24 dev cni0", "link set cni0 up")
	var own []string
	for i, id := range []string{victim, bystander} {
		client := fmt.Sprintf("% x", "\x00"+id+"/pods/eth0")
		own = append(own, fmt.Sprintf("--dhcp-host=id:%s,10.1.0.%d", strings.ReplaceAll(client, " ", ":"), 2+i))
	}
	plugintest.ServeDHCP(n.host, "cni0", "10.1.0.2,10.1.0.3", own...)
	n.daemon = plugintest.DHCPDaemon(n.host, n.bin)
}

// rest waits until the daemon has done with all calls, also with those whose plugin has
// ended before. It takes them in their order.
func (n *node) rest() {
	if n.daemon == nil {
		return
	}
	Expect(n.quiet("STATUS", "")).To(Succeed())
	Eventually(func() int { return plugintest.OpenFiles(n.daemon.Process.Pid, "socket:") }).
		Should(Equal(1), "on which it listens")
}

// daemonKill is one case: where the daemon is killed.
type daemonKill struct{ fault }

var _ = It("a kill of dhcp's daemon at every call loses nothing", Label("kernel", "daemon-killed"), func() {
	l := learn(scenarioOf("dhcp"))
	n := nstest.Must(l.node())
	f := fault{Changes: !everything()}
	out, _, err := n.life(f)
	Expect(err).NotTo(HaveOccurred())
	var cases []daemonKill
	for _, c := range out.Calls {
		cases = append(cases, daemonKill{fault{Changes: f.Changes, At: c.N, Kill: true}})
	}
	each(l, cases)
})

func (n *node) startDaemon() {
	making.Lock()
	defer making.Unlock()
	n.daemon = plugintest.DHCPDaemon(n.host, n.bin)
}

// play kills the daemon, starts another one, and sees that this has the leases that
// were given and not taken back, and no other.
func (k daemonKill) play(n *node) (hit bool, err error) {
	out, lent, err := n.life(k.fault)
	n.startDaemon()
	if err == nil && lent != "" {
		err = n.quiet("CHECK", lent)
	}
	err = errors.Join(err, n.del(lent), n.isClean())
	if err == nil {
		err = n.serves()
	}
	if err != nil && out.Hit != nil {
		err = fmt.Errorf("the daemon, killed at call %s:\n        %w\n%s", out.Hit, err, out.Stderr)
	}
	return out.Hit != nil, err
}

// serves plays ADD and DEL undisturbed: they succeed and leave nothing.
func (n *node) serves() error {
	result, err := n.add()
	return errors.Join(err, n.del(result), n.isClean())
}

// life has another daemon, to which the fault happens, take over the leases, serve ADD
// and DEL, and end. lent is ADD's result where DEL was not asked for.
func (n *node) life(f fault) (out outcome, lent string, err error) {
	GinkgoHelper()
	Expect(n.daemon.Process.Signal(syscall.SIGTERM)).To(Succeed())
	_ = n.daemon.Wait()
	n.daemon = nil
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer GinkgoRecover()
		out, err = run(n.host, nstest.Program{Path: filepath.Join(n.bin, "dhcp"),
			Args: []string{"daemon", "-pidfile", "/run/dhcp.pid"}}, f)
	}()
	hasEnded := func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}
	Eventually(func() bool { return hasEnded() || n.quiet("STATUS", "") == nil }).Should(BeTrue())
	lent, failed := n.add()
	if failed == nil && !hasEnded() {
		_ = n.del(lent)
		lent = ""
	}
	n.host.Run(nstest.Program{Path: "sh", Args: []string{"-c", "kill $(cat /run/dhcp.pid)"}})
	<-ended
	return out, lent, err
}
