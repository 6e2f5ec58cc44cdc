package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// aim is what the project wants a figure to be.
type aim struct {
	what   string
	want   [2]float64 // of the separate programs, and of the one; none: nothing
	atMost bool
	value  func(b *bench, form int) float64 // NaN when it was not measured
}

const none = -1

func (a aim) met(form int, value float64) bool {
	if a.atMost {
		return value <= a.want[form]
	}
	return value >= a.want[form]
}

// cells are what is wanted of a form, and whether it is so.
func (a aim) cells(b *bench, form int) []string {
	if a.want[form] == none {
		return []string{"-", "-"}
	}
	wanted := fmt.Sprintf("at least %v", a.want[form])
	if a.atMost {
		wanted = fmt.Sprintf("at most %v", a.want[form])
	}
	value := math.NaN()
	if form < len(b.forms) {
		value = a.value(b, form)
	}
	switch {
	case math.IsNaN(value):
		return []string{wanted, "not measured"}
	case a.met(form, value):
		return []string{wanted, figure(value) + ", yes"}
	}
	return []string{wanted, figure(value) + ", **no**"}
}

func (r *report) aimTable() table {
	t := table{head: []string{"aim", "separate", "measured, met", "one program", "measured, met"}}
	for _, a := range r.aims() {
		t.rows = append(t.rows, append(append([]string{a.what}, a.cells(r.bench, 0)...), a.cells(r.bench, 1)...))
	}
	return t
}

// faster is an aim for the time of the first of the others / ours, or for our pods a second / its: the worst of some
// verbs in some scenarios.
func faster(separate, one float64, verbs []string, scenarios ...string) aim {
	return aim{what: strings.Join(scenarios, "; ") + ": " + strings.Join(verbs, ", "), want: [2]float64{separate, one},
		value: func(b *bench, form int) float64 {
			return worst(b, verbs, scenarios, func(r *row) *sample { return &r.peers()[0] }, form)
		}}
}

// slower is an aim for the time of one scenario / that of another, at most.
func slower(separate, one float64, verbs []string, of, over string) aim {
	return aim{what: of + " / " + over + ": time of " + strings.Join(verbs, ", "), want: [2]float64{separate, one},
		atMost: true, value: func(b *bench, form int) float64 {
			most := math.Inf(-1)
			for _, verb := range verbs {
				long, short := b.row(of, verb), b.row(over, verb)
				if long == nil || short == nil {
					return math.NaN()
				}
				most = max(most, median(long.sides[form].wall)/median(short.sides[form].wall))
			}
			return most
		}}
}

// thanBefore is an aim for our time / that of ours before, at most.
func thanBefore(most float64, verbs []string, scenario string) aim {
	return aim{what: scenario + ": time of " + strings.Join(verbs, ", ") + " / before", want: [2]float64{most, none},
		atMost: true, value: func(b *bench, form int) float64 {
			for i, p := range b.others {
				if p.name == beforeName {
					before := func(r *row) *sample { return &r.peers()[i] }
					return 1 / worst(b, verbs, []string{scenario}, before, form)
				}
			}
			return math.NaN()
		}}
}

