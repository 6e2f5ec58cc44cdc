package tool

import (
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("the schedule of hawser watch", Label("tool-watch"), func() {
	// pauses returns the pauses before the passes that follow the calls, each of which comes immediately after a pass.
	pauses := func(s *schedule, calls ...func()) (all []time.Duration) {
		GinkgoHelper()
		for _, call := range calls {
			s.endPass(time.Time{})
			end := s.last
			s.last = end.Add(time.Hour) // the call comes immediately, even on a busy machine
			call()
			pause := s.backoff.pause
			Expect(s.due).To(BeTemporally(">=", end.Add(pause)))
			Expect(s.due).To(BeTemporally("<=", time.Now().Add(pause)))
			all = append(all, pause)
		}
		return all
	}
	ms := time.Millisecond

	It("lets the pause grow while each pass is followed by a deletion, but not after a flush", func() {
		s := &schedule{every: time.Second}
		deleted, flushed := func() { s.addDeletion(s.every) }, func() { s.addDeletion(reloadTime) }
		Expect(pauses(s, deleted, deleted, deleted, deleted, deleted, flushed, deleted)).To(Equal([]time.Duration{
			200 * ms, 400 * ms, 800 * ms, 1000 * ms, 1000 * ms, 200 * ms, 400 * ms}))
		s.last = time.Now().Add(-time.Second)
		s.isPending = false
		deleted()
		Expect(s.backoff.pause).To(Equal(reloadTime))
	})

	It("is not changed by further deletions before the pass", func() {
		s := &schedule{every: time.Hour}
		Expect(pauses(s, func() { s.addDeletion(s.every); s.addDeletion(s.every); s.addDeletion(s.every) })).To(
			Equal([]time.Duration{200 * ms}))
	})

	It("has the retry of a failed repair, whose pauses grow to an hour", func() {
		s := &schedule{every: time.Minute}
		retry := time.Now().Add(time.Second)
		s.endPass(retry)
		Expect(s.due).To(Equal(retry))
		s.endPass(time.Now().Add(time.Hour))
		Expect(s.due).To(Equal(s.last.Add(time.Minute)))
		var b backoff
		for range 30 {
			b.next(maxBackoff)
		}
		Expect(b.pause).To(Equal(time.Hour))
	})
})
