package plugintest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// ServeDHCP starts a DHCP server, dnsmasq, on a device of the host. It lends the
// addresses of a range: "10.9.0.50,10.9.0.60". more are arguments of it.
func ServeDHCP(h *nstest.Host, device, lends string, more ...string) *exec.Cmd {
	ginkgo.GinkgoHelper()
	nstest.NeedProgram("dnsmasq")
	args := append([]string{"--no-daemon", "--conf-file=/dev/null", "--port=0", "--interface=" + device,
		"--bind-interfaces", "--user=root", "--group=root", "--pid-file=", "--dhcp-leasefile=/run/dnsmasq.leases",
		"--no-ping", "--dhcp-authoritative", "--dhcp-range=" + lends + ",1h"}, more...)
	server := h.Start(nstest.Program{Path: "dnsmasq", Args: args})
	gomega.Eventually(func() string { return h.Cmd("ss", "-Huln", "sport = :67") }).ShouldNot(gomega.BeEmpty())
	return server
}

// DHCPDaemon starts the daemon of a directory's dhcp, on the usual socket, and returns when it serves.
func DHCPDaemon(h *nstest.Host, dir string, args ...string) *exec.Cmd {
	ginkgo.GinkgoHelper()
	d := h.Start(nstest.Program{Path: filepath.Join(dir, "dhcp"), Args: append([]string{"daemon"}, args...)})
	gomega.Eventually(func() string { return h.Cmd("ss", "-Hxl") }).
		Should(gomega.ContainSubstring("/run/cni/dhcp.sock"))
	return d
}

// OpenFiles counts the descriptors of a process whose targets begin with kind: "socket:", or ""
// for all. Descriptors may be closed meanwhile.
func OpenFiles(pid int, kind string) (n int) {
	ginkgo.GinkgoHelper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	list := nstest.Must(os.ReadDir(dir))
	for _, f := range list {
		if to, err := os.Readlink(filepath.Join(dir, f.Name())); err == nil && strings.HasPrefix(to, kind) {
			n++
		}
	}
	return n
}
