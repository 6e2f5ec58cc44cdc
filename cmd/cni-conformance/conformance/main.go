package conformance

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/template"
	"unicode"

	"golang.org/x/sys/unix"
)

// caseFlag makes the program run the job that it reads from standard input. The program calls itself with it.
const caseFlag = "--run-case"

// Main runs the program. The exit status is 1 if a MUST failed, and 2 for wrong usage or if the cases cannot run.
func Main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	musts, err := 0, error(nil)
	if slices.Equal(os.Args[1:], []string{caseFlag}) {
		err = serveCase(os.Stdin, os.Stdout, os.Stderr)
	} else {
		musts, err = run(ctx, os.Args[1:])
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "cni-conformance:", err)
		os.Exit(2)
	case musts > 0:
		os.Exit(1)
	}
}

type settings struct {
	options
	list, plugin, config, spec string
	focus, skip                regexp.Regexp
	tap, junit                 string
	cases                      bool // only print the cases
}

func parse(args []string) (s settings, err error) {
	const usage = "Usage: cni-conformance (--plugin NAME --config FILE | --list FILE | --cases) [OPTION...]"
	never := regexp.MustCompile("^$")
	s.Ignore = new(regexp.Regexp)
	var path string
	f := flag.NewFlagSet("cni-conformance", flag.ContinueOnError)
	f.Usage = func() { fmt.Fprintln(f.Output(), usage); f.PrintDefaults() }
	f.StringVar(&path, "path", cmp.Or(os.Getenv("CNI_PATH"), "/opt/cni/bin"), "`DIRS` with plugins, as in PATH")
	f.StringVar(&s.list, "list", "", "test each plugin of the list in `FILE`, and the list itself")
	f.StringVar(&s.plugin, "plugin", "", "test the plugin `NAME`; needs --config")
	f.StringVar(&s.config, "config", "", "`FILE` with a working configuration of the plugin, one JSON object")
	f.StringVar(&s.spec, "spec", "", "`VERSION` of the specification: "+strings.Join(specs, ", ")+
		" (default: the newest that\nthe plugin supports)")
	f.TextVar(&s.focus, "focus", regexp.MustCompile(""), "run only the cases whose names match `REGEXP`")
	f.TextVar(&s.skip, "skip", never, "do not run the cases whose names match `REGEXP`")
	f.StringVar(&s.Setup, "setup", "", "shell `COMMANDS` that prepare the host of each case")
	f.StringVar(&s.IfName, "ifname", "eth0", "`NAME` that the plugin gets in CNI_IFNAME; a loopback plugin needs lo")
	f.TextVar(s.Ignore, "ignore", never, "files that may stay after DEL, such as logs: paths that match `REGEXP`")
	f.IntVar(&s.Parallel, "parallel", 64, "`N` attachments in load/concurrent; lower it for a small address range")
	f.StringVar(&s.tap, "tap", "", "write a TAP report to `FILE`")
	f.StringVar(&s.junit, "junit", "", "write a JUnit report to `FILE`")
	f.BoolVar(&s.cases, "cases", false, "only print the cases and their citations")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	s.Path = strings.Split(path, ":")
	switch {
	case f.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case s.spec != "" && !slices.Contains(specs, s.spec):
		return s, fmt.Errorf("--spec %q: choose one of %s", s.spec, strings.Join(specs, ", "))
	case !s.cases && ((s.list == "") == (s.plugin == "") || (s.plugin == "") != (s.config == "")):
		return s, errors.New("pass either --list FILE, or --plugin NAME with --config FILE")
	case s.Parallel < 1 || s.Parallel > 250:
		return s, fmt.Errorf("--parallel %d: choose 1 to 250", s.Parallel)
	}
	return s, nil
}

// run tests the subjects and writes the reports, also after an error. It returns the number of failed MUSTs.
func run(ctx context.Context, args []string) (musts int, err error) {
	s, err := parse(args)
	if err != nil {
		return 0, err
	}
	if s.cases {
		printCases(os.Stdout, s.spec)
		return 0, nil
	}
	subjects, err := load(s)
	if err != nil {
		return 0, err
	}
	r := report{out: os.Stdout, count: map[string]int{}, first: map[string]string{}}
	for _, subject := range subjects {
		if err == nil {
			err = r.test(ctx, job{Subject: subject, Spec: s.spec}, &s)
		}
	}
	if err == nil && r.Total == 0 {
		err = errors.New("no case was selected; --cases prints the names for --focus and --skip")
	}
	return r.end(err), errors.Join(err, r.write(s.tap, "tap.tmpl"), r.write(s.junit, "junit.tmpl"))
}

