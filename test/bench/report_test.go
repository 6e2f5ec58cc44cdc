package bench

import (
	"fmt"
	"io"
	"math"
	"os"
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

// ratios are the heads of the columns that compared fills.
func (r *report) ratios(of string) (heads []string) {
	for i, form := range r.forms {
		if i > 0 {
			heads = append(heads, of+": "+form.name+" / separate")
		}
		for _, p := range r.others {
			heads = append(heads, of+": "+p.name+" / "+formNames()[i])
		}
	}
	return heads
}

func formNames() []string { return []string{"separate", "one program"} }

// compared are the others beside each form of ours, and the one program beside the separate ones.
func (r *report) compared(row *row) (cells []string) {
	for form := range r.forms {
		if form > 0 {
			cells = append(cells, row.compared(form, 0))
		}
		for i := range r.others {
			cells = append(cells, row.compared(row.forms+i, form))
		}
	}
	return cells
}

func (r *row) compared(side, form int) string {
	if side >= len(r.sides) || form >= r.forms {
		return "-" // compared with one alone
	}
	switch s := &r.sides[side]; {
	case s.na != "":
		return "n/a: " + s.na
	case s.refused():
		return "n/a: fails"
	default:
		return spread(s.ratios[form])
	}
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
			fmt.Sprint(len(row.sides[row.forms-1].wall)),
			row.each(func(s *sample) string { return figure(median(s.wall)) }),
			row.each(func(s *sample) string { return figure(quantile(s.wall, 0.99)) }),
			row.each(func(s *sample) string { return figure(median(s.cpu)) }),
			row.first(func(s *sample) string { return figure(megabytes(s.counts)) }),
			row.first(func(s *sample) string { return number(s.counts, s.counts.programs) }),
			row.first(func(s *sample) string { return number(s.counts, s.counts.syscalls) }),
			row.first(func(s *sample) string { return number(s.counts, s.counts.messages) }),
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

// askedTable is of these rows: ratios to the first of the others, and medians.
func (r *report) askedTable() table {
	t := table{head: []string{"call"}}
	for form := range r.forms {
		t.head = append(t.head, r.others[0].name+" / "+formNames()[form])
	}
	t.head = append(t.head, "median, ms")
	for _, name := range asked() {
		scenario, verb, _ := strings.Cut(name, ": ")
		if row := r.row(scenario, verb); row != nil {
			cells := []string{name}
			for form := range r.forms {
				cells = append(cells, row.compared(row.forms, form))
			}
			t.rows = append(t.rows, append(cells, row.first(func(s *sample) string { return figure(median(s.wall)) })))
		}
	}
	return t
}

// startTable is of VERSION of each plugin.
func (r *report) startTable() table {
	t := table{head: []string{"VERSION of", "median, ms", "CPU, ms"}}
	for _, plugin := range pluginNames() {
		if row := r.row(versionName(plugin), "VERSION"); row != nil {
			t.rows = append(t.rows, []string{plugin,
				row.first(func(s *sample) string { return figure(median(s.wall)) }),
				row.first(func(s *sample) string { return figure(median(s.cpu)) })})
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
			fmt.Sprint(len(row.sides[0].perSecond)),
			row.each(func(s *sample) string { return figure(median(s.perSecond)) }),
			row.each(func(s *sample) string { return figure(median(s.wall)) }),
			row.each(func(s *sample) string { return figure(quantile(s.wall, 0.99)) }),
			row.each(func(s *sample) string { return figure(median(s.cpu)) }),
			row.each(func(s *sample) string { return fmt.Sprint(s.failures) })}))
	}
	return t
}

func (r *row) each(f func(*sample) string) string { return beside(r.sides, f) }

// first are figures of ours and the first other.
func (r *row) first(f func(*sample) string) string { return beside(r.sides[:r.forms+1], f) }

func beside(sides []sample, f func(*sample) string) string {
	var all []string
	for i := range sides {
		all = append(all, f(&sides[i]))
	}
	return strings.Join(all, " / ")
}

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

func (r *report) troubles() (lines []string) {
	for _, row := range r.rows {
		for _, s := range row.sides {
			if s.failures > 0 {
				lines = append(lines, fmt.Sprintf("%s: %s: %s failed %d times: %.300s", row.scenario, row.verb,
					s.name, s.failures, strings.Join(strings.Fields(s.failure), " ")))
			}
		}
	}
	return lines
}

func (r *report) names() (names []string) {
	for _, p := range slices.Concat(r.forms, r.others) {
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
	r.printTables(w, r.callTable(), r.parallelTable(), r.startTable(), r.sizeTable(), r.aimTable())
	for _, line := range r.troubles() {
		_, _ = fmt.Fprintln(w, line)
	}
}

// printTables prints what the run was, and the tables that have rows.
func (r *report) printTables(w io.Writer, tables ...table) {
	for _, fact := range r.about() {
		_, _ = fmt.Fprintln(w, fact)
	}
	for _, t := range tables {
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
	var s strings.Builder
	for _, fact := range r.about() {
		s.WriteString("- " + fact + "\n")
	}
	fmt.Fprintf(&s, "\n### Aims\n%s\n", r.aimTable().markdown())
	fmt.Fprintf(&s, "### Calls\n%s\n", r.askedTable().markdown())
	fmt.Fprintf(&s, "### Size\n%s\n", r.sizeTable().markdown())
	replacePart(path, pageBegin, s.String())
}

// replacePart replaces the part of a page from the line begin to pageEnd.
func replacePart(path, begin, text string) {
	page := nstest.Must(os.ReadFile(path))
	head, rest, ok := strings.Cut(string(page), begin)
	_, tail, ended := strings.Cut(rest, pageEnd)
	Expect(ok && ended).To(BeTrue(), "%s: no lines %q and %q", path, begin, pageEnd)
	Expect(os.WriteFile(path, []byte(head+begin+text+pageEnd+tail), 0o644)).To(Succeed())
}

// quantile is the value below which a part of the values lies, between neighbors in proportion; NaN of none.
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
