package portmap

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// onLink returns a container on a point-to-point link, as ptp creates it.
func (w *world) onLink(i int) *container { return w.onLinkBehind(fmt.Sprintf("p%d", i), i) }

func (w *world) onLinkBehind(hostEnd string, i int) *container {
	GinkgoHelper()
	c := &container{w: w, Host: nstest.NewNetns(), network: "net1", id: fmt.Sprintf("p%d", i), ifName: "eth0",
		hostEnd: hostEnd, ips: []string{fmt.Sprintf("10.9.0.%d/24", i), fmt.Sprintf("fd00:9::%d/64", i)}}
	c.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
	w.IP(fmt.Sprintf("link add %s type veth peer name eth0 netns %s", c.hostEnd, c.Name),
		"link set "+c.hostEnd+" up",
		"addr add 10.9.0.1/32 dev "+c.hostEnd, "addr add fe80::1/64 dev "+c.hostEnd+" nodad",
		"route add "+c.addr(false)+"/32 dev "+c.hostEnd, "route add "+c.addr(true)+"/128 dev "+c.hostEnd)
	c.IP("link set lo up", "link set eth0 up", "addr add "+c.addr(false)+"/32 dev eth0",
		"addr add "+c.addr(true)+"/128 dev eth0 nodad",
		"route add 10.9.0.1/32 dev eth0", "route add default via 10.9.0.1", "route add default via fe80::1 dev eth0")
	return c
}

var _ = Describe("containers on their own links", Label("kernel"), func() {
	eachBackend(func(k kind) {
		It("reach a host port from everywhere, and on nftables keep their address", func() {
			w := newWorld()
			a, b := w.onLink(2), w.onLink(3)
			a.Serve("tcp4", "0.0.0.0:80")
			a.Serve("tcp6", "[::]:81")
			a.add(k.config, ports("8080:80", "8081:81"))
			neighbour4, neighbour6 := "10.9.0.3", "fd00:9::3"
			if k.name != "nftables" { // the reference's rules go by the subnet
				neighbour4, neighbour6 = "10.9.0.1", ""
			}
			for _, c := range []struct {
				from     *nstest.Host
				to, seen string
			}{
				{w.out, "192.0.2.1:8080", "192.0.2.2"},
				{w.Host, "127.0.0.1:8080", "10.9.0.1"},
				{a.Host, "192.0.2.1:8080", "10.9.0.1"},
				{b.Host, "192.0.2.1:8080", neighbour4},
				{w.out, "[2001:db8::1]:8081", "2001:db8::2"},
				{b.Host, "[2001:db8::1]:8081", neighbour6},
			} {
				if c.seen != "" {
					Expect(ask(c.from, "tcp", c.to, patience())).To(Equal(c.seen), "%s to %s", c.from.Name, c.to)
				}
			}
			a.check(k.config, ports("8080:80", "8081:81"))
			Expect(w.Sysctl("net/ipv4/conf/p2/route_localnet")).To(Equal("1"))
			a.del()
			Expect(w.Sysctl("net/ipv4/conf/p2/route_localnet")).To(Equal("0"))
			Expect(w.ruleset()).NotTo(MatchRegexp(`"p2"|_masq_|808|CNI-DN`))
		})

		It("leave no guard behind when /run/hawser was emptied before DEL", Label("loopback-guard"), func() {
			w := newWorld()
			w.settle(k)
			before := w.rules()
			var all []*container
			for i := range 3 {
				a := cni.Attachment{Network: "net1", ContainerID: fmt.Sprint("p", 2+i), IfName: "eth0"}
				all = append(all, w.onLinkBehind(iface.HostNames(a)[i], 2+i))
				all[i].add(k.config, ports(fmt.Sprintf("808%d:80", i)))
			}
			w.IP("link set " + all[0].hostEnd + " alias " + ownerHash(all[0]))
			w.Cmd("rm", "-rf", "/run/hawser")
			all[0].del() // its link has its mark
			Expect(w.Sysctl("net/ipv4/conf/" + all[0].hostEnd + "/route_localnet")).To(Equal("0"))
			all[1].vanish()
			all[1].del()
			all[2].del() // its link has no mark
			Expect(w.Sysctl("net/ipv4/conf/" + all[2].hostEnd + "/route_localnet")).To(Equal("1"))
			all[2].vanish()
			all[2].del()
			Expect(w.rules()).To(Equal(before))
		})

		It("leave no guard behind if the link was deleted before DEL or GC", func() {
			w := newWorld()
			for i, remove := range []func(*container){func(c *container) { c.del() },
				func(c *container) { w.gc("net1") },
				func(c *container) { w.Cmd("rm", "-rf", "/run/hawser/portmap"); w.gc("net1") }} {
				c := w.onLink(2 + i)
				c.add(k.config, ports("8080:80"))
				c.vanish()
				remove(c)
				Expect(w.ruleset()).NotTo(MatchRegexp(`"p\d"|_masq_|808|CNI-DN`))
			}
		})
	})
})

