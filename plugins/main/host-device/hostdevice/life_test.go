package hostdevice

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
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

func TestHostDevice(t *testing.T) { nstest.RunSpecs(t, "plugins/main/host-device/hostdevice") }

var _ = It("has its schema in docs/schema", func() {
	var given []any
	var rules []Object
	for _, key := range []string{"device", "hwaddr", "kernelpath", "pciBusID", "runtimeConfig.deviceID"} {
		has := HasKey(key, Object{"type": "string", "minLength": 1})
		for _, other := range given {
			other := other.(Object)
			if key != "runtimeConfig.deviceID" { // which the runtime sends beside any
				rules = append(rules, NotBoth(other, has))
			}
		}
		given = append(given, has)
	}
	given = append(given, HasKey("capabilities.deviceID", Object{"const": true}))
	ExpectPluginSchema(Plugin(), append(rules, Object{"anyOf": given})...)
})

// conf is a configuration of network "net" for the device d0: keys are added, or taken away by nil.
func conf(more ...Object) Object {
	return Merge(append([]Object{{"cniVersion": "1.1.0", "name": "net", "type": "host-device", "device": "d0",
		"enabledad": false, "ipam": Object{"type": "fake"}}}, more...)...)
}

// mac0 is the MAC address of the device d0.
const mac0 = "02:00:00:00:00:d0"

// newWorld is a host with the device d0, which has settings of its own.
func newWorld() *World {
	GinkgoHelper()
	w := NewWorld(Plugin())
	addDevice(w, "d0", mac0)
	IP(w.Host, "link set d0 mtu 1400 txqueuelen 77 group 5")
	w.Cmd("ip", "link", "set", "d0", "alias", "my alias")
	w.LendAddrs("one", Addrs(2)...)
	return w
}

// addDevice makes a device, up, with a peer on the host that is up too.
func addDevice(w *World, name, mac string) {
	GinkgoHelper()
	IP(w.Host, "link add %s address %s type veth peer name %sp", name, mac, name)
	w.Host.IP("link set "+name+"p up", "link set "+name+" up")
}

// attached attaches container one, whose interface is net1.
func attached(w *World, c Object) Attached {
	GinkgoHelper()
	return w.AttachIn(nstest.NewNetns(), Call{IfName: "net1", Conf: c})
}

// links are the host's, without what the kernel does to them by itself.
func links(w *World) string {
	GinkgoHelper()
	return w.Snapshot("links")
}

var _ = Describe("ADD", func() {
	It("moves the device into the container, with its settings, and gives it the addresses", func() {
		w := newWorld()
		a := attached(w, conf())
		Expect(Names(w.Host, "")).To(Equal([]string{"d0p"}))
		l := Show(a.Host, "net1")
		Expect(l.Address).To(Equal(mac0))
		Expect(l.MTU).To(Equal(1400))
		Expect(l.Ifalias).To(Equal("d0"), "the reference's DEL reads it")
		Expect(l.Flags).To(ContainElement("UP"))
		Expect(l.Addrs()).To(ConsistOf("10.1.0.2/24", "2001:db8:1::2/64"))
		Expect(a.Result.Interfaces).To(HaveLen(1))
		i := a.Result.Interfaces[0]
		Expect([]any{i.Name, i.MAC, i.Sandbox, i.MTU}).To(Equal([]any{"net1", mac0, a.Path, 1400}))
		Expect(*a.Result.IPs[0].Interface).To(BeZero())
		w.Succeeds(a.As("CHECK"))
	})

	It("works without IPAM, and under the name that the device has", func() {
		w := newWorld()
		a := w.AttachIn(nstest.NewNetns(), Call{IfName: "d0", Conf: conf(Object{"ipam": nil})})
		Expect(Show(a.Host, "d0").Flags).To(ContainElement("UP"))
	})

	It("refuses a device that a container has, naming that, and takes it after its end", Label("device-owner"), func() {
		w := newWorld()
		a := attached(w, conf())
		other := nstest.NewNetns()
		again := Call{Command: "ADD", ID: "two", IfName: "net1", Netns: other.Path, Conf: conf()}
		Expect(w.Fails(again, cni.CodeConflict)).To(And(ContainSubstring(`"d0"`), ContainSubstring(`container "one"`)))
		again.Conf = conf(Object{"device": nil, "hwaddr": mac0})
		Expect(w.Fails(again, cni.CodeConflict)).To(ContainSubstring(`container "one"`))
		second := Call{Command: "ADD", IfName: "net1", Netns: a.Path, Conf: conf()}
		w.Fails(second, cni.CodeExists)
		a.Host.IP("link set net1 down", "link set net1 name moved")
		w.Fails(second, cni.CodeExists)
		second.Conf = conf(Object{"device": "d0p"}) // whose record would take the place of that of d0
		w.Fails(second, cni.CodeExists)
		w.Succeeds(a.As("DEL"))
		w.LendAddrs("two", Addrs(2)...)
		again.Conf = conf()
		w.Add(again)
	})

	It("takes a new device whose predecessor went with its container", func() {
		w := newWorld()
		a := attached(w, conf())
		a.Unpin()
		Eventually(func() []string { return Names(w.Host, "") }).Should(BeEmpty())
		addDevice(w, "d0", mac0)
		w.LendAddrs("two", Addrs(2)...)
		b := w.AttachIn(nstest.NewNetns(), Call{ID: "two", IfName: "net1", Conf: conf()})
		w.Succeeds(a.As("DEL"))
		w.Succeeds(b.As("CHECK"))
	})

	It("takes a new device of the same name and MAC address, and brings home both", Label("device-owner"), func() {
		w := newWorld()
		a := attached(w, conf(Object{"ipam": nil}))
		IP(w.Host, "link set d0p name old")
		addDevice(w, "d0", mac0)
		before := links(w)
		b := w.AttachIn(nstest.NewNetns(), Call{ID: "two", IfName: "net1", Conf: conf(Object{"ipam": nil})})
		w.Succeeds(b.As("DEL"))
		Expect(links(w)).To(Equal(before))
		IP(w.Host, "link del d0")
		IP(a.Host, "link set net1 mtu 1300")
		w.Succeeds(a.As("DEL"))
		Expect(Show(w.Host, "d0").MTU).To(Equal(1400))
	})

	It("refuses lo, which can be nowhere else, and leaves that of the container up", func() {
		w := newWorld()
		cont := nstest.NewNetns()
		IP(cont, "link set lo up")
		before := cont.Snapshot("links")
		lo := Call{Command: "ADD", Netns: cont.Path, IfName: "net1", Conf: conf(Object{"device": "lo"})}
		Expect(w.Fails(lo, cni.CodeConfig)).To(ContainSubstring("loopback"))
		Expect(cont.Snapshot("links")).To(Equal(before))
		lo.Command = "DEL"
		w.Succeeds(lo)
	})

	It("refuses what the kernel does not move, and leaves it as it was", func() {
		w := newWorld()
		IP(w.Host, "link add br0 type bridge")
		before := links(w)
		add := Call{Command: "ADD", Netns: nstest.NewNetns().Path, IfName: "net1", Conf: conf(Object{"device": "br0"})}
		Expect(w.Fails(add, cni.CodeConfig)).To(HavePrefix(`device: "br0" is interface "br0", which cannot move`))
		Expect(w.Calls()).To(BeEmpty())
		Expect(links(w)).To(Equal(before))
		Expect(w.Files("/run/hawser")).NotTo(ContainSubstring(".json"))
	})

	It("warns of what the host loses", func() {
		w := newWorld()
		w.Host.IP("link add br0 type bridge", "link set d0 master br0")
		cont := nstest.NewNetns()
		answer := w.Call(Call{Command: "ADD", Netns: cont.Path, IfName: "net1", Conf: conf()})
		Expect(answer.Stderr).To(ContainSubstring(`is a port of "br0"`))

		addDevice(w, "d1", "02:00:00:00:00:d1")
		w.Host.IP("addr add 192.0.2.2/24 dev d1", "route add default via 192.0.2.1")
		answer = w.Call(Call{Command: "ADD", ID: "two", Netns: cont.Path, IfName: "net2",
			Conf: conf(Object{"device": "d1", "ipam": nil})})
		Expect(answer.Stderr).To(ContainSubstring("default route"))
	})
})

