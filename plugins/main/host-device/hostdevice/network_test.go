package hostdevice

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// configured is a host whose device d0 has each form of addresses, routes and rules. The device d1 shares two routes
// with it.
func configured() *World {
	GinkgoHelper()
	w := newWorld()
	configure(w)
	return w
}

// configure adds the device d1, addresses, routes and rules.
func configure(w *World) {
	GinkgoHelper()
	addDevice(w, "d1", "02:00:00:00:00:d1")
	for _, name := range []string{"d0", "d1", "d0p", "d1p"} {
		w.SetSysctl("net/ipv6/conf/"+name+"/accept_dad", "0")
	}
	for _, words := range []string{
		"addr add 10.2.0.5/24 dev d1", "addr add 2001:db8:2::5/64 nodad dev d1",
		"addr add 10.0.0.5/24 metric 100 dev d0", "addr add 10.0.0.6/24 dev d0",
		"addr add 169.254.10.2/16 scope link dev d0", "addr add 10.9.0.1 peer 10.9.0.2/32 dev d0",
		"addr add 10.7.0.1/24 brd + noprefixroute dev d0", "addr add 10.8.0.1/24 preferred_lft 0 dev d0 label d0:old",
		"addr add 10.6.0.1/24 valid_lft 3600 preferred_lft 1800 dev d0",
		"addr add 2001:db8:7::5/128 noprefixroute nodad valid_lft 3600 preferred_lft 1800 dev d0",
		"addr add 2001:db8:1::6/64 nodad preferred_lft 0 dev d0", "addr add 2001:db8:1::5/64 nodad dev d0",
		"addr add fe80::5/64 nodad dev d0",

		"route add 10.7.0.0/24 dev d0 proto kernel scope link src 10.7.0.1 metric 77",
		"route add default via 10.0.0.1 dev d0 metric 100 mtu 1300 advmss 1200 proto dhcp",
		"route add default via 2001:db8:1::1 dev d0 src 2001:db8:1::5",
		"route add 10.30.0.0/16 via 172.30.0.1 dev d0 onlink tos 0x10",
		"route add 10.31.0.0/16 via inet6 2001:db8:1::9 dev d0", "route add 10.32.0.0/16 dev d0 scope link",
		"route add 10.33.0.0/16 nexthop via 10.0.0.1 dev d0 weight 3 nexthop via 10.2.0.1 dev d1",
		"route add 10.34.0.0/16 nexthop via 10.0.0.1 dev d0 weight 3 nexthop via 10.0.0.2 dev d0",
		"route add 2001:db8:33::/48 nexthop via 2001:db8:1::1 dev d0 nexthop via 2001:db8:2::1 dev d1",

		"route add 10.0.0.0/24 dev d0 scope link table 101", "route add default via 10.0.0.1 dev d0 table 101",
		"route add unreachable 10.99.0.0/16 table 101", "rule add from 10.0.0.5 lookup 101 priority 1001",
		"route add default via 10.7.0.254 dev d0 table 70000", "route add blackhole 10.98.0.0/16 table 70000",
		"rule add from 10.7.0.0/24 iif d0 lookup 70000 priority 1002 protocol static",
		"route add 2001:db8:44::/48 via 2001:db8:1::1 dev d0 table 103",
		"route add prohibit 2001:db8:45::/48 table 103", "-6 rule add from 2001:db8:1::/64 lookup 103 priority 1003",
		"rule add from 10.2.0.0/24 lookup 101 priority 1004", "rule add from 10.0.0.0/8 lookup 999 priority 1005",
	} {
		IP(w.Host, "%s", words)
	}
}

// uses is a configuration with the key, and without IPAM.
func uses(more ...Object) Object {
	return conf(append([]Object{{"ipam": nil, "useInterfaceNetwork": true}}, more...)...)
}

