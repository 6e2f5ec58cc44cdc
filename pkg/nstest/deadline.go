package nstest

import (
	"context"
	"time"

	"github.com/onsi/ginkgo/v2"
)

// deadline is a context that ends as one does whose time is over.
type deadline struct {
	context.Context
	over chan struct{}
}

func (d deadline) Done() <-chan struct{} { return d.over }

func (d deadline) Err() error {
	select {
	case <-d.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// DeadlineWhen is a context whose deadline is over as soon as done says so, whatever time the
// machine needs to get there, and after [Hang] in any case.
func DeadlineWhen(done func() bool) context.Context {
	ginkgo.GinkgoHelper()
	d := deadline{context.Background(), make(chan struct{})}
	stop := make(chan struct{})
	ginkgo.DeferCleanup(func() {
		close(stop)
		<-d.over // done may look at what is removed next
	})
	go func() {
		defer close(d.over)
		defer ginkgo.GinkgoRecover()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(Patience(Hang)); !done() && time.Now().Before(end); {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	return d
}
