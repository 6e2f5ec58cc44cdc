package main

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// vlans lists a port's VLANs as bridge(8) sees them: "5u" is VLAN 5, untagged and the port's own.
func (w *world) vlans(port string) string {
	GinkgoHelper()
	var ports []struct {
		Ifname string
		Vlans  []struct {
			Vlan, VlanEnd int
			Flags         []string
		}
	}
	w.JSON(&ports, "bridge", "-j", "vlan", "show", "dev", port)
	var words []string
	for _, p := range ports {
		for _, v := range p.Vlans {
			word := fmt.Sprint(v.Vlan)
			if v.VlanEnd != 0 {
				word += fmt.Sprint("-", v.VlanEnd)
			}
			switch flags := strings.Join(v.Flags, " "); flags {
			case "":
			case "PVID Egress Untagged":
				word += "u"
			default:
				word += "(" + flags + ")"
			}
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}

var _ = Describe("a kernel without VLAN filtering", func() {
	DescribeTable("is code 2 with the key and its value", func(more Object, says string) {
		w := newWorld()
		if w.Run(nstest.Program{Path: "ip",
			Args: strings.Fields("link add filtering type bridge vlan_filtering 1")}).Exit == 0 {
			Skip("this kernel has VLAN filtering")
		}
		add := Call{Command: "ADD", Netns: nstest.NewNetns().Path, Conf: conf(more)}
		Expect(w.Fails(add, cni.CodeUnsupportedField)).To(HavePrefix(says + ": not supported by this kernel"))
		IP(w.Host, "link add name br up type bridge")
		Expect(w.Fails(add, cni.CodeUnsupportedField)).To(HavePrefix(says + ": not supported by this kernel"))
	},
		Entry("vlan", Object{"vlan": 100}, "vlan: 100"),
		Entry("vlanTrunk", Object{"vlanTrunk": []Object{{"id": 7}}}, "vlanTrunk: [7]"),
	)
})

var _ = Describe("VLANs", Label("kernel"), func() {
	var w *world
	BeforeEach(func() {
		nstest.Need("vlan_filtering")
		w = newWorld()
	})

	DescribeTable("of the port are", func(more Object, want string) {
		a := w.Attach("one", conf(more))
		Expect(Show(w.Host, "br").Linkinfo.Data.Filtering).To(Equal(1))
		Expect(w.vlans(hostEnd(a.Result))).To(Equal(want))
		w.Succeeds(a.As("CHECK"))
		w.Succeeds(a.As("DEL"))
	},
		Entry("vlan", Object{"vlan": 100}, "100u"),
		Entry("vlan 1, which is the default one", Object{"vlan": 1}, "1u"),
		Entry("vlan, the default one kept", Object{"vlan": 100, "preserveDefaultVlan": true},
			"1(Egress Untagged) 100u"),
		Entry("trunk", Object{"vlanTrunk": []Object{{"id": 7}, {"minID": 10, "maxID": 12}}}, "1u 7 10 11 12"),
		Entry("trunk with a VLAN of its own", Object{"vlan": 5, "vlanTrunk": []Object{{"minID": 4, "maxID": 6}}},
			"4 5u 6"),
		Entry("all of them", Object{"vlanTrunk": []Object{{"minID": 1, "maxID": 4094}}}, "1u "+span(2, 4094)),
		Entry("an empty trunk", Object{"vlanTrunk": []Object{}}, "1u"),
	)

	It("keep containers apart", func() {
		a, b := w.Attach("one", conf(Object{"vlan": 100})), w.Attach("two", conf(Object{"vlan": 100}))
		c := w.Attach("three", conf(Object{"vlan": 200}))
		from, same, other := a.Host.Wiretap("eth0"), b.Host.Wiretap("eth0"), c.Host.Wiretap("eth0")
		from.Send(from.MAC, nstest.Broadcast, "hello")
		Expect(same.Next()).To(Equal("hello"))
		other.Nothing()
	})

	It("reach a trunk tagged, and the gateway of the VLAN", func() {
		nstest.Need("8021q")
		gateway := Object{"isGateway": true, "vlan": 100}
		a := w.Attach("one", l3(gateway), "10.1.0.2/24", "2001:db8:1::2/64")
		Expect(a.Result.Interfaces).To(HaveLen(4))
		Expect(a.Result.Interfaces[3].Name).To(Equal("br.100"))
		Expect(Show(w.Host, "br.100").Addrs()).To(ConsistOf("10.1.0.1/24", "2001:db8:1::1/64"))
		Expect(Show(w.Host, "br").Addrs()).To(BeEmpty())
		Expect(Ping(a.Host, "10.1.0.1") && Ping(a.Host, "2001:db8:1::1")).To(BeTrue())
		w.Succeeds(a.As("CHECK"))

		trunk := w.Attach("trunk", conf(Object{"vlanTrunk": []Object{{"id": 100}}}))
		trunk.Host.IP("link add link eth0 name eth0.100 type vlan id 100",
			"link add link eth0 name eth0.200 type vlan id 200", "link set eth0.200 up", "link set eth0.100 up",
			"addr add 10.1.0.9/24 dev eth0.100")
		Expect(Ping(trunk.Host, "10.1.0.2") && Ping(trunk.Host, "10.1.0.1")).To(BeTrue())
		in, wrong := a.Host.Wiretap("eth0"), trunk.Host.Wiretap("eth0.200")
		wrong.Send(wrong.MAC, nstest.Broadcast, "wrong")
		in.Nothing()

		b := w.Attach("two", l3(gateway), "10.1.0.3/24")
		Expect(Ping(b.Host, "10.1.0.1")).To(BeTrue())
		before := w.Snapshot("links")
		for _, c := range []Attached{a, b} {
			w.Succeeds(c.As("DEL"))
		}
		Expect(before).To(ContainSubstring("ifname=br.100"))
		Expect(Names(w.Host, "")).To(ContainElement("br.100"))
	})

	DescribeTable("CHECK finds", func(command, says string) {
		a := w.Attach("one", l3(Object{"isGateway": true, "vlan": 100, "vlanTrunk": []Object{{"id": 7}}}),
			"10.1.0.2/24")
		w.Succeeds(a.As("CHECK"))
		var gw []struct{ Link string }
		w.JSON(&gw, "ip", "-j", "link", "show", "dev", "br.100")
		command = strings.NewReplacer("PORT", hostEnd(a.Result), "GWPORT", gw[0].Link).Replace(command)
		args := strings.Fields(command)
		w.Cmd(args[0], args[1:]...)
		Expect(w.Fails(a.As("CHECK"), cni.CodeDrift)).To(ContainSubstring(says))
	},
		Entry("a missing VLAN", "bridge vlan del vid 7 dev PORT", "vlan 7 is missing"),
		Entry("another VLAN of the port's own", "bridge vlan add vid 100 dev PORT", "vlan 100 is missing"),
		Entry("one VLAN more", "bridge vlan add vid 8 dev PORT", "vlan 8 is there"),
		Entry("the gateway down", "ip link set br.100 down", "br.100"),
		Entry("the gateway gone", "ip link del br.100", "br.100"),
		Entry("the gateway's address gone", "ip addr del 10.1.0.1/24 dev br.100", "10.1.0.1/24"),
		Entry("the gateway's port out of the bridge", "ip link set GWPORT nomaster", "no port"),
		Entry("the gateway's port in another VLAN", "bridge vlan del vid 100 dev GWPORT", "vlan 100 is missing"),
	)

	It("need a bridge that filters: one that does not is used as found, and it is said", func() {
		IP(w.Host, "link add name br up type bridge")
		cont := nstest.NewNetns()
		a := w.Call(Call{Command: "ADD", Netns: cont.Path, Conf: conf(Object{"vlan": 100})})
		a.Added()
		Expect(a.Stderr).To(ContainSubstring("vlan_filtering"))
		Expect(Show(w.Host, "br").Linkinfo.Data.Filtering).To(BeZero())
	})

	It("finish the gateway that a killed ADD left half made", func() {
		c := l3(Object{"isGateway": true, "vlan": 100})
		w.Attach("one", c, "10.1.0.2/24")
		var gw []struct{ Link string }
		w.JSON(&gw, "ip", "-j", "link", "show", "dev", "br.100")
		w.Host.IP("link set br.100 down", "link set "+gw[0].Link+" nomaster")
		b := w.Attach("two", c, "10.1.0.3/24")
		Expect(Ping(b.Host, "10.1.0.1")).To(BeTrue())
	})

	It("use a gateway of the administrator's as it is", func() {
		nstest.Need("8021q")
		IP(w.Host, "link add name br up type bridge vlan_filtering 1")
		IP(w.Host, "link add link br name br.100 type vlan id 100")
		w.Cmd("bridge", "vlan", "add", "vid", "100", "dev", "br", "self")
		a := w.Attach("one", l3(Object{"isGateway": true, "vlan": 100}), "10.1.0.2/24")
		Expect(Ping(a.Host, "10.1.0.1")).To(BeTrue())
		w.Succeeds(a.As("CHECK"))
	})

	It("have one gateway each", func() {
		for i, id := range []int{100, 200} {
			c := l3(Object{"isGateway": true, "vlan": id})
			a := w.Attach(fmt.Sprint("c", id), c, fmt.Sprintf("10.%d.0.2/24", i))
			Expect(Ping(a.Host, fmt.Sprintf("10.%d.0.1", i))).To(BeTrue())
		}
		Expect(Names(w.Host, "")).To(ContainElements("br.100", "br.200"))
	})
})

func span(first, last int) string {
	var words []string
	for id := first; id <= last; id++ {
		words = append(words, fmt.Sprint(id))
	}
	return strings.Join(words, " ")
}
