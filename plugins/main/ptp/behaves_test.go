package main

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestPtp(t *testing.T) { nstest.RunSpecs(t, "plugins/main/ptp") }

// conf is a configuration of network "net": keys are added, or taken away by nil.
func conf(more ...Object) Object {
	return Merge(append([]Object{{"cniVersion": "1.1.0", "name": "net", "type": "ptp", "ipam": Object{"type": "fake"}}},
		more...)...)
}

// everything is a configuration that uses all that there is.
func everything(more ...Object) Object {
	return conf(append([]Object{{"ipMasq": true, "mtu": 1400}}, more...)...)
}

// The gateways of the specs.
const gw4, gw6 = "10.1.0.1", "2001:db8:1::1"

func newWorld() *World {
	GinkgoHelper()
	return NewWorld(plugin())
}

// hostEnd is the name of the result's host end.
func hostEnd(r Result) string { return r.Interfaces[0].Name }

// alive tells whether a container reaches its gateways.
func alive(a Attached) bool {
	GinkgoHelper()
	return Ping(a.Host, gw4) && Ping(a.Host, gw6)
}

// routes lists the routes of all tables that the kernel did not make by itself,
// as ip(8) writes them. With a name only those through that link, without it.
func routes(h *nstest.Host, family string, dev ...string) []string {
	GinkgoHelper()
	out := []string{}
	for line := range strings.Lines(h.Cmd("ip", family, "-d", "route", "show", "table", "all")) {
		words := strings.Fields(line)
		at := slices.Index(words, "dev")
		own := strings.Contains(line, "proto kernel") || strings.Contains(line, "fe80::/64")
		if own || strings.Contains(line, "table local") || at < 0 || dev != nil && !slices.Contains(dev, words[at+1]) {
			continue
		}
		if dev != nil {
			words = slices.Delete(words, at, at+2)
		}
		line = strings.Join(words, " ")
		for _, noise := range []string{"unicast ", " proto boot", " pref medium", " table main"} {
			line = strings.ReplaceAll(line, noise, "")
		}
		out = append(out, line)
	}
	return out
}

var _ = Behaves(Fixture{
	Plugin:    Any(plugin()),
	Conf:      everything(),
	Reference: conf(Object{"cniVersion": "1.0.0", "ipMasq": true}),
	HostEnd:   0,
	Senseless: Object{"mtu": "x", "ipMasq": 9, "ipMasqBackend": "x", "dns": 5},
	Otherwise: Object{"ipMasq": false, "ipMasqBackend": "iptables", "mtu": 1300},
	Failures: map[string]Failure{
		"there is no ipam": {Change: func(c *Call) { c.Conf = everything(Object{"ipam": nil}) }, Code: cni.CodeConfig,
			Says: "ipam.type"},
		"IPAM gives an address without a gateway": {Prepare: Lends("10.1.0.3/24"), Code: cni.CodeIPAM,
			Says: `"fake": address 10.1.0.3/24: has no gateway`, Asked: true},
		"IPAM gives a second address without a gateway": {Prepare: Lends(Addrs(3)[0], "2001:db8:1::3/64"),
			Code: cni.CodeIPAM,
			Says: "2001:db8:1::3/64", Asked: true},
	},
	Drifts: map[string]Drift{
		"a missing route to the gateway": InContainer("ip route del 10.1.0.1/32", "10.1.0.1/32", "missing"),
		"a missing route to the IPv6 gateway": InContainer("ip -6 route del 2001:db8:1::1/128", "2001:db8:1::1/128",
			"missing"),
		"a missing route to the subnet": InContainer("ip route del 10.1.0.0/24", "10.1.0.0/24", "missing"),
		"a missing route to the IPv6 subnet": InContainer("ip -6 route del 2001:db8:1::/64", "2001:db8:1::/64",
			"missing"),
		"a subnet on the link": InContainer("ip route del 10.1.0.0/24;ip route add 10.1.0.0/24 dev eth0 src 10.1.0.2",
			"10.1.0.0/24", "gateway is none instead of 10.1.0.1"),
		"a subnet's route with another source": InContainer(
			"ip addr add 10.1.0.9/32 dev eth0;ip route change 10.1.0.0/24 via 10.1.0.1 src 10.1.0.9", "10.1.0.0/24",
			"source is 10.1.0.9"),
		"a missing gateway address": OnHost("ip addr del 10.1.0.1/32 dev END", "END", "10.1.0.1/32"),
		"a missing IPv6 gateway address": OnHost("ip addr del 2001:db8:1::1/128 dev END", "END",
			"2001:db8:1::1/128"),
		"a missing route of the host":      OnHost("ip route del 10.1.0.2", "END", "10.1.0.2/32"),
		"a missing IPv6 route of the host": OnHost("ip -6 route del 2001:db8:1::2", "END", "2001:db8:1::2/128"),
		"a route of the host that is in another table only": OnHost(
			"ip route del 10.1.0.2;ip route add 10.1.0.2 dev END table 7", "10.1.0.2/32"),
		"a route of the host through somebody else": OnHost(
			"ip route del 10.1.0.2;ip route add 10.1.0.2 via 10.1.0.9 dev END onlink", "10.1.0.2/32"),
	},
})

