package vlan

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestVlan(t *testing.T) { nstest.RunSpecs(t, "plugins/main/vlan/vlan") }

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(Plugin()) })

// conf is a configuration of network "net" with VLAN 5 of "up0": keys are added, or taken away by nil.
func conf(more ...Object) Object {
	return Merge(append([]Object{{"cniVersion": "1.1.0", "name": "net", "type": "vlan", "master": "up0", "vlanId": 5,
		"enabledad": false, "ipam": Object{"type": "fake"}}}, more...)...)
}

var _ = Describe("configuration", func() {
	parse := func(keys string) (attach.ChildConfig, error) {
		return Plugin().Parse(&skel.Request{Conf: []byte("{" + keys + "}"), Stderr: GinkgoWriter})
	}

	It("has VLAN 0 without vlanId, with a warning", func() {
		w := NewWorld(Plugin())
		a := w.Call(Call{Command: "ADD", Netns: nstest.NewNetns().Path,
			Conf: conf(Object{"vlanId": nil, "master": "nope"})})
		Expect(a.Failed(cni.CodeConfig)).To(HavePrefix(`master: "nope": no such interface`))
		Expect(a.Stderr).To(ContainSubstring("vlanId: missing; using 0"))
		c := nstest.Must(parse(`"master":"a"`))
		Expect(c.New.VLAN).To(BeZero())
		Expect(c.DAD).To(BeTrue())
	})
})

var _ = LackOfKind(Plugin().Untyped(), "vlan", "8021q", conf())

