package nstest_test

import (
	"os"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = Describe("Main", func() {
	It("runs the tests away from the machine's namespaces, with their own /proc and an empty /run", func() {
		nstest.NewHost()
		Expect(os.Geteuid()).To(Equal(0))
		Expect(os.Getppid()).To(Equal(1), "an init that reaps orphans")
		Expect(os.Args[0]).NotTo(BeEmpty())
		Expect(os.Executable()).To(BeAnExistingFile())
		entries := nstest.Must(os.ReadDir("/run"))
		Expect(entries).To(HaveLen(2), "netns and lock")
	})

	It("shows specs the same users, groups, tables and settings on every machine", func() {
		nstest.Need("tap", "iptables-nft")
		h := nstest.NewHost()
		Expect(h.Cmd("sh", "-c", "iptables -V; date +%Z")).To(And(ContainSubstring("nf_tables"), HaveSuffix("UTC\n")))
		for _, variable := range os.Environ() {
			Expect(variable).NotTo(HavePrefix("LC_"))
			Expect(variable).NotTo(HavePrefix("CNI_"))
		}
		Expect(h.Cmd("sh", "-c", "umask; uname -n; ls /etc/cni /etc/iproute2; cat /etc/services; id -nG")).To(Equal(
			"0022\nmachine\n/etc/cni:\n\n/etc/iproute2:\nroot\n"))
		h.IP("tuntap add dev tap0 mode tap user 4107 group 108", "link set tap0 group 7")
		var links []struct {
			Group string
			Info  struct {
				Data struct{ User, Group any } `json:"info_data"`
			} `json:"linkinfo"`
		}
		h.JSON(&links, "ip", "-j", "-d", "link", "show", "tap0")
		Expect(links[0].Group).To(Equal("7"))
		Expect(links[0].Info.Data.User).To(Equal(4107.0))
		Expect(links[0].Info.Data.Group).To(BeAssignableToTypeOf(""), "a package may have any number below 1000")
	})

	It("hides how the machine is set up", func() {
		nstest.Need("tap", "iptables-nft") // which the other spec needs
		self := nstest.Must(os.Executable())
		h := nstest.NewHost()
		h.Cmd("sh", "-ec", `mount -t tmpfs none /etc; cd /etc; mkdir -p alternatives cni/net.d iproute2
			ln -s /usr/sbin/iptables-legacy alternatives/iptables; echo 7 seven >iproute2/group
			echo 'root:x:0:0::/:/bin/sh' >passwd; echo 'root:x:0:' >group
			echo 'me:x:4107:108::/:/bin/sh' >>passwd; echo '_kea:x:108:' >>group; echo 'http 80/tcp' >services`)
		out := h.Run(nstest.Program{Path: "sh",
			Args: []string{"-c", `umask 077; exec "$0" "$@"`, self, "-ginkgo.focus", "on every machine"},
			Env: []string{"NSTEST_REQUIRE=all", "NSTEST_STAGE=", "LC_ALL=de_DE.UTF-8", "CNI_ARGS=A=b",
				"TZ=Asia/Kolkata"}})
		Expect(out.Exit).To(BeZero(), out.Stdout+out.Stderr)
		Expect(out.Stdout).To(ContainSubstring("1 Passed"))
	})

	DescribeTable("omits the specs labeled slow in a quick run", func(filter, want string) {
		host := nstest.NewHost()
		out := host.Run(nstest.Program{Path: nstest.Must(os.Executable()),
			Args: []string{"-ginkgo.dry-run", "-ginkgo.focus", "in a chroot", "-ginkgo.label-filter", filter},
			Env:  []string{"NSTEST_QUICK=1", "NSTEST_STAGE="}})
		Expect(out.Exit).To(BeZero(), out.Stdout+out.Stderr)
		Expect(out.Stdout).To(ContainSubstring(want))
	},
		Entry("without a filter", "", "1 Passed"), Entry("with a filter", "slow || !other", "1 Passed"),
		Entry("with a filter for slow specs", "slow", "0 Passed"))

	DescribeTable("also runs the tests in a chroot, and mounts nothing outside", func(root string) {
		nstest.Need("realroot") // the kernel creates no user namespace in a chroot
		self := nstest.Must(os.Executable())
		host := nstest.NewHost()
		sh := func(script string) string { return host.Cmd("sh", "-ec", script) }
		sh(`mount -t tmpfs none /var/lib; mount --make-shared /var/lib; mkdir /var/lib/root; cd /var/lib/root
			` + root + `
			mkdir -p tmp run var/lib; for d in usr etc proc sys dev; do mkdir $d; mount --rbind /$d $d; done
			for d in bin sbin lib lib64; do ln -s usr/$d $d; done; cp ` + self + ` test`)
		before := sh("cat /proc/self/mountinfo")
		out := host.Run(nstest.Program{Path: "chroot", Args: []string{"/var/lib/root", "/test", "-ginkgo.focus",
			"runs the tests away|has its own /run"},
			Env: []string{"NSTEST_REQUIRE=all", "NSTEST_STAGE=", "TMPDIR=/tmp"}})
		Expect(out.Exit).To(BeZero(), out.Stdout+out.Stderr)
		Expect(out.Stdout).To(ContainSubstring("2 Passed"))
		Expect(sh("cat /proc/self/mountinfo")).To(Equal(before))
	},
		Entry("whose / is a mount point", Label("slow"), "mount -t tmpfs none .; cd /var/lib/root"),
		Entry("whose / is not a mount point", ""))
})

var _ = Describe("Host", func() {
	It("has the kernel's settings, whatever the machine's namespace has", func() {
		h := nstest.NewNetns()
		settings := func() string {
			return h.Cmd("sh", "-c", "cd /proc/sys/net/ipv4/conf; cat ../ip_forward; grep . all/* default/* lo/*")
		}
		before := settings()
		Expect(before).To(And(HavePrefix("0\n"), ContainSubstring("default/rp_filter:0"),
			ContainSubstring("default/promote_secondaries:0"), ContainSubstring("all/accept_redirects:1")))
		for _, of := range []string{"all", "default", "lo"} { // as systemd and Docker do
			for _, name := range []string{"forwarding", "rp_filter", "promote_secondaries", "arp_announce"} {
				h.SetSysctl("net/ipv4/conf/"+of+"/"+name, "1")
			}
			h.SetSysctl("net/ipv4/conf/"+of+"/accept_source_route", "0")
		}
		Expect(settings()).NotTo(Equal(before))
		h.Do(func() { Expect(nstest.Disinherit()).To(Succeed()) })
		Expect(settings()).To(Equal(before))
	})

	It("has its own /run, /var/lib and /sys, and sees the pins of all namespaces", func() {
		early := nstest.NewNetns()
		a, b := nstest.NewHost(), nstest.NewHost()
		late := nstest.NewNetns()
		a.Cmd("touch", "/run/xtables.lock", "/var/lib/cni/mine")
		a.Cmd("ip", "link", "add", "br0", "type", "bridge")
		Expect(a.Cmd("ls", "/run", "/sys/class/net")).To(And(ContainSubstring("xtables.lock"), ContainSubstring("br0")))
		Expect(b.Cmd("ls", "/run", "/var/lib/cni", "/sys/class/net")).NotTo(Or(
			ContainSubstring("xtables.lock"), ContainSubstring("mine"), ContainSubstring("br0")))
		for _, pinned := range []*nstest.Host{early, a, b, late} {
			Expect(a.Cmd("ip", "-n", pinned.Name, "-o", "link")).To(ContainSubstring("lo"))
		}
	})

	It("does not wait for processes that a program leaves behind", func() {
		out := nstest.NewHost().Run(nstest.Program{Path: "sh", Args: []string{"-c", "sleep 1000 & echo out"}})
		Expect(out).To(Equal(nstest.Output{Stdout: "out\n", Held: true, CPU: out.CPU}))
	})

	It("settles a cable before a snapshot can see it", func() {
		for range 10 {
			h := nstest.NewHost()
			out := nstest.NewOutside(h)
			before := h.Snapshot("addresses", "routes") + out.Snapshot("addresses", "routes")
			Consistently(func() string {
				return h.Snapshot("addresses", "routes") + out.Snapshot("addresses", "routes")
			}).WithTimeout(50 * time.Millisecond).Should(Equal(before))
		}
	})
})

var _ = Describe("Snapshot", func() {
	var h *nstest.Host
	BeforeEach(func() {
		h = nstest.NewHost()
		nstest.NewOutside(h)
	})

	It("is the same if nothing changed except values that change by themselves", func() {
		before := h.Snapshot()
		h.Cmd("ping", "-c1", "-w40", "192.0.2.2")
		h.Cmd("ping", "-c1", "-w40", "2001:db8::2")
		Expect(h.Snapshot()).To(Equal(before))
	})

	DescribeTable("sees", func(section string, command ...string) {
		before := h.Snapshot()
		h.Cmd(command[0], command[1:]...)
		Expect(h.Snapshot()).NotTo(Equal(before))
		Expect(h.Snapshot(section)).NotTo(BeElementOf(before, "## "+section+"\n"))
		Expect(before).NotTo(ContainSubstring(h.Snapshot(section)))
	},
		Entry("a link", "links", "ip", "link", "add", "br0", "type", "bridge"),
		Entry("an alias", "links", "ip", "link", "set", "ext", "alias", "x"),
		Entry("an address", "addresses", "ip", "addr", "add", "192.0.2.9/24", "dev", "ext"),
		Entry("a route", "routes", "ip", "route", "add", "198.51.100.0/24", "via", "192.0.2.2"),
		Entry("an IPv6 route of another table", "routes", "ip", "-6", "route", "add", "2001:db8:1::/64", "via",
			"2001:db8::2", "table", "7"),
		Entry("a rule", "rules", "ip", "rule", "add", "from", "192.0.2.9", "table", "7"),
		Entry("nftables", "nftables", "nft", "add", "table", "inet", "t"),
		Entry("iptables-nft", "nftables", "iptables-nft", "-t", "nat", "-N", "MINE"),
		Entry("iptables-legacy", "iptables-legacy", "iptables-legacy", "-t", "nat", "-N", "MINE"),
		Entry("forwarding", "sysctls", "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"),
		Entry("an interface's sysctl", "sysctls", "sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/ext/route_localnet"),
	)

	It("omits addresses and routes that the kernel adds later by itself, but no others", func() {
		far := nstest.NewNetns()
		h.Cmd("ip", "link", "add", "late", "type", "veth", "peer", "name", "eth0", "netns", far.Name)
		h.SetSysctl("net/ipv6/conf/late/accept_dad", "0")
		h.SetSysctl("net/ipv6/conf/late/forwarding", "1")
		h.Cmd("ip", "link", "set", "late", "up")
		h.Cmd("ip", "addr", "add", "2001:db8:7::1/64", "dev", "late")
		before := h.Snapshot()
		far.Cmd("ip", "link", "set", "eth0", "up")
		Eventually(func() string { return h.Cmd("ip", "-6", "route", "show", "table", "local", "dev", "late") }).
			Should(And(ContainSubstring("local fe80:"), ContainSubstring("local 2001:db8:7::1"),
				ContainSubstring("anycast 2001:db8:7::"), ContainSubstring("multicast")))
		Expect(h.Snapshot()).To(Equal(before))
		h.Cmd("ip", "addr", "add", "fe80::1/64", "dev", "late", "nodad")
		Expect(h.Snapshot("addresses")).To(ContainSubstring("local=fe80::1 "))
	})
})

func TestMain(m *testing.M) { nstest.Main(m) }

func TestNstest(t *testing.T) { nstest.RunSpecs(t, "nstest") }
