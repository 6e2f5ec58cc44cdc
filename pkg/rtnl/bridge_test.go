package rtnl_test

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

var _ = Describe("a bridge's port", func() {
	var h *nstest.Host
	var c *rtnl.Conn
	var one int
	BeforeEach(func() {
		h = nstest.NewHost()
		c = dial(h)
		ip(h, "link add br0 type bridge")
		veth(h, "one", "two")
		ip(h, "link set one master br0")
		one = index(c, "one")
	})

	DescribeTable("is set and read", func(hairpin, isolated bool) {
		// Every flag begins with the other value.
		Expect(c.SetPort(one, rtnl.Port{Hairpin: !hairpin, Isolated: !isolated})).To(Succeed())
		Expect(c.SetPort(one, rtnl.Port{Hairpin: hairpin, Isolated: isolated})).To(Succeed())
		Expect(show(h, "one").Linkinfo.Port).To(Equal(shownPort{Hairpin: hairpin, Isolated: isolated}))
		Expect(c.Port(one)).To(Equal(rtnl.Port{Hairpin: hairpin, Isolated: isolated}))
	},
		Entry("hairpin", true, false),
		Entry("isolated", false, true),
		Entry("both", true, true),
		Entry("none", false, false),
	)

	It("is none while the link has no bridge", func() {
		_, err := c.Port(index(c, "two"))
		Expect(err).To(MatchError(rtnl.ErrNotPort))
		Expect(err).To(MatchError(ContainSubstring(`link "two"`)))
		Expect(c.SetPort(index(c, "two"), rtnl.Port{})).NotTo(Succeed())
	})

	Describe("VLANs", Label("kernel"), func() {
		BeforeEach(func() {
			nstest.Need("vlan_filtering")
			ip(h, "link set br0 type bridge vlan_filtering 1")
		})

		It("are added with their flags, many in one message, read, and deleted", func() {
			vlans := []rtnl.VLAN{{ID: 1, PVID: true, Untagged: true}}
			want := []string{"1 PVID Egress Untagged"}
			add := []rtnl.VLAN{{ID: 100, PVID: true, Untagged: true}}
			for id := uint16(4094); id > 0; id-- {
				switch {
				case id == 100:
					vlans = append(vlans, add[0])
				case id >= 200 && id < 4000 && id != 3000:
					vlans = append(vlans, rtnl.VLAN{ID: id})
					add = append(add, vlans[len(vlans)-1])
				}
			}
			Expect(c.AddVLANs(one, add)).To(Succeed())
			want = []string{"1 Egress Untagged", "100 PVID Egress Untagged", "200-2999", "3001-3999"}
			Expect(vlansOf(h, "one")).To(Equal(want))

			got, err := c.VLANs(one)
			Expect(err).NotTo(HaveOccurred())
			vlans[0].PVID = false
			Expect(got).To(ConsistOf(vlans))
			Expect(c.VLANs(index(c, "two"))).To(BeEmpty())

			Expect(c.DelVLANs(one, []uint16{1, 200, 201, 202, 3999, 4000})).To(Succeed())
			Expect(vlansOf(h, "one")).To(Equal([]string{"100 PVID Egress Untagged", "203-2999", "3001-3998"}))
			Expect(c.AddVLANs(one, nil)).To(Succeed())
			Expect(c.DelVLANs(one, nil)).To(Succeed())
		})
	})
})

func vlansOf(h *nstest.Host, name string) []string {
	GinkgoHelper()
	var ports []struct {
		VLANs []struct {
			VLAN    int
			VLANEnd int
			Flags   []string
		}
	}
	h.JSON(&ports, "bridge", "-j", "-c", "vlan", "show", "dev", name)
	var out []string
	for _, v := range ports[0].VLANs {
		s := fmt.Sprint(v.VLAN)
		if v.VLANEnd != 0 {
			s += fmt.Sprintf("-%d", v.VLANEnd)
		}
		out = append(out, strings.TrimSpace(s+" "+strings.Join(v.Flags, " ")))
	}
	return out
}

var _ = Describe("the ports of a bridge", func() {
	It("are those and no other links", func() {
		h := nstest.NewHost()
		c := dial(h)
		for _, br := range []string{"br0", "br1"} {
			ip(h, "link add "+br+" type bridge")
		}
		for i := range 3 {
			veth(h, fmt.Sprint("one", i), fmt.Sprint("two", i))
			ip(h, fmt.Sprintf("link set one%d master br%d", i, i/2))
		}
		ports, err := c.Ports(index(c, "br0"))
		Expect(err).NotTo(HaveOccurred())
		Expect(ports).To(HaveExactElements(HaveField("Name", "one0"), HaveField("Name", "one1")))
		Expect(c.Ports(index(c, "two0"))).To(BeEmpty())
	})
})
