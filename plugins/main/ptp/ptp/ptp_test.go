package ptp

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestPtp(t *testing.T) { nstest.RunSpecs(t, "plugins/main/ptp/ptp") }

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
	return NewWorld(Plugin())
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
	Plugin:       Plugin().Untyped(),
	Shared:       true,
	Conf:         everything(),
	Reference:    conf(Object{"cniVersion": "1.0.0", "ipMasq": true}),
	HostEnd:      0,
	ListEntries:  func(a Attached) []string { return []string{"host end: " + a.Result.Interfaces[0].Name} },
	InvalidKeys:  Object{"mtu": "x", "ipMasq": 9, "ipMasqBackend": "x", "dns": 5},
	ContraryKeys: Object{"ipMasq": false, "ipMasqBackend": "iptables", "mtu": 1300},
	Failures: map[string]Failure{
		"there is no ipam": {Change: func(c *Call) { c.Conf = everything(Object{"ipam": nil}) }, Code: cni.CodeConfig,
			Message: "ipam.type"},
		"the mtu is too small for an address": {Prepare: Lends("2001:db8:1::3/64 2001:db8:1::1"),
			Change: func(c *Call) { c.Conf = everything(Object{"mtu": 1279}) }, Code: cni.CodeConfig,
			Message: "mtu: 1279 is too small for IPv6 (1280)", IPAMAdded: true},
		"another host end has the address as a gateway": {Prepare: Lends("10.1.0.1/24 10.1.0.9"),
			Code: cni.CodeConflict, Message: "address 10.1.0.1", IPAMAdded: true},
		"IPAM gives an address without a gateway": {Prepare: Lends("10.1.0.3/24"), Code: cni.CodeIPAM,
			Message: `"fake": address 10.1.0.3/24: has no gateway`, IPAMAdded: true},
		"IPAM gives a second address without a gateway": {Prepare: Lends(Addrs(3)[0], "2001:db8:1::3/64"),
			Code:    cni.CodeIPAM,
			Message: "2001:db8:1::3/64", IPAMAdded: true},
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
		"a route of the host through another link": OnHost(
			"ip route del 10.1.0.2;ip route add 10.1.0.2 via 10.1.0.9 dev END onlink", "10.1.0.2/32"),
	},
})

