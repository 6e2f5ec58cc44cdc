package nft_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

var _ = Describe("an update", Label("kernel"), func() {
	var host *nstest.Host

	BeforeEach(func() {
		nstest.Need("nft", "nft-inet-nat")
		host = nstest.NewHost()
	})

	It("gets single elements with comment and verdict, and nothing for what is not there", func() {
		with(host, func(c *nft.Conn) {
			Expect(c.Get(table, "sources", source(1).Key)).To(Equal([]*nft.Element{nil}))
			Expect(c.Elements(table, "sources")).To(BeEmpty())
			Expect(c.Update(context.Background(), func(tx *nft.Tx) error {
				err := ensure(tx)
				tx.Add(table, "sources", source(1), source(3))
				return err
			})).To(Succeed())
			one, three := source(1), source(3)
			Expect(c.Get(table, "sources", one.Key, source(2).Key, three.Key)).
				To(Equal([]*nft.Element{&one, nil, &three}))
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

	It("is repeated when the kernel's answer was lost: the batch may have done its work", func() {
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

	It("fails at once where the kernel refuses the batch as a whole, or says nothing", func() {
		n, err := ns.Open(host.Path)
		Expect(err).NotTo(HaveOccurred())
		defer n.Close()
		Expect(n.Do(func() error {
			c := nft.New()
			defer c.Close()
			err := nft.AskNothing(c)
			Expect(err).To(MatchError(unix.EAGAIN))
			Expect(err).To(MatchError(HavePrefix("no answer from the kernel")))
			var none [2]unix.CapUserData // of this thread, which ends with it
			Expect(unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0])).To(Succeed())
			return nft.UpdateUnlocked(c, func(tx *nft.Tx) error {
				tx.Add(table, "sources", source(1), source(2))
				return nil
			})
		})).To(MatchError(ContainSubstring(`nftables table "inet spec": commit: operation not permitted`)))
	})

	It("is repeated when somebody else was faster", func() {
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

	It("adds and deletes thousands of elements in one batch each", func() {
		Expect(update(host, ensure)).To(Succeed())
		var many []nft.Element
		for i := 1; i <= 2000; i++ {
			many = append(many, port(i))
		}
		Expect(update(host, func(tx *nft.Tx) error { tx.Add(table, "ports", many...); return nil })).To(Succeed())
		with(host, func(c *nft.Conn) {
			// The kernel lists so many in parts, and resizes the map meanwhile: such a list is read again.
			got, err := c.Elements(table, "ports")
			Expect(err).NotTo(HaveOccurred())
			slices.SortFunc(got, func(a, b nft.Element) int { return bytes.Compare(a.Key, b.Key) })
			Expect(got).To(Equal(many))
			keys := [][]byte{}
			for _, e := range many[:1000] {
				keys = append(keys, e.Key)
			}
			some, err := c.Get(table, "ports", keys...)
			Expect(err).NotTo(HaveOccurred())
			Expect(some).NotTo(ContainElement(BeNil()))
		})
		Eventually(func() int {
			return strings.Count(host.Cmd("nft", "list", "map", "inet", "spec", "ports"), "an owner")
		}).Should(Equal(2000))
		Expect(update(host, func(tx *nft.Tx) error { tx.Delete(table, "ports", many...); return nil })).To(Succeed())
		Expect(host.Cmd("nft", "list", "map", "inet", "spec", "ports")).NotTo(ContainSubstring("an owner"))
	})

	It("lists all elements once, while others come", func() {
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

	It("makes all of a large batch or nothing", func() {
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

	It("tells what the kernel could hold, and changes nothing by it", func() {
		with(host, func(c *nft.Conn) { Expect(c.Probe(sample())).To(Succeed()) })
		Expect(host.Cmd("nft", "list", "ruleset")).To(BeEmpty())
		Expect(update(host, ensure)).To(Succeed())
		with(host, func(c *nft.Conn) { Expect(c.Probe(sample())).To(Succeed()) })
		Expect(host.Cmd("nft", "list", "ruleset")).NotTo(BeEmpty())
	})

	It("says so when the kernel refuses a base chain, and leaves nothing", func() {
		odd := sample()
		odd.Table.Family = nft.Bridge // which has no nat
		odd.Chains = []nft.Chain{{Name: "postrouting_v1", Hook: sample().Chains[2].Hook}}
		for range 2 {
			err := update(host, func(tx *nft.Tx) error {
				err := tx.EnsureLayout(odd)
				return err
			})
			Expect(err).To(MatchError(nft.ErrUnsupported))
			Expect(err).To(MatchError(ContainSubstring(`add chain "postrouting_v1"`)))
		}
		with(host, func(c *nft.Conn) { Expect(c.Probe(odd)).To(MatchError(nft.ErrUnsupported)) })
		Expect(host.Cmd("nft", "list", "ruleset")).To(BeEmpty())
	})

	It("waits for the lock until the deadline and names its holder", Label("locks"), func() {
		host.Do(func() {
			Expect(os.MkdirAll("/run/hawser", 0o755)).To(Succeed())
			held, err := statefile.LockFile(context.Background(), nft.LockPath, 0o600)
			Expect(err).NotTo(HaveOccurred())
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			c := nft.New()
			err = c.Update(ctx, ensure)
			var busy *statefile.Busy
			Expect(errors.As(err, &busy)).To(BeTrue())
			Expect(busy.PID).To(Equal(os.Getpid()))
			Expect(held.Unlock()).To(Succeed())
			Expect(c.Update(context.Background(), ensure)).To(Succeed())
			Expect(c.Close()).To(Succeed())
			Expect(c.Close()).To(Succeed())
		})
	})
})
