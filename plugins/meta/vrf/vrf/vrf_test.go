package vrf

import (
	"fmt"
	"regexp"
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

func TestVRF(t *testing.T) { nstest.RunSpecs(t, "vrf") }

// world is a container whose interfaces eth0 and net1 are each connected to a separate router.
type world struct {
	*World
	cont    *nstest.Host
	routers map[string]*nstest.Host
}

func newWorld() *world {
	GinkgoHelper()
	w := &world{World: NewWorld(Plugin()), cont: nstest.NewNetns(), routers: map[string]*nstest.Host{}}
	w.link("eth0", "10.1.0.2/24", "fd01::2/64")
	w.link("net1", "10.2.0.2/24", "fd02::2/64")
	IP(w.cont, "route add default via 10.1.0.1")
	// The kernel creates a rule together with the first VRF of a namespace, and never removes it.
	first := "ip link add first type vrf table 999 && ip link del first"
	w.cont.Run(nstest.Program{Path: "sh", Args: []string{"-c", first}})
	return w
}

// link creates an interface of the container and its router. The kernel deletes the interface's
// IPv6 addresses when it is set down.
func (w *world) link(name string, addrs ...string) {
	GinkgoHelper()
	w.routers[name] = Cable(w.cont, name)
	for _, a := range addrs {
		nodad := ""
		if strings.Contains(a, ":") {
			nodad = "nodad" // as Hawser's plugins set them
		}
		IP(w.cont, "addr add %s dev %s %s", a, name, nodad)
	}
	w.usable(name)
}

// usable waits until the IPv6 addresses of an interface are usable, because the kernel creates
// their local routes asynchronously.
func (w *world) usable(name string) {
	GinkgoHelper()
	w.cont.SetSysctl("net/ipv6/conf/"+name+"/accept_dad", "0")
	for _, a := range Show(w.cont, name).AddrInfo {
		if strings.Contains(a.Local, ":") {
			Eventually(func() string { return IP(w.cont, "-6 route show table all type local %s", a.Local) }).
				Should(ContainSubstring(a.Local))
		}
	}
}

// call returns a call for net1 and the VRF red, with net1 in prevResult.
func (w *world) call(command string, keys Object) Call {
	prev := Object{"cniVersion": "1.1.0", "interfaces": []Object{{"name": "net1", "sandbox": w.cont.Path}},
		"ips": []Object{{"address": "10.2.0.2/24", "interface": 0}, {"address": "fd02::2/64", "interface": 0}}}
	conf := Object{"cniVersion": "1.1.0", "name": "net", "type": "vrf", "vrfname": "red", "prevResult": prev}
	return Call{Command: command, IfName: "net1", Netns: w.cont.Path, Conf: Merge(conf, keys)}
}

// callFor returns a call for another interface and VRF.
func (w *world) callFor(command, ifName, vrf string, keys Object) Call {
	c := w.call(command, Merge(Object{"vrfname": vrf,
		"prevResult": Object{"cniVersion": "1.1.0", "interfaces": []Object{{"name": ifName}}}}, keys))
	c.IfName = ifName
	return c
}

// add runs an ADD that must succeed without warnings.
func (w *world) add(keys Object) Result {
	GinkgoHelper()
	a := w.Call(w.call("ADD", keys))
	Expect(a.Stderr).To(BeEmpty())
	return a.Added()
}

// del runs a DEL without prevResult.
func (w *world) del(keys Object) {
	GinkgoHelper()
	c := w.callFor("DEL", "net1", "red", Merge(Object{"prevResult": nil}, keys))
	Expect(w.Call(c)).To(Equal(Answer{}))
}

// vrfs returns the VRFs with their tables and members, in the form "red 1 net1".
func (w *world) vrfs() []string {
	GinkgoHelper()
	var links []struct {
		Ifname, Master string
		Flags          []string
		Linkinfo       struct {
			Kind string         `json:"info_kind"`
			Data map[string]any `json:"info_data"`
		}
	}
	w.cont.JSON(&links, "ip", "-j", "-d", "link")
	out := []string{}
	for _, l := range links {
		if l.Linkinfo.Kind != "vrf" {
			continue
		}
		line := fmt.Sprintf("%s %v", l.Ifname, l.Linkinfo.Data["table"])
		for _, member := range links {
			if member.Master == l.Ifname {
				line += " " + member.Ifname
			}
		}
		if !slices.Contains(l.Flags, "UP") {
			line += " down"
		}
		out = append(out, line)
	}
	return out
}

// routes returns the unicast routes of a table that use an interface, each in one line as ip(8) prints it.
func (w *world) routes(table, ifName string) []string {
	GinkgoHelper()
	var out []string
	for _, family := range []string{"-4", "-6"} {
		show := []string{family, "route", "show", "table", table, "type", "unicast"}
		done := w.cont.Run(nstest.Program{Path: "ip", Args: show})
		for line := range strings.SplitSeq(strings.ReplaceAll(done.Stdout, "\n\t", " "), "\n") {
			if strings.Contains(line+" ", " "+ifName+" ") {
				out = append(out, strings.Join(strings.Fields(strings.ReplaceAll(line, " pref medium", "")), " "))
			}
		}
	}
	return out
}

// Creating a world takes seconds on an emulated processor, so each spec covers several cases.
var _ = Describe("ADD", Label("kernel"), func() {
	var w *world
	BeforeEach(func() {
		nstest.Need("vrf")
		w = newWorld()
	})

	It("makes the VRF and takes the interface in; again is refused and changes nothing", Label("vrf-twice"), func() {
		r := w.add(nil)
		Expect(r.Interfaces).To(HaveLen(1))
		Expect(r.IPs).To(HaveLen(2))
		Expect(w.vrfs()).To(Equal([]string{"red 1 net1"}))
		Expect(Show(w.cont, "red").Ifalias).To(Equal("hawser vrf"))
		Expect(Show(w.cont, "net1").Addrs()).To(ConsistOf("10.2.0.2/24", "fd02::2/64"))
		Expect(w.routes("main", "net1")).To(BeEmpty())
		Expect(w.routes("1", "net1")).To(ConsistOf("10.2.0.0/24 dev net1 proto kernel scope link src 10.2.0.2",
			"fd02::/64 dev net1 proto kernel metric 256"))
		w.Succeeds(w.call("CHECK", nil))
		w.Succeeds(w.call("STATUS", nil))

		before := w.cont.Snapshot()
		Expect(w.Fails(w.call("ADD", nil), cni.CodeExists)).To(
			ContainSubstring(`"net1": is already a member of vrf "red"`))
		Expect(w.cont.Snapshot()).To(Equal(before))
		Expect(w.Records(recordDir)).To(HaveLen(1))
		w.del(nil)
		w.add(nil)
		Expect(w.vrfs()).To(Equal([]string{"red 1 net1"}))
	})

	It("has IPv6 usable at once, where the kernel would look for duplicates again", Label("vrf-ipv6"), func() {
		IP(w.cont, "addr add fd02::3/64 dev net1")
		w.usable("net1")
		for _, keep := range []string{"0", "1"} {
			w.cont.SetSysctl("net/ipv6/conf/net1/keep_addr_on_down", keep)
			w.cont.SetSysctl("net/ipv6/conf/net1/accept_dad", "1")
			w.cont.SetSysctl("net/ipv6/conf/net1/dad_transmits", "60") // one a second
			w.add(nil)
			for _, a := range Show(w.cont, "net1").AddrInfo {
				Expect(a.Tentative).To(BeFalse(), a.Local)
			}
			Expect(IP(w.cont, "-6 route show table 1 type local")).To(And(ContainSubstring("fd02::2 "),
				ContainSubstring("fd02::3 ")))
			Expect(w.cont.Sysctl("net/ipv6/conf/net1/keep_addr_on_down")).To(Equal(keep))
			w.del(nil)
			Expect(Show(w.cont, "net1").Addrs()).To(ConsistOf("10.2.0.2/24", "fd02::2/64", "fd02::3/64"))
		}
	})

	It("keeps the metric, peer, lifetimes and flags of IPv6 addresses, and their order", Label("vrf-ipv6"), func() {
		for _, a := range []string{"fd03::2/64 metric 77", "fd04::2 peer fd04::3/128", "fd06::2/64 preferred_lft 0",
			"fd05::2/64 valid_lft 30000 preferred_lft 20000", "fd07::2/64 noprefixroute"} {
			IP(w.cont, "addr add %s dev net1 nodad", a)
		}
		IP(w.cont, "route add fd07::/64 dev net1 proto kernel metric 100") // as NetworkManager does
		w.usable("net1")
		seconds := regexp.MustCompile(`\d+sec`)
		// state returns the addresses, and the routes of a table, with lifetimes as "Nsec".
		state := func(table string) []string {
			lines := strings.Split(IP(w.cont, "-6 addr show dev net1 scope global"), "\n")[1:] // without the master
			lines = append(lines, slices.Sorted(slices.Values(w.routes(table, "net1")))...)
			for i := range lines {
				lines[i] = seconds.ReplaceAllLiteralString(lines[i], "Nsec")
			}
			return lines
		}
		before := state("main")
		Expect(before).To(ContainElements(ContainSubstring("metric 77 scope global"),
			ContainSubstring("valid_lft Nsec"), "fd07::/64 dev net1 proto kernel metric 100"))
		w.add(nil)
		Expect(state("1")).To(Equal(before))
		w.del(nil)
		Expect(state("main")).To(Equal(before))
	})

	It("moves every route of the interface; DEL, and an ADD that fails, bring them back", Label("vrf-routes"), func() {
		var want []string // the VRF's table
		for _, r := range moving() {
			IP(w.cont, "route add %s", r.route)
			if r.moved != "" {
				want = append(want, r.moved)
			}
		}
		before := w.cont.Snapshot()
		failing := w.call("ADD", nil)
		failing.Stdout = BrokenPipe{}
		Expect(w.Call(failing).Code).NotTo(BeZero())
		w.IsAsBefore(w.cont, before, recordDir)

		w.add(nil)
		Expect(w.routes("1", "net1")).To(ConsistOf(append(want,
			"10.2.0.0/24 dev net1 proto kernel scope link src 10.2.0.2", "fd02::/64 dev net1 proto kernel metric 256")))
		Expect(w.routes("main", "net1")).To(BeEmpty())
		Expect(w.routes("main", "eth0")).To(ContainElements("default via 10.1.0.1 dev eth0",
			"10.57.0.0/16 via 10.1.0.9 dev eth0", "default via fd01::1 dev eth0 metric 1024"))
		Expect(w.routes("200", "net1")).To(ConsistOf("10.54.0.0/16 via 10.2.0.1 dev net1",
			"10.55.0.0/16 via 10.2.0.1 dev net1", "fd54::/48 via fd02::1 dev net1 src fd02::2 metric 1024"))
		w.del(nil)
		Expect(w.cont.Snapshot()).To(Equal(before))
	})

	It("takes the first table that no VRF, route or rule of the container uses, or the one asked for", func() {
		IP(w.cont, "route add 10.9.0.0/16 dev eth0 table 1")
		IP(w.cont, "rule add from 10.9.0.1 lookup 2")
		IP(w.cont, "link add blue type vrf table 3")
		w.add(nil)
		w.link("net2", "10.3.0.2/24")
		w.Call(w.callFor("ADD", "net2", "green", Object{"table": 4000})).Added()
		w.link("net3", "10.4.0.2/24")
		w.Call(w.callFor("ADD", "net3", "green", Object{"table": 0})).Added()
		Expect(w.vrfs()).To(ConsistOf("blue 3 down", "red 4 net1", "green 4000 net2 net3"))
	})

	It("of interfaces with the same addresses keeps their networks apart", Label("vrf-apart"), func() {
		w.link("net2", "10.2.0.2/24")
		for _, name := range []string{"net1", "net2"} {
			IP(w.routers[name], "addr add 10.2.0.1/24 dev port")
		}
		w.add(nil)
		w.Call(w.callFor("ADD", "net2", "blue", nil)).Added()
		for i, vrf := range []string{"red", "blue"} {
			mac := Show(w.routers[fmt.Sprintf("net%d", i+1)], "port").Address
			Eventually(func() int {
				ping := []string{"-c1", "-W1", "-I", vrf, "10.2.0.1"}
				return w.cont.Run(nstest.Program{Path: "ping", Args: ping}).Exit
			}).Should(BeZero())
			Expect(IP(w.cont, "neigh show 10.2.0.1 vrf %s", vrf)).To(ContainSubstring(mac))
		}
	})

	It("at once for sixteen VRFs gives each its own table", Label("vrf-tables"), func() {
		var calls []Call
		for i := range 16 {
			name := fmt.Sprintf("if%d", i)
			IP(w.cont, "link add %s type dummy", name)
			calls = append(calls, w.callFor("ADD", name, fmt.Sprintf("vrf%d", i), nil))
		}
		answers := make([]Answer, len(calls))
		nstest.AtOnce(len(calls), func(i int) { answers[i] = w.Call(calls[i]) })
		tables := map[string]bool{}
		for _, a := range answers {
			a.Added()
		}
		for _, line := range w.vrfs() {
			var vrf, table string
			fmt.Sscan(line, &vrf, &table)
			tables[table] = true
		}
		Expect(tables).To(HaveLen(16))
	})

	It("refuses what something else holds, and changes nothing", Label("vrf-held"), func() {
		for _, held := range []struct {
			by      []string
			keys    Object
			message string
		}{
			{[]string{"link add blue type vrf table 7", "link set net1 master blue"}, nil,
				`interface "net1": has already a master set: "blue"`},
			{[]string{"link add blue type bridge", "link set net1 master blue"}, nil,
				`interface "net1": has already a master set: "blue"`},
			{[]string{"link add red type dummy"}, nil,
				`vrfname: "red" is an interface of kind "dummy" in the container, not a VRF`},
			{[]string{"link add red type vrf table 7"}, Object{"table": 8},
				`table: 8: VRF red already exist with different routing table 7`},
			{[]string{"link add blue type vrf table 7"}, Object{"table": 7}, `table: 7 is in use by vrf "blue"`},
		} {
			for _, c := range held.by {
				IP(w.cont, "%s", c)
			}
			before := w.cont.Snapshot()
			Expect(w.Fails(w.call("ADD", held.keys), cni.CodeConflict)).To(ContainSubstring(held.message))
			w.IsAsBefore(w.cont, before, recordDir)
			IP(w.cont, "link del %s", strings.Fields(held.by[0])[2])
		}
	})
})

// moved is a route of net1 and its form in the VRF's table (empty: the route is in another table).
type moved struct{ route, moved string }

func moving() []moved {
	return []moved{
		{"10.51.0.0/16 via 10.2.0.1", "10.51.0.0/16 via 10.2.0.1 dev net1"},
		{"10.52.0.0/16 dev net1", "10.52.0.0/16 dev net1 scope link"},
		{"10.53.0.0/16 via 10.2.0.1 metric 7 src 10.2.0.2 mtu 1400 proto static",
			"10.53.0.0/16 via 10.2.0.1 dev net1 proto static src 10.2.0.2 metric 7 mtu 1400"},
		{"10.54.0.0/16 via 10.2.0.1 table 200", ""},
		{"10.55.0.0/16 via 10.2.0.1 src 10.2.0.2 table 200", ""},
		{"10.56.0.0/16 nexthop via 10.2.0.1 nexthop via 10.2.0.9",
			"10.56.0.0/16 nexthop via 10.2.0.1 dev net1 weight 1 nexthop via 10.2.0.9 dev net1 weight 1"},
		{"10.57.0.0/16 nexthop via 10.2.0.1 nexthop via 10.1.0.9", "10.57.0.0/16 via 10.2.0.1 dev net1"},
		{"default via 10.2.0.1 metric 100", "default via 10.2.0.1 dev net1 metric 100"},
		{"fd51::/48 via fd02::1", "fd51::/48 via fd02::1 dev net1 metric 1024"},
		{"fd52::/48 dev net1 metric 7", "fd52::/48 dev net1 metric 7"},
		{"fd53::/48 via fd02::1 src fd02::2 mtu 1400 pref high",
			"fd53::/48 via fd02::1 dev net1 src fd02::2 metric 1024 mtu 1400 pref high"},
		{"fd54::/48 via fd02::1 src fd02::2 table 200", ""},
		{"fd56::/48 nexthop via fd02::1 nexthop via fd02::9",
			"fd56::/48 metric 1024 nexthop via fd02::1 dev net1 weight 1 nexthop via fd02::9 dev net1 weight 1"},
		{"default nexthop via fd02::1 nexthop via fd01::1", "default via fd02::1 dev net1 metric 1024"},
	}
}

var _ = Describe("DEL", Label("kernel"), func() {
	var w *world
	BeforeEach(func() {
		nstest.Need("vrf")
		w = newWorld()
	})

	It("of one interface leaves the VRF to the other, in either order", func() {
		w.link("net2", "10.3.0.2/24")
		before := w.cont.Snapshot()
		for first, second := range map[string]string{"net1": "net2", "net2": "net1"} {
			w.add(nil)
			w.Call(w.callFor("ADD", "net2", "red", nil)).Added()
			w.Succeeds(w.callFor("DEL", first, "red", nil))
			Expect(w.vrfs()).To(Equal([]string{"red 1 " + second}))
			w.Succeeds(w.callFor("DEL", first, "red", nil))
			w.Succeeds(w.callFor("DEL", second, "red", nil))
			Expect(w.vrfs()).To(BeEmpty())
			w.IsAsBefore(w.cont, before, recordDir)
		}
	})

	It("gives each of two interfaces its next hops of a route that they shared", Label("vrf-del"), func() {
		w.link("net2", "10.3.0.2/24", "fd03::2/64")
		IP(w.cont, "route add 10.60.0.0/16 nexthop via 10.2.0.1 nexthop via 10.3.0.1")
		IP(w.cont, "-6 route add default nexthop via fd02::1 nexthop via fd03::1")
		before := w.cont.Snapshot()
		own := func(ifName, net string) []string {
			return []string{fmt.Sprintf("10.60.0.0/16 via 10.%s.0.1 dev %s", net, ifName),
				fmt.Sprintf("default via fd0%s::1 dev %s metric 1024", net, ifName)}
		}
		of := func(ifName string) []string {
			subnet := func(r string) bool { return strings.Contains(r, " kernel ") }
			return slices.DeleteFunc(w.routes("main", ifName), subnet)
		}
		for _, first := range []string{"net1", "net2"} {
			w.add(nil)
			w.Call(w.callFor("ADD", "net2", "blue", nil)).Added()
			Expect(append(of("net1"), of("net2")...)).To(BeEmpty())
			w.Succeeds(w.callFor("DEL", first, map[string]string{"net1": "red", "net2": "blue"}[first], nil))
			if first == "net2" { // the other order
				Expect(of("net1")).To(BeEmpty())
				Expect(of("net2")).To(ConsistOf(own("net2", "3")))
				w.del(nil)
				Expect(w.cont.Snapshot()).To(Equal(before))
				continue
			}
			Expect(of("net1")).To(ConsistOf(own("net1", "2")))
			Expect(of("net2")).To(BeEmpty())
			w.Succeeds(w.callFor("DEL", "net2", "blue", nil))
			Expect(w.vrfs()).To(BeEmpty())
			IP(w.cont, "route flush 10.60.0.0/16")
			IP(w.cont, "-6 route flush default")
			IP(w.cont, "route add 10.60.0.0/16 nexthop via 10.2.0.1 nexthop via 10.3.0.1")
			IP(w.cont, "-6 route add default nexthop via fd02::1 nexthop via fd03::1")
		}
	})

	It("leaves the interface to what has it by now", Label("vrf-del"), func() {
		for _, kind := range []string{"vrf table 9", "bridge"} {
			w.add(nil)
			IP(w.cont, "link add yellow type %s", kind)
			IP(w.cont, "link set net1 master yellow")
			w.del(nil)
			Expect(Show(w.cont, "net1").Master).To(Equal("yellow"))
			Expect(w.vrfs()).NotTo(ContainElement(HavePrefix("red")))
			IP(w.cont, "link del yellow")
		}
	})

	It("keeps a VRF that another program created, and deletes its own without the interface", Label("vrf-del"), func() {
		IP(w.cont, "link add red up type vrf table 9")
		w.add(nil)
		w.del(nil)
		Expect(w.vrfs()).To(Equal([]string{"red 9"}))
		IP(w.cont, "link del red")
		w.add(nil)
		w.cont.Cmd("ip", "link", "set", "red", "alias", "") // as a killed ADD leaves it
		w.del(nil)
		Expect(w.vrfs()).To(BeEmpty())
		w.add(nil)
		IP(w.cont, "link del net1")
		w.del(nil)
		Expect(w.vrfs()).To(BeEmpty())
		Expect(w.Records(recordDir)).To(BeEmpty())
	})

	It("before ADD keeps a VRF without members that another program created, and its routes", Label("vrf-del"), func() {
		IP(w.cont, "link add red up type vrf table 9")
		IP(w.cont, "route add 10.51.0.0/16 via 10.2.0.1 table 9")
		before := w.cont.Snapshot()
		w.del(nil)
		w.IsAsBefore(w.cont, before, recordDir)
		IP(w.cont, "link del net1")
		w.del(nil)
		Expect(w.vrfs()).To(Equal([]string{"red 9"}))
	})

	It("needs no configuration, and leaves other networks and other containers alone", Label("vrf-del"), func() {
		w.add(nil)
		w.del(Object{"name": "other"})
		Expect(w.vrfs()).To(Equal([]string{"red 1 net1"}))
		Expect(w.Records(recordDir)).To(HaveLen(1))
		first := w.cont
		w.cont = newWorld().cont
		c := w.call("ADD", nil)
		c.ID = "two"
		w.Call(c).Added()
		w.del(Object{"vrfname": nil, "table": "x"}) // one's, whose path leads to two by now
		Expect(w.vrfs()).To(Equal([]string{"red 1 net1"}))
		Expect(w.Records(recordDir)).To(HaveLen(1), "two's")
		c.Command, c.Conf = "DEL", Object{"cniVersion": "1.1.0", "name": "net", "type": "vrf", "table": "x"}
		w.Succeeds(c)
		Expect(w.vrfs()).To(BeEmpty())
		w.cont = first
		Expect(w.vrfs()).To(BeEmpty(), "one's DEL found it")
	})

	DescribeTable("releases the interface where", Label("vrf-del"), func(loses func(*nstest.Host), path string) {
		before := w.cont.Snapshot()
		w.add(nil)
		c := w.call("DEL", nil)
		c.Netns = path
		loses(w.cont)
		w.Succeeds(c)
		w.IsAsBefore(w.cont, before, recordDir)
	}, PathsElsewhere())
})

var _ = Describe("GC", Label("kernel"), func() {
	It("releases the interfaces of attachments that are not valid, in namespaces that live", func() {
		nstest.Need("vrf")
		w := newWorld()
		before := w.cont.Snapshot()
		w.add(nil)
		gc := func(name string, valid []Object) {
			w.Succeeds(Call{Command: "GC", Conf: Object{"cniVersion": "1.1.0", "name": name, "type": "vrf",
				"vrfname": "red", "cni.dev/valid-attachments": valid}})
		}
		gc("net", []Object{{"containerID": "one", "ifname": "net1"}})
		gc("other", []Object{})
		Expect(w.vrfs()).To(Equal([]string{"red 1 net1"}))
		gc("net", []Object{})
		w.IsAsBefore(w.cont, before, recordDir)
	})

	It("keeps the record of a namespace that cannot be opened", Label("vrf-gc"), func() {
		nstest.Need("vrf")
		w := newWorld()
		before := w.cont.Snapshot()
		const path = "/run/one"
		w.Cmd("ln", "-s", w.cont.Path, path)
		c := w.call("ADD", nil)
		c.Netns = path
		w.Call(c).Added()
		gc := Call{Command: "GC", Conf: Object{"cniVersion": "1.1.0", "name": "net", "type": "vrf", "vrfname": "red",
			"cni.dev/valid-attachments": []Object{}}}
		w.Cmd("ln", "-sfn", path, path)
		Expect(w.Fails(gc, cni.CodeInternal)).To(ContainSubstring("too many levels of symbolic links"))
		Expect(w.Records(recordDir)).To(HaveLen(1))
		w.Cmd("ln", "-sfn", w.cont.Path, path)
		w.Succeeds(gc)
		w.IsAsBefore(w.cont, before, recordDir)
	})
})

var _ = Describe("CHECK", Label("kernel"), func() {
	It("names what was changed", func() {
		nstest.Need("vrf")
		w := newWorld()
		keys := Object{"table": 7, "prevResult": Object{"cniVersion": "1.1.0",
			"routes": []Object{{"dst": "10.51.0.0/16", "gw": "10.2.0.1"}, {"dst": "10.52.0.0/16", "table": 200}}}}
		IP(w.cont, "route add 10.51.0.0/16 via 10.2.0.1")
		IP(w.cont, "route add 10.52.0.0/16 dev net1 table 200")
		w.add(keys)
		w.Succeeds(w.call("CHECK", keys))
		IP(w.cont, "route add 10.53.0.0/16 via 10.2.0.1 dev net1") // as a later plugin of the list
		w.Succeeds(w.call("CHECK", Merge(keys, Object{"prevResult": Object{"cniVersion": "1.1.0",
			"routes": []Object{{"dst": "10.51.0.0/16"}, {"dst": "10.53.0.0/16", "gw": "10.2.0.1"}}}})))
		for _, change := range []struct{ commands, message string }{
			{"route del 10.51.0.0/16 table 7", "table 7: route 10.51.0.0/16: missing"},
			{"route del 10.52.0.0/16 table 200", "table 200: route 10.52.0.0/16: missing"},
			{"link set red down", `vrf "red": is down`},
			{"link set net1 nomaster", `interface "net1": is not a member of vrf "red"`},
			{"link del red; link add red up type vrf table 8; link set net1 master red",
				`vrf "red": its table is 8 instead of 7`},
			{"link del red; link add red type dummy", `vrf "red": is missing`},
			{"link del red", `vrf "red": is missing`},
			{"link del net1", `interface "net1": is missing`},
		} {
			for c := range strings.SplitSeq(change.commands, ";") {
				IP(w.cont, "%s", strings.TrimSpace(c))
			}
			Expect(w.Fails(w.call("CHECK", keys), cni.CodeDrift)).To(ContainSubstring(change.message))
		}
	})
})

// These specs need no VRF support in the kernel.
var _ = Describe("a call", func() {
	It("with the interface's own name is refused, and changes nothing", func() {
		w := newWorld()
		before := w.cont.Snapshot()
		Expect(w.Fails(w.call("ADD", Object{"vrfname": "net1"}), cni.CodeConfig)).
			To(ContainSubstring(`vrfname: "net1" is the container's interface itself`))
		w.IsAsBefore(w.cont, before, recordDir)
	})

	It("on a kernel without VRFs is refused, and STATUS says so", Label("no-vrf"), func() {
		w := newWorld()
		if w.Call(w.call("STATUS", nil)).Code == 0 {
			w.add(nil) // this kernel has them
			return
		}
		IP(w.cont, "route add 10.51.0.0/16 via 10.2.0.1")
		before := w.cont.Snapshot()
		lacks := ContainSubstring("not supported by this kernel, which may lack vrf")
		Expect(w.Fails(w.call("ADD", nil), cni.CodeUnsupportedField)).To(And(HavePrefix(`vrf "`), lacks))
		w.IsAsBefore(w.cont, before, recordDir)
		Expect(w.Fails(w.call("STATUS", nil), cni.CodeUnavailable)).To(And(ContainSubstring("kind vrf: "), lacks))
	})

	DescribeTable("DEL of what is not there succeeds and changes nothing", func(change func(w *world, c *Call)) {
		w := newWorld()
		c := w.call("DEL", Object{"prevResult": nil})
		change(w, &c)
		before := w.cont.Snapshot()
		answer := w.Call(c)
		Expect(answer.Code).To(BeZero(), answer.Stdout)
		w.IsAsBefore(w.cont, before, recordDir)
	},
		Entry("before ADD", func(*world, *Call) {}),
		Entry("with CNI_NETNS empty", func(_ *world, c *Call) { c.Netns = "" }),
		Entry("with a path that no longer exists", func(_ *world, c *Call) { c.Netns += "x" }),
		Entry("with a path that is no namespace", func(_ *world, c *Call) { c.Netns = "/proc/version" }),
		Entry("without the interface", func(w *world, _ *Call) { IP(w.cont, "link del net1") }),
		Entry("with a name that is no VRF", func(w *world, c *Call) { c.Conf.(Object)["vrfname"] = "eth0" }),
		Entry("without a name", func(w *world, c *Call) { delete(c.Conf.(Object), "vrfname") }),
	)

	It("GC and STATUS of nothing", func() {
		w := newWorld()
		w.Succeeds(w.call("GC", Object{"cni.dev/valid-attachments": []Object{}}))
		w.Cmd("sh", "-c", "rm -rf /run/hawser && touch /run/hawser")
		w.Fails(w.call("STATUS", nil), cni.CodeUnavailable)
	})
})

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(Plugin()) })

