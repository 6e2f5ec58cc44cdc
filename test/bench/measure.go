package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	oursName   = "hawser"
	beforeName = "hawser before" // an older build of ours, if it is a peer
)

// bench is a whole run.
type bench struct {
	*options
	own        *plugins
	others     []*plugins // the peers, in the order of the tables
	rows       []*row
	emptyStart *plugins
}

// row is one verb of a scenario.
type row struct {
	scenario, verb string
	own            sample
	peers          []sample // of the bench's others; one where the scenario says with what
	inParallel     bool
}

// sample is what one side took: milliseconds for each call, pods a second for each
// batch of pods in parallel.
type sample struct {
	na                   string // why it cannot be measured
	wall, cpu, perSecond []float64
	ratios               []float64 // its time / ours, or our pods a second / its, by round
	failures             int
	failure              string // the first one
	counts               counts
}

// newBench copies all programs below a directory.
func newBench(o *options, dir string) (*bench, error) {
	b := &bench{options: o}
	var err error
	if b.own, err = open(oursName, o.ours, filepath.Join(dir, "ours"), o.copies); err != nil {
		return nil, err
	}
	for i, p := range o.peers {
		other, err := open(p[0], p[1], filepath.Join(dir, fmt.Sprint("peer", i)), o.copies)
		if err != nil {
			return nil, err
		}
		b.others = append(b.others, other)
	}
	if o.empty != "" {
		if b.emptyStart, err = copied("an empty program", o.empty, filepath.Join(dir, "empty"), o.copies); err != nil {
			return nil, err
		}
		b.emptyStart.versions = b.own.versions
	}
	return b, nil
}

// measureAll measures the scenarios that are asked for.
func (b *bench) measureAll() error {
	for i, sc := range scenarios() {
		if b.quick && !sc.quick || !b.wanted(&sc) {
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
	return slices.ContainsFunc(sc.verbs,
		func(verb string) bool { return b.options.rows.MatchString(sc.name + ": " + verb) })
}

// peersOf are what a scenario compares ours with.
func (b *bench) peersOf(sc *scenario) []*plugins {
	switch {
	case sc.against == againstOurs:
		return []*plugins{b.own}
	case sc.against == againstEmpty && b.emptyStart != nil:
		return []*plugins{b.emptyStart}
	case sc.against == againstEmpty:
		return nil
	}
	return b.others
}

// lacks says why a peer is not measured; "" when it is. The aims are about the first peer.
func lacks(p *plugins, first bool, sc *scenario, verb string) string {
	for _, st := range sc.steps {
		if !p.has(st.plugin) {
			return "no " + st.plugin
		}
	}
	switch {
	case sc.daemon && !p.has("dhcp"):
		return "no dhcp"
	case sc.long && !first && p.name != beforeName:
		return "takes long"
	case sc.nft && !p.nft:
		return "no nftables backend"
	case (verb == "GC" || verb == "STATUS") && !slices.Contains(p.versions, "1.1.0"):
		return "no " + verb
	}
	return ""
}

// measure measures one scenario on new hosts. The first side is ours.
func (b *bench) measure(sc *scenario, number int) (err error) {
	var sides []*side
	for _, p := range append([]*plugins{b.own}, b.peersOf(sc)...) {
		own := *p
		sides = append(sides, &side{plugins: &own})
	}
	if len(sides) == 1 {
		return nil
	}
	rows := b.rowsOf(sc, sides)
	pods := make([]*pod, len(sides))
	for i, s := range sides {
		if sc.parallel == 0 && !slices.ContainsFunc(rows, func(r *row) bool { return r.of(i).na == "" }) {
			continue // it needs no host
		}
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
	if sc.parallel > 0 {
		return b.batches(sc, sides, rows)
	}
	b.inTurns(sc, sides, pods, rows)
	if !sc.daemon { // for whose end the tracer would wait
		b.count(sc, sides, pods, rows)
	}
	return nil
}

// rowsOf makes the rows of a scenario, and keeps those that are asked for.
func (b *bench) rowsOf(sc *scenario, sides []*side) (rows []*row) {
	kernel := kernelLacks(sc.kind)
	for _, verb := range sc.verbs {
		r := &row{scenario: sc.name, verb: verb, peers: make([]sample, len(sides)-1), inParallel: sc.parallel > 0}
		if verb != "VERSION" {
			r.own.na = kernel
		}
		for i, s := range sides[1:] {
			r.peers[i].na = cmp.Or(lacks(s.plugins, i == 0, sc, verb), r.own.na)
		}
		rows = append(rows, r)
		if b.options.rows.MatchString(sc.name + ": " + verb) {
			b.rows = append(b.rows, r)
		}
	}
	return rows
}

// enough tells whether to stop after so many rounds.
func (b *bench) enough(rounds int, began time.Time) bool {
	const least = 3
	return rounds >= b.options.rounds || rounds >= least && time.Since(began) > b.limit
}

// of is a side's sample: 0 is ours.
func (r *row) of(side int) *sample {
	if side == 0 {
		return &r.own
	}
	return &r.peers[side-1]
}

// inTurns serves every verb on each host, again and again, another one first each time.
// The first round is not kept.
func (b *bench) inTurns(sc *scenario, sides []*side, pods []*pod, rows []*row) {
	began := time.Now()
	for round := -1; round < 0 || !b.enough(round, began); round++ {
		for i, s := range sides {
			s.turn(round + i)
		}
		for _, r := range rows {
			took := make([]spent, len(sides))
			for turn := range sides {
				i := (turn + round + 1) % len(sides)
				if r.of(i).na != "" {
					continue
				}
				err := sides[i].renew(sc, r.verb, pods[i])
				if err == nil {
					err = sides[i].timed(sc.steps, r.verb, pods[i], &took[i])
				}
				if err != nil {
					r.of(i).failed(err)
					took[i] = spent{}
				}
			}
			if round >= 0 {
				r.keep(took)
			}
		}
	}
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

// keep keeps what went well in a round.
func (r *row) keep(took []spent) {
	for i, t := range took {
		s := r.of(i)
		if t.wall == 0 {
			continue
		}
		s.wall, s.cpu = append(s.wall, t.wall), append(s.cpu, t.cpu)
		if took[0].wall > 0 {
			s.ratios = append(s.ratios, t.wall/took[0].wall)
		}
	}
}

func (s *sample) failed(err error) {
	if s.failures++; s.failures == 1 {
		s.failure = err.Error()
	}
}

// count serves every verb once more, traced: on our side, and on the first of the others.
func (b *bench) count(sc *scenario, sides []*side, pods []*pod, rows []*row) {
	for i, s := range sides[:2] {
		for _, r := range rows {
			if r.of(i).na != "" || i > 0 && sc.uncounted {
				continue
			}
			one := func(c call) (json.RawMessage, error) {
				n, result, err := c.counted(s.plugins)
				r.of(i).counts.add(n)
				return result, err
			}
			err := s.renew(sc, r.verb, pods[i])
			if err == nil {
				err = s.do(func() error { return s.serve(sc.steps, r.verb, pods[i], one) })
			}
			if err != nil {
				r.of(i).failed(err)
			}
		}
	}
}