var _ = Describe("ADD", Label("kernel"), func() {
	It("forwards to the first address of each family of its own interface", func() {
		w, c := newContainer()
		c.serve(80)
		o := c.call("ADD", ports("8080:80"), Object{"prevResult": Object{"cniVersion": "1.1.0",
			"dns": Object{"nameservers": []string{"192.0.2.53"}},
			"interfaces": []Object{{"name": "eth0"}, {"name": "other", "sandbox": c.Path},
				{"name": "eth0", "sandbox": c.Path}},
			"ips": []Object{{"address": "10.7.0.7/24", "interface": 0},
				{"address": "10.8.0.8/24", "interface": 1}, {"address": "10.1.0.2/24",
					"interface": 2}, {"address": "10.1.0.9/24", "interface": 2}}}})
		Expect(o.stdout).To(And(ContainSubstring("10.1.0.9/24"), ContainSubstring("192.0.2.53")), "complete result")
		Expect(w.reach(8080)).To(Equal("192.0.2.2"))
	})

	It("warns about mappings that do not work", func() {
		_, c := newContainer()
		c.ips = c.ips[:1]
		o := c.call("ADD", Object{"masqAll": true, "snat": false},
			ports("[2001:db8::1]:8080:80", "[::1]:8081:80", "[::]:8082:80", "8083:80"))
		Expect(o.exit).To(BeZero(), o.text())
		Expect(o.stderr).To(And(
			ContainSubstring("host port [2001:db8::1]:8080/tcp: the container has no address of that family"),
			ContainSubstring("host port [::1]:8081/tcp: IPv6 cannot forward from the loopback address"),
			ContainSubstring("masqAll: has no effect without snat")))
		Expect(o.stderr).NotTo(MatchRegexp("8082|8083"))
	})

	It("masquerades everything with masqAll, and nothing without snat", func() {
		for _, k := range kinds {
			nstest.UseVariant(k.variant)
			w := newWorld()
			all, none := w.container(1, 2), w.container(1, 3)
			all.serve(80)
			none.serve(80)
			all.add(k.config, Object{"masqAll": true}, ports("8080:80"))
			none.add(k.config, Object{"snat": false}, ports("8081:80"))
			Expect(w.reach(8080)).To(Equal("10.1.0.1"))
			Expect(ask(w.Host, "tcp", "192.0.2.1:8080", patience())).To(Equal("10.1.0.1"))
			Expect(w.reach(8081)).To(Equal("192.0.2.2"))
			Expect(ask(w.Host, "tcp", "192.0.2.1:8081", patience())).To(Equal("192.0.2.1"))
			Expect(ask(w.Host, "tcp", "127.0.0.1:8081", soon(200))).NotTo(Equal("10.1.0.1"))
		}
	})
})