const fuzzPrev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"` + FuzzNetns +
	`"}],"ips":[{"address":"10.1.0.2/24","interface":0}],"routes":[{"dst":"10.9.0.0/16","table":7}]}`

// FuzzCall generates whole calls.
func FuzzCall(f *testing.F) {
	Fuzz{
		Plugin: Plugin().Untyped(), Chained: true,
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","type":"vrf","vrfname":"red","table":7,` +
				`"cni.dev/valid-attachments":[],` + fuzzPrev + `}`,
			`{"cniVersion":"1.0.0","name":"net","vrfname":"eth0",` + fuzzPrev + `}`,
			`{"name":"net","vrfname":"red","prevResult":{"ip4":{"ip":"10.1.0.2/24"}}}`,
			`{"cniVersion":"1.1.0","name":"net","table":255,"vrfname":"a/b"}`,
		},
	}.Run(f)
}

// FuzzRecord generates the record of a container.
func FuzzRecord(f *testing.F) {
	Fuzz{
		Plugin: Plugin().Untyped(), Chained: true,
		Confs: []string{`{"cniVersion":"1.1.0","name":"net","type":"vrf","vrfname":"red","table":7,` +
			`"cni.dev/valid-attachments":[],` + fuzzPrev + `}`},
	}.RunRecord(f, recordDir, `{"network":"net","containerID":"one","ifname":"eth0","path":"`+FuzzNetns+`",`+
		`"netns":IDENTITY,"vrf":"red","made":true,"link":LINK,"routes":[{"header":{"Family":2,"Dst_len":24,`+
		`"Table":254,"Type":1},"attrs":[{"kind":1,"value":"CgEAAA=="},`+
		`{"kind":4,"value":"AgAAAA=="}]},{"header":{"Family":10},`+
		`"attrs":[{"kind":9,"value":"EAAAAAIAAAA="},{"kind":15,"value":"/w=="}]}]}`)
}

var _ = It("is listed until DEL, and the list changes nothing", Label("kernel"), func() {
	nstest.Need("vrf")
	w := NewWorld(Plugin())
	n := 1
	w.ExpectHeld(func(id, network string) (Call, []string) {
		n++
		a := w.AttachBehind(id, network, Object{"vrfname": "red", "table": 10 + n}, Addrs(n)...)
		return a.As("DEL"), []string{fmt.Sprintf("routing: vrf red table %d", 10+n)}
	})
})

var _ = DescribeTable("reads records of earlier versions, and writes current ones",
	ExpectFormerRecord[record],
	Entry("before 0.2.0",
		`"path": "/run/netns/c1", "netns": ID, "vrf": "red", "made": true, "link": 2, "routes": []`,
		`"netnsPath": "/run/netns/c1", "netns": ID, "vrf": "red", "made": true, "link": 2, "routes": []`))
