package tool

import (
	"context"
	"os/signal"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

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

// TestTimeLimit runs on a synthetic clock. Each step ends when its context does.
func TestTimeLimit(t *testing.T) {
	_, stop := signal.NotifyContext(t.Context(), syscall.SIGUSR1) // os/signal cannot begin in a bubble
	defer stop()
	synctest.Test(t, func(t *testing.T) {
		waits := []testStep{{"waits", 0, func(_ *trial, ctx context.Context) (string, error) {
			<-ctx.Done()
			return "", nil
		}}}
		began, limit := time.Now(), 30*time.Second
		(&trial{}).runSteps(t.Context(), limit, waits, waits)
		if took := time.Since(began); took != limit {
			t.Errorf("hawser test takes %s of %s", took, limit)
		}
	})
}
