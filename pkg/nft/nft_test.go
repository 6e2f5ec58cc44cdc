package nft_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestNft(t *testing.T) { nstest.RunSpecs(t, "nft") }

var table = nft.Table{Family: nft.INet, Name: "spec"}

// sample is a layout with objects of each kind.
func sample() nft.Layout {
	return nft.Layout{
		Table: table,
		Sets: []nft.Set{
			{Name: "exempt", Key: []nft.Type{nft.IPv4Addr}, Interval: true, Comment: "yours"},
			{Name: "guarded", Key: []nft.Type{nft.IfName}},
			{Name: "pairs", Key: []nft.Type{nft.IfName, nft.InetProto}},
			{Name: "ports", Key: []nft.Type{nft.InetProto, nft.InetService},
				Data: []nft.Type{nft.IPv4Addr, nft.InetService}},
			{Name: "sources", Key: []nft.Type{nft.IPv4Addr}, Data: []nft.Type{nft.Verdict}},
		},
		Chains: []nft.Chain{
			{Name: "look_v1"},
			{Name: "net_10.1.0.0/24", Comment: "one network", Rules: []nft.Rule{
				{nft.InPrefix(nft.IPDaddr, netip.MustParsePrefix("10.1.0.0/20")), nft.Return()},
				{nft.InPrefix(nft.IP6Daddr, netip.MustParsePrefix("fd00::/61")), nft.Return()},
				{nft.InPrefix(nft.IPDaddr, netip.MustParsePrefix("10.2.3.0/24")), nft.Return()},
				{nft.InPrefix(nft.IPDaddr, netip.MustParsePrefix("10.1.0.7/32")), nft.Return()},
				{nft.Masquerade()},
			}},
			{Name: "postrouting_v1", Hook: &nft.Hook{Type: "nat", Point: nft.Postrouting, Priority: 100},
				Rules: []nft.Rule{
					{nft.InSet("exempt", nft.IPDaddr), nft.Return()},
					{nft.VerdictMap("sources", nft.IPSaddr)},
				}},
			{Name: "guard_v1", Hook: &nft.Hook{Type: "filter", Point: nft.Prerouting, Priority: -300},
				Rules: []nft.Rule{
					{nft.InSet("guarded", nft.IIFName), nft.NotInSet("pairs", nft.IIFName, nft.L4Proto), nft.Drop()},
					{nft.InSet("guarded", nft.OIFName), nft.Jump("look_v1")},
				}},
		},
	}
}

const printed = `table inet spec {
	comment "Hawser CNI plugins"
	set exempt {
		type ipv4_addr
		flags interval
		comment "yours"
	}

	set guarded {
		type ifname
		elements = { "veth1" comment "an owner" }
	}

	set pairs {
		type ifname . inet_proto
		elements = { "veth1" . tcp comment "an owner" }
	}

	map ports {
		type inet_proto . inet_service : ipv4_addr . inet_service
		elements = { tcp . 8080 comment "an owner" : 10.1.0.7 . 80 }
	}

	map sources {
		type ipv4_addr : verdict
		elements = { 10.1.0.7 comment "an owner" : goto net_10.1.0.0/24 }
	}

	chain look_v1 {
	}

	chain net_10.1.0.0/24 {
		comment "one network"
		ip daddr 10.1.0.0/20 return
		ip6 daddr fd00::/61 return
		ip daddr 10.2.3.0/24 return
		ip daddr 10.1.0.7 return
		masquerade
	}

	chain postrouting_v1 {
		type nat hook postrouting priority srcnat; policy accept;
		ip daddr @exempt return
		ip saddr vmap @sources
	}

	chain guard_v1 {
		type filter hook prerouting priority raw; policy accept;
		iifname @guarded iifname . meta l4proto != @pairs drop
		oifname @guarded jump look_v1
	}
}
`

func source(i int) nft.Element {
	a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
	return nft.Element{Key: nft.AddrKey(a), Goto: "net_10.1.0.0/24", Comment: "an owner"}
}

func port(i int) nft.Element {
	to := []byte{10, 1, 0, 7}
	return nft.Element{Key: nft.Key([]byte{unix.IPPROTO_TCP}, []byte{byte(i >> 8), byte(i)}),
		Data: nft.Key(to, []byte{0, 80}), Comment: "an owner"}
}

