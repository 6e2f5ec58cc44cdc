package macvlan

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestMacvlan(t *testing.T) { nstest.RunSpecs(t, "plugins/main/macvlan/macvlan") }

// conf is a configuration of network "net" with master "up0": keys are added, or taken away by nil.
func conf(more ...Object) Object {
	return Merge(append([]Object{{"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "master": "up0",
		"enabledad": false, "ipam": Object{"type": "fake"}}}, more...)...)
}

// lan gives the host a master, and returns a neighbor on its network.
func lan(w *World) *nstest.Host {
	GinkgoHelper()
	nstest.Need("macvlan")
	return Uplink(w.Host)
}

func newWorld() (*World, *nstest.Host) {
	GinkgoHelper()
	w := NewWorld(Plugin())
	return w, lan(w)
}

var _ = Behaves(Fixture{
	Plugin:       Plugin().Untyped(),
	Conf:         conf(Object{"mtu": 1400}),
	Reference:    conf(Object{"cniVersion": "1.0.0"}),
	NoHostEnd:    true,
	Links:        []string{"up0"},
	Prepare:      func(w *World) { lan(w) },
	ListEntries:  func(Attached) []string { return []string{"interface: eth0@up0 type macvlan"} },
	InvalidKeys:  Object{"mtu": "x", "mode": 9, "master": 5, "dns": 5, "bcqueuelen": -1, "linkInContainer": "no"},
	ContraryKeys: Object{"mode": "private", "mtu": 9000, "master": "nowhere"},
	Drifts: map[string]Drift{
		"another mode": InContainer("ip link set eth0 type macvlan mode vepa", `"eth0"`,
			`mode is "vepa" instead of "bridge"`),
	},
})

func parse(keys, args string) (attach.ChildConfig, error) {
	return Plugin().Parse(&skel.Request{Conf: []byte("{" + keys + "}"), Args: args})
}

var _ = Describe("configuration", func() {
	It("is refused for everything that is wrong with it at once", func() {
		_, err := parse(`"mode":"x","mtu":5,"mac":"no","ipam":{"type":"../x"}`, "MAC")
		Expect(cni.ProblemsOf(err)).To(HaveLen(5))
	})

	DescribeTable("MAC address", func(keys, args, want string) {
		c := nstest.Must(parse(strings.TrimPrefix(keys, ","), args))
		Expect(c.Link.MAC.String()).To(Equal(want))
	},
		Entry("from nowhere", ``, "", ""),
		Entry("from mac, in dashes and upper case", `"mac":"0A-00-00-00-00-0B"`, "", "0a:00:00:00:00:0b"),
		Entry("from CNI_ARGS, which wins over it", `"mac":"02:00:00:00:00:01"`,
			"IgnoreUnknown=1;K=a;MAC=02:00:00:00:00:02", "02:00:00:00:00:02"),
		Entry("from args.cni, which wins over CNI_ARGS", `"args":{"cni":{"mac":"02:00:00:00:00:03"}}`,
			"MAC=02:00:00:00:00:02", "02:00:00:00:00:03"),
		Entry("from runtimeConfig, whatever CNI_ARGS have", `"runtimeConfig":{"mac":"02:00:00:00:00:04"}`, "MAC=bad",
			"02:00:00:00:00:04"),
		Entry("an empty one is none", `"runtimeConfig":{"mac":""}`, "MAC=02:00:00:00:00:02", "02:00:00:00:00:02"),
		Entry("from runtimeConfig, which wins over all",
			`"mac":"02:00:00:00:00:01","args":{"cni":{"mac":"02:00:00:00:00:03"}},
				"runtimeConfig":{"mac":"02:00:00:00:00:04"}`,
			"MAC=02:00:00:00:00:02", "02:00:00:00:00:04"),
	)
})

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(Plugin()) })

