// Package pods is what specs under different runtimes have in common: the network
// that a user would configure, and the traffic that must work in it.
package pods

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// Port is where every pod serves, on TCP and UDP.
const Port = "80"

// Network is what differs between the networks of the specs.
type Network struct {
	Version  string // of the configuration; "1.0.0" when empty
	Versions string // list of cniVersions, as JSON; for libraries that know it
	Backend  string // "nftables" or "iptables"; none when empty
	Last     string // last address of a short range, and STATUS fails when it is full
	IPv6     bool   // beside IPv4
	PTP      bool   // ptp instead of bridge
}

// Sysctl is the one that tuning sets in each pod, and its value.
const (
	Sysctl      = "net/core/somaxconn"
	SysctlValue = "777"
)

// Conflist is a network of bridge or ptp, portmap, firewall and tuning, which is podman's
// order, as the file that a user writes.
func (n Network) Conflist() string {
	version, versions, masq, backend, end, full := "1.0.0", "", "", "", "10.88.0.254", "warn"
	main, route, subnet := `"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true`, "", ""
	if n.PTP {
		main = `"type": "ptp"`
	}
	if n.Version != "" {
		version = n.Version
	}
	if n.Versions != "" {
		versions = `, "cniVersions": ` + n.Versions
	}
	if n.Backend != "" {
		masq, backend = fmt.Sprintf(`, "ipMasqBackend": %q`, n.Backend), fmt.Sprintf(`, "backend": %q`, n.Backend)
	}
	if n.Last != "" {
		end, full = n.Last, "fail"
	}
	if n.IPv6 {
		route, subnet = `, {"dst": "::/0"}`, `, [{"subnet": "fd00:88::/64"}]`
	}
	return fmt.Sprintf(`{"cniVersion": %[1]q%[2]s, "name": "pods", "plugins": [
  {%[3]s, "ipMasq": true%[4]s,
   "ipam": {"type": "host-local", "routes": [{"dst": "0.0.0.0/0"}%[5]s],
    "ranges": [[{"subnet": "10.88.0.0/24", "rangeStart": "10.88.0.2", "rangeEnd": %[6]q}]%[7]s],
    "statusOnExhaustion": %[8]q}},
  {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true%[9]s},
  {"type": "firewall"%[9]s},
  {"type": "tuning", "sysctl": {"net.core.somaxconn": %[10]q}}
]}
`, version, versions, main, masq, route, end, subnet, full, backend, SysctlValue)
}

// Pod is a container that runs: its network namespace and its addresses.
type Pod struct {
	*nstest.Host
	Addr  string // of IPv4
	Addr6 string // of IPv6; empty where the network has none
}

// At is the pod whose network namespace is pinned at path. Of each family it has
// one address, or none; empty ones do not count.
func At(path string, addrs ...string) Pod {
	p := Pod{Host: &nstest.Host{Name: path, Path: path}}
	for _, addr := range addrs {
		switch {
		case strings.Contains(addr, ":"):
			p.Addr6 = addr
		case addr != "":
			p.Addr = addr
		}
	}
	return p
}

// Serve answers on the pod's port, for pods in which nothing else does.
func (p Pod) Serve() Pod {
	ginkgo.GinkgoHelper()
	// Not "tcp" and "udp": Go looks once, at the first one, whether a namespace has IPv6, and in
	// a new one lo is down.
	for _, network := range []string{"tcp4", "tcp6", "udp4", "udp6"} {
		p.Host.Serve(network, ":"+Port)
	}
	return p
}

// ExpectUp looks at the pod from within.
func (p Pod) ExpectUp() {
	ginkgo.GinkgoHelper()
	gomega.Expect(p.Cmd("ip", "-4", "-o", "addr", "show", "dev",
		"eth0")).To(gomega.ContainSubstring(" " + p.Addr + "/24 "))
	gomega.Expect(p.Cmd("ip", "-br", "link", "show", "dev", "eth0")).To(gomega.ContainSubstring("LOWER_UP"))
	gomega.Expect(p.Cmd("ip", "-br", "link", "show", "dev", "lo")).To(gomega.ContainSubstring("LOWER_UP"))
	gomega.Expect(p.Cmd("ip", "route", "show", "default")).To(gomega.ContainSubstring("via 10.88.0.1 dev eth0"))
	if p.Addr6 != "" {
		gomega.Expect(p.Cmd("ip", "-6", "-o", "addr", "show", "dev",
			"eth0")).To(gomega.ContainSubstring(" " + p.Addr6 + "/64 "))
		gomega.Expect(p.Cmd("ip", "-6", "route", "show",
			"default")).To(gomega.ContainSubstring("via fd00:88::1 dev eth0"))
	}
	gomega.Expect(p.Sysctl(Sysctl)).To(gomega.Equal(SysctlValue))
}

// Traffic is a host, a machine one hop away from it, and ports of the host that are
// published for the server of a pod.
type Traffic struct {
	Host, Outside *nstest.Host
	Published     string // a port, TCP and UDP, on all addresses of the host
	OnUplink      string // a port, TCP, on HostAddr and HostAddr6 alone; none when empty
	// SeesNeighbours: through a published port the server sees a neighbour's own
	// address, as on nftables where all answers pass the host (ptp).
	SeesNeighbours bool
	// Say receives a line for each conversation, unless it is nil.
	Say func(line string)
}

// What a host has on its uplink.
const (
	HostAddr  = "192.0.2.1"
	HostAddr6 = "2001:db8::1"
)

// family has the addresses of all parties in one of the two families.
type family struct{ gateway, host, outside, loopback string }

