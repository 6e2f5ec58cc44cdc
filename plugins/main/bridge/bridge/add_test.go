package bridge

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestBridge(t *testing.T) { nstest.RunSpecs(t, "plugins/main/bridge/bridge") }

// world is a host with containers and a directory of IPAM plugins.
type world struct{ *World }

func newWorld() *world {
	GinkgoHelper()
	w := &world{NewWorld(Plugin())}
	w.SetSysctl("net/ipv6/conf/default/accept_dad", "0") // no wait for link-local addresses
	return w
}

// conf returns a configuration of network "net" with bridge "br" and additional keys; the value nil removes a key.
func conf(more ...Object) Object {
	return Merge(append([]Object{{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "br"}}, more...)...)
}

// l3 returns conf with addresses from fake.
func l3(more ...Object) Object {
	return conf(append([]Object{{"ipam": Object{"type": "fake"}}}, more...)...)
}

// hostEnd returns the name of the port in a result.
func hostEnd(r Result) string { return r.Interfaces[1].Name }

// routes lists a family's routes as "dst via gateway metric".
func routes(h *nstest.Host, family string) []string {
	GinkgoHelper()
	var list []struct {
		Dst, Gateway string
		Metric       int
	}
	h.JSON(&list, "ip", "-j", family, "route")
	out := []string{}
	for _, r := range list {
		if r.Gateway != "" {
			out = append(out, strings.TrimSuffix(fmt.Sprintf("%s via %s %d", r.Dst, r.Gateway, r.Metric), " 0"))
		}
	}
	return out
}

// four attaches four containers, and returns the one whose host end has the lowest MAC address, and another one.
func (w *world) four(c Object) (goes, stays Attached) {
	GinkgoHelper()
	var all []Attached
	for i := range 4 {
		id, cont := fmt.Sprint("c", i), nstest.NewNetns()
		w.LendAddrs(id, fmt.Sprintf("10.1.0.%d/24 10.1.0.1", i+2))
		cl := Call{Command: "ADD", ID: id, Netns: cont.Path, Conf: c}
		all = append(all, Attached{Host: cont, Call: cl, Result: w.Add(cl)})
	}
	mac := func(a Attached) string { return Show(w.Host, hostEnd(a.Result)).Address }
	slices.SortFunc(all, func(a, b Attached) int { return strings.Compare(mac(a), mac(b)) })
	return all[0], all[1]
}

// losesNothing detaches one container while another one pings the gateway, which must answer each time.
func (w *world) losesNothing(goes, stays Attached) {
	GinkgoHelper()
	Expect(Ping(stays.Host, "10.1.0.1")).To(BeTrue())
	pinged := make(chan string, 1)
	go func() {
		defer GinkgoRecover()
		ping := nstest.Program{Path: "ping", Args: strings.Fields("-n -c100 -i0.01 -W5 10.1.0.1")}
		pinged <- stays.Run(ping).Stdout
	}()
	w.Succeeds(goes.As("DEL"))
	Expect(<-pinged).To(ContainSubstring("100 received"))
}