var _ = Describe("ADD", Label("kernel"), func() {
	var w *World
	BeforeEach(func() { w, _ = newWorld() })

	// details are what ip(8) says of the container's interface.
	details := func(a Attached) string { return IP(a.Host, "-d link show eth0") }

	It("makes a neighbour of those on the master's network, and reports it as it is", func() {
		a := w.Attach("one", conf(Object{"mtu": 1400}), Addrs(2)...)
		Expect(Ping(a.Host, "10.1.0.1") && Ping(a.Host, "2001:db8:1::1")).To(BeTrue())
		l := Show(a.Host, "eth0")
		Expect(l.Addrs()).To(ConsistOf("10.1.0.2/24", "2001:db8:1::2/64"))
		Expect(l.Linkinfo.Kind).To(Equal("macvlan"))
		Expect(l.Ifalias).To(HaveSuffix(" net one eth0"))
		Expect(details(a)).To(And(ContainSubstring("group default"), ContainSubstring("macvlan mode bridge")))
		Expect(a.Result.Text).To(MatchJSON(fmt.Sprintf(`{"cniVersion":"1.1.0",
			"interfaces":[{"name":"eth0","mac":%q,"mtu":1400,"sandbox":%q}],
			"ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1","interface":0},
				{"address":"2001:db8:1::2/64","gateway":"2001:db8:1::1","interface":0}]}`, l.Address, a.Path)))
		Expect(l.MTU).To(Equal(1400))
	})

	It("makes each mode, and a queue for broadcasts where the kernel has one", func() {
		hasQueue := strings.Contains(details(w.Attach("plain", conf(), "10.1.0.9/24")), "bcqueuelen")
		w.Succeeds(Call{Command: "DEL", ID: "plain", Conf: conf()})
		for _, mode := range []string{"bridge", "private", "vepa", "passthru"} {
			a := w.Attach(mode, conf(Object{"mode": mode, "bcqueuelen": 2000}), "10.1.0.2/24")
			Expect(details(a)).To(ContainSubstring("macvlan mode " + mode))
			Expect(strings.Contains(details(a), "bcqueuelen 2000")).To(Equal(hasQueue))
			w.Succeeds(a.As("CHECK"))
			w.Succeeds(a.As("DEL"))
		}
	})

	It("takes a name that the host has, the master's own too", Label("host-name"), func() {
		for _, name := range []string{"up0", "lo0"} {
			if name != "up0" {
				IP(w.Host, "link add %s type veth peer name x0", name)
			}
			w.LendAddrs("one", "10.1.0.2/24 10.1.0.1")
			a := w.AttachIn(nstest.NewNetns(), Call{IfName: name, Conf: conf()})
			Expect(Show(a.Host, name).Ifalias).To(HaveSuffix(name))
			Expect(Names(a.Host, "")).To(Equal([]string{name}))
			w.Ends(a)
			Expect(Show(w.Host, name).Linkinfo.Kind).To(Equal("veth"))
		}
	})

	It("leaves nothing where a process of the container takes the name before the link has it", func() {
		p := Plugin()
		parse := p.Parse
		p.Parse = func(req *skel.Request) (attach.ChildConfig, error) {
			c, err := parse(req)
			c.Make = func(ctx context.Context, s *attach.Call, name string) error {
				if name == s.Req.IfName { // as before Linux 6.15 where the host has the name
					return unix.EEXIST
				}
				other := rtnl.NewLink{Kind: "veth", Name: s.Req.IfName, Peer: rtnl.Peer{Name: "x0"}}
				return errors.Join(makeMacvlan(ctx, s, name), s.Cont.AddLink(other))
			}
			return c, err
		}
		w.Plugin = p.Untyped()
		cont := nstest.NewNetns()
		w.Fails(Call{Command: "ADD", Netns: cont.Path, Conf: conf()}, cni.CodeInternal)
		Expect(Names(cont, "")).To(ConsistOf("eth0", "x0"))
	})

	It("has a MAC address that is wished, a passthru's too, which the master has as long", Label("wished-mac"), func() {
		const mac = "02:00:00:00:00:07"
		own := Show(w.Host, "up0").Address
		for _, mode := range []string{"bridge", "passthru"} {
			a := w.Attach(mode, conf(Object{"mode": mode, "mac": mac}), "10.1.0.2/24 10.1.0.1")
			Expect(Show(a.Host, "eth0").Address).To(Equal(mac))
			Expect(a.Result.Interfaces[0].MAC).To(Equal(mac))
			Expect(Show(w.Host, "up0").Address == mac).To(Equal(mode == "passthru"))
			Expect(Ping(a.Host, "10.1.0.1")).To(BeTrue())
			w.Succeeds(a.As("CHECK"))
			w.Succeeds(a.As("DEL"))
			Expect(Show(w.Host, "up0").Address).To(Equal(own))
		}
	})

	It("refuses a MAC address that another interface on the master has, or the master", func() {
		const mac = "02:00:00:00:00:07"
		a := w.Attach("one", conf(Object{"mac": mac}), "10.1.0.2/24")
		Expect(w.Refused(conf(Object{"mac": mac}), cni.CodeConflict)).To(
			And(ContainSubstring(mac), ContainSubstring(`"up0"`)))
		own := Show(w.Host, "up0").Address
		Expect(w.Refused(conf(Object{"mac": own}), cni.CodeConfig)).To(HavePrefix(fmt.Sprintf("mac: %q ", own)))
		w.Succeeds(a.As("CHECK"))
	})

	It("refuses an MTU above the master's", func() {
		Expect(w.Refused(conf(Object{"mtu": 1501}), cni.CodeConfig)).To(
			HavePrefix(`mtu: 1501 is above that of master "up0": invalid MTU 1501, must be [0, master MTU(1500)]`))
	})

	DescribeTable("refuses a master, which STATUS then is code 50 for,", func(prepare func(), c Object, code uint,
		says string) {
		if prepare != nil {
			prepare()
		}
		Expect(w.Refused(c, code)).To(ContainSubstring(says))
		if c["mode"] == nil {
			Expect(w.Fails(Call{Command: "STATUS", Conf: c}, cni.CodeUnavailable)).To(ContainSubstring(says))
		}
	},
		Entry("that is not there", nil, conf(Object{"master": "eth9"}), cni.CodeConfig,
			`master: "eth9": no such interface`),
		Entry("that is lo", nil, conf(Object{"master": "lo"}), cni.CodeConfig,
			`master: "lo": is the loopback interface`),
		Entry("that is a bridge's port", func() {
			w.Host.IP("link add name br7 type bridge", "link set up0 master br7")
		}, conf(), cni.CodeConflict, `held by bridge "br7"`),
		Entry("that a passthru has", func() { w.Attach("one", conf(Object{"mode": "passthru", "ipam": nil})) },
			conf(Object{"mode": "private"}), cni.CodeConflict, "passthru"),
	)

	It("works on a master that is down, and on one that is a macvlan itself", func() {
		IP(w.Host, "link set up0 down")
		a := w.Attach("one", conf(Object{"ipam": nil}))
		w.Succeeds(a.As("CHECK"))
		w.Host.IP("link set up0 up", "link add mv0 link up0 type macvlan mode bridge")
		w.Succeeds(w.Attach("two", conf(Object{"master": "mv0"}), "10.1.0.2/24 10.1.0.1").As("CHECK"))
	})

	It("works on a VLAN of the host, whose name it may have", func() {
		nstest.Need("8021q")
		IP(w.Host, "link add link up0 name up0.5 up type vlan id 5")
		w.LendAddrs("one", "10.1.0.2/24")
		a := w.AttachIn(nstest.NewNetns(), Call{IfName: "up0.5", Conf: conf(Object{"master": "up0.5"})})
		w.Ends(a)
	})

	It("refuses a gateway outside the subnet, unless a route leads to it", func() {
		w.Lend(`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.9.0.1"}],
			"routes":[{"dst":"0.0.0.0/0"}]}`)
		add := Call{Command: "ADD", ID: "two", Netns: nstest.NewNetns().Path, Conf: conf()}
		Expect(w.Fails(add, cni.CodeConfig)).To(HavePrefix(
			"ipam: gateway 10.9.0.1 of route 0.0.0.0/0 cannot be reached through the interface"))
		w.Lend(`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.9.0.1"}],
			"routes":[{"dst":"10.9.0.1/32","scope":253},{"dst":"0.0.0.0/0"}]}`)
		Expect(IP(w.Attach("one", conf()).Host, "route show default")).To(ContainSubstring("via 10.9.0.1"))
	})

	It("shows IPAM the interface, up", func() {
		w.On("ADD", `nsenter --net="$CNI_NETNS" ip link show dev "$CNI_IFNAME" >"$d/seen"; cat >/dev/null; cat <<'E'
`+Lease("10.1.0.2/24")+"\nE")
		a := w.Attach("one", conf())
		Expect(w.Cmd("cat", w.Dir+"/seen")).To(MatchRegexp(`eth0@.*[<,]UP[,>]`))
		w.Succeeds(a.As("DEL"))
	})

	It("does not mistake a master in the container for the host's link with its index", func() {
		w.Host.IP("link add same0 index 77 type veth peer name same1", "link set same0 up",
			"addr add 10.1.0.2/24 dev same0")
		cont := nstest.NewNetns()
		cont.IP("link add in0 index 77 type veth peer name in1", "link set in0 up")
		w.LendAddrs("one", "10.1.0.2/24")
		add := Call{Command: "ADD", Netns: cont.Path, Conf: conf(Object{"master": "in0", "linkInContainer": true})}
		Expect(w.Warns(add)).To(ContainSubstring("address 10.1.0.2: the host also has it, on another network"))
	})
})

