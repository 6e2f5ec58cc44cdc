package plugintest

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

func drifts() map[string]Drift {
	inside, host := InContainer, OnHost
	return map[string]Drift{
		"a missing address":      inside("ip addr del 10.1.0.2/24 dev eth0", "10.1.0.2/24", "missing"),
		"a missing IPv6 address": inside("ip addr del 2001:db8:1::2/64 dev eth0", "2001:db8:1::2/64", "missing"),
		"an address with another length": inside("ip addr del 10.1.0.2/24 dev eth0;ip addr add 10.1.0.2/16 dev eth0",
			"10.1.0.2/24"),
		"a missing default route":      inside("ip route del default", "0.0.0.0/0", "missing"),
		"a missing IPv6 default route": inside("ip -6 route del default", "::/0", "missing"),
		"a default route through another gateway": inside("ip route replace default via 10.1.0.9 onlink dev eth0",
			"0.0.0.0/0", "10.1.0.9 instead of 10.1.0.1"),
		"a route with another metric": inside(
			"ip route del 10.9.0.0/16;ip route add 10.9.0.0/16 via 10.1.0.1 metric 51 mtu 1300",
			"10.9.0.0/16", "priority"),
		"a route with another MTU": inside("ip route change 10.9.0.0/16 via 10.1.0.1 metric 50 mtu 1200",
			"10.9.0.0/16", "mtu"),
		"the interface down":    inside("ip link set eth0 down", `"eth0"`, "is down"),
		"the interface deleted": inside("ip link del eth0", `"eth0"`),
		"the interface renamed": inside("ip link set eth0 down;ip link set eth0 name moved", `"eth0"`),
		"another interface with its name": inside(
			"ip link set eth0 down;ip link set eth0 name moved;ip link add eth0 type veth peer name x",
			`"eth0"`, "END"),
		"another MAC address":         inside("ip link set eth0 address 02:00:00:00:00:77", "02:00:00:00:00:77"),
		"another MTU":                 inside("ip link set eth0 mtu 1300", `"eth0"`, "MTU", "1300"),
		"another MTU of the host end": host("ip link set END mtu 1350", "END", "1350"),
		"the host end down":           host("ip link set END down", "END", "is down"),
		"the host end renamed": host("ip link set END down;ip link set END name moved", `"eth0"`,
			"has no host end"),
		"forwarding off":                 host("sysctl -qw net.ipv4.ip_forward=0", "ip_forward"),
		"IPv6 forwarding off":            host("sysctl -qw net.ipv6.conf.all.forwarding=0", "forwarding"),
		"the masquerade's table deleted": host("nft delete table inet hawser", "masquerade"),
		"the masquerade's table flushed": host("nft flush table inet hawser", "masquerade"),
		"the masquerade's element deleted": host("nft flush map inet hawser masq4_v2", "10.1.0.2",
			"no element"),
		"the IPv6 masquerade's element deleted": host("nft flush map inet hawser masq6_v2", "2001:db8:1::2",
			"no element"),
		"changes on both sides, all of them": {Cont: "ip addr del 10.1.0.2/24 dev eth0", Host: "ip link set END down",
			Messages: []string{"10.1.0.2/24", "END", "is down"}},
	}
}

func (l *life) drifts(all map[string]Drift) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		d := all[name]
		if d.Host != "" && l.f.NoHostEnd {
			continue
		}
		It("finds "+name, Label("check"), func() {
			l.Lend(`{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"},` +
				`{"address":"2001:db8:1::2/64","gateway":"2001:db8:1::1"}],` +
				`"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"},` +
				`{"dst":"10.9.0.0/16","priority":50,"mtu":1300}]}`)
			a := l.Attach("one", l.conf())
			l.Succeeds(a.As("CHECK"))
			do(l.Host, d.Host, l.hostEnd(a))
			do(a.Host, d.Cont, l.hostEnd(a))
			says := l.Fails(a.As("CHECK"), cni.CodeDrift)
			for _, text := range d.Messages {
				Expect(says).To(ContainSubstring(strings.ReplaceAll(text, "END", l.hostEnd(a))))
			}
		})
	}
}

