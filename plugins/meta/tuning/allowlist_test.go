package main

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

var _ = Describe("the allow-list", func() {
	write := func(text string) allowList {
		GinkgoHelper()
		l := allowList(filepath.Join(GinkgoT().TempDir(), "allowlist.conf"))
		Expect(os.WriteFile(string(l), []byte(text), 0o644)).To(Succeed())
		return l
	}
	settings := func(keys ...string) (all []setting) {
		GinkgoHelper()
		for _, raw := range keys {
			key, err := sysctl.Parse(raw)
			Expect(err).NotTo(HaveOccurred())
			all = append(all, setting{Source: "sysctl", Raw: raw, Key: key, Value: "1"})
		}
		return all
	}

	DescribeTable("allows", func(text string, keys ...string) {
		Expect(write(text).check(settings(keys...))).To(Succeed())
	},
		Entry("a line's match", "^net\\.core\\.x$\n", "net.core.x"),
		Entry("any line's", "\n  ^net\\.core\\.x$  \r\n\n^net\\.core\\.y$", "net.core.y", "net.core.x"),
		Entry("a line without anchors anywhere in the key", "core.x", "net.core.xyz"),
		Entry("a line with one anchor", "^net.core", "net.core.x"),
		Entry("keys as written", "^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$", "net.ipv4.conf.IFNAME.arp_filter"),
		Entry("dots that match any separator", "^net.core.x$", "net/core/x"),
		Entry("what stands before a broken line", "core\n*", "net.core.x"),
		Entry("no keys at all", ""),
		Entry("no keys, with a broken line", "*"),
	)

	DescribeTable("forbids", func(text, key string) {
		err := write(text).check(settings(key))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
		Expect(err).To(MatchError(HavePrefix("sysctl[" + strconv.Quote(key) + `]: "1": not allowed by `)))
	},
		Entry("all when it is empty", "", "net.core.x"),
		Entry("all when it is blank", "\n \n", "net.core.x"),
		Entry("what no line matches", "^net\\.core\\.y$", "net.core.x"),
		Entry("more than an anchored line says", "^net\\.core\\.x$", "net.core.xy"),
		Entry("what has an anchored line inside", "^net\\.core\\.x$", "net.core.net.core.x"),
		Entry("a line break around an anchored line", "^net\\.core\\.x$", "net.core.y\nnet.core.x"),
		Entry("what a comment does not mean", "# net.core.y", "net.core.x"),
	)

	It("names what is allowed", func() {
		l := write("^net\\.core\\.y$\n^net\\.core\\.z$")
		Expect(l.check(settings("net.core.x"))).To(MatchError(
			`sysctl["net.core.x"]: "1": not allowed by ` + string(l) +
				`, which allows ["^net\\.core\\.y$" "^net\\.core\\.z$"]`))
	})

	It("that is not there allows everything", func() {
		l := allowList(filepath.Join(GinkgoT().TempDir(), "absent", "allowlist.conf"))
		Expect(l.check(settings("net.core.x"))).To(Succeed())
		Expect(l.verify()).To(Succeed())
	})

	It("with a broken line says which", func() {
		l := write("^net\\.core\\.y$\n*x\n(")
		err := l.check(settings("net.core.x"))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
		Expect(err).To(MatchError(string(l) +
			": line \"*x\": error parsing regexp: missing argument to repetition operator: `*`"))
		Expect(l.verify()).To(MatchError(And(ContainSubstring(`"*x"`), ContainSubstring(`"("`))))
	})

	It("that cannot be read is an error", func() {
		l := allowList(GinkgoT().TempDir())
		err := l.check(settings("net.core.x"))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeIO))
		Expect(l.verify()).NotTo(Succeed())
		Expect(errors.Is(err, os.ErrNotExist)).To(BeFalse())
	})
})