var _ = Describe("duplicate address detection", Label("kernel"), func() {
	It("is awaited, and named when it finds one", Label("duplicates"), func() {
		w, _ := newWorld()
		detect := Object{"enabledad": nil}
		a := w.Attach("one", conf(detect), Addrs(2)...)
		Expect(IP(a.Host, "-6 addr show dev eth0 scope global")).NotTo(ContainSubstring("tentative"))
		Expect(a.Cmd("cat", "/proc/sys/net/ipv6/conf/eth0/router_solicitation_delay")).To(Equal("1\n"))
		w.Calls()
		w.LendAddrs("two", "10.1.0.3/24 10.1.0.1", "2001:db8:1::2/64 2001:db8:1::1")
		cont := nstest.NewNetns()
		cont.SetSysctl("net/ipv6/conf/default/dad_transmits", "5") // the first may be lost
		says := w.Fails(Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: conf(detect)}, cni.CodeInternal)
		Expect(says).To(And(ContainSubstring("2001:db8:1::2/64"), ContainSubstring("in use by another host")))
		Expect(w.Calls()).To(Equal([]string{"ADD two eth0", "DEL two eth0"}))
		Expect(Names(cont, "")).To(BeEmpty())
	})

	It("is not awaited without carrier, neither by ADD nor by CHECK", func() {
		w, far := newWorld()
		IP(far, "link set far0 down")
		a := w.Attach("one", conf(Object{"enabledad": nil}), Addrs(2)...)
		Expect(IP(a.Host, "-6 addr show dev eth0 scope global")).To(ContainSubstring("tentative"))
		w.Succeeds(a.As("CHECK"))
	})
})

