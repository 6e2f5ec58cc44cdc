package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"
)

const oursName = "hawser"

// bench is a whole run.
type bench struct {
	*options
	peers, own *plugins
	version    string // of the configurations: the newest that both know
	rows       []*row
	emptyStart *plugins
}

// row is one verb of a scenario. The peer's part comes first.
type row struct {
	scenario, verb string
	na             string // why the peer cannot be measured
	rounds         int
	sides          [2]sample
	ratios         []float64 // peer's time / our time, or our pods a second / the peer's, by pair
	inParallel     bool
}

// sample is what one side took: milliseconds for each call, pods a second for each
// batch of pods in parallel.
type sample struct {
	wall, cpu, perSecond []float64
	failures             int
	failure              string // the first one
	counts               counts
}

func newBench(o *options) (*bench, error) {
	b := &bench{options: o, version: "1.0.0"}
	var err error
	if b.own, err = open(oursName, o.ours); err != nil {
		return nil, err
	}
	if b.peers, err = open(o.peerName, o.peer); err != nil {
		return nil, err
	}
	if slices.Contains(b.peers.versions, "1.1.0") {
		b.version = "1.1.0"
	}
	if o.empty != "" {
		b.emptyStart = &plugins{name: "an empty program", dir: o.empty, versions: b.own.versions}
	}
	return b, nil
}

// measureAll measures the scenarios that are asked for.
func (b *bench) measureAll() error {
	for i, sc := range scenarios() {
		if sc.slow && b.quick || !b.wanted(&sc) {
			continue
		}
		began := time.Now()
		if err := b.measure(&sc, i); err != nil {
			return fmt.Errorf("%s: %w", sc.name, err)
		}
		fmt.Fprintf(os.Stderr, "%-60s %5.1f s\n", sc.name, time.Since(began).Seconds())
	}
	return nil
}

func (b *bench) wanted(sc *scenario) bool {
	return slices.ContainsFunc(sc.verbs, func(verb string) bool { return b.options.rows.MatchString(sc.name + ": " + verb) })
}

// peerOf is what a scenario compares ours with; nil when there is none.
func (b *bench) peerOf(sc *scenario) *plugins {
	switch sc.against {
	case againstOurs:
		return b.own
	case againstEmpty:
		return b.emptyStart
	}
	return b.peers
}

// lacks says why the peer cannot be measured, "" when it can.
func lacks(p *plugins, sc *scenario, verb string) string {
	for _, st := range sc.steps {
		if !p.has(st.plugin) {
			return "no " + st.plugin
		}
	}
	switch {
	case sc.nft && !p.nft:
		return "no nftables backend"
	case (verb == "GC" || verb == "STATUS") && !slices.Contains(p.versions, "1.1.0"):
		return "no " + verb
	}
	return ""
}

// measure measures one scenario on two new hosts.
func (b *bench) measure(sc *scenario, number int) (err error) {
	peer := b.peerOf(sc)
	if peer == nil {
		return nil
	}
	pair := &[2]*side{{plugins: peer}, {plugins: b.own}}
	var pods [2]*pod
	for i, s := range pair {
		s.version = b.version
		if s.host, err = newHost(b.work, fmt.Sprintf("canary%d-%d", number, i)); err != nil {
			return err
		}
		defer func() {
			if e := s.close(); err == nil {
				err = e
			}
		}()
		if pods[i], err = s.prepare(sc); err != nil {
			return fmt.Errorf("prepare %s: %w", s.name, err)
		}
	}
	var rows []*row
	for _, verb := range sc.verbs {
		r := &row{scenario: sc.name, verb: verb, na: lacks(peer, sc, verb), inParallel: sc.parallel > 0}
		rows = append(rows, r)
		if b.options.rows.MatchString(sc.name + ": " + verb) {
			b.rows = append(b.rows, r)
		}
	}
	if sc.parallel > 0 {
		return b.batches(sc, pair, rows)
	}
	b.inTurns(sc, pair, pods, rows)
	b.count(sc, pair, pods, rows)
	return nil
}

// enough tells whether to stop after so many rounds.
func (b *bench) enough(sc *scenario, rounds int, began time.Time) bool {
	const least = 3
	return rounds >= b.options.rounds || sc.once && rounds > 0 || rounds >= least && time.Since(began) > b.limit
}

// inTurns serves every verb on either host, again and again, the other one first each
// time. The first round is not kept.
func (b *bench) inTurns(sc *scenario, pair *[2]*side, pods [2]*pod, rows []*row) {
	began, first := time.Now(), -1
	if sc.once {
		first = 0
	}
	for round := first; round < 0 || !b.enough(sc, round, began); round++ {
		for _, r := range rows {
			if r.na != "" {
				if round < 0 { // so that ours is no first call when it is counted
					_ = b.alone(pair[1], func(s *side) error { return s.timed(sc.steps, r.verb, pods[1], &spent{}) })
				}
				continue
			}
			var took [2]spent
			whole := true
			for turn := range 2 {
				i := (turn + round + 1) % 2
				if err := pair[i].timed(sc.steps, r.verb, pods[i], &took[i]); err != nil {
					r.sides[i].failed(err)
					whole = false
				}
			}
			if whole && round >= 0 {
				r.keep(took)
			}
		}
	}
}

// alone does something in the newest version of ours, which has every verb.
func (b *bench) alone(s *side, fn func(*side) error) error {
	s.version = s.versions[len(s.versions)-1]
	defer func() { s.version = b.version }()
	return fn(s)
}

// timed serves a verb and adds up what the calls took.
func (s *side) timed(steps []step, verb string, p *pod, sum *spent) error {
	return s.do(func() error { return s.timedHere(steps, verb, p, sum) })
}

func (s *side) timedHere(steps []step, verb string, p *pod, sum *spent) error {
	return s.serve(steps, verb, p, func(c call) (json.RawMessage, error) {
		one, err := c.timed(s.plugins)
		sum.wall += one.wall
		sum.cpu += one.cpu
		return one.result, err
	})
}

func (r *row) keep(took [2]spent) {
	r.rounds++
	for i, t := range took {
		r.sides[i].wall = append(r.sides[i].wall, t.wall)
		r.sides[i].cpu = append(r.sides[i].cpu, t.cpu)
	}
	r.ratios = append(r.ratios, took[0].wall/took[1].wall)
}

func (s *sample) failed(err error) {
	if s.failures++; s.failures == 1 {
		s.failure = err.Error()
	}
}

// count serves every verb once more, traced.
func (b *bench) count(sc *scenario, pair *[2]*side, pods [2]*pod, rows []*row) {
	for i, s := range pair {
		for _, r := range rows {
			if i == 0 && (r.na != "" || sc.uncounted) {
				continue
			}
			one := func(c call) (json.RawMessage, error) {
				n, result, err := c.counted(s.plugins)
				r.sides[i].counts.add(n)
				return result, err
			}
			once := func(s *side) error { return s.do(func() error { return s.serve(sc.steps, r.verb, pods[i], one) }) }
			var err error
			if r.na == "" {
				err = once(s)
			} else {
				err = b.alone(s, once)
			}
			if err != nil {
				r.sides[i].failed(err)
			}
		}
	}
}