// newLAN is a host whose d0 gets its addresses from a router: by radvd, and by the DHCP client of busybox.
func newLAN() (w *World, router *nstest.Host) {
	GinkgoHelper()
	w, router = newWorld(), nstest.NewNetns()
	IP(w.Host, "link set d0p netns %s", router.Name)
	router.SetSysctl("net/ipv6/conf/all/forwarding", "1")
	router.IP("link set lo up", "link set d0p up", "addr add 10.0.0.1/24 dev d0p",
		"addr add 2001:db8:5::1/64 dev d0p nodad")
	for name, text := range map[string]string{
		"radvd.conf": "interface d0p { AdvSendAdvert on; MinRtrAdvInterval 3; MaxRtrAdvInterval 4; " +
			"prefix 2001:db8:5::/64 { }; };",
		"udhcpc.sh": `#!/bin/sh
case $1 in
bound | renew)
	ip addr replace "$ip/$mask" dev "$interface" valid_lft "$lease" preferred_lft "$lease"
	ip route replace default via "$router" dev "$interface" proto dhcp metric 50
	;;
esac
`} {
		Expect(os.WriteFile(filepath.Join(w.Dir, name), []byte(text), 0o700)).To(Succeed())
	}
	router.Start(nstest.Program{Path: "radvd", Args: []string{"-n", "-C", w.Dir + "/radvd.conf", "-m", "stderr",
		"-p", w.Dir + "/radvd.pid"}})
	router.Start(nstest.Program{Path: "dnsmasq", Args: []string{"--no-daemon", "--conf-file=/dev/null", "--port=0",
		"--interface=d0p", "--bind-interfaces", "--user=root", "--group=root", "--pid-file=", "--log-dhcp",
		"--log-facility=" + w.Dir + "/leases.log", "--no-ping", "--dhcp-leasefile=" + w.Dir + "/leases",
		"--dhcp-range=10.0.0.50,10.0.0.59,1h", "--dhcp-option=3,10.0.0.1", "--dhcp-authoritative"}})
	w.Start(nstest.Program{Path: "busybox", Args: []string{"udhcpc", "-f", "-i", "d0", "-s", w.Dir + "/udhcpc.sh",
		"-p", w.Dir + "/udhcpc.pid", "-t", "10", "-T", "1"}})
	return w, router
}

// l3 is what a namespace has above its links.
func l3(h *nstest.Host) string {
	GinkgoHelper()
	return h.Snapshot("addresses", "routes", "rules")
}

// lines lists the output of ip(8), without blanks at the ends of the lines.
func lines(h *nstest.Host, words string) (list []string) {
	GinkgoHelper()
	for line := range strings.Lines(IP(h, "%s", words)) {
		list = append(list, strings.TrimSpace(line))
	}
	return list
}

