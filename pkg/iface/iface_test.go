package iface_test

import (
	"context"
	"io/fs"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestIface(t *testing.T) { nstest.RunSpecs(t, "iface") }

// container is a namespace with eth0, down, whose other end veth0 on the host is up.
type container struct {
	*nstest.Host
	host   *nstest.Host
	target iface.Target
}

func newContainer() container {
	GinkgoHelper()
	c := container{Host: nstest.NewNetns(), host: nstest.NewHost()}
	c.host.Cmd("ip", "link", "add", "veth0", "type", "veth", "peer", "name", "eth0", "netns", c.Name)
	c.host.SetSysctl("net/ipv6/conf/veth0/accept_dad", "0")
	c.host.Cmd("ip", "link", "set", "veth0", "up")
	n := nstest.Must(ns.Open(c.Path))
	DeferCleanup(n.Close)
	conn := nstest.Must(rtnl.Dial(n))
	DeferCleanup(conn.Close)
	link := nstest.Must(conn.Link("eth0"))
	c.target = iface.Target{NS: n, Conn: conn, Name: "eth0", Index: link.Index}
	return c
}

// ip runs ip(8) in the container with words separated by blanks.
func (c container) ip(words string) string {
	GinkgoHelper()
	return c.Cmd("ip", strings.Fields(words)...)
}

func (c container) configure(res *cni.Result) error {
	GinkgoHelper()
	ctx, cancel := context.WithTimeout(context.Background(), nstest.Patience(nstest.Hang))
	defer cancel()
	if err := iface.Raise(c.target); err != nil {
		return err
	}
	return iface.Configure(ctx, c.target, res)
}

// result is what a plugin returns: addresses and gateways in pairs ("" =
// none), all of the container's interface, which comes after the host's.
func result(addrsAndGateways ...string) *cni.Result {
	GinkgoHelper()
	res := &cni.Result{Interfaces: []cni.Interface{{Name: "veth0"}, {Name: "eth0", Sandbox: "/run/netns/x"}}}
	for i := 0; i < len(addrsAndGateways); i += 2 {
		ip := cni.IP{Address: netip.MustParsePrefix(addrsAndGateways[i]), Interface: new(1)}
		if gw := addrsAndGateways[i+1]; gw != "" {
			ip.Gateway = netip.MustParseAddr(gw)
		}
		res.IPs = append(res.IPs, ip)
	}
	return res
}

func withRoutes(res *cni.Result, routes ...cni.Route) *cni.Result {
	res.Routes = append(res.Routes, routes...)
	return res
}

// to is a route without a gateway of its own.
func to(dst string) cni.Route { return cni.Route{Dst: netip.MustParsePrefix(dst)} }

func via(dst, gw string) cni.Route {
	return cni.Route{Dst: netip.MustParsePrefix(dst), GW: netip.MustParseAddr(gw)}
}

// routes returns the routes that only a plugin adds, as ip(8) prints them.
func (c container) routes() []string {
	GinkgoHelper()
	var out []string
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.Lines(c.ip(family + " route show table all")) {
			// The kernel's own, of which IPv6 has some without a protocol.
			if strings.Contains(line, "proto kernel") || strings.Contains(line, "table local") {
				continue
			}
			out = append(out, strings.Join(strings.Fields(line), " "))
		}
	}
	slices.Sort(out)
	return out
}

