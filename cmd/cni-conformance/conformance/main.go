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

// caseFlag makes the program run the job that it reads from standard input. The program calls itself with it.
const caseFlag = "--run-case"

// Main runs the program. The exit status is 1 if a MUST failed, and 2 for wrong usage or if the cases cannot run.
func Main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	var musts int
	var err error
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

// settings are the command line.
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

// run loads the subjects, probes each one and runs its cases. It returns the number of failed MUSTs.
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
		j := job{Subject: subject, Spec: s.spec}
		probe := runJob(ctx, j, os.Stderr)
		if probe.Status != passed {
			return 0, errors.New(strings.Join(slices.Insert(probe.Calls, 0, subject.Name+": "+probe.Detail), "\n"))
		}
		j.Info, j.Spec = probe.Info, probe.Info.Spec
		cases := selected(j.Info.Kind, j.Spec, &s.focus, &s.skip)
		r.begin(j)
		for i, o := range runAll(ctx, j, cases) {
			if o.Status == broken || ctx.Err() != nil {
				return 0, fmt.Errorf("%s: %s: %s", subject.Name, cases[i].Name, cmp.Or(o.Detail, "interrupted"))
			}
			r.add(cases[i], o)
		}
	}
	if r.Total == 0 {
		return 0, errors.New("no case was selected; --cases prints the names for --focus and --skip")
	}
	return r.end(), errors.Join(r.write(s.tap, tap), r.write(s.junit, junit))
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
