// Package kernels_test tries each feature on the kernel that it runs on. In the virtual machine
// scripts/vm/kernels.sh runs it with one module after the other kept from loading.
package kernels_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestKernels(t *testing.T) { nstest.RunSpecs(t, "each feature on this kernel") }

// missing are the modules that the kernel may not load, or what else is missing of it, by the words that a message
// must have one of.
func missing() []string { return strings.Fields(os.Getenv("HAWSER_MISSING")) }

// lacks are the kinds that a kernel may not have, by feature.
var lacks = map[string]string{"ptp, netkit": "netkit", "ipvlan": "ipvlan", "vlan": "vlan",
	"bridge, vlan": "CONFIG_BRIDGE_VLAN_FILTERING", "dummy": "dummy", "vrf": "vrf", "bandwidth, fq_codel": "fq_codel"}

// waits is what is left of a call's time, which differs from run to run.
var waits = regexp.MustCompile(`--wait \d+`)

// cell writes what became of a feature into the file HAWSER_CELLS, if there is one.
func cell(feature, text string) {
	GinkgoHelper()
	file := os.Getenv("HAWSER_CELLS")
	if file == "" {
		return
	}
	f := nstest.Must(os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644))
	defer f.Close()
	nstest.Must(fmt.Fprintf(f, "%s\t%s\t%s\n", os.Getenv("HAWSER_ROW"), feature, text))
}

// names tells whether a message names one of the words, as a word of its own; one that ends in "*" is a beginning.
func names(message string, words []string) bool {
	return slices.ContainsFunc(words, func(word string) bool {
		pattern := strings.ReplaceAll(regexp.QuoteMeta(word), `\*`, `\w+`)
		return word != "" && regexp.MustCompile(`\b`+pattern+`\b`).MatchString(message)
	})
}

// subnets are one of each family that the kernel has.
func subnets() []string {
	if nstest.HasIPv6() {
		return []string{"10.88.0.0/24", "fd00:88::/64"}
	}
	return []string{"10.88.0.0/24"}
}

// on is a link of the host with something to do.
func on(plugin string, keys Object) List {
	return List{{Plugin: plugin, Keys: Merge(Object{"ipam": HostLocal(subnets()...)}, keys)}}
}

var limits = Object{"ingressRate": 80000000, "ingressBurst": 800000, "egressRate": 80000000, "egressBurst": 800000}

func bridged(keys Object, chained ...Step) List { return append(on("bridge", keys), chained...) }

// published is portmap on a backend.
func published(backend string) List {
	return bridged(Object{"isDefaultGateway": true},
		Step{Plugin: "portmap", Keys: Merge(Published(8080), Object{"backend": backend})})
}

func filtered(backend string) List {
	return bridged(Object{"isDefaultGateway": true},
		Step{Plugin: "firewall", Keys: Object{"backend": backend, "ingressPolicy": "same-bridge"}})
}

// outward is a pod's way to a server outside, whom it sees as the host.
func outward(n *World, p *Pod) {
	GinkgoHelper()
	outside := nstest.NewOutside(n.Host)
	Expect(p.Host.Ask("tcp", outside.Serve("tcp", "192.0.2.2:0"))).To(HavePrefix("192.0.2.1:"))
	if nstest.HasIPv6() {
		Expect(p.Host.Ask("tcp", outside.Serve("tcp", "[2001:db8::2]:0"))).To(HavePrefix("[2001:db8::1]:"))
	}
}

// inward is the way from outside to a host port.
func inward(n *World, p *Pod) {
	GinkgoHelper()
	p.Serve("tcp", ":80")
	Expect(nstest.NewOutside(n.Host).Ask("tcp", "192.0.2.1:8080")).To(HavePrefix("192.0.2.2:"))
}

func both(n *World, p *Pod) {
	GinkgoHelper()
	outside := nstest.NewOutside(n.Host)
	Expect(p.Host.Ask("tcp", outside.Serve("tcp", "192.0.2.2:0"))).To(HavePrefix("192.0.2.1:"))
	p.Serve("tcp", ":80")
	Expect(outside.Ask("tcp", "192.0.2.1:8080")).To(HavePrefix("192.0.2.2:"))
}

// gateway is the way to the first address of the network.
func gateway(_ *World, p *Pod) {
	GinkgoHelper()
	Expect(Ping(p.Host, "10.88.0.1")).To(BeTrue())
}

func nothing(*World, *Pod) {}

// six is the way to the first address of an IPv6 network.
func six(_ *World, p *Pod) {
	GinkgoHelper()
	Expect(Ping(p.Host, "fd00:88::1")).To(BeTrue())
}

