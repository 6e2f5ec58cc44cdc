// Package plugintest runs plugins as a runtime does, on a host of package nstest, with an IPAM plugin that the spec
// controls. Only tests import it.
package plugintest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Object is a JSON object.
type Object = map[string]any

// World is a throw-away host on which specs call plugins: one plugin, in this process, with an IPAM plugin that the
// spec controls ([NewWorld]), or lists of programs for its pods ([NewNode]).
type World struct {
	*nstest.Host
	Dir    string           // CNI_PATH
	Plugin skel.Plugin[any] // of a NewWorld

	// For lists:
	Version string   // of configurations; the newest when empty
	Env     []string // of the programs, in addition to the protocol's
	// Before are commands of bash that run before each plugin, in its process: "umask 0".
	Before string
	// Other serves the calls instead of [World.Invoke].
	Other func(plugin string, c Call) Answer

	// Spoiled means that the spec has added obstacles, and that the host need not be clean at its end.
	Spoiled bool

	programs string // directory of the plugins; ours when empty
	inside   []skel.Program
	attached *attached
}

// Refusal makes the IPAM plugin refuse with code 11, message "later" and details "pool".
const Refusal = `cat >/dev/null; echo '{"cniVersion":"1.1.0","code":11,"msg":"later","details":"pool"}'; exit 1`

// NewWorld creates a host with "fake", an IPAM plugin that records each call and answers as On and Lend determine. Its
// other name, "whereabouts", is that of a plugin that is known to need no interface.
func NewWorld[C any](p skel.Plugin[C]) *World {
	GinkgoHelper()
	w := &World{Host: nstest.NewHost(), Dir: GinkgoT().TempDir(), Plugin: p.Untyped()}
	w.Script("fake", `d=${0%/*}; echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME" >>"$d/calls"
for f in "$d/on.$CNI_COMMAND.$CNI_CONTAINERID" "$d/on.$CNI_COMMAND"; do [ ! -e "$f" ] || { . "$f"; exit; }; done
cat >/dev/null`)
	Expect(os.Symlink("fake", filepath.Join(w.Dir, "whereabouts"))).To(Succeed())
	return w
}

// InProcess makes Call find IPAM plugins that are the running program, in a separate directory. The scripts then serve
// them in this process.
func (w *World) InProcess() {
	GinkgoHelper()
	Expect(os.Mkdir(w.insideDir(), 0o755)).To(Succeed())
	self := nstest.Must(os.Executable())
	for _, name := range []string{"fake", "whereabouts"} {
		Expect(os.Symlink(self, filepath.Join(w.insideDir(), name))).To(Succeed())
		p := skel.ProgramOf(name, func() skel.Plugin[any] { return skel.Plugin[any]{IPAM: true, InProcess: true} })
		p.Run = func(ctx context.Context, env skel.Env) int {
			cmd := exec.CommandContext(ctx, filepath.Join(w.Dir, name))
			cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env.Vars, env.Stdin, env.Stdout, env.Stderr
			_ = cmd.Run()
			return cmd.ProcessState.ExitCode()
		}
		w.inside = append(w.inside, p)
	}
}

func (w *World) insideDir() string { return filepath.Join(w.Dir, "inside") }

// Script writes a plugin that consists of shell commands.
func (w *World) Script(name, body string) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(w.Dir, name), []byte("#!/bin/sh\n"+body+"\n"), 0o755)).To(Succeed())
}

// On sets what fake does on a command: shell commands in which $d is Dir. With a container ID they apply only to that
// container.
func (w *World) On(command, body string, id ...string) {
	GinkgoHelper()
	name := strings.Join(append([]string{"on", command}, id...), ".")
	Expect(os.WriteFile(filepath.Join(w.Dir, name), []byte(body+"\n"), 0o644)).To(Succeed())
}

// Lend makes fake answer an ADD with a result.
func (w *World) Lend(result string, id ...string) {
	GinkgoHelper()
	w.On("ADD", "cat >/dev/null; cat <<'E'\n"+result+"\nE", id...)
}

// LendAddrs makes fake lend addresses to a container, as Lease has them.
func (w *World) LendAddrs(id string, addrs ...string) {
	GinkgoHelper()
	w.Lend(Lease(addrs...), id)
}

