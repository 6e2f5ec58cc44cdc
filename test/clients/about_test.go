package clients_test

import (
	"os/exec"
	"strings"

	"github.com/Masterminds/semver/v3"
	"github.com/hashicorp/go-version"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// about is what a program of the plugin directory says when it is run without arguments.
func about(name string) (stdout, stderr string) {
	GinkgoHelper()
	var out, errs strings.Builder
	cmd := exec.Command(nstest.Build(name))
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{}, &out, &errs
	Expect(cmd.Run()).To(Succeed(), "%s: %s", name, &errs)
	return out.String(), errs.String()
}

var _ = Describe("what clients read of a program that is run without arguments:", func() {
	It("Nomad, the first word that is a version; it wants 0.4.0 of five plugins", Label("version-line"), func() {
		versions := map[string]string{} // Nomad's attributes plugins.cni.version.NAME
		for _, name := range nstest.Plugins() {
			stdout, stderr := about(name)
			for _, word := range strings.Fields(stdout + stderr) {
				if _, err := version.NewSemver(word); err == nil {
					versions[name] = word
					break
				}
			}
			Expect(versions[name]).To(HavePrefix("v1.9.1+hawser."), "%s: the reference's, then ours", name)
		}
		wanted := nstest.Must(version.NewConstraint(">= 0.4.0"))
		for _, name := range []string{"bridge", "firewall", "host-local", "loopback", "portmap"} {
			v := nstest.Must(version.NewSemver(versions[name]))
			Expect(wanted.Check(v)).To(BeTrue(), "%s %s", name, v)
		}
	})

	It("nerdctl, firewall's line on standard error; it wants 1.7.1 for policies", Label("version-line"), func() {
		const prefix = "CNI firewall plugin "
		_, stderr := about("firewall")
		for line := range strings.Lines(stderr) {
			rest, found := strings.CutPrefix(strings.TrimSuffix(line, "\n"), prefix)
			if !found {
				continue
			}
			v, err := semver.NewVersion(rest)
			Expect(err).NotTo(HaveOccurred(), rest)
			Expect(v.Compare(semver.MustParse("1.7.1"))).To(BeNumerically(">=", 0), rest)
			return
		}
		Fail("no line begins with " + prefix)
	})
})