var _ = Describe("a VLAN", Label("kernel"), func() {
	var w *World
	var far *nstest.Host
	BeforeEach(func() {
		nstest.Need("8021q")
		w = NewWorld(Plugin())
		far = Uplink(w.Host)
	})
	addrs := []string{"10.5.0.2/24 10.5.0.1", "2001:db8:5::2/64 2001:db8:5::1"}

	It("connects the container with what is in it", func() {
		IP(far, "link add link far0 name far5 type vlan id 5")
		far.IP("link set far5 up", "addr add 10.5.0.1/24 dev far5", "addr add 2001:db8:5::1/64 dev far5 nodad")
		a := w.Attach("one", conf(Object{"mtu": 1400, "dns": Object{"domain": "d"}}), addrs...)
		Expect(Ping(a.Host, "10.5.0.1") && Ping(a.Host, "2001:db8:5::1")).To(BeTrue())
		Expect(IP(a.Host, "-d link show eth0")).To(And(ContainSubstring("802.1Q id 5"),
			ContainSubstring("alias "), ContainSubstring("group default")))
		Expect(a.Result.Interfaces).To(HaveLen(1))
		Expect(a.Result.Interfaces[0].MTU).To(Equal(1400))
		Expect(a.Result.DNS).To(Equal(Object{"domain": "d"}))
		w.Ends(a)
	})

	It("is listed until DEL, and the list changes nothing", func() {
		n := 2
		w.ExpectHeld(func(id, network string) (Call, []string) {
			n++
			a := w.Attach(id, conf(Object{"name": network, "vlanId": n}), Addrs(n)...)
			return a.As("DEL"), []string{fmt.Sprintf("interface: eth0@up0 type vlan id %d", n)}
		})
	})

	It("is one container's: a second is told who has it, and gets it after DEL or GC", Label("vlan-owner"), func() {
		a := w.Attach("one", conf(), addrs...)
		Expect(w.Refused(conf(), cni.CodeConflict)).To(And(HavePrefix(`VLAN 5 of master "up0": is held by`),
			ContainSubstring(`container "one"`)))
		w.Succeeds(w.Attach("six", conf(Object{"vlanId": 6}), addrs...).As("CHECK"))
		w.Succeeds(a.As("DEL"))
		b := w.Attach("two", conf(), addrs...)
		w.Succeeds(Call{Command: "GC", Conf: conf(Object{"cni.dev/valid-attachments": []Object{}})})
		Expect(Names(b.Host, "")).To(BeEmpty())
		w.Succeeds(w.Attach("three", conf(), addrs...).As("DEL"))
	})

	It("of the host is named, too", func() {
		IP(w.Host, "link add link up0 name up0.5 type vlan id 5")
		Expect(w.Refused(conf(), cni.CodeConflict)).To(
			HavePrefix(`VLAN 5 of master "up0": is held by interface "up0.5" in its namespace`))
	})

	It("is free again after an ADD that failed", Label("vlan-owner"), func() {
		w.ExpectNothingLeft(conf())
		w.Succeeds(w.Attach("one", conf(), addrs...).As("CHECK"))
	})

	It("refuses a master that is down, and an MTU above the master's", func() {
		Expect(w.Refused(conf(Object{"mtu": 1501}), cni.CodeConfig)).To(HavePrefix("mtu: 1501 is above"))
		IP(w.Host, "link set up0 down")
		Expect(w.Refused(conf(), cni.CodeConflict)).To(HavePrefix(`master: "up0": is down`))
	})

	It("takes a name that the host has, and a VLAN of a VLAN", func() {
		w.LendAddrs("one", addrs...)
		a := w.AttachIn(nstest.NewNetns(), Call{IfName: "up0", Conf: conf()})
		Expect(Names(a.Host, "")).To(Equal([]string{"up0"}))
		w.Succeeds(a.As("CHECK"))
		w.Succeeds(a.As("DEL"))
		IP(w.Host, "link add link up0 name up0.7 type vlan id 7")
		IP(w.Host, "link set up0.7 up")
		w.Succeeds(w.Attach("two", conf(Object{"master": "up0.7"}), addrs...).As("CHECK"))
	})

	It("is on a link of the container with linkInContainer", func() {
		cont := nstest.NewNetns()
		IP(cont, "link add in0 type veth peer name in1")
		IP(cont, "link set in0 up")
		w.LendAddrs("one", addrs...)
		a := w.AttachIn(cont, Call{Conf: conf(Object{"master": "in0", "linkInContainer": true})})
		Expect(IP(cont, "-o link show eth0")).To(ContainSubstring("eth0@in0:"))
		w.Ends(a, "in0", "in1")
	})

	It("goes with DEL and GC, whatever is known and left", func() {
		w.ExpectEnd(conf(), Object{"vlanId": -1, "master": "nope"}, addrs...)
	})

	It("drifts where it is another one, or on another master", func() {
		IP(w.Host, "link add other0 type veth peer name other1")
		a := w.Attach("one", conf(), addrs...)
		IP(a.Host, "link set eth0 mtu 1400")
		w.Succeeds(a.As("CHECK"))
		for change, says := range map[string]string{"up0 id 6": "VLAN is 6 instead of 5",
			"other0 id 5": `not on master "up0"`} {
			IP(a.Host, "link del eth0")
			master, id, _ := strings.Cut(change, " ")
			IP(w.Host, "link add link %s name eth0 netns %s type vlan %s", master, a.Host.Name, id)
			Expect(w.Fails(a.As("CHECK"), cni.CodeDrift)).To(And(ContainSubstring(says),
				ContainSubstring("is not the one that ADD created"), ContainSubstring("10.5.0.2/24")))
		}
	})
})

var _ = AutoMTU(Plugin().Untyped(), conf(), "8021q", func(_ *World, far *nstest.Host) string {
	IP(far, "link add link far0 name far5 type vlan id 5")
	far.IP("link set far5 up", "addr add 10.1.0.9/24 dev far5", "route change 10.1.0.0/24 dev far5 src 10.1.0.9")
	return "10.1.0.9"
})

var _ = It("on MACsec carries less than the link, since that encrypts the tag", Label("auto-mtu", "kernel"), func() {
	nstest.Need("8021q", "macsec")
	w := NewWorld(Plugin())
	Uplink(w.Host)
	IP(w.Host, "link add link up0 name sec0 type macsec")
	IP(w.Host, "link set sec0 up")
	IP(w.Host, "route add default dev sec0")
	a := w.Attach("one", conf(Object{"master": "sec0", "mtu": "auto"}), Addrs(2)...)
	Expect(Show(a.Host, "eth0").MTU).To(Equal(Show(w.Host, "sec0").MTU - 4))
	w.Ends(a)
})
