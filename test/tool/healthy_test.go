package tool_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// healthy is a node that works, although a part of it looks like a fault.
type healthy struct {
	what   string
	list   string
	before string // commands before ADD
	after  string // commands after ADD
	ask    string // the argument of explain
	ports  []map[string]any
	need   string // a feature of the kernel
	isOurs bool   // the reference rejects the list
	more   string // the file of a second list, which also attaches the pod
	quick  bool   // also in make test
}

// loopbackList is the network that containerd attaches to each pod.
const loopbackList = `{"cniVersion": "0.3.1", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}`

// over returns a list with a main plugin that attaches containers to the network of an interface of the host.
func over(main string) string {
	return `{"cniVersion": "1.0.0", "name": "pods", "plugins": [` + strings.TrimSuffix(main, "}") + `,
	  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]}}]}`
}

// gateway returns a list of over with another subnet and gateway, and with a default route.
func gateway(subnet, addr, list string) string {
	return strings.NewReplacer(`"10.88.0.0/24"}]]`, fmt.Sprintf(`"%s", "gateway": "%s"}]], "routes": [{"dst": "%s/0"}]`,
		subnet, addr, map[bool]string{true: "::", false: "0.0.0.0"}[strings.Contains(addr, ":")])).Replace(list)
}

func healthyNodes() []healthy {
	const (
		uplink = "ip link add up0 type veth peer name switch0; ip link set up0 up; ip link set switch0 up"
		off    = "sysctl -qw net.ipv4.ip_forward=0"

		forwardDrops = "nft add chain ip site forward '{ type filter hook forward priority 0; policy drop; }'"
	)
	return []healthy{
		{what: "macvlan with ip_forward 0", list: over(`{"type": "macvlan", "master": "up0"}`), before: uplink,
			after: off, ask: "web-0", need: "macvlan"},
		{what: "host-device with ip_forward 0", list: over(`{"type": "host-device", "device": "up0"}`), before: uplink,
			after: off, ask: "web-0"},
		{what: "a bridge without an address, with ip_forward 0", list: over(`{"type": "bridge", "bridge": "cni0"}`),
			before: uplink + "; ip link add cni0 type bridge; ip link set cni0 up; ip link set up0 master cni0",
			after:  off, ask: "web-0"},
		{what: "results of version 0.2.0", list: strings.Replace(open, "1.0.0", "0.2.0", 1), ask: "8080",
			ports: []map[string]any{hostPort(8080, 80)}},
		{what: "IPv4 only, and the loopback that containerd attaches", list: usual, ask: "8080", quick: true,
			before: "sysctl -qw net.ipv6.conf.all.forwarding=0", ports: []map[string]any{hostPort(8080, 80)}},
		{what: "IPv6 only, with a policy of IPv4 that drops", ask: "web-0", need: "iptables", quick: true,
			list:   strings.NewReplacer("10.88.0.0/24", "fd00:88::/64", "0.0.0.0/0", "::/0").Replace(open),
			before: "iptables -P FORWARD DROP"},
		{what: "two networks", list: usual, before: second("more", "10.99.0.0/24"), ask: "web-0", quick: true,
			more: "/etc/cni/net.d/20-more.conflist"},
		{what: "CRI-O", list: strings.Replace(usual, "1.0.0", "0.4.0", 1), ask: "web-0",
			before: "mv " + listFile + " /etc/cni/net.d/100-crio-bridge.conflist; echo '" +
				strings.Replace(loopbackList, "cni-", "", 1) + "' >/etc/cni/net.d/200-loopback.conflist"},
		{isOurs: true, what: "macvlan with a link-local gateway", before: uplink, ask: "web-0", need: "macvlan",
			list: gateway("fd00:88::/64", "fe80::1", over(`{"type": "macvlan", "master": "up0"}`))},
		{isOurs: true, what: "a bridge with a link-local gateway", ask: "web-0",
			list: gateway("fd00:88::/64", "fe80::1", over(`{"type": "bridge", "isGateway": true}`))},
		{isOurs: true, what: "ptp with a gateway outside the subnet", ask: "web-0",
			list: gateway("10.88.0.0/24", "169.254.1.1", over(`{"type": "ptp"}`))},
		{what: "macvlan with a FORWARD chain that drops", list: over(`{"type": "macvlan", "master": "up0"}`),
			before: uplink, after: forwardDrops, ask: "web-0", need: "macvlan"},
		{what: "host-device with a FORWARD chain that drops", list: over(`{"type": "host-device", "device": "up0"}`),
			before: uplink, after: forwardDrops, ask: "web-0", quick: true},
		{what: "a bridge that a pair connects to another one", list: over(`{"type": "bridge", "bridge": "cni0"}`),
			before: `ip link add cni0 type bridge; ip link add lan0 type bridge; ip addr add 10.88.0.1/24 dev lan0
				ip link add veth01 type veth peer name veth02; ip link set veth01 master lan0 up
				ip link set veth02 master cni0 up; ip link set cni0 up; ip link set lan0 up`, ask: "web-0"},
		{what: "a pod that is starting", list: usual, ask: "web-0",
			after: `printf 'c9\r\neth0' >/var/lib/cni/networks/pods/10.88.0.9`},
	}
}

