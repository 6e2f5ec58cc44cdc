package ns

import (
	"iter"
	"time"
)

var (
	KernelTest   = kernelTest
	ProcessTest  = processTest
	PinTest      = pinTest
	CheckVisible = checkVisible
	Search       = (*Finder).search
	HasProcess   = (*NS).hasProcess
)

// UsesWithin is Uses with a time limit of the search.
func UsesWithin(limit time.Duration, proc string) iter.Seq2[Use, error] {
	return func(yield func(Use, error) bool) {
		s := search{proc: proc, limit: limit, yield: yield}
		s.run()
	}
}
