package rtnl_test

import (
	"net"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

var (
	macA = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x0a}
	macB = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x0b}
)

var _ = Describe("a socket", func() {
	It("stays in the namespace that it was opened in", func() {
		h := nstest.NewHost()
		n := open(h)
		c, err := rtnl.Dial(n)
		Expect(err).NotTo(HaveOccurred())
		defer c.Close()
		veth(h, "one", "two")
		Expect(n.Close()).To(Succeed())
		Expect(c.Link("one")).To(HaveField("Name", "one"))
	})

	It("is opened in the thread's namespace when none is named", func() {
		h := nstest.NewHost()
		veth(h, "one", "two")
		var c *rtnl.Conn
		h.Do(func() {
			var err error
			c, err = rtnl.Dial(nil)
			Expect(err).NotTo(HaveOccurred())
		})
		defer c.Close()
		Expect(c.Link("one")).To(HaveField("Name", "one"))
	})

	It("can be closed twice and says so afterwards", func() {
		c := dial(nstest.NewHost())
		Expect(c.Close()).To(Succeed())
		Expect(c.Close()).To(Succeed())
		_, err := c.Link("lo")
		Expect(err).To(MatchError(unix.EBADF))
	})
})

var _ = Describe("a link", func() {
	var h *nstest.Host
	var c *rtnl.Conn
	BeforeEach(func() {
		h = nstest.NewHost()
		c = dial(h)
	})

	It("is read by name and by index, with all that ip(8) shows", func() {
		ip(h, "link add one index 77 address 02:00:00:00:00:0a mtu 1400 group 5 txqueuelen 17 type veth peer name two")
		ip(h, "link add br0 type bridge")
		ip(h, "link set one alias me master br0 promisc on allmulticast on")
		ip(h, "link set one up")
		want := show(h, "one")
		l, err := c.Link("one")
		Expect(err).NotTo(HaveOccurred())
		Expect(c.LinkByIndex(77)).To(Equal(l))
		Expect(l.Index).To(Equal(77))
		Expect(l.Name).To(Equal("one"))
		Expect(l.Kind).To(Equal("veth"))
		Expect(l.MAC).To(Equal(macA))
		Expect(l.MTU).To(Equal(1400))
		Expect(l.TxQLen).To(Equal(17))
		Expect(l.Master).To(Equal(show(h, "br0").Index))
		Expect(l.Peer).To(Equal(show(h, "two").Index))
		Expect(l.PeerNS).To(Equal(-1))
		Expect(l.Group).To(Equal(uint32(5)))
		Expect(l.Alias).To(Equal("me"))
		Expect(l.Up).To(BeTrue())
		Expect(l.Carrier).To(BeFalse())
		Expect(l.Oper).To(Equal("lowerlayerdown"))
		Expect(l.Promisc).To(BeTrue())
		Expect(l.AllMulti).To(BeTrue())
		Expect(l.Promiscuity).To(Equal(want.Promiscuity))
		Expect(want.Promiscuity).To(Equal(2), "the administrator and the bridge")
	})

	It("that is promiscuous for its bridge only was not set so", func() {
		veth(h, "one", "two")
		ip(h, "link add br0 type bridge")
		ip(h, "link set one master br0")
		l, err := c.Link("one")
		Expect(err).NotTo(HaveOccurred())
		Expect(l.Promiscuity).To(Equal(1))
		Expect(l.Promisc).To(BeFalse())
	})

	DescribeTable("that is not there is ErrNoLink, with its name", func(name string) {
		_, err := c.Link(name)
		Expect(err).To(MatchError(rtnl.ErrNoLink))
		Expect(err).To(MatchError(ContainSubstring(`link "` + name + `"`)))
	},
		Entry("an absent name", "absent"),
		Entry("no name", ""),
		Entry("a name longer than any", "sixteen-bytes-xx"),
	)

	It("that is not there is ErrNoLink by index, too, whatever is done to it", func() {
		_, err := c.LinkByIndex(9999)
		Expect(err).To(MatchError(rtnl.ErrNoLink))
		Expect(c.SetLink(9999, rtnl.Change{Up: ptr(true)})).To(MatchError(rtnl.ErrNoLink))
		_, err = c.Addrs(9999)
		Expect(err).To(MatchError(rtnl.ErrNoLink))
		_, err = c.Routes(9999, unix.AF_UNSPEC)
		Expect(err).To(MatchError(rtnl.ErrNoLink))
		Expect(c.DelLink(9999)).To(Succeed())
	})

	It("whose other end is in another namespace says which", func() {
		other := nstest.NewNetns()
		h.Cmd("ip", "link", "add", "one", "type", "veth", "peer", "name", "eth0", "netns", other.Name)
		l, err := c.Link("one")
		Expect(err).NotTo(HaveOccurred())
		Expect(l.Peer).To(Equal(show(other, "eth0").Index))
		Expect(l.PeerNS).To(BeNumerically(">=", 0))
	})

	It("is listed with all others", func() {
		veth(h, "one", "two")
		var want []shown
		h.JSON(&want, "ip", "-j", "link")
		links, err := c.Links()
		Expect(err).NotTo(HaveOccurred())
		Expect(links).To(HaveLen(len(want)))
		for i := range want {
			Expect(links[i].Name).To(Equal(want[i].Ifname))
		}
	})

	It("changes in all respects in one message", func() {
		veth(h, "one", "two")
		ip(h, "link add br0 type bridge")
		ip(h, "link set br0 up")
		i := index(c, "one")
		Expect(c.SetLink(i, rtnl.Change{
			Up: ptr(true), Master: ptr(index(c, "br0")), Alias: ptr("0123 net ctr eth0"), MAC: macA, MTU: 1300,
			Group: ptr(uint32(9)), TxQLen: ptr(0), Promisc: ptr(true), AllMulti: ptr(true),
		})).To(Succeed())
		got := show(h, "one")
		Expect(got.Flags).To(ContainElements("UP", "PROMISC", "ALLMULTI"))
		Expect(got.Master).To(Equal("br0"))
		Expect(got.Ifalias).To(Equal("0123 net ctr eth0"))
		Expect(got.Address).To(Equal(macA.String()))
		Expect(got.MTU).To(Equal(1300))
		Expect(got.Group).To(Equal("9"))
		Expect(got.Txqlen).To(Equal(0))

		Expect(c.SetLink(i, rtnl.Change{
			Up: ptr(false), Master: ptr(0), Alias: ptr(""), Group: ptr(uint32(0)), Promisc: ptr(false), AllMulti: ptr(false),
		})).To(Succeed())
		got = show(h, "one")
		Expect(got.Flags).NotTo(ContainElements("UP"))
		Expect(got.Flags).NotTo(ContainElements("PROMISC"))
		Expect(got.Master).To(BeEmpty())
		Expect(got.Ifalias).To(BeEmpty())
		Expect(got.Group).To(Equal("default"))
	})

	It("is not touched by an empty change", func() {
		veth(h, "one", "two")
		before := h.Snapshot()
		Expect(c.SetLink(index(c, "one"), rtnl.Change{})).To(Succeed())
		Expect(h.Snapshot()).To(Equal(before))
	})

	It("that the kernel refuses to change is an error with its name and the kernel's words", func() {
		veth(h, "one", "two")
		err := c.SetLink(index(c, "one"), rtnl.Change{MTU: 1})
		Expect(err).To(MatchError(unix.EINVAL))
		Expect(err).To(MatchError(`link "one": change: invalid argument (mtu less than device minimum)`))
	})

	It("is deleted once, and again without an error", func() {
		veth(h, "one", "two")
		i := index(c, "one")
		Expect(c.DelLink(i)).To(Succeed())
		Expect(c.DelLink(i)).To(Succeed())
		Expect(ip(h, "-o link")).NotTo(ContainSubstring("two@"))
	})
})