var _ = Describe("CHECK", func() {
	var w *World
	BeforeEach(func() { w = newWorld() })

	It("passes right after ADD, for addresses that are the only ones in their subnet", func() {
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
	It("accepts a host end that another program made a port of a bridge", func() {
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

	It("passes CHECK in all parts", func() {
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
	for _, ref := range nstest.QuickReferences() {
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
		lacks := ContainSubstring("not supported by this kernel, which may lack netkit")
		Expect(w.Fails(add, cni.CodeUnsupportedField)).To(And(HavePrefix("deviceType: netkit"), lacks))
		Expect(w.Calls()).To(BeEmpty())
		Expect(Names(w.Host, "")).To(BeEmpty())
		Expect(w.Fails(status, cni.CodeUnavailable)).To(And(HavePrefix("deviceType: kind netkit: "), lacks))
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

func parse(keys, args string) (config, error) {
	return Plugin().Parse(&skel.Request{Conf: []byte("{" + keys + "}"), Args: args})
}

const withIPAM = `"ipam":{"type":"x"}`

var _ = Describe("configuration", func() {
	It("is refused for everything that is wrong with it at once", func() {
		_, err := parse(`"ipMasq":true,"mtu":5,"ipMasqBackend":"nft","runtimeConfig":{"mac":"no"}`, "")
		Expect(cni.ProblemsOf(err)).To(HaveLen(4))
		Expect(err).To(MatchError(And(HavePrefix("ipam.type: missing"), ContainSubstring("; mtu: 5 "),
			ContainSubstring(`ipMasqBackend: "nft" `), ContainSubstring(`; runtimeConfig.mac: "no" `))))
	})

	const envMAC = "02:00:00:00:00:01"
	DescribeTable("CNI_ARGS are refused with code 4", func(args, want string) {
		_, err := parse(withIPAM, args)
		Expect(err).To(MatchError(ContainSubstring(want)))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeEnvironment))
	},
		Entry("MAC", "MAC=zz", `CNI_ARGS MAC: "zz"`),
		Entry("MAC beside others", "IP=10.0.0.1;MAC=zz", `CNI_ARGS MAC: "zz"`),
	)

	DescribeTable("CNI_ARGS of others are ignored", func(args string) {
		c := nstest.Must(parse(withIPAM, args+";MAC="+envMAC))
		Expect(c.Link.MAC.String()).To(Equal(envMAC))
	},
		Entry("a key", "IP=10.0.0.1"),
		Entry("although the strict would be told", "IgnoreUnknown=0;K8S_POD_NAME=a"),
		Entry("no pair", "debug"),
	)
})

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(Plugin()) })

func planOf(keys, lease string) (plan, error) {
	GinkgoHelper()
	cfg := nstest.Must(parse(strings.TrimSuffix(withIPAM+","+keys, ","), ""))
	res := nstest.Must(cni.DecodeResult([]byte(lease), "1.1.0"))
	return makePlan(cfg, res)
}

// text is a plan in lines: routes of the container, addresses of the host end, routes of the host.
func (p plan) text() []string {
	out := []string{}
	route := func(where string, r rtnl.Route) {
		s := where + " " + r.String()
		if r.Src.IsValid() {
			s += " src " + r.Src.String()
		}
		if name := map[int]string{unix.RT_SCOPE_LINK: "link", unix.RT_SCOPE_HOST: "host"}[r.Scope]; name != "" {
			s += " scope " + name
		}
		out = append(out, s)
	}
	for _, r := range p.ContRoutes {
		route("container", r)
	}
	for _, gw := range p.Gateways {
		out = append(out, "gateway "+gw.String())
	}
	for _, r := range p.HostRoutes {
		route("host", r)
	}
	return out
}

var _ = Describe("plan", func() {
	DescribeTable("makes of the addresses", func(addrs []string, want ...string) {
		p := nstest.Must(planOf("", Lease(addrs...)))
		Expect(p.text()).To(Equal(want))
		for _, ip := range p.Result.IPs {
			Expect(*ip.Interface).To(Equal(1))
		}
	},
		Entry("IPv6 with a link-local gateway", []string{"2001:db8::2/64 fe80::1"},
			"container fe80::1/128 src 2001:db8::2 scope link", "container 2001:db8::/64 via fe80::1 src 2001:db8::2",
			"gateway fe80::1/128", "host 2001:db8::2/128 scope host"),
		Entry("a /128", []string{"2001:db8::2/128 2001:db8::1"},
			"container 2001:db8::1/128 src 2001:db8::2 scope link", "gateway 2001:db8::1/128",
			"host 2001:db8::2/128 scope host"),
		Entry("two of a subnet", []string{"10.1.0.2/24 10.1.0.1", "10.1.0.3/24 10.1.0.1"},
			"container 10.1.0.1/32 src 10.1.0.2 scope link", "container 10.1.0.0/24 via 10.1.0.1 src 10.1.0.2",
			"gateway 10.1.0.1/32", "host 10.1.0.2/32 scope host", "host 10.1.0.3/32 scope host"),
		Entry("two of a subnet with different gateways", []string{"10.1.0.2/24 10.1.0.1", "10.1.0.3/24 10.1.0.254"},
			"container 10.1.0.1/32 src 10.1.0.2 scope link", "container 10.1.0.0/24 via 10.1.0.1 src 10.1.0.2",
			"container 10.1.0.254/32 src 10.1.0.3 scope link",
			"gateway 10.1.0.1/32", "gateway 10.1.0.254/32", "host 10.1.0.2/32 scope host",
			"host 10.1.0.3/32 scope host"),
		Entry("two subnets with one gateway", []string{"10.1.0.2/24 169.254.1.1", "10.2.0.2/24 169.254.1.1"},
			"container 169.254.1.1/32 src 10.1.0.2 scope link", "container 10.1.0.0/24 via 169.254.1.1 src 10.1.0.2",
			"container 10.2.0.0/24 via 169.254.1.1 src 10.2.0.2",
			"gateway 169.254.1.1/32", "host 10.1.0.2/32 scope host", "host 10.2.0.2/32 scope host"),
		Entry("one in two lengths", []string{"10.1.0.2/24 10.1.0.1", "10.1.0.2/16 10.1.0.1"},
			"container 10.1.0.1/32 src 10.1.0.2 scope link", "container 10.1.0.0/24 via 10.1.0.1 src 10.1.0.2",
			"container 10.1.0.0/16 via 10.1.0.1 src 10.1.0.2",
			"gateway 10.1.0.1/32", "host 10.1.0.2/32 scope host"),
	)

	It("refuses an mtu that is too small for an address", func() {
		_, err := planOf(`"mtu":1279`, Lease("2001:db8::2/64 2001:db8::1"))
		Expect(err).To(MatchError(ContainSubstring("mtu: 1279 is too small for IPv6 (1280)")))
		_, err = planOf(`"mtu":1279`, Lease("10.1.0.2/24 10.1.0.1"))
		Expect(err).NotTo(HaveOccurred())
	})

	DescribeTable("refuses", func(want string, addrs ...string) {
		_, err := planOf("", Lease(addrs...))
		Expect(err).To(MatchError(ContainSubstring(want)))
	},
		Entry("a gateway of the other family", "address 10.1.0.2/24: its gateway 2001:db8::1 ",
			"10.1.0.2/24 2001:db8::1"),
		Entry("an IPv4 gateway of IPv6", "address 2001:db8::2/64: its gateway 10.1.0.1 ", "2001:db8::2/64 10.1.0.1"),
		Entry("the address itself", "address 10.1.0.2/24: is its own gateway", "10.1.0.2/24 10.1.0.2"),
		Entry("another address of the container", "address 10.1.0.2/24: its gateway 10.1.0.3 ", "10.1.0.2/24 10.1.0.3",
			"10.1.0.3/24 10.1.0.1"),
		Entry("the unspecified address", "its gateway 0.0.0.0 ", "10.1.0.2/24 0.0.0.0"),
		Entry("a multicast address", "its gateway ff02::1 ", "2001:db8::2/64 ff02::1"),
		Entry("the loopback address", "its gateway 127.0.0.1 ", "10.1.0.2/24 127.0.0.1"),
	)
})

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	const prev = `"prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"veth1","mac":"02:00:00:00:00:09"},` +
		`{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"` + FuzzNetns + `"}],"ips":[{"address":"10.1.0.2/24",
			"gateway":"10.1.0.1","interface":1}]}`
	Fuzz{
		Plugin: Plugin().Untyped(),
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","type":"ptp","ipMasq":true,"mtu":1400,"ipam":{"type":"fake"},
				"dns":{"nameservers":["10.1.0.1"]},` +
				`"cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"}],` + prev + `}`,
			`{"cniVersion":"0.4.0","name":"net","ipMasqBackend":"nftables","ipam":{"type":"fake"},
				"args":{"cni":{"mac":"02:00:00:00:00:03"}},"runtimeConfig":{},` + prev + `}`,
			`{"name":"net","ipam":{"type":"fake"},"prevResult":{"ip4":{"ip":"10.1.0.2/24",
				"routes":[{"dst":"0.0.0.0/0"}]}}}`,
			`{"cniVersion":"1.0.0","name":"net","ipam":{"type":""}}`,
		},
		Leases: []string{
			`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"address":"fd00:1::2/64",
				"gateway":"fd00:1::1"}],"routes":[{"dst":"0.0.0.0/0","mtu":1300},{"dst":"::/0","priority":5}]}`,
			`{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.0.2/32","gateway":"169.254.1.1"}],
				"routes":[{"dst":"0.0.0.0/0","gw":"169.254.1.1"}]}`,
			`{"ip4":{"ip":"10.1.0.2/24","gateway":"10.1.0.1"},"ip6":{"ip":"fd00::2/64"}}`,
			`!{"cniVersion":"1.1.0","code":11,"msg":"full"}`,
		},
	}.Run(f)
}

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

	DescribeTable("masquerades what the keys say", Label("masq-keys"), func(keys Object, v4, v6 string) {
		out := nstest.NewOutside(w.Host)
		out.Serve("tcp", "192.0.2.2:80")
		out.Serve("tcp", "[2001:db8::2]:80")
		IP(out, "route add 10.1.0.0/24 via 192.0.2.1")
		IP(out, "-6 route add fd00:1::/64 via 2001:db8::1")
		w.Lend(`{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"},
			{"address":"fd00:1::2/64","gateway":"fd00:1::1"}], "routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`)
		a := w.Attach("one", conf(keys))
		Expect(a.Ask("tcp", "192.0.2.2:80")).To(HavePrefix(v4 + ":"))
		Expect(a.Ask("tcp", "[2001:db8::2]:80")).To(HavePrefix("[" + v6 + "]:"))
		w.Succeeds(Call{Command: "STATUS", Conf: conf(keys)})
		w.Ends(a)
		Expect(w.Snapshot("nftables")).NotTo(Or(ContainSubstring("10.1.0."), ContainSubstring("elements")))
	},
		Entry("only IPv4", Object{"ipMasq": "v4"}, "192.0.2.1", "fd00:1::2"),
		Entry("only IPv6", Object{"ipMasq": "v6"}, "10.1.0.2", "2001:db8::1"),
		Entry("not these destinations", Object{"ipMasq": true, "masqRandomFully": true,
			"masqExclude": []string{"192.0.2.0/24", "198.51.100.7"}}, "10.1.0.2", "2001:db8::1"))
})

