package nstest

import (
	"sync"

	"github.com/onsi/ginkgo/v2"
)

// AtOnce calls do with 0 to n-1, each in a goroutine of its own, and waits for all.
func AtOnce(n int, do func(i int)) {
	ginkgo.GinkgoHelper()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			defer ginkgo.GinkgoRecover()
			do(i)
		})
	}
	all.Wait()
}
