// Package runtimes_test runs container runtimes on throw-away hosts, with our plugins as the only ones.
// Scripts/test-runtimes.sh installs the runtimes. Each spec needs real root, and cgroups that it can write.
package runtimes_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// story is what one client is asked for, step by step. Ours must do each step; what
// the newest reference does of it is written down.
type story struct {
	client string
	theirs bool
}

// outcomes are those of each step of each client, in the order of their first run.
var outcomes []*outcome

type outcome struct{ client, step, ours, theirs string }

// told tells a story twice: with ours, and, under ALL=1, with the newest reference.
func told(client string, tell func(s story, plugins string)) {
	It("with our plugins", func() { tell(story{client, false}, "") })
	It("with the newest reference, to compare", Label("all"), func() {
		tell(story{client, true}, nstest.Newest().Dir())
	})
}

func (s story) step(what string, do func()) {
	GinkgoHelper()
	By(what)
	result := "yes"
	if !s.theirs {
		do()
	} else if err := InterceptGomegaFailure(do); err != nil {
		result = fmt.Sprintf("no: %.200s", strings.Join(strings.Fields(err.Error()), " "))
	}
	for _, o := range outcomes {
		if o.client == s.client && o.step == what {
			o.note(s, result)
			return
		}
	}
	o := &outcome{client: s.client, step: what}
	o.note(s, result)
	outcomes = append(outcomes, o)
}

func (o *outcome) note(s story, result string) {
	if s.theirs {
		o.theirs = result
	} else {
		o.ours = result
	}
}

// backAndForth has ours take over what lives with the newest reference, which has it back, and ours again.
// A life changes the plugins in its middle, and ends.
func (m *machine) backAndForth(client, ours string, life func(change func())) {
	GinkgoHelper()
	s, reference := story{client: client}, nstest.Newest().Dir()
	for _, plugins := range []string{"", reference, ""} {
		step := "ours take over live pods of the newest reference: " + ours
		if plugins != "" {
			step = "the newest reference takes over live pods of ours (backend iptables)"
		}
		s.step(step, func() {
			life(func() { m.install(plugins) })
			pods.ExpectGone(m.Host)
		})
	}
	m.collect() // records of what the reference has deleted
	pods.ExpectNothingLeft(m.Host)
}

// docs/runtimes.md has this table.
var _ = AfterSuite(func() {
	path := os.Getenv("HAWSER_TABLE")
	if path == "" {
		return
	}
	var b strings.Builder
	for _, o := range outcomes {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", o.client, o.step, o.ours, o.theirs)
	}
	Expect(os.WriteFile(path, []byte(b.String()), 0o644)).To(Succeed())
})

func TestMain(m *testing.M) { nstest.Main(m) }

func TestRuntimes(t *testing.T) { nstest.RunSpecs(t, "runtimes: real runtimes with our plugins") }