var _ = Describe("DEL", func() {
	type form struct {
		before []string // commands of ip(8) in the container
		call   func(*Call)
	}
	forms := map[string]form{
		"with all that a runtime knows":         {},
		"without prevResult":                    {call: WithKeys(Object{"prevResult": nil})},
		"with a prevResult that cannot be read": {call: WithKeys(Object{"prevResult": 5})},
		"without CNI_NETNS":                     {call: func(c *Call) { c.Netns = "" }},
		"with a path that leads nowhere":        {call: func(c *Call) { c.Netns = "/run/netns/gone" }},
		"with a path to no namespace":           {call: func(c *Call) { c.Netns = "/proc/version" }},
		"with the host's namespace":             {call: func(c *Call) { c.Netns = "/proc/thread-self/ns/net" }},
		"without a key":                         {call: WithKeys(Object{"device": nil})},
		"with keys that make no sense": {call: WithKeys(Object{"device": "x/y", "hwaddr": 5, "pciBusID": "zz",
			"enabledad": 7})},
		"with the key of another device":           {call: WithKeys(Object{"device": "d0p"})},
		"when the container renamed it":            {before: []string{"link set net1 down", "link set net1 name eth9"}},
		"when the container took its name":         {before: []string{"link add d0 type veth peer name x"}},
		"when the container gave it another alias": {before: []string{"link set net1 alias d0p"}},
		"when the container changed all it can": {before: []string{"link set net1 down", "link set net1 name eth9",
			"link set eth9 mtu 1300 txqueuelen 5 group 9 address 02:00:00:00:00:77 alias x"}},
		"when the container made another of its name": {before: []string{"link set net1 down",
			"link set net1 name eth9", "link add net1 alias d0p type veth peer name z"}},
	}
	for _, name := range slices.Sorted(maps.Keys(forms)) {
		f := forms[name]
		It("brings the device home as it was "+name, func() {
			w := newWorld()
			before := links(w)
			a := attached(w, conf())
			for _, words := range f.before {
				IP(a.Host, "%s", words)
			}
			c := a.As("DEL")
			if f.call != nil {
				f.call(&c)
			}
			w.Calls()
			for range 2 {
				w.Succeeds(c)
				Expect(w.Calls()).To(Equal([]string{"DEL one net1"}))
				Expect(links(w)).To(Equal(before))
			}
			Expect(w.Files("/run/hawser")).NotTo(ContainSubstring(".json"))
		})
	}

	DescribeTable("brings the device home where", Label("device-home"), func(loses func(*nstest.Host), path string) {
		w := newWorld()
		before := links(w)
		a := attached(w, conf())
		loses(a.Host)
		again := Call{Command: "ADD", ID: "two", IfName: "net1", Netns: nstest.NewNetns().Path, Conf: conf()}
		Expect(w.Fails(again, cni.CodeConflict)).To(ContainSubstring(`container "one"`))
		c := a.As("DEL")
		c.Netns = path
		w.Succeeds(c)
		Expect(links(w)).To(Equal(before))
	}, PathsElsewhere())

	It("frees the addresses when the namespace is gone, and before ADD", func() {
		w := newWorld()
		a := attached(w, conf())
		a.Unpin()
		Eventually(func() []string { return Names(w.Host, "") }).Should(BeEmpty())
		w.Calls()
		w.Succeeds(a.As("DEL"))
		w.Succeeds(Call{Command: "DEL", ID: "never", IfName: "net1", Conf: conf()})
		Expect(w.Calls()).To(Equal([]string{"DEL one net1", "DEL never net1"}))
	})

	It("brings the device home under another name where its own is taken", Label("device-home"), func() {
		w := newWorld()
		index := Show(w.Host, "d0").Index
		a := attached(w, conf())
		IP(w.Host, "link add d0 type veth peer name other")
		Expect(w.Warns(a.As("DEL"))).To(ContainSubstring(`is back on the host as "dev`))
		var l Link
		for _, name := range Names(w.Host, "") {
			if strings.HasPrefix(name, "dev") {
				l = Show(w.Host, name)
			}
		}
		Expect(l.Index).To(Equal(index))
		Expect(l.Ifalias).To(Equal("d0"))
		Expect(l.Address).To(Equal(mac0))
		Expect(l.Flags).To(ContainElement("UP"))
	})

	Describe("of a device whose name was taken", Label("device-home"), func() {
		var (
			w      *World
			before string
			a      Attached
			lost   string // its name as long
		)
		BeforeEach(func() {
			w = newWorld()
			before = links(w)
			lost = fmt.Sprintf("dev%d", Show(w.Host, "d0").Index)
			a = attached(w, conf())
			IP(w.Host, "link add d0 type veth peer name other")
			w.Succeeds(a.As("DEL"))
			Expect(Names(w.Host, "")).To(ConsistOf("d0", "other", "d0p", lost))
		})
		collect := Call{Command: "GC", Conf: conf(Object{"cni.dev/valid-attachments": []Object{}})}

		heals := func(by func() Call) {
			IP(w.Host, "link del d0")
			w.Succeeds(by())
			Expect(links(w)).To(Equal(before))
			Expect(w.Files("/run/hawser")).NotTo(ContainSubstring(".json"))
		}
		It("gives it back when it is repeated", func() { heals(func() Call { return a.As("DEL") }) })
		It("is made up for by GC", func() { heals(func() Call { return collect }) })
		DescribeTable("is made up for by the next ADD that asks for it", func(keys Object) {
			heals(func() Call {
				w.LendAddrs("two", Addrs(2)...)
				b := w.AttachIn(nstest.NewNetns(), Call{ID: "two", IfName: "net1", Conf: conf(keys)})
				Expect(Show(b.Host, "net1").Ifalias).To(Equal("d0"))
				return b.As("DEL")
			})
		},
			Entry("by its name", nil),
			Entry("by its MAC address, for another network", Object{"device": nil, "hwaddr": mac0, "name": "other"}),
		)

		It("lets it have what an administrator gives it meanwhile", func() {
			w.Host.IP("link set "+lost+" mtu 1300", "addr add 192.0.2.1/24 dev "+lost)
			for _, c := range []Call{a.As("DEL"), collect} {
				Expect(w.Call(c).Stderr).To(ContainSubstring(`is back on the host as "` + lost))
				Expect(Show(w.Host, lost).MTU).To(Equal(1300))
				Expect(Show(w.Host, lost).Addrs()).To(ContainElement("192.0.2.1/24"))
			}
		})

		It("keeps its routes where the kernel renames what is up", func() {
			w.Run(nstest.Program{Path: "ip", Args: []string{"link", "set", "other", "up"}})
			renamed := []string{"link", "set", "other", "name", "o"}
			if out := w.Run(nstest.Program{Path: "ip", Args: renamed}); out.Exit != 0 {
				nstest.NeedOK("a kernel that renames a link that is up (6.2)", errors.New(out.Stderr))
			}
			w.Host.IP("link set "+lost+" up", "addr add 198.51.100.1/24 dev "+lost,
				"route add 203.0.113.0/24 via 198.51.100.2", "link del d0")
			w.Succeeds(collect)
			Expect(IP(w.Host, "route show 203.0.113.0/24")).To(ContainSubstring("via 198.51.100.2 dev d0"))
		})

		It("is known to who takes it under that name, who brings it home under its own", func() {
			w.LendAddrs("two", Addrs(2)...)
			b := w.AttachIn(nstest.NewNetns(), Call{ID: "two", IfName: "net1", Conf: conf(Object{"device": lost})})
			Expect(Show(b.Host, "net1").Ifalias).To(Equal("d0"))
			w.Succeeds(a.As("DEL"))
			w.Succeeds(b.As("CHECK"))
			heals(func() Call { return b.As("DEL") })
		})
	})

	It("does not take what is not the device", func() {
		w := newWorld()
		cont := nstest.NewNetns()
		cont.IP("link add net1 type veth peer name z", "link set net1 alias web")
		before := links(w)
		for _, keys := range []Object{nil, {"device": nil}, {"device": ""}} {
			w.Succeeds(Call{Command: "DEL", IfName: "net1", Netns: cont.Path, Conf: conf(keys)})
			Expect(Names(cont, "")).To(ConsistOf("net1", "z"))
			Expect(links(w)).To(Equal(before))
		}
	})

	It("does not take the device from the next container, whose namespace has the path", func() {
		w := newWorld()
		a := attached(w, conf())
		w.Succeeds(a.As("DEL"))
		w.LendAddrs("two", Addrs(2)...)
		b := Attached{Host: a.Host, Call: Call{ID: "two", Netns: a.Path, IfName: "net1", Conf: conf()}}
		b.Result = w.Add(b.Call)
		w.Succeeds(a.As("DEL"))
		w.Succeeds(b.As("CHECK"))
	})

	It("brings the device home with a damaged record, and removes that", func() {
		for _, told := range []bool{true, false} {
			w := newWorld()
			a := attached(w, conf())
			w.Cmd("sh", "-c", "for f in /run/hawser/host-device/*.json; do echo broken >$f; done")
			c := a.As("DEL")
			if !told { // nothing says where the device is
				c.Netns = ""
			}
			w.Succeeds(c)
			Expect(slices.Contains(Names(w.Host, ""), "d0")).To(Equal(told))
			Expect(w.Files("/run/hawser")).NotTo(ContainSubstring(".json"))
		}
	})

	It("brings home two devices with one MAC address, each as it was", func() {
		w := newWorld()
		addDevice(w, "d1", mac0)
		before := links(w)
		alone := conf(Object{"ipam": nil})
		a := attached(w, alone)
		b := w.AttachIn(a.Host, Call{ID: "two", IfName: "net2", Conf: conf(Object{"ipam": nil, "device": "d1"})})
		for _, each := range []Attached{a, b} {
			c := each.As("DEL")
			c.Netns = ""
			w.Succeeds(c)
		}
		Expect(links(w)).To(Equal(before))
	})

	It("takes the right one of several devices of a container, whatever their indexes", func() {
		w := newWorld()
		before := links(w)
		cont := nstest.NewNetns()
		IP(cont, "link add eth0 index %d type veth peer name x", Show(w.Host, "d0").Index)
		a := w.AttachIn(cont, Call{IfName: "net1", Conf: conf()})
		cont.IP("link set net1 down", "link set net1 name eth9 address 02:00:00:00:00:77 alias x",
			"link set eth0 address "+mac0+" alias d0")
		w.Succeeds(a.As("DEL"))
		Expect(Names(cont, "")).To(ConsistOf("eth0", "x"))
		Expect(links(w)).To(Equal(before))
	})

	DescribeTable("brings home a device whose MAC address the container changed",
		func(former, device string, needs ...string) {
			nstest.Need(needs...)
			w := newWorld()
			IP(w.Host, "link del d0")
			w.Host.IP("link add d0 type "+device, "link set d0 up")
			before := links(w)
			a := attached(w, conf(Object{"ipam": nil}))
			w.Cmd("sh", "-c", "sed -i '"+former+"' /run/hawser/host-device/*.json")
			a.Host.IP("link set net1 address 02:00:00:00:00:77 alias x")
			w.Succeeds(a.As("DEL"))
			Expect(links(w)).To(Equal(before))
		},
		Entry("with a record of a former version", `s/"inside":[0-9]*/"keepsIndex":true/`, "veth peer d0p"),
		Entry("a vxlan, whose peer the kernel reports differently", Label("kernel"), "", "vxlan id 7 dstport 4789",
			"vxlan"),
	)

	It("brings home a device whose MAC address the container changed, and whose master is in the container", func() {
		nstest.Need("macvlan")
		w := newWorld()
		w.Host.IP("link add m0 link d0 type macvlan", "link set m0 up")
		before, cont := Show(w.Host, "m0").Address, nstest.NewNetns()
		master := w.AttachIn(cont, Call{IfName: "net1", Conf: conf(Object{"ipam": nil})})
		a := w.AttachIn(cont, Call{IfName: "net2", Conf: conf(Object{"device": "m0", "name": "other", "ipam": nil})})
		cont.IP("link set net2 address 02:00:00:00:00:77 alias x")
		w.Succeeds(a.As("DEL"))
		Expect(Show(w.Host, "m0").Address).To(Equal(before))
		w.Succeeds(master.As("DEL"))
	})

	It("takes no device that the container made with the alias of the host's", func() {
		w := newWorld()
		a := attached(w, conf())
		a.Host.IP("link del net1", "link add net1 type veth peer name z", "link set net1 alias d0")
		w.Succeeds(a.As("DEL"))
		Expect(Names(w.Host, "")).To(BeEmpty())
		Expect(Names(a.Host, "")).To(ConsistOf("net1", "z"))
		Expect(w.Files("/run/hawser")).NotTo(ContainSubstring(".json"))
	})

	It("brings home a device without a MAC address, and takes no other one", Label("device-home"), func() {
		for _, told := range []bool{true, false} {
			w := newWorld()
			IP(w.Host, "tuntap add mode tun name t0")
			IP(w.Host, "link set t0 mtu 1400 up")
			before := links(w)
			a := attached(w, conf(Object{"device": "t0", "ipam": nil}))
			Expect(a.Result.Interfaces[0].MAC).To(BeEmpty())
			w.Succeeds(a.As("CHECK"))
			IP(a.Host, "link set net1 down mtu 1300")
			IP(a.Host, "tuntap add mode tun name net0")
			w.Cmd("ip", "netns", "exec", a.Name, "ip", "link", "set", "net0", "alias", "t9")
			c := a.As("DEL")
			if !told {
				c.Netns = ""
			}
			w.Succeeds(c)
			Expect(links(w)).To(Equal(before))
			c.Netns, c.IfName = a.Path, "net0" // of which nothing is known, not even a MAC address
			w.Succeeds(c)
			Expect(Names(a.Host, "")).To(Equal([]string{"net0"}))
		}
	})

	DescribeTable("keeps no other call waiting while the IPAM plugin works", func(ipam string) {
		nstest.NeedProgram("flock")
		w := newWorld()
		a := attached(w, conf(Object{"ipam": Object{"type": ipam}}))
		w.On("DEL", `cat >/dev/null; flock --nonblock /run/hawser/host-device/lock touch "$d/free"`)
		w.Succeeds(a.As("DEL"))
		Expect(Names(w.Host, "")).To(ConsistOf("d0", "d0p"))
		Expect(w.Dir + "/free").To(BeAnExistingFile())
	}, Entry("before the device goes home", "fake"), Entry("when the device is home", "whereabouts"))

	It("changes no device that another call brought home while the IPAM plugin worked", func() {
		w := newWorld()
		a := attached(w, conf())
		w.On("DEL", `cat >/dev/null; rm /run/hawser/host-device/*.json
			ip -n $(basename $CNI_NETNS) link set net1 down
			ip -n $(basename $CNI_NETNS) link set net1 netns $$ name d0 && ip link set d0 mtu 1300`)
		w.Succeeds(a.As("DEL"))
		Expect(Show(w.Host, "d0").MTU).To(Equal(1300))
		Expect(w.Files("/run/hawser")).NotTo(ContainSubstring(".json"))
	})

	It("asks an IPAM plugin that needs the interface before the device goes home", func() {
		w := newWorld()
		w.LendAddrs("one", "10.1.0.2/24", "169.254.7.2/16")
		a := w.AttachIn(nstest.NewNetns(), Call{ID: "one", IfName: "net1", Conf: conf()})
		w.On("DEL", "ip netns exec $(basename $CNI_NETNS) ip -br addr show dev net1 >\"$d/seen\"; cat >/dev/null")
		w.Succeeds(a.As("DEL"))
		Expect(os.ReadFile(w.Dir + "/seen")).To(And(ContainSubstring("net1"), Not(MatchRegexp(`10.1.0.2|169.254`))))
	})
})

