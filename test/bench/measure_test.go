package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"

	"github.com/hawser-cni/plugins/pkg/nstest"
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

// sample is what one side took: milliseconds for each call, pods a second for each batch of pods in parallel.
type sample struct {
	na                   string // why it cannot be measured
	wall, cpu, perSecond []float64
	ratios               []float64 // its time / ours, or our pods a second / its, by round
	failures             int
	failure              string // the first one
	counts               counts
}

func newBench(o *options, dir string) *bench {
	b := &bench{options: o, own: open(oursName, o.ours, filepath.Join(dir, "ours"), o.copies)}
	for i, p := range o.peers {
		b.others = append(b.others, open(p[0], p[1], filepath.Join(dir, fmt.Sprint("peer", i)), o.copies))
	}
	if o.empty != "" {
		b.emptyStart = copied("an empty program", o.empty, filepath.Join(dir, "empty"), o.copies)
		b.emptyStart.versions = b.own.versions
	}
	return b
}

func (b *bench) measureAll() {
	for i, sc := range scenarios() {
		if b.quick && !sc.quick || !b.wanted(&sc) {
			continue
		}
		began := time.Now()
		b.measure(&sc, i)
		fmt.Fprintf(os.Stderr, "%-60s %5.1f s\n", sc.name, time.Since(began).Seconds())
	}
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
func (b *bench) measure(sc *scenario, number int) {
	GinkgoHelper()
	var sides []*side
	for _, p := range append([]*plugins{b.own}, b.peersOf(sc)...) {
		own := *p
		sides = append(sides, &side{plugins: &own})
	}
	if len(sides) == 1 {
		return
	}
	rows := b.rowsOf(sc, sides)
	for i, s := range sides {
		if sc.parallel == 0 && !slices.ContainsFunc(rows, func(r *row) bool { return r.of(i).na == "" }) {
			continue // it needs no host
		}
		s.open(b.work, fmt.Sprintf("canary%d-%d", number, i))
		defer s.close()
		s.prepare(sc)
	}
	if sc.parallel > 0 {
		b.batches(sc, sides, rows)
		return
	}
	b.inTurns(sc, sides, rows)
	if !sc.daemon { // for whose end the tracer would wait
		count(sc, sides, rows)
	}
}

// kernelLacks says that no link of a kind can be made; "" when one can, or none is needed.
func kernelLacks(kind string) string {
	name, _, _ := strings.Cut(kind, " ")
	if kind == "" || nstest.NewNetns().Run(nstest.Program{Path: "ip", Args: []string{"-batch", "-"},
		Stdin: "link add on0 type veth peer name on1\nlink add link on0 name of0 type " + kind + "\n"}).Exit == 0 {
		return ""
	}
	return "no " + name + " in this kernel"
}

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
	return rounds >= b.rounds || rounds >= least && time.Since(began) > b.limit
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
func (b *bench) inTurns(sc *scenario, sides []*side, rows []*row) {
	began := time.Now()
	for round := -1; round < 0 || !b.enough(round, began); round++ {
		for i, s := range sides {
			s.turn(round + i)
		}
		for _, r := range rows {
			took := make([]spent, len(sides))
			for turn := range sides {
				i := (turn + round + 1) % len(sides)
				s := sides[i]
				if r.of(i).na != "" {
					continue
				}
				err := s.renew(sc, r.verb)
				if err == nil {
					s.Do(func() { took[i], err = s.timed(sc.steps, r.verb, s.pod) })
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
func count(sc *scenario, sides []*side, rows []*row) {
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
			err := s.renew(sc, r.verb)
			if err == nil {
				s.Do(func() { err = s.serve(sc.steps, r.verb, s.pod, one) })
			}
			if err != nil {
				r.of(i).failed(err)
			}
		}
	}
}

// batches attaches pods in parallel, and detaches them, on one host and then on the
// others, another one first each time. Pods a second are of a whole batch, times of each pod.
func (b *bench) batches(sc *scenario, sides []*side, rows []*row) {
	GinkgoHelper()
	pods := make([][]*pod, len(sides))
	for i, s := range sides {
		for n := range max(sc.parallel, 16) {
			pods[i] = append(pods[i], s.newPod(n+1))
		}
	}
	began := time.Now()
	const least = 2 // batches of each
	for round := 0; round < least || round < b.rounds && time.Since(began) < b.limit; round++ {
		for turn := range sides {
			i := (turn + round) % len(sides)
			sides[i].turn(round + i)
			for _, r := range rows {
				sides[i].batch(sc, r.verb, r.of(i), pods[i])
			}
		}
		for _, r := range rows {
			for i := range r.peers {
				s := &r.peers[i]
				s.ratios = append(s.ratios, r.own.perSecond[round]/s.perSecond[round])
			}
		}
	}
}

// batch serves a verb for all pods, as many at a time as the scenario says, and keeps
// how many pods a second went well.
func (s *side) batch(sc *scenario, verb string, sample *sample, pods []*pod) {
	GinkgoHelper()
	waiting := make(chan *pod, len(pods))
	for _, p := range pods {
		waiting <- p
	}
	close(waiting)
	var mu sync.Mutex
	good, began := 0, time.Now()
	nstest.AtOnce(sc.parallel, func(int) {
		s.Do(func() {
			for p := range waiting {
				took, err := s.timed(sc.steps, verb, p)
				mu.Lock()
				if err != nil {
					sample.failed(err)
				} else {
					good++
					sample.wall, sample.cpu = append(sample.wall, took.wall), append(sample.cpu, took.cpu)
				}
				mu.Unlock()
			}
		})
	})
	sample.perSecond = append(sample.perSecond, float64(good)/time.Since(began).Seconds())
}
