// Bench measures our plugins against those of other directories: the same calls, in
// turns, on throw-away hosts. scripts/bench.sh runs it in namespaces of its own. It prints
// the whole table, and writes the aims and some rows into docs/performance.md.
//
// Times are compared in rounds: every side serves the call, one right after the other, and
// another one begins each time, so that what else the machine does falls on all. What is
// counted (programs, system calls, netlink messages, memory) is
// counted in calls of its own, which are traced and not timed.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// options are what the command line says.
type options struct {
	ours   string      // directory of our plugins
	peers  [][2]string // names and directories of the others
	empty  string      // a directory with an empty program, as "bridge"
	facts  []string    // about the run, for the page
	work   string      // a directory on disk
	rows   *regexp.Regexp
	limit  time.Duration // for a scenario's loop, after the third round
	rounds int           // most rounds of a scenario
	quick  bool          // no scenario that takes long
	copies int           // of each program
	page   string        // the file to write
}

// The first thread of a process never ends, so no host may get it: its namespaces
// would stay.
func init() { runtime.LockOSThread() }

func main() {
	var o options
	rows := ""
	flag.StringVar(&o.ours, "ours", "", "`directory` of our plugins")
	flag.Func("peer", "`name=directory` of plugins to compare with, in the order of the tables", o.addPeer)
	flag.StringVar(&o.empty, "empty", "", "`directory` with an empty Go program named bridge")
	flag.Func("fact", "a `line` about the run, for the page", o.addFact)
	flag.StringVar(&o.work, "work", os.TempDir(), "`directory` on disk for what plugins keep there")
	flag.StringVar(&rows, "rows", "", "`regexp` of the rows to measure")
	flag.DurationVar(&o.limit, "time", 2*time.Second, "for each scenario, at least three rounds")
	flag.IntVar(&o.rounds, "n", 100, "at most so many rounds of a scenario")
	flag.BoolVar(&o.quick, "quick", false, "leave out what takes long")
	flag.IntVar(&o.copies, "copies", 8, "of each program, for the rounds in turn")
	flag.StringVar(&o.page, "page", "", "`file` in which the generated part is replaced")
	flag.Parse()
	if err := run(&o, rows); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// addPeer reads one -peer.
func (o *options) addPeer(text string) error {
	name, dir, ok := strings.Cut(text, "=")
	if !ok {
		return errors.New("is no name=directory")
	}
	o.peers = append(o.peers, [2]string{name, dir})
	return nil
}

// addFact keeps one -fact.
func (o *options) addFact(text string) error {
	o.facts = append(o.facts, text)
	return nil
}

func run(o *options, rows string) (err error) {
	if o.rows, err = regexp.Compile(rows); err != nil {
		return fmt.Errorf("-rows: %w", err)
	}
	if os.Getpid() != 1 {
		return errors.New("would hide this machine's /run: scripts/bench.sh runs it in namespaces of its own")
	}
	if err := mountState(); err != nil {
		return err
	}
	programs, err := os.MkdirTemp(o.work, "programs")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(programs)) }()
	b, err := newBench(o, programs)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := b.measureAll(); err != nil {
		return err
	}
	r := report{bench: b, took: time.Since(began)}
	r.print(os.Stdout)
	if o.page != "" {
		return r.writePage(o.page)
	}
	return nil
}