var _ = Describe("a failing ADD", func() {
	DescribeTable("brings the device home as it was", Label("device-home"), func(
		code uint, prepare func(w *World, cont *nstest.Host),
	) {
		w := newWorld()
		before := links(w)
		cont := nstest.NewNetns()
		prepare(w, cont)
		inside := cont.Snapshot("links")
		w.Fails(Call{Command: "ADD", IfName: "net1", Netns: cont.Path, Conf: conf()}, code)
		Expect(links(w)).To(Equal(before))
		Expect(cont.Snapshot("links")).To(Equal(inside))
		Expect(w.Files("/run/hawser")).NotTo(ContainSubstring(".json"))
	},
		Entry("the name is taken", cni.CodeExists, func(_ *World, cont *nstest.Host) {
			IP(cont, "link add net1 type veth peer name x")
		}),
		Entry("IPAM refuses", uint(11), func(w *World, _ *nstest.Host) { w.On("ADD", Refusal, "one") }),
		Entry("IPAM gives no addresses", cni.CodeIPAM, func(w *World, _ *nstest.Host) {
			w.Lend(`{"cniVersion":"1.0.0"}`, "one")
		}),
		Entry("a route cannot be made", cni.CodeConfig, func(w *World, _ *nstest.Host) {
			w.Lend(`{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.2/24"}],
				"routes":[{"dst":"10.9.0.0/16","gw":"192.0.2.1"}]}`, "one")
		}),
	)
})