// Lease returns the result of an IPAM plugin. "10.1.0.2/24 10.1.0.1" is an address with its gateway.
func Lease(addrs ...string) string {
	GinkgoHelper()
	var ips []Object
	for _, a := range addrs {
		address, gateway, _ := strings.Cut(a, " ")
		ip := Object{"address": address}
		if gateway != "" {
			ip["gateway"] = gateway
		}
		ips = append(ips, ip)
	}
	return Text(Object{"cniVersion": "1.0.0", "ips": ips})
}

// Calls returns the calls of fake since the last Calls, such as "ADD one eth0".
func (w *World) Calls() []string {
	GinkgoHelper()
	file := filepath.Join(w.Dir, "calls")
	data, err := os.ReadFile(file)
	if err == nil {
		err = os.Remove(file)
	}
	if !os.IsNotExist(err) {
		Expect(err).NotTo(HaveOccurred())
	}
	return strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' })
}

// Records lists the files of the records in a directory of the host.
func (w *World) Records(dir string) (names []string) {
	GinkgoHelper()
	w.Do(func() {
		entries, err := os.ReadDir(dir)
		if !os.IsNotExist(err) {
			Expect(err).NotTo(HaveOccurred())
		}
		for _, e := range entries {
			if e.Name() != "lock" {
				names = append(names, e.Name())
			}
		}
	})
	return names
}

// IsAsBefore checks that a container's snapshot is unchanged and that a directory has no record.
func (w *World) IsAsBefore(cont *nstest.Host, before, dir string) {
	GinkgoHelper()
	Expect(cont.Snapshot()).To(Equal(before))
	Expect(w.Records(dir)).To(BeEmpty())
}

