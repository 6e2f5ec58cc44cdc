package main

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// services are ways in which kube-proxy, and what works like it, leads port
// 8080 of the host's address to a container: all at -100.
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
			It(fmt.Sprintf("of %s wins when it came %s (CVE-2019-9946)", service.name, name), func() {
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

var _ = Describe("a service that leads to a container with host ports", Label("kernel"), func() {
	It("keeps the source of those who use the service, also on the port of the same number", func() {
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

var _ = Describe("beside kube-proxy in its mode ipvs", Label("kernel"), func() {
	var w *world
	var c *container

	BeforeEach(func() {
		useVariant("nft")
		w = newWorld()
		c = w.container(1, 2)
		answerTCP(c, 80, "ours")
		// kube-proxy binds the addresses of services to a link, and protects
		// them in its chain.
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
		w.Cmd("ip", "link", "del", "kube-ipvs0") // the record says which backend it was
		c.check(ports("8080:80"))
		c.del()
		Expect(w.natRules()).NotTo(ContainSubstring("CNI-DN"))
	})

	It("does as it is told, and says what that means", Label("kube-proxy"), func() {
		asked := Object{"backend": "nftables"}
		o := c.call("ADD", asked, ports("8080:80"))
		Expect(o.exit).To(BeZero(), o.text())
		Expect(o.stderr).To(ContainSubstring(`beside kube-proxy in its mode ipvs (link "kube-ipvs0")`))
		Expect(word(w.out, "10.96.0.10:8080")).To(Equal("ours"))
		// An error would make the node not ready for ever, and its pods would go.
		o = w.status(asked)
		Expect(o.exit).To(BeZero(), o.text())
		Expect(o.stdout).To(BeEmpty())
		Expect(o.stderr).To(ContainSubstring(`beside kube-proxy in its mode ipvs (link "kube-ipvs0")`))
	})
})

var _ = Describe("conditions", Label("kernel"), func() {
	eachBackend(func(k kind) {
		It("of one network hold for its ports alone", func() {
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
})

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