var _ = Describe("a device in a bond or a team", Label("kernel", "bond"), func() {
	var (
		w             *World
		outside, port string // the links, before it was a port and when it is one
	)
	enslave := func(kind string) {
		nstest.Need(kind)
		w = newWorld()
		addDevice(w, "d1", "02:00:00:00:00:d1")
		IP(w.Host, "link add up0 mtu 1450 type %s", kind)
		for _, name := range []string{"d1", "d0"} {
			IP(w.Host, "link set %s down", name)
			outside = links(w)
			IP(w.Host, "link set %s master up0", name)
		}
		port = links(w)
	}

	for _, kind := range []string{"bond", "team"} {
		It("of kind "+kind+" comes home as it is outside of it", func() {
			enslave(kind)
			a := attached(w, conf())
			Expect([]any{a.Result.Interfaces[0].MAC, a.Result.Interfaces[0].MTU}).To(Equal([]any{mac0, 1400}))
			IP(a.Host, "link set net1 mtu 1300 address 02:00:00:00:00:77")
			w.Succeeds(a.As("DEL"))
			Expect(links(w)).To(Equal(outside))
		})

		It("of kind "+kind+" is its port again after an ADD that fails", func() {
			enslave(kind)
			w.On("ADD", Refusal, "one")
			add := Call{Command: "ADD", IfName: "net1", Netns: nstest.NewNetns().Path, Conf: conf()}
			w.Fails(add, 11)
			Expect(links(w)).To(Equal(port))
			w.Host.IP("link add br0 type bridge", "link set br0 master up0")
			before := links(w)
			add.Conf = conf(Object{"device": "br0"}) // which the kernel does not move
			w.Fails(add, cni.CodeConfig)
			Expect(links(w)).To(Equal(before))
		})
	}
})