// addrs are the container's addresses beside link-local ones.
func (c container) addrs() []string {
	GinkgoHelper()
	var out []string
	for line := range strings.Lines(c.ip("-o addr show dev eth0")) {
		shown, _, _ := strings.Cut(line, `\`)
		if s := strings.Join(strings.Fields(shown)[2:], " "); !strings.Contains(s, "fe80:") {
			out = append(out, s)
		}
	}
	return out
}

func (c container) conf(family, key string) string {
	GinkgoHelper()
	return c.Sysctl("net/" + family + "/conf/eth0/" + key)
}

var _ = Describe("Raise and Configure", func() {
	var c container
	BeforeEach(func() { c = newContainer() })

	It("gives the interface its addresses, usable at once, and brings it up", func() {
		Expect(c.configure(result("10.1.2.3/24", "10.1.2.1", "10.9.0.1/32", "", "2001:db8::3/64",
			"2001:db8::1"))).To(Succeed())
		Expect(c.addrs()).To(Equal([]string{
			"inet 10.1.2.3/24 brd 10.1.2.255 scope global eth0",
			"inet 10.9.0.1/32 scope global eth0",
			"inet6 2001:db8::3/64 scope global nodad",
		}))
		Expect(c.ip("-o link show eth0")).To(MatchRegexp(`<[-A-Z,_]*\bUP\b`))
		c.host.Cmd("ip", "addr", "add", "10.1.2.1/24", "dev", "veth0")
		c.host.Cmd("ip", "addr", "add", "2001:db8::1/64", "dev", "veth0")
		c.Cmd("ping", "-c1", "-w40", "10.1.2.1")
		c.Cmd("ping", "-c1", "-w40", "2001:db8::1")
	})

	It("takes the result of an IPAM plugin, which lists no interfaces", func() {
		res := result("10.1.2.3/24", "")
		res.Interfaces, res.IPs[0].Interface = nil, nil
		Expect(c.configure(res)).To(Succeed())
		Expect(c.addrs()).To(HaveLen(1))
	})

	It("takes an address that names no interface when the container has one only", func() {
		res := result("10.1.2.3/24", "")
		res.IPs[0].Interface = nil
		Expect(c.configure(res)).To(Succeed())
		Expect(c.addrs()).To(HaveLen(1))
	})

	It("names link and address, or route, when the kernel refuses", func() {
		c.ip("addr add 10.1.2.3/24 dev eth0")
		Expect(c.configure(result("10.1.2.3/24", ""))).To(And(MatchError(unix.EEXIST),
			MatchError(HavePrefix(`link "eth0": add address 10.1.2.3/24: file exists`))))

		err := c.configure(withRoutes(result(), via("0.0.0.0/0", "192.0.2.1")))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
		Expect(err).To(MatchError(HavePrefix("ipam: gateway 192.0.2.1 of route 0.0.0.0/0 cannot be reached")))
	})

	DescribeTable("makes routes as the result has them", func(want []string, routes ...cni.Route) {
		Expect(c.configure(withRoutes(result("10.1.2.3/24", "10.1.2.1", "2001:db8::3/64", "2001:db8::1", "10.9.0.3/24",
			"10.9.0.1"), routes...))).To(Succeed())
		Expect(c.routes()).To(Equal(want))
	},
		Entry("through their own gateway", []string{"10.5.0.0/16 via 10.9.0.7 dev eth0",
			"2001:db8:5::/48 via 2001:db8::7 dev eth0 metric 1024 pref medium"},
			via("10.5.0.0/16", "10.9.0.7"), via("2001:db8:5::/48", "2001:db8::7")),
		Entry("through the first gateway of their family", []string{"default via 10.1.2.1 dev eth0",
			"default via 2001:db8::1 dev eth0 metric 1024 pref medium"}, to("0.0.0.0/0"), to("::/0")),
		Entry("with everything that can be said", []string{
			"10.5.0.0/16 via 10.1.2.1 dev eth0 table 1000 metric 77 mtu 1400 advmss 1300",
			"2001:db8:5::/48 via 2001:db8::1 dev eth0 table 1000 metric 77 mtu 1400 advmss 1300 pref medium",
		},
			cni.Route{Dst: netip.MustParsePrefix("10.5.0.0/16"), MTU: 1400, AdvMSS: 1300, Priority: 77,
				Table: new(uint32(1000)), Scope: new(0)},
			cni.Route{Dst: netip.MustParsePrefix("2001:db8:5::/48"), MTU: 1400, AdvMSS: 1300, Priority: 77,
				Table: new(uint32(1000)), Scope: new(0)}),
		Entry("on the link where their scope says so", []string{"169.254.1.1 dev eth0 scope link",
			"default via 169.254.1.1 dev eth0"},
			cni.Route{Dst: netip.MustParsePrefix("169.254.1.1/32"), Scope: new(253)}, via("0.0.0.0/0", "169.254.1.1")),
		Entry("two through different gateways", []string{
			"10.5.0.0/16 via 10.1.2.1 dev eth0", "10.5.0.0/16 via 10.1.2.7 dev eth0",
			"2001:db8:5::/48 metric 1024 pref medium", "nexthop via 2001:db8::1 dev eth0 weight 1",
			"nexthop via 2001:db8::7 dev eth0 weight 1",
		},
			to("10.5.0.0/16"), via("10.5.0.0/16", "10.1.2.7"), to("2001:db8:5::/48"), via("2001:db8:5::/48",
				"2001:db8::7")),
		Entry("the same twice", []string{"10.5.0.0/16 via 10.1.2.1 dev eth0",
			"2001:db8:5::/48 via 2001:db8::1 dev eth0 metric 1024 pref medium"},
			to("10.5.0.0/16"), via("10.5.0.0/16", "10.1.2.1"), to("2001:db8:5::/48"), to("2001:db8:5::/48")),
		Entry("of the default table, spelt as 0", []string{"10.5.0.0/16 via 10.1.2.1 dev eth0"},
			cni.Route{Dst: netip.MustParsePrefix("10.5.0.0/16"), Table: new(uint32(0))}),
	)

	It("makes a route without any gateway on the link", func() {
		Expect(c.configure(withRoutes(result("10.1.2.3/24", "", "2001:db8::3/64", ""), to("0.0.0.0/0"),
			to("::/0")))).To(Succeed())
		Expect(c.routes()).To(Equal([]string{"default dev eth0 metric 1024 pref medium",
			"default dev eth0 scope link"}))
	})

	It("does not mind a route that the kernel made for an address", func() {
		res := withRoutes(result("10.1.2.3/24", "", "2001:db8::3/64", ""), to("10.1.2.0/24"),
			cni.Route{Dst: netip.MustParsePrefix("2001:db8::/64"), Priority: 256})
		Expect(c.configure(res)).To(Succeed())
	})

	It("minds a route that is there with another MTU", func() {
		res := withRoutes(result("2001:db8::3/64", "2001:db8::1"), to("::/0"),
			cni.Route{Dst: netip.MustParsePrefix("::/0"), MTU: 1400})
		Expect(c.configure(res)).To(MatchError("route ::/0 via 2001:db8::1: file exists"))
	})

	It("makes the plugin's own routes first, and no routes to subnets where it wants none", func() {
		c.target.NoSubnetRoutes = true
		gw, addr := netip.MustParsePrefix("10.1.2.1/32"), netip.MustParseAddr("10.1.2.3")
		c.target.Routes = []rtnl.Route{
			{Dst: gw, Src: addr, Scope: unix.RT_SCOPE_LINK},
			{Dst: netip.MustParsePrefix("10.1.2.3/24"), GW: gw.Addr(), Src: addr},
		}
		Expect(c.configure(withRoutes(result("10.1.2.3/24", "10.1.2.1", "2001:db8::3/64", ""),
			to("0.0.0.0/0")))).To(Succeed())
		Expect(c.routes()).To(Equal([]string{
			"10.1.2.0/24 via 10.1.2.1 dev eth0 src 10.1.2.3", "10.1.2.1 dev eth0 scope link src 10.1.2.3",
			"default via 10.1.2.1 dev eth0",
		}))
		Expect(c.ip("-6 route show dev eth0")).NotTo(ContainSubstring("2001:db8::/64"))
	})

	It("makes IPv6 routes while the host's end is down still", func() {
		c.host.Cmd("ip", "link", "set", "veth0", "down")
		Expect(c.configure(withRoutes(result("2001:db8::3/64", "2001:db8::1"), to("::/0")))).To(Succeed())
		c.host.Cmd("ip", "link", "set", "veth0", "up")
		Eventually(func() []string { return c.routes() }).
			Should(Equal([]string{"default via 2001:db8::1 dev eth0 metric 1024 pref medium"}))
	})

	It("makes the kernel announce addresses, keep them, and not look for duplicates", func() {
		Expect(c.configure(result("2001:db8::3/64", ""))).To(Succeed())
		Expect(c.conf("ipv4", "arp_notify")).To(Equal("1"))
		Expect(c.conf("ipv6", "ndisc_notify")).To(Equal("1"))
		Expect(c.conf("ipv6", "keep_addr_on_down")).To(Equal("1"))
		Expect(c.conf("ipv6", "accept_dad")).To(Equal("0"))
		Eventually(func() string { return c.ip("-o -6 addr show dev eth0") }).Should(
			And(ContainSubstring("fe80:"), Not(ContainSubstring("tentative"))))
	})

	It("tells the neighbours of a reused address the new MAC", func() {
		c.host.Cmd("ip", "addr", "add", "10.1.2.1/24", "dev", "veth0")
		c.host.Cmd("ip", "addr", "add", "2001:db8::1/64", "dev", "veth0")
		mac := strings.Fields(c.ip("-br link show eth0"))[2]
		for _, addr := range []string{"10.1.2.3", "2001:db8::3"} {
			c.host.Cmd("ip", "neigh", "add", addr, "lladdr", "02:00:00:00:00:99", "nud", "stale", "dev", "veth0")
		}
		Expect(c.configure(result("10.1.2.3/24", "", "2001:db8::3/64", ""))).To(Succeed())
		link := nstest.Must(c.target.Conn.WaitUp(context.Background(), c.target.Index))
		six := netip.MustParseAddr("2001:db8::3")
		Expect(c.target.Conn.WaitLocal(context.Background(), link.Index, six)).To(Succeed())
		Expect(iface.Announce(c.target.Conn, link)).To(Succeed())
		Eventually(func() string { return c.host.Cmd("ip", "neigh", "show", "dev", "veth0") }).Should(And(
			ContainSubstring("10.1.2.3 lladdr "+mac), ContainSubstring("2001:db8::3 lladdr "+mac)))
	})

	Describe("where IPv6 is turned off", func() {
		BeforeEach(func() {
			c.SetSysctl("net/ipv6/conf/eth0/disable_ipv6", "1")
			c.SetSysctl("net/ipv6/conf/lo/disable_ipv6", "1")
		})
		It("turns it on for an IPv6 address", func() {
			Expect(c.configure(result("2001:db8::3/64", ""))).To(Succeed())
			Expect(c.conf("ipv6", "disable_ipv6")).To(Equal("0"))
			Expect(c.Sysctl("net/ipv6/conf/lo/disable_ipv6")).To(Equal("0"))
			Expect(c.addrs()).To(Equal([]string{"inet6 2001:db8::3/64 scope global nodad"}))
		})
		It("leaves it off without one", func() {
			Expect(c.configure(withRoutes(result("10.1.2.3/24", "10.1.2.1"), to("0.0.0.0/0")))).To(Succeed())
			Expect(c.conf("ipv6", "disable_ipv6")).To(Equal("1"))
			Expect(c.Sysctl("net/ipv6/conf/lo/disable_ipv6")).To(Equal("1"))
		})
	})

	Describe("with a read-only /proc/sys", func() {
		readOnly := func() {
			GinkgoHelper()
			Expect(unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND, "")).To(Succeed())
			DeferCleanup(unix.Unmount, "/proc/sys", unix.MNT_DETACH)
			Expect(unix.Mount("", "/proc/sys", "",
				unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC,
				"")).To(Succeed())
		}
		It("does without what only makes things better", func() {
			readOnly()
			Expect(c.configure(result("10.1.2.3/24", "", "2001:db8::3/64", ""))).To(Succeed())
			Expect(c.conf("ipv4", "arp_notify")).To(Equal("0"))
			Expect(c.addrs()).To(And(HaveLen(2), Not(ContainElement(ContainSubstring("tentative")))))
		})
		DescribeTable("fails without what the result needs", func(key, value string, dad bool, want string) {
			c.target.EnableDAD = dad
			c.SetSysctl(key, value)
			readOnly()
			Expect(c.configure(result("2001:db8::3/64", ""))).To(And(MatchError(unix.EROFS), MatchError(want)))
		},
			Entry("IPv6", "net/ipv6/conf/eth0/disable_ipv6", "1", false,
				`sysctl net.ipv6.conf.eth0.disable_ipv6: write "0": read-only file system`),
			Entry("IPv6 on lo", "net/ipv6/conf/lo/disable_ipv6", "1", false,
				`sysctl net.ipv6.conf.lo.disable_ipv6: write "0": read-only file system`),
			Entry("duplicate address detection", "net/ipv6/conf/eth0/accept_dad", "0", true,
				`sysctl net.ipv6.conf.eth0.accept_dad: write "1": read-only file system`),
		)
	})

	Describe("on a kernel without IPv6", func() {
		BeforeEach(func() {
			c.Do(func() {
				Expect(unix.Mount("none", "/proc/sys/net/ipv6", "tmpfs", 0, "")).To(Succeed())
			})
			DeferCleanup(func() {
				c.Do(func() { Expect(unix.Unmount("/proc/sys/net/ipv6", unix.MNT_DETACH)).To(Succeed()) })
			})
		})
		It("serves IPv4", func() {
			Expect(c.configure(withRoutes(result("10.1.2.3/24", "10.1.2.1"), to("0.0.0.0/0")))).To(Succeed())
			Expect(c.conf("ipv4", "arp_notify")).To(Equal("1"))
		})
		It("refuses IPv6", func() {
			Expect(c.configure(result("2001:db8::3/64", ""))).To(MatchError(
				`sysctl net.ipv6.conf.lo.disable_ipv6: write "0": no such file or directory`))
		})
	})

	Describe("with duplicate address detection", func() {
		BeforeEach(func() { c.target.EnableDAD = true })

		It("waits for its end", func() {
			Expect(c.configure(result("2001:db8::3/64", "2001:db8::1"))).To(Succeed())
			Expect(c.addrs()).To(Equal([]string{"inet6 2001:db8::3/64 scope global"}))
			Expect(c.conf("ipv6", "accept_dad")).To(Equal("1"))
			Expect(c.conf("ipv6", "enhanced_dad")).To(Equal("1"))
		})

		It("fails when another has the address", func() {
			c.host.Cmd("ip", "addr", "add", "2001:db8::3/64", "nodad", "dev", "veth0")
			c.SetSysctl("net/ipv6/conf/eth0/dad_transmits", "10") // the first may be lost while veth0 awakes
			Expect(c.configure(result("2001:db8::3/64", ""))).To(
				And(MatchError(rtnl.ErrDuplicate), MatchError(HavePrefix(`link "eth0": address 2001:db8::3/64: `))))
		})
	})
})

// ipv6Route is a route with every field, in a table of its own.
var ipv6Route = cni.Route{
	Dst: netip.MustParsePrefix("2001:db8:5::/48"), MTU: 1400, AdvMSS: 1300, Priority: 77, Table: new(uint32(1000)),
}

var _ = Describe("Verify", func() {
	var c container
	var res *cni.Result
	BeforeEach(func() {
		c = newContainer()
		// Link-local addresses come some time after the link is up, other routes with the carrier, and that
		// of an own IPv6 address when a worker of the kernel gets round to it.
		c.SetSysctl("net/ipv6/conf/eth0/addr_gen_mode", "1")
		res = withRoutes(result("10.1.2.3/24", "10.1.2.1", "2001:db8::3/64", "2001:db8::1"), to("0.0.0.0/0"),
			to("::/0"),
			cni.Route{Dst: netip.MustParsePrefix("10.5.0.0/16"), MTU: 1400, AdvMSS: 1300, Priority: 77, Scope: new(0)},
			ipv6Route,
			cni.Route{Dst: netip.MustParsePrefix("2001:db8:6::/48"), Scope: new(253)})
		res.Interfaces[1].MAC = strings.Fields(c.ip("-br link show eth0"))[2]
		res.Interfaces[1].MTU = 1500
		Expect(c.configure(res)).To(Succeed())
		Eventually(func() string { return strings.Fields(c.ip("-br link show eth0"))[1] }).Should(Equal("UP"))
		Eventually(func() string { return c.ip("-6 route show table local") }).
			Should(ContainSubstring("local 2001:db8::3 "))
	})

	It("has nothing to say of what Configure made, and changes nothing", func() {
		before := c.Snapshot()
		Expect(iface.Verify(c.target, res)).To(Succeed())
		Expect(c.Snapshot()).To(Equal(before))
	})

	DescribeTable("names what changed", func(want string, changes ...string) {
		for _, change := range changes {
			c.ip(change)
		}
		Expect(iface.Verify(c.target, res)).To(MatchError(want))
	},
		Entry("no link", `link "eth0": Link not found`, "link del eth0"),
		Entry("another IPv6 default gateway",
			`link "eth0": route ::/0 via 2001:db8::1: gateway is 2001:db8::9 instead of 2001:db8::1`,
			"-6 route replace default via 2001:db8::9 dev eth0"),
		Entry("a default route if the kernel reports none", `link "eth0": route 0.0.0.0/0 via 10.1.2.1: missing`,
			"route replace unreachable default"),
		Entry("another MTU of a route", `link "eth0": route 10.5.0.0/16 via 10.1.2.1: mtu is 1401 instead of 1400`,
			"route add 10.5.0.0/16 via 10.1.2.9 metric 5", "route add 10.5.0.0/16 via 10.1.2.9 metric 99",
			"route change 10.5.0.0/16 via 10.1.2.1 metric 77 mtu 1401 advmss 1300"),
		Entry("another MSS and gateway of a route",
			`link "eth0": route 10.5.0.0/16 via 10.1.2.1: gateway is 10.1.2.9 instead of 10.1.2.1, `+
				"advmss is 0 instead of 1300",
			"route change 10.5.0.0/16 via 10.1.2.9 metric 77 mtu 1400"),
		Entry("another priority", `link "eth0": route 10.5.0.0/16 via 10.1.2.1: priority is 78 instead of 77`,
			"route del 10.5.0.0/16 metric 77", "route add 10.5.0.0/16 via 10.1.2.1 metric 78 mtu 1400 advmss 1300"),
		Entry("another scope",
			`link "eth0": route 10.5.0.0/16 via 10.1.2.1: gateway is none instead of 10.1.2.1, `+
				"scope is 253 instead of 0",
			"route del 10.5.0.0/16 metric 77", "route add 10.5.0.0/16 scope link dev eth0 metric 77 mtu 1400 "+
				"advmss 1300"),
		Entry("another table than asked for",
			`link "eth0": route 2001:db8:5::/48 via 2001:db8::1: missing in table 1000`,
			"-6 route flush table 1000", "-6 route add 2001:db8:5::/48 via 2001:db8::1 dev eth0 metric 77 mtu 1400 "+
				"advmss 1300"),
	)

	It("does not take the kernel's broadcast route for one that was asked for", func() {
		Expect(iface.Verify(c.target, withRoutes(res, cni.Route{Dst: netip.MustParsePrefix("10.1.2.255/32"),
			Scope: new(253)}))).
			To(MatchError(`link "eth0": route 10.1.2.255/32: missing`))
	})

	It("names all that is wrong with a link that is down", func() {
		c.ip("link set eth0 down")
		err := iface.Verify(c.target, res)
		Expect(strings.Split(err.Error(), "\n")).To(ContainElements(
			`link "eth0": is down`, `link "eth0": route 0.0.0.0/0 via 10.1.2.1: missing`,
			`link "eth0": route ::/0 via 2001:db8::1: missing`))
	})

	It("names an address that is in use elsewhere", func() {
		c.host.Cmd("ip", "addr", "add", "2001:db8::4/64", "nodad", "dev", "veth0")
		c.SetSysctl("net/ipv6/conf/eth0/accept_dad", "1")
		res.IPs = append(res.IPs, result("2001:db8::4/64", "").IPs...)
		c.ip("addr add 2001:db8::4/64 dev eth0")
		Eventually(func() error { return iface.Verify(c.target, res) }).Should(And(
			MatchError(rtnl.ErrDuplicate), MatchError(HavePrefix(`link "eth0": address 2001:db8::4/64: `))))
	})

	It("does not mind one that is tentative", func() {
		c.SetSysctl("net/ipv6/conf/eth0/accept_dad", "1")
		c.SetSysctl("net/ipv6/neigh/eth0/retrans_time_ms", "60000")
		res.IPs = append(res.IPs, result("2001:db8::4/64", "").IPs...)
		c.ip("addr add 2001:db8::4/64 dev eth0")
		Expect(c.addrs()).To(ContainElement(ContainSubstring("tentative")))
		Expect(iface.Verify(c.target, res)).To(Succeed())
	})

	DescribeTable("says nothing of", func(change func()) {
		change()
		Expect(iface.Verify(c.target, res)).To(Succeed())
	},
		Entry("more addresses and routes", func() {
			c.IP("addr add 10.7.0.1/24 dev eth0", "route add 10.8.0.0/16 via 10.1.2.9",
				"route add default via 10.1.2.9 metric 5")
		}),
		Entry("routes that another plugin moved to its table", func() {
			for _, move := range []string{
				"route del default", "route add default via 10.1.2.1 dev eth0 table 100",
				"-6 route del default", "-6 route add default via 2001:db8::1 dev eth0 table 100",
			} {
				c.ip(move)
			}
		}),
		Entry("what another plugin changed and told", func() {
			c.ip("link set eth0 mtu 1400 address 02:00:00:00:00:0A")
			res.Interfaces[1].MAC, res.Interfaces[1].MTU = "02:00:00:00:00:0A", 1400
		}),
		Entry("MAC and MTU that the result does not tell", func() {
			c.ip("link set eth0 mtu 1400 address 02:00:00:00:00:01")
			res.Interfaces[1].MAC, res.Interfaces[1].MTU = "", 0
		}),
		Entry("another interface of the chain and its address", func() {
			res.Interfaces = append(res.Interfaces, cni.Interface{Name: "net1", Sandbox: "/run/netns/x",
				MAC: "02:00:00:00:00:01"})
			res.IPs = append(res.IPs, cni.IP{Address: netip.MustParsePrefix("10.200.0.1/24"), Interface: new(2)})
		}),
		Entry("a host interface of the same name", func() {
			res.Interfaces[0].Name, res.Interfaces[0].MAC = "eth0", "02:00:00:00:00:01"
		}),
		Entry("promiscuous mode", func() { c.ip("link set eth0 promisc on") }),
	)

	It("compares the plugin's own routes with their source", func() {
		c.target.Routes = []rtnl.Route{{
			Dst: netip.MustParsePrefix("10.1.2.1/32"), Src: netip.MustParseAddr("10.1.2.3"), Scope: 253,
		}}
		Expect(iface.Verify(c.target, res)).To(MatchError(`link "eth0": route 10.1.2.1/32: missing`))
		c.ip("route add 10.1.2.1/32 dev eth0 scope link src 10.1.2.3")
		Expect(iface.Verify(c.target, res)).To(Succeed())
		c.IP("addr add 10.1.2.4/24 dev eth0", "route change 10.1.2.1/32 dev eth0 scope link src 10.1.2.4")
		Expect(iface.Verify(c.target,
			res)).To(MatchError(`link "eth0": route 10.1.2.1/32: source is 10.1.2.4 instead of 10.1.2.3`))
	})
})

var _ = Describe("a MAC address that a program has set", func() {
	It("is told from one that the kernel chose", func() {
		h := nstest.NewHost()
		h.IP("link add set type bridge", "link set set address 02:00:00:00:00:01", "link add random type bridge")
		h.Do(func() {
			Expect(isMACSet("set")).To(BeTrue())
			Expect(isMACSet("random")).To(BeFalse())
		})
	})

	It("is unknown where /sys shows another namespace's links", Label("detached-netns"), func() {
		h := nstest.NewHost()
		h.IP("link add name same index 7 type bridge", "link set same address 02:00:00:00:00:01",
			"link add name near index 8 type bridge", "link set near address 02:00:00:00:00:02")
		h.Do(func() {
			Expect(unix.Unshare(unix.CLONE_NEWNET)).To(Succeed()) // the thread ends with h.Do
			for _, add := range []string{"link add name same index 7 type bridge",
				"link add name near index 9 address 02:00:00:00:00:02 type bridge", "link add name none type bridge"} {
				out, err := exec.Command("ip", strings.Fields(add)...).CombinedOutput()
				Expect(err).NotTo(HaveOccurred(), string(out))
			}
			for _, name := range []string{"same", "near", "none"} {
				set, err := isMACSet(name)
				Expect(set).To(BeFalse(), name)
				Expect(err).To(MatchError(fs.ErrNotExist), name)
			}
		})
	})
})

// isMACSet asks for a link of the calling thread's namespace.
func isMACSet(name string) (bool, error) {
	GinkgoHelper()
	n := nstest.Must(ns.Open("/proc/thread-self/ns/net"))
	defer n.Close()
	conn := nstest.Must(rtnl.Dial(n))
	defer conn.Close()
	return iface.IsMACSet(nstest.Must(conn.Link(name)))
}
