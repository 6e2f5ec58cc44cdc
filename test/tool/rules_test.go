package tool_test

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// rulesOf returns an nft ruleset with a table site, whose chain forward drops all packets except answers and those that
// the rules accept. The rules can use the chain other, the counter c, the quota q and the limit l.
func rulesOf(rules, other string) string {
	lines := func(text string) string { return strings.ReplaceAll(text, "; ", "\n") }
	return "add table inet site\ndelete table inet site\ntable inet site {\ncounter c {}\nquota q { over 1 mbytes }\n" +
		"limit l { rate 1/second }\nchain other {\n" + lines(other) + "\n}\nchain forward {\n" +
		"type filter hook forward priority 10; policy drop\nct state established accept\n" + lines(rules) + "\n}\n}\n"
}

// defaultRoute contains commands that give the node an uplink.
const defaultRoute = `ip link add e0 type veth peer name switch0; ip link set e0 up; ip link set switch0 up
	ip addr add 192.0.2.77/24 dev e0; ip route replace default dev e0`

// Rulesets of other programs, as they write them, without rules that do not concern forwarded packets.
const (
	// docker28 is the filter table of Docker 28.3 with its default network and a container that publishes a port.
	docker28 = `*filter
:FORWARD DROP [0:0]
:DOCKER - [0:0]
:DOCKER-BRIDGE - [0:0]
:DOCKER-CT - [0:0]
:DOCKER-FORWARD - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT
-A DOCKER ! -i docker0 -o docker0 -j DROP
-A DOCKER-BRIDGE -o docker0 -j DOCKER
-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1
-A DOCKER-FORWARD -j DOCKER-BRIDGE
-A DOCKER-FORWARD -i docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-USER -j RETURN
COMMIT
`
	// ufw is the filter table of ufw 0.36 with its default policies.
	ufw = `*filter
:FORWARD DROP [0:0]
:ufw-after-forward - [0:0]
:ufw-after-logging-forward - [0:0]
:ufw-before-forward - [0:0]
:ufw-before-logging-forward - [0:0]
:ufw-reject-forward - [0:0]
:ufw-track-forward - [0:0]
:ufw-user-forward - [0:0]
-A FORWARD -j ufw-before-logging-forward
-A FORWARD -j ufw-before-forward
-A FORWARD -j ufw-after-forward
-A FORWARD -j ufw-after-logging-forward
-A FORWARD -j ufw-reject-forward
-A FORWARD -j ufw-track-forward
-A ufw-after-logging-forward -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix "[UFW BLOCK] "
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -p icmp -m icmp --icmp-type 3 -j ACCEPT
-A ufw-before-forward -p icmp -m icmp --icmp-type 11 -j ACCEPT
-A ufw-before-forward -p icmp -m icmp --icmp-type 12 -j ACCEPT
-A ufw-before-forward -p icmp -m icmp --icmp-type 8 -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
COMMIT
`
	// calico is the filter table of Calico 3.29 in mode iptables.
	calico = `*filter
:FORWARD ACCEPT [0:0]
:cali-FORWARD - [0:0]
:cali-cidr-block - [0:0]
:cali-from-hep-forward - [0:0]
:cali-from-wl-dispatch - [0:0]
:cali-to-hep-forward - [0:0]
:cali-to-wl-dispatch - [0:0]
-A FORWARD -m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD
-A FORWARD -m comment --comment "cali:S93hcgKJrXEqnTfs" -m mark --mark 0x10000/0x10000 -j ACCEPT
-A FORWARD -m comment --comment "cali:mp77cMpurHhyjLrM" -j MARK --set-xmark 0x10000/0x10000
-A cali-FORWARD -j MARK --set-xmark 0x0/0xe0000
-A cali-FORWARD -m mark --mark 0x0/0x10000 -j cali-from-hep-forward
-A cali-FORWARD -i cali+ -j cali-from-wl-dispatch
-A cali-FORWARD -o cali+ -j cali-to-wl-dispatch
-A cali-FORWARD -j cali-to-hep-forward
-A cali-FORWARD -j cali-cidr-block
-A cali-from-wl-dispatch -m comment --comment "Unknown interface" -j DROP
-A cali-to-wl-dispatch -m comment --comment "Unknown interface" -j DROP
COMMIT
`
	// kubeProxy is the table of kube-proxy 1.33 in mode nftables with a service that has no endpoints.
	kubeProxy = `table ip kube-proxy {
	set cluster-ips { type ipv4_addr; elements = { 10.96.0.1, 10.96.0.10 } }
	map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict
		elements = { 10.96.0.10 . tcp . 53 : goto reject-chain } }
	map firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
	chain reject-chain { reject; }
	chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
	chain cluster-ips-check { ip daddr @cluster-ips reject; ip daddr { 10.96.0.0/12 } drop; }
	chain firewall-check { ip daddr . meta l4proto . th dport vmap @firewall-ips; }
	chain filter-prerouting { type filter hook prerouting priority dstnat - 10; ct state new jump firewall-check; }
	chain filter-forward { type filter hook forward priority -110
		ct state new jump service-endpoints-check
		ct state new jump cluster-ips-check
	}
}
`
	// docker29 is the table of Docker 29 with the backend nftables.
	docker29 = `table ip docker-bridges {
	map filter-forward-in-jumps { type ifname : verdict; elements = { "docker0" : jump filter-forward-in__docker0 } }
	map filter-forward-out-jumps { type ifname : verdict; elements = { "docker0" : jump filter-forward-out__docker0 } }
	chain filter-FORWARD { type filter hook forward priority filter; policy accept
		oifname vmap @filter-forward-in-jumps
		iifname vmap @filter-forward-out-jumps
	}
	chain filter-forward-in__docker0 {
		ct state established,related counter accept
		iifname "docker0" counter accept
		counter drop comment "UNPUBLISHED PORT DROP"
	}
	chain filter-forward-out__docker0 { ct state established,related counter accept; counter accept; }
	chain raw-PREROUTING { type filter hook prerouting priority raw
		ip daddr 172.17.0.2 iifname != "docker0" counter drop comment "DROP DIRECT ACCESS"
	}
}
`
)

