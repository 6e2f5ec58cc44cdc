package main

import (
	"sync"
	"time"
)

// batches attaches pods in parallel, and detaches them, on one host and then on the
// others, another one first each time. Pods a second are of a whole batch, times of each pod.
func (b *bench) batches(sc *scenario, sides []*side, rows []*row) error {
	size := max(sc.parallel, 16)
	pods := make([][]*pod, len(sides))
	for i, s := range sides {
		for n := range size {
			p, err := s.newPod(n + 1)
			if err != nil {
				return err
			}
			pods[i] = append(pods[i], p)
		}
	}
	began := time.Now()
	const least = 2 // batches of each
	for round := 0; round < least || round < b.options.rounds && time.Since(began) < b.limit; round++ {
		for turn := range sides {
			i := (turn + round) % len(sides)
			sides[i].turn(round + i)
			for _, r := range rows {
				sides[i].batch(sc, r, r.of(i), pods[i])
			}
		}
		for _, r := range rows {
			for i := range r.peers {
				s := &r.peers[i]
				s.ratios = append(s.ratios, r.own.perSecond[round]/s.perSecond[round])
			}
		}
	}
	return nil
}

// batch serves a verb for all pods, as many at a time as the scenario says, and keeps
// how many pods a second went well.
func (s *side) batch(sc *scenario, r *row, sample *sample, pods []*pod) {
	waiting := make(chan *pod, len(pods))
	for _, p := range pods {
		waiting <- p
	}
	close(waiting)
	var mu sync.Mutex
	var wait sync.WaitGroup
	good, began := 0, time.Now()
	for range sc.parallel {
		wait.Go(func() {
			err := s.join(func() error {
				for p := range waiting {
					var took spent
					err := s.timedHere(sc.steps, r.verb, p, &took)
					mu.Lock()
					if err != nil {
						sample.failed(err)
					} else {
						good++
						sample.wall = append(sample.wall, took.wall)
						sample.cpu = append(sample.cpu, took.cpu)
					}
					mu.Unlock()
				}
				return nil
			})
			if err != nil {
				mu.Lock()
				sample.failed(err)
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	sample.perSecond = append(sample.perSecond, float64(good)/time.Since(began).Seconds())
}