var _ = Describe("an owner", Label("kernel"), func() {
	It("is identified by its namespace, and is treated as live in case of doubt", func() {
		w, a, b := newContainers()
		isGone := func(l location) bool {
			GinkgoHelper()
			isGone := false
			w.Do(func() {
				host := nstest.Must(rtnl.Dial(nil))
				defer host.Close()
				s := nstest.Must(l.state(host))
				isGone = s == ownerStale
			})
			return isGone
		}
		locationIn := func(c *container) (l location) {
			GinkgoHelper()
			w.Do(func() {
				n := nstest.Must(ns.Open(c.Path))
				defer n.Close()
				under := newCall(&skel.Request{Attachment: cni.Attachment{IfName: c.ifName}, NS: n})
				var r record
				Expect(under.setLocation(&r)).To(Succeed())
				l = r.Location
			})
			return l
		}
		one := locationIn(a)
		Expect(one.Link).NotTo(BeZero())
		Expect(one.Netns.Cookie != 0).To(Equal(HasCookies()))
		Expect(isGone(one)).To(BeFalse())
		other := one
		other.Link = 99999
		Expect(isGone(other)).To(BeFalse(), "its namespace exists")
		other = one
		other.NetnsPath = b.Path
		Expect(isGone(other)).To(BeFalse(), "its link exists")
		other.NetnsPath = "/nowhere"
		Expect(isGone(other)).To(BeFalse(), "its path may be invisible, and its link exists")
		other.NetnsPath, other.Link = b.Path, 0
		Expect(isGone(other)).To(BeTrue(), "another namespace is at its path, and no link is known")
		other.NetnsPath = "/nowhere"
		Expect(isGone(other)).To(BeFalse(), "the path may be invisible, and no link is known")
		other = one
		other.NetnsPath, other.MAC = "/nowhere", "02:00:00:00:00:01"
		Expect(isGone(other)).To(BeTrue(), "another link has the index now")
		// Without a cookie the inode decides.
		old := one
		old.Netns.Cookie = 0
		Expect(isGone(old)).To(BeFalse())
		old.Netns.Inode++
		old.Link = 0
		Expect(isGone(old)).To(BeTrue())
		if _, err := ns.Gone(); err == nil && HasCookies() {
			n := nstest.Must(ns.Open(b.Path))
			other = location{NetnsPath: b.Path, Netns: nstest.Must(n.Identity())}
			Expect(n.Close()).To(Succeed())
			b.Unpin()
			Eventually(isGone).WithArguments(other).Should(BeTrue(), "no link is known, and the namespace has ended")
		}
	})
})

// services has the ways in which kube-proxy and similar programs forward port 8080 of the host's address to a
// container, all with priority -100.
var services = []struct {
	name string
	make func(w *world, to string)
}{
	{"iptables-nft", func(w *world, to string) { iptablesService(w, "iptables-nft", to) }},
	{"iptables-legacy", func(w *world, to string) { iptablesService(w, "iptables-legacy", to) }},
	{"nftables", func(w *world, to string) {
		w.Cmd("nft", fmt.Sprintf(`add table ip kube-proxy
add chain ip kube-proxy pre { type nat hook prerouting priority -100 ; }
add chain ip kube-proxy out { type nat hook output priority -100 ; }
add rule ip kube-proxy pre ip daddr 192.0.2.1 tcp dport 8080 dnat to %s
add rule ip kube-proxy out ip daddr 192.0.2.1 tcp dport 8080 dnat to %s`, to, to))
	}},
}

func iptablesService(w *world, program, to string) {
	GinkgoHelper()
	for _, chain := range []string{"PREROUTING", "OUTPUT"} {
		w.Cmd(program, "-t", "nat", "-A", chain, "-d", "192.0.2.1", "-p", "tcp", "--dport", "8080", "-j", "DNAT",
			"--to-destination", to)
	}
}

var _ = Describe("a service on the port of a container", Label("kernel", "service-port"), func() {
	for _, service := range services {
		for _, first := range []bool{true, false} {
			name := map[bool]string{true: "first", false: "last"}[first]
			It(fmt.Sprintf("of %s wins if it came %s (CVE-2019-9946)", service.name, name), func() {
				nstest.Need("iptables-nft", "iptables-legacy")
				w := newWorld()
				ours, theirs := w.container(1, 2), w.container(1, 3)
				answerTCP(ours, 80, "ours")
				answerTCP(theirs, 80, "service")
				if first {
					service.make(w, "10.1.0.3:80")
				}
				ours.add(ports("8080:80", "8081:80"))
				if !first {
					service.make(w, "10.1.0.3:80")
				}
				for _, from := range []*nstest.Host{w.out, w.Host} {
					Expect(word(from, "192.0.2.1:8080")).To(Equal("service"))
					Expect(word(from, "192.0.2.1:8081")).To(Equal("ours"))
				}
			})
		}
	}
})

