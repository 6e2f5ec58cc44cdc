package main

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

// vlans lists a port's VLANs as bridge(8) sees them: "5u" is VLAN 5, untagged
// and the port's own.
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

var _ = Describe("VLANs", Label("kernel"), func() {
	var w *world
	BeforeEach(func() {
		nstest.Need("vlan_filtering")
		w = newWorld()
	})

	DescribeTable("of the port are", func(more object, want string) {
		a := w.attach("one", conf(more))
		Expect(show(w.Host, "br").Linkinfo.Data.Filtering).To(Equal(1))
		Expect(w.vlans(a.res.hostEnd())).To(Equal(want))
		w.succeeds(a.as("CHECK"))
		w.succeeds(a.as("DEL"))
	},
		Entry("vlan", object{"vlan": 100}, "100u"),
		Entry("vlan 1, which is the default one", object{"vlan": 1}, "1u"),
		Entry("vlan, the default one kept", object{"vlan": 100, "preserveDefaultVlan": true}, "1(Egress Untagged) 100u"),
		Entry("trunk", object{"vlanTrunk": []object{{"id": 7}, {"minID": 10, "maxID": 12}}}, "1u 7 10 11 12"),
		Entry("trunk with a VLAN of its own", object{"vlan": 5, "vlanTrunk": []object{{"minID": 4, "maxID": 6}}}, "4 5u 6"),
		Entry("all of them", object{"vlanTrunk": []object{{"minID": 1, "maxID": 4094}}}, "1u "+span(2, 4094)),
		Entry("an empty trunk", object{"vlanTrunk": []object{}}, "1u"),
	)

	It("keep containers apart", func() {
		a, b := w.attach("one", conf(object{"vlan": 100})), w.attach("two", conf(object{"vlan": 100}))
		c := w.attach("three", conf(object{"vlan": 200}))
		from, same, other := tap(a.Host, "eth0"), tap(b.Host, "eth0"), tap(c.Host, "eth0")
		from.send(from.mac, broadcast, "hello")
		Expect(same.next()).To(Equal("hello"))
		Expect(other.next()).To(BeEmpty())
	})

	It("reach a trunk tagged, and the gateway of the VLAN", func() {
		nstest.Need("8021q")
		gateway := object{"isGateway": true, "vlan": 100}
		a := w.attach("one", l3(gateway), "10.1.0.2/24", "2001:db8:1::2/64")
		Expect(a.res.Interfaces).To(HaveLen(4))
		Expect(a.res.Interfaces[3].Name).To(Equal("br.100"))
		Expect(show(w.Host, "br.100").addrs()).To(ConsistOf("10.1.0.1/24", "2001:db8:1::1/64"))
		Expect(show(w.Host, "br").addrs()).To(BeEmpty())
		Expect(ping(a.Host, "10.1.0.1") && ping(a.Host, "2001:db8:1::1")).To(BeTrue())
		w.succeeds(a.as("CHECK"))

		trunk := w.attach("trunk", conf(object{"vlanTrunk": []object{{"id": 100}}}))
		ip(trunk.Host, "link add link eth0 name eth0.100 type vlan id 100")
		ip(trunk.Host, "link add link eth0 name eth0.200 type vlan id 200")
		ip(trunk.Host, "link set eth0.200 up")
		ip(trunk.Host, "link set eth0.100 up")
		ip(trunk.Host, "addr add 10.1.0.9/24 dev eth0.100")
		Expect(ping(trunk.Host, "10.1.0.2") && ping(trunk.Host, "10.1.0.1")).To(BeTrue())
		in, wrong := tap(a.Host, "eth0"), tap(trunk.Host, "eth0.200")
		wrong.send(wrong.mac, broadcast, "wrong")
		Expect(in.next()).To(BeEmpty())

		b := w.attach("two", l3(gateway), "10.1.0.3/24")
		Expect(ping(b.Host, "10.1.0.1")).To(BeTrue())
		before := w.Snapshot("links")
		for _, c := range []attached{a, b} {
			w.succeeds(c.as("DEL"))
		}
		Expect(before).To(ContainSubstring("ifname=br.100"))
		Expect(names(w.Host, "")).To(ContainElement("br.100"))
	})

	DescribeTable("CHECK finds", func(command, says string) {
		a := w.attach("one", l3(object{"isGateway": true, "vlan": 100, "vlanTrunk": []object{{"id": 7}}}), "10.1.0.2/24")
		w.succeeds(a.as("CHECK"))
		var gw []struct{ Link string }
		w.JSON(&gw, "ip", "-j", "link", "show", "dev", "br.100")
		command = strings.NewReplacer("PORT", a.res.hostEnd(), "GWPORT", gw[0].Link).Replace(command)
		args := strings.Fields(command)
		w.Cmd(args[0], args[1:]...)
		Expect(w.fails(a.as("CHECK"), cni.CodeDrift)).To(ContainSubstring(says))
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
		ip(w.Host, "link add name br up type bridge")
		cont := nstest.NewNetns()
		a := w.run(call{command: "ADD", netns: cont.Path, conf: conf(object{"vlan": 100})})
		added(a)
		Expect(a.stderr).To(ContainSubstring("vlan_filtering"))
		Expect(show(w.Host, "br").Linkinfo.Data.Filtering).To(BeZero())
	})

	It("finish the gateway that a killed ADD left half made", func() {
		c := l3(object{"isGateway": true, "vlan": 100})
		w.attach("one", c, "10.1.0.2/24")
		var gw []struct{ Link string }
		w.JSON(&gw, "ip", "-j", "link", "show", "dev", "br.100")
		ip(w.Host, "link set br.100 down")
		ip(w.Host, "link set %s nomaster", gw[0].Link)
		b := w.attach("two", c, "10.1.0.3/24")
		Expect(ping(b.Host, "10.1.0.1")).To(BeTrue())
	})

	It("use a gateway of the administrator's as it is", func() {
		nstest.Need("8021q")
		ip(w.Host, "link add name br up type bridge vlan_filtering 1")
		ip(w.Host, "link add link br name br.100 type vlan id 100")
		w.Cmd("bridge", "vlan", "add", "vid", "100", "dev", "br", "self")
		a := w.attach("one", l3(object{"isGateway": true, "vlan": 100}), "10.1.0.2/24")
		Expect(ping(a.Host, "10.1.0.1")).To(BeTrue())
		w.succeeds(a.as("CHECK"))
	})

	It("have one gateway each", func() {
		for i, id := range []int{100, 200} {
			c := l3(object{"isGateway": true, "vlan": id})
			a := w.attach(fmt.Sprint("c", id), c, fmt.Sprintf("10.%d.0.2/24", i))
			Expect(ping(a.Host, fmt.Sprintf("10.%d.0.1", i))).To(BeTrue())
		}
		Expect(names(w.Host, "")).To(ContainElements("br.100", "br.200"))
	})
})

func span(first, last int) string {
	var words []string
	for id := first; id <= last; id++ {
		words = append(words, fmt.Sprint(id))
	}
	return strings.Join(words, " ")
}
