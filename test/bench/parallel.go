package main

import (
	"sync"
	"time"
)

// batches attaches pods in parallel, and detaches them, on one host and then on the
// other: A B B A. Pods a second are of a whole batch, times of each pod.
func (b *bench) batches(sc *scenario, pair *[2]*side, rows []*row) error {
	size := max(sc.parallel, 16)
	var pods [2][]*pod
	for i, s := range pair {
		for n := range size {
			p, err := s.newPod(n + 1)
			if err != nil {
				return err
			}
			pods[i] = append(pods[i], p)
		}
	}
	began := time.Now()
	const turn = 2 // batches of each
	for round := 0; round < turn || round < b.options.rounds && time.Since(began) < b.limit; round++ {
		var perSecond [2][]float64
		for n := range 2 {
			i := (n + round) % 2
			for _, r := range rows {
				perSecond[i] = append(perSecond[i], pair[i].batch(sc, r, i, pods[i]))
			}
		}
		for n, r := range rows {
			r.rounds++
			r.ratios = append(r.ratios, perSecond[1][n]/perSecond[0][n])
		}
	}
	return nil
}

// batch serves a verb for all pods, as many at a time as the scenario says, and
// returns how many pods a second went well.
func (s *side) batch(sc *scenario, r *row, side int, pods []*pod) float64 {
	waiting := make(chan *pod, len(pods))
	for _, p := range pods {
		waiting <- p
	}
	close(waiting)
	var mu sync.Mutex
	var wait sync.WaitGroup
	sample, good := &r.sides[side], 0
	began := time.Now()
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
	perSecond := float64(good) / time.Since(began).Seconds()
	sample.perSecond = append(sample.perSecond, perSecond)
	return perSecond
}