var _ = Describe("the master that no key names", Label("kernel"), func() {
	var w *World
	BeforeEach(func() {
		w, _ = newWorld()
		w.Host.IP("addr add 10.1.0.200/24 dev up0", "addr add 2001:db8:1::200/64 dev up0 nodad",
			"link add other0 type veth peer name other1", "link set other0 up",
			"addr add 10.3.0.200/24 dev other0")
	})
	unnamed := func(more ...Object) Object { return conf(append(more, Object{"master": nil, "ipam": nil})...) }
	parent := func(a Attached) string {
		index := strings.SplitN(strings.SplitN(IP(a.Host, "-o link show eth0"), "@if", 2)[1], ":", 2)[0]
		for _, name := range []string{"up0", "other0"} {
			if fmt.Sprint(Show(w.Host, name).Index) == index {
				return name
			}
		}
		return index
	}

	DescribeTable("is the default route's", func(routes ...string) {
		for _, r := range routes {
			w.Cmd("ip", strings.Fields(r)...)
		}
		a := w.Attach("one", unnamed())
		Expect(parent(a)).To(Equal("up0"))
		w.Succeeds(a.As("CHECK"))
		w.Cmd("ip", "route", "flush", "root", "0/0")
		w.Ends(a)
	},
		Entry("of IPv4", "route add default via 10.1.0.1"),
		Entry("of IPv6, without one of IPv4", "-6 route add default via 2001:db8:1::1"),
		Entry("with several next hops", "route add default nexthop via 10.1.0.1 dev up0 nexthop via 10.1.0.9 dev up0"),
		Entry("with the lowest metric", "route add default via 10.3.0.1 dev other0 metric 100",
			"route add default via 10.1.0.1 dev up0 metric 5"),
		Entry("not a blackhole's", "route add blackhole default metric 1", "route add default via 10.1.0.1 metric 9"),
		Entry("not another table's", "route add default via 10.3.0.1 dev other0 table 77",
			"route add default via 10.1.0.1"),
	)

	It("is refused if there is no default route, but STATUS succeeds", func() {
		add := Call{Command: "ADD", Netns: nstest.NewNetns().Path, Conf: unnamed()}
		Expect(w.Fails(add, cni.CodeConfig)).To(HavePrefix("master: missing"))
		w.Succeeds(Call{Command: "STATUS", Conf: unnamed()})
	})

	It("is the one host interface of the result before", func() {
		IP(w.Host, "route add default via 10.3.0.1 dev other0")
		a := w.Attach("one", unnamed(Object{"prevResult": Object{"cniVersion": "1.1.0",
			"interfaces": []Object{{"name": "up0"}, {"name": "eth9", "sandbox": "/run/netns/x"}}}}))
		Expect(parent(a)).To(Equal("up0"))
	})

	DescribeTable("is neither one of several interfaces of prevResult nor the default route's",
		func(says string, more Object, interfaces ...Object) {
			IP(w.Host, "route add default via 10.1.0.1")
			cont := nstest.NewNetns()
			add := Call{Command: "ADD", Netns: cont.Path,
				Conf: unnamed(Object{"prevResult": Object{"cniVersion": "1.1.0", "interfaces": interfaces}}, more)}
			Expect(w.Fails(add, cni.CodeConfig)).To(HavePrefix(
				"master: missing, and prevResult has several interfaces: " + says))
			Expect(Names(cont, "")).To(BeEmpty())
			w.Succeeds(Call{Command: "STATUS", Conf: unnamed()})
			add.Conf = Merge(add.Conf.(Object), Object{"master": "up0", "linkInContainer": nil})
			w.Add(add)
		},
		Entry("of the host", "up0, other0, eth9", nil, Object{"name": "up0"}, Object{"name": "other0"},
			Object{"name": "eth9", "sandbox": "/run/netns/x"}),
		Entry("only in the container", "eth8, eth9", nil, Object{"name": "eth8", "sandbox": "/run/netns/x"},
			Object{"name": "eth9", "sandbox": "/run/netns/x"}),
		Entry("only on the host, with linkInContainer", "up0, other0", Object{"linkInContainer": true},
			Object{"name": "up0"}, Object{"name": "other0"}),
	)

	It("is the default route's where the result before has no interface of the host's", func() {
		IP(w.Host, "route add default via 10.1.0.1")
		for id, interfaces := range map[string][]Object{"one": {{"name": "eth9", "sandbox": "/x"}}, "two": nil} {
			Expect(parent(w.Attach(id, unnamed(Object{"prevResult": Object{"cniVersion": "1.1.0",
				"interfaces": interfaces}})))).To(Equal("up0"))
		}
	})

	DescribeTable("is the one interface of the result before with linkInContainer", func(sandbox string) {
		cont := nstest.NewNetns()
		IP(w.Host, "link set other1 netns %s", cont.Name)
		IP(cont, "link set other1 up")
		w.Add(Call{Command: "ADD", Netns: cont.Path, Conf: unnamed(Object{"linkInContainer": true, "prevResult": Object{
			"cniVersion": "1.1.0", "interfaces": []Object{{"name": "other1", "sandbox": sandbox}}}})})
		Expect(IP(cont, "-o link show eth0")).To(ContainSubstring("eth0@other1:"))
	},
		Entry(nil, "/run/netns/x"),
		Entry("also without its namespace, as the reference takes it", ""),
	)

	It("is one of the container with linkInContainer", func() {
		cont := nstest.NewNetns()
		IP(w.Host, "link set other1 netns %s", cont.Name)
		call := Call{Netns: cont.Path, Conf: unnamed(Object{"linkInContainer": true})}
		call.Command = "ADD"
		Expect(w.Fails(call, cni.CodeConfig)).To(HavePrefix("master: missing"))
		cont.IP("link set other1 up", "addr add 10.3.0.1/24 dev other1", "route add default via 10.3.0.200")
		a := w.AttachIn(cont, call)
		Expect(IP(cont, "-o link show eth0")).To(ContainSubstring("eth0@other1:"))
		w.Ends(a, "other1")
		call.Conf = Merge(unnamed(), Object{"linkInContainer": true, "master": "nope"})
		Expect(w.Fails(call, cni.CodeConfig)).To(HavePrefix(`master: "nope": no such interface`))
	})
})

