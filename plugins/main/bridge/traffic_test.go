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

var _ = Describe("traffic", func() {
	var w *world
	BeforeEach(func() {
		w = newWorld()
	})

	// heeded tells whether the host took the advertisement of a container.
	heeded := func(a Attached) bool {
		GinkgoHelper()
		router, host := LinkLocal(a.Host, "eth0"), LinkLocal(w.Host, "br")
		a.AdvertiseRouter("eth0", "2001:db8:bad::")
		// Answered after the advertisement was received.
		Expect(Ping(a.Host, host+"%eth0")).To(BeTrue(), router)
		return strings.Contains(IP(w.Host, "-6 route"), "default via") || strings.Contains(IP(w.Host, "-6 addr"),
			"2001:db8:bad:")
	}

	It("finds the next container that has an address at once", func() {
		c := l3(Object{"isGateway": true})
		addrs := []string{"10.1.0.2/24 10.1.0.1", "2001:db8:1::2/64 2001:db8:1::1"}
		neighbour := w.Attach("neighbour", c, "10.1.0.9/24 10.1.0.1", "2001:db8:1::9/64 2001:db8:1::1")
		first := w.Attach("first", c, addrs...)
		both := func() bool { return Ping(neighbour.Host, "10.1.0.2") && Ping(neighbour.Host, "2001:db8:1::2") }
		Expect(both()).To(BeTrue())
		w.Succeeds(first.As("DEL"))
		Expect(IP(neighbour.Host, "neigh")).To(ContainSubstring("10.1.0.2 "),
			"the neighbour remembers the old MAC address")
		next := Show(w.Attach("next", c, addrs...).Host, "eth0").Address
		// Without a packet of the neighbour's own: it is told.
		Eventually(func() string { return IP(neighbour.Host, "neigh") }).Should(And(
			ContainSubstring("10.1.0.2 dev eth0 lladdr "+next),
			ContainSubstring("2001:db8:1::2 dev eth0 lladdr "+next)))
		Expect(both()).To(BeTrue())
	})

	// Each end of the pair of the lowest MAC address may give a bridge its own.
	lowest := func(all []Attached) int {
		low := 0
		for i, a := range all {
			if Show(w.Host, hostEnd(a.Result)).Address < Show(w.Host, hostEnd(all[low].Result)).Address {
				low = i
			}
		}
		return low
	}
	DescribeTable("reaches the gateway, whichever container goes, on a bridge that was made", func(reference bool) {
		c := l3(Object{"isGateway": true, "cniVersion": "1.0.0"})
		if !reference {
			w.Host.IP("link add name br type bridge", "link set dev br up")
		} else {
			layer2 := Call{Command: "ADD", ID: "layer2", Netns: nstest.NewNetns().Path,
				Conf: conf(Object{"cniVersion": "1.0.0"})}
			w.Reference(nstest.Newest(), layer2).Added()
		}
		before := Show(w.Host, "br").Address
		var all []Attached
		for i := range 4 {
			id, cont := fmt.Sprint("c", i), nstest.NewNetns()
			w.LendAddrs(id, fmt.Sprintf("10.1.0.%d/24 10.1.0.1", i+2))
			cl := Call{Command: "ADD", ID: id, Netns: cont.Path, Conf: c}
			all = append(all, Attached{Host: cont, Call: cl, Result: w.Add(cl)})
		}
		goes := lowest(all)
		other := all[(goes+1)%len(all)]
		Expect(Ping(other.Host, "10.1.0.1")).To(BeTrue())
		mac := Show(w.Host, "br").Address
		Expect(mac).To(Equal(before))
		w.Succeeds(all[goes].As("DEL"))
		Expect(Show(w.Host, "br").Address).To(Equal(mac))
		Expect(IP(other.Host, "neigh")).To(ContainSubstring("10.1.0.1 dev eth0 lladdr " + mac))
		Expect(other.Cmd("ping", "-n", "-c20", "-i0.02", "-W20", "10.1.0.1")).To(ContainSubstring("20 received"))
	},
		Entry("by an administrator", false),
		Entry("by the reference for a layer 2 network", true),
	)

	It("keeps the MAC address that a bridge takes from its first container, since its other ports are gone", func() {
		w.Host.IP("link add name br type bridge", "link add gone master br type veth peer name other",
			"link del gone")
		Expect(Show(w.Host, "br").Address).To(Equal("00:00:00:00:00:00"))
		one := w.Attach("one", l3(Object{"isGateway": true}), "10.1.0.2/24 10.1.0.1")
		mac := Show(w.Host, "br").Address
		w.Attach("two", l3(Object{"isGateway": true}), "10.1.0.3/24 10.1.0.1")
		w.Succeeds(one.As("DEL"))
		Expect(Show(w.Host, "br").Address).To(Equal(mac))
		Expect(w.Cmd("cat", "/sys/class/net/br/addr_assign_type")).To(HavePrefix("3"))
	})

	It("keeps the MAC address of a bridge that a failed ADD made the gateway, since IPv6 is off there", func() {
		w.Host.IP("link add name br type bridge", "link set dev br up")
		w.SetSysctl("net/ipv6/conf/br/disable_ipv6", "1")
		w.LendAddrs("one", "10.1.0.2/24 10.1.0.1", "2001:db8:1::2/64 2001:db8:1::1")
		cl := Call{Command: "ADD", Netns: nstest.NewNetns().Path, Conf: l3(Object{"isGateway": true})}
		Expect(w.Fails(cl, cni.CodeConflict)).To(HavePrefix(`bridge "br": gateway 2001:db8:1::1/64: IPv6 is off`))
		Expect(IP(w.Host, "addr show dev br")).To(ContainSubstring("10.1.0.1/24"))
		Expect(w.Cmd("cat", "/sys/class/net/br/addr_assign_type")).To(HavePrefix("3"))
	})

	It("is forwarded to the first container of a new bridge at once: the host can ask for its neighbours", func() {
		w.SetSysctl("net/ipv6/conf/default/accept_dad", "1")
		w.Attach("one", l3(Object{"isGateway": true}), "2001:db8:1::2/64")
		Expect(w.Sysctl("net/ipv6/conf/br/accept_dad")).To(Equal("0"))
	})

	It("works where /proc/sys is read-only, with a word on what could not be set", func() {
		w.SetSysctl("net/ipv4/ip_forward", "1")
		w.SetSysctl("net/ipv6/conf/default/accept_ra", "1")
		w.Cmd("mount", "--bind", "/proc/sys", "/proc/sys")
		w.Cmd("mount", "-o", "remount,bind,ro", "/proc/sys")
		a := w.Attach("one", l3(Object{"isGateway": true}), "10.1.0.2/24")
		Expect(Ping(a.Host, "10.1.0.1")).To(BeTrue())
		got := w.Call(Call{Command: "ADD", ID: "two", Netns: nstest.NewNetns().Path,
			Conf: l3(Object{"isGateway": true})})
		Expect(got.Stderr).To(ContainSubstring(
			`sysctl net.ipv6.conf.br.accept_ra: write "0": read-only file system`))
	})

	It("does not either through a bridge that others made and that leads nowhere", func() {
		IP(w.Host, "link add name br up type bridge")
		w.SetSysctl("net/ipv6/conf/br/accept_ra", "1")
		Expect(heeded(w.Attach("one", l3(), "10.1.0.2/24"))).To(BeFalse())
	})

	It("of containers does not give the host routes either when it stops to forward, or forwards and heeds them "+
		"all the same", func() {
		w.SetSysctl("net/ipv6/conf/all/forwarding", "1")
		w.Attach("one", l3(), "10.1.0.2/24")
		Expect(w.Sysctl("net/ipv6/conf/br/accept_ra")).To(Equal("0"))
		w.SetSysctl("net/ipv6/conf/br/accept_ra", "2")
		Expect(heeded(w.Attach("two", l3(), "10.1.0.3/24"))).To(BeFalse())
	})

	It("may, through a bridge of the administrator's with an uplink, which is used as found", func() {
		nstest.Need("tap")
		w.Host.IP("link add name br up type bridge", "tuntap add uplink mode tap", "link set uplink master br")
		w.SetSysctl("net/ipv6/conf/br/accept_ra", "1")
		w.SetSysctl("net/ipv6/conf/br/accept_dad", "0")
		a := w.Attach("one", l3(), "10.1.0.2/24")
		Expect(w.Sysctl("net/ipv6/conf/br/accept_ra")).To(Equal("1"))
		Eventually(heeded).WithArguments(a).Should(BeTrue(), "or the specs above show nothing")
	})

	It("of containers does not give other containers routes where the bridge is their gateway (CVE-2020-10749)",
		Label("router-advertisements"), func() {
			c := l3(Object{"isGateway": true})
			rogue := w.Attach("rogue", c, "10.1.0.9/24", "2001:db8:1::9/64")
			for id, addrs := range map[string][]string{"single": {"10.1.0.2/24"}, "dual": {"10.1.0.3/24",
				"2001:db8:1::3/64"}} {
				victim := w.Attach(id, c, addrs...)
				LinkLocal(rogue.Host, "eth0") // from which it is sent
				rogue.AdvertiseRouter("eth0", "2001:db8:bad::")
				// Answered after the advertisement was received.
				Expect(Ping(rogue.Host, LinkLocal(victim.Host, "eth0")+"%eth0")).To(BeTrue())
				Expect(IP(victim.Host, "-6 route")).NotTo(ContainSubstring("default"))
				Expect(IP(victim.Host, "-6 addr")).NotTo(ContainSubstring("2001:db8:bad:"))
			}
		})

	DescribeTable("to the outside has the host's address with ipMasq", func(backend any, nf bool) {
		if nf {
			w.SetBridgeNF(true)
		}
		if backend == "iptables" {
			nstest.Need("iptables")
		}
		out := nstest.NewOutside(w.Host)
		out.Serve("tcp", "192.0.2.2:80")
		out.Serve("tcp", "[2001:db8::2]:80")
		c := l3(Object{"isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": backend})
		a := w.Attach("one", c, "10.1.0.2/24", "fd00:1::2/64")
		b := w.Attach("two", c, "10.1.0.3/24", "fd00:1::3/64")
		Expect(a.Ask("tcp", "192.0.2.2:80")).To(HavePrefix("192.0.2.1:"))
		Expect(a.Ask("tcp", "[2001:db8::2]:80")).To(HavePrefix("[2001:db8::1]:"))
		b.Serve("tcp", "10.1.0.3:80")
		b.Serve("tcp", "[fd00:1::3]:80")
		Expect(a.Ask("tcp", "10.1.0.3:80")).To(HavePrefix("10.1.0.2:"))
		Expect(a.Ask("tcp", "[fd00:1::3]:80")).To(HavePrefix("[fd00:1::2]:"))
		w.Succeeds(a.As("CHECK"))
		w.Succeeds(a.As("DEL"))
		Expect(b.Ask("tcp", "192.0.2.2:80")).To(HavePrefix("192.0.2.1:"))
		w.Succeeds(b.As("DEL"))
	},
		Entry("by default", nil, false),
		Entry("on nftables, where bridged frames pass the IP rules", "nftables", true),
		Entry("on iptables", "iptables", false),
	)

	It("to the outside has the container's address without ipMasq", func() {
		out := nstest.NewOutside(w.Host)
		out.Serve("tcp", "192.0.2.2:80")
		IP(out, "route add 10.1.0.0/24 via 192.0.2.1")
		a := w.Attach("one", l3(Object{"isDefaultGateway": true}), "10.1.0.2/24")
		Expect(a.Ask("tcp", "192.0.2.2:80")).To(HavePrefix("10.1.0.2:"))
	})
})
