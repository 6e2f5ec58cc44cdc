package conformance

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// report collects the results of all subjects, and prints them as text while they arrive.
type report struct {
	out     io.Writer
	verbose bool
	job     job // of the current subject
	results []result
}

// result is the outcome of a case with a subject.
type result struct {
	Case
	cite    Cite
	subject string
	spec    string
	outcome
}

func (r *report) begin(j job) {
	r.job = j
	fmt.Fprintf(r.out, "%s (%v plugin), CNI %s\n", j.Subject.Name, j.Info.Kind, j.Spec)
}

func (r *report) add(c Case, o outcome) {
	cite, _ := c.cite(r.job.Spec)
	one := result{Case: c, cite: cite, subject: r.job.Subject.Name, spec: r.job.Spec, outcome: o}
	r.results = append(r.results, one)
	switch {
	case o.Status == failed:
		fmt.Fprintf(r.out, "  %-6s failed   %s\n%s", cite.Word, c.Name, one.explanation("    ", r.verbose))
	case o.Status == skipped:
		fmt.Fprintf(r.out, "  %-6s skipped  %s: %s\n", cite.Word, c.Name, o.Detail)
	case r.verbose:
		fmt.Fprintf(r.out, "  %-6s ok       %s\n", cite.Word, c.Name)
	}
}

// explanation returns what the specification says, what happened, and the last call or the last calls.
func (r result) explanation(indent string, all bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "CNI %s, %s: %q\n%s\n", r.spec, r.cite.Section, r.cite.Text, r.Detail)
	for i, call := range r.Calls {
		if all || i == len(r.Calls)-1 {
			b.WriteString("call: " + strings.ReplaceAll(call, "\n", "\n  ") + "\n")
		}
	}
	fmt.Fprintf(&b, "repeat it with --focus '^%s$'\n", r.Name)
	return indent + strings.ReplaceAll(strings.TrimSpace(b.String()), "\n", "\n"+indent) + "\n"
}

// end prints the sums, and returns the numbers of failed MUST and SHOULD.
func (r *report) end() (musts, shoulds int) {
	count := map[status]int{}
	for _, one := range r.results {
		count[one.Status]++
		switch {
		case one.Status != failed:
		case one.cite.Word == Must:
			musts++
		case one.cite.Word == Should:
			shoulds++
		}
	}
	fmt.Fprintf(r.out, "%d cases: %d passed, %d skipped, %d failed: %d MUST, %d SHOULD, %d MAY\n", len(r.results),
		count[passed], count[skipped], count[failed], musts, shoulds, count[failed]-musts-shoulds)
	return musts, shoulds
}

// tap writes TAP version 14. A failed SHOULD or MAY is a TODO, which does not fail a run.
func (r *report) tap(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "TAP version 14\n1..%d\n", len(r.results))
	for i, one := range r.results {
		line := fmt.Sprintf("ok %d - %s: %s", i+1, one.subject, one.Name)
		switch {
		case one.Status == skipped:
			line += " # SKIP " + strings.ReplaceAll(one.Detail, "\n", " ")
		case one.Status == failed && one.cite.Word != Must:
			line = "not " + line + " # TODO " + string(one.cite.Word)
		case one.Status == failed:
			line = "not " + line
		}
		b.WriteString(line + "\n")
		if one.Status == failed {
			b.WriteString("  ---\n  message: |\n" + one.explanation("    ", true) + "  ...\n")
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

type junitSuites struct {
	XMLName xml.Name     `xml:"testsuites"`
	Suites  []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Time    string        `xml:"time,attr"`
	Failure *junitMessage `xml:"failure"`
	Skipped *junitMessage `xml:"skipped"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// junit writes JUnit XML. A failed SHOULD or MAY is skipped with its message, which does not fail a run.
func (r *report) junit(out io.Writer) error {
	var all junitSuites
	for _, one := range r.results {
		name := one.subject + " " + one.spec
		if n := len(all.Suites); n == 0 || all.Suites[n-1].Name != name {
			all.Suites = append(all.Suites, junitSuite{Name: name})
		}
		s := &all.Suites[len(all.Suites)-1]
		c := junitCase{Class: "cni-conformance." + one.subject, Name: one.Name}
		c.Time = fmt.Sprintf("%.3f", one.Took.Seconds())
		switch {
		case one.Status == failed && one.cite.Word == Must:
			c.Failure = &junitMessage{"MUST", one.explanation("", true)}
			s.Failures++
		case one.Status == failed:
			c.Skipped = &junitMessage{string(one.cite.Word) + " failed", one.explanation("", true)}
			s.Skipped++
		case one.Status == skipped:
			c.Skipped = &junitMessage{Message: one.Detail}
			s.Skipped++
		}
		s.Tests++
		s.Cases = append(s.Cases, c)
	}
	data, err := xml.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, xml.Header+string(data)+"\n")
	return err
}
