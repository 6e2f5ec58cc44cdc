package firewall

import (
	"fmt"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// skeleton is the rules in FORWARD for the backend nftables.
func skeleton(admin string) string {
	return "-P INPUT ACCEPT\n-P FORWARD DROP\n-P OUTPUT ACCEPT\n" +
		chainLines("CNI-FORWARD", "HAWSER-ACCEPTED", admin) +
		`-A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD` + "\n" +
		`-A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j ` + admin + "\n" +
		"-A CNI-FORWARD -j HAWSER-ACCEPTED\n-A HAWSER-ACCEPTED -m mark --mark 0x1000/0x1000 -j ACCEPT\n"
}

func chainLines(names ...string) string {
	return "-N " + strings.Join(slices.Sorted(slices.Values(names)), "\n-N ") + "\n"
}

// set is a set of the layout as nft shows it.
func (w *world) set(name string) string {
	GinkgoHelper()
	return w.Cmd("nft", "list", "set", "inet", "hawser", name)
}

var _ = Describe("a chain that a configuration names", Label("kernel", "admin-chain-named"), func() {
	eachKind(func(k kind) {
		var w *world
		var a, b, c *container
		BeforeEach(func() {
			w = newWorld(1)
			a, b, c = w.container(1, 2), w.container(1, 3), w.container(1, 4)
		})
		named := func(chain string) Object { return Object{"iptablesAdminChainName": chain} }
		overrides := func() []string {
			GinkgoHelper()
			var chains []string
			for line := range strings.Lines(w.Cmd("iptables", "-S", "CNI-FORWARD")) {
				if _, chain, ok := strings.Cut(line, `admin overrides" -j `); ok {
					chains = append(chains, strings.TrimSpace(chain))
				}
			}
			return chains
		}

		It("follows the chains that packets already pass, and is removed with the last container", func() {
			for range 2 {
				a.add(k.config)
				b.add(k.config, named("TENANT"))
				c.add(k.config, named("OTHER"))
				Expect(overrides()).To(Equal([]string{"CNI-ADMIN", "TENANT", "OTHER"}))
				b.check(k.config, named("TENANT"))
				b.del(k.config)
				Expect(overrides()).To(Equal([]string{"CNI-ADMIN", "OTHER"}))
				c.del(k.config)
				for _, program := range []string{"iptables", "ip6tables"} {
					Expect(w.Cmd(program, "-S")).NotTo(MatchRegexp("TENANT|OTHER"))
				}
				a.check(k.config)
				a.del(k.config)
			}
		})

		It("remains if it has rules", func() {
			w.Cmd("iptables", "-N", "SITE")
			w.Cmd("iptables", "-A", "SITE", "-s", "192.0.2.99/32", "-j", "DROP")
			b.add(k.config, named("SITE"))
			b.del(k.config)
			Expect(overrides()).To(Equal([]string{"SITE"}))
			Expect(w.Cmd("iptables", "-S", "SITE")).To(ContainSubstring("192.0.2.99"))
		})

		It("can be a chain of the administrator with jumps from FORWARD, and remains", func() {
			a.add(k.config)
			w.Cmd("sh", "-ec", "for chain in DOCKER-USER SITE; do iptables -N $chain; done; "+
				"iptables -A FORWARD -j DOCKER-USER; iptables -A CNI-ADMIN -g SITE")
			before := w.Cmd("iptables", "-S", "FORWARD")
			for _, chain := range []string{"DOCKER-USER", "SITE"} {
				b.add(k.config, named(chain))
				Expect(overrides()).To(ContainElement(chain))
				b.check(k.config, named(chain))
				b.del(k.config)
				Expect(w.Cmd("iptables", "-S", chain)).To(Equal("-N " + chain + "\n"))
			}
			Expect(w.Cmd("iptables", "-S", "FORWARD")).To(Equal(before))
		})

		It("is refused if other software's rules jump to it, and nothing is left", func() {
			w.Cmd("sh", "-ec", "for chain in KUBE-FORWARD ufw-before-forward LIBVIRT_FWX DOCKER SITE NEXT; do "+
				"iptables -N $chain; iptables -A FORWARD -j $chain; done; iptables -A SITE -j NEXT")
			before := w.state()
			for _, chain := range []string{"KUBE-FORWARD", "ufw-before-forward", "LIBVIRT_FWX", "DOCKER", "NEXT"} {
				Expect(w.Call(b.as("ADD", k.config, named(chain))).Failed(cni.CodeConfig)).To(ContainSubstring(
					`iptablesAdminChainName: "` + chain + `" is a chain of other software`))
			}
			Expect(w.state()).To(Equal(before))
		})
	})
})

var _ = Describe("nftables", Label("kernel"), func() {
	for _, variant := range []string{"nft", "legacy"} {
		more := nstest.Variant(variant)
		It("has elements with their owner, and one way through FORWARD of iptables-"+variant, more, func() {
			nstest.UseVariant(variant)
			w := newWorld(1)
			w.forward("DROP")
			a, b := w.container(1, 2), w.container(1, 3)
			a.add(Object{"iptablesAdminChainName": "MY-OWN"})
			b.add(Object{"iptablesAdminChainName": "MY-OWN"})
			for _, set := range []string{"firewall4_v1", "firewall4_published_v1"} {
				Expect(w.set(set)).To(MatchRegexp(
					`10.1.0.2 comment "[0-9a-f]{16} net1 c1-2 eth0",\s+10.1.0.3 comment "[0-9a-f]{16} net1 c1-3 eth0"`))
			}
			Expect(w.set("firewall6_v1")).To(ContainSubstring("fd00:1::2 comment"))
			Expect(w.Cmd("iptables", "-S")).To(Equal(skeleton("MY-OWN")))
			Expect(w.Cmd("ip6tables", "-S")).To(Equal(skeleton("MY-OWN")))
		})
	}

	It("needs a program only if the legacy table exists, and names it there", func() {
		w := newWorld(1)
		c, d := w.container(1, 2), w.container(1, 3)
		w.nft("table ip filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; }")
		nstest.WithoutPrograms(func() { Expect(w.Call(d.as("ADD")).Stderr).To(BeEmpty()) })
		w.out.Serve("tcp", "192.0.2.2:80")
		Expect(reaches(d.Host, "192.0.2.2:80", true)).To(BeTrue())
		w.Cmd("iptables-legacy-save", "-t", "filter") // makes the table
		nstest.WithoutPrograms(func() {
			said := w.Call(c.as("ADD")).Stderr
			Expect(said).To(ContainSubstring("chain FORWARD of ip (iptables-legacy) may drop the container's packets"))
		})
	})

	It("repairs flushed rules for all containers", Label("flushed"), func() {
		w := newWorld(1)
		w.forward("DROP")
		a, b := w.container(1, 2), w.container(1, 3)
		a.add()
		w.Cmd("iptables", "-F")
		w.Cmd("iptables", "-X")
		w.Cmd("nft", "flush", "table", "inet", "hawser")
		Expect(a.drifts()).To(And(ContainSubstring("FORWARD"), ContainSubstring("firewall_forward12_v2")))
		b.add()
		Expect(w.Cmd("iptables", "-S")).To(Equal(skeleton("CNI-ADMIN")))
		b.check()
		a.check()
	})

	It("lets the administrator's chain decide first", Label("admin-chain"), func() {
		w, c := dropping()
		c.add()
		w.out.Serve("tcp", "192.0.2.2:80")
		Expect(reaches(c.Host, "192.0.2.2:80", true)).To(BeTrue())
		w.Cmd("iptables", "-A", "CNI-ADMIN", "-s", c.addrs[0], "-j", "DROP")
		Expect(reaches(c.Host, "192.0.2.2:80", false)).To(BeFalse())
	})

	It("accepts no host ports with acceptPublished false", func() {
		w, c := dropping()
		c.add(Object{"acceptPublished": false})
		c.check(Object{"acceptPublished": false})
		c.Serve("tcp", "[::]:"+servedPort)
		w.out.Serve("tcp", "192.0.2.2:80")
		w.nft("%s", dnat)
		Expect(reaches(w.out, "192.0.2.1:"+hostPort, false)).To(BeFalse())
		Expect(reaches(c.Host, "192.0.2.2:80", true)).To(BeTrue())
	})
})

const families = "iptables iptables-restore iptables-save ip6tables ip6tables-restore ip6tables-save"

// withoutIP6Tables runs fn with a PATH that has only the programs of iptables for IPv4.
func withoutIP6Tables(fn func()) {
	GinkgoHelper()
	nstest.WithPrograms(strings.Fields(families)[:3], fn)
}

// withoutLegacy runs fn where no programs of iptables are found that have a variant in their names.
func withoutLegacy(fn func()) {
	GinkgoHelper()
	nstest.WithPrograms(strings.Fields(families), fn)
}

var _ = Describe("iptables", Label("kernel"), func() {
	for _, variant := range []string{"nft", "legacy"} {
		Context(variant, nstest.Variant(variant), Ordered, func() {
			var w *world
			var containers []*container
			BeforeAll(func() {
				nstest.UseVariant(variant)
				w = newWorld(1)
				containers = []*container{w.container(1, 2), w.container(1, 3)}
			})
			DescribeTable("has the reference's rules, byte for byte", Label("firewall-format"), func(
				p policy, admin string,
			) {
				nstest.UseVariant(variant)
				keys := Object{"cniVersion": "1.0.0", "backend": "iptables", "ingressPolicy": string(p),
					"iptablesAdminChainName": admin}
				ours := w.made(containers, keys, func(c Call) { w.Add(c) })
				theirs := w.made(containers, keys, func(c Call) { w.Reference(nstest.Newest(), c).Added() })
				Expect(ours).To(Equal(theirs))
			},
				Entry("open", policyOpen, ""),
				Entry("same-bridge", policySameBridge, ""),
				Entry("isolated", policyIsolated, "MY-OWN"),
			)
		})
	}
})

// made are the rules that ADDs add to an empty filter table, with other programs' rules between them. CHECKs and DELs
// follow.
func (w *world) made(containers []*container, keys Object, add func(Call)) string {
	GinkgoHelper()
	w.Cmd("sh", "-ec", "for t in iptables ip6tables; do $t -F; $t -X; done")
	for _, c := range containers {
		add(c.as("ADD", keys))
		Expect(w.Reference(nstest.Newest(), c.as("CHECK", keys)).Stdout).To(BeEmpty())
		c.check(keys)
		w.Cmd("iptables", "-I", "FORWARD", "-p", "udp", "-j", "DROP") // the jumps stay behind it
	}
	rules := w.filter()
	for _, c := range containers {
		c.del()
	}
	return rules
}

var _ = Describe("the result", Ordered, func() {
	var w *world
	var c *container
	BeforeAll(func() {
		w, c = newContainer()
	})
	AfterEach(func() { c.del() })

	It("of a container without addresses is returned, and nothing is created", func() {
		before := w.untouched()
		c.add(Object{"prevResult": Merge(c.prev, Object{"ips": []Object{}})})
		Expect(w.untouched()).To(Equal(before))
	})

	It("applies to all addresses if it assigns none to the interface", func() {
		c.add(Object{"backend": "iptables", "prevResult": Object{"cniVersion": "1.1.0",
			"interfaces": []Object{{"name": "x"}}, "ips": []Object{{"address": "10.0.0.2/24", "interface": 0}}}})
		Expect(w.Cmd("iptables", "-S", "CNI-FORWARD")).To(ContainSubstring("-s 10.0.0.2/32 -j ACCEPT"))
	})

	It("does not count addresses of other interfaces", func() {
		prev := Merge(c.prev, Object{"ips": append(c.prev["ips"].([]Object),
			Object{"address": "10.9.0.9/24", "interface": 0})})
		c.add(Object{"prevResult": prev})
		Expect(w.set("firewall4_v1")).NotTo(ContainSubstring("10.9.0.9"))
	})
})

// dockerStarts changes table filter as Docker does when it starts.
const dockerStarts = `for t in iptables ip6tables; do
	for c in '' -FORWARD -BRIDGE -CT -ISOLATION-STAGE-1 -ISOLATION-STAGE-2 -USER; do
		$t -N DOCKER$c
	done
	$t -A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
	$t -A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
	$t -A DOCKER-BRIDGE -o docker0 -j DOCKER
	$t -A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
	$t -A DOCKER ! -i docker0 -o docker0 -j DROP
	$t -A DOCKER-FORWARD -j DOCKER-CT
	$t -A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1
	$t -A DOCKER-FORWARD -j DOCKER-BRIDGE
	$t -A DOCKER-FORWARD -i docker0 -j ACCEPT
	$t -I FORWARD -j DOCKER-FORWARD
	$t -I FORWARD -j DOCKER-USER
	$t -P FORWARD DROP
done`

// saved has a whole ruleset saved and loaded again, with the policy that an administrator wrote into the file.
const saved = `for t in iptables ip6tables; do
	$t-save | sed 's/^:FORWARD ACCEPT/:FORWARD DROP/' | $t-restore
done`

// isWhole verifies that the containers reach their targets, and that all rules exist.
func (w *world) isWhole(a, b *container) {
	GinkgoHelper()
	a.arrives(true)
	Expect(reaches(w.out, "192.0.2.1:"+hostPort, true)).To(BeTrue())
	Expect(reaches(w.out, "[2001:db8::1]:"+hostPort, true)).To(BeTrue())
	for _, addr := range b.addrs {
		Expect(pings(a.Host, addr, true)).To(BeTrue())
	}
	a.check()
}

// fresh returns a host without tables of iptables, with two containers that have rules.
func fresh() (w *world, a, b *container) {
	GinkgoHelper()
	nstest.Need("br_netfilter", "nft-inet-nat")
	w = newWorld(1)
	w.SetBridgeNF(true)
	a, b = w.container(1, 2), w.container(1, 3)
	a.add()
	b.add()
	a.Serve("tcp", "[::]:"+servedPort)
	w.out.Serve("tcp", "[::]:80")
	w.nft("%s", dnat)
	return w, a, b
}

var _ = Describe("where FORWARD did not exist yet", Label("kernel"), func() {
	for _, variant := range []string{"nft", "legacy"} {
		Context("on a host with iptables-"+variant, nstest.Variant(variant), func() {
			BeforeEach(func() { nstest.UseVariant(variant) })

			DescribeTable("containers stay connected if it drops later", Label("forward-later"), func(script string) {
				w, a, b := fresh()
				w.isWhole(a, b)
				w.Cmd("sh", "-ec", script)
				Expect(w.filter()).To(ContainSubstring("-P FORWARD DROP"))
				w.isWhole(a, b)
			},
				Entry("by its policy", "iptables -P FORWARD DROP; ip6tables -P FORWARD DROP"),
				Entry("as Docker does when it starts", dockerStarts),
				Entry("by a ruleset that was saved with our chains", saved),
			)

			It("it is created as the programs create it", func() {
				w, _, _ := fresh()
				w.forward("DROP")
				for _, program := range []string{"iptables", "ip6tables"} {
					Expect(w.Cmd(program, "-S")).To(Equal(skeleton("CNI-ADMIN")))
					for _, rule := range [][]string{
						{"FORWARD", "-m", "comment", "--comment", "CNI firewall plugin rules", "-j", "CNI-FORWARD"},
						{"HAWSER-ACCEPTED", "-m", "mark", "--mark", "0x1000/0x1000", "-j", "ACCEPT"}} {
						w.Cmd(program, append([]string{"-C"}, rule...)...)
						w.Cmd(program, append([]string{"-D"}, rule...)...)
					}
					Expect(w.Cmd(program+"-save", "-t", "filter")).NotTo(ContainSubstring("incompatible"))
				}
			})
		})
	}

	It("it is created without a program, once, and in the families of the container", func() {
		w, c := newContainer()
		c.prev["ips"] = c.prev["ips"].([]Object)[:1]
		nstest.WithoutPrograms(func() { Expect(w.Call(c.as("ADD")).Stderr).To(BeEmpty()) })
		c.check()
		Expect(w.Cmd("nft", "list", "tables")).To(And(ContainSubstring("table ip filter"),
			Not(ContainSubstring("table ip6 filter"))))
		before := w.Cmd("iptables", "-S")
		d := w.container(1, 3)
		d.add()
		Expect(w.Cmd("iptables", "-S")).To(Equal(before))
		Expect(w.Cmd("ip6tables", "-S")).To(Equal(before))
	})

	It("it is created next to an administrator's chains, as the programs do", func() {
		w := newWorld(1)
		own := "chain forward {\n\t\ttype filter hook forward priority filter; policy accept;\n" +
			"\t\tct state new accept\n\t}"
		w.nft("table ip filter { %s; }", own)
		c := w.container(1, 2)
		c.add()
		Expect(w.Cmd("nft", "list", "table", "ip", "filter")).To(ContainSubstring(own))
		w.Cmd("iptables", "-P", "FORWARD", "DROP")
		w.out.Serve("tcp", "[::]:80")
		c.arrives(true)
		c.check()
	})

	It("and was flushed with the whole ruleset, CHECK reports it, and the next ADD restores it", func() {
		w, a, _ := fresh()
		w.Cmd("nft", "delete", "table", "ip", "filter")
		Expect(a.drifts()).To(ContainSubstring(`no rule jumps from FORWARD to "CNI-FORWARD"`))
		w.Cmd("nft", "flush", "ruleset")
		d := w.container(1, 4)
		d.add()
		d.check()
		w.forward("DROP")
		d.arrives(true)
	})
})

const (
	ourBit   = "0x1000"
	otherBit = "0x20000"
)

// marks is a world whose FORWARD drops, with a container of ours, an unowned container, and a server outside.
func marks(variant string, keys ...Object) (w *world, ours, foreign *container) {
	GinkgoHelper()
	nstest.UseVariant(variant)
	w = newWorld(1)
	w.forward("DROP")
	ours, foreign = w.container(1, 2), w.container(1, 3)
	ours.add(keys...)
	w.out.Serve("tcp", "[::]:80")
	return w, ours, foreign
}

// arrives reports for both families whether a connection to the outside is answered.
func (c *container) arrives(wanted bool) {
	GinkgoHelper()
	for _, to := range []string{"192.0.2.2:80", "[2001:db8::2]:80"} {
		Expect(reaches(c.Host, to, wanted)).To(Equal(wanted), to)
	}
}

// nft loads a script.
func (w *world) nft(format string, args ...any) {
	GinkgoHelper()
	out := w.Run(nstest.Program{Path: "nft", Args: []string{"-f", "-"}, Stdin: fmt.Sprintf(format, args...)})
	Expect(out.Exit).To(BeZero(), out.Stderr)
}

// mangle appends a rule for both families to table mangle.
func (w *world) mangle(rule string) {
	GinkgoHelper()
	w.Cmd("sh", "-ec", "for t in iptables ip6tables; do $t -t mangle -A "+rule+"; done")
}

var _ = Describe("the bit of the fwmark", Label("kernel"), func() {
	for _, variant := range []string{"nft", "legacy"} {
		Context("next to iptables-"+variant, nstest.Variant(variant), func() {
			DescribeTable("does not open FORWARD for other software that marks packets with it", Label("fwmark"), func(
				mark func(w *world),
			) {
				w, ours, foreign := marks(variant)
				mark(w)
				ours.arrives(true)
				foreign.arrives(false)
				ours.del()
				ours.arrives(false)
				foreign.arrives(false)
			},
				Entry("before they are routed, as policy routing does",
					func(w *world) { w.mangle("PREROUTING -j MARK --set-xmark " + ourBit + "/" + ourBit) }),
				Entry("while they are forwarded, as QoS does",
					func(w *world) { w.mangle("FORWARD -j MARK --set-xmark " + ourBit + "/" + ourBit) }),
				Entry("in nftables", func(w *world) {
					w.nft("table inet qos { chain c { type filter hook prerouting priority 0; meta mark set %s; }; }",
						ourBit)
				}),
			)

			It("is in no connmark, and all other bits are where they were", func() {
				w, ours, _ := marks(variant)
				w.mangle("PREROUTING -j MARK --set-xmark " + otherBit + "/" + otherBit)
				w.mangle("FORWARD -j CONNMARK --save-mark")
				w.mangle("POSTROUTING -j CONNMARK --save-mark")
				w.nft("table inet look { chain post { type filter hook postrouting priority 400;"+
					"oifname ext meta l4proto tcp jump seen; };"+
					"chain seen { ct mark & %[1]s != 0 drop; meta mark & %[1]s != 0 drop; meta mark & %[2]s == 0 drop;"+
					"ct mark & %[2]s == 0 drop; }; }", ourBit, otherBit)
				ours.arrives(true)
			})
		})
	}

	It("remains on packets of the host itself", func() {
		w, _, _ := marks("nft")
		w.nft("table inet mine { chain out { type route hook output priority mangle; meta mark set %[1]s; };"+
			"chain post { type filter hook postrouting priority 400;"+
			"oifname ext meta l4proto tcp meta mark & %[1]s == 0 drop; }; }", ourBit)
		Expect(reaches(w.Host, "192.0.2.2:80", true)).To(BeTrue())
	})

	It("remains on all packets after the last DEL or the last GC", Label("fwmark"), func() {
		w, ours, foreign := marks("nft")
		w.forward("ACCEPT")
		second := w.container(1, 4)
		second.add()
		w.nft("table inet mine { chain pre { type filter hook prerouting priority mangle; meta mark set %[1]s; };"+
			"chain post { type filter hook postrouting priority 400;"+
			"oifname ext meta l4proto tcp meta mark & %[1]s == 0 drop; }; }", ourBit)
		foreign.arrives(false)
		second.del()
		foreign.arrives(false)
		ours.del()
		foreign.arrives(true)
		ours.add()
		foreign.arrives(false)
		w.gc(1)
		foreign.arrives(true)
	})

	It("is gone from FORWARD with the last container, and the chains with it", func() {
		w, ours, _ := marks("nft")
		ours.del()
		Expect(w.filter()).NotTo(ContainSubstring("--mark"))
		Expect(w.Cmd("nft", "list", "table", "inet", "hawser")).NotTo(ContainSubstring("chain"))
		before := w.state()
		ours.del()
		Expect(w.state()).To(Equal(before))
	})

	It("remains in FORWARD while containers without a record live", func() {
		w, ours, _ := marks("nft")
		w.Cmd("sh", "-c", "rm "+recordDir+"/*.json")
		second := w.container(1, 4)
		second.add()
		second.del()
		ours.arrives(true)
	})

	for _, variant := range []string{"nft", "legacy"} {
		more := nstest.Variant(variant)
		It("is that of the first container while any container lives, next to iptables-"+variant, more, func() {
			other := Object{"markAcceptBit": 31}
			w, first, _ := marks(variant, other)
			second := w.container(1, 4) // changes the bridge's MAC address, perhaps
			first.check(other)
			first.arrives(true)
			second.add()
			first.arrives(true)
			second.arrives(true)
			Expect(w.filter()).NotTo(ContainSubstring("0x1000"))
			Expect(w.Cmd("nft", "list", "table", "inet", "hawser")).NotTo(ContainSubstring("0x00001000"))
			first.check(other)
			second.check()
			first.del(other)
			second.del()
			second.add()
			second.arrives(true)
			Expect(w.filter()).NotTo(ContainSubstring("0x80000000"))
		})
	}

	It("is not used on backend iptables", func() {
		w, _, _ := marks("nft", Object{"markAcceptBit": 31})
		c := w.container(1, 4)
		Expect(w.Warns(c.as("ADD", Object{"backend": "iptables"}))).To(BeEmpty())
	})

	It("moves from the chains of an older version, whose rules in FORWARD remain", func() {
		w := newWorld(1)
		w.forward("DROP")
		old, next := w.container(1, 2), w.container(1, 3)
		old.add()
		w.nft("%s", firstLayout)
		w.Cmd("sh", "-ec", `rules=$(iptables-save) rules6=$(ip6tables-save)
			old=$(nft list table inet hawser |
				sed -E 's/(forward|accept|clear)12_v1/\1_v1/; s/forward priority 300/postrouting priority 300/')
			sed -i 's/,"markAcceptBit":12//' `+recordDir+`/*.json
			nft delete table inet hawser; echo "$old" | nft -f -
			echo "$rules" | iptables-restore; echo "$rules6" | ip6tables-restore # as the programs make the rules`)
		before := w.filter()
		next.add()
		Expect(w.Cmd("nft", "list", "table", "inet", "hawser")).
			NotTo(MatchRegexp("(forward|accept|clear|policy)_v1|postrouting"))
		Expect(w.filter()).To(Equal(before))
		old.check()
		w.out.Serve("tcp", "[::]:80")
		old.arrives(true)
		old.del()
		next.del()
		Expect(w.filter()).NotTo(ContainSubstring("--mark"))
	})
})
