package tool_test

import (
	"fmt"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

type explanation struct {
	Attachments []attachment
	Links       []struct{ Name, Kind, Master, State string }
	Way         []struct{ Table, Chain, Hook string }
	Stops       []struct{ Verdict, Why string }
}

func stops(e explanation, verdict string) (why []string) {
	for _, s := range e.Stops {
		if s.Verdict == verdict {
			why = append(why, s.Why)
		}
	}
	return why
}

var _ = Describe("hawser explain", Label("tool-explain"), func() {
	explains := func(m *machine, what string) explanation {
		GinkgoHelper()
		return asks[explanation](m, "explain", what)
	}

	It("reports an unreadable list once", func() {
		m := newMachine(ours(), usual)
		m.write(listFile, "{")
		const says = "hawser: " + listFile + ": unexpected end of JSON input (line 1)\n"
		Expect(m.hawser("explain").Stderr).To(Equal(says))
	})

	for name, plugins := range map[string]func() string{
		"Hawser's": ours, "the reference's": func() string { return nstest.Newest().Dir() },
	} {
		more := Label()
		if name != "Hawser's" {
			more = Label("slow")
		}
		It("finds a container by each of its properties, with "+name+" plugins", more, func() {
			m := newMachine(plugins(), usual)
			m.up(newPod("0123456789abcdef", "web-0", hostPort(8080, 80)))
			m.up(newPod("fedcba9876543210", "web-1"))
			var ends []struct{ IfName string }
			m.JSON(&ends, "ip", "-j", "link", "show", "type", "veth")
			for _, what := range []string{"0123456", "web-0", "shop/web-0", "10.88.0.2", "8080", "8080/tcp",
				"192.0.2.1:8080"} {
				e := explains(m, what)
				Expect(e.Attachments).To(HaveLen(1), what)
				Expect(e.Attachments[0].ContainerID).To(Equal("0123456789abcdef"))
				Expect(e.Links).To(ConsistOf(HaveField("Kind", "veth"), HaveField("Name", "cni0")))
			}
			Expect(explains(m, "cni0").Attachments).To(HaveLen(2))
			Expect(explains(m, ends[0].IfName).Attachments).To(HaveLen(1))
			for _, what := range []string{"8081", "8080/udp", "10.88.0.99", "nobody", "eth7"} {
				out := m.hawser("explain", what)
				Expect([]any{out.Exit, out.Stdout}).To(Equal([]any{1, ""}))
				Expect(out.Stderr).To(ContainSubstring(`no attachment or interface is called "` + what +
					`"; give the ID, pod or address of a container, a host port (8080, 8080/udp, 10.0.0.1:8080) or ` +
					"an interface of the host"))
			}
		})

		It("prints the networks as a tree, with "+name+" plugins", more, func() {
			m := newMachine(plugins(), usual)
			m.up(newPod("0123456789abcdef", "web-0", hostPort(8080, 80)))
			m.up(newPod("fedcba9876543210", "web-1"))
			lines := strings.Split(strings.TrimSpace(m.says("explain")), "\n")
			Expect(lines).To(HaveExactElements(
				Equal("pods  bridge, portmap, firewall  /etc/cni/net.d/10-pods.conflist"),
				MatchRegexp(`^└─ cni0  bridge  up  10\.88\.0\.1/24`),
				MatchRegexp(`^   ├─ shop/web-0  eth0  10\.88\.0\.2  veth\w+  .*8080`),
				MatchRegexp(`^   └─ shop/web-1  eth0  10\.88\.0\.3  veth\w+`)))
		})
	}

	It("finds a container by an address that dhcp assigned", func() {
		nstest.Build("dhcp")
		m := newMachine(ours(), `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
			{"type": "bridge", "bridge": "cni0", "ipam": {"type": "dhcp"}}]}`)
		m.IP("link add cni0 type bridge", "link set cni0 up", "addr add 10.88.0.1/24 dev cni0")
		plugintest.DHCPDaemon(m.Host, "/opt/cni/bin")
		plugintest.ServeDHCP(m.Host, "cni0", "10.88.0.50,10.88.0.50")
		m.up(newPod("c1", "web-0"))
		Expect(explains(m, "10.88.0.50").Attachments).To(ConsistOf(
			HaveField("Addresses", []string{"10.88.0.50"})))
	})

	It("shows the path of a packet, and where Hawser's rules act on it", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		Expect(m.says("explain", "8080")).To(MatchRegexp(
			`(?s)ing -99 +table inet hawser, chain portmap_prerouting_v1 .*host ports of packets that arrive.*` +
				`8080/tcp to 10\.88\.0\.2:80.*forward .*chain firewall_forward\w*.*10\.88\.0\.2 nftables policy open` +
				`.*postrouting 100 .*masq_v2.*source NAT of containers; 10\.88\.0\.2`))
	})

	It("names the rules that stop a packet, and those that may stop it", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		m.Cmd("sysctl", "-qw", "net.ipv4.ip_forward=1")
		m.Cmd("nft", "flush", "chain", "ip", "filter", "FORWARD")
		Expect(stops(explains(m, "8080"), "stops it")).To(BeEmpty())
		const base = "add chain inet x %s { type filter hook %s priority %d; policy %s; }\n"
		m.write("/etc/cni/net.d/x.nft", "add table inet x\nadd table ip6 y\n"+
			fmt.Sprintf(base, "closed", "forward", 5, "drop")+
			fmt.Sprintf(base, "half", "forward", 6, "drop")+"add rule inet x half iifname lo accept\n"+
			fmt.Sprintf(base, "doubt", "forward", 6, "drop")+"add rule inet x doubt meta l4proto tcp accept\n"+
			fmt.Sprintf(base, "wall", "prerouting", 7, "accept")+"add rule inet x wall counter drop\n"+
			fmt.Sprintf(base, "late", "postrouting", 8, "accept")+
			"add rule inet x late iifname lo accept\nadd rule inet x late counter drop\n"+
			fmt.Sprintf(base, "some", "forward", 9, "accept")+"add rule inet x some ip daddr 192.0.2.1 drop\n"+
			fmt.Sprintf(base, "own", "input", 9, "drop")+
			strings.ReplaceAll(fmt.Sprintf(base, "six", "forward", 5, "drop"), "inet x", "ip6 y"))
		m.Cmd("nft", "-f", "/etc/cni/net.d/x.nft")
		m.Cmd("sysctl", "-qw", "net.ipv4.ip_forward=0")
		for _, what := range []string{"8080", "10.88.0.2"} {
			e := explains(m, what)
			Expect(stops(e, "stops it")).To(ConsistOf(
				"bridge: sysctl net.ipv4.ip_forward: is 0, so the host does not forward what containers send",
				"table inet x, chain closed at forward: its policy is drop, and it has no rules",
				"table inet x, chain half at forward: its policy is drop, and none of its rules accepts the packet",
				"table inet x, chain late at postrouting: its rule 2 drops every packet that no earlier rule accepts",
				"table inet x, chain wall at prerouting: its first rule drops every packet"))
			Expect(stops(e, "may stop it")).To(ConsistOf(HavePrefix("firewall: "),
				"table inet x, chain doubt at forward: its policy is drop, unless one of its rules accepts the packet"))
		}
	})

	It("does not confuse a rule that accepts what the container sends with one that accepts the answers", func() {
		m := newMachine(ours(), open)
		m.up(newPod("c1", "web-0"))
		m.Cmd("sh", "-ec", siteDrops+"nft add rule inet site forward iifname cni0 accept")
		const drops = "table inet site, chain forward at forward: its policy is drop, and none of its rules accepts " +
			"the packet"
		Expect(stops(explains(m, "web-0"), "stops it")).To(ConsistOf(drops))
		m.Cmd("nft", "add rule inet site forward iifname cni0 ip saddr 10.88.0.0/24 accept")
		Expect(stops(explains(m, "web-0"), "stops it")).To(ConsistOf(drops))
		m.Cmd("nft", "add", "rule", "inet", "site", "forward", "ct", "state", "established", "accept")
		Expect(m.says("explain", "web-0")).To(ContainSubstring("none found"))
	})

	It("names what stops new connections to a host port, and recognizes a bridge by its index", func() {
		m := newMachine(ours(), open)
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		m.Cmd("sh", "-ec", siteDrops+`nft add chain inet site inner
		nft add rule inet site forward iif cni0 accept; nft add rule inet site forward ct state established accept`)
		Expect(m.says("explain", "web-0")).To(ContainSubstring("none found"))
		Expect(stops(explains(m, "8080"), "stops it")).To(ConsistOf("table inet site, chain forward at forward: its " +
			"policy is drop, and none of its rules accepts the packet"))
		m.Cmd("sh", "-ec", `nft add rule inet site forward oifname cni0 jump inner
		nft add rule inet site inner ip daddr 10.88.0.0/24 drop`)
		Expect(stops(explains(m, "8080"), "stops it")).To(ConsistOf("table inet site, chain forward at forward: " +
			"rule 1 of its chain inner drops packets of this interface or network"))
		m.Cmd("nft", "add", "rule", "inet", "site", "forward", "oif", "cni0", "accept")
		m.Cmd("nft", "flush", "chain", "inet", "site", "inner")
		Expect(m.says("explain", "8080")).To(ContainSubstring("none found"))
	})

	It("reads settings of the host if CHECK is disabled", func() {
		m := newMachine(ours(), strings.Replace(usual, `"plugins"`, `"disableCheck": true, "plugins"`, 1))
		m.up(newPod("c1", "web-0"))
		m.Cmd("sysctl", "-qw", "net.ipv4.ip_forward=0")
		Expect(stops(explains(m, "10.88.0.2"), "stops it")).To(ConsistOf(
			"net.ipv4.ip_forward is 0, so the host does not forward packets"))
	})

	It("reports that a port's bridge is down, or that its owner no longer exists", func() {
		m := newMachine(ours(), usual)
		p := m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		m.Cmd("ip", "link", "set", "cni0", "down")
		Expect(stops(explains(m, "8080"), "stops it")).To(ContainElement("interface cni0 is down"))
		p.Unpin()
		Eventually(func() []string { return stops(explains(m, "8080"), "stops it") }).Should(
			ContainElement(ContainSubstring("no longer exists")))
	})

	It("says that drift which affects only some packets, and routes elsewhere, may stop them", func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		m.Cmd("sh", "-ec", "nft flush chain inet hawser masq_v2; sysctl -qw net.ipv4.conf.cni0.route_localnet=0")
		for _, what := range []string{"web-0", "8080"} {
			e := explains(m, what)
			Expect(stops(e, "stops it")).To(BeEmpty())
			Expect(stops(e, "may stop it")).To(ConsistOf(HavePrefix("bridge: masquerade: "), HavePrefix("portmap: ")))
		}
		m.Cmd("ip", "route", "add", "blackhole", "10.88.0.2/32")
		Expect(stops(explains(m, "web-0"), "may stop it")).To(ContainElement("the host has no route to 10.88.0.2"))
		m.Cmd("sh", "-ec", `ip route del blackhole 10.88.0.2/32; ip link add up0 type bridge; ip link set up0 up
			ip route add 10.88.0.2/32 dev up0`)
		Expect(stops(explains(m, "web-0"), "may stop it")).To(ContainElement(
			"the host's route to 10.88.0.2 does not lead to cni0"))
	})

	for name, plugins := range map[string]func() string{"Hawser's": ours, "the reference's": reference} {
		It("blames no chained plugin for a missing bridge, with "+name+" plugins", func() {
			m := newMachine(plugins(), usual)
			m.Cmd("sh", "-ec", defaultRoute)
			m.up(newPod("c1", "web-0", hostPort(8080, 80)))
			for _, breaks := range []string{"ip addr flush dev cni0", "ip link set cni0 down", "ip link del cni0"} {
				m.Cmd("sh", "-c", breaks)
				Expect(m.says("explain", "8080")).NotTo(ContainSubstring("stop it: portmap"), breaks)
				drifts := regexp.MustCompile(`error drift: .*`).FindAllString(m.hawser("doctor").Stdout, -1)
				Expect(drifts).To(HaveExactElements(ContainSubstring(`on "pods": bridge: `)), breaks)
			}
		})
	}

	DescribeTable("reports missing objects of the container", func(plugins func() string) {
		m := newMachine(plugins(), usual)
		p := m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		m.Cmd("nft", "flush", "ruleset")
		Expect(m.says("explain", "8080")).To(And(ContainSubstring("no chain of nftables or iptables"),
			MatchRegexp("obstacles\n(?s:.*)  stops it: portmap: ")))
		m.Cmd("nft", "add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; }")
		p.IP("addr flush dev eth0")
		Expect(stops(explains(m, "8080"), "stops it")).To(ContainElements(HavePrefix("portmap: "),
			ContainSubstring(`link "eth0": address 10.88.0.2/24: missing`)))
	}, Entry("of Hawser's plugins", ours), Entry("of the reference's plugins", Label("slow"), nstest.Newest().Dir))

	It("reads iptables-legacy if the node has such a table", Label("kernel"), func() {
		m := newMachine(ours(), usual)
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		legacy := nstest.Program{Path: "/usr/sbin/iptables-legacy", Args: []string{"-P", "FORWARD", "DROP"}}
		if m.Run(legacy).Exit != 0 {
			Skip("this kernel has no ip_tables")
		}
		Expect(stops(explains(m, "8080"), "stops it")).To(ContainElement(
			ContainSubstring("table legacy ip filter, chain FORWARD")))
		m.Cmd("iptables-legacy", "-A", "FORWARD", "-p", "tcp", "-j", "ACCEPT")
		Expect(stops(explains(m, "8080"), "may stop it")).To(ContainElement(
			ContainSubstring("table legacy ip filter, chain FORWARD")))
	})
})