var _ = Describe("a new bridge", func() {
	It("has its MAC, MTU and name from the beginning", func() {
		h := nstest.NewHost()
		c := dial(h)
		l, err := c.AddBridge(rtnl.Bridge{Name: "br0", MTU: 1400, MAC: macA})
		Expect(err).NotTo(HaveOccurred())
		got := show(h, "br0")
		Expect(got.Linkinfo.Kind).To(Equal("bridge"))
		Expect(got.Address).To(Equal(macA.String()))
		Expect(got.MTU).To(Equal(1400))
		Expect(got.Linkinfo.Data.Filtering).To(Equal(0))
		Expect(l.Index).To(Equal(got.Index))
		Expect(l.Kind).To(Equal("bridge"))
		Expect(l.MAC).To(Equal(macA))
		Expect(l.DefaultPVID).To(Equal(uint16(got.Linkinfo.Data.PVID)))
		Expect(l.VLANFiltering).To(BeFalse())
	})

	It("keeps its MAC when ports come and go", func() {
		h := nstest.NewHost()
		c := dial(h)
		br, err := c.AddBridge(rtnl.Bridge{Name: "br0", MAC: macB})
		Expect(err).NotTo(HaveOccurred())
		veth(h, "one", "two")
		ip(h, "link set one address 02:00:00:00:00:01")
		Expect(c.SetLink(index(c, "one"), rtnl.Change{Master: &br.Index})).To(Succeed())
		Expect(show(h, "br0").Address).To(Equal(macB.String()))
		ip(h, "link del one")
		Expect(show(h, "br0").Address).To(Equal(macB.String()))
	})

	It("filters VLANs when asked to", Label("kernel"), func() {
		nstest.Need("vlan_filtering")
		h := nstest.NewHost()
		l, err := dial(h).AddBridge(rtnl.Bridge{Name: "br0", VLANFiltering: true})
		Expect(err).NotTo(HaveOccurred())
		Expect(l.VLANFiltering).To(BeTrue())
		Expect(l.DefaultPVID).To(Equal(uint16(1)))
		Expect(show(h, "br0").Linkinfo.Data.Filtering).To(Equal(1))
	})

	It("is refused where the name is taken", func() {
		h := nstest.NewHost()
		veth(h, "br0", "two")
		_, err := dial(h).AddBridge(rtnl.Bridge{Name: "br0"})
		Expect(err).To(MatchError(unix.EEXIST))
		Expect(err).To(MatchError(ContainSubstring(`bridge "br0": create: file exists`)))
	})
})

