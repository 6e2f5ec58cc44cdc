package masq_test

import (
	"context"
	"fmt"
	"os/exec"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

// existing returns what Restore asks, with the answer of exists for each mark.
func existing(exists func(mark string) bool) func(marks []string) map[string]bool {
	return func(marks []string) map[string]bool {
		found := map[string]bool{}
		for _, mark := range marks {
			found[mark] = exists(mark)
		}
		return found
	}
}

var allExist = existing(func(string) bool { return true })

var _ = Describe("a restore of flushed rules", Label("tool-ending"), func() {
	ctx := context.Background()
	of := func(id, addr string) masq.Config {
		return masq.Config{Attachment: cni.Attachment{Network: "net", ContainerID: id, IfName: "eth0"},
			Link: "br", Addrs: prefixes(addr)}
	}
	ended, lives := of("ended", "10.1.0.2/24"), of("lives", "10.1.0.3/24")
	// on is a host that had the masquerades of both, with its rules.
	on := func(do func(nf *nft.Conn, rules func() string)) {
		h := nstest.NewHost()
		h.Do(func() {
			nf := nft.New()
			defer nf.Close()
			for _, c := range []masq.Config{ended, lives} {
				Expect(masq.Add(ctx, nf, c)).To(Succeed())
			}
			h.Cmd("nft", "flush", "ruleset")
			do(nf, func() string { return h.Cmd("nft", "list", "ruleset") })
		})
	}
	restored := And(ContainSubstring(" lives "), Not(ContainSubstring(" ended ")))

	It("skips an attachment that does not exist", func() {
		on(func(nf *nft.Conn, rules func() string) {
			missing, err := masq.Restore(ctx, nf, []masq.Config{ended, lives}, existing(func(mark string) bool {
				return mark != ended.Attachment.Mark()
			}))
			Expect(err).NotTo(HaveOccurred())
			Expect(missing).To(HaveLen(1))
			Expect(rules()).To(restored)
		})
	})

	It("delays no ADD while it reads a namespace", func() {
		on(func(nf *nft.Conn, rules func() string) {
			added := 0
			missing, err := masq.Restore(ctx, nf, []masq.Config{ended, lives}, existing(func(mark string) bool {
				added++
				other := nft.New()
				defer other.Close()
				soon, cancel := context.WithTimeout(ctx, nstest.Patience(nstest.Hang))
				defer cancel()
				Expect(masq.Add(soon, other, of(fmt.Sprint("other-", added), "10.1.0.4/24"))).To(Succeed())
				return true
			}))
			Expect(err).NotTo(HaveOccurred())
			Expect(missing).To(HaveLen(2))
			Expect(rules()).To(And(ContainSubstring(" other-1 "), ContainSubstring(" lives ")))
		})
	})

	It("adds nothing if none of the attachments exists", func() {
		on(func(nf *nft.Conn, rules func() string) {
			none := existing(func(string) bool { return false })
			Expect(masq.Restore(ctx, nf, []masq.Config{ended, lives}, none)).To(BeEmpty())
			Expect(rules()).To(BeEmpty())
		})
	})

	DescribeTable("keeps the elements of an attachment that lacks only the shared chain, or is not read in time",
		func(lost []string, answers ...map[string]bool) {
			on(func(nf *nft.Conn, rules func() string) {
				Expect(masq.Add(ctx, nf, lives)).To(Succeed())
				nstest.Must(exec.Command("nft", lost...).Output())
				_, err := masq.Restore(ctx, nf, []masq.Config{lives}, func([]string) map[string]bool {
					answer := answers[0]
					answers = answers[1:]
					return answer
				})
				Expect(err).NotTo(HaveOccurred())
				Expect(rules()).To(And(restored, ContainSubstring("vmap @masq4_v2")))
			})
		},
		Entry("without one of its addresses", []string{"flush", "chain", "inet", "hawser", "masq_v2"},
			map[string]bool{}, map[string]bool{lives.Attachment.Mark(): false}),
		Entry("slowly", []string{"flush", "ruleset"},
			map[string]bool{lives.Attachment.Mark(): true}, map[string]bool{}),
	)

	It("is undone if the attachment ended in between", func() {
		on(func(nf *nft.Conn, rules func() string) {
			asked := 0
			missing, err := masq.Restore(ctx, nf, []masq.Config{ended, lives}, existing(func(mark string) bool {
				if mark == ended.Attachment.Mark() {
					asked++
				}
				return mark != ended.Attachment.Mark() || asked == 1
			}))
			Expect(err).NotTo(HaveOccurred())
			Expect(missing).To(HaveLen(1))
			Expect(rules()).To(restored)
		})
	})

	DescribeTable("is undone by a DEL that has removed the rules, but not yet the link", func(addrs bool) {
		on(func(nf *nft.Conn, rules func() string) {
			c := ended
			if !addrs {
				c.Addrs = nil
			}
			Expect(masq.Del(ctx, nf, c)).To(Succeed())
			_, err := masq.Restore(ctx, nf, []masq.Config{ended, lives}, allExist)
			Expect(err).NotTo(HaveOccurred())
			Expect(rules()).To(ContainSubstring(" ended "))
			Expect(masq.DelElements(ctx, nf, c)).To(Succeed())
			Expect(rules()).To(restored)
		})
	}, Entry("with the addresses", true), Entry("without", false))
})
