package ipvlan

import (
	"fmt"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestIpvlan(t *testing.T) { nstest.RunSpecs(t, "plugins/main/ipvlan/ipvlan") }

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(Plugin()) })

// conf is a configuration of network "net" on "up0": keys are added, or taken away by nil.
func conf(more ...Object) Object {
	return Merge(append([]Object{{"cniVersion": "1.1.0", "name": "net", "type": "ipvlan", "master": "up0",
		"enabledad": false, "ipam": Object{"type": "fake"}}}, more...)...)
}

// before is the result of a plugin before.
func before(interfaces ...Object) Object {
	return Object{"prevResult": Object{"cniVersion": "1.1.0", "interfaces": interfaces,
		"ips": []Object{{"address": "10.1.0.7/24", "gateway": "10.1.0.1"}}, "routes": []Object{{"dst": "10.9.0.0/16"}}}}
}

var _ = Describe("configuration", func() {
	It("detects duplicates only in mode l2, unless that is turned off", func() {
		for keys, want := range map[string]bool{``: true, `"mode":"l2"`: true, `"mode":"l3"`: false,
			`"mode":"l3s"`: false, `"enabledad":false`: false} {
			c := nstest.Must(Plugin().Parse(&skel.Request{Conf: []byte("{" + keys + "}")}))
			Expect(c.DAD).To(Equal(want), keys)
		}
	})

	It("is refused without ipam and without addresses of a result before", func() {
		w := NewWorld(Plugin())
		Uplink(w.Host)
		c := Call{Command: "ADD", Netns: nstest.NewNetns().Path, Conf: conf(Object{"ipam": nil})}
		Expect(w.Fails(c, cni.CodeConfig)).To(HavePrefix("ipam.type: missing"))
	})
})

var _ = LackOfKind(Plugin().Untyped(), "ipvlan", "ipvlan", conf())