var _ = Describe("a service that forwards to a container with host ports", Label("kernel"), func() {
	It("keeps the source of its clients, also on the port with the same number", func() {
		w := newWorld()
		w.SetBridgeNF(true)
		a, b := w.container(1, 2), w.container(1, 3)
		a.serve(80)
		a.add(ports("8080:80"))
		w.Cmd("nft", `add table ip kube-proxy
add chain ip kube-proxy pre { type nat hook prerouting priority -100 ; }
add rule ip kube-proxy pre ip daddr 10.96.0.10 tcp dport 8080 dnat to 10.1.0.2:80`)
		Expect(ask(b.Host, "tcp", "10.96.0.10:8080", patience())).To(Equal("10.1.0.3"))
		Expect(ask(b.Host, "tcp", "192.0.2.1:8080", patience())).To(Equal("10.1.0.1"))
	})
})

var _ = Describe("with kube-proxy in ipvs mode", Label("kernel"), func() {
	var w *world
	var c *container

	BeforeEach(func() {
		nstest.UseVariant("nft")
		w, c = newContainer()
		answerTCP(c, 80, "ours")
		// kube-proxy binds the addresses of services to a link, and protects them in its chain.
		w.IP("link add kube-ipvs0 type veth peer name dummy", "addr add 10.96.0.10/32 dev kube-ipvs0")
		w.Cmd("iptables", "-t", "nat", "-A", "PREROUTING", "-d", "10.96.0.10", "-j", "ACCEPT")
		w.Serve("tcp4", "10.96.0.10:8080")
	})

	It("uses iptables, so that services keep their ports", func() {
		c.add(ports("8080:80"))
		c.check(ports("8080:80"))
		Expect(word(w.out, "192.0.2.1:8080")).To(Equal("ours"))
		Expect(word(w.out, "10.96.0.10:8080")).To(HavePrefix("192.0.2.2:"))
		Expect(w.natRules()).To(ContainSubstring(c.chain()))
		o := w.status()
		Expect(o.exit).To(BeZero(), o.text())
		w.Cmd("ip", "link", "del", "kube-ipvs0") // the record names the backend
		c.check(ports("8080:80"))
		c.del()
		Expect(w.natRules()).NotTo(ContainSubstring("CNI-DN"))
	})

	It("uses the configured backend, and warns about the consequence", Label("kube-proxy"), func() {
		asked := Object{"backend": "nftables"}
		const beside = `with kube-proxy in ipvs mode (link "kube-ipvs0")`
		Expect(w.Warns(c.as("ADD", asked, ports("8080:80")))).To(ContainSubstring(beside))
		Expect(word(w.out, "10.96.0.10:8080")).To(Equal("ours"))
		// An error would keep the node from becoming ready, and its pods would be evicted.
		o := w.status(asked)
		Expect(o.exit).To(BeZero(), o.text())
		Expect(o.stdout).To(BeEmpty())
		Expect(o.stderr).To(ContainSubstring(beside))
	})
})

