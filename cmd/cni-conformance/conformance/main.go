package conformance

import (
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

	"golang.org/x/sys/unix"
)

// caseFlag is the argument of a case's process.
const caseFlag = "--run-case"

// Exit statuses.
const (
	exitFailed = 1 // a MUST failed
	exitUsage  = 2 // wrong usage, or the cases cannot run
)

// Main runs the program and ends the process.
func Main() {
	if len(os.Args) == 2 && os.Args[1] == caseFlag {
		if err := serveCase(os.Stdin, os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, "cni-conformance:", err)
			os.Exit(exitUsage)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	code, err := run(ctx, os.Args[1:])
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "cni-conformance:", err)
	}
	os.Exit(code)
}

// settings are the command line.
type settings struct {
	options
	list, plugin, config, spec, kind string
	focus, skip                      string
	tap, junit                       string
	jobs                             int
	cases, strict, verbose           bool
}

func parse(args []string) (settings, error) {
	var s settings
	var path, writable, ignore string
	f := flag.NewFlagSet("cni-conformance", flag.ContinueOnError)
	f.StringVar(&path, "path", cmp.Or(os.Getenv("CNI_PATH"), "/opt/cni/bin"), "directories with plugins")
	f.StringVar(&s.list, "list", "", "test the plugins of a list (.conflist) and the list itself")
	f.StringVar(&s.plugin, "plugin", "", "test the plugin with this name; needs --config")
	f.StringVar(&s.config, "config", "", "a working configuration of the plugin")
	f.StringVar(&s.spec, "spec", "", "version of the specification: "+strings.Join(specs, ", ")+
		" (default: the newest that\nthe plugin supports)")
	f.StringVar(&s.kind, "kind", "", "kind of plugin: interface, chained or ipam (default: found out by trial)")
	f.StringVar(&s.focus, "focus", "", "run only the cases whose names match a regular expression")
	f.StringVar(&s.skip, "skip", "", "do not run the cases whose names match a regular expression")
	f.StringVar(&s.Setup, "setup", "", "shell commands that prepare the host of each case")
	f.StringVar(&s.IfName, "ifname", "eth0", "CNI_IFNAME")
	f.StringVar(&writable, "writable", "", "more directories in which the plugin keeps files, separated by colons")
	f.StringVar(&ignore, "ignore", "", "patterns of files that are not leftovers, such as logs, separated by colons")
	f.StringVar(&s.tap, "tap", "", "write a TAP report to a file")
	f.StringVar(&s.junit, "junit", "", "write a JUnit report to a file")
	f.IntVar(&s.Parallel, "parallel", 64, "attachments of the concurrency case; lower it for a small address range")
	f.IntVar(&s.jobs, "jobs", 2*runtime.NumCPU(), "cases that run at the same time")
	f.BoolVar(&s.cases, "cases", false, "print the cases and their citations")
	f.BoolVar(&s.strict, "strict", false, "a failed SHOULD is an error, too")
	f.BoolVar(&s.verbose, "v", false, "report passed cases, too")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	s.Path = splitList(path)
	s.Writable, s.Ignore = splitList(writable), splitList(ignore)
	switch {
	case f.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case s.spec != "" && !slices.Contains(specs, s.spec):
		return s, fmt.Errorf("--spec %q: choose one of %s", s.spec, strings.Join(specs, ", "))
	case s.cases:
	case (s.list == "") == (s.plugin == ""), (s.plugin == "") != (s.config == ""):
		return s, errors.New("pass either --list FILE or --plugin NAME and --config FILE")
	case s.kind != "" && s.list != "":
		return s, errors.New("--kind is for --plugin")
	case s.kind != "" && !slices.Contains([]string{"interface", "chained", "ipam"}, s.kind):
		return s, fmt.Errorf("--kind %q: choose interface, chained or ipam", s.kind)
	case s.Parallel < 1 || s.Parallel > 250 || s.jobs < 1:
		return s, errors.New("--parallel is 1 to 250, and --jobs at least 1")
	}
	return s, nil
}

func splitList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ':' })
}

// run returns the exit status. An error is a reason for exitUsage.
func run(ctx context.Context, args []string) (int, error) {
	s, err := parse(args)
	if err != nil {
		return exitUsage, err
	}
	focus, err := regexp.Compile(s.focus)
	var skip *regexp.Regexp
	if err == nil && s.skip != "" {
		skip, err = regexp.Compile(s.skip)
	}
	if err != nil {
		return exitUsage, err
	}
	if s.cases {
		printCases(os.Stdout, s.spec)
		return 0, nil
	}
	subjects, err := s.subjects()
	if err != nil {
		return exitUsage, err
	}
	r := report{out: os.Stdout, verbose: s.verbose}
	for _, subject := range subjects {
		j := job{Subject: subject, Spec: s.spec}
		if err := probe(ctx, &j); err != nil {
			return exitUsage, fmt.Errorf("%s: %w", subject.Name, err)
		}
		cases := selected(j.Info.Kind, j.Spec, focus, skip)
		r.begin(j)
		for i, o := range runAll(ctx, j, cases, s.jobs) {
			if o.Status == broken || ctx.Err() != nil {
				return exitUsage, fmt.Errorf("%s: %s: %s", subject.Name, cases[i].Name, cmp.Or(o.Detail, "interrupted"))
			}
			r.add(cases[i], o)
		}
	}
	err = errors.Join(writeReport(s.tap, r.tap), writeReport(s.junit, r.junit))
	musts, shoulds := r.end()
	switch {
	case err != nil:
		return exitUsage, err
	case len(r.results) == 0:
		return exitUsage, errors.New("no case was selected")
	case musts > 0 || s.strict && shoulds > 0:
		return exitFailed, nil
	}
	return 0, nil
}

func (s settings) subjects() ([]subject, error) {
	if s.list != "" {
		return loadList(s.list, s.options)
	}
	one, err := loadPlugin(s.plugin, s.config, s.options)
	for kind, name := range kindNames {
		if name == s.kind {
			one.Kind = kind
		}
	}
	return []subject{one}, err
}

// probe completes a job by what the subject can do.
func probe(ctx context.Context, j *job) error {
	o := runJob(ctx, *j, os.Stderr)
	if o.Status != passed {
		return errors.New(o.Detail + strings.Join(o.Calls, "\n"))
	}
	j.Info = o.Info
	if j.Spec == "" {
		j.Spec = newest(j.Info.Supported, text(j.Subject.Plugins[0], "cniVersion"))
	}
	return nil
}

// runAll runs some cases at a time, and returns their outcomes in the order of the cases.
func runAll(ctx context.Context, j job, cases []Case, jobs int) []outcome {
	outcomes := make([]outcome, len(cases))
	free := make(chan struct{}, jobs)
	var all sync.WaitGroup
	for i, c := range cases {
		free <- struct{}{}
		all.Go(func() {
			j := j
			j.Case = c.Name
			outcomes[i] = runJob(ctx, j, os.Stderr)
			<-free
		})
	}
	all.Wait()
	return outcomes
}

// writeReport writes a report to a file.
func writeReport(path string, report func(io.Writer) error) error {
	if path == "" {
		return nil
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(report(f), f.Close())
}

func printCases(out io.Writer, spec string) {
	for _, c := range cases {
		for _, v := range specs {
			if cite, ok := c.cite(v); ok && (spec == "" || spec == v) {
				fmt.Fprintf(out, "%-32s %s %-6s %s: \"%s\"\n", c.Name, v, cite.Word, cite.Section, cite.Text)
			}
		}
	}
}