var _ = Describe("ADD", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("connects containers on layer 2, and creates only links", func() {
		a, b := w.Attach("one", conf()), w.Attach("two", conf())
		port := Show(w.Host, hostEnd(a.Result))
		Expect(port.Master).To(Equal("br"))
		Expect(port.Ifalias).To(HaveSuffix(" net one eth0"))
		Expect(Show(w.Host, "br").Flags).To(ContainElement("UP"))
		Expect(Show(a.Host, "eth0").Flags).To(ContainElement("UP"))
		from, to := a.Host.Wiretap("eth0"), b.Host.Wiretap("eth0")
		from.Send(from.MAC, to.MAC, "hello")
		Expect(to.Next()).To(Equal("hello"))
		Expect(a.Result.Text).NotTo(ContainSubstring("ips"))
		Expect(w.Calls()).To(BeEmpty())
		Expect(w.Sysctl("net/ipv4/ip_forward")).To(Equal("0"))
	})

	It("reports the links as the kernel has them", func() {
		a := w.Attach("one", conf(Object{"mtu": 1400}))
		Expect(a.Result.Interfaces).To(HaveLen(3))
		for i, l := range []Link{Show(w.Host, "br"), Show(w.Host, hostEnd(a.Result)), Show(a.Host, "eth0")} {
			r := a.Result.Interfaces[i]
			Expect([]any{r.Name, r.MAC, r.MTU}).To(Equal([]any{l.Ifname, l.Address, 1400}))
			Expect(l.MTU).To(Equal(1400))
		}
		Expect(a.Result.Interfaces[2].Sandbox).To(Equal(a.Path))
		Expect(a.Result.Interfaces[0].Sandbox + a.Result.Interfaces[1].Sandbox).To(BeEmpty())
	})

	It("answers in each version, on layer 2 and 3", Label("versions"), func() {
		for i, v := range cni.Versions() {
			res := w.Attach("l2-"+v, conf(Object{"cniVersion": v})).Result
			Expect(res.CNIVersion).To(Equal(v))
			res = w.Attach("l3-"+v, l3(Object{"cniVersion": v, "bridge": "br3", "isGateway": true}),
				fmt.Sprintf("10.1.0.%d/24", i+2)).Result
			Expect(res.CNIVersion).To(Equal(v))
			Expect(res.Text).To(ContainSubstring("10.1.0.%d/24", i+2))
		}
	})

	DescribeTable("makes the bridge a gateway that answers immediately:", func(addrs, gateways, others []string) {
		cont := nstest.NewNetns()
		for _, h := range []*nstest.Host{w.Host, cont} {
			h.SetSysctl("net/ipv6/conf/default/accept_dad", "1")
			h.SetSysctl("net/ipv6/conf/default/dad_transmits", "60") // one a second
		}
		c := l3(Object{"isDefaultGateway": true})
		w.LendAddrs("one", addrs...)
		began := time.Now()
		w.Add(Call{ID: "one", Netns: cont.Path, Conf: c})
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Hang))
		for _, gw := range gateways {
			Expect(Ping(cont, Addr(gw))).To(BeTrue(), gw)
		}
		br := Show(w.Host, "br")
		Expect(br.Addrs()).To(ConsistOf(gateways))
		for _, have := range br.AddrInfo {
			Expect(have.Scope == "global" && have.Tentative).To(BeFalse(), have.Local)
		}
		b := w.Attach("two", c, others...)
		for _, addr := range addrs {
			Expect(Ping(b.Host, Addr(addr)) && Ping(w.Host, Addr(addr))).To(BeTrue())
		}
	},
		Entry("IPv4", []string{"10.1.0.2/24 10.1.0.1"}, []string{"10.1.0.1/24"}, []string{"10.1.0.3/24 10.1.0.1"}),
		Entry("IPv6", []string{"2001:db8:1::2/64"}, []string{"2001:db8:1::1/64"}, []string{"2001:db8:1::3/64"}),
		Entry("dual stack", []string{"10.1.0.2/24", "2001:db8:1::2/64"}, []string{"10.1.0.1/24", "2001:db8:1::1/64"},
			[]string{"10.1.0.3/24", "2001:db8:1::3/64"}),
		Entry("several addresses", []string{"10.1.0.2/24", "10.2.0.2/24", "2001:db8:1::2/64", "2001:db8:2::2/64"},
			[]string{"10.1.0.1/24", "10.2.0.1/24", "2001:db8:1::1/64", "2001:db8:2::1/64"},
			[]string{"10.1.0.3/24", "10.2.0.3/24", "2001:db8:1::3/64", "2001:db8:2::3/64"}),
	)

	It("turns on forwarding for the families of its gateways", func() {
		w.Attach("one", l3(), "10.1.0.2/24 10.1.0.1", "2001:db8:1::2/64")
		Expect(w.Sysctl("net/ipv4/ip_forward") + w.Sysctl("net/ipv6/conf/all/forwarding")).To(Equal("00"))
		Expect(Show(w.Host, "br").Addrs()).To(BeEmpty())
		w.Attach("two", l3(Object{"isGateway": true}), "10.1.0.3/24")
		Expect(w.Sysctl("net/ipv4/ip_forward") + w.Sysctl("net/ipv6/conf/all/forwarding")).To(Equal("10"))
		w.Attach("six", l3(Object{"isGateway": true}), "2001:db8:1::3/64")
		Expect(w.Sysctl("net/ipv6/conf/all/forwarding")).To(Equal("1"))
	})

	It("adds a link-local gateway next to the bridge's own link-local address", func() {
		a := w.Attach("one", l3(Object{"isDefaultGateway": true}), "2001:db8:1::2/64 fe80::1")
		b := w.Attach("two", l3(Object{"isDefaultGateway": true}), "2001:db8:1::3/64 fe80::1")
		Expect(Ping(b.Host, "fe80::1%eth0")).To(BeTrue())
		Expect(routes(a.Host, "-6")).To(Equal([]string{"default via fe80::1 1024"}))
	})

	It("sets hairpin mode, in which a container receives its own broadcast", func() {
		a, b := w.Attach("one", conf(Object{"hairpinMode": true})), w.Attach("two", conf())
		Expect(Show(w.Host, hostEnd(a.Result)).Linkinfo.Port.Hairpin).To(BeTrue())
		Expect(Show(w.Host, hostEnd(b.Result)).Linkinfo.Port.Hairpin).To(BeFalse())
		t, u := a.Host.Wiretap("eth0"), b.Host.Wiretap("eth0")
		t.Send(t.MAC, nstest.Broadcast, "echo")
		Expect(t.Next()).To(Equal("echo"))
		Expect(u.Next()).To(Equal("echo"))
		u.Send(u.MAC, nstest.Broadcast, "none")
		u.Nothing()
	})

	It("makes the bridge promiscuous", func() {
		w.Attach("one", conf())
		Expect(Show(w.Host, "br").Flags).NotTo(ContainElement("PROMISC"))
		w.Attach("two", conf(Object{"promiscMode": true}))
		Expect(Show(w.Host, "br").Flags).To(ContainElement("PROMISC"))
	})

	It("isolates ports from each other, but not from other ports", func() {
		c := l3(Object{"portIsolation": true, "isGateway": true})
		a, b := w.Attach("one", c, "10.1.0.2/24"), w.Attach("two", c, "10.1.0.3/24")
		open := w.Attach("open", l3(Object{"isGateway": true}), "10.1.0.4/24")
		Expect(Show(w.Host, hostEnd(a.Result)).Linkinfo.Port.Isolated).To(BeTrue())
		Expect(Show(w.Host, hostEnd(open.Result)).Linkinfo.Port.Isolated).To(BeFalse())
		t, u := a.Host.Wiretap("eth0"), b.Host.Wiretap("eth0")
		t.Send(t.MAC, u.MAC, "hello")
		u.Nothing()
		Expect(Ping(a.Host, "10.1.0.1")).To(BeTrue())
		Expect(Ping(open.Host, "10.1.0.2")).To(BeTrue())
	})

	It("gives the container the requested MAC address, from runtimeConfig before CNI_ARGS", func() {
		c := Call{ID: "one", Conf: conf(Object{"runtimeConfig": Object{"mac": "02:00:00:00:00:05"}}),
			Args: "MAC=02:00:00:00:00:01"}
		cont := nstest.NewNetns()
		c.Netns = cont.Path
		Expect(w.Add(c).Interfaces[2].MAC).To(Equal("02:00:00:00:00:05"))
		Expect(Show(cont, "eth0").Address).To(Equal("02:00:00:00:00:05"))
	})

	It("leaves the container's interface down with disableContainerInterface", func() {
		a := w.Attach("one", conf(Object{"disableContainerInterface": true}))
		Expect(Show(a.Host, "eth0").Flags).NotTo(ContainElement("UP"))
		Expect(Show(w.Host, hostEnd(a.Result)).Flags).To(ContainElement("UP"))
		w.Succeeds(a.As("CHECK"))
	})

	It("refuses a gateway that conflicts with an address of the bridge, or replaces that with forceAddress", func() {
		c := l3(Object{"isGateway": true})
		w.Attach("one", c, "10.1.0.2/24", "2001:db8:1::2/64")
		before := w.Snapshot()
		cont := nstest.NewNetns()
		w.LendAddrs("two", "10.2.0.2/24")
		Expect(w.Fails(Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: c},
			cni.CodeConflict)).To(ContainSubstring("10.1.0.1/24"))
		w.LendAddrs("two", "2001:db8:1::3/60 2001:db8:1:2::1")
		Expect(w.Fails(Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: c},
			cni.CodeConflict)).To(ContainSubstring("2001:db8:1::1/64"))
		Expect(w.Snapshot()).To(Equal(before))

		w.Attach("three", c, "2001:db8:2::3/64")
		Expect(Show(w.Host, "br").Addrs()).To(ConsistOf("10.1.0.1/24", "2001:db8:1::1/64", "2001:db8:2::1/64"))
		w.Attach("four", l3(Object{"isGateway": true, "forceAddress": true}), "10.2.0.2/24")
		Expect(Show(w.Host, "br").Addrs()).To(ConsistOf("10.2.0.1/24", "2001:db8:1::1/64", "2001:db8:2::1/64"))
	})

	It("keeps a gateway address that the kernel removes together with a replaced one of the same subnet", func() {
		w.Host.IP("link add name br type bridge", "addr add 10.1.0.254/24 dev br", "addr add 10.1.0.1/24 dev br")
		w.Host.SetSysctl("net/ipv4/conf/all/promote_secondaries", "0")
		w.Host.SetSysctl("net/ipv4/conf/br/promote_secondaries", "0")
		w.Attach("one", l3(Object{"isGateway": true, "forceAddress": true}), "10.1.0.2/24", "10.2.0.2/24")
		Expect(Show(w.Host, "br").Addrs()).To(ConsistOf("10.1.0.1/24", "10.2.0.1/24"))
	})

	It("uses an existing bridge with its settings, and warns about a different MTU", func() {
		IP(w.Host, "link add name br address 02:00:00:00:00:09 mtu 1400 type bridge forward_delay 0 ageing_time 1234")
		before := Show(w.Host, "br")
		cont := nstest.NewNetns()
		a := w.Call(Call{Command: "ADD", Netns: cont.Path, Conf: conf(Object{"mtu": 1300})})
		a.Added()
		Expect(a.Stderr).To(And(ContainSubstring("1400"), ContainSubstring("1300")))
		after := Show(w.Host, "br")
		Expect(after.Address).To(Equal(before.Address))
		Expect(after.Flags).To(ContainElement("UP"))
		Expect(Show(cont, "eth0").MTU).To(Equal(1300))
		Expect(w.Snapshot("links")).To(ContainSubstring("ageing_time=1234"))
	})

	Describe("a port with a smaller MTU", Label("bridge-mtu"), func() {
		It("keeps the bridge's MTU and IPv6 addresses, which other containers use", func() {
			other := w.Attach("other", l3(Object{"isGateway": true}), "2001:db8:1::2/64")
			before := Show(w.Host, "br")
			tenant := Object{"name": "tenant", "mtu": 1000}
			for _, a := range []Attached{w.Attach("one", conf(tenant)),
				w.Attach("two", conf(tenant, Object{"disableContainerInterface": true}))} {
				Expect(Show(a.Host, "eth0").MTU).To(Equal(1000))
				for i, l := range []Link{Show(w.Host, "br"), Show(w.Host, hostEnd(a.Result))} {
					Expect([]int{l.MTU, a.Result.Interfaces[i].MTU}).To(HaveEach(1500))
				}
				Expect(Show(w.Host, "br").Addrs()).To(Equal(before.Addrs()))
				Expect(Ping(other.Host, "2001:db8:1::1")).To(BeTrue())
				w.Succeeds(a.As("CHECK"))
				w.Succeeds(a.As("DEL"))
				Expect(Show(w.Host, "br").Addrs()).To(Equal(before.Addrs()))
			}
		})

		It("can be the first port: the bridge gets the MTU that IPv6 needs with the next container", func() {
			tenant := w.Attach("tenant", conf(Object{"name": "tenant", "mtu": 1000}))
			Expect(Show(w.Host, "br").MTU).To(Equal(1000))
			next := w.Attach("next", l3(Object{"isGateway": true}), "2001:db8:1::2/64")
			Expect(Show(w.Host, "br").MTU).To(Equal(1280))
			Expect(Show(tenant.Host, "eth0").MTU).To(Equal(1000))
			Expect(Show(next.Host, "eth0").MTU).To(Equal(1500))
			Expect(w.Sysctl("net/ipv6/conf/br/accept_ra")).To(Equal("0"))
			Expect(Ping(next.Host, "2001:db8:1::1")).To(BeTrue())
			w.Succeeds(tenant.As("CHECK"))
			w.Succeeds(next.As("CHECK"))
			w.Succeeds(tenant.As("DEL"))
			Expect(Show(w.Host, "br").MTU).To(Equal(1500))
			w.Succeeds(next.As("CHECK"))
		})

		It("keeps the MTU of a bridge whose uplink has a larger one", func() {
			w.Host.IP("link add name br up mtu 9000 type bridge", "link add up0 mtu 9000 type veth peer name up1",
				"link set up0 master br")
			a := w.Attach("one", conf())
			Expect(Show(w.Host, "br").MTU).To(Equal(9000))
			Expect(Show(a.Host, "eth0").MTU).To(Equal(1500))
			w.Succeeds(a.As("CHECK"))
		})

		It("keeps it while a container has it, and then lowers it for the bridge and for ports", func() {
			large := w.Attach("large", conf())
			var kept []Attached
			for id := range 2 {
				kept = append(kept, w.Attach(fmt.Sprint(id), conf(Object{"mtu": 1400})))
			}
			Expect(Show(w.Host, "br").MTU).To(Equal(1500))
			w.Succeeds(large.As("DEL"))
			next := w.Attach("next", conf(Object{"mtu": 1000}))
			for i, a := range append(kept, next) {
				Expect(Show(w.Host, hostEnd(a.Result)).MTU).To(Equal(1400), "%d", i)
				w.Succeeds(a.As("CHECK"))
			}
			Expect(Show(w.Host, "br").MTU).To(Equal(1400))
			w.Succeeds(next.As("DEL"))
			Expect(Show(w.Host, "br").MTU).To(Equal(1400))

			By("also if a container's MTU was lowered since then, which is the only error of CHECK")
			tuned := w.Attach("tuned", conf(Object{"mtu": 1500}))
			for _, a := range kept {
				w.Succeeds(a.As("DEL"))
			}
			Expect(Show(w.Host, "br").MTU).To(Equal(1500))
			IP(tuned.Host, "link set eth0 mtu 1300")
			w.Attach("last", conf(Object{"mtu": 1000}))
			Expect(Show(w.Host, "br").MTU).To(Equal(1300))
			Expect(w.Fails(tuned.As("CHECK"), 101)).To(And(ContainSubstring("eth0"),
				Not(ContainSubstring(hostEnd(tuned.Result)))))
		})

		It("sets the MTU of a bridge without other ports, as Linux does", func() {
			IP(w.Host, "link add name br up type bridge")
			for id := range 2 {
				a := w.Attach(fmt.Sprint(id), conf(Object{"mtu": 1400}))
				Expect(Show(w.Host, hostEnd(a.Result)).MTU).To(Equal(1400))
				Expect(Show(w.Host, "br").MTU).To(Equal(1400))
			}
		})
	})

	It("assigns in a VRF an address that the host has outside the VRF, but not one that it has inside",
		Label("kernel", "host-address"), func() {
			nstest.Need("vrf")
			w.Host.IP("link add red up type vrf table 10", "link add name br up master red type bridge",
				"addr add 10.1.0.3/32 dev lo", "addr add 2001:db8:1::3/128 dev lo",
				"rule add pref 32765 table local", "rule del pref 0") // as the kernel's documentation of VRFs requires
			for _, rule := range []string{"add pref 32765 table local", "del pref 0"} {
				IP(w.Host, "-6 rule %s", rule)
			}
			a := w.Attach("one", l3(Object{"isGateway": true}), "10.1.0.3/24", "2001:db8:1::3/64")
			Expect(Ping(a.Host, "10.1.0.1") && Ping(a.Host, "2001:db8:1::1")).To(BeTrue())
			for _, own := range []string{"10.1.0.1", "2001:db8:1::1"} {
				w.LendAddrs("two", own+"/24")
				Expect(w.Fails(Call{Command: "ADD", ID: "two", Netns: nstest.NewNetns().Path, Conf: l3()},
					cni.CodeConflict)).To(ContainSubstring("address " + own + ": the host has it"))
			}
		})

	It("refuses the name of a link that is not a bridge, and changes nothing", func() {
		IP(w.Host, "link add name br type veth peer name other")
		before := w.Snapshot()
		cont := nstest.NewNetns()
		Expect(w.Fails(Call{Command: "ADD", Netns: cont.Path, Conf: l3()},
			cni.CodeConflict)).To(ContainSubstring(`"br"`))
		Expect(w.Snapshot()).To(Equal(before))
		Expect(Names(cont, "")).To(BeEmpty())
		Expect(w.Calls()).To(BeEmpty())
	})

	It("waits for duplicate address detection with enabledad, and refuses a duplicate", Label("events"), func() {
		c := l3(Object{"enabledad": true})
		a := w.Attach("one", c, "2001:db8:1::2/64")
		for _, addr := range Show(a.Host, "eth0").AddrInfo {
			Expect(addr.Tentative).To(BeFalse(), addr.Local)
		}
		Expect(a.Sysctl("net/ipv6/conf/eth0/accept_dad")).To(Equal("1"))
		before := w.Snapshot()
		w.LendAddrs("two", "2001:db8:1::2/64")
		cont := nstest.NewNetns()
		cont.SetSysctl("net/ipv6/conf/default/dad_transmits", "5") // the first may be lost
		cl := Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: c}
		Expect(w.Fails(cl, cni.CodeInternal)).To(ContainSubstring("2001:db8:1::2"))
		Expect(w.Snapshot()).To(Equal(before))
		Expect(w.Calls()).To(Equal([]string{"ADD one eth0", "ADD two eth0", "DEL two eth0"}))
	})
})