// Merge returns an object with the keys of all; the value nil removes a key.
func Merge(all ...Object) Object {
	c := Object{}
	for _, o := range all {
		maps.Copy(c, o)
	}
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

// Text returns v as JSON.
func Text(v any) string {
	GinkgoHelper()
	out := nstest.Must(json.Marshal(v))
	return string(out)
}

// IP runs ip(8) with words separated by blanks.
func IP(h *nstest.Host, format string, args ...any) string {
	GinkgoHelper()
	return h.Cmd("ip", strings.Fields(fmt.Sprintf(format, args...))...)
}

// Link is a link as ip(8) shows it.
type Link struct {
	Ifname, Operstate, Address, Ifalias, Master string
	Index                                       int `json:"ifindex"`
	Peer                                        int `json:"link_index"`
	MTU, Promiscuity                            int
	Flags                                       []string
	Linkinfo                                    struct {
		Kind string                           `json:"info_kind"`
		Port struct{ Hairpin, Isolated bool } `json:"info_slave_data"`
		Data struct {
			Filtering int `json:"vlan_filtering"`
		} `json:"info_data"`
	}
	AddrInfo []struct {
		Local     string
		Prefixlen int
		Tentative bool
		Scope     string
	} `json:"addr_info"`
}

// Show returns a link.
func Show(h *nstest.Host, name string) Link {
	GinkgoHelper()
	var links []Link
	h.JSON(&links, "ip", "-j", "-d", "addr", "show", "dev", name)
	Expect(links).To(HaveLen(1))
	return links[0]
}

// Addrs returns a link's addresses except those that the kernel added.
func (l Link) Addrs() []string {
	out := []string{}
	for _, a := range l.AddrInfo {
		if a.Scope == "global" || a.Prefixlen == 128 {
			out = append(out, fmt.Sprintf("%s/%d", a.Local, a.Prefixlen))
		}
	}
	return out
}

// Names returns the links of a kind, or all links except lo if kind is empty.
func Names(h *nstest.Host, kind string) []string {
	GinkgoHelper()
	args := []string{"-j", "link"}
	if kind != "" {
		args = append(args, "show", "type", kind)
	}
	var links []Link
	h.JSON(&links, "ip", args...)
	out := []string{}
	for _, l := range links {
		if l.Ifname != "lo" {
			out = append(out, l.Ifname)
		}
	}
	return out
}

// Ping reports whether an address answers; it sends one request per second. options are passed to ping(8).
func Ping(h *nstest.Host, address string, options ...string) bool {
	GinkgoHelper()
	seconds := fmt.Sprint(int(nstest.Patience(nstest.Hang).Seconds()))
	args := append([]string{"-c1", "-w" + seconds, "-n", address}, options...)
	return h.Run(nstest.Program{Path: "ping", Args: args}).Exit == 0
}

// Uplink adds to a host an interface, "up0", for other links on it. It returns a neighbor on its network that has the
// addresses of the gateways of [Addrs].
func Uplink(h *nstest.Host) (far *nstest.Host) {
	GinkgoHelper()
	far = nstest.NewNetns()
	for _, side := range []*nstest.Host{h, far} {
		side.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
	}
	h.IP("link add up0 type veth peer name far0 netns "+far.Name, "link set up0 up")
	// Before Linux 5.18 the kernel waits forever if it ends the namespaces of up0 and of its VLAN simultaneously.
	DeferCleanup(func() { _ = exec.Command("ip", "-n", h.Name, "link", "del", "up0").Run() }) // if it exists
	far.IP("link set far0 up", "addr add 10.1.0.1/24 dev far0", "addr add 2001:db8:1::1/64 dev far0 nodad")
	return far
}

// LinkLocal returns the link-local address of a link as soon as it is usable.
func LinkLocal(h *nstest.Host, name string) (address string) {
	GinkgoHelper()
	Eventually(func() string {
		for _, a := range Show(h, name).AddrInfo {
			if strings.HasPrefix(a.Local, "fe80:") && a.Prefixlen == 64 && !a.Tentative {
				address = a.Local
			}
		}
		return address
	}).ShouldNot(BeEmpty())
	return address
}

// Router makes the world's host forward packets. It returns a machine one hop away whose default route is the host. The
// machine has 192.0.2.2 and 2001:db8::2, the host .1 and ::1.
func (w *World) Router() (outside *nstest.Host) {
	GinkgoHelper()
	w.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
	outside = nstest.NewOutside(w.Host)
	outside.IP("route add default via 192.0.2.1", "route add default via 2001:db8::1")
	w.SetSysctl("net/ipv4/ip_forward", "1")
	w.SetSysctl("net/ipv6/conf/all/forwarding", "1")
	return outside
}

// Bridge creates network number n: br<n> with 10.<n>.0.1/24 and fd00:<n>::1/64.
func (w *World) Bridge(n int) {
	GinkgoHelper()
	br := fmt.Sprintf("br%d", n)
	w.IP("link add "+br+" type bridge", fmt.Sprintf("addr add 10.%d.0.1/24 dev %s", n, br),
		fmt.Sprintf("addr add fd00:%d::1/64 dev %s nodad", n, br), "link set "+br+" up")
}

// Join adds to a container an interface on network n, on its bridge if there is one, with address number i of each
// family. An eth0 gets default routes.
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

// Cable adds to a container an interface whose other end is "port" of a router. Both ends are up and have no link-local
// address.
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

// Addr returns the address of a prefix.
func Addr(prefix string) string {
	addr, _, _ := strings.Cut(prefix, "/")
	return addr
}

// ServeDHCP starts a DHCP server, dnsmasq, on a device of the host. It lends the
// addresses of a range, such as "10.9.0.50,10.9.0.60". more are additional arguments.
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

// DHCPDaemon starts the daemon of the dhcp plugin in a directory, on the default socket, and returns when it serves.
func DHCPDaemon(h *nstest.Host, dir string, args ...string) *exec.Cmd {
	GinkgoHelper()
	d := h.Start(nstest.Program{Path: filepath.Join(dir, "dhcp"), Args: append([]string{"daemon"}, args...)})
	Eventually(func() string { return h.Cmd("ss", "-Hxl") }).
		Should(ContainSubstring("/run/cni/dhcp.sock"))
	return d
}

// OpenFiles counts the descriptors of a process whose targets begin with kind, such as "socket:", or end with it, as
// paths do in a chroot, where the kernel shows those of the outside. "" means all. Descriptors may be closed
// concurrently.
func OpenFiles(pid int, kind string) (n int) {
	GinkgoHelper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	list := nstest.Must(os.ReadDir(dir))
	for _, f := range list {
		to, err := os.Readlink(filepath.Join(dir, f.Name()))
		if err == nil && (strings.HasPrefix(to, kind) || strings.HasSuffix(to, kind)) {
			n++
		}
	}
	return n
}