var _ = Describe("CHECK", func() {
	var w *World
	BeforeEach(func() { w = newWorld() })

	It("passes right after ADD, for addresses that are alone in their subnet", func() {
		w.Succeeds(w.Attach("single", everything(), "10.1.0.5/32 10.1.0.1", "2001:db8:1::5/128 fe80::1").As("CHECK"))
	})

	DescribeTable("refuses a prevResult that cannot be ADD's", func(prev Object, want string) {
		a := w.Attach("one", conf(), Addrs(2)...)
		c := a.As("CHECK")
		c.Conf = conf(Object{"prevResult": Merge(Object{"cniVersion": "1.0.0",
			"interfaces": []Object{{"name": hostEnd(a.Result)}, {"name": "eth0", "sandbox": a.Path}},
			"ips":        []Object{{"address": "10.1.0.2/24", "gateway": gw4, "interface": 1}}}, prev)})
		if want == "" {
			w.Succeeds(c)
			return
		}
		Expect(w.Fails(c, cni.CodeDrift)).To(ContainSubstring(want))
	},
		Entry("but takes one with less in it", Object{}, ""),
		Entry("without addresses", Object{"ips": []Object{}}, `prevResult: has no address of interface "eth0"`),
		Entry("with an address without gateway", Object{"ips": []Object{{"address": "10.1.0.2/24"}}},
			"prevResult: address 10.1.0.2/24: has no gateway"),
	)

	It("does not look for a masquerade that was not asked for", func() {
		a := w.Attach("one", conf(), Addrs(2)...)
		w.Attach("two", everything(), Addrs(3)...)
		w.Cmd("nft", "flush", "table", "inet", "hawser")
		w.Succeeds(a.As("CHECK"))
	})

	It("does not mind what others add to the host end", func() {
		a := w.Attach("one", everything(), Addrs(2)...)
		for _, words := range []string{"addr add 192.0.2.9/24 dev ", "route add 10.77.0.0/16 dev "} {
			IP(w.Host, "%s", words+hostEnd(a.Result))
			w.Succeeds(a.As("CHECK"))
		}
	})

	It("takes the result of a chain, with the MAC and MTU and interfaces of later plugins", func() {
		a := w.Attach("one", conf(), Addrs(2)...)
		a.Host.IP("link set eth0 address 02:00:00:00:00:77", "link set eth0 mtu 1350")
		c := a.As("CHECK")
		c.Conf = conf(Object{"prevResult": Object{"cniVersion": "1.1.0", "interfaces": []Object{
			{"name": "ifb0", "mac": "02:00:00:00:00:01"}, {"name": hostEnd(a.Result), "mac": a.Result.Interfaces[0].MAC,
				"mtu": 1500},
			{"name": "eth0", "sandbox": a.Path, "mac": "02:00:00:00:00:77", "mtu": 1350}, {"name": "net1",
				"sandbox": a.Path}},
			"ips": []Object{{"address": "10.9.9.9/24", "interface": 3}, {"address": "10.1.0.2/24", "gateway": gw4,
				"interface": 2},
				{"address": "2001:db8:1::2/64", "gateway": gw6, "interface": 2}}}})
		w.Succeeds(c)
	})
})

var _ = Describe("DEL", func() {
	It("takes a host end that somebody put into a bridge", func() {
		w := newWorld()
		a := w.Attach("one", everything(), Addrs(3)...)
		IP(w.Host, "link add name br type bridge")
		IP(w.Host, "link set %s master br", hostEnd(a.Result))
		w.Succeeds(a.As("DEL"))
		Expect(Names(w.Host, "")).To(Equal([]string{"br"}))
	})
})