func (l *life) check() {
	It("passes right after ADD, in each version and on each backend", func() {
		for i, v := range []string{"0.4.0", "1.0.0", "1.1.0"} {
			l.Succeeds(l.attach("c"+v, 10+i, Object{"cniVersion": v}).As("CHECK"))
		}
		if l.f.NoHostEnd {
			return
		}
		nstest.Need("iptables")
		l.Succeeds(l.attach("ipt", 20, Object{"ipMasqBackend": "iptables"}).As("CHECK"))
	})

	It("calls IPAM, and passes on its error", func() {
		a := l.attach("one", 2)
		l.Calls()
		l.Succeeds(a.As("CHECK"))
		Expect(l.Calls()).To(Equal([]string{"CHECK one eth0"}))
		l.On("CHECK", Refusal)
		Expect(l.Fails(a.As("CHECK"), 11)).To(Equal("later\npool"))
	})

	It("needs prevResult with the interface, and the namespace", func() {
		a := l.attach("one", 2)
		fails := func(change func(*Call), code uint, says string) {
			GinkgoHelper()
			c := a.As("CHECK")
			change(&c)
			Expect(l.Fails(c, code)).To(ContainSubstring(says))
		}
		fails(without("prevResult"), cni.CodeConfig, "prevResult")
		addresses := Object{"cniVersion": "1.0.0", "ips": []Object{{"address": "10.1.0.2/24"}}}
		fails(WithKeys(Object{"prevResult": addresses}),
			cni.CodeDrift, `prevResult: has no interface "eth0"`)
		fails(at("/run/netns/gone"), cni.CodeEnvironment, "CNI_NETNS")
	})

	l.pairIt("finds missing rules of a masquerade on iptables", func() {
		nstest.Need("iptables")
		a := l.attach("one", 2, Object{"ipMasqBackend": "iptables"})
		l.Succeeds(a.As("CHECK"))
		l.Cmd("ip6tables", "-t", "nat", "-F", "POSTROUTING")
		Expect(l.Fails(a.As("CHECK"), cni.CodeDrift)).To(ContainSubstring("masquerade"))
	})

	l.checkOthers()
}

func (l *life) checkOthers() {
	It("ignores changes by other programs", Label("check"), func() {
		a := l.attach("one", 2)
		for _, words := range []string{"link set END promisc on", "link set END address 02:00:00:00:00:99",
			"link set END group 7"} {
			if l.f.NoHostEnd {
				break
			}
			do(l.Host, "ip "+words, l.hostEnd(a))
			l.Succeeds(a.As("CHECK"))
		}
		for _, words := range []string{"addr add 10.7.0.1/24 dev eth0", "addr add 2001:db8:7::1/64 dev eth0",
			"route add 10.8.0.0/16 via 10.1.0.1",
			"link add extra type veth peer name x", "link set eth0 promisc on", "link set eth0 alias mine"} {
			do(a.Host, "ip "+words, "")
			l.Succeeds(a.As("CHECK"))
		}
	})

	It("ignores an MTU that a later plugin set, if results of the version have no MTU", func() {
		a := l.attach("one", 2, Object{"cniVersion": "0.4.0", "mtu": 1400})
		IP(a.Host, "link set eth0 mtu 1300")
		l.Succeeds(a.As("CHECK"))
	})
}

func (l *life) valid(list any, more ...Object) Call {
	return Call{Command: "GC", Conf: Merge(l.conf(more...), Object{"cni.dev/valid-attachments": list})}
}

func container(id string) Object { return Object{"containerID": id, "ifname": "eth0"} }

func (l *life) gc() {
	DescribeTable("removes only invalid attachments of its network,", Label("gc"), func(backend string) {
		nstest.NeedBackend(backend)
		on := Object{"ipMasqBackend": backend}
		keep, other := l.attach("keep", 2, on), l.attach("gone1", 3, on, Object{"name": "net2"})
		clean := l.Snapshot()
		l.attach("gone1", 4, on)
		gone := l.attach("gone2", 5, on)
		again := gone // another interface of a valid container
		again.Call.ID = "keep"
		l.beside(again, "eth1", 6, on)
		for range 2 {
			l.Calls()
			l.Succeeds(l.valid([]Object{container("keep"), container("never")}, on))
			Expect(l.Calls()).To(Equal([]string{"GC one eth0"}))
			Eventually(func() string { return l.Snapshot() }).Should(Equal(clean))
			Expect(Names(gone.Host, "")).To(BeEmpty())
			for _, a := range []Attached{keep, other} {
				l.works(a)
				l.Succeeds(a.As("CHECK"))
			}
		}
	}, l.backends())

	DescribeTable("removes each attachment if the list of valid ones is", Label("gc-list"), func(list any) {
		a := l.attach("one", 2)
		l.Calls()
		l.Succeeds(l.valid(list))
		Expect(Names(a.Host, "")).To(BeEmpty())
		Expect(Names(l.Host, "")).To(ConsistOf(l.f.Links))
		Expect(l.Snapshot("nftables")).NotTo(ContainSubstring("elements"))
		Expect(l.Calls()).To(Equal([]string{"GC one eth0"}))
	}, Entry("empty", []Object{}), Entry("null", json.RawMessage("null")))

	It("removes nothing without a list", Label("gc-list"), func() {
		a := l.attach("one", 2)
		l.Calls()
		before := l.Snapshot()
		missing := Call{Command: "GC", Conf: l.conf()}
		l.Succeeds(missing)
		Expect(l.Call(missing).Stderr).To(ContainSubstring("cni.dev/valid-attachments: missing"))
		Expect(l.Fails(l.valid("all"), cni.CodeConfig)).To(ContainSubstring("cni.dev/valid-attachments"))
		Expect(l.Snapshot()).To(Equal(before))
		Expect(l.Calls()).To(BeEmpty())
		l.Succeeds(a.As("CHECK"))
	})
}

