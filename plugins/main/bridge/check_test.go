package main

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("CHECK", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("passes right after ADD, for each configuration and version", func() {
		for i, c := range []Object{
			conf(), conf(Object{"disableContainerInterface": true}), conf(Object{"macspoofchk": true, "hairpinMode": true}),
			conf(Object{"promiscMode": true, "bridge": "promisc"}),
			l3(), l3(Object{"isGateway": true}), l3(Object{"mtu": 1400}), everything(),
		} {
			for _, v := range []string{"0.4.0", "1.0.0", "1.1.0"} {
				c["cniVersion"] = v
				a := w.Attach(fmt.Sprintf("c%d-%s", i, v), c, fmt.Sprintf("10.1.0.%d/24", 10+i), fmt.Sprintf("2001:db8:1::%d/64", 10+i))
				w.Succeeds(a.As("CHECK"))
				w.Succeeds(a.As("DEL"))
			}
		}
		nstest.Need("iptables")
		w.Succeeds(w.Attach("ipt", everything(Object{"ipMasqBackend": "iptables"}), "10.1.0.99/24").As("CHECK"))
	})

	It("asks IPAM, and passes its error on", func() {
		a := w.Attach("one", everything(), "10.1.0.2/24")
		w.Calls()
		w.Succeeds(a.As("CHECK"))
		Expect(w.Calls()).To(Equal([]string{"CHECK one eth0"}))
		w.On("CHECK", Refusal)
		Expect(w.Fails(a.As("CHECK"), 11)).To(Equal("later\npool"))
	})

	It("needs prevResult and the namespace", func() {
		a := w.Attach("one", everything(), "10.1.0.2/24")
		c := a.As("CHECK")
		delete(c.Conf.(Object), "prevResult")
		Expect(w.Fails(c, cni.CodeConfig)).To(ContainSubstring("prevResult"))
		c = a.As("CHECK")
		c.Netns = "/run/netns/gone"
		Expect(w.Fails(c, cni.CodeEnvironment)).To(ContainSubstring("CNI_NETNS"))
	})

	// A drift is done by a command in the host or in the container; PORT is the
	// host end's name.
	type drift struct {
		host, cont string
		says       []string
	}
	DescribeTable("finds", func(d drift) {
		w.Lend(`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"},{"address":"2001:db8:1::2/64"}],
			"routes":[{"dst":"10.9.0.0/16","priority":50,"mtu":1300}]}`)
		a := w.Attach("one", everything())
		w.Succeeds(a.As("CHECK"))
		for _, command := range strings.Split(d.host, ";") {
			if args := strings.Fields(strings.ReplaceAll(command, "PORT", hostEnd(a.Result))); len(args) > 0 {
				w.Cmd(args[0], args[1:]...)
			}
		}
		for _, command := range strings.Split(d.cont, ";") {
			if args := strings.Fields(command); len(args) > 0 {
				a.Cmd(args[0], args[1:]...)
			}
		}
		says := w.Fails(a.As("CHECK"), cni.CodeDrift)
		for _, text := range d.says {
			Expect(says).To(ContainSubstring(strings.ReplaceAll(text, "PORT", hostEnd(a.Result))))
		}
	},
		Entry("a missing address", drift{cont: "ip addr del 10.1.0.2/24 dev eth0", says: []string{"10.1.0.2/24", "missing"}}),
		Entry("a missing IPv6 address", drift{cont: "ip addr del 2001:db8:1::2/64 dev eth0", says: []string{"2001:db8:1::2/64", "missing"}}),
		Entry("an address of another length", drift{cont: "ip addr del 10.1.0.2/24 dev eth0;ip addr add 10.1.0.2/16 dev eth0", says: []string{"10.1.0.2/24"}}),
		Entry("a missing default route", drift{cont: "ip route del default", says: []string{"0.0.0.0/0", "missing"}}),
		Entry("a missing IPv6 default route", drift{cont: "ip -6 route del default", says: []string{"::/0", "missing"}}),
		Entry("a default route through another gateway", drift{cont: "ip route replace default via 10.1.0.9", says: []string{"0.0.0.0/0", "10.1.0.9 instead of 10.1.0.1"}}),
		Entry("a route with another metric", drift{cont: "ip route del 10.9.0.0/16;ip route add 10.9.0.0/16 via 10.1.0.1 metric 51 mtu 1300", says: []string{"10.9.0.0/16", "priority"}}),
		Entry("a route with another MTU", drift{cont: "ip route change 10.9.0.0/16 via 10.1.0.1 metric 50 mtu 1200", says: []string{"10.9.0.0/16", "mtu"}}),
		Entry("the interface down", drift{cont: "ip link set eth0 down", says: []string{`"eth0"`, "is down"}}),
		Entry("the interface gone", drift{cont: "ip link del eth0", says: []string{`"eth0"`}}),
		Entry("the interface renamed", drift{cont: "ip link set eth0 name moved", says: []string{`"eth0"`}}),
		Entry("another MAC address", drift{cont: "ip link set eth0 address 02:00:00:00:00:77", says: []string{"02:00:00:00:00:77"}}),
		Entry("another MTU", drift{cont: "ip link set eth0 mtu 1300", says: []string{"MTU", "1300"}}),
		Entry("another MTU of the host end", drift{host: "ip link set PORT mtu 1350", says: []string{"PORT", "1350"}}),
		Entry("the host end down", drift{host: "ip link set PORT down", says: []string{"PORT", "is down"}}),
		Entry("the host end out of the bridge", drift{host: "ip link set PORT nomaster", says: []string{"PORT", "no port"}}),
		Entry("the host end in another bridge", drift{host: "ip link add name other type bridge;ip link set PORT master other", says: []string{"PORT", "no port"}}),
		Entry("hairpin off", drift{host: "ip link set PORT type bridge_slave hairpin off", says: []string{"PORT", "hairpin"}}),
		Entry("isolation off", drift{host: "ip link set PORT type bridge_slave isolated off", says: []string{"PORT", "isolated"}}),
		Entry("the bridge down", drift{host: "ip link set dev br down", says: []string{`"br"`, "is down"}}),
		Entry("the gateway's address gone", drift{host: "ip addr del 10.1.0.1/24 dev br", says: []string{`"br"`, "10.1.0.1/24"}}),
		Entry("the gateway's IPv6 address gone", drift{host: "ip addr del 2001:db8:1::1/64 dev br", says: []string{`"br"`, "2001:db8:1::1/64"}}),
		Entry("forwarding off", drift{host: "sysctl -qw net.ipv4.ip_forward=0", says: []string{"ip_forward"}}),
		Entry("IPv6 forwarding off", drift{host: "sysctl -qw net.ipv6.conf.all.forwarding=0", says: []string{"forwarding"}}),
		Entry("the masquerade's table gone", drift{host: "nft delete table inet hawser", says: []string{"masquerading"}}),
		Entry("the masquerade's table flushed", drift{host: "nft flush table inet hawser", says: []string{"masquerading"}}),
		Entry("the check of MAC addresses gone", drift{host: "nft delete table bridge hawser", says: []string{"macspoof"}}),
		Entry("the check of MAC addresses flushed", drift{host: "nft flush table bridge hawser", says: []string{"macspoof"}}),
		Entry("two things at once", drift{cont: "ip addr del 10.1.0.2/24 dev eth0", host: "ip link set PORT type bridge_slave hairpin off", says: []string{"10.1.0.2/24", "hairpin"}}),
	)

	DescribeTable("finds one missing element of", func(family, in, which string) {
		a := w.Attach("one", everything(), "10.1.0.2/24", "2001:db8:1::2/64")
		w.Attach("two", everything(), "10.1.0.3/24", "2001:db8:1::3/64")
		n := 0
		for _, set := range w.sets(family) {
			for _, element := range set.elements {
				if !strings.Contains(set.name, in) || !strings.Contains(element, strings.ReplaceAll(which, "PORT", hostEnd(a.Result))) {
					continue
				}
				n++
				w.Cmd("nft", "delete", "element", family, "hawser", set.name, "{ "+element+" }")
				w.Fails(a.As("CHECK"), cni.CodeDrift)
				break
			}
		}
		Expect(n).To(Equal(1))
	},
		Entry("the masquerade", "inet", "", "10.1.0.2"),
		Entry("the IPv6 masquerade", "inet", "", "2001:db8:1::2"),
		Entry("macspoofchk, its port", "bridge", "ports", "PORT"),
		Entry("macspoofchk, its pair of port and address", "bridge", "pairs", "PORT"),
	)

	It("finds a bridge that is not promiscuous any more", func() {
		a := w.Attach("one", conf(Object{"promiscMode": true}))
		IP(w.Host, "link set dev br promisc off")
		Expect(w.Fails(a.As("CHECK"), cni.CodeDrift)).To(ContainSubstring("promiscuous"))
	})

	It("finds the MAC address of an interface that is kept down", func() {
		a := w.Attach("one", conf(Object{"disableContainerInterface": true}))
		IP(a.Host, "link set eth0 address 02:00:00:00:00:77")
		Expect(w.Fails(a.As("CHECK"), cni.CodeDrift)).To(ContainSubstring("02:00:00:00:00:77"))
	})

	It("does not mind what others do", func() {
		a := w.Attach("one", everything(), "10.1.0.2/24", "2001:db8:1::2/64")
		for _, words := range []string{"link set dev br promisc on", "link set dev br address 02:00:00:00:00:99", "addr add 192.0.2.9/24 dev br",
			"link set dev br mtu 1300", "link add name br2 type bridge"} {
			IP(w.Host, "%s", words)
			w.Succeeds(a.As("CHECK"))
		}
		for _, words := range []string{"addr add 10.7.0.1/24 dev eth0", "addr add 2001:db8:7::1/64 dev eth0", "route add 10.8.0.0/16 via 10.1.0.1",
			"link add extra type veth peer name x", "link set eth0 promisc on", "link set eth0 alias mine"} {
			IP(a.Host, "%s", words)
			w.Succeeds(a.As("CHECK"))
		}
		w.Cmd("nft", "add", "table", "inet", "others")
		w.Attach("two", everything(), "10.1.0.3/24") // the gateway is there already, so that other address is no conflict
		w.Succeeds(a.As("CHECK"))
	})

	It("does not mind a packet sniffer", func() {
		nstest.NeedProgram("tcpdump")
		a := w.Attach("one", everything(), "10.1.0.2/24")
		w.Start(nstest.Program{Path: "tcpdump", Args: []string{"-Z", "root", "-i", "br", "-w", "/dev/null"}})
		Eventually(func() int { return Show(w.Host, "br").Promiscuity }, "5s").Should(BeNumerically(">", 0))
		w.Succeeds(a.As("CHECK"))
	})
})

