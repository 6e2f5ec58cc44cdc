package dhcp

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// newLAN6 returns a network whose router has 2001:db8::1 and, behind it, 2001:db8:1::1.
func newLAN6() *lan {
	GinkgoHelper()
	l := newLAN()
	for _, name := range []string{"br0", "default"} {
		l.server.SetSysctl("net/ipv6/conf/"+name+"/accept_dad", "0")
	}
	l.server.SetSysctl("net/ipv6/conf/all/forwarding", "1")
	// Kea and radvd need a running interface.
	l.server.IP("link add port0 type veth peer name far0", "link set far0 up", "link set port0 up master br0",
		"link set br0 down", "link set br0 address 02:00:00:00:00:02 addrgenmode eui64", "link set br0 up",
		"addr add 2001:db8::1/64 dev br0 nodad", "link set lo up", "addr add 2001:db8:1::1/128 dev lo")
	isUp(l.server, "br0", "far0")
	for _, name := range []string{"br0", "far0"} { // the addresses from which they send
		LinkLocal(l.server, name)
	}
	return l
}

// container6 returns a container without duplicate address detection, which main plugins also disable.
func (l *lan) container6() *nstest.Host {
	GinkgoHelper()
	c := l.container()
	c.SetSysctl("net/ipv6/conf/eth0/accept_dad", "0")
	return c
}

// kea starts Debian's DHCPv6 server, with leases of a minute from a pool, on another interface than the router's.
func (l *lan) kea(pool string) *gbytes.Buffer {
	GinkgoHelper()
	nstest.NeedProgram("kea-dhcp6")
	l.server.SetSysctl("net/ipv6/conf/far0/forwarding", "0") // otherwise, it would receive router solicitations
	dir := GinkgoT().TempDir()
	conf := fmt.Sprintf(`{"Dhcp6": {"interfaces-config": {"interfaces": ["far0"]},
		"lease-database": {"type": "memfile", "name": "%[1]s/leases"}, "server-id": {"type": "LL", "persist": false},
		"renew-timer": 1, "rebind-timer": 30, "preferred-lifetime": 40, "valid-lifetime": 60,
		"option-data": [{"name": "dns-servers", "data": "2001:db8::53"},
			{"name": "domain-search", "data": "kea.example"}],
		"subnet6": [{"id": 1, "subnet": "2001:db8::/64", "interface": "far0", "pools": [{"pool": %[2]q}]}],
		"loggers": [{"name": "kea-dhcp6", "severity": "INFO", "output_options": [{"output": "stdout"}]}]}}`, dir, pool)
	Expect(os.WriteFile(dir+"/conf", []byte(conf), 0o600)).To(Succeed())
	log := program(l.server, "env", "KEA_PIDFILE_DIR="+dir, "KEA_LOCKFILE_DIR="+dir, "KEA_DHCP_DATA_DIR="+dir,
		"kea-dhcp6", "-c", dir+"/conf")
	Eventually(log).Should(gbytes.Say("DHCP6_STARTED"))
	return log
}

// radvd starts Debian's router advertisement daemon with options of the prefix.
func (l *lan) radvd(prefix string) {
	GinkgoHelper()
	nstest.NeedProgram("radvd")
	dir := GinkgoT().TempDir()
	conf := "interface br0 { AdvSendAdvert on; MinRtrAdvInterval 3; MaxRtrAdvInterval 4; prefix 2001:db8::/64 { " +
		prefix + " }; RDNSS fe80::1 { }; DNSSL radvd.example { }; };"
	Expect(os.WriteFile(dir+"/conf", []byte(conf), 0o600)).To(Succeed())
	program(l.server, "radvd", "-n", "-C", dir+"/conf", "-m", "stderr", "-p", dir+"/pid")
	// It answers solicitations once it has its socket.
	Eventually(func() string { return l.server.Cmd("cat", "/proc/net/raw6") }).Should(ContainSubstring(":003A "))
}

// globalAddrs returns the IPv6 addresses of a container's eth0 without the link-local one.
func globalAddrs(c *nstest.Host) []string {
	GinkgoHelper()
	var list []string
	for line := range strings.Lines(c.Cmd("ip", "-6", "-o", "addr", "show", "dev", "eth0", "scope", "global")) {
		list = append(list, strings.Fields(line)[3])
	}
	return list
}