func (l *life) backends() []TableEntry {
	entries := []TableEntry{Entry("on nftables", "nftables")}
	if !l.f.NoHostEnd {
		entries = append(entries, Entry("on iptables", "iptables"))
	}
	return entries
}

func (l *life) gcMore() {
	It("ignores invalid values of its keys, and a missing ipam", func() {
		l.attach("one", 2)
		l.Succeeds(l.valid([]Object{}, l.f.InvalidKeys, Object{"ipam": nil}))
		Expect(Names(l.Host, "")).To(ConsistOf(l.f.Links))
	})

	It("passes on IPAM's error, and removes its own objects", func() {
		l.attach("one", 2)
		l.On("GC", Refusal)
		Expect(l.Fails(l.valid([]Object{}), 11)).To(Equal("later\npool"))
		Expect(Names(l.Host, "")).To(ConsistOf(l.f.Links))
	})

	It("does not call IPAM while an interface cannot be deleted", func() {
		a := l.attach("one", 2)
		l.Calls()
		Expect(l.ExecUnprivileged(l.valid([]Object{})).Failed(cni.CodeInternal)).To(ContainSubstring(l.hostEnd(a)))
		Expect(l.Calls()).To(BeEmpty())
		l.Succeeds(l.valid([]Object{}))
		Expect(l.Calls()).To(Equal([]string{"GC one eth0"}))
	})

	l.pairIt("removes a pair whose ADD was killed before it marked the pair", func() {
		IP(l.Host, "link add vethdeadbeef group %d type veth peer name a", cni.NetworkHash("net"))
		IP(l.Host, "link add vethdeadbee0 type veth peer name b")
		l.Succeeds(l.valid([]Object{}, Object{"name": "other"}))
		Expect(Names(l.Host, "")).To(HaveLen(4))
		l.Succeeds(l.valid([]Object{}))
		Expect(Names(l.Host, "")).To(ConsistOf("vethdeadbee0", "b"))
	})
}

func (l *life) status() {
	call := func(more ...Object) Call { return Call{Command: "STATUS", Conf: l.conf(more...)} }

	It("succeeds on a new host without changing it, and on a host with containers", func() {
		before := l.Snapshot()
		l.Succeeds(call())
		Expect(l.Calls()).To(Equal([]string{"STATUS one eth0"}))
		Expect(l.Snapshot()).To(Equal(before))
		l.attach("one", 2)
		l.Succeeds(call())
	})

	It("passes on IPAM's error", func() {
		l.On("STATUS", `echo '{"cniVersion":"1.1.0","code":50,"msg":"full"}'; exit 1`)
		Expect(l.Fails(call(), 50)).To(ContainSubstring("full"))
	})

	It("refuses an invalid configuration, and is code 50 without the IPAM plugin", func() {
		Expect(l.Fails(call(Object{"mtu": 3}), cni.CodeConfig)).To(ContainSubstring("mtu: 3"))
		Expect(l.Fails(call(Object{"ipam": Object{"type": "nowhere"}}),
			cni.CodeUnavailable)).To(ContainSubstring(`"nowhere"`))
		Expect(l.Calls()).To(BeEmpty())
	})

	if l.f.NoHostEnd {
		return
	}
	DescribeTable("is code 50 if the masquerade cannot be created:", Label("status"), func(
		prepare func(), backend, says string,
	) {
		prepare()
		Expect(l.Fails(call(Object{"ipMasqBackend": backend, "macspoofchk": nil}), cni.CodeUnavailable)).To(
			And(ContainSubstring("ipMasq"), ContainSubstring(says)))
	},
		Entry("another program owns the table", func() { l.LockTable("inet hawser") }, "nftables", "not permitted"),
		Entry("it has no lock for nftables", func() { l.Cmd("mount", "-o", "remount,bind,ro", "/run") }, "nftables",
			"write in /run: read-only file system"),
		Entry("it has no lock for iptables", func() { l.Cmd("mount", "-o", "remount,bind,ro", "/run") }, "iptables",
			"write in /run: read-only file system"),
	)

	It("is code 50 if iptables is not installed", func() {
		c := call(Object{"ipMasqBackend": "iptables", "macspoofchk": nil})
		program := c.Program(l.World, nstest.Build(l.Plugin.Name))
		program.Env = append(program.Env, "PATH=/nowhere")
		Expect(Ran(l.Run(program)).Failed(cni.CodeUnavailable)).To(ContainSubstring("ipMasq"))
	})
}

