package runtimes_test

import (
	"fmt"
	"os"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
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

// step does one thing.
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