// update commits a change on a new connection in the host.
func update(h *nstest.Host, change func(*nft.Tx) error) error {
	GinkgoHelper()
	var err error
	with(h, func(c *nft.Conn) { err = c.Update(context.Background(), change) })
	return err
}

func with(h *nstest.Host, fn func(*nft.Conn)) {
	GinkgoHelper()
	h.Do(func() {
		c := nft.New()
		defer func() { Expect(c.Close()).To(Succeed()) }()
		fn(c)
	})
}

func ensure(tx *nft.Tx) error { return tx.EnsureLayout(sample()) }

var _ = Describe("a layout", Label("kernel"), func() {
	var host *nstest.Host

	BeforeEach(func() {
		nstest.Need("nft", "nft-inet-nat")
		host = nstest.NewHost()
	})

	It("creates a layout with elements that nft prints as an administrator would write them, and reloads", func() {
		Expect(update(host, func(tx *nft.Tx) error {
			if err := ensure(tx); err != nil {
				return err
			}
			name := nft.IfNameKey("veth1")
			tx.Add(table, "guarded", nft.Element{Key: name, Comment: "an owner"})
			tx.Add(table, "pairs", nft.Element{Key: nft.Key(name, []byte{unix.IPPROTO_TCP}), Comment: "an owner"})
			tx.Add(table, "ports", port(8080))
			tx.Add(table, "sources", source(7))
			return nil
		})).To(Succeed())
		text := host.Cmd("nft", "list", "ruleset")
		Expect(text).To(Equal(printed))
		saved := GinkgoT().TempDir() + "/saved"
		Expect(os.WriteFile(saved, []byte(text), 0o600)).To(Succeed())
		host.Cmd("nft", "flush", "ruleset")
		host.Cmd("nft", "-f", saved)
		Expect(host.Cmd("nft", "list", "ruleset")).To(Equal(printed))
		with(host, func(c *nft.Conn) { Expect(c.Verify(sample())).To(Succeed()) })
	})

	It("restores flushed rules in order, and keeps other programs' rules", func() {
		Expect(update(host, ensure)).To(Succeed())
		host.Cmd("nft", "insert", "rule", "inet", "spec", "postrouting_v1", "ip", "daddr", "192.0.2.9", "return")
		with(host, func(c *nft.Conn) { Expect(c.Verify(sample())).To(Succeed()) })
		before := host.Cmd("nft", "list", "ruleset")
		Expect(update(host, ensure)).To(Succeed())
		Expect(host.Cmd("nft", "list", "ruleset")).To(Equal(before))

		var out struct {
			Nftables []struct {
				Rule struct {
					Chain  string
					Handle int
				}
			}
		}
		host.JSON(&out, "nft", "-j", "-a", "list", "chain", "inet", "spec", "postrouting_v1")
		last := out.Nftables[len(out.Nftables)-1].Rule
		host.Cmd("nft", "delete", "rule", "inet", "spec", last.Chain, "handle", fmt.Sprint(last.Handle))
		with(host, func(c *nft.Conn) {
			err := c.Verify(sample())
			Expect(err).To(MatchError(nft.ErrDrift))
			Expect(err).To(MatchError(`nftables table "inet spec", chain "postrouting_v1": ruleset differs: ` +
				`rule "ip saddr vmap @sources" is missing`))
		})
		Expect(update(host, ensure)).To(Succeed())
		Expect(host.Cmd("nft", "list", "ruleset")).To(Equal(before))

		host.Cmd("nft", "flush", "table", "inet", "spec")
		with(host, func(c *nft.Conn) { Expect(c.Verify(sample())).To(MatchError(nft.ErrDrift)) })
		Expect(update(host, ensure)).To(Succeed())
		with(host, func(c *nft.Conn) { Expect(c.Verify(sample())).To(Succeed()) })
		Expect(strings.Count(host.Cmd("nft", "list", "ruleset"), "vmap")).To(Equal(1))
	})

	It("is read correctly if answers to an earlier request are still unread", func() {
		host.Cmd("nft", "add", "table", "inet", "other")
		host.Do(func() {
			c := nft.New()
			defer c.Close()
			Expect(nft.SendUnread(c, table)).To(Succeed())
			Expect(c.Chain(table, "c")).To(BeNil())
			Expect(nft.SendUnread(c, table)).To(Succeed())
			Expect(c.Chains(table)).To(BeEmpty())
		})
	})

	It("replaces the chains of an earlier layout in one batch, and accepts them until then", func() {
		now := sample()
		guard := &now.Chains[3]
		guard.Name, guard.Former = "guard_v2", []nft.Chain{*guard}
		Expect(update(host, ensure)).To(Succeed())
		with(host, func(c *nft.Conn) { Expect(c.Verify(now)).To(Succeed()) })
		host.Cmd("nft", "flush", "chain", "inet", "spec", "guard_v1")
		with(host, func(c *nft.Conn) { Expect(c.Verify(now)).To(MatchError(ContainSubstring("guard_v2"))) })
		Expect(update(host, func(tx *nft.Tx) error { return tx.EnsureLayout(now) })).To(Succeed())
		Expect(host.Cmd("nft", "list", "chains")).
			To(And(ContainSubstring("guard_v2"), Not(ContainSubstring("guard_v1"))))
		with(host, func(c *nft.Conn) { Expect(c.Verify(now)).To(Succeed()) })
	})

	It("keeps the chain of an earlier layout to which other rules jump", func() {
		now := sample()
		guard := &now.Chains[3]
		former := nft.Chain{Name: "used_v1"}
		guard.Name, guard.Former = "guard_v2", []nft.Chain{*guard, former}
		Expect(update(host, ensure)).To(Succeed())
		host.Cmd("nft", "add chain inet spec used_v1; add chain inet spec other; "+
			"add rule inet spec guard_v1 jump used_v1; add rule inet spec other jump used_v1")
		replace := func(tx *nft.Tx) error { return tx.EnsureLayout(now) }
		Expect(update(host, replace)).To(Succeed())
		Expect(host.Cmd("nft", "list", "chains")).
			To(And(ContainSubstring("used_v1"), Not(ContainSubstring("guard_v1"))))
		host.Cmd("nft", "delete chain inet spec other; delete chain inet spec guard_v2")
		Expect(update(host, replace)).To(Succeed())
		Expect(host.Cmd("nft", "list", "chains")).NotTo(ContainSubstring("used_v1"))
	})

	It("detects a base chain that was created again at another hook", func() {
		Expect(update(host, ensure)).To(Succeed())
		host.Cmd("nft", "flush", "chain", "inet", "spec", "guard_v1")
		host.Cmd("nft", "delete", "chain", "inet", "spec", "guard_v1")
		host.Cmd("nft", "add", "chain", "inet", "spec", "guard_v1", "{ type filter hook prerouting priority 0 ; }")
		Expect(update(host, ensure)).To(Succeed())
		with(host, func(c *nft.Conn) { Expect(c.Verify(sample())).To(MatchError(ContainSubstring("another hook"))) })
	})
})