func (l *life) reference(ref nstest.Reference) {
	if !l.f.NoHostEnd {
		BeforeEach(func() { nstest.Need("iptables") })
	}
	attach := func(id string, n int) Attached {
		GinkgoHelper()
		l.LendAddrs(id, Addrs(n)...)
		cont := nstest.NewNetns()
		cont.SetSysctl("net/ipv6/conf/default/accept_dad", "0") // the reference waits for it
		call := Call{Command: "ADD", ID: id, Netns: cont.Path, Conf: l.f.Reference}
		return Attached{Host: cont, Call: call, Result: l.Reference(ref, call).Added()}
	}
	BeforeEach(func() { l.SetSysctl("net/ipv6/conf/default/accept_dad", "0") })

	l.removed(attach)
	l.notRemoved(attach)
}

func (l *life) removed(attach func(id string, n int) Attached) {
	variants := map[string]DelVariant{
		"with prevResult":                     {},
		"without prevResult":                  {Call: without("prevResult")},
		"without CNI_NETNS":                   {Call: at("")},
		"when the namespace no longer exists": {Before: func(_ *World, a Attached) { a.Unpin() }},
		"when the namespace no longer exists, without prevResult": {Before: func(_ *World, a Attached) { a.Unpin() },
			Call: without("prevResult")},
		"when the interface was renamed": {Before: ContainerIP("link set eth0 down", "link set eth0 name moved")},
	}
	if l.f.NoHostEnd { // only its name shows that the reference created it
		delete(variants, "without CNI_NETNS")
		delete(variants, "when the interface was renamed")
	}
	for _, name := range slices.Sorted(maps.Keys(variants)) {
		f := variants[name]
		It("is removed by DEL, and nothing else is, "+name, Label("reference-left"), func() {
			state := func() string { return l.Snapshot("links", "addresses", "routes", "nftables") }
			other := attach("other", 2)
			before := state()
			a := attach("one", 3)
			if f.Before != nil {
				f.Before(l.World, a)
			}
			c := a.As("DEL")
			if f.Call != nil {
				f.Call(&c)
			}
			l.Calls()
			l.Succeeds(c)
			Expect(l.Calls()).To(Equal([]string{"DEL one eth0"}))
			Eventually(state).Should(Equal(before))
			if exists(a.Path) {
				Expect(Names(a.Host, "")).To(BeEmpty())
			}
			Expect(Names(other.Host, "")).To(Equal([]string{"eth0"}))
			l.works(other)
			l.Succeeds(c)
		})
	}
}

func (l *life) notRemoved(attach func(id string, n int) Attached) {
	It("is not removed by the DEL of a container whose namespace path it has now", func() {
		a, other := attach("one", 3), attach("other", 2)
		IP(a.Host, "link del eth0")
		c := a.As("DEL")
		c.Netns = other.Path
		l.Succeeds(c)
		Expect(Names(other.Host, "")).To(Equal([]string{"eth0"}))
		l.works(other)
	})

	l.pairIt("is not removed because a link of another container has the same indexes", func() {
		victim, a := attach("victim", 2), attach("one", 3)
		end, index := Show(l.Host, l.hostEnd(victim)), Show(victim.Host, "eth0").Index
		IP(a.Host, "link del eth0")
		IP(a.Host, "link add name eth0 index %d type veth peer name x", index)
		IP(a.Host, "link del eth0")
		far := nstest.NewNetns()
		IP(a.Host, "link add name eth0 index %d type veth peer name x index %d netns %s", index, end.Index, far.Name)
		Expect(Show(a.Host, "eth0").Index).To(Equal(index))
		c := a.As("DEL")
		without("prevResult")(&c)
		l.Succeeds(c)
		Expect(Names(victim.Host, "")).To(Equal([]string{"eth0"}))
		l.works(victim)
	})
}