var _ = Describe("CHECK", func() {
	DescribeTable("finds", func(says string, keys Object, commands ...string) {
		w := newWorld()
		a := attached(w, conf())
		for _, words := range commands {
			IP(a.Host, "%s", words)
		}
		c := a.As("CHECK")
		WithKeys(keys)(&c)
		Expect(w.Fails(c, cni.CodeDrift)).To(ContainSubstring(says))
	},
		Entry("another device's name", "d9", Object{"device": "d9"}),
		Entry("a missing alias", "alias", nil, "link set net1 alias x"),
		Entry("another interface", "is not the device", nil, "link set net1 down", "link set net1 name old",
			"link add net1 type veth peer name x", "link set net1 up"),
		Entry("a missing interface", "net1", nil, "link set net1 down", "link set net1 name old"),
		Entry("a missing address", "10.1.0.2/24", nil, "addr del 10.1.0.2/24 dev net1"),
		Entry("a link that is down", "is down", nil, "link set net1 down"),
	)
})

var _ = Describe("GC", func() {
	It("brings home the devices of its network that are not valid, and no others", Label("device-gc"), func() {
		w := newWorld()
		addDevice(w, "d1", "02:00:00:00:00:d1")
		addDevice(w, "d2", "02:00:00:00:00:d2")
		home := []string{"d0p", "d1p", "d2p"}
		a := attached(w, conf())
		for id, more := range map[string]Object{"keep": {"device": "d1"}, "other": {"device": "d2", "name": "other"}} {
			w.AttachIn(nstest.NewNetns(), Call{ID: id, IfName: "net1", Conf: conf(more, Object{"ipam": nil})})
		}
		valid := func(list any) Call {
			return Call{Command: "GC", Conf: conf(Object{"device": nil, "cni.dev/valid-attachments": list})}
		}
		w.Calls()
		w.Succeeds(valid([]Object{{"containerID": "keep", "ifname": "net1"}}))
		Expect(Names(w.Host, "")).To(ConsistOf(append(home, "d0")))
		Expect(Names(a.Host, "")).To(BeEmpty())
		Expect(w.Calls()).To(Equal([]string{"GC one eth0"}))
		w.Succeeds(valid(json.RawMessage("null")))
		Expect(Names(w.Host, "")).To(ConsistOf(append(home, "d0", "d1")))
	})

	It("keeps no other call waiting while the IPAM plugin works", func() {
		nstest.NeedProgram("flock")
		w := newWorld()
		attached(w, conf())
		w.On("GC", `cat >/dev/null; flock --nonblock /run/hawser/host-device/lock touch "$d/free"`)
		w.Succeeds(Call{Command: "GC", Conf: conf(Object{"cni.dev/valid-attachments": []Object{}})})
		Expect(Names(w.Host, "")).To(ConsistOf("d0", "d0p"))
		Expect(w.Dir + "/free").To(BeAnExistingFile())
	})
})

