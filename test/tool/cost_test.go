package tool_test

import (
	"fmt"
	"os"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/trace"
)

// What must not grow with other containers is counted here; the time at 500 attachments was measured by hand.
var _ = Describe("ls, explain and metrics", Label("tool-cost"), func() {
	It("ask the kernel as often for many attachments as for few, and run no program", func() {
		m := newMachine(ours(), usual)
		asked := func(args ...string) (messages int) {
			var r *trace.Record
			m.Do(func() {
				r = nstest.Must(trace.Run(trace.Command{Path: nstest.Build("hawser"), Args: args, Env: os.Environ()}))
			})
			Expect(r.Exit).To(BeZero(), r.Stderr)
			Expect(r.Names()).To(Equal([]string{"hawser"}))
			return len(r.Programs[0].Messages)
		}
		calls := [][]string{{"ls"}, {"explain"}, {"explain", "8080"}, {"explain", "cni0"}, {"metrics"}}
		m.up(newPod("c000", "web-0", hostPort(8080, 80)))
		var few []int
		for _, args := range calls {
			few = append(few, asked(args...))
		}
		for i := range 8 {
			m.up(newPod(fmt.Sprintf("d%03d", i), fmt.Sprintf("web-%d", i+1), hostPort(8100+i, 80)))
		}
		for i, args := range calls {
			Expect(asked(args...)).To(Equal(few[i]), fmt.Sprint(args))
			Expect(few[i]).To(BeNumerically(">", 0))
		}
	})
})
