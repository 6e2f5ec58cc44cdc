package bench

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// report is what a run says.
type report struct {
	*bench
	took time.Duration
}

// table is a head and rows of cells.
type table struct {
	head []string
	rows [][]string
}

func (r *report) ratios(of string) (heads []string) {
	for _, p := range r.others {
		heads = append(heads, of+": "+p.name)
	}
	return heads
}

func (r *report) compared(row *row) []string {
	cells := make([]string, len(r.others))
	for i := range cells {
		cells[i] = "-" // compared with one alone
		if i < len(row.peers) {
			cells[i] = row.peers[i].compared()
		}
	}
	return cells
}

func (s *sample) compared() string {
	switch {
	case s.na != "":
		return "n/a: " + s.na
	case s.refused():
		return "n/a: fails"
	}
	return spread(s.ratios)
}

// callTable is of the rows in which one call follows the other.
func (r *report) callTable() table {
	t := table{head: slices.Concat([]string{"call"}, r.ratios("ratio"),
		[]string{"rounds", "median, ms", "p99, ms", "CPU, ms",
			"MiB", "programs", "system calls", "netlink messages", "failures"})}
	for _, row := range r.rows {
		if row.inParallel {
			continue
		}
		t.rows = append(t.rows, slices.Concat([]string{row.scenario + ": " + row.verb}, r.compared(row), []string{
			fmt.Sprint(len(row.own.wall)),
			row.each(func(s *sample) string { return figure(median(s.wall)) }),
			row.each(func(s *sample) string { return figure(quantile(s.wall, 0.99)) }),
			row.each(func(s *sample) string { return figure(median(s.cpu)) }),
			row.two(func(s *sample) string { return figure(megabytes(s.counts)) }),
			row.two(func(s *sample) string { return number(s.counts, s.counts.programs) }),
			row.two(func(s *sample) string { return number(s.counts, s.counts.syscalls) }),
			row.two(func(s *sample) string { return number(s.counts, s.counts.messages) }),
			row.each(func(s *sample) string { return fmt.Sprint(s.failures) })}))
	}
	return t
}

func asked() []string {
	return []string{startName + ": VERSION", sameName + ": ADD",
		"loopback: ADD", "tuning, a sysctl: ADD", reservedName(1) + ": ADD", reservedName(10000) + ": ADD",
		"bridge: ADD", "bridge: STATUS", "bridge: GC",
		"bridge, masquerade: ADD", "bridge, masquerade: CHECK", "bridge, masquerade: DEL",
		"bridge, masquerade by iptables: ADD",
		portsName(1) + ": ADD", portsName(1) + ": DEL", portsName(100) + ": ADD",
		"firewall: ADD", "bandwidth: ADD", "macvlan: ADD", chainName + ": ADD"}
}

// askedTable is of these rows: ratios and medians.
func (r *report) askedTable() table {
	t := table{head: slices.Concat([]string{"call"}, r.ratios("ratio"), []string{"median, ms"})}
	for _, name := range asked() {
		scenario, verb, _ := strings.Cut(name, ": ")
		if row := r.row(scenario, verb); row != nil {
			t.rows = append(t.rows, slices.Concat([]string{name}, r.compared(row), []string{
				row.each(func(s *sample) string { return figure(median(s.wall)) })}))
		}
	}
	return t
}

// parallelTable is of the rows with many pods at a time.
func (r *report) parallelTable() table {
	t := table{head: slices.Concat([]string{"pods"}, r.ratios("ratio of pods a second"),
		[]string{"batches", "pods a second", "median, ms", "p99, ms", "CPU a pod, ms", "failures"})}
	for _, row := range r.rows {
		if !row.inParallel {
			continue
		}
		t.rows = append(t.rows, slices.Concat([]string{row.scenario + ": " + row.verb}, r.compared(row), []string{
			fmt.Sprint(len(row.own.perSecond)),
			row.each(func(s *sample) string { return figure(median(s.perSecond)) }),
			row.each(func(s *sample) string { return figure(median(s.wall)) }),
			row.each(func(s *sample) string { return figure(quantile(s.wall, 0.99)) }),
			row.each(func(s *sample) string { return figure(median(s.cpu)) }),
			row.each(func(s *sample) string { return fmt.Sprint(s.failures) })}))
	}
	return t
}

func (r *row) each(f func(*sample) string) string {
	all := f(&r.own)
	for i := range r.peers {
		all += " / " + f(&r.peers[i])
	}
	return all
}

