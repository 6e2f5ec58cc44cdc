package nft_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

var (
	alice = cni.Attachment{Network: "net1", ContainerID: "alice", IfName: "eth0"}
	bob   = cni.Attachment{Network: "net1", ContainerID: "bob", IfName: "eth0"}
)

// ways is a set and a map whose elements lead to chains way_*, of which way_marked leads to way_plain.
func ways() nft.Owned {
	return nft.Owned{
		Layout: nft.Layout{
			Table: table,
			Sets: []nft.Set{
				{Name: "marked", Key: []nft.Type{nft.IfName}},
				{Name: "ways", Key: []nft.Type{nft.IPv4Addr}, Data: []nft.Type{nft.Verdict}},
			},
			Chains: []nft.Chain{{Name: "base_v1", Rules: []nft.Rule{{nft.VerdictMap("ways", nft.IPSaddr)}}}},
		},
		Sets: []string{"marked", "ways"},
		Chain: func(name string) (nft.Chain, bool) {
			plain := nft.Chain{Name: "way_plain", Rules: []nft.Rule{{nft.Return()}}}
			marked := nft.Chain{Name: "way_marked", Rules: []nft.Rule{{nft.Goto("way_plain")}}}
			return map[string]nft.Chain{"way_plain": plain, "way_marked": marked}[name], strings.HasPrefix(name, "way_")
		},
	}
}

func way(a cni.Attachment, address, chain string) nft.Item {
	return nft.Item{Set: "ways", Name: "address " + address, Element: nft.Element{
		Key: netip.MustParseAddr(address).AsSlice(), Goto: "way_" + chain, Comment: a.Mark()}}
}

func marked(a cni.Attachment, link string) nft.Item {
	return nft.Item{Set: "marked", Element: nft.Element{Key: nft.IfNameKey(link), Comment: a.Mark()}}
}

// change changes owned elements in the host.
func change(h *nstest.Host, how func(*nft.Tx) error) (err error) {
	GinkgoHelper()
	with(h, func(c *nft.Conn) { err = ways().Update(context.Background(), c, how) })
	return err
}

func put(h *nstest.Host, items ...nft.Item) {
	GinkgoHelper()
	Expect(change(h, func(tx *nft.Tx) error {
		return errors.Join(tx.Ensure("way_plain"), tx.Put(items, nil))
	})).To(Succeed())
}