var _ = Describe("STATUS", func() {
	It("is code 50 without the device, fine with it, and warns where a container has it", func() {
		w := newWorld()
		status := Call{Command: "STATUS", Conf: conf()}
		w.Succeeds(status)
		attached(w, conf())
		w.Succeeds(status)
		Expect(w.Call(status).Stderr).To(ContainSubstring(`is held by network "net", container "one"`))
		Expect(w.Fails(Call{Command: "STATUS", Conf: conf(Object{"device": "d9"})}, cni.CodeUnavailable)).To(
			ContainSubstring("d9"))
		w.Succeeds(Call{Command: "STATUS", Conf: conf(Object{"device": nil, "capabilities": Object{"deviceID": true}})})
	})
})

var _ = Describe("what a reference plugin made", func() {
	for _, ref := range nstest.QuickReferences() {
		describeMade(ref)
	}
})

// describeMade has the specs of what one release made.
func describeMade(ref nstest.Reference) {
	Describe(ref.Name, func() {
		made := func(w *World) Attached {
			GinkgoHelper()
			w.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
			IP(w.Host, "link set d0 nomaster")
			cont := nstest.NewNetns()
			cont.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
			call := Call{Command: "ADD", Netns: cont.Path, IfName: "net1", Conf: conf(Object{"cniVersion": "1.0.0"})}
			return Attached{Host: cont, Call: call, Result: w.Reference(ref, call).Added()}
		}

		It("is left to DEL by GC, because it has no record", func() {
			w := newWorld()
			a := made(w)
			w.Succeeds(Call{Command: "GC", Conf: conf(Object{"cni.dev/valid-attachments": []Object{}})})
			Expect(Names(a.Host, "")).To(ConsistOf("net1"))
			w.Succeeds(a.As("DEL"))
			Expect(Names(w.Host, "")).To(ConsistOf("d0", "d0p"))
		})

		It("can be the end of what ours made", Label("device-reference"), func() {
			w := newWorld()
			a := attached(w, conf(Object{"cniVersion": "1.0.0"}))
			Expect(w.Reference(ref, a.As("DEL")).Code).To(BeZero())
			Expect(Names(w.Host, "")).To(ConsistOf("d0", "d0p"))
			By("and then ours takes it again, and brings it home as it was before")
			a = attached(w, conf(Object{"cniVersion": "1.0.0"}))
			w.Succeeds(a.As("DEL"))
			Expect(Show(w.Host, "d0").Flags).To(ContainElement("UP"))
		})
	})
}

