package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("ADD", func() {
	var w *World
	BeforeEach(func() { w = newWorld() })

	DescribeTable("connects the container and the host", func(addrs, addresses, cont4, cont6, gateways, host []string) {
		a := w.Attach("one", conf(), addrs...)
		Expect(Show(a.Host, "eth0").Addrs()).To(ConsistOf(addresses))
		Expect(routes(a.Host, "-4", "eth0")).To(ConsistOf(cont4))
		Expect(routes(a.Host, "-6", "eth0")).To(ConsistOf(cont6))
		end := Show(w.Host, hostEnd(a.Result))
		Expect(end.Addrs()).To(ConsistOf(gateways))
		Expect(append(routes(w.Host, "-4", end.Ifname), routes(w.Host, "-6", end.Ifname)...)).To(ConsistOf(host))
		for _, gw := range gateways {
			Expect(Ping(a.Host, Addr(gw))).To(BeTrue(), gw)
		}
		for _, addr := range addresses {
			Expect(Ping(w.Host, Addr(addr))).To(BeTrue(), addr)
		}
		w.Succeeds(a.As("CHECK"))
	},
		Entry("IPv4", []string{"10.1.0.2/24 10.1.0.1"}, []string{"10.1.0.2/24"},
			[]string{"10.1.0.1 scope link src 10.1.0.2", "10.1.0.0/24 via 10.1.0.1 scope global src 10.1.0.2"},
			[]string{}, []string{"10.1.0.1/32"}, []string{"10.1.0.2 scope host"}),
		Entry("IPv6", []string{"2001:db8:1::2/64 2001:db8:1::1"}, []string{"2001:db8:1::2/64"}, []string{},
			[]string{"2001:db8:1::1 scope global src 2001:db8:1::2 metric 1024",
				"2001:db8:1::/64 via 2001:db8:1::1 scope global src 2001:db8:1::2 metric 1024"},
			[]string{"2001:db8:1::1/128"}, []string{"2001:db8:1::2 scope global metric 1024"}),
		Entry("IPv4 and IPv6 of single addresses, with gateways elsewhere",
			[]string{"10.1.0.2/32 169.254.1.1", "2001:db8:1::2/128 fe80::1"}, []string{"10.1.0.2/32",
				"2001:db8:1::2/128"},
			[]string{"169.254.1.1 scope link src 10.1.0.2"},
			[]string{"fe80::1 scope global src 2001:db8:1::2 metric 1024"},
			[]string{"169.254.1.1/32", "fe80::1/128"}, []string{"10.1.0.2 scope host",
				"2001:db8:1::2 scope global metric 1024"}),
		Entry("a /31", []string{"10.1.0.0/31 10.1.0.1"}, []string{"10.1.0.0/31"},
			[]string{"10.1.0.1 scope link src 10.1.0.0", "10.1.0.0/31 via 10.1.0.1 scope global src 10.1.0.0"},
			[]string{}, []string{"10.1.0.1/32"}, []string{"10.1.0.0 scope host"}),
		Entry("several addresses of both families, two of them in one subnet",
			[]string{"10.1.0.2/24 10.1.0.1", "10.1.0.3/24 10.1.0.1", "10.2.0.2/24 10.2.0.1",
				"2001:db8:1::2/64 2001:db8:1::1",
				"2001:db8:2::2/64 2001:db8:2::1"},
			[]string{"10.1.0.2/24", "10.1.0.3/24", "10.2.0.2/24", "2001:db8:1::2/64", "2001:db8:2::2/64"},
			[]string{"10.1.0.1 scope link src 10.1.0.2", "10.1.0.0/24 via 10.1.0.1 scope global src 10.1.0.2",
				"10.2.0.1 scope link src 10.2.0.2", "10.2.0.0/24 via 10.2.0.1 scope global src 10.2.0.2"},
			[]string{"2001:db8:1::1 scope global src 2001:db8:1::2 metric 1024",
				"2001:db8:1::/64 via 2001:db8:1::1 scope global src 2001:db8:1::2 metric 1024",
				"2001:db8:2::1 scope global src 2001:db8:2::2 metric 1024",
				"2001:db8:2::/64 via 2001:db8:2::1 scope global src 2001:db8:2::2 metric 1024"},
			[]string{"10.1.0.1/32", "10.2.0.1/32", "2001:db8:1::1/128", "2001:db8:2::1/128"},
			[]string{"10.1.0.2 scope host", "10.1.0.3 scope host", "10.2.0.2 scope host",
				"2001:db8:1::2 scope global metric 1024", "2001:db8:2::2 scope global metric 1024"}),
	)

	It("reports the links as the kernel has them, host end first", func() {
		a := w.Attach("one", conf(Object{"mtu": 1400}), Addrs(2)...)
		Expect(a.Result.Interfaces).To(HaveLen(2))
		for i, l := range []Link{Show(w.Host, hostEnd(a.Result)), Show(a.Host, "eth0")} {
			r := a.Result.Interfaces[i]
			Expect([]any{r.Name, r.MAC, r.MTU}).To(Equal([]any{l.Ifname, l.Address, 1400}))
			Expect(l.MTU).To(Equal(1400))
			Expect(l.Flags).To(ContainElement("UP"))
			Expect(l.Linkinfo.Kind).To(Equal("veth"))
		}
		Expect(Show(w.Host, hostEnd(a.Result)).Ifalias).To(HaveSuffix(" net one eth0"))
		Expect(a.Result.Interfaces[0].Sandbox).To(BeEmpty())
		Expect(a.Result.Interfaces[1].Sandbox).To(Equal(a.Path))
		Expect(a.Result.Interfaces[1].Name).To(Equal("eth0"))
		for i, ip := range a.Result.IPs {
			Expect(*ip.Interface).To(Equal(1))
			Expect(ip.Address + " " + ip.Gateway).To(Equal(Addrs(2)[i]))
		}
		Expect(a.Result.Routes).To(BeEmpty())
	})

	It("has IPv6 usable at once, from everywhere, without detection of duplicates", Label("ptp-families"), func() {
		out := nstest.NewOutside(w.Host)
		IP(out, "route add default via 2001:db8::1")
		w.Attach("warm", conf(), Addrs(9)...) // forwarding is on
		w.Lend(`{"cniVersion":"1.0.0","ips":[{"address":"2001:db8:1::2/64","gateway":"2001:db8:1::1"}],
			"routes":[{"dst":"::/0"}]}`, "one")
		cont := nstest.NewNetns()
		for _, h := range []*nstest.Host{w.Host, cont} {
			h.SetSysctl("net/ipv6/conf/default/accept_dad", "1")
			h.SetSysctl("net/ipv6/conf/default/dad_transmits", "60") // one a second
		}
		c := Call{Netns: cont.Path, Conf: conf(), ID: "one"}
		began := time.Now()
		res := w.Add(c)
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Hang))
		for _, h := range []*nstest.Host{out, cont, w.Host} {
			address := "2001:db8:1::2"
			if h == cont {
				address = gw6
			}
			Expect(Ping(h, address)).To(BeTrue(), address)
		}
		for _, l := range []Link{Show(w.Host, hostEnd(res)), Show(cont, "eth0")} {
			for _, addr := range l.AddrInfo {
				Expect(addr.Tentative).To(BeFalse(), addr.Local)
			}
		}
	})

	It("returns when packets pass, which is a little after both ends are up", func() {
		for i := range 20 {
			id := fmt.Sprint("c", i)
			w.LendAddrs(id, Addrs(i + 2)[0])
			cont := nstest.NewNetns()
			var state []byte
			c := Call{Command: "ADD", ID: id, Netns: cont.Path, Conf: conf()}
			c.Stdout = writer(func(result []byte) {
				var r Result
				Expect(json.Unmarshal(result, &r)).To(Succeed())
				state, _ = os.ReadFile("/sys/class/net/" + hostEnd(r) + "/operstate")
			})
			Expect(w.Call(c).Code).To(BeZero())
			Expect(string(state)).To(Equal("up\n"))
		}
	})

	It("gives the container IPv6 also where the host has it off by default", func() {
		w.SetSysctl("net/ipv6/conf/default/disable_ipv6", "1")
		a := w.Attach("one", conf(), Addrs(2)...)
		Expect(alive(a)).To(BeTrue())
		w.Succeeds(a.As("CHECK"))
	})

	It("lets the host forward, for the families that it is the gateway of", func() {
		forwarding := func() string {
			return w.Sysctl("net/ipv4/ip_forward") + w.Sysctl("net/ipv6/conf/all/forwarding")
		}
		Expect(forwarding()).To(Equal("00"))
		w.Attach("four", conf(), Addrs(2)[0])
		Expect(forwarding()).To(Equal("10"))
		a := w.Attach("six", conf(), Addrs(3)[1])
		Expect(forwarding()).To(Equal("11"))
		Expect(w.Sysctl("net/ipv6/conf/" + hostEnd(a.Result) + "/accept_ra")).To(Equal("0"))
	})

	It("routes as IPAM says, with all fields", func() {
		w.Lend(`{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"},
			{"address":"2001:db8:1::2/64","gateway":"2001:db8:1::1"}],"routes":[
			{"dst":"0.0.0.0/0"},{"dst":"::/0"},{"dst":"10.8.0.0/16","gw":"10.1.0.1"},
			{"dst":"10.9.0.0/16","mtu":1300,"advmss":1200,"priority":50,"table":70000},
			{"dst":"2001:db8:9::/48","mtu":1300,"advmss":1200,"priority":50,"table":7},
			{"dst":"10.7.0.0/16","scope":253}]}`)
		a := w.Attach("one", conf())
		Expect(routes(a.Host, "-4")).To(ContainElements(
			"default via 10.1.0.1 dev eth0 scope global",
			"10.8.0.0/16 via 10.1.0.1 dev eth0 scope global",
			"10.9.0.0/16 via 10.1.0.1 dev eth0 table 70000 scope global metric 50 mtu 1300 advmss 1200",
			"10.7.0.0/16 dev eth0 scope link"))
		Expect(routes(a.Host, "-6")).To(ContainElements(
			"default via 2001:db8:1::1 dev eth0 scope global metric 1024",
			"2001:db8:9::/48 via 2001:db8:1::1 dev eth0 table 7 scope global metric 50 mtu 1300 advmss 1200"))
		Expect(a.Result.Routes).To(ConsistOf(
			Object{"dst": "0.0.0.0/0"}, Object{"dst": "::/0"}, Object{"dst": "10.8.0.0/16", "gw": "10.1.0.1"},
			Object{"dst": "10.7.0.0/16", "scope": 253.},
			Object{"dst": "10.9.0.0/16", "mtu": 1300., "advmss": 1200., "priority": 50., "table": 70000.},
			Object{"dst": "2001:db8:9::/48", "mtu": 1300., "advmss": 1200., "priority": 50., "table": 7.}))
		w.Succeeds(a.As("CHECK"))
	})

	It("connects containers through the host, each by its own address", func() {
		a, b := w.Attach("one", everything(), Addrs(2)...), w.Attach("two", everything(), Addrs(3)...)
		b.Host.Serve("tcp", "10.1.0.3:80")
		b.Host.Serve("tcp", "[2001:db8:1::3]:80")
		Expect(a.Ask("tcp", "10.1.0.3:80")).To(HavePrefix("10.1.0.2:"))
		Expect(a.Ask("tcp", "[2001:db8:1::3]:80")).To(HavePrefix("[2001:db8:1::2]:"))
	})

	DescribeTable("gives what leaves the subnet the host's address with ipMasq", func(backend any, single bool) {
		if backend == "iptables" {
			nstest.Need("iptables")
		}
		out := nstest.NewOutside(w.Host)
		out.Serve("tcp", "192.0.2.2:80")
		out.Serve("tcp", "[2001:db8::2]:80")
		lease := `{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.N/24","gateway":"10.1.0.1"},
			{"address":"fd00:1::N/64","gateway":"fd00:1::1"}],
			"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`
		if single {
			lease = strings.NewReplacer("/24", "/32", "/64", "/128").Replace(lease)
		}
		w.Lend(strings.ReplaceAll(lease, "N", "2"), "one")
		w.Lend(strings.ReplaceAll(lease, "N", "3"), "two")
		c := everything(Object{"ipMasqBackend": backend})
		a, b := w.Attach("one", c), w.Attach("two", c)
		for _, each := range []Attached{a, b} {
			Expect(each.Ask("tcp", "192.0.2.2:80")).To(HavePrefix("192.0.2.1:"))
			Expect(each.Ask("tcp", "[2001:db8::2]:80")).To(HavePrefix("[2001:db8::1]:"))
		}
		w.Succeeds(a.As("CHECK"))
		w.Succeeds(a.As("DEL"))
		Expect(b.Ask("tcp", "192.0.2.2:80")).To(HavePrefix("192.0.2.1:"))
		Expect(b.Ask("tcp", "[2001:db8::2]:80")).To(HavePrefix("[2001:db8::1]:"))
		w.Succeeds(b.As("DEL"))
		Expect(w.Snapshot("nftables")).NotTo(Or(ContainSubstring("10.1.0."), ContainSubstring("elements")))
		Expect(w.Snapshot("iptables-legacy")).NotTo(ContainSubstring("10.1.0."))
	},
		Entry("by default", nil, false),
		Entry("by default, of single addresses", nil, true),
		Entry("on nftables", "nftables", false),
		Entry("on iptables", "iptables", false),
		Entry("on iptables, of single addresses", "iptables", true),
	)

	It("leaves the container its address without ipMasq", func() {
		out := nstest.NewOutside(w.Host)
		out.Serve("tcp", "192.0.2.2:80")
		IP(out, "route add 10.1.0.0/24 via 192.0.2.1")
		w.Lend(`{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}],
			"routes":[{"dst":"0.0.0.0/0"}]}`)
		a := w.Attach("one", conf())
		Expect(a.Ask("tcp", "192.0.2.2:80")).To(HavePrefix("10.1.0.2:"))
		Expect(w.Snapshot("nftables")).NotTo(ContainSubstring("hawser"))
	})
})

// writer is called with what is written.
type writer func([]byte)

func (w writer) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}
