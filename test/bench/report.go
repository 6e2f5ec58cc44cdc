package main

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"text/tabwriter"
	"time"
)

// report is what a run says.
type report struct {
	*bench
	machine []string
	took    time.Duration
}

// table is a head and rows of cells.
type table struct {
	head []string
	rows [][]string
}

// callTable is of the rows in which one call follows the other.
func (r *report) callTable() table {
	t := table{head: []string{"call", "rounds", "ratio (quartiles)", "median, ms", "p99, ms", "CPU, ms", "MiB", "programs", "system calls", "netlink messages", "failures"}}
	for _, row := range r.rows {
		if row.inParallel {
			continue
		}
		of := func(f func(*sample) string) string { return both(row, f) }
		what := spread(row.ratios)
		if row.na != "" {
			what = "n/a: " + row.na
		} else if row.refused() {
			what = "n/a: fails"
		}
		t.rows = append(t.rows, []string{row.scenario + ": " + row.verb, fmt.Sprint(row.rounds), what,
			of(func(s *sample) string { return figure(median(s.wall)) }),
			of(func(s *sample) string { return figure(quantile(s.wall, 0.99)) }),
			of(func(s *sample) string { return figure(median(s.cpu)) }),
			of(func(s *sample) string { return figure(megabytes(s.counts)) }),
			of(func(s *sample) string { return number(s.counts, s.counts.programs) }),
			of(func(s *sample) string { return number(s.counts, s.counts.syscalls) }),
			of(func(s *sample) string { return number(s.counts, s.counts.messages) }),
			of(func(s *sample) string { return fmt.Sprint(s.failures) })})
	}
	return t
}

// parallelTable is of the rows with many pods at a time.
func (r *report) parallelTable() table {
	t := table{head: []string{"pods", "batches", "ratio of pods a second (quartiles)", "pods a second", "median, ms", "p99, ms", "CPU a pod, ms", "failures"}}
	for _, row := range r.rows {
		if !row.inParallel {
			continue
		}
		of := func(f func(*sample) string) string { return both(row, f) }
		t.rows = append(t.rows, []string{row.scenario + ": " + row.verb, fmt.Sprint(row.rounds), spread(row.ratios),
			of(func(s *sample) string { return figure(median(s.perSecond)) }),
			of(func(s *sample) string { return figure(median(s.wall)) }),
			of(func(s *sample) string { return figure(quantile(s.wall, 0.99)) }),
			of(func(s *sample) string { return figure(median(s.cpu)) }),
			of(func(s *sample) string { return fmt.Sprint(s.failures) })})
	}
	return t
}

// both is "peer's > ours"; "-" is what was not measured.
func both(r *row, f func(*sample) string) string {
	return f(&r.sides[0]) + " > " + f(&r.sides[1])
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

// aimTable tells which aims were met.
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

// troubles are the first failures of each row.
func (r *report) troubles() (lines []string) {
	for _, row := range r.rows {
		for i, name := range []string{r.peerName, oursName} {
			if s := row.sides[i]; s.failures > 0 {
				lines = append(lines, fmt.Sprintf("%s: %s: %s failed %d times: %.300s", row.scenario, row.verb, name, s.failures, strings.Join(strings.Fields(s.failure), " ")))
			}
		}
	}
	return lines
}

// facts are what a reader needs to know of the run.
func (r *report) facts() []string {
	return append(r.machine, fmt.Sprintf("%s %s against %s, configurations of version %s; the run took %v",
		oursName, r.options.version, r.peerName, r.bench.version, r.took.Round(time.Second)))
}

func (r *report) print(w io.Writer) {
	for _, fact := range r.facts() {
		_, _ = fmt.Fprintln(w, fact)
	}
	_, _ = fmt.Fprintf(w, "Two figures: %s > %s.\n", r.peerName, oursName)
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
func (r *report) writePage(path string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, ok := bytes.Cut(page, []byte(pageBegin))
	_, tail, ended := bytes.Cut(rest, []byte(pageEnd))
	if !ok || !ended {
		return fmt.Errorf("%s: no lines %q and %q", path, pageBegin, pageEnd)
	}
	var s strings.Builder
	s.Write(head)
	s.WriteString(pageBegin)
	for _, fact := range r.facts() {
		s.WriteString("- " + fact + "\n")
	}
	fmt.Fprintf(&s, "\n### Aims\n%s\n", r.aimTable().markdown())
	fmt.Fprintf(&s, "### Calls\nTwo figures are %s > %s.\n\n%s\n", r.peerName, oursName, r.callTable().markdown())
	fmt.Fprintf(&s, "### Pods at the same time\n%s\n", r.parallelTable().markdown())
	for _, line := range r.troubles() {
		s.WriteString("- " + line + "\n")
	}
	s.WriteString(pageEnd)
	s.Write(tail)
	return os.WriteFile(path, []byte(s.String()), 0o644)
}