// A feature works, or its ADD fails with code 2 or 50 and names what is missing; what it made is gone.
var _ = DescribeTable("a feature works, or names what is missing", Label("kernels"), func(
	feature string, list List, traffic func(*World, *Pod),
) {
	n := NewNode()
	result := "fails"
	defer func() { cell(feature, result) }()
	// Without these the programs cannot say what is left.
	n.Spoiled = names("nf_tables ip_tables iptables", missing())
	switch keys, bare := list[0].Keys, names("veth", missing()); {
	case keys["device"] == "dev0" && bare:
		n.Host.IP("link add dev0 type dummy")
	case keys["device"] == "dev0":
		n.Host.IP("link add dev0 type veth peer name dev1")
	case keys["master"] == "up0" && (bare || names("IPv6", missing())): // of which an uplink has addresses
		n.Host.IP("link add up0 type dummy", "link set up0 up")
	case keys["master"] == "up0":
		Uplink(n.Host)
	case bare && keys["deviceType"] == "netkit":
		traffic = gateway // the way outside is a veth
	}
	p := NewPod("one")
	a, answer := n.Chain("ADD", p, list), "yes"
	if a.Code == 0 {
		traffic(n, p)
		n.Must("CHECK", p, list)
		n.Must("STATUS", p, list)
	} else {
		code, says := a.Error()
		status := ""
		if n.Chain("STATUS", p, list).Code == 0 { // which asks what costs little
			status = ", STATUS succeeds"
		}
		says = waits.ReplaceAllString(strings.Join(strings.Fields(says), " "), "--wait N")
		answer = fmt.Sprintf("code %d%s: %s", code, status, says)
		result += ": " + answer
		codes := []uint{2, 50}
		if names("iptables-restore", missing()) {
			codes = append(codes, 5) // a program that is not installed
		}
		Expect(codes).To(ContainElement(code), says)
		kind, _, _ := strings.Cut(feature, ", with")
		Expect(names(says, append(missing(), lacks[kind]))).To(BeTrue(), "%q names none of %q", says, missing())
	}
	n.Must("DEL", p, list)
	result = answer
},
	func(feature string, _ List, _ func(*World, *Pod)) string { return feature },
	Entry(nil, "usual list, as the node has it", Usual(""), both),
	Entry(nil, "masquerade, nftables", bridged(Object{"isDefaultGateway": true, "ipMasq": true,
		"ipMasqBackend": "nftables"}), outward),
	Entry(nil, "masquerade, iptables", bridged(Object{"isDefaultGateway": true, "ipMasq": true,
		"ipMasqBackend": "iptables"}), outward),
	Entry(nil, "host ports, nftables", published("nftables"), inward),
	Entry(nil, "host ports, iptables", published("iptables"), inward),
	Entry(nil, "firewall, nftables", filtered("nftables"), gateway),
	Entry(nil, "firewall, iptables", filtered("iptables"), gateway),
	Entry(nil, "bridge", bridged(Object{"isGateway": true}), gateway),
	Entry(nil, "IPv6", bridged(Object{"isGateway": true, "ipam": HostLocal("fd00:88::/64")}), six),
	Entry(nil, "macspoofchk", bridged(Object{"isGateway": true, "macspoofchk": true}), gateway),
	Entry(nil, "portIsolation", bridged(Object{"isGateway": true, "portIsolation": true}), gateway),
	Entry(nil, "bridge, vlan", bridged(Object{"vlan": 7}), nothing),
	Entry(nil, "ptp", on("ptp", nil), gateway),
	Entry(nil, "ptp, netkit", on("ptp", Object{"deviceType": "netkit"}), gateway),
	Entry(nil, "ptp, netkit, with masquerade, host ports, firewall, bandwidth", append(
		on("ptp", Object{"deviceType": "netkit", "ipMasq": true, "ipam": Merge(HostLocal("10.88.0.0/24"), Object{
			"routes": []Object{{"dst": "0.0.0.0/0"}}})}), Step{Plugin: "portmap", Keys: Published(8080)},
		Step{Plugin: "firewall"}, Step{Plugin: "bandwidth", Keys: limits}), both),
	Entry(nil, "macvlan", on("macvlan", Object{"master": "up0"}), nothing),
	Entry(nil, "ipvlan", on("ipvlan", Object{"master": "up0"}), nothing),
	Entry(nil, "vlan", on("vlan", Object{"master": "up0", "vlanId": 5}), nothing),
	Entry(nil, "tap", on("tap", nil), nothing),
	Entry(nil, "tc-redirect-tap", append(published("nftables"), Step{Plugin: "firewall"},
		Step{Plugin: "tc-redirect-tap"}), nothing),
	Entry(nil, "dummy", on("dummy", nil), nothing),
	Entry(nil, "host-device", on("host-device", Object{"device": "dev0"}), nothing),
	Entry(nil, "bandwidth", bridged(Object{"isGateway": true}, Step{Plugin: "bandwidth", Keys: limits}), gateway),
	Entry(nil, "bandwidth, macvlan", append(on("macvlan", Object{"master": "up0"}), Step{Plugin: "bandwidth",
		Keys: Merge(limits, Object{"exempt": []string{"10.0.0.0/8"}})}), nothing),
	Entry(nil, "bandwidth, fq_codel", bridged(Object{"isGateway": true}, Step{Plugin: "bandwidth", Keys: Object{
		"egressRate": 80000000, "egressBurst": 800000, "queue": "fq_codel"}}), gateway),
	Entry(nil, "sbr", bridged(Object{"isGateway": true}, Step{Plugin: "sbr"}), nothing),
	Entry(nil, "tuning", bridged(Object{"isGateway": true}, Step{Plugin: "tuning", Keys: Object{
		"sysctl": Object{"net.ipv4.conf.IFNAME.arp_filter": "1"}}}), gateway),
	Entry(nil, "vrf", bridged(Object{"isGateway": true},
		Step{Plugin: "vrf", Keys: Object{"vrfname": "blue"}}), nothing),
)