// withSys puts a /sys of the spec's own before the host's: directories and, with ->, links.
func withSys(w *World, entries ...string) {
	GinkgoHelper()
	w.Cmd("mount", "-t", "tmpfs", "tmpfs", "/sys")
	for _, entry := range append(entries, "class/net/d0p") {
		path, target, isLink := strings.Cut("/sys/"+entry, " -> ")
		if !isLink {
			w.Cmd("mkdir", "-p", path)
			continue
		}
		w.Cmd("mkdir", "-p", path[:strings.LastIndex(path, "/")])
		w.Cmd("ln", "-s", target, path)
	}
}

const (
	vf  = "0000:3b:00.1"
	pci = "bus/pci/devices/" + vf + "/"
	aux = "mlx5_core.sf.4"
	far = "10000:00:02.0" // behind a VMD controller, whose domains come after the 16 bits of the firmware's
)

// id is what a runtime sends of a device plugin.
func id(deviceID string) Object {
	return Object{"device": nil, "capabilities": Object{"deviceID": true},
		"runtimeConfig": Object{"deviceID": deviceID}}
}

// both are the keys of both; nil stays.
func both(one, other Object) Object {
	all := maps.Clone(one)
	maps.Copy(all, other)
	return all
}

var _ = Describe("a device that is meant by its place in /sys", Label("device-meant"), func() {
	It("is found", func() {
		w := newWorld()
		sys := []string{pci + "net/d0", pci + "driver -> ../drivers/ixgbevf",
			"bus/pci/devices/0000:00:01.0/virtio9/net/d0", "bus/pci/devices/0000:00:01.0/driver -> virtio-pci",
			"bus/pci/devices/" + far + "/net/d0", "bus/pci/devices/" + far + "/driver -> ../drivers/ixgbevf",
			"bus/auxiliary/devices/" + aux + "/net/d0", "devices/x/y/net/d0",
			"devices/pci10000:00/" + far + "/net/d0"}
		before := links(w)
		for _, c := range []struct {
			keys Object
			says string
		}{
			{Object{"device": nil, "pciBusID": vf}, `"pciID": "` + vf},
			{Object{"device": nil, "pciBusID": "0000:00:01.0"}, `"pciID": "0000:00:01.0`},
			{Object{"device": nil, "kernelpath": "/sys/devices/x/./y/"}, ""},
			{Object{"device": nil, "hwaddr": strings.ToUpper(mac0)}, ""},
			{id(vf), `"pciID": "` + vf}, {id(aux), ""},
			{Object{"device": nil, "pciBusID": far}, `"pciID": "` + far}, {id(far), `"pciID": "` + far},
			{Object{"device": nil, "kernelpath": "/sys/devices/pci10000:00/" + far}, ""},
			{both(id(vf), Object{"pciBusID": "0000:ff:00.0"}), `"pciID": "` + vf},
			{both(id(vf), Object{"device": "d0"}), ""},
		} {
			withSys(w, sys...)
			a := attached(w, conf(c.keys))
			Expect(a.Result.Text).To(ContainSubstring(c.says))
			Expect(Show(a.Host, "net1").Address).To(Equal(mac0))
			w.Succeeds(a.As("CHECK"))
			w.Cmd("umount", "/sys")
			w.Succeeds(a.As("DEL")) // whatever became of it
			Expect(links(w)).To(Equal(before))
		}
	})

	It("is another one than the device ID of the runtime, which ADD says", func() {
		w := newWorld()
		addDevice(w, "d1", "02:00:00:00:00:d1")
		withSys(w, pci+"net/d1", pci+"driver -> ../drivers/ixgbevf")
		for _, unused := range []string{vf, "0000:ff:00.0"} {
			a := Call{Command: "ADD", IfName: "net1", Netns: nstest.NewNetns().Path,
				Conf: conf(both(id(unused), Object{"device": "d0"}))}
			answer := w.Call(a)
			Expect(answer.Stderr).To(ContainSubstring(
				`runtimeConfig.deviceID: %q is ignored, because "device" names the device`, unused))
			Expect(answer.Added().Interfaces[0].MAC).To(Equal(mac0))
			a.Command = "DEL"
			w.Succeeds(a)
		}
	})

	DescribeTable("is refused", func(says string, keys Object) {
		w := newWorld()
		addDevice(w, "d1", mac0)
		withSys(w, "bus/pci/devices/0000:00:02.0/net/d0", pci+"driver -> ../ixgbe", "devices/out -> ../class",
			"class/net/net/d0", "devices/empty")
		before := links(w)
		cont := nstest.NewNetns()
		refused := Call{Command: "ADD", IfName: "net1", Netns: cont.Path, Conf: conf(Object{"device": nil}, keys)}
		Expect(w.Fails(refused, cni.CodeConfig)).To(ContainSubstring(says))
		Expect(links(w)).To(Equal(before))
	},
		Entry("an unknown name", `device: "d9"`, Object{"device": "d9"}),
		Entry("a MAC address of two", "d0, d1", Object{"hwaddr": mac0}),
		Entry("an unknown MAC address", "02:00:00:00:00:99", Object{"hwaddr": "02:00:00:00:00:99"}),
		Entry("a path that leads out of it", "/sys/class/net", Object{"kernelpath": "/sys/devices/out/net"}),
		Entry("a path to nothing", "/sys/devices/none", Object{"kernelpath": "/sys/devices/none"}),
		Entry("a path without interface", "/sys/devices/empty", Object{"kernelpath": "/sys/devices/empty"}),
		Entry("an unknown PCI device", "0000:ff:00.0", Object{"pciBusID": "0000:ff:00.0"}),
		Entry("a PCI device without driver", `"0000:00:02.0" this device has no driver`,
			Object{"pciBusID": "0000:00:02.0"}),
		Entry("a PCI device without interface", vf, id(vf)),
		Entry("an unknown auxiliary device", aux, id(aux)),
		Entry("a device ID that leads elsewhere", "a/../b", id("a/../b")),
	)

	DescribeTable("that a userspace driver has stays where it is, and gets its addresses from IPAM", func(vf string) {
		w := newWorld()
		withSys(w, "bus/pci/devices/"+vf+"/driver -> ../drivers/vfio-pci")
		before := links(w)
		a := attached(w, conf(id(vf)))
		Expect(Names(a.Host, "")).To(BeEmpty())
		Expect(links(w)).To(Equal(before))
		Expect(a.Result.Text).To(And(ContainSubstring(`"pciID": "`+vf), ContainSubstring("10.1.0.2/24"),
			Not(ContainSubstring(`"mac"`))))
		Expect(a.Result.Interfaces[0].Name).To(Equal("net1"))
		w.Succeeds(a.As("CHECK"))
		other := nstest.NewNetns()
		taken := Call{Command: "ADD", ID: "two", IfName: "net1", Netns: other.Path, Conf: conf(id(vf))}
		Expect(w.Fails(taken, cni.CodeConflict)).To(ContainSubstring(`container "one"`))
		w.Calls()
		w.Cmd("umount", "/sys")
		w.Succeeds(a.As("DEL"))
		Expect(w.Calls()).To(Equal([]string{"DEL one net1"}))
		Expect(w.Files("/run/hawser")).NotTo(ContainSubstring(".json"))
	},
		Entry(nil, vf),
		Entry(nil, far),
	)

	It("is not taken for one with a userspace driver because the configuration says so", func() {
		w := newWorld()
		a := attached(w, conf(Object{"DPDKMode": true}))
		Expect(Names(a.Host, "")).To(Equal([]string{"net1"}))
	})
})