// aims in the order of the page. Most are of the one program, which releases have. They guard what was reached.
func (b *bench) aims() []aim {
	add, check, del := []string{"ADD"}, []string{"CHECK"}, []string{"DEL"}
	masked := []string{"bridge, masquerade", "ptp, masquerade"}
	crowded, walled := othersName(portsName(1), manyOthers), othersName("firewall", manyOthers)
	list := []aim{
		{what: "start: time of bridge VERSION / an empty Go program's", want: [2]float64{1.5, none}, atMost: true,
			value: func(b *bench, form int) float64 { return 1 / faster(0, 0, version, startName).value(b, form) }},
		faster(0.6, 0.6, []string{"ADD", "DEL"}, "tuning, a sysctl", "tuning, the MAC"),
		faster(4, 4, most, reservedName(1000)),
		faster(none, 120, most, reservedName(60000)),
		faster(none, 1.3, add, "bridge", "ptp"),
		faster(none, 1.4, check, "bridge", "ptp"),
		faster(none, 1, del, "bridge", "ptp"),
		faster(none, 1.6, add, "macvlan", "ipvlan", "vlan", "dummy", "tap", "host-device"),
		faster(none, 3, add, masked...),
		faster(none, 3, del, masked...),
		faster(5, none, add, portsName(1)),
		faster(none, 100, add, portsName(100)),
		faster(none, 5, most, crowded),
		slower(none, 1.5, most, crowded, portsName(1)),
		faster(none, 3, add, "firewall"),
		faster(none, 12, add, walled),
		faster(none, 3.5, add, parallelName(8), parallelName(64)),
		faster(none, 3, del, parallelName(8), parallelName(64)),
		{what: "our failures, all rows", want: [2]float64{0, 0}, atMost: true, value: failures},
		{what: "size of all plugins, MiB", want: [2]float64{none, 9}, atMost: true, value: mebibytes},
	}
	if slices.ContainsFunc(b.others, func(p *plugins) bool { return p.name == beforeName }) {
		list = append(list, thanBefore(1.15, add, "bridge"),
			thanBefore(1.2, check, othersName(masked[0], manyOthers)),
			thanBefore(1.12, version, versionName("bridge")))
	}
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

// worst is the smallest ratio of a side's time to a form of ours, but where that side always fails, or the kernel lacks
// the kind of link. It is NaN where one was not measured.
func worst(b *bench, verbs, scenarios []string, of func(*row) *sample, form int) float64 {
	least := math.NaN()
	for _, sc := range scenarios {
		for _, verb := range verbs {
			r := b.row(sc, verb)
			if r == nil {
				return math.NaN()
			}
			s := of(r)
			if r.sides[form].na != "" || s.refused() {
				continue
			}
			if len(s.ratios[form]) == 0 {
				return math.NaN()
			}
			if ratio := median(s.ratios[form]); !(ratio >= least) {
				least = ratio
			}
		}
	}
	return least
}

// refused tells whether a peer never did it.
func (s *sample) refused() bool { return len(s.wall) == 0 && s.failures > 0 }

func failures(b *bench, form int) float64 {
	n := 0
	for _, r := range b.rows {
		if form < r.forms {
			n += r.sides[form].failures
		}
	}
	return float64(n)
}

var _ = Describe("the aims", func() {
	measured := func() *bench {
		b := &bench{options: &options{packs: []string{"xz"}}, forms: make([]*plugins, 2),
			others: []*plugins{{}, {name: beforeName}}}
		ratios := []float64{1.05, 1.2, 1.08}
		ours := sample{ratios: [2][]float64{ratios, ratios}, wall: []float64{5}, cpu: []float64{5},
			perSecond: []float64{50}}
		for _, sc := range scenarios() {
			for _, verb := range sc.verbs {
				b.rows = append(b.rows, &row{scenario: sc.name, verb: verb, forms: 2,
					sides: []sample{ours, ours, ours, ours}})
			}
		}
		for range 3 {
			b.sizes = append(b.sizes, size{files: 18, plain: 10 << 20, packed: []int64{3.3e6}})
		}
		return b
	}
	lines := func(b *bench) (lines []string) {
		for _, cells := range (&report{bench: b}).aimTable().rows {
			lines = append(lines, strings.Join(cells, " | "))
		}
		return lines
	}

	It("are of rows that there are, each of the form that it is for", func() {
		b := measured()
		b.row("bridge", "ADD").sides[2] = sample{failures: 3} // cannot be compared
		b.row("ipvlan", "ADD").sides[0].na = "no ipvlan in this kernel"
		have := lines(b)
		Expect(strings.Join(have, "\n")).NotTo(ContainSubstring("not measured"))
		Expect(have).To(ContainElements(
			"bridge; ptp: ADD | - | - | at least 1.3 | 1.08, **no**",
			"macvlan; ipvlan; vlan; dummy; tap; host-device: ADD | - | - | at least 1.6 | 1.08, **no**",
			"tuning, a sysctl; tuning, the MAC: ADD, DEL | at least 0.6 | 1.08, yes | at least 0.6 | 1.08, yes",
			"our failures, all rows | at most 0 | 0.00, yes | at most 0 | 0.00, yes",
			"size of all plugins, MiB | - | - | at most 9 | 10.0, **no**",
			"start of bridge: time of VERSION / before | at most 1.12 | 0.93, yes | - | -"))
	})

	It("say what was not measured", func() {
		b := measured()
		b.forms = b.forms[:1]
		b.row(portsName(1), "ADD").sides[2].ratios[0] = nil
		Expect(lines(b)).To(ContainElements(
			portsName(1)+": ADD | at least 5 | not measured | - | -",
			"bridge; ptp: ADD | - | - | at least 1.3 | not measured"))
	})
})