// two is a figure of ours and the first other.
func (r *row) two(f func(*sample) string) string { return f(&r.own) + " / " + f(&r.peers[0]) }

func megabytes(n counts) float64 {
	if n.programs == 0 {
		return math.NaN()
	}
	return float64(n.peak) / (1 << 20)
}

func number(n counts, value int) string {
	if n.programs == 0 {
		return "-"
	}
	return fmt.Sprint(value)
}

func (r *report) aimTable() table {
	t := table{head: []string{"aim", "wanted", "measured", "met"}}
	for _, a := range aims() {
		value := a.value(r.bench)
		met := "not measured"
		if !math.IsNaN(value) {
			met = map[bool]string{true: "yes", false: "**no**"}[a.met(value)]
		}
		t.rows = append(t.rows, []string{a.what, a.String(), figure(value), met})
	}
	return t
}

func (r *report) troubles() (lines []string) {
	for _, row := range r.rows {
		for i := range len(row.peers) + 1 {
			if s := row.of(i); s.failures > 0 {
				lines = append(lines, fmt.Sprintf("%s: %s: %s failed %d times: %.300s", row.scenario, row.verb,
					r.names()[i], s.failures, strings.Join(strings.Fields(s.failure), " ")))
			}
		}
	}
	return lines
}

func (r *report) names() []string {
	names := []string{oursName}
	for _, p := range r.others {
		names = append(names, p.name)
	}
	return names
}

func (r *report) about() []string {
	load, _ := os.ReadFile("/proc/loadavg")
	return append(slices.Clone(r.facts),
		fmt.Sprintf("the run took %v; load at its end %.14s", r.took.Round(time.Second), load),
		"figures beside each other: "+strings.Join(r.names(), " / "))
}

func (r *report) print(w io.Writer) {
	for _, fact := range r.about() {
		_, _ = fmt.Fprintln(w, fact)
	}
	for _, t := range []table{r.callTable(), r.parallelTable(), r.aimTable()} {
		if len(t.rows) == 0 {
			continue
		}
		_, _ = fmt.Fprintln(w)
		out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, cells := range append([][]string{t.head}, t.rows...) {
			_, _ = fmt.Fprintln(out, strings.Join(cells, "\t"))
		}
		_ = out.Flush()
	}
	for _, line := range r.troubles() {
		_, _ = fmt.Fprintln(w, line)
	}
}

func (t table) markdown() string {
	var s strings.Builder
	line := func(cells []string) { s.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(t.head)
	line(strings.Split(strings.Repeat("---,", len(t.head)-1)+"---", ","))
	for _, cells := range t.rows {
		line(cells)
	}
	return s.String()
}

// The generated part of the page lies between these lines; the rest is written by hand.
const (
	pageBegin = "<!-- Written by make bench, from here -->\n"
	pageEnd   = "<!-- to here. -->\n"
)

// writePage replaces the generated part of a page.
func (r *report) writePage(path string) {
	page := nstest.Must(os.ReadFile(path))
	head, rest, ok := strings.Cut(string(page), pageBegin)
	_, tail, ended := strings.Cut(rest, pageEnd)
	Expect(ok && ended).To(BeTrue(), "%s: no lines %q and %q", path, pageBegin, pageEnd)
	var s strings.Builder
	s.WriteString(head + pageBegin)
	for _, fact := range r.about() {
		s.WriteString("- " + fact + "\n")
	}
	fmt.Fprintf(&s, "\n### Aims\n%s\n", r.aimTable().markdown())
	fmt.Fprintf(&s, "### Calls\n%s\n", r.askedTable().markdown())
	s.WriteString(pageEnd + tail)
	Expect(os.WriteFile(path, []byte(s.String()), 0o644)).To(Succeed())
}

// quantile is the value below which a part of the values lies, between neighbours in proportion; NaN of none.
func quantile(values []float64, part float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	at := part * float64(len(sorted)-1)
	below := int(at)
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (sorted[above]-sorted[below])*(at-float64(below))
}

func median(values []float64) float64 { return quantile(values, 0.5) }

// figure writes a number with three digits, or none when there is no number.
func figure(x float64) string {
	switch {
	case math.IsNaN(x) || math.IsInf(x, 0):
		return "-"
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

func spread(values []float64) string {
	if len(values) == 0 {
		return "n/a"
	}
	return fmt.Sprintf("%s (%s to %s)", figure(median(values)), figure(quantile(values, 0.25)),
		figure(quantile(values, 0.75)))
}

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
