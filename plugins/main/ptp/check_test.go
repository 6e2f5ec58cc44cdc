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
	var w *World
	BeforeEach(func() { w = newWorld() })

	It("passes right after ADD, for each configuration and version", func() {
		for i, c := range []Object{conf(), conf(Object{"mtu": 1400}), everything()} {
			for j, v := range []string{"0.4.0", "1.0.0", "1.1.0"} {
				c["cniVersion"] = v
				a := w.Attach(fmt.Sprintf("c%d-%s", i, v), c, nth(10+3*i+j)...)
				w.Succeeds(a.As("CHECK"))
			}
		}
		w.Succeeds(w.Attach("single", everything(), "10.1.0.5/32 10.1.0.1", "2001:db8:1::5/128 fe80::1").As("CHECK"))
		nstest.Need("iptables")
		w.Succeeds(w.Attach("ipt", everything(Object{"ipMasqBackend": "iptables"}), nth(99)...).As("CHECK"))
	})

	It("asks IPAM, and passes its error on", func() {
		a := w.Attach("one", everything(), nth(2)...)
		w.Calls()
		w.Succeeds(a.As("CHECK"))
		Expect(w.Calls()).To(Equal([]string{"CHECK one eth0"}))
		w.On("CHECK", Refusal)
		Expect(w.Fails(a.As("CHECK"), 11)).To(Equal("later\npool"))
	})

	It("needs prevResult and the namespace", func() {
		a := w.Attach("one", everything(), nth(2)...)
		c := a.As("CHECK")
		without("prevResult")(&c)
		Expect(w.Fails(c, cni.CodeConfig)).To(ContainSubstring("prevResult"))
		c = a.As("CHECK")
		c.Netns = "/run/netns/gone"
		Expect(w.Fails(c, cni.CodeEnvironment)).To(ContainSubstring("CNI_NETNS"))
	})

	DescribeTable("refuses a prevResult that cannot be ADD's", func(prev Object, want string) {
		a := w.Attach("one", conf(), nth(2)...)
		c := a.As("CHECK")
		saying("prevResult", Merge(Object{"cniVersion": "1.0.0", "interfaces": []Object{{"name": hostEnd(a.Result)}, {"name": "eth0", "sandbox": a.Path}},
			"ips": []Object{{"address": "10.1.0.2/24", "gateway": gw4, "interface": 1}}}, prev))(&c)
		if want == "" {
			w.Succeeds(c)
			return
		}
		Expect(w.Fails(c, cni.CodeDrift)).To(ContainSubstring(want))
	},
		Entry("but takes one with less in it", Object{}, ""),
		Entry("without the interface", Object{"interfaces": []Object{}}, `prevResult: has no interface "eth0"`),
		Entry("without addresses", Object{"ips": []Object{}}, `prevResult: has no address of interface "eth0"`),
		Entry("with an address without gateway", Object{"ips": []Object{{"address": "10.1.0.2/24"}}}, "prevResult: address 10.1.0.2/24: has no gateway"),
	)

	// A drift is done by commands in the host or in the container; END is the
	// host end's name.
	type drift struct {
		host, cont string
		says       []string
	}
	commands := func(h *nstest.Host, list, end string) {
		GinkgoHelper()
		for _, command := range strings.Split(list, ";") {
			if args := strings.Fields(strings.ReplaceAll(command, "END", end)); len(args) > 0 {
				h.Cmd(args[0], args[1:]...)
			}
		}
	}
	DescribeTable("finds", func(d drift) {
		w.Lend(`{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"address":"2001:db8:1::2/64","gateway":"2001:db8:1::1"}],
			"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"},{"dst":"10.9.0.0/16","priority":50,"mtu":1300}]}`)
		a := w.Attach("one", everything())
		w.Succeeds(a.As("CHECK"))
		commands(w.Host, d.host, hostEnd(a.Result))
		commands(a.Host, d.cont, hostEnd(a.Result))
		says := w.Fails(a.As("CHECK"), cni.CodeDrift)
		for _, text := range d.says {
			Expect(says).To(ContainSubstring(strings.ReplaceAll(text, "END", hostEnd(a.Result))))
		}
	},
		Entry("a missing address", drift{cont: "ip addr del 10.1.0.2/24 dev eth0", says: []string{"10.1.0.2/24", "missing"}}),
		Entry("a missing IPv6 address", drift{cont: "ip addr del 2001:db8:1::2/64 dev eth0", says: []string{"2001:db8:1::2/64", "missing"}}),
		Entry("a missing default route", drift{cont: "ip route del default", says: []string{"0.0.0.0/0", "missing"}}),
		Entry("a missing IPv6 default route", drift{cont: "ip -6 route del default", says: []string{"::/0", "missing"}}),
		Entry("another gateway", drift{cont: "ip route replace default via 10.1.0.9 onlink dev eth0", says: []string{"0.0.0.0/0", "10.1.0.9 instead of 10.1.0.1"}}),
		Entry("a route with another metric", drift{cont: "ip route del 10.9.0.0/16;ip route add 10.9.0.0/16 via 10.1.0.1 metric 51 mtu 1300", says: []string{"10.9.0.0/16", "priority"}}),
		Entry("a route with another MTU", drift{cont: "ip route change 10.9.0.0/16 via 10.1.0.1 metric 50 mtu 1200", says: []string{"10.9.0.0/16", "mtu"}}),
		Entry("a missing route to the gateway", drift{cont: "ip route del 10.1.0.1/32", says: []string{"10.1.0.1/32", "missing"}}),
		Entry("a missing route to the IPv6 gateway", drift{cont: "ip -6 route del 2001:db8:1::1/128", says: []string{"2001:db8:1::1/128", "missing"}}),
		Entry("a missing route to the subnet", drift{cont: "ip route del 10.1.0.0/24", says: []string{"10.1.0.0/24", "missing"}}),
		Entry("a missing route to the IPv6 subnet", drift{cont: "ip -6 route del 2001:db8:1::/64", says: []string{"2001:db8:1::/64", "missing"}}),
		Entry("a subnet on the link", drift{cont: "ip route del 10.1.0.0/24;ip route add 10.1.0.0/24 dev eth0 src 10.1.0.2", says: []string{"10.1.0.0/24", "gateway is none instead of 10.1.0.1"}}),
		Entry("a subnet's route with another source", drift{cont: "ip addr add 10.1.0.9/32 dev eth0;ip route change 10.1.0.0/24 via 10.1.0.1 src 10.1.0.9", says: []string{"10.1.0.0/24", "source is 10.1.0.9"}}),
		Entry("the interface down", drift{cont: "ip link set eth0 down", says: []string{`"eth0"`, "is down"}}),
		Entry("the interface gone", drift{cont: "ip link del eth0", says: []string{`"eth0"`}}),
		Entry("the interface renamed", drift{cont: "ip link set eth0 down;ip link set eth0 name moved", says: []string{`"eth0"`}}),
		Entry("another interface of the name", drift{cont: "ip link set eth0 down;ip link set eth0 name moved;ip link add eth0 type veth peer name x", says: []string{`"eth0"`, "END"}}),
		Entry("another MAC address", drift{cont: "ip link set eth0 address 02:00:00:00:00:77", says: []string{"02:00:00:00:00:77"}}),
		Entry("another MTU", drift{cont: "ip link set eth0 mtu 1350", says: []string{`"eth0"`, "MTU", "1350"}}),
		Entry("another MTU of the host end", drift{host: "ip link set END mtu 1350", says: []string{"END", "1350"}}),
		Entry("the host end down", drift{host: "ip link set END down", says: []string{"END", "is down"}}),
		Entry("the host end renamed", drift{host: "ip link set END down;ip link set END name moved", says: []string{`"eth0"`, "has no host end"}}),
		Entry("a missing gateway address", drift{host: "ip addr del 10.1.0.1/32 dev END", says: []string{"END", "10.1.0.1/32"}}),
		Entry("a missing IPv6 gateway address", drift{host: "ip addr del 2001:db8:1::1/128 dev END", says: []string{"END", "2001:db8:1::1/128"}}),
		Entry("a missing route of the host", drift{host: "ip route del 10.1.0.2", says: []string{"END", "10.1.0.2/32"}}),
		Entry("a missing IPv6 route of the host", drift{host: "ip -6 route del 2001:db8:1::2", says: []string{"END", "2001:db8:1::2/128"}}),
		Entry("a route of the host that is in another table only", drift{host: "ip route del 10.1.0.2;ip route add 10.1.0.2 dev END table 7", says: []string{"10.1.0.2/32"}}),
		Entry("a route of the host through somebody else", drift{host: "ip route del 10.1.0.2;ip route add 10.1.0.2 via 10.1.0.9 dev END onlink", says: []string{"10.1.0.2/32"}}),
		Entry("forwarding off", drift{host: "sysctl -qw net.ipv4.ip_forward=0", says: []string{"ip_forward"}}),
		Entry("IPv6 forwarding off", drift{host: "sysctl -qw net.ipv6.conf.all.forwarding=0", says: []string{"forwarding"}}),
		Entry("the masquerade's table gone", drift{host: "nft delete table inet hawser", says: []string{"masquerading"}}),
		Entry("the masquerade's table flushed", drift{host: "nft flush table inet hawser", says: []string{"masquerading"}}),
		Entry("the masquerade's element gone", drift{host: "nft delete element inet hawser masq4_v1 { 10.1.0.2 }", says: []string{"10.1.0.2", "no element"}}),
		Entry("the masquerade's IPv6 element gone", drift{host: "nft delete element inet hawser masq6_v1 { 2001:db8:1::2 }", says: []string{"2001:db8:1::2", "no element"}}),
		Entry("something on both sides, all of it", drift{cont: "ip addr del 10.1.0.2/24 dev eth0", host: "ip addr del 2001:db8:1::1/128 dev END", says: []string{"10.1.0.2/24", "2001:db8:1::1/128"}}),
	)

	It("finds what is missing of a masquerade on iptables", func() {
		nstest.Need("iptables")
		a := w.Attach("one", everything(Object{"ipMasqBackend": "iptables"}), nth(2)...)
		w.Succeeds(a.As("CHECK"))
		w.Cmd("ip6tables", "-t", "nat", "-F", "POSTROUTING")
		Expect(w.Fails(a.As("CHECK"), cni.CodeDrift)).To(ContainSubstring("masquerading"))
	})

	It("does not look for a masquerade that was not asked for", func() {
		a := w.Attach("one", conf(), nth(2)...)
		w.Attach("two", everything(), nth(3)...)
		w.Cmd("nft", "flush", "table", "inet", "hawser")
		w.Succeeds(a.As("CHECK"))
	})

	It("does not mind what others do", func() {
		a := w.Attach("one", everything(), nth(2)...)
		for _, words := range []string{"link set END promisc on", "addr add 192.0.2.9/24 dev END", "route add 10.77.0.0/16 dev END",
			"link set END address 02:00:00:00:00:99", "link set END group 7"} {
			IP(w.Host, "%s", strings.ReplaceAll(words, "END", hostEnd(a.Result)))
			w.Succeeds(a.As("CHECK"))
		}
		for _, words := range []string{"addr add 10.7.0.1/24 dev eth0", "addr add 2001:db8:7::1/64 dev eth0", "route add 10.8.0.0/16 via 10.1.0.1",
			"link add extra type veth peer name x", "link set eth0 promisc on", "link set eth0 alias mine"} {
			IP(a.Host, "%s", words)
			w.Succeeds(a.As("CHECK"))
		}
	})

	It("takes the result of a chain, with the MAC and MTU and interfaces of later plugins", func() {
		a := w.Attach("one", conf(), nth(2)...)
		IP(a.Host, "link set eth0 address 02:00:00:00:00:77")
		IP(a.Host, "link set eth0 mtu 1350")
		r := a.Result
		c := a.As("CHECK")
		saying("prevResult", Object{"cniVersion": "1.1.0", "interfaces": []Object{{"name": "ifb0", "mac": "02:00:00:00:00:01"},
			{"name": hostEnd(r), "mac": r.Interfaces[0].MAC, "mtu": 1500},
			{"name": "eth0", "sandbox": a.Path, "mac": "02:00:00:00:00:77", "mtu": 1350}, {"name": "net1", "sandbox": a.Path}},
			"ips": []Object{{"address": "10.9.9.9/24", "interface": 3}, {"address": "10.1.0.2/24", "gateway": gw4, "interface": 2},
				{"address": "2001:db8:1::2/64", "gateway": gw6, "interface": 2}}})(&c)
		w.Succeeds(c)
	})
})