// writer is called with what is written.
type writer func([]byte)

func (w writer) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}

var _ = AutoMTU(Plugin().Untyped(), conf(), "", func(w *World, far *nstest.Host) string {
	w.SetSysctl("net/ipv4/ip_forward", "1")
	far.IP("addr flush dev far0", "addr add 10.7.0.1/24 dev far0", "route add default via 10.7.0.2")
	w.IP("addr add 10.7.0.2/24 dev up0")
	return "10.7.0.1"
})

var _ = DescribeTable("mtu auto is the smallest of", Label("auto-mtu"), func(want int, routes ...string) {
	w := newWorld()
	Uplink(w.Host)
	w.IP("link set up0 mtu 9000", "link add other0 mtu 1400 type veth peer name far1", "link set other0 up")
	for _, route := range routes {
		IP(w.Host, "%s", route)
	}
	a := w.Attach("one", conf(Object{"mtu": "auto"}), Addrs(2)...)
	Expect(Show(a.Host, "eth0").MTU).To(Equal(want))
	w.Ends(a)
},
	Entry("IPv4's default route", 9000, "route add default dev up0"),
	Entry("IPv6's default route", 9000, "-6 route add default dev up0"),
	Entry("both", 1400, "route add default dev up0", "-6 route add default dev other0"),
	Entry("several next hops", 1400, "route add default nexthop dev up0 nexthop dev other0"),
	Entry("several metrics", 1400, "route add default dev up0", "route add default dev other0 metric 100"),
	Entry("no other table, and no blackhole", 9000, "route add default dev up0", "route add blackhole default metric 5",
		"route add default dev other0 table 77", "route add 10.77.0.0/16 dev other0"))