var _ = It("removes another program's rules and the chains that they jump to, and does not lock if there are none",
	Label("kernel"), func() {
		nstest.Need("nft")
		host := nstest.NewHost()
		host.Cmd("nft", "add table ip theirs; add chain ip theirs c; add chain ip theirs gone;"+
			"add rule ip theirs c ip saddr 10.1.0.3 goto gone; add rule ip theirs gone accept;"+
			"add rule ip theirs c ip saddr 10.1.0.4 accept")
		leftover := nft.Removal{Table: nft.Table{Family: nft.IPv4, Name: "theirs"}, Chain: "c",
			Rule: func(r nft.LiveRule) bool { return r.Target == "gone" }, Drop: []string{"gone", "absent"}}
		with(host, func(c *nft.Conn) {
			Expect(leftover.Remove(context.Background(), c)).To(Succeed())
			Expect(host.Cmd("nft", "list", "ruleset")).To(And(ContainSubstring("10.1.0.4"),
				Not(ContainSubstring("10.1.0.3")), Not(ContainSubstring("gone"))))
			Expect(os.RemoveAll("/run/hawser")).To(Succeed())
			Expect(leftover.Remove(context.Background(), c)).To(Succeed())
			Expect("/run/hawser").NotTo(BeADirectory())
			Expect(c.Chain(leftover.Table, strings.Repeat("x", 256))).To(BeNil())
			leftover.Chain, leftover.Drop = "", nil
			leftover.Rule = func(r nft.LiveRule) bool { return r.Chain == "c" }
			Expect(leftover.Remove(context.Background(), c)).To(Succeed())
		})
		Expect(host.Cmd("nft", "list", "ruleset")).NotTo(ContainSubstring("10.1.0.4"))
	})