var _ = Describe("an ipvlan", Label("kernel"), func() {
	var w *World
	BeforeEach(func() {
		nstest.Need("ipvlan")
		w = NewWorld(Plugin())
		Uplink(w.Host)
	})
	details := func(a Attached) string { GinkgoHelper(); return IP(a.Host, "-d link show eth0") }

	It("makes a neighbour of those on the master's network", func() {
		a, b := w.Attach("one", conf(), Addrs(2)...), w.Attach("two", conf(Object{"mtu": 1400}), Addrs(3)...)
		Expect(Ping(a.Host, "10.1.0.1") && Ping(a.Host, "2001:db8:1::1") && Ping(b.Host, "10.1.0.2")).To(BeTrue())
		Expect(details(a)).To(And(ContainSubstring("mode l2"), ContainSubstring("group default")))
		Expect(b.Result.Interfaces[0].MTU).To(Equal(1400))
		Expect(b.Result.Interfaces[0].MAC).To(Equal(Show(w.Host, "up0").Address))
		for _, c := range []Attached{a, b} {
			w.Ends(c)
		}
	})

	It("is listed until DEL, and the list changes nothing", func() {
		n := 2
		w.ExpectHeld(func(id, network string) (Call, []string) {
			n++
			a := w.Attach(id, conf(Object{"name": network}), Addrs(n)...)
			return a.As("DEL"), []string{"interface: eth0@up0 type ipvlan"}
		})
	})

	It("stays when a second ADD is refused, before IPAM is asked", func() {
		a := w.Attach("one", conf(), Addrs(2)...)
		w.Calls()
		w.Fails(Call{Command: "ADD", Netns: a.Path, Conf: conf()}, cni.CodeExists)
		w.Fails(Call{Command: "ADD", ID: "two", Netns: a.Path, Conf: conf()}, cni.CodeExists)
		Expect(w.Calls()).To(BeEmpty())
		Expect(Names(a.Host, "")).To(Equal([]string{"eth0"}))
		w.Succeeds(a.As("CHECK"))
	})

	It("is not there, and has no address, after an ADD that fails", func() { w.ExpectNothingLeft(conf()) })

	It("is on a link of the container with linkInContainer, or says what holds that", func() {
		cont := nstest.NewNetns()
		IP(cont, "link add in0 up type veth peer name in1")
		IP(cont, "link add mv0 link in0 type macvlan")
		w.LendAddrs("one", Addrs(2)...)
		a := Attached{Host: cont, Call: Call{Command: "ADD", Netns: cont.Path,
			Conf: conf(Object{"master": "in0", "linkInContainer": true})}}
		Expect(w.Fails(a.Call, cni.CodeConflict)).To(ContainSubstring(`master: "in0": is held by`))
		IP(cont, "link del mv0")
		a.Result = w.Add(a.Call)
		Expect(IP(cont, "-o link show eth0")).To(ContainSubstring("eth0@in0:"))
		w.Ends(a, "in0", "in1")
	})

	It("refuses another mode than that of all ipvlans on the master", Label("ipvlan-mode"), func() {
		a := w.Attach("one", conf(Object{"mode": "l3s"}), "10.1.0.2/24")
		Expect(w.Refused(conf(), cni.CodeConflict)).To(And(
			HavePrefix(`mode: "l2": all interfaces on master "up0" must have the same mode, which is "l3s"`),
			ContainSubstring(`container "one"`)))
		Expect(details(a)).To(ContainSubstring("mode l3s"))
		w.Succeeds(a.As("CHECK"))
		w.Succeeds(w.Attach("same", conf(Object{"mode": "l3s"}), "10.1.0.3/24").As("DEL"))
		w.Succeeds(a.As("DEL"))
		w.Succeeds(w.Attach("two", conf(), "10.1.0.2/24").As("CHECK"))
	})

	It("has no other's address", func() {
		w.Attach("one", conf(), "10.1.0.2/24")
		w.Calls()
		w.LendAddrs("two", "10.1.0.2/24")
		cont := nstest.NewNetns()
		says := w.Fails(Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: conf()}, cni.CodeConflict)
		Expect(says).To(And(ContainSubstring("10.1.0.2/24"), ContainSubstring(`"up0"`)))
		Expect(w.Calls()).To(Equal([]string{"ADD two eth0", "DEL two eth0"}))
		Expect(Names(cont, "")).To(BeEmpty())
	})

	It("is on the one interface of the result before, and has its addresses", func() {
		for _, chained := range []Object{before(Object{"name": "up0"}),
			Merge(before(Object{"name": "up0"}, Object{"name": "up1"}), Object{"master": "up0"})} {
			a := w.Attach("one", Merge(conf(Object{"master": nil, "ipam": nil}), chained))
			Expect(Show(a.Host, "eth0").Addrs()).To(Equal([]string{"10.1.0.7/24"}))
			Expect(IP(a.Host, "route show 10.9.0.0/16")).To(ContainSubstring("via 10.1.0.1"))
			Expect(a.Result.Interfaces).To(HaveLen(1))
			w.Ends(a)
		}
	})

	It("has IPAM's addresses on the one interface of the result before; of two or none it takes no name", func() {
		chained := func(interfaces ...Object) Object {
			return Merge(conf(Object{"master": nil}), before(interfaces...))
		}
		a := w.Attach("one", chained(Object{"name": "up0"}), "10.1.0.2/24")
		Expect(Show(a.Host, "eth0").Addrs()).To(Equal([]string{"10.1.0.2/24"}))
		for _, interfaces := range [][]Object{{{"name": "up0"}, {"name": "up1"}}, nil} {
			Expect(w.Refused(chained(interfaces...), cni.CodeConfig)).To(HavePrefix("master: "))
		}
	})

	It("is refused on a master that macvlans have, and above the master's MTU", func() {
		Expect(w.Refused(conf(Object{"mtu": 1501}), cni.CodeConfig)).To(HavePrefix("mtu: 1501 is above"))
		IP(w.Host, "link add mv0 link up0 type macvlan mode bridge")
		Expect(w.Refused(conf(), cni.CodeConflict)).To(ContainSubstring(`master: "up0": is held by`))
	})

	It("passes CHECK and goes with DEL without a key for the master, and without a default route", func() {
		IP(w.Host, "addr add 10.1.0.200/24 dev up0")
		IP(w.Host, "route add default via 10.1.0.1")
		c := conf(Object{"master": nil})
		a := w.Attach("one", c, Addrs(2)...)
		IP(w.Host, "route del default")
		w.Ends(a)
	})

	It("drifts where it is on another master, has another mode or another MTU", func() {
		IP(w.Host, "link add other0 type veth peer name other1")
		a := w.Attach("one", conf(Object{"mtu": 1400}), Addrs(2)...)
		IP(a.Host, "link set eth0 mtu 1300")
		Expect(w.Fails(a.As("CHECK"), cni.CodeDrift)).To(And(ContainSubstring("MTU"), ContainSubstring("1300")))
		for link, says := range map[string]string{"up0 name eth0 netns %s mtu 1400 type ipvlan mode l3": "mode",
			"other0 name eth0 netns %s mtu 1400 type ipvlan mode l2": `not on master "up0"`} {
			IP(a.Host, "link del eth0")
			IP(w.Host, "link add link "+link, a.Host.Name)
			Expect(w.Fails(a.As("CHECK"), cni.CodeDrift)).To(ContainSubstring(says))
		}
	})

	It("goes with DEL and GC, whatever is known", func() {
		w.ExpectEnd(conf(), Object{"mode": 5}, Addrs(2)...)
	})

	for _, mode := range []string{"l2", "l3", "l3s"} {
		It("of mode "+mode+" has a name that the host has", func() {
			w.LendAddrs("one", Addrs(2)...)
			a := w.AttachIn(nstest.NewNetns(), Call{IfName: "up0", Conf: conf(Object{"mode": mode})})
			Expect(Names(a.Host, "")).To(Equal([]string{"up0"}))
			Expect(IP(a.Host, "-d link show up0")).To(MatchRegexp(fmt.Sprintf(`mode %s\b`, mode)))
			w.Ends(a)
		})
	}
})

var _ = AutoMTU(Plugin().Untyped(), conf(), "ipvlan", func(*World, *nstest.Host) string { return "10.1.0.1" })
