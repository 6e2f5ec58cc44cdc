package nft_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

var (
	alice = cni.Attachment{Network: "net1", ContainerID: "alice", IfName: "eth0"}
	bob   = cni.Attachment{Network: "net1", ContainerID: "bob", IfName: "eth0"}
)

// ways has a set, and a map whose elements go to chains way_*. The chain way_marked jumps to way_plain.
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

// gotoChain is the code of the verdict goto, as the kernel returns it.
var gotoChain = []byte{0xff, 0xff, 0xff, 0xfc}

var _ = Describe("owned elements", Label("kernel"), func() {
	var host *nstest.Host
	list := func() string { return host.Cmd("nft", "list", "ruleset") }

	BeforeEach(func() {
		nstest.Need("nft")
		host = nstest.NewHost()
	})

	It("are created with everything that they need, and only once", func() {
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

	It("of another owner can be kept, and nothing is created then", func() {
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

	It("of the same owner that go to another chain are replaced", func() {
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

	It("are removed only if the owner is still the same", Label("owner"), func() {
		put(host, way(alice, "10.1.0.1", "plain"), way(alice, "10.1.0.2", "plain"), marked(alice, "veth1"))
		with(host, func(c *nft.Conn) {
			found := nstest.Must(ways().All(c, alice.Owns))
			Expect(found).To(HaveLen(3))
			put(host, way(bob, "10.1.0.1", "plain"))
			Expect(ways().Remove(context.Background(), c, found, alice.Owns)).To(Succeed())
			replaced := way(bob, "10.1.0.1", "plain").Element
			replaced.Verdict = gotoChain
			Expect(ways().All(c, func(string) bool { return true })).To(Equal([]nft.Item{
				{Set: "ways", Element: replaced}}))
			Expect(ways().Live(c,
				[]nft.Item{way(alice, "10.1.0.1", "plain"), way(alice, "10.1.0.2", "plain")}, bob.Owns)).
				To(Equal([]nft.Item{way(bob, "10.1.0.1", "plain")}))
		})
	})

	It("are removed also if another owner of the key leaves after they were found", Label("owner"), func() {
		o := nft.Owned{Shared: true, Sets: []string{"links_v1"}, Layout: nft.Layout{Table: table,
			Sets:   []nft.Set{{Name: "links_v1", Key: []nft.Type{nft.IfName}}},
			Chains: []nft.Chain{{Name: "base_v1"}}}}
		link := func(a cni.Attachment) []nft.Item {
			return []nft.Item{{Set: "links_v1", Element: nft.Element{Key: nft.IfNameKey("veth1"), Comment: a.Mark()}}}
		}
		with(host, func(c *nft.Conn) {
			ctx := context.Background()
			for _, a := range []cni.Attachment{alice, bob} {
				Expect(o.Update(ctx, c, func(tx *nft.Tx) error { return tx.Put(link(a), nil) })).To(Succeed())
			}
			found := nstest.Must(o.All(c, bob.Owns))
			Expect(o.Remove(ctx, c, link(alice), alice.Owns)).To(Succeed())
			Expect(list()).To(ContainSubstring(bob.Mark()))
			Expect(o.Remove(ctx, c, found, bob.Owns)).To(Succeed())
			Expect(list()).NotTo(ContainSubstring(bob.Mark()))
		})
	})

	It("are removed together with chains that become unused", func() {
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

	It("keep a chain that gets another element in the same change, and drop a chain without elements", func() {
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

	It("are repaired for all owners if the table was flushed", func() {
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
		Entry("if one is missing", "nft delete element TABLE ways '{ 10.1.0.1 }'",
			`set "ways", address 10.1.0.1: ruleset differs: no element`),
		Entry("if one belongs to another owner",
			`nft delete element TABLE ways '{ 10.1.0.1 }'
			nft add element TABLE ways '{ 10.1.0.1 comment "x y" : goto way_plain }'`,
			`belongs to "x y"`),
		Entry("if one goes to another chain", `nft delete element TABLE ways '{ 10.1.0.1 }'
			nft add element TABLE ways '{ 10.1.0.1 comment "`+alice.Mark()+`" : goto way_marked }'`,
			`chain "way_marked", not "way_plain"`),
		Entry("if a shared rule is missing", "nft flush chain TABLE base_v1", `chain "base_v1"`),
		Entry("if a rule of their chain is missing", "nft flush chain TABLE way_plain", `chain "way_plain"`),
	)
})

var _ = Describe("an update", Label("kernel"), func() {
	var host *nstest.Host

	BeforeEach(func() {
		nstest.Need("nft", "nft-inet-nat")
		host = nstest.NewHost()
	})

	It("returns single elements with comment and verdict, and nil for a missing one", func() {
		with(host, func(c *nft.Conn) {
			Expect(c.Get(table, "sources", source(1).Key)).To(Equal([]*nft.Element{nil}))
			Expect(c.Elements(table, "sources")).To(BeEmpty())
			Expect(c.Update(context.Background(), func(tx *nft.Tx) error {
				err := ensure(tx)
				tx.Add(table, "sources", source(1), source(3))
				return err
			})).To(Succeed())
			one, three := source(1), source(3)
			one.Verdict, three.Verdict = gotoChain, gotoChain
			Expect(c.Get(table, "sources", one.Key, source(2).Key, three.Key)).
				To(Equal([]*nft.Element{&one, nil, &three}))
		})
	})

	It("lists the elements of a set in which an interval begins where another one ends", func() {
		host.Cmd("nft", `add table inet spec
			add set inet spec names { type ifname; flags interval; elements = { "cni*", "cnj*" }; }`)
		with(host, func(c *nft.Conn) {
			var ends []bool
			for _, e := range nstest.Must(c.Elements(table, "names")) {
				ends = append(ends, e.IsEnd)
			}
			Expect(ends).To(ContainElements(false, false, true, true))
		})
	})

	It("never overwrites an element: the whole batch fails, and names what was refused", func() {
		Expect(update(host, func(tx *nft.Tx) error {
			err := ensure(tx)
			tx.Add(table, "sources", source(1))
			return err
		})).To(Succeed())
		before := host.Cmd("nft", "list", "ruleset")
		attempts := 0
		err := update(host, func(tx *nft.Tx) error {
			attempts++
			tx.Add(table, "sources", source(2))
			tx.Add(table, "sources", source(1))
			return nil
		})
		Expect(err).To(MatchError(unix.EEXIST))
		Expect(err).To(MatchError(`nftables table "inet spec": add to set "sources": file exists`))
		Expect(attempts).To(Equal(5))
		Expect(host.Cmd("nft", "list", "ruleset")).To(Equal(before))
	})

	It("is repeated if the kernel's answer was lost, because the batch may have been applied", func() {
		attempts := 0
		err := update(host, func(tx *nft.Tx) error {
			attempts++
			if attempts == 1 {
				nstest.FailCall(unix.SYS_RECVFROM, unix.ENOBUFS)
			}
			tx.Add(table, "sources", source(2))
			return nil
		})
		Expect(err).To(MatchError(unix.ENOBUFS))
		Expect(attempts).To(Equal(5))
	})

	It("fails immediately if the kernel refuses the whole batch, or does not answer", func() {
		n := nstest.Must(ns.Open(host.Path))
		defer n.Close()
		Expect(n.Do(func() error {
			c := nft.New()
			defer c.Close()
			Expect(nft.SendUnanswered(c)).To(
				And(MatchError(unix.EAGAIN), MatchError(HavePrefix("no answer from the kernel"))))
			var none [2]unix.CapUserData // of this thread, which ends with it
			Expect(unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0])).To(Succeed())
			return nft.UpdateUnlocked(c, func(tx *nft.Tx) error {
				tx.Add(table, "sources", source(1), source(2))
				return nil
			})
		})).To(MatchError(ContainSubstring(`nftables table "inet spec": commit: operation not permitted`)))
	})

	It("is repeated if another program was faster", func() {
		Expect(update(host, ensure)).To(Succeed())
		attempts := 0
		Expect(update(host, func(tx *nft.Tx) error {
			found, err := tx.Get(table, "sources", source(1).Key)
			if err != nil {
				return err
			}
			if attempts++; attempts == 1 {
				host.Cmd("nft", "add", "element", "inet", "spec", "sources", "{ 10.1.0.1 : drop }")
			}
			if found[0] == nil {
				tx.Add(table, "sources", source(1))
			}
			return nil
		})).To(Succeed())
		Expect(host.Cmd("nft", "list", "ruleset")).To(ContainSubstring("10.1.0.1 : drop"))
	})

	It("lists each element once while others are added", func() {
		Expect(update(host, ensure)).To(Succeed())
		var first []nft.Element
		for i := 1; i <= 1600; i++ {
			first = append(first, port(i))
		}
		Expect(update(host, func(tx *nft.Tx) error { tx.Add(table, "ports", first...); return nil })).To(Succeed())
		done := make(chan error, 1)
		go func() {
			defer close(done)
			defer GinkgoRecover()
			var err error
			for batch := range 25 {
				err = cmp.Or(err, update(host, func(tx *nft.Tx) error {
					for i := range 50 {
						tx.Add(table, "ports", port(1601+50*batch+i))
					}
					return nil
				}))
			}
			done <- err
		}()
		with(host, func(c *nft.Conn) {
			for changing := true; changing; {
				select {
				case err := <-done:
					Expect(err).NotTo(HaveOccurred())
					changing = false
				default:
				}
				got, err := c.Elements(table, "ports")
				if changing && errors.Is(err, nl.ErrDumpInterrupted) {
					continue
				}
				Expect(err).NotTo(HaveOccurred())
				live := map[string]bool{}
				for _, e := range got {
					live[string(e.Key)] = true
				}
				Expect(got).To(HaveLen(len(live)), "a key stands twice")
				missing := slices.ContainsFunc(first, func(e nft.Element) bool { return !live[string(e.Key)] })
				Expect(missing).To(BeFalse(), "a key that stays is missing")
			}
		})
	})

	It("applies a large batch completely or not at all", func() {
		Expect(update(host, ensure)).To(Succeed())
		before := host.Cmd("nft", "list", "ruleset")
		var many []nft.Element
		for i := 1; i <= 4500; i++ { // more than the socket's usual buffer holds
			many = append(many, port(i))
		}
		Expect(update(host, func(tx *nft.Tx) error {
			tx.Add(table, "ports", many...)
			tx.Add(table, "ports", many[0])
			return nil
		})).To(MatchError(unix.EEXIST))
		Expect(host.Cmd("nft", "list", "ruleset")).To(Equal(before))
	})

	It("reports what the kernel supports, and changes nothing", func() {
		with(host, func(c *nft.Conn) { Expect(c.Probe(sample())).To(Succeed()) })
		Expect(host.Cmd("nft", "list", "ruleset")).To(BeEmpty())
		Expect(update(host, ensure)).To(Succeed())
		with(host, func(c *nft.Conn) { Expect(c.Probe(sample())).To(Succeed()) })
		Expect(host.Cmd("nft", "list", "ruleset")).NotTo(BeEmpty())
	})

	It("reports a base chain that the kernel refuses, and leaves nothing", func() {
		odd := sample()
		odd.Table.Family = nft.Bridge // which has no nat
		odd.Chains = []nft.Chain{{Name: "postrouting_v1", Hook: sample().Chains[2].Hook}}
		for range 2 {
			Expect(update(host, func(tx *nft.Tx) error { return tx.EnsureLayout(odd) })).To(
				And(MatchError(nft.ErrUnsupported), MatchError(ContainSubstring(`add chain "postrouting_v1"`))))
		}
		with(host, func(c *nft.Conn) { Expect(c.Probe(odd)).To(MatchError(nft.ErrUnsupported)) })
		Expect(host.Cmd("nft", "list", "ruleset")).To(BeEmpty())
	})

	It("waits for the lock until the deadline and names its holder", Label("locks"), func() {
		host.Do(func() {
			Expect(os.MkdirAll("/run/hawser", 0o755)).To(Succeed())
			held := nstest.Must(statefile.LockFile(context.Background(), nft.LockPath, 0o600))
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			c := nft.New()
			err := c.Update(ctx, ensure)
			Expect(err).To(MatchError(statefile.ErrBusy))
			Expect(err).To(MatchError(ContainSubstring("process %d ", os.Getpid())))
			Expect(held.Unlock()).To(Succeed())
			Expect(c.Update(context.Background(), ensure)).To(Succeed())
			Expect(c.Close()).To(Succeed())
			Expect(c.Close()).To(Succeed())
		})
	})
})

// insert adds an entry as an administrator would.
func insert(h *nstest.Host, proto, orig, reply string) {
	GinkgoHelper()
	o, r := strings.Fields(orig), strings.Fields(reply)
	args := []string{"-I", "-p", proto, "-t", "300", "-s", o[0], "--sport", o[1], "-d", o[2], "--dport", o[3],
		"-r", r[0], "--reply-port-src", r[1], "-q", r[2], "--reply-port-dst", r[3]}
	if proto == "tcp" {
		args = append(args, "--state", "ESTABLISHED")
	}
	h.Cmd("conntrack", args...)
}

func entries(h *nstest.Host) string {
	GinkgoHelper()
	return h.Cmd("conntrack", "-L") + h.Cmd("conntrack", "-L", "-f", "ipv6")
}

var _ = Describe("DeleteFlows", Label("kernel"), func() {
	var host *nstest.Host

	BeforeEach(func() {
		nstest.Need("conntrack")
		host = nstest.NewHost()
		insert(host, "udp", "198.51.100.7 1000 192.0.2.1 53", "10.1.0.2 53 198.51.100.7 1000")
		insert(host, "udp", "198.51.100.8 1000 192.0.2.1 53", "192.0.2.1 53 198.51.100.8 1000")
		insert(host, "tcp", "198.51.100.9 1000 192.0.2.1 53", "10.1.0.2 53 198.51.100.9 1000")
		insert(host, "udp", "2001:db8::7 1000 2001:db8::1 53", "fd00::2 53 2001:db8::7 1000")
	})

	// remove calls DeleteFlows in the host and returns the flows that match was called with.
	remove := func(family nft.Family, proto uint8, match func(nft.Flow) bool) (seen []string, n int) {
		GinkgoHelper()
		host.Do(func() {
			var err error
			n, err = nft.DeleteFlows(family, proto, func(f nft.Flow) bool {
				seen = append(seen, fmt.Sprintf("%s %s %s %t", f.Source, f.Destination, f.ReplySource, f.Translated()))
				return match(f)
			})
			Expect(err).NotTo(HaveOccurred())
		})
		return seen, n
	}

	It("passes every entry of the family and protocol to match, and deletes the selected ones", func() {
		seen, n := remove(nft.IPv4, unix.IPPROTO_UDP, nft.Flow.Translated)
		Expect(seen).To(ConsistOf(
			"198.51.100.7:1000 192.0.2.1:53 10.1.0.2:53 true",
			"198.51.100.8:1000 192.0.2.1:53 192.0.2.1:53 false"))
		Expect(n).To(Equal(1))
		Expect(entries(host)).NotTo(ContainSubstring("198.51.100.7"))
		Expect(entries(host)).To(And(ContainSubstring("198.51.100.8"), ContainSubstring("198.51.100.9"),
			ContainSubstring("2001:db8::7")))
	})

	It("supports IPv6", func() {
		to := netip.MustParseAddrPort("[fd00::2]:53")
		seen, n := remove(nft.IPv6, unix.IPPROTO_UDP, func(f nft.Flow) bool { return f.ReplySource == to })
		Expect(seen).To(HaveLen(1))
		Expect(n).To(Equal(1))
		Expect(entries(host)).NotTo(ContainSubstring("2001:db8::7"))
	})
})
