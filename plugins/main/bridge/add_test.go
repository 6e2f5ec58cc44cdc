package main

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

var versions = []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

var _ = Describe("ADD", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("joins containers on layer 2, with nothing but links", func() {
		a, b := w.attach("one", conf()), w.attach("two", conf())
		port := show(w.Host, a.res.hostEnd())
		Expect(port.Master).To(Equal("br"))
		Expect(port.Ifalias).To(HaveSuffix(" net one eth0"))
		Expect(show(w.Host, "br").Flags).To(ContainElement("UP"))
		Expect(show(a.Host, "eth0").Flags).To(ContainElement("UP"))
		from, to := tap(a.Host, "eth0"), tap(b.Host, "eth0")
		from.send(from.mac, to.mac, "hello")
		Expect(to.next()).To(Equal("hello"))
		Expect(a.res.text).NotTo(ContainSubstring("ips"))
		Expect(w.calls()).To(BeEmpty())
		Expect(w.Sysctl("net/ipv4/ip_forward")).To(Equal("0"))
	})

	It("reports the links as the kernel has them", func() {
		a := w.attach("one", conf(object{"mtu": 1400}))
		Expect(a.res.Interfaces).To(HaveLen(3))
		for i, l := range []shown{show(w.Host, "br"), show(w.Host, a.res.hostEnd()), show(a.Host, "eth0")} {
			r := a.res.Interfaces[i]
			Expect([]any{r.Name, r.MAC, r.MTU}).To(Equal([]any{l.Ifname, l.Address, 1400}))
			Expect(l.MTU).To(Equal(1400))
		}
		Expect(a.res.Interfaces[2].Sandbox).To(Equal(a.Path))
		Expect(a.res.Interfaces[0].Sandbox + a.res.Interfaces[1].Sandbox).To(BeEmpty())
	})

	It("answers in each version, on layer 2 and 3", func() {
		for i, v := range versions {
			res := w.attach("l2-"+v, conf(object{"cniVersion": v})).res
			Expect(res.CNIVersion).To(Equal(v))
			res = w.attach("l3-"+v, l3(object{"cniVersion": v, "bridge": "br3", "isGateway": true}), fmt.Sprintf("10.1.0.%d/24", i+2)).res
			Expect(res.CNIVersion).To(Equal(v))
			Expect(res.text).To(ContainSubstring("10.1.0.%d/24", i+2))
		}
	})

	DescribeTable("makes the bridge a gateway, which answers at once", func(addrs, gateways, others []string) {
		w.SetSysctl("net/ipv6/conf/default/accept_dad", "1")
		c := l3(object{"isDefaultGateway": true})
		began := time.Now()
		a := w.attach("one", c, addrs...)
		took := time.Since(began)
		for _, gw := range gateways {
			addr, _, _ := strings.Cut(gw, "/")
			Expect(ping(a.Host, addr)).To(BeTrue(), gw)
		}
		br := show(w.Host, "br")
		Expect(br.addrs()).To(ConsistOf(gateways))
		for _, have := range br.AddrInfo {
			Expect(have.Scope == "global" && have.Tentative).To(BeFalse(), have.Local)
		}
		Expect(took).To(BeNumerically("<", nstest.Patience(700*time.Millisecond)))
		b := w.attach("two", c, others...)
		for _, addr := range addrs {
			addr, _, _ = strings.Cut(addr, "/")
			Expect(ping(b.Host, addr)).To(BeTrue())
			Expect(ping(w.Host, addr)).To(BeTrue())
		}
	},
		Entry("IPv4", []string{"10.1.0.2/24 10.1.0.1"}, []string{"10.1.0.1/24"}, []string{"10.1.0.3/24 10.1.0.1"}),
		Entry("IPv6", []string{"2001:db8:1::2/64"}, []string{"2001:db8:1::1/64"}, []string{"2001:db8:1::3/64"}),
		Entry("dual stack", []string{"10.1.0.2/24", "2001:db8:1::2/64"}, []string{"10.1.0.1/24", "2001:db8:1::1/64"}, []string{"10.1.0.3/24", "2001:db8:1::3/64"}),
		Entry("several addresses", []string{"10.1.0.2/24", "10.2.0.2/24", "2001:db8:1::2/64", "2001:db8:2::2/64"},
			[]string{"10.1.0.1/24", "10.2.0.1/24", "2001:db8:1::1/64", "2001:db8:2::1/64"},
			[]string{"10.1.0.3/24", "10.2.0.3/24", "2001:db8:1::3/64", "2001:db8:2::3/64"}),
	)

	It("lets the host forward, for the families that it is the gateway of", func() {
		w.attach("one", l3(), "10.1.0.2/24 10.1.0.1", "2001:db8:1::2/64")
		Expect(w.Sysctl("net/ipv4/ip_forward") + w.Sysctl("net/ipv6/conf/all/forwarding")).To(Equal("00"))
		Expect(show(w.Host, "br").addrs()).To(BeEmpty())
		w.attach("two", l3(object{"isGateway": true}), "10.1.0.3/24")
		Expect(w.Sysctl("net/ipv4/ip_forward") + w.Sysctl("net/ipv6/conf/all/forwarding")).To(Equal("10"))
		w.attach("six", l3(object{"isGateway": true}), "2001:db8:1::3/64")
		Expect(w.Sysctl("net/ipv6/conf/all/forwarding")).To(Equal("1"))
	})

	It("routes by default where asked, through IPAM's gateway or the computed one", func() {
		a := w.attach("one", l3(object{"isGateway": true}), "10.1.0.2/24")
		Expect(routes(a.Host, "-4")).To(BeEmpty())
		b := w.attach("two", l3(object{"isDefaultGateway": true}), "10.1.0.3/24", "2001:db8:1::3/64 2001:db8:1::1")
		Expect(routes(b.Host, "-4")).To(Equal([]string{"default via 10.1.0.1"}))
		Expect(routes(b.Host, "-6")).To(Equal([]string{"default via 2001:db8:1::1 1024"}))
		Expect(b.res.Routes).To(HaveLen(2))
	})

	It("takes a default route of IPAM that names no gateway", func() {
		w.lend(`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"10.9.0.0/16","priority":7}]}`)
		a := w.attach("one", l3(object{"isDefaultGateway": true}))
		Expect(routes(a.Host, "-4")).To(ConsistOf("default via 10.1.0.1", "10.9.0.0/16 via 10.1.0.1 7"))
	})

	It("takes a link-local gateway beside the bridge's own link-local address", func() {
		a := w.attach("one", l3(object{"isDefaultGateway": true}), "2001:db8:1::2/64 fe80::1")
		b := w.attach("two", l3(object{"isDefaultGateway": true}), "2001:db8:1::3/64 fe80::1")
		Expect(ping(b.Host, "fe80::1%eth0")).To(BeTrue())
		Expect(routes(a.Host, "-6")).To(Equal([]string{"default via fe80::1 1024"}))
	})

	It("sets hairpin: a container hears its own broadcast", func() {
		a, b := w.attach("one", conf(object{"hairpinMode": true})), w.attach("two", conf())
		Expect(show(w.Host, a.res.hostEnd()).Linkinfo.Port.Hairpin).To(BeTrue())
		Expect(show(w.Host, b.res.hostEnd()).Linkinfo.Port.Hairpin).To(BeFalse())
		t, u := tap(a.Host, "eth0"), tap(b.Host, "eth0")
		t.send(t.mac, broadcast, "echo")
		Expect(t.next()).To(Equal("echo"))
		Expect(u.next()).To(Equal("echo"))
		u.send(u.mac, broadcast, "none")
		Expect(u.next()).To(BeEmpty())
	})

	It("sets the bridge promiscuous", func() {
		w.attach("one", conf())
		Expect(show(w.Host, "br").Flags).NotTo(ContainElement("PROMISC"))
		w.attach("two", conf(object{"promiscMode": true}))
		Expect(show(w.Host, "br").Flags).To(ContainElement("PROMISC"))
	})

	It("isolates ports from each other, not from the others", func() {
		c := l3(object{"portIsolation": true, "isGateway": true})
		a, b := w.attach("one", c, "10.1.0.2/24"), w.attach("two", c, "10.1.0.3/24")
		open := w.attach("open", l3(object{"isGateway": true}), "10.1.0.4/24")
		Expect(show(w.Host, a.res.hostEnd()).Linkinfo.Port.Isolated).To(BeTrue())
		Expect(show(w.Host, open.res.hostEnd()).Linkinfo.Port.Isolated).To(BeFalse())
		t, u := tap(a.Host, "eth0"), tap(b.Host, "eth0")
		t.send(t.mac, u.mac, "hello")
		Expect(u.next()).To(BeEmpty())
		Expect(ping(a.Host, "10.1.0.1")).To(BeTrue())
		Expect(ping(open.Host, "10.1.0.2")).To(BeTrue())
	})

	It("drops frames with another MAC address where asked to", func() {
		a := w.attach("one", conf(object{"macspoofchk": true}))
		b := w.attach("two", conf())
		t, u := tap(a.Host, "eth0"), tap(b.Host, "eth0")
		t.send(t.mac, u.mac, "honest")
		Expect(u.next()).To(Equal("honest"))
		t.send(net.HardwareAddr{2, 0, 0, 0, 0, 9}, u.mac, "spoofed")
		Expect(u.next()).To(BeEmpty())
		u.send(net.HardwareAddr{2, 0, 0, 0, 0, 9}, t.mac, "unchecked")
		Expect(t.next()).To(Equal("unchecked"))
	})

	It("gives the container the MAC address that was asked for", func() {
		c := call{id: "one", conf: conf(object{"runtimeConfig": object{"mac": "02:00:00:00:00:05"}}), args: "MAC=02:00:00:00:00:01"}
		cont := nstest.NewNetns()
		c.netns = cont.Path
		Expect(w.add(c).Interfaces[2].MAC).To(Equal("02:00:00:00:00:05"))
		Expect(show(cont, "eth0").Address).To(Equal("02:00:00:00:00:05"))
	})

	It("leaves the container's end down where asked to", func() {
		a := w.attach("one", conf(object{"disableContainerInterface": true}))
		Expect(show(a.Host, "eth0").Flags).NotTo(ContainElement("UP"))
		Expect(show(w.Host, a.res.hostEnd()).Flags).To(ContainElement("UP"))
		w.succeeds(a.as("CHECK"))
	})

	It("refuses to be the gateway with another address, unless it may replace it", func() {
		c := l3(object{"isGateway": true})
		w.attach("one", c, "10.1.0.2/24", "2001:db8:1::2/64")
		before := w.Snapshot()
		cont := nstest.NewNetns()
		w.lendAddrs("two", "10.2.0.2/24")
		Expect(w.fails(call{command: "ADD", id: "two", netns: cont.Path, conf: c}, cni.CodeConflict)).To(ContainSubstring("10.1.0.1/24"))
		w.lendAddrs("two", "2001:db8:1::3/60 2001:db8:1:2::1")
		Expect(w.fails(call{command: "ADD", id: "two", netns: cont.Path, conf: c}, cni.CodeConflict)).To(ContainSubstring("2001:db8:1::1/64"))
		Expect(w.Snapshot()).To(Equal(before))

		w.attach("three", c, "2001:db8:2::3/64")
		Expect(show(w.Host, "br").addrs()).To(ConsistOf("10.1.0.1/24", "2001:db8:1::1/64", "2001:db8:2::1/64"))
		w.attach("four", l3(object{"isGateway": true, "forceAddress": true}), "10.2.0.2/24")
		Expect(show(w.Host, "br").addrs()).To(ConsistOf("10.2.0.1/24", "2001:db8:1::1/64", "2001:db8:2::1/64"))
	})

	It("adds the gateways that are missing beside those that are there", func() {
		c := l3(object{"isGateway": true})
		w.attach("one", c, "10.1.0.2/24")
		b := w.attach("two", c, "10.1.0.3/24", "10.2.0.3/24")
		Expect(show(w.Host, "br").addrs()).To(ConsistOf("10.1.0.1/24", "10.2.0.1/24"))
		Expect(ping(b.Host, "10.2.0.1")).To(BeTrue())
	})

	It("uses an existing bridge as it is, and says what contradicts", func() {
		ip(w.Host, "link add name br address 02:00:00:00:00:09 mtu 1400 type bridge forward_delay 0 ageing_time 1234")
		before := show(w.Host, "br")
		cont := nstest.NewNetns()
		a := w.run(call{command: "ADD", netns: cont.Path, conf: conf(object{"mtu": 1300})})
		added(a)
		Expect(a.stderr).To(ContainSubstring("1400"))
		Expect(a.stderr).To(ContainSubstring("1300"))
		after := show(w.Host, "br")
		Expect(after.Address).To(Equal(before.Address))
		Expect(after.Flags).To(ContainElement("UP"))
		Expect(show(cont, "eth0").MTU).To(Equal(1300))
		Expect(w.Snapshot("links")).To(ContainSubstring("ageing_time=1234"))
	})

	It("refuses a name that something else has, and touches nothing", func() {
		ip(w.Host, "link add name br type veth peer name other")
		before := w.Snapshot()
		cont := nstest.NewNetns()
		Expect(w.fails(call{command: "ADD", netns: cont.Path, conf: l3()}, cni.CodeConflict)).To(ContainSubstring(`"br"`))
		Expect(w.Snapshot()).To(Equal(before))
		Expect(names(cont, "")).To(BeEmpty())
		Expect(w.calls()).To(BeEmpty())
	})

	It("keeps the bridge's MAC address, whoever comes and goes", func() {
		c := conf()
		first := w.attach("first", c)
		mac := show(w.Host, "br").Address
		for i := range 10 {
			a := w.attach(fmt.Sprint("c", i), c)
			Expect(show(w.Host, "br").Address).To(Equal(mac))
			if i%2 == 0 {
				w.succeeds(a.as("DEL"))
			}
		}
		w.succeeds(first.as("DEL"))
		Expect(show(w.Host, "br").Address).To(Equal(mac))
		Expect(mac).To(MatchRegexp("^.[26ae]:"))
	})

	It("passes dns on: IPAM's, or the configuration's instead", func() {
		w.lend(`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24"}],"dns":{"nameservers":["192.0.2.1"],"domain":"ipam"}}`)
		Expect(w.attach("one", l3()).res.DNS).To(Equal(object{"nameservers": []any{"192.0.2.1"}, "domain": "ipam"}))
		Expect(w.attach("two", l3(object{"dns": object{"search": []string{"x"}}})).res.DNS).To(Equal(object{"search": []any{"x"}}))
		Expect(w.attach("three", l3(object{"dns": object{"search": []string{}}})).res.DNS).To(BeNil())
	})

	It("works with host-local", func() {
		c := conf(object{"isDefaultGateway": true, "ipam": object{"type": "host-local", "dataDir": GinkgoT().TempDir(), "ranges": [][]object{
			{{"subnet": "10.1.0.0/24"}}, {{"subnet": "2001:db8:1::/64"}}}}})
		path := strings.TrimSuffix(nstest.Build("host-local"), "/host-local")
		cont := nstest.NewNetns()
		cl := call{command: "ADD", netns: cont.Path, conf: c, path: path}
		res := w.add(cl)
		Expect(ping(cont, "10.1.0.1") && ping(cont, "2001:db8:1::1")).To(BeTrue())
		for _, command := range []string{"CHECK", "DEL", "DEL"} {
			cl.command, cl.conf = command, with(c, res)
			w.succeeds(cl)
		}
	})

	It("waits for duplicate address detection where asked to, and refuses a duplicate", func() {
		c := l3(object{"enabledad": true})
		a := w.attach("one", c, "2001:db8:1::2/64")
		for _, addr := range show(a.Host, "eth0").AddrInfo {
			Expect(addr.Tentative).To(BeFalse(), addr.Local)
		}
		Expect(a.Sysctl("net/ipv6/conf/eth0/accept_dad")).To(Equal("1"))
		before := w.Snapshot()
		w.lendAddrs("two", "2001:db8:1::2/64")
		cont := nstest.NewNetns()
		cl := call{command: "ADD", id: "two", netns: cont.Path, conf: c}
		Expect(w.fails(cl, cni.CodeInternal)).To(ContainSubstring("2001:db8:1::2"))
		Expect(w.Snapshot()).To(Equal(before))
		Expect(w.calls()).To(Equal([]string{"ADD one eth0", "ADD two eth0", "DEL two eth0"}))
	})

	It("prints hints about misspelt keys, and goes on", func() {
		cont := nstest.NewNetns()
		a := w.run(call{command: "ADD", netns: cont.Path, conf: conf(object{"isGatway": true, "hairpinmode": true})})
		added(a)
		Expect(a.stderr).To(ContainSubstring(`"isGatway" is unknown and ignored: did you mean "isGateway"`))
		Expect(a.stderr).To(ContainSubstring(`did you mean "hairpinMode"`))
		Expect(slices.Contains(names(w.Host, ""), "br")).To(BeTrue())
	})
})