var _ = Describe("a gateway that another machine behind the uplink has", func() {
	const gateway = "2001:db8:1::1/64"

	It("is refused by the next ADD, and works after that machine is down", func() {
		nstest.Need("tap")
		w := newWorld()
		w.Host.IP("link add name br up type bridge", "tuntap add uplink mode tap",
			"link set uplink up master br")
		other := nstest.NewNetns()
		nstest.Wire(nstest.End{Host: w.Host, Name: "wire"}, nstest.End{Host: other, Name: "eth0"})
		IP(w.Host, "link set wire master br")
		IP(other, "addr add %s dev eth0 nodad", gateway)
		LinkLocal(other, "eth0")
		w.SetSysctl("net/ipv6/conf/br/accept_dad", "1")
		w.SetSysctl("net/ipv6/conf/br/dad_transmits", "5") // the first may be lost

		routed := l3(Object{"isGateway": true})
		w.Attach("one", routed, "2001:db8:1::2/64")
		Eventually(func() string { return IP(w.Host, "addr show dev br") }).Should(ContainSubstring("dadfailed"))

		cont := nstest.NewNetns()
		w.LendAddrs("two", "2001:db8:1::3/64")
		two := Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: routed}
		Expect(w.Fails(two, cni.CodeConflict)).To(And(ContainSubstring(gateway), ContainSubstring("duplicate")))
		Expect(Names(cont, "")).To(BeEmpty())

		IP(other, "link set eth0 down")
		r := w.Add(two)
		Expect(strings.Fields(IP(w.Host, "addr show dev br"))).To(And(ContainElement(gateway),
			Not(ContainElement("dadfailed"))))
		w.Succeeds(Call{Command: "CHECK", ID: "two", Netns: cont.Path, Conf: With(routed, r)})
		Expect(Ping(cont, "2001:db8:1::1")).To(BeTrue())
	})
})