var _ = eachReference(func(ref nstest.Reference) {
	c := conf(Object{"cniVersion": "1.0.0", "ipMasq": true})
	var w *World
	var a Attached
	BeforeEach(func() {
		nstest.Need("iptables")
		w = newWorld()
		w.SetSysctl("net/ipv6/conf/default/accept_dad", "0") // the reference waits for it
		w.LendAddrs("one", Addrs(3)...)
		a.Host = nstest.NewNetns()
		a.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
		a.Call = Call{Command: "ADD", Netns: a.Path, Conf: c}
		a.Result = w.Reference(ref, a.Call).Added()
	})

	It("passes CHECK, each thing of it", func() {
		IP(w.Host, "route del 10.1.0.3")
		Expect(w.Fails(a.As("CHECK"), 101)).To(ContainSubstring("10.1.0.3/32"))
	})

	It("is not removed because it has the name, or is a port of a bridge", func() {
		IP(a.Host, "link del eth0")
		IP(w.Host, "link add %s address %s type veth peer name other", hostEnd(a.Result), a.Result.Interfaces[0].MAC)
		IP(w.Host, "link add name br type bridge")
		IP(w.Host, "link set %s master br", hostEnd(a.Result))
		w.Succeeds(a.As("DEL"))
		Expect(Names(w.Host, "")).To(ContainElements(hostEnd(a.Result), "other"))
	})
})

// eachReference is what each release of the reference plugin made.
func eachReference(specs func(nstest.Reference)) bool {
	for _, ref := range nstest.References() {
		Describe("what "+ref.Name+" made", func() { specs(ref) })
	}
	return true
}

var _ = Describe("deviceType netkit", Label("kernel"), func() {
	var w *World
	netkit := Object{"deviceType": "netkit"}
	status := Call{Command: "STATUS", Conf: conf(netkit)}
	BeforeEach(func() { w = newWorld() })

	It("is refused before IPAM is asked where the kernel lacks it, and STATUS fails", Label("netkit-pair"), func() {
		nstest.NeedLack("netkit")
		cont := nstest.NewNetns()
		add := Call{Command: "ADD", Netns: cont.Path, Conf: everything(netkit)}
		Expect(w.Fails(add, cni.CodeUnsupportedField)).To(HavePrefix(
			"deviceType: netkit: not supported by this kernel"))
		Expect(w.Calls()).To(BeEmpty())
		Expect(Names(w.Host, "")).To(BeEmpty())
		Expect(w.Fails(status, cni.CodeUnavailable)).To(HavePrefix("deviceType: kind netkit: "))
	})

	It("makes a pair of the kind", Label("netkit", "netkit-pair"), func() {
		nstest.Need("netkit")
		w.Succeeds(status)
		c := everything(netkit, Object{"runtimeConfig": Object{"mac": "02:00:00:00:00:03"}})
		a := w.Attach("one", c, Addrs(2)...)
		for _, l := range []Link{Show(w.Host, hostEnd(a.Result)), Show(a.Host, "eth0")} {
			Expect(l.Linkinfo.Kind).To(Equal("netkit"))
			Expect(l.MTU).To(Equal(1400))
			Expect(l.Flags).To(ContainElement("UP"))
		}
		Expect(Show(a.Host, "eth0").Address).To(Equal("02:00:00:00:00:03"))
		Expect(Show(w.Host, hostEnd(a.Result)).Ifalias).To(HaveSuffix(" net one eth0"))
		Expect(alive(a)).To(BeTrue())
		w.Succeeds(a.As("CHECK"))
		Expect(w.Fails(a.As("ADD"), cni.CodeExists)).To(ContainSubstring(`"eth0"`))
		other := w.Attach("two", everything(netkit), Addrs(3)...)
		w.Succeeds(Call{Command: "GC", Conf: everything(netkit, Object{"cni.dev/valid-attachments": []Object{
			{"containerID": "one", "ifname": "eth0"}}})})
		Expect(Names(w.Host, "")).To(ConsistOf(hostEnd(a.Result)))
		Expect(alive(a)).To(BeTrue())
		for range 2 {
			w.Succeeds(other.As("DEL"))
			w.Succeeds(a.As("DEL"))
		}
		Expect(Names(a.Host, "")).To(BeEmpty())
		Expect(Names(w.Host, "")).To(BeEmpty())
	})
})