var _ = Describe("IPv6", func() {
	It("gets a lease from kea in addition to IPv4, renews it and releases it", Label("ipv6-dhcp"), func() {
		nstest.Need("macvlan")
		l, c := newLAN6(), nstest.NewNetns()
		l.IP("link add up0 type veth peer name port9 netns "+l.server.Name, "link set up0 up")
		l.server.IP("link set port9 up master br0")
		four := l.serve()
		log := l.kea("2001:db8::50-2001:db8::50")
		l.radvd("AdvAutonomous on;") // which the kernel would also use
		d := l.start("-resendtimeout", "20s")
		l.keys = `"ipv6": "dhcp"`
		program := nstest.Build("macvlan")
		macvlan := func(command string, r *Result) Answer {
			GinkgoHelper()
			call := l.withKey(command, c, "master", `"up0"`)
			if r != nil {
				call.Conf = strings.TrimSuffix(call.Conf.(string), "}") + `, "prevResult": ` + r.Text + "}"
			}
			call.Conf = strings.Replace(call.Conf.(string), `"type": "bridge"`, `"type": "macvlan"`, 1)
			call.Path = filepath.Dir(program)
			return Ran(l.Run(call.Program(l.World, program)))
		}
		r := macvlan("ADD", nil).Added()
		Expect(r.IPs).To(HaveLen(2))
		Expect(r.IPs[1].Address).To(Equal("2001:db8::50/128"))
		Expect(r.IPs[1].Gateway).To(Equal("fe80::ff:fe00:2"))
		Expect(r.DNS).To(HaveKeyWithValue("nameservers", ConsistOf("2001:db8::53", "fe80::1%eth0")))
		Expect(r.DNS).To(HaveKeyWithValue("search", ConsistOf("kea.example", "radvd.example")))
		Expect(globalAddrs(c)).To(Equal([]string{"2001:db8::50/128"}), "no address from the kernel")
		for _, to := range []string{"10.9.0.1", "2001:db8::1", "2001:db8:1::1"} {
			c.Cmd("ping", "-c1", "-w40", to)
		}
		Expect(macvlan("CHECK", &r).Code).To(BeZero())
		Expect(macvlan("ADD", nil).Code).NotTo(BeZero())
		By("a new daemon renews it")
		d.end(syscall.SIGKILL)
		l.start()
		Eventually(log).Should(gbytes.Say("DHCP6_LEASE_RENEW"))
		Expect(globalAddrs(c)).To(Equal([]string{"2001:db8::50/128"}))
		Expect(macvlan("CHECK", &r).Code).To(BeZero())
		Expect(macvlan("DEL", &r).Code).To(BeZero())
		Eventually(log).Should(gbytes.Say("2001:db8::50.* released properly"))
		Eventually(count(four, release)).Should(Equal(1))
		Expect(l.records()).To(BeEmpty())
	})

	It("removes only what the kernel has configured from advertisements", Label("ipv6-dhcp"), func(ctx SpecContext) {
		c := newLAN().container6()
		c.IP("link set eth0 up", "addr add 2001:db8:5::5/64 dev eth0 nodad",
			"addr add 10.9.0.5/24 valid_lft 99 preferred_lft 99 dev eth0")
		own := LinkLocal(c, "eth0")
		routes := func() string { return c.Cmd("ip", "-6", "route", "show", "table", "all") }
		// The kernel adds the local route of an address asynchronously, after the address is visible.
		Eventually(routes).Should(And(ContainSubstring("local 2001:db8:5::5 "), ContainSubstring("local "+own+" ")))
		before := routes()
		c.IP("addr add 2001:db8::9/64 dev eth0 nodad valid_lft 99 preferred_lft 99",
			"route add 2001:db8:1::/64 dev eth0 proto kernel", "route add default via fe80::1 dev eth0 proto ra")
		c.IP("route add 2001:db8:2::/64 dev eth0 proto kernel table 7", "route add 2001:db8:3::/64 dev eth0")
		m := machine6{id: &identity{}, progress: &progress{}}
		Expect(m.prepare(ctx, linkOf(c))).To(Succeed())
		Expect(m.ra.LinkLocal.String()).To(Equal(own))
		Expect(globalAddrs(c)).To(Equal([]string{"2001:db8:5::5/64"}))
		Expect(addrs(c)()).To(Equal([]string{"10.9.0.5/24"}))
		c.IP("route del 2001:db8:2::/64 dev eth0 table 7", "route del 2001:db8:3::/64 dev eth0")
		Expect(routes()).To(Equal(before))
		By("but not after the first time")
		c.IP("addr add 2001:db8::9/64 dev eth0 nodad valid_lft 99 preferred_lft 99")
		m.id.MAC = ownMAC
		Expect(m.prepare(ctx, linkOf(c))).To(Succeed())
		Expect(globalAddrs(c)).To(HaveLen(2))
	})

	It("gets an address in the prefix that radvd advertises, although IPv6 was disabled", Label("ipv6-slaac"), func() {
		l := newLAN6()
		l.radvd("")
		d := l.start("-resendtimeout", "20s")
		l.keys = `"ipv4": false, "ipv6": "slaac", "priority": 7`
		c := l.container6()
		c.SetSysctl("net/ipv6/conf/eth0/disable_ipv6", "1")
		c.Cmd("ip", "link", "set", "eth0", "address", "02:00:00:00:00:03")
		r := l.Add(l.call("ADD", c))
		Expect(r.Text).To(MatchJSON(`{"cniVersion": "1.1.0", "ips": [{"address": "2001:db8::ff:fe00:3/64",
			"gateway": "fe80::ff:fe00:2"}], "routes": [{"dst": "::/0", "gw": "fe80::ff:fe00:2", "priority": 7}],
			"dns": {"nameservers": ["fe80::1%eth0"], "search": ["radvd.example"]}}`))
		c.IP("addr add 2001:db8::ff:fe00:3/64 dev eth0 nodad", "route add default via fe80::ff:fe00:2 dev eth0")
		c.Cmd("ping", "-c1", "-w40", "2001:db8:1::1")
		Expect(globalAddrs(c)).To(HaveLen(1))
		l.Succeeds(l.withPrevResult("CHECK", c, r))
		Expect(l.Fails(l.call("ADD", c), cni.CodeExists)).To(ContainSubstring("has a lease already"))
		By("DEL also removes the record without a daemon")
		d.end(syscall.SIGKILL)
		Expect(l.records()).To(HaveLen(1))
		Expect(l.Call(l.withPrevResult("DEL", c, r)).Code).To(BeZero())
		Expect(l.records()).To(BeEmpty())
	})

	It("gets a lost address again with the next daemon", Label("ipv6-slaac", "slow"), func() {
		l := newLAN6()
		c := l.container6()
		l.keys = `"ipv4": false, "ipv6": "slaac"`
		l.radvd("AdvAutonomous on; AdvValidLifetime 5; AdvPreferredLifetime 3;")
		d := l.start()
		l.Add(l.call("ADD", c))
		l.server.IP("link set port1 nomaster")
		Eventually(d.log).Should(gbytes.Say("msg=lost"))
		d.end(syscall.SIGKILL)
		d = l.start()
		l.server.IP("link set port1 master br0")
		Eventually(d.log).Should(gbytes.Say("msg=leased"))
		Expect(globalAddrs(c)).To(HaveExactElements(HaveSuffix("/64")))
		l.Succeeds(l.call("DEL", c))
	})

	DescribeTable("that is not available fails ADD, which releases the IPv4 lease", Label("ipv6-add-fails"), func(
		prepare func(l *lan), want string,
	) {
		l := newLAN6()
		s := l.serve()
		prepare(l)
		before := l.records()
		l.start("-resendtimeout", "3s")
		l.keys = `"ipv6": "dhcp"`
		Expect(l.Fails(l.call("ADD", l.container6()), cni.CodeTryAgain)).To(MatchRegexp(want))
		Eventually(count(s, release)).Should(Equal(1))
		Expect(l.records()).To(Equal(before))
	},
		Entry("no router", Label("slow"), func(*lan) {},
			`interface "eth0": no router answered [2-9] router solicitations within 3s`),
		Entry("no server", func(l *lan) { l.radvd("") },
			`interface "eth0": no DHCPv6 server answered [2-9] Solicit messages within 3s`),
		Entry("no address left", Label("slow"), func(l *lan) {
			l.kea("2001:db8::50-2001:db8::50")
			l.radvd("")
			l.start()
			l.keys = `"ipv4": false, "ipv6": "dhcp"`
			l.Add(l.call("ADD", l.container6()))
			l.socket += "2"
		}, `the DHCPv6 server refuses: NoAddrsAvail "`),
	)

	It("fails ADD immediately if it is not possible, while IPv4 still waits", func() {
		l := newLAN6()
		l.Cmd("sh", "-ec", "mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys")
		l.start("-resendtimeout", "4s") // no server answers
		l.keys = `"ipv6": "dhcp"`
		Expect(l.Fails(l.call("ADD", l.container6()), cni.CodeTryAgain)).To(ContainSubstring("read-only file system"))
	})

	It("is code 2 with the reference's daemon, which supports only IPv4", Label("dhcp-reference"), func() {
		l := newLAN6()
		l.serve()
		c := l.container6()
		log := program(l.Host, nstest.Newest().Program("dhcp"), "daemon", "-socketpath", l.socket, "-timeout", "1s")
		Eventually(func() int { return l.Call(l.call("STATUS", c)).Code }).Should(BeZero())
		l.up(c)
		l.keys = `"ipv6": "slaac"`
		Expect(l.Fails(l.call("ADD", c), cni.CodeUnsupportedField)).To(ContainSubstring(`ipam.ipv6: "slaac"`))
		Eventually(log).Should(gbytes.Say("releasing lease"))
	})

	DescribeTable("is requested by a configuration", func(ipam, want string) {
		cfg, err := parseConfig([]byte(`{"ipam": {"type": "dhcp", `+ipam+`}}`), "")
		if err != nil {
			Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
			Expect(err).To(MatchError(ContainSubstring(want)))
			return
		}
		var asked []string
		for _, o := range cfg.families() {
			asked = append(asked, o.IPv6)
		}
		Expect(strings.Join(asked, ",")).To(Equal(want))
	},
		Entry("without the key: no", `"dns": false`, ""),
		Entry("in addition to IPv4", `"ipv6": "dhcp"`, ",dhcp"),
		Entry("without IPv4", `"ipv4": false, "ipv6": "slaac"`, "slaac"),
		Entry("with another value, which is refused", `"ipv6": "auto"`, `ipam.ipv6: "auto"`),
		Entry("without any family, which is refused", `"ipv4": false`, "ipam.ipv4: false"),
	)
})
