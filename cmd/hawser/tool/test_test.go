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

	"github.com/hawser-cni/plugins/cmd/hawser/node"
	"github.com/hawser-cni/plugins/pkg/nstest"
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

var _ = DescribeTable("hawser test attaches no second container with", Label("tool-test"), func(list, why string) {
	t := &trial{list: nstest.Must(node.ParseList([]byte(list))), node: &node.Node{}}
	_, err := t.addSecond(context.Background())
	Expect(err).To(Equal(skipped(why)))
},
	Entry("a VLAN", `{"type": "vlan", "master": "up0", "vlanId": 5}`, "a master has only one interface for each VLAN"),
	Entry("passthru", `{"type": "macvlan", "mode": "passthru"}`, "passthru has only one interface on a master"))

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