var _ = Describe("owned elements", Label("kernel"), func() {
	var host *nstest.Host
	list := func() string { return host.Cmd("nft", "list", "ruleset") }

	BeforeEach(func() {
		nstest.Need("nft")
		host = nstest.NewHost()
	})

	It("are made with all that they need, and once", func() {
		put(host, way(alice, "10.1.0.1", "plain"), way(alice, "10.1.0.2", "marked"), marked(alice, "veth1"))
		before := list()
		Expect(before).To(And(ContainSubstring("10.1.0.1 comment \""+alice.Mark()+"\" : goto way_plain"),
			ContainSubstring("10.1.0.2 comment \""+alice.Mark()+"\" : goto way_marked")))
		put(host, way(alice, "10.1.0.1", "plain"), way(alice, "10.1.0.2", "marked"), marked(alice, "veth1"))
		Expect(list()).To(Equal(before))
	})

	It("of another owner are replaced, or refused before anything changes", Label("owner"), func() {
		put(host, way(alice, "10.1.0.1", "plain"), marked(alice, "veth1"))
		before := list()
		err := change(host, func(tx *nft.Tx) error {
			return tx.Put([]nft.Item{way(bob, "10.1.0.1", "plain"),
				way(bob, "10.1.0.9", "plain")}, func(others []nft.Item) ([]nft.Item, error) {
				Expect(others).To(HaveLen(1))
				return nil, errors.New(others[0].Name + " is had by " + others[0].Comment)
			})
		})
		Expect(err).To(MatchError("address 10.1.0.1 is had by " + alice.Mark()))
		Expect(list()).To(Equal(before))
		put(host, way(bob, "10.1.0.1", "plain"), marked(bob, "veth1"))
		Expect(list()).NotTo(ContainSubstring("alice"))
	})

	It("of another owner are yielded, and need nothing then", func() {
		put(host, way(alice, "10.1.0.1", "plain"))
		before := list()
		items := []nft.Item{way(bob, "10.1.0.1", "marked"), way(bob, "10.1.0.2", "plain")}
		put := func(from int) {
			Expect(change(host, func(tx *nft.Tx) error {
				return tx.Put(items, func([]nft.Item) ([]nft.Item, error) { return items[from:], nil })
			})).To(Succeed())
		}
		put(2)
		Expect(list()).To(Equal(before))
		put(1)
		Expect(list()).To(And(ContainSubstring("10.1.0.2"), Not(ContainSubstring("way_marked"))))
	})

	It("of their own owner that lead elsewhere are replaced without a question", func() {
		put(host, way(alice, "10.1.0.1", "plain"))
		Expect(change(host, func(tx *nft.Tx) error {
			items := []nft.Item{way(alice, "10.1.0.1", "marked")}
			return errors.Join(tx.Ensure("way_plain"), tx.Put(items, func(others []nft.Item) ([]nft.Item, error) {
				Expect(others).To(BeEmpty())
				return items, nil
			}))
		})).To(Succeed())
		Expect(list()).To(ContainSubstring(": goto way_marked"))
	})

	It("are removed by who owns them by then", Label("owner"), func() {
		put(host, way(alice, "10.1.0.1", "plain"), way(alice, "10.1.0.2", "plain"), marked(alice, "veth1"))
		with(host, func(c *nft.Conn) {
			found, err := ways().All(c, alice.Owns)
			Expect(err).NotTo(HaveOccurred())
			Expect(found).To(HaveLen(3))
			put(host, way(bob, "10.1.0.1", "plain"))
			Expect(ways().Remove(context.Background(), c, found, alice.Owns)).To(Succeed())
			Expect(ways().All(c, func(string) bool { return true })).To(Equal([]nft.Item{
				{Set: "ways", Element: way(bob, "10.1.0.1", "plain").Element}}))
			Expect(ways().Live(c,
				[]nft.Item{way(alice, "10.1.0.1", "plain"), way(alice, "10.1.0.2", "plain")}, bob.Owns)).
				To(Equal([]nft.Item{way(bob, "10.1.0.1", "plain")}))
		})
	})

	It("take the chains with them to which nothing leads any more", func() {
		put(host, way(alice, "10.1.0.1", "marked"), way(bob, "10.1.0.2", "marked"))
		remove := func(it nft.Item) {
			with(host, func(c *nft.Conn) {
				Expect(ways().Remove(context.Background(), c, []nft.Item{it},
					func(string) bool { return true })).To(Succeed())
			})
		}
		remove(way(alice, "10.1.0.1", "marked"))
		Expect(list()).To(And(ContainSubstring("chain way_marked"), ContainSubstring("chain way_plain")))
		remove(way(bob, "10.1.0.2", "marked"))
		Expect(list()).To(And(ContainSubstring("chain base_v1"), Not(ContainSubstring("chain way_"))))
	})

	It("leave a chain that gets another element in the same change, and drop one that never had any", func() {
		put(host, way(alice, "10.1.0.1", "plain"))
		Expect(change(host, func(tx *nft.Tx) error {
			return errors.Join(tx.Ensure("way_marked"),
				tx.Remove([]nft.Item{way(alice, "10.1.0.1", "plain")}, alice.Owns),
				tx.Put([]nft.Item{way(bob, "10.1.0.1", "plain")}, nil))
		})).To(Succeed())
		Expect(list()).To(And(ContainSubstring("bob"), Not(ContainSubstring("alice")),
			ContainSubstring("chain way_marked")))
		Expect(change(host, func(tx *nft.Tx) error {
			tx.Drop("way_marked", "way_absent")
			return nil
		})).To(Succeed())
		Expect(list()).To(And(ContainSubstring("chain way_plain"), Not(ContainSubstring("chain way_marked"))))
	})

	It("are made whole for all when the table was flushed", func() {
		put(host, way(alice, "10.1.0.1", "plain"), way(alice, "10.1.0.2", "marked"))
		before := list()
		host.Cmd("nft", "flush", "table", table.Family.String(), table.Name)
		Expect(change(host, func(tx *nft.Tx) error {
			return tx.Put([]nft.Item{way(alice, "10.1.0.1", "plain")}, nil)
		})).To(Succeed())
		Expect(list()).To(Equal(before))
	})

	DescribeTable("are verified", func(change, difference string) {
		items := []nft.Item{way(alice, "10.1.0.1", "plain"), marked(alice, "veth1")}
		put(host, append(items, way(bob, "10.1.0.9", "marked"))...)
		verify := func() (err error) {
			with(host, func(c *nft.Conn) { err = ways().Verify(c, items) })
			return err
		}
		Expect(verify()).To(Succeed())
		host.Cmd("sh", "-ec", strings.ReplaceAll(change, "TABLE", table.String()))
		Expect(verify()).To(And(MatchError(nft.ErrDrift), MatchError(ContainSubstring(difference))))
	},
		Entry("when one is gone", "nft delete element TABLE ways '{ 10.1.0.1 }'",
			`set "ways", address 10.1.0.1: ruleset differs: no element`),
		Entry("when one is somebody else's",
			`nft delete element TABLE ways '{ 10.1.0.1 }'
			nft add element TABLE ways '{ 10.1.0.1 comment "x y" : goto way_plain }'`,
			`belongs to "x y"`),
		Entry("when one leads elsewhere", `nft delete element TABLE ways '{ 10.1.0.1 }'
			nft add element TABLE ways '{ 10.1.0.1 comment "`+alice.Mark()+`" : goto way_marked }'`,
			`chain "way_marked", not "way_plain"`),
		Entry("when a shared rule is gone", "nft flush chain TABLE base_v1", `chain "base_v1"`),
		Entry("when a rule of their chain is gone", "nft flush chain TABLE way_plain", `chain "way_plain"`),
	)
})
