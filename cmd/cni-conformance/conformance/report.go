package conformance

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"strings"
	"text/template"
	"unicode"
)

// report collects the results of all subjects, and prints those of a subject as text when all its cases have ended.
type report struct {
	out    io.Writer
	Suites []suite
	Total  int
	count  map[string]int    // cases of each status, and failed cases of each word
	first  map[string]string // the first case with each problem
}

// suite has the results of a subject.
type suite struct {
	Name, Spec string
	Results    []result
}

// result is the outcome of a case with a subject.
type result struct {
	Case
	Cite
	outcome
	Number int // from 1
	Spec   string
}

func (r *report) begin(j job) {
	r.Suites = append(r.Suites, suite{Name: j.Subject.Name, Spec: j.Spec})
	fmt.Fprintf(r.out, "%s (%v), CNI %s\n", j.Subject.Name, j.Info.Kind, j.Spec)
}

func (r *report) add(c Case, o outcome) {
	s := &r.Suites[len(r.Suites)-1]
	cite, _ := c.cite(s.Spec)
	r.Total++
	one := result{c, cite, o, r.Total, s.Spec}
	s.Results = append(s.Results, one)
	r.count[string(o.Status)]++
	switch o.Status {
	case failed:
		r.count[string(cite.Level)]++
		fmt.Fprintf(r.out, "  %-6s failed   %s\n", cite.Level, c.Name)
		if problem := one.problem(1); r.first[problem] == "" {
			r.first[problem] = c.Name
			fmt.Fprintln(r.out, one.Explain("    ", 1))
		} else {
			fmt.Fprintf(r.out, "    the same call and answer as in %s\n", r.first[problem])
		}
	case skipped:
		fmt.Fprintf(r.out, "  %-6s skipped  %s: %s\n", cite.Level, c.Name, o.Detail)
	}
}

// Explain returns the citation, the problem, and up to calls of the last calls, as indented lines.
func (r result) Explain(indent string, calls int) string {
	text := fmt.Sprintf("CNI %s, %s: %q\n%s", r.Spec, r.Section, r.Text, r.problem(calls))
	return indent + strings.ReplaceAll(text, "\n", "\n"+indent)
}

// problem returns the detail and up to calls of the last calls. It omits answers that are part of the detail.
func (r result) problem(calls int) string {
	text := r.Detail
	for _, call := range r.Calls[max(0, len(r.Calls)-calls):] {
		request, answer, _ := strings.Cut(call, "\n")
		text += "\ncall: " + request
		if !strings.Contains(r.Detail, answer) {
			text += "\n  " + answer
		}
	}
	return text
}

// end prints the sums, and returns the number of failed MUSTs.
func (r *report) end() (musts int) {
	n := func(key any) int { return r.count[fmt.Sprint(key)] }
	fmt.Fprintf(r.out, "%d cases: %d passed, %d skipped, %d failed: %d MUST, %d SHOULD, %d MAY\n", r.Total, n(passed),
		n(skipped), n(failed), n(Must), n(Should), n(May))
	if n(failed) > 0 {
		fmt.Fprintln(r.out, "repeat a case with --focus '^NAME$'")
	}
	return n(Must)
}

// write writes the report to a file in the form of TAP or JUnit XML, unless the path is empty.
func (r *report) write(path string, form *template.Template) error {
	if path == "" {
		return nil
	}
	var b bytes.Buffer
	if err := form.Execute(&b, r); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// tap is TAP version 14. A failed SHOULD or MAY is a TODO, which does not fail a run.
var tap = template.Must(template.New("tap").Parse(`TAP version 14
1..{{.Total}}
{{range $suite := .Suites}}{{range .Results -}}
{{if eq .Status "failed"}}not {{end}}ok {{.Number}} - {{$suite.Name}}: {{.Name}}
{{- if eq .Status "skipped"}} # SKIP {{.Detail}}{{end}}
{{- if eq .Status "failed"}}{{if ne .Level "MUST"}} # TODO {{.Level}}{{end}}
  ---
  message: |
{{.Explain "    " 3}}
  ...{{end}}
{{end}}{{end}}`))

// junit is JUnit XML. A failed SHOULD or MAY is skipped with its message, which does not fail a run.
var junit = template.Must(template.New("junit").Parse(xml.Header + `<testsuites>
{{range $suite := .Suites -}}
<testsuite name="{{html .Name}} {{.Spec}}" tests="{{len .Results}}">
{{range .Results -}}
<testcase classname="cni-conformance.{{html $suite.Name}}" name="{{.Name}}" time="{{printf "%.3f" .Took.Seconds}}">
{{- if eq .Status "skipped"}}<skipped message="{{html .Detail}}"/>
{{- else if eq .Status "ok"}}
{{- else if eq .Level "MUST"}}<failure message="MUST">{{html (.Explain "" 3)}}</failure>
{{- else}}<skipped message="{{.Level}} failed">{{html (.Explain "" 3)}}</skipped>{{end}}</testcase>
{{end}}</testsuite>
{{end}}</testsuites>
`))

// printable returns the beginning of a text without characters that terminals, TAP and XML do not allow.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, fmt.Sprintf("%.16384s", text))
}