// test probes the subject of a job and runs its cases. It returns an error if one of them cannot run.
func (r *report) test(ctx context.Context, j job, s *settings) (err error) {
	probe := runJob(ctx, j, os.Stderr)
	if probe.Status != passed {
		return errors.New(strings.Join(slices.Insert(probe.Calls, 0, j.Subject.Name+": "+probe.Detail), "\n"))
	}
	j.Info, j.Spec = probe.Info, probe.Info.Spec
	cases := selected(j.Info.Kind, j.Spec, &s.focus, &s.skip)
	r.Suites = append(r.Suites, suite{Name: j.Subject.Name, Spec: j.Spec})
	fmt.Fprintf(r.out, "%s (%v), CNI %s\n", j.Subject.Name, j.Info.Kind, j.Spec)
	for i, o := range runAll(ctx, j, cases) {
		if o.Status != broken {
			r.add(cases[i], o)
		} else if err == nil {
			err = fmt.Errorf("%s: %s: %s", j.Subject.Name, cases[i].Name, o.Detail)
		}
	}
	return err
}

// runAll runs the cases, two for each processor simultaneously, and returns the outcomes in the order of the cases.
func runAll(ctx context.Context, j job, cases []Case) []outcome {
	outcomes := make([]outcome, len(cases))
	free := make(chan struct{}, 2*runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for i, c := range cases {
		free <- struct{}{}
		all.Go(func() {
			outcomes[i] = runJob(ctx, job{j.Subject, j.Info, j.Spec, c.Name}, os.Stderr)
			<-free
		})
	}
	all.Wait()
	return outcomes
}

func printCases(out io.Writer, spec string) {
	for _, c := range cases {
		for _, v := range specs {
			if cite, ok := c.cite(v); ok && (spec == "" || spec == v) {
				fmt.Fprintf(out, "%-32s %s %-6s %s: \"%s\"\n", c.Name, v, cite.Level, cite.Section, cite.Text)
			}
		}
	}
}

// report collects the results of all subjects. It prints a subject's results as text when all its cases have ended.
type report struct {
	out    io.Writer
	Suites []suite
	Total  int
	Abort  string            // why the run ended early
	count  map[string]int    // cases of each status, and failed cases of each level
	first  map[string]string // the first case with each problem
}

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

// Explain returns the citation, the problem, and the last calls, as indented lines. calls limits the number of calls.
func (r result) Explain(indent string, calls int) string {
	text := fmt.Sprintf("CNI %s, %s: %q\n%s", r.Spec, r.Section, r.Text, r.problem(calls))
	return indent + strings.ReplaceAll(text, "\n", "\n"+indent)
}

// problem returns the detail and the last calls, whose number calls limits. It omits answers that the detail contains.
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

// end prints the sums and returns the number of failed MUSTs. err is the reason why the run ended early, or nil.
func (r *report) end(err error) (musts int) {
	if err != nil {
		r.Abort, _, _ = strings.Cut(err.Error(), "\n")
	}
	n := func(key any) int { return r.count[fmt.Sprint(key)] }
	fmt.Fprintf(r.out, "%d cases: %d passed, %d skipped, %d failed: %d MUST, %d SHOULD, %d MAY\n", r.Total, n(passed),
		n(skipped), n(failed), n(Must), n(Should), n(May))
	if n(failed) > 0 {
		fmt.Fprintln(r.out, "repeat a case with --focus '^NAME$'")
	}
	return n(Must)
}

// write writes the report to a file in the form of TAP or JUnit XML, unless the path is empty.
func (r *report) write(path, form string) error {
	if path == "" {
		return nil
	}
	return os.WriteFile(path, render(form, r), 0o644)
}

// render returns the text of an embedded template for a value.
func render(name string, value any) []byte {
	var b bytes.Buffer
	if err := template.Must(template.ParseFS(data, name)).Execute(&b, value); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// printable returns the beginning of a text without characters that terminals, TAP and XML do not allow.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, fmt.Sprintf("%.16384s", text))
}