var _ = Describe("conditions", Label("kernel"), func() {
	eachBackend(func(k kind) {
		It("of one network apply only to its ports", func() {
			w := newWorld()
			a, b := w.container(1, 2), w.container(2, 2)
			a.serve(80)
			b.serve(80)
			cond := Object{"conditionsV4": strings.Fields("ip saddr != 192.0.2.0/24"),
				"conditionsV6": strings.Fields("ip6 saddr 2001:db8::/64")}
			if k.name != "nftables" {
				cond = Object{"conditionsV4": strings.Fields("! -s 192.0.2.0/24"),
					"conditionsV6": strings.Fields("-s 2001:db8::/64")}
			}
			a.Serve("tcp6", "[::]:81")
			a.add(k.config, cond, ports("8080:80", "8082:81"))
			b.add(k.config, ports("8081:80"))
			Expect(w.reach(8080)).To(Equal(refused))
			Expect(w.reach(8081)).To(Equal("192.0.2.2"))
			Expect(ask(b.Host, "tcp", "192.0.2.1:8080", patience())).To(Equal("10.2.0.2"))
			Expect(ask(w.Host, "tcp", "127.0.0.1:8080", patience())).To(Equal("10.1.0.1"))
			Expect(ask(w.out, "tcp", "[2001:db8::1]:8082", patience())).To(Equal("2001:db8::2"))
			Expect(ask(b.Host, "tcp", "[2001:db8::1]:8082", patience())).To(Equal(refused))
			a.check(k.config, cond, ports("8080:80", "8082:81"))
			b.check(k.config, ports("8081:80"))
			b.del()
			Expect(w.reach(8080)).To(Equal(refused))
			a.del()
			Expect(w.ruleset()).NotTo(MatchRegexp("808|_conditions_|_masq_|CNI-DN"))
		})
	})
	It("work in a chroot whose root is not a mount point, and leave no mount", Label("conditions-names"), func() {
		w, a := newContainer()
		a.serve(80)
		config := Object{"backend": "nftables", "conditionsV4": strings.Fields("ip saddr != 192.0.2.0/24")}
		out := w.Run(a.as("ADD", config, ports("8080:80")).Program(w.World, "unshare", "-m", "--propagation", "shared",
			"sh", "-ec", `root=$1; mkdir $root/plugin; cp $2 $root/plugin/portmap
			for dir in /*; do
				[ -d $dir ] && [ $dir != /tmp ] || continue
				mkdir $root$dir; mount --rbind $dir $root$dir
			done
			mount --make-rshared /; cat /proc/self/mountinfo >$root/plugin/before
			chroot $root /plugin/portmap
			cat /proc/self/mountinfo >$root/plugin/after; cmp $root/plugin/before $root/plugin/after`,
			"sh", GinkgoT().TempDir(), nstest.Build("portmap")))
		Expect(out.Exit).To(BeZero(), "%s%s", out.Stdout, out.Stderr)
		a.check(config, ports("8080:80"))
	})

	It("cannot change packets, sets, chains or another container's port", Label("conditions-matches"), func() {
		w, a, b := newContainers()
		b.serve(80)
		config := Object{"backend": "nftables"}
		b.add(config, ports("8082:80"))
		before := w.rules()
		for _, text := range []string{
			"tcp dport set 8082 delete @portmap4_v1 { meta l4proto . tcp dport : 10.1.0.3 . 80 }",
			"tcp dport 8080add @portmap4_v1 { meta l4proto . tcp dport : ip saddr . tcp sport }",
			"ip saddr @firewall4_v1", "ip saddr vmap { 0.0.0.0/0 : goto portmap4_dnat_v1 }", "udp dport set 53",
			"meter portmap6_v2 { ip saddr limit rate 1/second }", "flow table x { ip saddr counter }",
			"ether saddr 00:11:22:aa:bb:ccmeter x { ip saddr limit rate 1/second }", "reset tcp option mptcp",
			"meta nfproto ipv4 meta l4proto tcp tproxy ip to :5000", "meta mark set 0x1", "log", "counter name victim",
			"limit name victim", "quota name victim", "ct helper set victim", "ct mark set 1", "notrack",
		} {
			o := a.call("ADD", config, Object{"conditionsV4": strings.Fields(text)}, ports("8080:80"))
			Expect(o.Code).To(Equal(cni.CodeConfig), text)
			Expect(o.Msg).To(MatchRegexp(`^conditionsV4\[\d+\]: ".*" is not a match`), text)
		}
		Expect(w.rules()).To(Equal(before))
		Expect(w.reach(8082)).To(Equal("192.0.2.2"))
		raw := Object{"conditionsV4": strings.Fields(
			"@th,16,16 8080 iifname != eth-set iifname != flow0 ip saddr 192.0.2.0/24")}
		a.serve(80)
		a.add(config, raw, ports("8080:80"))
		Expect(w.reach(8080)).To(Equal("192.0.2.2"))
		a.del(raw)
	})

	It("are restored by reapply", Label("conditions-restored"), func() {
		w, a := newContainer()
		a.serve(80)
		config := Object{"backend": "nftables", "conditionsV4": strings.Fields("ip saddr != 192.0.2.0/24")}
		a.add(config, ports("8080:80"))
		before := w.rules()
		w.Cmd("nft", "delete", "table", "inet", "hawser")
		Expect(w.Reapply(a.as("CHECK", config, ports("8080:80")))).To(BeEmpty())
		Expect(w.rules()).To(Equal(before))
		a.check(config, ports("8080:80"))
		Expect(w.reach(8080)).To(Equal(refused))
	})
	eachKind(func(k kind) {
		It("must have numbers: no name is looked up, and no server gets a query", Label("conditions-names"), func() {
			w, a, before := settled(k)
			var server net.PacketConn
			w.Do(func() { server = nstest.Must(net.ListenPacket("udp", "127.0.0.1:53")) })
			DeferCleanup(server.Close)
			w.Cmd("sh", "-ec", "cd /run; echo nameserver 127.0.0.1 >resolv.conf; echo hosts: dns >nsswitch.conf; "+
				"for i in *.conf; do mount --bind $i /etc/$i; done")
			conditions := []string{"ip saddr n0.example", `ip saddr "n0"`, "ip saddr { 192.0.2.1, n0.example }",
				"ct original ip daddr n0.example", "tcp sport http"}
			if k.name != "nftables" {
				conditions = []string{"-s n0.example", "--dst n0", "-s 192.0.2.1,n0.example",
					"-m conntrack --ctorigdst n0.example", "-m tcp --sport http"}
			}
			for _, text := range conditions {
				o := a.call("ADD", k.config, Object{"conditionsV4": strings.Fields(text)}, ports("8080:80"))
				Expect(o.Code).To(Equal(cni.CodeConfig), text)
				Expect(o.Msg).To(MatchRegexp("^conditionsV4: .* refused by "), text)
			}
			Expect(server.SetReadDeadline(time.Now())).To(Succeed())
			_, _, err := server.ReadFrom(make([]byte, 512))
			Expect(err).To(MatchError(os.ErrDeadlineExceeded), "a query arrived")
			Expect(w.rules()).To(Equal(before))
		})

		if k.name != "nftables" { // on which nft reads conditions after the lock is held
			It("are refused without waiting for the locks", Label("conditions-names"), func() {
				w, a, before := settled(k)
				var held []*statefile.Lock
				w.Do(func() {
					for _, path := range []string{"/run/hawser/portmap/lock", "/run/xtables.lock"} {
						held = append(held, nstest.Must(statefile.LockFile(GinkgoT().Context(), path, 0o600)))
					}
				})
				o := a.call("ADD", k.config, Object{"conditionsV4": []string{"-s", "nonsense"}}, ports("8080:80"))
				for _, l := range held {
					Expect(l.Unlock()).To(Succeed())
				}
				Expect(o.Code).To(Equal(cni.CodeConfig), o.text())
				Expect(w.rules()).To(Equal(before))
			})
		}

		It("do not delay other calls while a program parses them", Label("conditions-names"), func() {
			w, a, b := newContainers()
			b.add(k.config, ports("8082:80"))
			began := filepath.Join(GinkgoT().TempDir(), "began")
			cond := Object{"conditionsV4": strings.Fields("ip saddr 192.0.2.7")}
			program := "nft"
			if k.name != "nftables" {
				cond, program = Object{"conditionsV4": strings.Fields("-s 192.0.2.7")}, "iptables-restore"
			}
			dir := slowly(program, "192.0.2.7", began)
			GinkgoT().Setenv("PATH", dir+":"+os.Getenv("PATH"))
			call := a.as("ADD", k.config, cond, ports("8080:80"))
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			call.Ctx = ctx
			done := make(chan outcome, 1)
			go func() {
				defer GinkgoRecover()
				done <- w.run(call)
			}()
			Eventually(began).Should(BeAnExistingFile())
			b.del()
			b.add(k.config, ports("8082:80"))
			Expect(done).NotTo(Receive())
			cancel()
			Eventually(done).Should(Receive())
		})
	})
})

// slowly returns a directory with a program that creates a file and hangs if its input has the text.
func slowly(program, text, file string) (dir string) {
	GinkgoHelper()
	dir = GinkgoT().TempDir()
	real := nstest.Must(filepath.EvalSymlinks(nstest.Must(exec.LookPath(program))))
	script := fmt.Sprintf(`#!/bin/sh
text=$(cat; echo .)
case $text in *%s*) touch %s; exec sleep 1000;; esac
printf %%s "${text%%.}" | exec %s "$@"
`, text, file, nstest.Must(exec.LookPath(program)))
	name := filepath.Join(dir, filepath.Base(real)+".sh")
	Expect(os.WriteFile(name, []byte(script), 0o700)).To(Succeed())
	Expect(os.Symlink(name, filepath.Join(dir, program))).To(Succeed())
	return dir
}

// answerTCP serves a word.
func answerTCP(c *container, port int, text string) {
	GinkgoHelper()
	l := listen(c.Host, fmt.Sprintf("%s:%d", c.addr(false), port))
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(text))
			_ = conn.Close()
		}
	}()
}
