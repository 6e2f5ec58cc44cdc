package tool_test

import (
	"errors"
	"os/exec"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// readOnly makes the calling thread, and what it starts, unable to change a file system: each call that would is
// refused. What reaches the kernel by netlink is compared instead.
func readOnly() {
	GinkgoHelper()
	for _, mode := range []uint32{unix.O_WRONLY, unix.O_RDWR} {
		nstest.FailCall(unix.SYS_OPENAT, unix.EROFS, nstest.Arg{Number: 2, Value: mode, Mask: unix.O_ACCMODE})
	}
	nstest.FailCall(unix.SYS_OPENAT, unix.EROFS, nstest.Arg{Number: 2, Value: unix.O_CREAT, Mask: unix.O_CREAT})
	for _, call := range []uint32{unix.SYS_OPENAT2, unix.SYS_UNLINKAT, unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2,
		unix.SYS_MKDIRAT, unix.SYS_LINKAT, unix.SYS_SYMLINKAT, unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHOWN,
		unix.SYS_FCHOWNAT, unix.SYS_UTIMENSAT, unix.SYS_TRUNCATE, unix.SYS_FTRUNCATE, unix.SYS_SETXATTR,
		unix.SYS_FSETXATTR, unix.SYS_MKNODAT, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_FALLOCATE} {
		nstest.FailCall(call, unix.EROFS)
	}
}

// changesNothing runs the tool, and compares what the kernel and the node's directories have.
func (m *machine) changesNothing(args ...string) nstest.Output {
	GinkgoHelper()
	before := m.Snapshot() + m.Files("/run", "/var/lib", "/etc/cni")
	out := m.hawser(args...)
	Expect(m.Snapshot() + m.Files("/run", "/var/lib", "/etc/cni")).To(Equal(before))
	return out
}

// onlyLooks runs the tool where it cannot write, too.
func (m *machine) onlyLooks(args ...string) {
	GinkgoHelper()
	before := m.Snapshot() + m.Files("/run", "/var/lib", "/etc/cni")
	free := m.changesNothing(args...)
	c := exec.Command(nstest.Build("hawser"), args...)
	c.Stdin = strings.NewReader("")
	var stdout, stderr strings.Builder
	c.Stdout, c.Stderr = &stdout, &stderr
	m.Do(func() {
		readOnly()
		if err := c.Run(); err != nil {
			exit, isExit := errors.AsType[*exec.ExitError](err)
			Expect(isExit).To(BeTrue(), "%v", err)
			Expect(exit.ExitCode()).To(Equal(free.Exit), stderr.String())
		}
	})
	Expect(stderr.String()).To(Equal(free.Stderr))
	Expect(stdout.String()).To(Equal(free.Stdout))
	Expect(m.Snapshot() + m.Files("/run", "/var/lib", "/etc/cni")).To(Equal(before))
}

var _ = It("a command that only reads works without write access", Label("tool-read-only", "slow"), func() {
	m := newMachine(ours(), usual)
	m.up(newPod("c0ffee01", "web-0", hostPort(8080, 80)))
	late := newPod("c0ffee02", "web-1", hostPort(8080, 80))
	Expect(m.add(late)).To(HaveOccurred())
	for _, lose := range []string{"true", "nft flush ruleset"} {
		m.Cmd("sh", "-c", lose)
		for _, command := range []string{"ls", "ls --orphans", "why web-1", "explain 8080", "explain", "doctor",
			"check", "gc", "metrics", "metrics --check"} {
			m.onlyLooks(strings.Fields(command)...)
		}
	}
})

// There it runs iptables, for which os/exec opens /dev/null.
var _ = It("it changes nothing on a node of the reference either", Label("tool-read-only", "slow"), func() {
	nstest.Need("iptables")
	tuned := strings.Replace(usual, `{"type": "firewall"}`, `{"type": "firewall"}, {"type": "tuning", "mtu": 1400},
		{"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 8000000}, {"type": "sbr"}`, 1)
	m := newMachine(nstest.Newest().Dir(), tuned)
	m.up(newPod("c0ffee01", "web-0", hostPort(8080, 80)))
	for _, lose := range []string{"true", "iptables -F; iptables -t nat -F; iptables -X; iptables -t nat -X",
		"nft flush ruleset"} {
		m.Cmd("sh", "-c", lose)
		for _, command := range []string{"ls", "explain", "doctor", "gc", "metrics --check"} {
			m.changesNothing(strings.Fields(command)...)
		}
	}
})
