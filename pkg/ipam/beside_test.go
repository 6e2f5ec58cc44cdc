package ipam_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/invoke"
	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = Describe("Client, beside other work,", func() {
	ctx := context.Background()
	soon := nstest.Patience(5 * time.Second)
	bad := errors.New("bad")
	var dir string

	// client speaks to a shell script of that name, which works in dir.
	client := func(name, script string) ipam.Client {
		GinkgoHelper()
		dir = GinkgoT().TempDir()
		Expect(os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\ncd "+dir+"\n"+script+"\n"), 0o755)).To(Succeed())
		return ipam.Client{Type: name, Conf: []byte(`{}`), Version: "1.0.0", Runner: invoke.Runner{
			Path: dir, Env: []string{"PATH=" + os.Getenv("PATH")}, Limits: invoke.Limits{Run: nstest.Patience(10 * time.Second)},
		}}
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	touch := func(name string) error { return os.WriteFile(file(name), nil, 0o600) }
	const waits = `touch started; until [ -e made ]; do :; done; `

	It("asks for addresses while the interface is made", func() {
		c := client("host-local", waits+`echo '{"ips": [{"address": "10.0.0.5/24"}]}'`)
		res, err := c.AddBeside(ctx, func() error {
			Eventually(file("started")).WithTimeout(soon).Should(BeAnExistingFile())
			return touch("made")
		})
		Expect(err).NotTo(HaveOccurred())
		Expect(res.IPs).To(HaveLen(1))
	})

	It("ends the plugin when the interface cannot be made", func() {
		c := client("host-local", `touch started; exec sleep 60`)
		began := time.Now()
		_, err := c.AddBeside(ctx, func() error {
			Eventually(file("started")).WithTimeout(soon).Should(BeAnExistingFile())
			return bad
		})
		Expect(err).To(MatchError(bad))
		Expect(time.Since(began)).To(BeNumerically("<", soon))
	})

	It("ends the plugin before a panic goes on", func() {
		c := client("host-local", `touch started; exec sleep 60`)
		Expect(func() {
			_, _ = c.AddBeside(ctx, func() error {
				Eventually(file("started")).WithTimeout(soon).Should(BeAnExistingFile())
				panic("oops")
			})
		}).To(PanicWith("oops"))
		_, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		Expect(err).To(MatchError(unix.ECHILD), "it is at work still")
	})

	It("returns the plugin's error when the interface was made", func() {
		c := client("host-local", `echo '{"code": 11, "msg": "later"}'; exit 1`)
		_, err := c.AddBeside(ctx, func() error { return nil })
		Expect(err).To(MatchError("later"))
	})

	It("checks while something is compared, and returns both", func() {
		c := client("fake", waits+`echo '{"code": 101, "msg": "not reserved"}'; exit 1`)
		errs := c.CheckBeside(ctx, func() []error { return []error{bad, touch("made")} })
		Expect(errors.Join(errs...)).To(MatchError("bad\nnot reserved"))
	})

	It("compares also when the plugin is not there", func() {
		c := client("fake", "")
		c.Type = "nobody"
		errs := c.CheckBeside(ctx, func() []error { return []error{bad} })
		Expect(errors.Join(errs...)).To(MatchError(And(HavePrefix("bad\n"), ContainSubstring(`no plugin "nobody"`))))
	})

	It("has a plugin ready that gives back what it is told to once the interface is gone", func() {
		c := client("host-local", `touch started; cat >told`)
		Expect(c.DelAfter(ctx, func() (bool, error) {
			Eventually(file("started")).WithTimeout(soon).Should(BeAnExistingFile())
			Expect(os.ReadFile(file("told"))).To(BeEmpty())
			return true, nil
		})).To(Succeed())
		Expect(os.ReadFile(file("told"))).To(BeEquivalentTo("{}"))
	})

	DescribeTable("gives nothing back while the interface is there", func(name string) {
		c := client(name, `cat >told; exec sleep 60`)
		began := time.Now()
		err := c.DelAfter(ctx, func() (bool, error) { return false, bad })
		Expect(err).To(MatchError(`bad` + "\n" + `IPAM plugin "` + name + `": not asked to release the addresses while the interface may still be there`))
		Expect(time.Since(began)).To(BeNumerically("<", soon))
		if told, err := os.ReadFile(file("told")); err == nil {
			Expect(told).To(BeEmpty())
		}
	}, Entry("of a plugin that needs nothing", "host-local"), Entry("of any other", "fake"))

	It("starts another plugin only then", func() {
		c := client("fake", `cat >told`)
		Expect(c.DelAfter(ctx, func() (bool, error) {
			Consistently(file("told")).WithTimeout(100 * time.Millisecond).ShouldNot(BeAnExistingFile())
			return true, bad
		})).To(MatchError(bad))
		Expect(os.ReadFile(file("told"))).To(BeEquivalentTo("{}"))
	})

	It("returns both errors of a DEL", func() {
		c := client("host-local", `cat >/dev/null; echo '{"code": 11, "msg": "later"}'; exit 1`)
		Expect(c.DelAfter(ctx, func() (bool, error) { return true, bad })).To(MatchError("bad\nlater"))
		Expect(os.Remove(file("host-local"))).To(Succeed())
		Expect(c.DelAfter(ctx, func() (bool, error) { return true, nil })).To(MatchError(ContainSubstring(`no plugin "host-local"`)))
	})

	It("has nothing to give back without a plugin", func() {
		c := client("fake", "")
		c.Type = ""
		Expect(c.DelAfter(ctx, func() (bool, error) { return false, bad })).To(MatchError("bad"))
		Expect(c.DelAfter(ctx, func() (bool, error) { return true, nil })).To(Succeed())
	})
})