var (
	ipv4 = family{"10.88.0.1", HostAddr, "192.0.2.2", "127.0.0.1"}
	ipv6 = family{"fd00:88::1", HostAddr6, "2001:db8::2", "::1"}
)

// asks asks until the server is there, and compares whom it saw.
func (w Traffic) asks(from *nstest.Host, network, address, seen string) {
	ginkgo.GinkgoHelper()
	what := fmt.Sprintf("%s asks %s %s", from.Name, network, address)
	ask := func() (string, error) { return from.Ask(network, address) }
	gomega.Eventually(ask).Should(gomega.HavePrefix(net.JoinHostPort(seen, "")), what)
	w.say("%-42s seen as %s", what, seen)
}

func (w Traffic) say(format string, args ...any) {
	if w.Say != nil {
		w.Say(fmt.Sprintf(format, args...))
	}
}

// Expect talks to the server, the pod behind the published ports, from
// everywhere, and lets the client talk to the outside; in IPv6 too where they have it.
func (w Traffic) Expect(client, server Pod) {
	ginkgo.GinkgoHelper()
	w.expect(ipv4, client, server, client.Addr, server.Addr)
	if server.Addr6 != "" {
		w.expect(ipv6, client, server, client.Addr6, server.Addr6)
	}
}

func (w Traffic) expect(f family, client, server Pod, clientAddr, serverAddr string) {
	ginkgo.GinkgoHelper()
	outside := w.Outside.Serve("tcp", net.JoinHostPort(f.outside, "0"))
	w.asks(client.Host, "tcp", outside, f.host) // masqueraded
	neighbour := f.gateway
	if w.SeesNeighbours {
		neighbour = clientAddr
	}
	pod, published := net.JoinHostPort(serverAddr, Port), net.JoinHostPort(f.host, w.Published)
	for _, network := range []string{"tcp", "udp"} {
		w.asks(client.Host, network, pod, clientAddr)
		w.asks(w.Host, network, pod, f.gateway)
		w.asks(w.Outside, network, published, f.outside)
		w.asks(w.Host, network, published, f.host)
		w.asks(client.Host, network, published, neighbour)
		w.asks(server.Host, network, published, f.gateway) // hairpin
		if f == ipv4 {                                     // IPv6 forwards nothing from ::1
			w.asks(w.Host, network, net.JoinHostPort(f.loopback, w.Published), f.gateway)
		}
	}
	if w.OnUplink != "" {
		w.asks(w.Outside, "tcp", net.JoinHostPort(f.host, w.OnUplink), f.outside)
		_, err := w.Host.Ask("tcp", net.JoinHostPort(f.loopback, w.OnUplink))
		gomega.Expect(err).To(gomega.MatchError(gomega.ContainSubstring("refused")))
	}
}

// ExpectDropped expects of a host that forwards nothing that it and the pod reach each other,
// and that neither the pod reaches the outside nor the outside its published TCP port.
func (w Traffic) ExpectDropped(pod Pod) {
	ginkgo.GinkgoHelper()
	for addr, f := range map[string]family{pod.Addr: ipv4, pod.Addr6: ipv6} {
		published := net.JoinHostPort(f.host, w.Published)
		w.asks(w.Host, "tcp", published, f.host)
		w.asks(pod.Host, "tcp", w.Host.Serve("tcp", net.JoinHostPort(f.gateway, "0")), addr)
		outside := w.Outside.Serve("tcp", net.JoinHostPort(f.outside, "0"))
		for from, address := range map[*nstest.Host]string{pod.Host: outside, w.Outside: published} {
			answer, err := from.AskWithin(nstest.Patience(time.Second/2), "tcp", address)
			gomega.Expect(err).To(gomega.HaveOccurred(), answer)
			w.say("%-42s no answer", fmt.Sprintf("%s asks tcp %s", from.Name, address))
		}
	}
}

// ExpectNothingLeft waits until nothing of any pod exists: links, which the kernel removes some time after their
// namespace, leases, rules, records.
func ExpectNothingLeft(host *nstest.Host) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func() []string { return plugintest.Leftovers(host) }).Should(gomega.BeEmpty())
}

// ExpectGone is ExpectNothingLeft except for our records, which the reference does not know.
func ExpectGone(host *nstest.Host) {
	ginkgo.GinkgoHelper()
	isRecord := func(line string) bool { return strings.HasPrefix(line, "/run/") }
	gomega.Eventually(func() []string {
		return slices.DeleteFunc(plugintest.Leftovers(host), isRecord)
	}).Should(gomega.BeEmpty())
}

// Settle returns when none of the plugins in dir runs any more: those of a killed runtime go on.
func Settle(dir string) {
	ginkgo.GinkgoHelper()
	gomega.Eventually(func() []string {
		var running []string
		links, _ := filepath.Glob("/proc/[0-9]*/exe")
		for _, link := range links {
			if exe, err := os.Readlink(link); err == nil && filepath.Dir(exe) == dir {
				running = append(running, exe)
			}
		}
		return running
	}).Should(gomega.BeEmpty())
}

// Leases are the addresses that host-local has lent.
func Leases(host *nstest.Host) []string {
	ginkgo.GinkgoHelper()
	// The directory is made by the first ADD.
	out := host.Run(nstest.Program{Path: "find", Args: []string{
		"/var/lib/cni/networks/pods", "(", "-name", "10.88.0.*", "-o", "-name", "fd00:88::*", ")", "-printf", "%f\\n"}})
	return strings.Fields(out.Stdout)
}