var _ = Describe("hawser on a node with rules of other programs", Label("tool-explain", "tool-rules"), func() {
	It("evaluates sets, maps, jumps and objects of nftables", func() {
		const (
			at      = "table inet site, chain forward at forward: "
			none    = "stops it: " + at + "its policy is drop, and none of its rules accepts the packet"
			perhaps = "may stop it: " + at + "its policy is drop, unless one of its rules accepts the packet"
			icmp    = "stops it: " + at + "its policy is drop, and its rules accept only ICMP"
			second  = "stops it: " + at + "its rule 2 drops packets of this interface or network"
			passes  = "none found"
		)
		m := newMachine(ours(), open)
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		m.Cmd("sh", "-ec", defaultRoute)
		for _, spec := range []struct{ rules, other, says string }{
			{`ip saddr { 10.0.0.0/8, 192.168.0.0/16 } accept`, "", passes},
			{`ip saddr { 10.88.0.1-10.88.0.9, 10.99.0.1 } accept`, "", passes},
			{`ip saddr { 10.88.0.3-10.88.0.9, 10.99.0.1 } accept`, "", none},
			{`ip saddr { 224.0.0.0/3, 10.88.0.2 } accept`, "", passes},
			{`ip saddr { 10.88.0.0-10.88.0.1, 10.88.0.3-255.255.255.255 } accept`, "", none},
			{`ip saddr != { 10.99.0.0/16, 10.100.0.0/16 } accept`, "", passes},
			{`ip saddr != { 10.88.0.0/16 } accept`, "", none},
			{`ip daddr { 192.0.2.0/24 } accept`, "", perhaps},
			{`ip daddr 10.88.0.0/16 drop; accept`, "", "may " + strings.Replace(second, "stops", "stop", 1)},
			{`iifname cni0 reject; accept`, "", second},
			{`ip saddr & 0.0.0.255 == 0.0.0.7 accept`, "", perhaps},
			{`iifname { "cni*", "e9*" } accept`, "", passes},
			{`iifname { "veth*", "cni0", "e9*" } accept`, "", passes},
			{`iifname { "veth*", "cni1", "e9*" } accept`, "", none},
			{`iifname vmap { "cni0" : drop, "e9" : accept }; accept`, "", second},
			{`iifname vmap { "cni*" : jump other, "e9*" : drop }`, "accept", passes},
			{`iifname vmap { "cni0" : goto other }; accept`, "counter", none},
			{`iifname vmap { "cni0" : return, "e9" : drop }; accept`, "", none},
			{`ip saddr vmap { 10.88.0.0/16 : drop, 10.99.0.0/16 : accept }; accept`, "", second},
			{`ip saddr vmap { 10.99.0.0/16 : drop, 10.0.0.0/12 : drop }; iifname cni0 accept`, "", passes},
			{`goto other; accept`, "ip saddr 10.99.0.0/16 accept", none},
			{`goto other`, "ip saddr { 10.88.0.0/16, 10.99.0.0/16 } counter accept", passes},
			{`counter name c accept`, "", passes},
			{`quota name "q" accept`, "", perhaps}, {`limit name "l" accept`, "", perhaps},
			{`limit rate 9/second accept`, "", perhaps}, {`tcp dport vmap { 80 : accept }`, "", perhaps},
			{`meta l4proto { icmp, icmpv6 } accept`, "", icmp}, {`ip protocol icmp accept`, "", icmp},
			{`meta l4proto != icmp accept`, "", passes}, {`meta l4proto { tcp, icmp } accept`, "", perhaps},
		} {
			m.write("/run/site.nft", rulesOf(spec.rules, spec.other))
			m.Cmd("nft", "-f", "/run/site.nft")
			Expect(m.says("explain", "web-0")).To(ContainSubstring("obstacles\n  "+spec.says), spec.rules)
		}
		m.write("/run/site.nft", rulesOf("iifname cni0 accept; ct status dnat accept", ""))
		m.Cmd("nft", "-f", "/run/site.nft")
		Expect(m.says("explain", "8080")).To(ContainSubstring("obstacles\n  "+passes), "ct status dnat")
		m.write("/run/site.nft", strings.NewReplacer("policy drop", "policy accept").Replace(
			rulesOf("iifname cni0 jump other", "ip saddr 10.88.0.0/16 drop")))
		m.Cmd("nft", "-f", "/run/site.nft")
		Expect(m.says("explain", "web-0")).To(ContainSubstring(
			"stops it: " + at + "rule 1 of its chain other drops packets of this interface or network"))
	})

	const policy = "table ip filter, chain FORWARD at forward: its policy is drop, and "
	const refused = "none of its rules accepts the packet"
	noRule := func(program, lacks string) string {
		return "error drop-policy: chain ip filter FORWARD of " + program + " drops packets and has no rule that " +
			lacks + " containers of "
	}
	accept := func(program string) string {
		return program + " -I DOCKER-USER -s 10.88.0.0/24 -j ACCEPT; " + program + " -I DOCKER-USER -d 10.88.0.0/24 " +
			"-j ACCEPT"
	}
	DescribeTable("reports only relevant drops", func(need, program, rules, says, explained, remedy string) {
		if need != "" {
			nstest.Need(need)
		}
		m := newMachine(ours(), open)
		m.Cmd("sh", "-ec", defaultRoute+"\nip link add docker0 type bridge; ip link set docker0 up")
		m.up(newPod("c1", "web-0", hostPort(8080, 80)))
		m.write("/run/rules", rules)
		m.Cmd("sh", "-ec", program+" /run/rules")
		if says != "" {
			Expect(m.hawser("doctor").Stdout).To(HavePrefix(says))
			Expect(m.says("explain", "web-0")).To(ContainSubstring("obstacles\n  stops it: " + explained))
			m.Cmd("sh", "-ec", remedy)
		}
		Expect(m.hawser("doctor").Stdout).NotTo(ContainSubstring("drop-policy"))
		for _, what := range []string{"web-0", "8080"} {
			Expect(m.says("explain", what)).To(ContainSubstring("obstacles\n  none found"), what)
		}
	},
		Entry("of Docker 28", Label("kernel"), "iptables", "iptables-restore -n", docker28,
			noRule("nf_tables", "accepts packets of"), policy+refused, accept("iptables")),
		Entry("of Docker 28 with iptables-legacy", Label("kernel", "slow"), "iptables-legacy",
			"iptables-legacy-restore -n", docker28, noRule("iptables-legacy", "accepts packets of"),
			"table legacy"+strings.TrimPrefix(policy, "table")+refused,
			accept("iptables-legacy")),
		Entry("of Docker 29 with nftables", "", "nft -f", docker29, "", "", ""),
		Entry("of ufw", Label("kernel"), "iptables", "iptables-restore -n", ufw,
			noRule("nf_tables", "accepts packets other than ICMP from"), policy+"its rules accept only ICMP",
			"iptables -A ufw-user-forward -i cni0 -j ACCEPT; iptables -A ufw-user-forward -o cni0 -j ACCEPT"),
		Entry("of Calico", Label("kernel"), "iptables", "iptables-restore -n", calico, "", "", ""),
		Entry("of kube-proxy with nftables", "", "nft -f", kubeProxy, "", "", ""),
	)

	It("does not mistake a bridge to another network for a bridge of containers", Label("kernel"), func() {
		nstest.Need("tap")
		m := newMachine(ours(), open)
		m.up(newPod("c1", "web-0"))
		m.Cmd("sh", "-ec", defaultRoute+`
			ip link add lan0 type bridge; ip link add inner0 type bridge; ip link add vms0 type bridge
			ip link add up0 type veth peer name switch1; ip link set up0 master lan0
			ip link add veth01 type veth peer name veth02
			ip link set veth01 master lan0; ip link set veth02 master inner0
			ip tuntap add vm0 mode tap; ip link set vm0 master vms0`)
		for link, says := range map[string]string{"lan0": "may stop it", "inner0": "may stop it", "vms0": "stops it"} {
			m.write("/run/site.nft", rulesOf("oifname "+link+" accept", ""))
			m.Cmd("nft", "-f", "/run/site.nft")
			Expect(m.says("explain", "web-0")).To(ContainSubstring("obstacles\n  "+says+": "), link)
		}
	})

	It("recognizes the gateway interface of a VLAN", Label("kernel"), func() {
		nstest.Need("vlan_filtering")
		m := newMachine(ours(), strings.Replace(open, `"ipMasq"`, `"vlan": 7, "ipMasq"`, 1))
		m.up(newPod("c1", "web-0"))
		m.write("/run/site.nft", rulesOf(`iifname "cni0.7" accept`, ""))
		m.Cmd("nft", "-f", "/run/site.nft")
		Expect(m.says("explain", "web-0")).To(ContainSubstring("obstacles\n  none found"))
		Expect(m.hawser("doctor").Stdout).To(Equal("nothing is wrong\n"))
		m.Cmd("sysctl", "-qw", "net.ipv4.conf.cni0/7.forwarding=0")
		Expect(m.hawser("doctor").Stdout).To(HavePrefix("error forwarding-off: net.ipv4.conf.cni0/7.forwarding is 0"))
	})
})