var _ = Describe("what is in the container", Label("kernel"), func() {
	var w *World
	BeforeEach(func() { w, _ = newWorld() })

	DescribeTable("is left by DEL where it is not the attachment's", Label("child-left"), func(make string) {
		a := w.Attach("one", conf(), "10.1.0.2/24")
		IP(a.Host, "link del eth0")
		w.Cmd("ip", strings.Fields(fmt.Sprintf("link add %s", strings.ReplaceAll(make, "NS", a.Host.Name)))...)
		w.Succeeds(a.As("DEL"))
		Expect(Names(a.Host, "")).To(ContainElement("eth0"))
	},
		Entry("an interface of another kind", "eth0 netns NS type veth peer name x0"),
		Entry("a macvlan with another MAC address", "link up0 name eth0 netns NS type macvlan"),
	)

	It("is found by its record where the container changed its alias and its name", Label("child-found"), func() {
		a := w.Attach("one", conf(), "10.1.0.2/24")
		IP(a.Host, "link set eth0 alias mine")
		w.Succeeds(a.As("CHECK"))
		a.Host.IP("link set eth0 down", "link set eth0 name moved")
		c := a.As("DEL")
		c.Netns = ""
		w.Succeeds(c)
		Expect(Names(a.Host, "")).To(BeEmpty())
	})

	It("stays when its record is lost and its second ADD is refused before anything is made", func() {
		a := w.Attach("one", conf(), "10.1.0.2/24")
		w.Cmd("sh", "-c", "rm /run/hawser/links/*.json")
		again := a.As("ADD")
		again.Conf = conf(Object{"mac": Show(w.Host, "up0").Address})
		Expect(w.Fails(again, cni.CodeConfig)).To(ContainSubstring("is the MAC address of master"))
		w.Succeeds(a.As("CHECK"))
	})

	It("stays when a record in the file of another name says that it is of another container", func() {
		a := w.Attach("one", conf(), "10.1.0.2/24")
		w.Cmd("sh", "-c", `sed -i 's/"one"/"gone"/' /run/hawser/links/*.json`)
		c := a.As("GC")
		c.Conf = Merge(conf(), Object{"cni.dev/valid-attachments": []Object{{"containerID": "one", "ifname": "eth0"}}})
		w.Succeeds(c)
		Expect(Names(a.Host, "")).To(Equal([]string{"eth0"}))
		w.Succeeds(a.As("DEL"))
	})

	It("drifts where it is on another master, or another macvlan", Label("master-drift"), func() {
		a := w.Attach("one", conf(), "10.1.0.2/24")
		mac := Show(a.Host, "eth0").Address
		IP(w.Host, "link add other0 type veth peer name other1")
		for _, master := range []string{"other0", "up0"} {
			IP(a.Host, "link del eth0")
			IP(w.Host, "link add link %s name eth0 netns %s address %s type macvlan mode bridge", master,
				a.Host.Name, mac)
			a.Host.IP("link set eth0 up", "addr add 10.1.0.2/24 dev eth0")
			says := w.Fails(a.As("CHECK"), cni.CodeDrift)
			Expect(says).To(ContainSubstring("is not the one that ADD created"))
			Expect(strings.Contains(says, `not on master "up0"`)).To(Equal(master != "up0"))
		}
	})

	It("passes CHECK with a MAC address in upper case, and a master whose MTU was lowered", func() {
		a := w.Attach("one", conf(), "10.1.0.2/24")
		IP(w.Host, "link set up0 mtu 1300")
		a.Result.Text = strings.Replace(a.Result.Text, a.Result.Interfaces[0].MAC,
			strings.ToUpper(a.Result.Interfaces[0].MAC), 1)
		w.Succeeds(a.As("CHECK"))
	})

	It("goes with DEL when the master is gone", func() {
		a := w.Attach("one", conf(), "10.1.0.2/24")
		IP(w.Host, "link del up0")
		w.Calls()
		w.Succeeds(a.As("DEL"))
		Expect(w.Calls()).To(Equal([]string{"DEL one eth0"}))
	})

	It("goes with GC and with DEL when its ADD was killed before it was marked", Label("child-found"), func() {
		for _, command := range []string{"GC", "DEL"} {
			a := w.Attach("one", conf(), "10.1.0.2/24")
			IP(a.Host, "link set eth0 group %d", cni.NetworkHash("net"))
			a.Host.Cmd("sh", "-c", `ip link set eth0 alias ""`)
			c := a.As(command)
			c.Conf = Merge(conf(), Object{"cni.dev/valid-attachments": []Object{}})
			w.Succeeds(c)
			Expect(Names(a.Host, "")).To(BeEmpty())
			Expect(w.Cmd("ls", "/run/hawser/links")).To(Equal("lock\n"))
		}
	})
})

var _ = AutoMTU(Plugin().Untyped(), conf(), "macvlan", func(*World, *nstest.Host) string { return "10.1.0.1" })
