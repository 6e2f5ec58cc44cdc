package faults_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// nodesAtOnce: a call spends half of its time waiting for the kernel. A node takes as long to make as
// some cases.
const (
	nodesAtOnce  = 4
	casesPerNode = 4
)

// errRetire says that all is well, and that the node cannot be used again.
var errRetire = errors.New("retire the node")

// trial is one case of a scenario.
type trial interface {
	// play disturbs a call and judges what came of it. hit is false when the call was
	// over before the fault could happen.
	play(n *node) (hit bool, err error)
}

// tally is what came of the cases of a scenario.
type tally struct {
	sync.Mutex
	hits   int
	failed []string
}

func (t *tally) count(hit bool, err error) {
	t.Lock()
	defer t.Unlock()
	if hit {
		t.hits++
	}
	if err != nil {
		t.failed = append(t.failed, err.Error())
	}
}

// each plays a sample of the cases, several nodes at a time, and fails with all that went wrong.
func each[T trial](l *lesson, all []T) {
	GinkgoHelper()
	cases := sample(all)
	todo := make(chan T, len(cases))
	for _, c := range cases {
		todo <- c
	}
	close(todo)
	var t tally
	var workers sync.WaitGroup
	for range min(nodesAtOnce, (len(cases)+casesPerNode-1)/casesPerNode) {
		workers.Go(func() {
			defer GinkgoRecover()
			work(l, todo, &t)
		})
	}
	workers.Wait()
	AddReportEntry(fmt.Sprintf("%s: %d of %d cases (seed %d), %d hit", l.Name, len(cases), len(all), GinkgoRandomSeed(),
		t.hits))
	if len(t.failed) > 0 {
		Fail(fmt.Sprintf("%d of %d cases:\n    %s", len(t.failed), len(cases), strings.Join(t.failed, "\n    ")))
	}
	Expect(2*t.hits).To(BeNumerically(">", len(cases)), "%d of %d cases hit", t.hits, len(cases))
}

// tries is how often a case is played until its fault happens: threads may be quicker this time.
const tries = 3

// work plays cases on one node. Whatever happened to it, the next case finds a good one.
func work[T trial](l *lesson, todo <-chan T, t *tally) {
	var n *node
	for c := range todo {
		var hit bool
		var err error
		for try := 0; try < tries && !hit && err == nil; try++ {
			n, hit, err = turn(l, n, c)
		}
		t.count(hit, err)
	}
}

// turn plays a case on the node, or on a new one where that is nil. It returns the node
// for the next case, nil where it cannot be used again.
func turn[T trial](l *lesson, n *node, c T) (next *node, hit bool, err error) {
	if n == nil {
		n, err = l.take()
	}
	if err == nil {
		hit, err = c.play(n)
	}
	if err != nil || l.Cold {
		n.retire()
		n = nil
	}
	if errors.Is(err, errRetire) {
		err = nil
	}
	return n, hit, err
}

// sampleSize is how many cases of a scenario are played where not all are.
const sampleSize = 14

// sample chooses some of the cases, the same for the same seed, unless HAWSER_FAULTS is all or messages.
func sample[T any](cases []T) []T {
	if everything() {
		return cases
	}
	random := rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 0))
	random.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	size := sampleSize
	if nstest.Patience(time.Second) > time.Second { // an emulated machine
		size /= 4
	}
	return cases[:min(len(cases), size)]
}

// everything says that nothing is left out for want of time.
func everything() bool { return os.Getenv("HAWSER_FAULTS") == "all" || messages() }

// messages says that errors are those of netlink's messages alone, all of them.
func messages() bool { return os.Getenv("HAWSER_FAULTS") == "messages" }
