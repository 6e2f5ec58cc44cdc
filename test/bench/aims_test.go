package bench

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
)

// aim is what the project wants a figure to be.
type aim struct {
	what   string
	want   float64
	atMost bool
	value  func(b *bench) float64 // NaN when it was not measured
}

func (a aim) met(value float64) bool {
	if a.atMost {
		return value <= a.want
	}
	return value >= a.want
}

// aims in the order of the page. A ratio is the time of the first of the others / ours, or
// our pods a second / its; of several rows it is the worst.
func aims() []aim {
	add, del, check := []string{"ADD"}, []string{"DEL"}, []string{"CHECK"}
	list := []aim{
		{what: "VERSION, each plugin", want: 1.1,
			value: worst(all[:1], "bridge", "ptp", "loopback", "tuning, a sysctl", reservedName(1), portsName(1))},
		{what: "loopback and tuning: ADD, CHECK, DEL", want: 1.1,
			value: worst(most, "loopback", "tuning, a sysctl", "tuning, the MAC")},
		{what: "start: time of bridge VERSION / an empty Go program's", want: 1.5, atMost: true,
			value: func(b *bench) float64 { return 1 / worst(all[:1], startName)(b) }},
	}
	for _, a := range []struct {
		reserved int
		want     float64
	}{{1, 1.15}, {1000, 4}, {10000, 25}, {60000, 120}} {
		list = append(list, aim{what: reservedName(a.reserved) + ": ADD, CHECK, DEL", want: a.want,
			value: worst(most, reservedName(a.reserved))})
	}
	crowded := othersName(portsName(1), manyOthers)
	return append(list,
		aim{what: "host-local: time with 60000 reserved / with 1", want: 1.5, atMost: true,
			value: growth(most, reservedName(60000), reservedName(1))},
		aim{what: "bridge, ptp: ADD", want: 1.5, value: worst(add, "bridge", "ptp")},
		aim{what: "bridge, ptp, masquerade: ADD", want: 4, value: worst(add, "bridge, masquerade", "ptp, masquerade")},
		aim{what: "bridge, ptp, masquerade: DEL", want: 3, value: worst(del, "bridge, masquerade", "ptp, masquerade")},
		aim{what: "ptp, masquerade, dual stack: ADD", want: 120, value: worst(add, "ptp, masquerade, dual stack")},
		aim{what: portsName(1) + ": ADD", want: 9, value: worst(add, portsName(1))},
		aim{what: portsName(10) + ": ADD", want: 25, value: worst(add, portsName(10))},
		aim{what: portsName(100) + ": ADD", want: 200, value: worst(add, portsName(100))},
		aim{what: crowded + ": ADD, CHECK, DEL", want: 8, value: worst(most, crowded)},
		aim{what: "portmap: time with 1000 others / with none", want: 1.3, atMost: true,
			value: growth(most, crowded, portsName(1))},
		aim{what: "bridge: time of CHECK with 1000 ports / with one", want: 1.3, atMost: true,
			value: growth(check, othersName("bridge, masquerade", manyOthers), "bridge, masquerade")},
		aim{what: "by iptables, a port or masquerade: ADD", want: 3,
			value: worst(add, portsName(1)+" by iptables", "bridge, masquerade by iptables",
				"ptp, masquerade by iptables")},
		aim{what: parallelName(64) + ": pods a second, ADD", want: 6, value: worst(add, parallelName(64))},
		aim{what: parallelName(64) + ": pods a second, DEL", want: 6, value: worst(del, parallelName(64))},
		aim{what: "our pods a second at 64 / at 8 at a time", want: 0.9, value: scaling},
		aim{what: "our failures, all rows", want: 0, atMost: true, value: failures},
		aim{what: "size of our programs / of the others'", want: 1, atMost: true, value: size},
		aim{what: "bridge ADD: time / before", want: 1.15, atMost: true, value: overBefore(add, "bridge")},
		aim{what: "bridge CHECK with 1000 ports: time / before", want: 1.2, atMost: true,
			value: overBefore(check, othersName("bridge, masquerade", manyOthers))},
		aim{what: "VERSION: time / before", want: 1.12, atMost: true, value: overBefore(all[:1], "bridge")},
	)
}

func (b *bench) row(scenario, verb string) *row {
	for _, r := range b.rows {
		if r.scenario == scenario && r.verb == verb {
			return r
		}
	}
	return nil
}

// worst is the smallest ratio of some rows to the first of the others, but those in which it always fails.
func worst(verbs []string, scenarios ...string) func(*bench) float64 {
	return func(b *bench) float64 { return least(b, 0, verbs, scenarios...) }
}

// overBefore is our time / that of ours before, at most.
func overBefore(verbs []string, scenarios ...string) func(*bench) float64 {
	return func(b *bench) float64 {
		for i, p := range b.others {
			if p.name == beforeName {
				return 1 / least(b, i, verbs, scenarios...)
			}
		}
		return math.NaN()
	}
}

func least(b *bench, peer int, verbs []string, scenarios ...string) float64 {
	least := math.Inf(1)
	for _, sc := range scenarios {
		for _, verb := range verbs {
			switch r := b.row(sc, verb); {
			case r == nil || len(r.peers[peer].ratios) == 0 && !r.peers[peer].refused():
				return math.NaN()
			case len(r.peers[peer].ratios) > 0:
				least = min(least, median(r.peers[peer].ratios))
			}
		}
	}
	return least
}

// refused tells whether a peer never did it.
func (s *sample) refused() bool { return len(s.ratios) == 0 && s.failures > 0 }

// growth is by how much our time in one scenario is longer than in another, at most.
func growth(verbs []string, of, over string) func(*bench) float64 {
	return func(b *bench) float64 {
		most := math.NaN()
		for _, verb := range verbs {
			long, short := b.row(of, verb), b.row(over, verb)
			if long == nil || short == nil {
				return math.NaN()
			}
			ratio := median(long.own.wall) / median(short.own.wall)
			if math.IsNaN(most) || ratio > most {
				most = ratio
			}
		}
		return most
	}
}

// scaling is our rate with 64 pods at a time over that with 8, the lesser of ADD's and DEL's.
func scaling(b *bench) float64 {
	least := math.Inf(1)
	for _, verb := range []string{"ADD", "DEL"} {
		many, few := b.row(parallelName(64), verb), b.row(parallelName(8), verb)
		if many == nil || few == nil {
			return math.NaN()
		}
		least = min(least, median(many.own.perSecond)/median(few.own.perSecond))
	}
	return least
}

func failures(b *bench) float64 {
	n := 0
	for _, r := range b.rows {
		n += r.own.failures
	}
	return float64(n)
}

// size is that of all our programs over that of the others' of the same names.
func size(b *bench) float64 {
	ours, theirs := int64(0), int64(0)
	programs, _ := os.ReadDir(b.own.dir)
	for _, p := range programs {
		mine, err := p.Info()
		other, missing := os.Stat(filepath.Join(b.others[0].dir, p.Name()))
		if err != nil || missing != nil {
			return math.NaN()
		}
		ours, theirs = ours+mine.Size(), theirs+other.Size()
	}
	return float64(ours) / float64(theirs)
}

func (a aim) String() string {
	if a.atMost {
		return fmt.Sprintf("at most %v", a.want)
	}
	return fmt.Sprintf("at least %v", a.want)
}