var _ = Describe("a new pair", func() {
	var h, cont *nstest.Host
	var c *rtnl.Conn
	BeforeEach(func() {
		h, cont = nstest.NewHost(), nstest.NewNetns()
		c = dial(h)
	})

	pair := func() rtnl.Veth {
		return rtnl.Veth{
			Name: "veth1", MAC: macA, MTU: 1400, Group: 7,
			Peer: rtnl.Peer{Name: "eth0", MAC: macB, NS: open(cont)},
		}
	}

	It("has both ends where they belong, with name, MAC, MTU and group", func() {
		Expect(c.AddVeth(pair())).To(Succeed())
		host, inside := show(h, "veth1"), show(cont, "eth0")
		Expect(host.Address).To(Equal(macA.String()))
		Expect(inside.Address).To(Equal(macB.String()))
		Expect([]int{host.MTU, inside.MTU}).To(Equal([]int{1400, 1400}))
		Expect([]string{host.Group, inside.Group}).To(Equal([]string{"7", "default"}))
		Expect(host.Flags).NotTo(ContainElement("UP"))
		Expect(host.Linkinfo.Kind).To(Equal("veth"))
	})

	It("gets what is not said from the kernel", func() {
		Expect(c.AddVeth(rtnl.Veth{Name: "veth1", Peer: rtnl.Peer{Name: "eth0"}})).To(Succeed())
		Expect(show(h, "veth1").MTU).To(Equal(1500))
		Expect(show(h, "eth0").MTU).To(Equal(1500))
	})

	DescribeTable("is refused, and nothing is made, where a name is taken",
		func(occupy func()) {
			occupy()
			before := h.Snapshot("links") + cont.Snapshot("links")
			err := c.AddVeth(pair())
			Expect(err).To(MatchError(unix.EEXIST))
			Expect(err).To(MatchError(ContainSubstring(`veth "veth1" with peer "eth0": create: file exists`)))
			Expect(h.Snapshot("links") + cont.Snapshot("links")).To(Equal(before))
		},
		Entry("on the host", func() { veth(h, "veth1", "x") }),
		Entry("in the container", func() { veth(cont, "eth0", "x") }),
	)
})
