package tool

import (
	"context"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("a step of hawser test", Label("tool-test"), func() {
	It("fails when it panics, and ends nothing", func() {
		t := &trial{OK: true}
		t.runStep(context.Background(), testStep{"ADD", 0, func(*trial, context.Context) (string, error) {
			panic("oops")
		}})
		Expect(t.OK).To(BeFalse())
		Expect(t.Steps).To(ConsistOf(And(HaveField("Status", "failed"), HaveField("Why", "panic: oops"))))
	})
})