var _ = Describe("hawser on a healthy node", Label("tool-healthy"), func() {
	// guard drops packets to the loopback, as a kubelet does; the reference's portmap does not.
	const guard = `nft add table ip site; nft add chain ip site in '{ type filter hook prerouting priority -300 ; }'
		nft add rule ip site in iif != lo ip daddr 127.0.0.0/8 drop`
	looks := func(plugins func() string) func(h healthy) {
		return func(h healthy) {
			if h.need != "" {
				nstest.Need(h.need)
			}
			m := newMachine(plugins(), h.list)
			m.Cmd("sh", "-ec", h.before+"\n"+guard)
			p := m.up(newPod("c1c1c1", "web-0", h.ports...))
			lo := *p.rt
			lo.IfName, lo.CapabilityArgs = "lo", nil
			list := nstest.Must(libcni.NetworkConfFromBytes([]byte(loopbackList)))
			m.Do(func() { _, _ = m.cni.AddNetworkList(context.Background(), list, &lo) })
			if h.more != "" {
				net1 := *p.rt
				net1.IfName, net1.CapabilityArgs = "net1", nil
				m.Do(func() {
					second := nstest.Must(libcni.NetworkConfFromFile(h.more))
					_ = nstest.Must(m.cni.AddNetworkList(context.Background(), second, &net1))
				})
				Expect(m.says("ls")).To(MatchRegexp(`more +shop/web-0 +net1 +10\.99\.`))
			}
			m.Cmd("sh", "-ec", h.after)
			out := m.hawser("doctor")
			Expect([]any{out.Stdout, out.Exit}).To(Equal([]any{"nothing is wrong\n", 0}))
			Expect(m.says("reapply")).To(Equal("Nothing is missing.\n"))
			explained := m.says("explain", h.ask)
			Expect(explained).To(HaveSuffix("\nobstacles\n  none found; whether a process listens in the container " +
				"was not checked\n"))
			Expect(explained).NotTo(ContainSubstring("cni-loopback"))
			Expect(m.says("ls")).NotTo(ContainSubstring("cni-loopback"))
			Expect(m.says("ls", "--loopback")).To(ContainSubstring("cni-loopback"))
			Expect(m.says("metrics", "--check")).To(And(ContainSubstring("\nhawser_check_drift{"),
				Not(MatchRegexp(`hawser_check_drift.*[1-9]\n`))))
		}
	}
	table, ofOurs := []any{}, []any{}
	for _, h := range healthyNodes() {
		labels := Label()
		if h.need != "" {
			labels = append(labels, "kernel")
		}
		if !h.quick {
			labels = append(labels, "slow")
		}
		if entry := Entry(h.what, labels, h); h.isOurs {
			ofOurs = append(ofOurs, entry)
		} else {
			table = append(table, entry)
		}
	}
	DescribeTable("keeps a container whose processes outlive the path of its namespace", func(plugins func() string) {
		m := newMachine(plugins(), usual)
		p := m.up(newPod("c1c1c1", "web-0"))
		process := p.Start(nstest.Program{Path: "sleep", Args: []string{"600"}})
		p.Unpin()
		Expect(m.says("ls", "--orphans")).NotTo(ContainSubstring("web-0"))
		Expect(m.says("explain", "web-0")).NotTo(ContainSubstring("stops it"))
		m.says("reapply")
		Expect(m.hawser("doctor").Stdout).NotTo(ContainSubstring("orphan"))
		Expect(process.Process.Kill()).To(Succeed())
		_ = process.Wait()
		Eventually(func() string { return m.says("ls", "--orphans") }).Should(ContainSubstring("web-0"))
	}, Entry("of Hawser", ours), Entry("of the reference", Label("slow"), reference))

	DescribeTable("finds nothing wrong", append(append([]any{looks(all)}, ofOurs...), table...)...)
	DescribeTable("finds nothing wrong with the reference's plugins", append([]any{Label("slow"), looks(reference)},
		table...)...)
})