var _ = Describe("useInterfaceNetwork", Label("device-network"), func() {
	It("gives the container the addresses, routes and rules of the device", func() {
		w := configured()
		a := attached(w, uses())
		Expect(lines(a.Host, "-br -4 addr show net1")).To(ConsistOf(And(HavePrefix("net1"),
			ContainSubstring("10.0.0.5/24"), ContainSubstring("10.0.0.6/24"))))
		details := IP(a.Host, "addr show net1")
		for _, text := range []string{"10.0.0.5/24 metric 100 scope global", "10.0.0.6/24 scope global secondary",
			"169.254.10.2/16 scope link", "10.9.0.1 peer 10.9.0.2/32 scope global",
			"10.7.0.1/24 brd 10.7.0.255 scope global noprefixroute net1", "10.8.0.1/24 scope global deprecated net1",
			"10.6.0.1/24 scope global net1\n       valid_lft forever preferred_lft forever",
			"2001:db8:7::5/128 scope global nodad dynamic noprefixroute", "fe80::5/64 scope link nodad",
			"2001:db8:1::6/64 scope global nodad deprecated"} {
			Expect(details).To(ContainSubstring(text))
		}
		Expect(lines(a.Host, "route show table main")).To(ContainElements(
			"default via 10.0.0.1 dev net1 proto dhcp metric 100 mtu 1300 advmss 1200",
			"10.7.0.0/24 dev net1 proto kernel scope link src 10.7.0.1 metric 77",
			"10.30.0.0/16 tos 0x10 via 172.30.0.1 dev net1 onlink",
			"10.31.0.0/16 via inet6 2001:db8:1::9 dev net1", "10.32.0.0/16 dev net1 scope link",
			"10.33.0.0/16 via 10.0.0.1 dev net1", "nexthop via 10.0.0.2 dev net1 weight 1"))
		Expect(lines(a.Host, "-6 route show table main")).To(ContainElements(
			HavePrefix("default via 2001:db8:1::1 dev net1 src 2001:db8:1::5 metric 1024"),
			HavePrefix("2001:db8:33::/48 via 2001:db8:1::1 dev net1 metric 1024")))
		Expect(lines(a.Host, "route show table 101")).To(ConsistOf("default via 10.0.0.1 dev net1",
			"10.0.0.0/24 dev net1 scope link", "unreachable 10.99.0.0/16"))
		Expect(lines(a.Host, "route show table 70000")).To(ConsistOf("default via 10.7.0.254 dev net1",
			"blackhole 10.98.0.0/16"))
		Expect(lines(a.Host, "-6 route show table 103")).To(ConsistOf(HavePrefix("2001:db8:44::/48 via 2001:db8:1::1"),
			HavePrefix("prohibit 2001:db8:45::/48 dev lo")))
		Expect(append(lines(a.Host, "rule"), lines(a.Host, "-6 rule")...)).To(ContainElements(
			"1001:\tfrom 10.0.0.5 lookup 101", "1002:\tfrom 10.7.0.0/24 iif net1 lookup 70000 proto static",
			"1003:\tfrom 2001:db8:1::/64 lookup 103"))
		Expect(IP(a.Host, "rule")).NotTo(Or(ContainSubstring("1004"), ContainSubstring("1005")))
		Expect(lines(w.Host, "route show 10.33.0.0/16")).To(ConsistOf("10.33.0.0/16 via 10.2.0.1 dev d1"))
		w.Succeeds(a.As("CHECK"))
	})

	It("has addresses with gateways, and routes with table, metric and scope in the result", func() {
		w := configured()
		a := attached(w, uses())
		gateways := map[string]string{}
		for _, ip := range a.Result.IPs {
			Expect(*ip.Interface).To(BeZero())
			gateways[ip.Address] = ip.Gateway
		}
		Expect(gateways).To(Equal(map[string]string{"10.0.0.5/24": "10.0.0.1", "10.0.0.6/24": "10.0.0.1",
			"10.7.0.1/24": "10.7.0.254", "10.8.0.1/24": "", "10.6.0.1/24": "", "10.9.0.1/32": "10.0.0.1",
			"169.254.10.2/16": "", "2001:db8:1::5/64": "2001:db8:1::1", "2001:db8:1::6/64": "2001:db8:1::1",
			"2001:db8:7::5/128": "2001:db8:1::1"}))
		for _, text := range []string{
			`{"dst":"0.0.0.0/0","gw":"10.0.0.1","mtu":1300,"advmss":1200,"priority":100,"table":254}`,
			`{"dst":"10.0.0.0/24","table":101,"scope":253}`, `{"dst":"0.0.0.0/0","gw":"10.0.0.1","table":101}`,
		} {
			Expect(strings.Join(strings.Fields(a.Result.Text), "")).To(ContainSubstring(text))
		}
		Expect(a.Result.Text).NotTo(ContainSubstring("10.99.0.0"))
		w.Succeeds(a.As("DEL"))
		By("a version without tables and scopes has what it can express")
		a = attached(w, uses(Object{"cniVersion": "1.0.0"}))
		Expect(a.Result.Text).NotTo(Or(ContainSubstring(`"table": 101`), ContainSubstring("10.32.0.0")))
		w.Succeeds(a.As("CHECK"))
		w.Succeeds(a.As("DEL"))
		a = attached(w, uses(Object{"cniVersion": "0.2.0"}))
		Expect(a.Result.Text).To(And(ContainSubstring(`"ip": "`), ContainSubstring(`"ip6"`)))
	})

	DescribeTable("gives the host back what it had", func(end func(*World, Attached)) {
		w := configured()
		before := l3(w.Host)
		inside := nstest.NewNetns()
		a := attached(w, uses())
		end(w, a)
		Eventually(func() []string { return strings.Split(l3(w.Host), "\n") }).Should(
			ConsistOf(strings.Split(before, "\n")))
		Expect(l3(a.Host)).To(Equal(l3(inside)))
		Expect(links(w)).To(ContainSubstring("d0"))
		Expect(w.Files("/run/hawser")).NotTo(ContainSubstring(".json"))
	},
		Entry("with DEL", func(w *World, a Attached) { w.Succeeds(a.As("DEL")); w.Succeeds(a.As("DEL")) }),
		Entry("with GC", func(w *World, _ Attached) {
			w.Succeeds(Call{Command: "GC", Conf: uses(Object{"cni.dev/valid-attachments": []Object{}})})
		}),
		Entry("with DEL that knows nothing", func(w *World, a Attached) {
			w.Succeeds(Call{Command: "DEL", IfName: "net1", Conf: Object{"cniVersion": "1.1.0", "name": "net",
				"type": "host-device"}})
		}),
		Entry("when the container has changed all it can", func(w *World, a Attached) {
			a.Host.IP("addr flush dev net1", "route flush table 101", "rule del from 10.0.0.5 lookup 101",
				"link set net1 down", "link set net1 name eth9")
			IP(a.Host, "addr add 192.0.2.1/24 dev eth9")
			w.Succeeds(a.As("DEL"))
		}),
	)

	It("gives the host back what it had after an ADD that fails", func() {
		w := configured()
		before := l3(w.Host) + links(w)
		w.On("ADD", "exit 3", "one")
		cont := nstest.NewNetns()
		empty := l3(cont)
		w.Fails(Call{Command: "ADD", Netns: cont.Path, IfName: "net1",
			Conf: uses(Object{"ipam": Object{"type": "fake"}})}, cni.CodeInternal)
		Eventually(func() string { return l3(w.Host) + links(w) }).Should(Equal(before))
		Expect(l3(cont)).To(Equal(empty))
	})

	DescribeTable("passes CHECK, and gives back what there was, in a list with", func(next Step, needs ...string) {
		nstest.Need(needs...)
		w := NewNode()
		addDevice(w, "d0", mac0)
		configure(w)
		before := l3(w.Host)
		list := List{{Plugin: "host-device", Keys: Object{"device": "d0", "enabledad": false,
			"useInterfaceNetwork": true}}, next}
		pod := w.Up(NewPod("one"), list)
		w.Must("CHECK", pod, list)
		w.Must("DEL", pod, list)
		Eventually(func() []string { return strings.Split(l3(w.Host), "\n") }).Should(
			ConsistOf(strings.Split(before, "\n")))
	},
		Entry("sbr", Step{Plugin: "sbr"}),
		Entry("tuning", Step{Plugin: "tuning", Keys: Object{"mtu": 1400, "mac": "0a:00:00:00:00:17"}}),
		Entry("vrf", Label("kernel"), Step{Plugin: "vrf", Keys: Object{"vrfname": "red"}}, "vrf"),
	)

	It("restores nothing that has expired", func() {
		w := newWorld()
		IP(w.Host, "addr add 10.0.0.5/24 dev d0")
		IP(w.Host, "addr add 2001:db8::5/64 nodad valid_lft 2 preferred_lft 2 dev d0")
		a := attached(w, uses())
		Eventually(func() string { return IP(a.Host, "addr show net1") }).ShouldNot(
			ContainSubstring("2001:db8::5"))
		w.Succeeds(a.As("DEL"))
		Expect(Show(w.Host, "d0").Addrs()).To(And(ContainElement("10.0.0.5/24"), Not(ContainElement(
			"2001:db8::5/64"))))
	})

	It("restores the IPv4 network if IPv6 is disabled on the device that returns", func() {
		w := configured()
		IP(w.Host, "route add 2001:db8:46::/48 dev d0")
		before := lines(w.Host, "-4 -o addr show d0")
		routes := lines(w.Host, "-4 route show dev d0 default")
		a := attached(w, uses())
		w.SetSysctl("net/ipv6/conf/default/disable_ipv6", "1") // as NetworkManager does when a device appears
		w.Succeeds(a.As("DEL"))
		Expect(lines(w.Host, "-4 -o addr show d0")).To(HaveLen(len(before)))
		Expect(lines(w.Host, "-4 route show dev d0 default")).To(Equal(routes))
		Expect(lines(w.Host, "-6 addr show d0")).To(BeEmpty())
	})

	DescribeTable("finds the device at home, as the kernel brings hardware there,", func(same bool, words ...string) {
		w := configured()
		before := l3(w.Host)
		a := attached(w, uses())
		IP(a.Host, "link set net1 netns %s", w.Host.Name)
		w.Host.IP("link set net1 name d0", "link set d0 up")
		w.SetSysctl("net/ipv6/conf/d0/accept_dad", "0")
		for _, command := range words {
			IP(w.Host, "%s", command)
		}
		if !same {
			before = l3(w.Host)
		}
		w.Succeeds(a.As("DEL"))
		Expect(Show(w.Host, "d0").Flags).To(ContainElement("UP"))
		Eventually(func() []string { return strings.Split(l3(w.Host), "\n") }).Should(
			ConsistOf(strings.Split(before, "\n")))
	},
		Entry("and restores what is missing", true),
		Entry("and restores the rest", true, "addr add 10.0.0.5/24 metric 100 dev d0",
			"route add default via 10.0.0.1 dev d0 metric 100 mtu 1300 advmss 1200 proto dhcp"),
		Entry("and leaves what a network manager configured", false, "addr add 10.0.0.77/24 dev d0",
			"route add default via 10.0.0.254 dev d0"),
	)

	It("leaves a route with another next hop, which a network manager has added", func() {
		w := newWorld()
		w.Host.IP("addr add 10.0.0.5/24 dev d0", "route add default via 10.0.0.1")
		a := attached(w, uses())
		IP(a.Host, "link set net1 netns %s", w.Host.Name)
		w.Host.IP("link set net1 name d0", "link set d0 up", "addr add 10.0.0.5/24 dev d0",
			"route add default via 10.0.0.254")
		w.Succeeds(a.As("DEL"))
		Expect(lines(w.Host, "route show default")).To(ConsistOf("default via 10.0.0.254 dev d0"))
	})

	It("leaves out a route that the container has, and says so", func() {
		w := configured()
		IP(w.Host, "route add default via 10.0.0.1 dev d0")
		cont := nstest.NewNetns()
		cont.IP("link add eth0 type veth peer name eth0p", "link set eth0 up", "link set eth0p up")
		cont.IP("addr add 10.244.0.9/24 dev eth0", "route add default via 10.244.0.1")
		answer := w.Call(Call{Command: "ADD", Netns: cont.Path, IfName: "net1", Conf: uses()})
		Expect(answer.Stderr).To(ContainSubstring("route 0.0.0.0/0 of table 254: the container has a route"))
		a := Attached{Host: cont, Call: Call{Netns: cont.Path, IfName: "net1", Conf: uses()}, Result: answer.Added()}
		Expect(lines(cont, "route show default")).To(ConsistOf("default via 10.244.0.1 dev eth0",
			HavePrefix("default via 10.0.0.1 dev net1 proto dhcp metric 100")))
		Expect(a.Result.Text).To(ContainSubstring(`"gateway": "10.0.0.1"`))
		w.Succeeds(a.As("CHECK"))
		w.Succeeds(a.As("DEL"))
		Expect(lines(cont, "route show default")).To(ConsistOf("default via 10.244.0.1 dev eth0"))
		Expect(lines(w.Host, "route show default")).To(HaveLen(2))
	})

	It("lets IPAM add addresses and routes", func() {
		w := configured()
		ipam := func(answer string) Attached {
			w.Lend(answer, "one")
			return attached(w, uses(Object{"ipam": Object{"type": "fake"}}))
		}
		a := ipam(`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.9/24"},{"address":"10.0.0.5/24",
			"gateway":"10.0.0.1"}],"routes":[{"dst":"203.0.113.0/24"}]}`)
		Expect(a.Result.IPs).To(HaveLen(11))
		Expect(a.Result.IPs[0].Address).To(Equal("10.1.0.9/24"))
		Expect(lines(a.Host, "route show 203.0.113.0/24")).To(HaveLen(1))
		w.Succeeds(a.As("CHECK"))
		w.Succeeds(a.As("DEL"))
		a = ipam(`{"cniVersion":"1.1.0","routes":[{"dst":"203.0.113.0/24","gw":"10.0.0.1"}]}`)
		Expect(a.Result.IPs).To(HaveLen(10))
		w.Succeeds(a.As("CHECK"))
	})

	It("waits for an address of the device, and fails with code 11 if there is none", func() {
		w := newWorld()
		before := links(w)
		add := Call{Command: "ADD", Netns: nstest.NewNetns().Path, IfName: "net1", Conf: uses()}
		Expect(w.Fails(add, cni.CodeTryAgain)).To(ContainSubstring("has no address"))
		Expect(links(w)).To(Equal(before))
		defer time.AfterFunc(time.Second, func() {
			defer GinkgoRecover()
			IP(w.Host, "addr add 10.0.0.5/24 dev d0")
		}).Stop()
		Expect(w.Add(add).IPs).To(HaveLen(1))
	})

	It("waits while the device has only an address that the container does not get", func() {
		w := newWorld()
		IP(w.Host, "addr add 2001:db8:1::9/64 nodad mngtmpaddr valid_lft 600 preferred_lft 0 dev d0")
		go func() {
			defer GinkgoRecover()
			w.AwaitSubscription("00000111") // links and addresses
			IP(w.Host, "addr add 10.0.0.5/24 dev d0")
		}()
		add := Call{Command: "ADD", Netns: nstest.NewNetns().Path, IfName: "net1", Conf: uses()}
		Expect(w.Add(add).IPs).To(ConsistOf(HaveField("Address", "10.0.0.5/24")))
	})

	It("waits for the routes that a network manager adds after the address", func() {
		w := newWorld()
		go func() {
			defer GinkgoRecover()
			w.AwaitSubscription("00000111") // links and addresses
			IP(w.Host, "addr add 10.0.0.5/24 dev d0")
			w.AwaitSubscription("000405d0") // routes and rules as well
			w.Host.IP("route add default via 10.0.0.254 dev d0", "rule add from 10.0.0.5 lookup main")
		}()
		added := w.Add(Call{Command: "ADD", Netns: nstest.NewNetns().Path, IfName: "net1", Conf: uses()})
		Expect(added.Routes).To(ContainElement(HaveKeyWithValue("gw", "10.0.0.254")))
		Expect(added.IPs).To(ConsistOf(HaveField("Gateway", "10.0.0.254")))
	})

	It("waits for the addresses of router advertisements", func() {
		w := newWorld()
		stop, stopped := make(chan struct{}), make(chan struct{})
		defer func() {
			close(stop)
			<-stopped // the namespace goes next
		}()
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				case <-time.After(300 * time.Millisecond): // it has no address while the device moves
					_ = InterceptGomegaFailure(func() { w.Host.AdvertiseRouter("d0p", "2001:db8:5::") })
				}
			}
		}()
		Eventually(func() string { return IP(w.Host, "-6 addr show d0") }).Should(
			ContainSubstring("2001:db8:5:"))
		a := attached(w, uses())
		Expect(a.Result.IPs).To(HaveLen(1))
		Expect(a.Result.IPs[0].Address).To(HavePrefix("2001:db8:5:"))
		w.Succeeds(a.As("CHECK"))
		w.Succeeds(a.As("DEL"))
		Eventually(func() string { return IP(w.Host, "-6 addr show d0") }).Should(
			ContainSubstring("2001:db8:5:"))
	})

	It("serves a host whose device radvd and a DHCP client configure", func() {
		nstest.NeedProgram("radvd", "dnsmasq", "busybox")
		w, router := newLAN()
		state := func() string { return IP(w.Host, "addr show d0") + IP(w.Host, "route") }
		Eventually(state).Should(And(MatchRegexp(`inet 10.0.0.5\d/24.* dynamic`),
			ContainSubstring("inet6 2001:db8:5:"), ContainSubstring("default via 10.0.0.1 dev d0 proto dhcp")))
		before := l3(w.Host)
		for range 2 {
			a := attached(w, uses())
			Expect(a.Result.IPs).To(HaveLen(2))
			Expect(a.Result.IPs[0].Gateway).To(Equal("10.0.0.1"))
			Expect(IP(a.Host, "-4 addr show net1")).To(ContainSubstring("valid_lft forever"))
			for _, router := range []string{"10.0.0.1", "2001:db8:5::1"} {
				Expect(Ping(a.Host, router)).To(BeTrue(), router)
			}
			w.Succeeds(a.As("CHECK"))
			w.Succeeds(a.As("DEL"))
			Eventually(func() string { return l3(w.Host) }).Should(Equal(before))
			Expect(IP(w.Host, "-4 addr show d0")).To(MatchRegexp(`valid_lft \d+sec`))
		}
		w.Cmd("sh", "-c", "kill -USR1 $(cat "+w.Dir+"/udhcpc.pid)") // renew
		Eventually(func() string { return router.Cmd("cat", w.Dir+"/leases.log") }).Should(
			MatchRegexp(`(?s)DHCPACK.*DHCPACK`))
		Expect(l3(w.Host)).To(Equal(before))
	})

	It("leaves the device to the host's own configuration after a reboot", func() {
		w := configured()
		a := attached(w, uses())
		// After a reboot there are no records and no namespaces. The host's network manager configures the device.
		IP(a.Host, "link set net1 netns %s", w.Host.Name)
		w.Host.IP("link set net1 name d0", "link set d0 up", "addr add 10.0.0.77/24 dev d0",
			"route add default via 10.0.0.254 dev d0")
		w.Cmd("ip", "link", "set", "d0", "alias", "")
		w.Cmd("rm", "-rf", "/run/hawser")
		before := l3(w.Host) + links(w)
		old := a.As("DEL")
		old.Netns = "/run/netns/before-the-reboot"
		w.Succeeds(old)
		w.Succeeds(Call{Command: "GC", Conf: uses(Object{"cni.dev/valid-attachments": []Object{}})})
		Expect(l3(w.Host) + links(w)).To(Equal(before))
		a = w.AttachIn(nstest.NewNetns(), Call{ID: "two", IfName: "net1", Conf: uses()})
		Expect(IP(a.Host, "-4 addr show net1")).To(ContainSubstring("10.0.0.77/24"))
		w.Succeeds(old)
		w.Succeeds(a.As("CHECK"))
		w.Succeeds(a.As("DEL"))
		Eventually(func() string { return l3(w.Host) + links(w) }).Should(Equal(before))
	})

	DescribeTable("is missed by CHECK:", func(says string, commands ...string) {
		w := configured()
		a := attached(w, uses())
		for _, words := range commands {
			IP(a.Host, "%s", words)
		}
		Expect(w.Fails(a.As("CHECK"), cni.CodeDrift)).To(ContainSubstring(says))
	},
		Entry("an address", "10.0.0.6/24", "addr del 10.0.0.6/24 dev net1"),
		Entry("a route of a table", "table 70000", "route del default table 70000"),
		Entry("a route of a table that main has", "table 101", "route del 10.0.0.0/24 table 101"),
		Entry("a route to nowhere", "10.99.0.0/16", "route del unreachable 10.99.0.0/16 table 101"),
		Entry("a rule", "rule from 10.0.0.5/32 lookup 101", "rule del from 10.0.0.5 lookup 101"),
	)

	It("is refused for a device with a userspace driver", func() {
		w := newWorld()
		withSys(w, pci+"driver -> ../drivers/vfio-pci")
		add := Call{Command: "ADD", Netns: nstest.NewNetns().Path, IfName: "net1", Conf: uses(id(vf))}
		Expect(w.Fails(add, cni.CodeConfig)).To(HavePrefix("useInterfaceNetwork: true "))
	})
})

// The kernel reports a lifetime of 0 until it deletes the address, and would refuse to add one.
var _ = It("an address that has just expired is not in the network of a device", func() {
	address := func(last byte, seconds uint32) (a rtnl.AddrCopy) {
		lifetimes := binary.NativeEndian.AppendUint32(nil, seconds)
		attrs := []Object{{"kind": unix.IFA_LOCAL, "value": []byte{192, 0, 2, last}},
			{"kind": unix.IFA_CACHEINFO, "value": append(append(lifetimes, lifetimes...), make([]byte, 8)...)}}
		text := nstest.Must(json.Marshal(Object{"header": Object{"Family": unix.AF_INET, "Prefixlen": 24},
			"attrs": attrs}))
		Expect(json.Unmarshal(text, &a)).To(Succeed())
		return a
	}
	var n network
	n.keepAddrs([]rtnl.AddrCopy{address(1, 0), address(2, 1)})
	Expect(n.Addrs).To(HaveLen(1))
	Expect(n.Addrs[0].Prefix().String()).To(Equal("192.0.2.2/24"))
})