var _ = Describe("traffic", func() {
	var w *world
	BeforeEach(func() {
		w = newWorld()
	})

	// isAccepted reports whether the host accepts a router advertisement of a container.
	isAccepted := func(a Attached) bool {
		GinkgoHelper()
		router, host := LinkLocal(a.Host, "eth0"), LinkLocal(w.Host, "br")
		a.AdvertiseRouter("eth0", "2001:db8:bad::")
		// Answered after the advertisement was received.
		Expect(Ping(a.Host, host+"%eth0")).To(BeTrue(), router)
		return strings.Contains(IP(w.Host, "-6 route"), "default via") || strings.Contains(IP(w.Host, "-6 addr"),
			"2001:db8:bad:")
	}

	It("immediately reaches the next container that has an address", func() {
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
		// ADD announces the address, so that the neighbor need not send a packet.
		Eventually(func() string { return IP(neighbour.Host, "neigh") }).Should(And(
			ContainSubstring("10.1.0.2 dev eth0 lladdr "+next),
			ContainSubstring("2001:db8:1::2 dev eth0 lladdr "+next)))
		Expect(both()).To(BeTrue())
	})

	DescribeTable("reaches the gateway while another container is detached, on a bridge created", Label("gateway-mac"),
		func(reference bool, setup ...string) {
			c := l3(Object{"isGateway": true, "cniVersion": "1.0.0"})
			if !reference {
				w.Host.IP("link add name br type bridge", "link set dev br up")
			} else {
				layer2 := Call{Command: "ADD", ID: "layer2", Netns: nstest.NewNetns().Path,
					Conf: conf(Object{"cniVersion": "1.0.0"})}
				w.Reference(nstest.Newest(), layer2).Added()
			}
			w.Host.IP(setup...)
			before := Show(w.Host, "br").Address
			goes, stays := w.four(c)
			mac := Show(w.Host, "br").Address
			Expect(mac).To(Equal(before))
			w.losesNothing(goes, stays)
			Expect(Show(w.Host, "br").Address).To(Equal(mac))
			Expect(IP(stays.Host, "neigh")).To(ContainSubstring("10.1.0.1 dev eth0 lladdr " + mac))
		},
		Entry("by an administrator", false),
		Entry("by an administrator, with the gateway's address", false, "addr add 10.1.0.1/24 dev br"),
		Entry("by the reference for a layer 2 network", true),
		Entry("by the reference for a layer 2 network, with the gateway's address", true,
			"addr add 10.1.0.1/24 dev br"),
	)

	It("has a gateway with its own MAC address on a bridge that had lost all its ports", Label("gateway-mac"), func() {
		w.Host.IP("link add name br type bridge", "link add gone master br type veth peer name other",
			"link del gone")
		Expect(Show(w.Host, "br").Address).To(Equal("00:00:00:00:00:00"))
		one := w.Attach("one", l3(Object{"isGateway": true}), "10.1.0.2/24 10.1.0.1")
		mac := Show(w.Host, "br").Address
		Expect(mac).NotTo(Equal(Show(w.Host, hostEnd(one.Result)).Address))
		Expect(w.Cmd("cat", "/sys/class/net/br/addr_assign_type")).To(HavePrefix("3"))
		w.Succeeds(one.As("DEL"))
		Expect(Show(w.Host, "br").Address).To(Equal(mac))
	})

	It("has a gateway with a fixed MAC address even if ADD fails afterwards, because IPv6 is off", func() {
		w.Host.IP("link add name br type bridge", "link set dev br up")
		w.SetSysctl("net/ipv6/conf/br/disable_ipv6", "1")
		w.LendAddrs("one", "10.1.0.2/24 10.1.0.1", "2001:db8:1::2/64 2001:db8:1::1")
		cl := Call{Command: "ADD", Netns: nstest.NewNetns().Path, Conf: l3(Object{"isGateway": true})}
		Expect(w.Fails(cl, cni.CodeConflict)).To(HavePrefix(`bridge "br": gateway 2001:db8:1::1/64: IPv6 is off`))
		Expect(IP(w.Host, "addr show dev br")).To(ContainSubstring("10.1.0.1/24"))
		Expect(w.Cmd("cat", "/sys/class/net/br/addr_assign_type")).To(HavePrefix("3"))
	})

	DescribeTable("over IPv6 is refused, naming each setting that turns IPv6 off", func(off ...string) {
		w.Host.IP("link add name br type bridge", "link set dev br up")
		want := `bridge "br": gateway 2001:db8:1::1/64: IPv6 is off on the interface; turn it on with "sysctl -w`
		for _, of := range off {
			w.SetSysctl("net/ipv6/conf/"+of+"/disable_ipv6", "1")
			want += " net/ipv6/conf/" + of + "/disable_ipv6=0"
		}
		for _, of := range []string{"all", "default", "br"} {
			value := map[bool]string{true: "1", false: "0"}[slices.Contains(off, of)]
			w.SetSysctl("net/ipv6/conf/"+of+"/disable_ipv6", value)
		}
		w.LendAddrs("one", "2001:db8:1::2/64 2001:db8:1::1")
		cl := Call{Command: "ADD", Netns: nstest.NewNetns().Path, Conf: l3(Object{"isGateway": true})}
		Expect(w.Fails(cl, cni.CodeConflict)).To(HavePrefix(want + `": `))
	}, Entry(nil, "br"), Entry(nil, "default", "br"), Entry(nil, "all", "default", "br"))

	It("is immediately forwarded to the first container, because a new bridge does not detect duplicates", func() {
		w.SetSysctl("net/ipv6/conf/default/accept_dad", "1")
		w.Attach("one", l3(Object{"isGateway": true}), "2001:db8:1::2/64")
		Expect(w.Sysctl("net/ipv6/conf/br/accept_dad")).To(Equal("0"))
	})

	It("works if /proc/sys is read-only, with a warning about a sysctl that could not be set", func() {
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

	It("of containers does not give the host routes through an existing bridge without an uplink", func() {
		IP(w.Host, "link add name br up type bridge")
		w.SetSysctl("net/ipv6/conf/br/accept_ra", "1")
		Expect(isAccepted(w.Attach("one", l3(), "10.1.0.2/24"))).To(BeFalse())
	})

	It("of containers does not give the host routes if it forwards, even if accept_ra was 2 before ADD", func() {
		w.SetSysctl("net/ipv6/conf/all/forwarding", "1")
		w.Attach("one", l3(), "10.1.0.2/24")
		Expect(w.Sysctl("net/ipv6/conf/br/accept_ra")).To(Equal("0"))
		w.SetSysctl("net/ipv6/conf/br/accept_ra", "2")
		Expect(isAccepted(w.Attach("two", l3(), "10.1.0.3/24"))).To(BeFalse())
	})

	It("of containers can give the host routes through a bridge with an uplink, which keeps its accept_ra", func() {
		nstest.Need("tap")
		w.Host.IP("link add name br up type bridge", "tuntap add uplink mode tap", "link set uplink master br")
		w.SetSysctl("net/ipv6/conf/br/accept_ra", "1")
		w.SetSysctl("net/ipv6/conf/br/accept_dad", "0")
		a := w.Attach("one", l3(), "10.1.0.2/24")
		Expect(w.Sysctl("net/ipv6/conf/br/accept_ra")).To(Equal("1"))
		Eventually(isAccepted).WithArguments(a).Should(BeTrue(), "the specs above need a valid advertisement")
	})

	It("of containers does not give other containers routes if the bridge is their gateway (CVE-2020-10749)",
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

var _ = AutoMTU(Plugin().Untyped(), l3(Object{"isDefaultGateway": true}), "", func(w *World, far *nstest.Host) string {
	w.SetSysctl("net/ipv4/ip_forward", "1")
	far.IP("addr flush dev far0", "addr add 10.7.0.1/24 dev far0", "route add default via 10.7.0.2")
	w.IP("addr add 10.7.0.2/24 dev up0")
	return "10.7.0.1"
})
