package main

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

// aims in the order of the page. A ratio is the peer's time / ours, or our pods a
// second / the peer's; of several rows it is the worst.
func aims() []aim {
	list := []aim{
		{what: "VERSION, each plugin", want: 1.4, value: worst([]string{"VERSION"}, "bridge", "ptp", "loopback", "tuning, a sysctl", reservedName(1), portsName(1))},
		{what: "loopback and tuning: ADD, CHECK, DEL", want: 1.4, value: worst(most, "loopback", "tuning, a sysctl", "tuning, the MAC")},
		{what: "start: time of bridge VERSION / an empty Go program's", want: 1.25, atMost: true, value: func(b *bench) float64 { return 1 / worst([]string{"VERSION"}, startName)(b) }},
	}
	for _, a := range []struct {
		reserved int
		want     float64
	}{{1, 1.3}, {1000, 4}, {10000, 25}, {60000, 150}} {
		list = append(list, aim{what: reservedName(a.reserved) + ": ADD, CHECK, DEL", want: a.want, value: worst(most, reservedName(a.reserved))})
	}
	list = append(list,
		aim{what: "host-local: time with 60000 reserved / with 1", want: 1.5, atMost: true, value: growth(reservedName(60000), reservedName(1))},
		aim{what: "bridge, ptp: ADD", want: 2, value: worst([]string{"ADD"}, "bridge", "ptp")},
		aim{what: "bridge, ptp, masquerade: ADD", want: 7, value: worst([]string{"ADD"}, "bridge, masquerade", "ptp, masquerade")},
		aim{what: "bridge, ptp, masquerade: DEL", want: 3.5, value: worst([]string{"DEL"}, "bridge, masquerade", "ptp, masquerade")},
		aim{what: "ptp, masquerade, dual stack: ADD", want: 120, value: worst([]string{"ADD"}, "ptp, masquerade, dual stack")},
		aim{what: portsName(1) + ": ADD", want: 13, value: worst([]string{"ADD"}, portsName(1))},
		aim{what: portsName(10) + ": ADD", want: 35, value: worst([]string{"ADD"}, portsName(10))},
		aim{what: portsName(100) + ": ADD", want: 300, value: worst([]string{"ADD"}, portsName(100))},
		aim{what: othersName(portsName(1), manyOthers) + ": ADD, CHECK, DEL", want: 8, value: worst(most, othersName(portsName(1), manyOthers))},
		aim{what: "portmap: time with 1000 others / with none", want: 1.3, atMost: true, value: growth(othersName(portsName(1), manyOthers), portsName(1))},
		aim{what: "by iptables, a port or masquerade: ADD", want: 5, value: worst([]string{"ADD"}, portsName(1)+" by iptables", "bridge, masquerade by iptables", "ptp, masquerade by iptables")},
		aim{what: parallelName(64) + ": pods a second, ADD", want: 6, value: worst([]string{"ADD"}, parallelName(64))},
		aim{what: parallelName(64) + ": pods a second, DEL", want: 6, value: worst([]string{"DEL"}, parallelName(64))},
		aim{what: "our pods a second at 64 / at 8 at a time", want: 0.9, value: scaling},
		aim{what: "our failures, all rows", want: 0, atMost: true, value: failures},
		aim{what: "our six binaries together, MB", want: 14, atMost: true, value: size},
	)
	return list
}

func (b *bench) row(scenario, verb string) *row {
	for _, r := range b.rows {
		if r.scenario == scenario && r.verb == verb {
			return r
		}
	}
	return nil
}

// worst is the smallest ratio of some rows, but those that the peer always fails.
func worst(verbs []string, scenarios ...string) func(*bench) float64 {
	return func(b *bench) float64 {
		least := math.Inf(1)
		for _, sc := range scenarios {
			for _, verb := range verbs {
				switch r := b.row(sc, verb); {
				case r == nil || len(r.ratios) == 0 && !r.refused():
					return math.NaN()
				case len(r.ratios) > 0:
					least = min(least, median(r.ratios))
				}
			}
		}
		return least
	}
}

// refused tells whether the peer never did it.
func (r *row) refused() bool { return len(r.ratios) == 0 && r.sides[0].failures > 0 }

// growth is by how much our time in one scenario is longer than in another, at most,
// of the verbs that were measured in both.
func growth(of, over string) func(*bench) float64 {
	return func(b *bench) float64 {
		most := math.NaN()
		for _, verb := range []string{"ADD", "CHECK", "DEL"} {
			long, short := b.row(of, verb), b.row(over, verb)
			if long == nil || short == nil {
				return math.NaN()
			}
			ratio := median(long.sides[1].wall) / median(short.sides[1].wall)
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
		least = min(least, median(many.sides[1].perSecond)/median(few.sides[1].perSecond))
	}
	return least
}

func failures(b *bench) float64 {
	n := 0
	for _, r := range b.rows {
		n += r.sides[1].failures
	}
	return float64(n)
}

func size(b *bench) float64 {
	total := int64(0)
	for _, name := range []string{"bridge", "host-local", "loopback", "portmap", "ptp", "tuning"} {
		info, err := os.Stat(filepath.Join(b.own.dir, name))
		if err != nil {
			return math.NaN()
		}
		total += info.Size()
	}
	return float64(total) / 1e6
}

func (a aim) String() string {
	if a.atMost {
		return fmt.Sprintf("at most %v", a.want)
	}
	return fmt.Sprintf("at least %v", a.want)
}