// nftSet is a set or map of our table and its keys as nft(8) takes them.
type nftSet struct {
	name     string
	elements []string
}

// sets lists the sets and maps of the table hawser of a family.
func (w *world) sets(family string) []nftSet {
	GinkgoHelper()
	var ruleset struct {
		Nftables []map[string]struct {
			Name string
			Elem []any
		}
	}
	w.JSON(&ruleset, "nft", "-j", "list", "table", family, "hawser")
	var out []nftSet
	for _, o := range ruleset.Nftables {
		for _, kind := range []string{"set", "map"} {
			if s, ok := o[kind]; ok {
				set := nftSet{name: s.Name}
				for _, e := range s.Elem {
					if pair, ok := e.([]any); ok { // of a map: key and value
						e = pair[0]
					}
					set.elements = append(set.elements, key(e))
				}
				out = append(out, set)
			}
		}
	}
	return out
}

// key renders an element's key: bare, with attributes, or concatenated.
func key(e any) string {
	o, ok := e.(Object)
	if !ok {
		return fmt.Sprint(e)
	}
	if elem, ok := o["elem"].(Object); ok {
		return key(elem["val"])
	}
	var parts []string
	for _, p := range o["concat"].([]any) {
		parts = append(parts, key(p))
	}
	return strings.Join(parts, " . ")
}