// FuzzRecord makes up the record of a container's device, here its eth0.
func FuzzRecord(f *testing.F) {
	const record = `{"network":"net","containerID":"one","ifname":"eth0","netns":"` + FuzzNetns +
		`","identity":IDENTITY,`
	Fuzz{
		Plugin: Plugin().Untyped(), Chained: true,
		Confs: []string{`{"cniVersion":"1.1.0","name":"net","type":"host-device","device":"d0",` +
			`"cni.dev/valid-attachments":[],"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0",` +
			`"sandbox":"` + FuzzNetns + `"}]}}`},
	}.RunRecord(f, recordDir,
		record+`"device":{"key":"device","value":"d0"},"keepsIndex":true,"link":{"Index":LINK,"Name":"d0",`+
			`"Kind":"veth","MAC":"AgAAAAAB","MTU":1500,"TxQLen":1000,"Up":true},`+
			`"settings":{"read":1,"addrs":[{"header":{"Family":2,"Prefixlen":24},"attrs":[{"kind":2,`+
			`"value":"CgAABQ=="},{"kind":6,"value":"//////////8AAAAA"}]}],`+
			`"routes":[{"header":{"Family":2,"Type":1,"Table":254},`+
			`"attrs":[{"kind":9,"value":"CAACAAIAAAAIAAMAAgAAAA=="}]}],`+
			`"rules":[{"header":{"Family":2,"Src_len":32,"Type":1},"attrs":[{"kind":2,"value":"CgAABQ=="}]}]}}`,
		record+`"device":{"key":"pciBusID","value":"0000:00:01.0"},"pci":"0000:00:01.0","failed":true,`+
			`"link":{"Index":LINK,"Name":"lo","PermMAC":"AgAAAAAB","Parent":"../x","MTU":-1}}`)
}

var _ = It("is listed until DEL, and the list changes nothing", func() {
	w := newWorld()
	addDevice(w, "d1", "02:00:00:00:00:d1")
	devices := map[string]string{"net": "d0", "other": "d1"}
	w.ExpectHeld(func(id, network string) (Call, []string) {
		a := w.Attach(id, conf(Object{"name": network, "device": devices[network]}), Addrs(2)...)
		return a.As("DEL"), []string{"device: " + devices[network]}
	})
})

var _ = DescribeTable("reads records of earlier versions, and writes current ones",
	ExpectFormerRecord[record],
	Entry("before 0.2.0",
		`"netns": "/run/netns/c1", "identity": ID, "device": {"key": "device", "value": "d0"}, "link": {"Index": 2}`,
		`"netnsPath": "/run/netns/c1", "netns": ID, "device": {"key": "device", "value": "d0"}, "link": {"Index": 2}`))
