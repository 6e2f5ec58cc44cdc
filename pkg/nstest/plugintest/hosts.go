package plugintest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// Router makes the world's host forward, and returns a machine one hop away that sends everything to it. The machine
// has 192.0.2.2 and 2001:db8::2, the host has .1 and ::1 there.
func (w *World) Router() (outside *nstest.Host) {
	GinkgoHelper()
	w.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
	outside = nstest.NewOutside(w.Host)
	outside.IP("route add default via 192.0.2.1", "route add default via 2001:db8::1")
	w.SetSysctl("net/ipv4/ip_forward", "1")
	w.SetSysctl("net/ipv6/conf/all/forwarding", "1")
	return outside
}

// Bridge makes network number n: br<n> with 10.<n>.0.1/24 and fd00:<n>::1/64.
func (w *World) Bridge(n int) {
	GinkgoHelper()
	br := fmt.Sprintf("br%d", n)
	w.IP("link add "+br+" type bridge", fmt.Sprintf("addr add 10.%d.0.1/24 dev %s", n, br),
		fmt.Sprintf("addr add fd00:%d::1/64 dev %s nodad", n, br), "link set "+br+" up")
}

// Join gives a container an interface on network n, by its bridge where there is one, with address number i of either
// family. With eth0 it gets default routes.
func (w *World) Join(c *nstest.Host, ifName string, n, i int) (hostEnd string, ips []string) {
	GinkgoHelper()
	hostEnd = fmt.Sprintf("v%d-%d", n, i)
	ips = []string{fmt.Sprintf("10.%d.0.%d/24", n, i), fmt.Sprintf("fd00:%d::%x/64", n, i)}
	c.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
	lines := []string{fmt.Sprintf("link add %s type veth peer name %s netns %s", hostEnd, ifName, c.Name)}
	if br := fmt.Sprintf("br%d", n); w.Run(nstest.Program{Path: "ip", Args: []string{"link", "show", br}}).Exit == 0 {
		lines = append(lines, "link set "+hostEnd+" master "+br)
	}
	w.IP(append(lines, "link set "+hostEnd+" up")...)
	lines = []string{"link set lo up", "link set " + ifName + " up", "addr add " + ips[0] + " dev " + ifName,
		"addr add " + ips[1] + " dev " + ifName + " nodad"}
	if ifName == "eth0" {
		lines = append(lines, fmt.Sprintf("route add default via 10.%d.0.1", n),
			fmt.Sprintf("route add default via fd00:%d::1", n))
	}
	c.IP(lines...)
	return hostEnd, ips
}

// Cable gives a container an interface whose other end is "port" of a router. Both are up, and neither has a
// link-local address.
func Cable(c *nstest.Host, name string) (router *nstest.Host) {
	GinkgoHelper()
	router = nstest.NewNetns()
	IP(c, "link add %s type veth peer name port netns %s", name, router.Name)
	for host, link := range map[*nstest.Host]string{c: name, router: "port"} {
		host.SetSysctl("net/ipv6/conf/"+link+"/accept_dad", "0")
		host.SetSysctl("net/ipv6/conf/"+link+"/addr_gen_mode", "1")
		IP(host, "link set %s up", link)
	}
	return router
}

// Addr is the address of a prefix.
func Addr(prefix string) string {
	addr, _, _ := strings.Cut(prefix, "/")
	return addr
}

// ServeDHCP starts a DHCP server, dnsmasq, on a device of the host. It lends the
// addresses of a range: "10.9.0.50,10.9.0.60". more are arguments of it.
func ServeDHCP(h *nstest.Host, device, lends string, more ...string) *exec.Cmd {
	GinkgoHelper()
	nstest.NeedProgram("dnsmasq")
	args := append([]string{"--no-daemon", "--conf-file=/dev/null", "--port=0", "--interface=" + device,
		"--bind-interfaces", "--user=root", "--group=root", "--pid-file=", "--dhcp-leasefile=/run/dnsmasq.leases",
		"--no-ping", "--dhcp-authoritative", "--dhcp-range=" + lends + ",1h"}, more...)
	server := h.Start(nstest.Program{Path: "dnsmasq", Args: args})
	Eventually(func() string { return h.Cmd("ss", "-Huln", "sport = :67") }).ShouldNot(BeEmpty())
	return server
}

// DHCPDaemon starts the daemon of a directory's dhcp, on the usual socket, and returns when it serves.
func DHCPDaemon(h *nstest.Host, dir string, args ...string) *exec.Cmd {
	GinkgoHelper()
	d := h.Start(nstest.Program{Path: filepath.Join(dir, "dhcp"), Args: append([]string{"daemon"}, args...)})
	Eventually(func() string { return h.Cmd("ss", "-Hxl") }).
		Should(ContainSubstring("/run/cni/dhcp.sock"))
	return d
}

// OpenFiles counts the descriptors of a process whose targets begin with kind: "socket:", or ""
// for all. Descriptors may be closed meanwhile.
func OpenFiles(pid int, kind string) (n int) {
	GinkgoHelper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	list := nstest.Must(os.ReadDir(dir))
	for _, f := range list {
		if to, err := os.Readlink(filepath.Join(dir, f.Name())); err == nil && strings.HasPrefix(to, kind) {
			n++
		}
	}
	return n
}
