package nft_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

var table = nft.Table{Family: nft.INet, Name: "spec"}

// sample is a layout with one of everything.
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

// update makes a change on a connection of its own inside the host.
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

func ensure(tx *nft.Tx) error {
	err := tx.EnsureLayout(sample())
	return err
}

var _ = Describe("a layout", Label("kernel"), func() {
	var host *nstest.Host

	BeforeEach(func() {
		nstest.Need("nft", "nft-inet-nat")
		host = nstest.NewHost()
	})

	It("makes a layout with its elements that nft prints as an administrator would write it, and reloads", func() {
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

	It("prints the rules of a bridge", func() {
		nstest.Need("nft-bridge")
		bridge := nft.Table{Family: nft.Bridge, Name: "spec"}
		Expect(update(host, func(tx *nft.Tx) error {
			err := tx.EnsureLayout(nft.Layout{Table: bridge,
				Sets: []nft.Set{{Name: "pairs", Key: []nft.Type{nft.IfName, nft.EtherAddr}}},
				Chains: []nft.Chain{{Name: "guard",
					Hook:  &nft.Hook{Type: "filter", Point: nft.Prerouting, Priority: -300},
					Rules: []nft.Rule{{nft.NotInSet("pairs", nft.IIFName, nft.EtherSaddr), nft.Drop()}}}}})
			return err
		})).To(Succeed())
		Expect(host.Cmd("nft", "list", "ruleset")).To(ContainSubstring("iifname . ether saddr != @pairs drop"))
		Expect(host.Cmd("nft", "list", "ruleset")).To(ContainSubstring("type ifname . ether_addr"))
	})

	It("makes exactly one copy when several make the first, also without the lock", func() {
		for range 8 {
			host.Cmd("nft", "flush", "ruleset")
			errs := make([]error, 4)
			nstest.AtOnce(len(errs), func(i int) {
				host.Do(func() {
					c := nft.New()
					defer c.Close()
					errs[i] = nft.UpdateUnlocked(c, func(tx *nft.Tx) error {
						tx.Add(table, "sources", source(i))
						return nil
					})
					if errs[i] != nil {
						errs[i] = nft.UpdateUnlocked(c, func(tx *nft.Tx) error {
							err := ensure(tx)
							tx.Add(table, "sources", source(i))
							return err
						})
					}
				})
			})
			Expect(errors.Join(errs...)).To(Succeed())
			Eventually(func() []int { // the kernel lists elements twice while the map grows
				text := host.Cmd("nft", "list", "ruleset")
				return []int{strings.Count(text, "vmap"), strings.Count(text, "masquerade"),
					strings.Count(text, "an owner")}
			}).Should(Equal([]int{1, 1, 4}))
		}
	})

	It("finds rules that were flushed, puts its own back in order and leaves those of others", func() {
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

	It("is read right where answers to an earlier request are still to be read", func() {
		host.Cmd("nft", "add", "table", "inet", "other")
		host.Do(func() {
			c := nft.New()
			defer c.Close()
			Expect(nft.AskAndLeave(c, table)).To(Succeed())
			Expect(c.Chain(table, "c")).To(BeNil())
			Expect(nft.AskAndLeave(c, table)).To(Succeed())
			Expect(c.Chains(table)).To(BeEmpty())
		})
	})

	It("sees a base chain that was made anew at another place", func() {
		Expect(update(host, ensure)).To(Succeed())
		host.Cmd("nft", "flush", "chain", "inet", "spec", "guard_v1")
		host.Cmd("nft", "delete", "chain", "inet", "spec", "guard_v1")
		host.Cmd("nft", "add", "chain", "inet", "spec", "guard_v1", "{ type filter hook prerouting priority 0 ; }")
		Expect(update(host, ensure)).To(Succeed())
		with(host, func(c *nft.Conn) { Expect(c.Verify(sample())).To(MatchError(ContainSubstring("another hook"))) })
	})
})
