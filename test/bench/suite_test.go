// Package bench measures our plugins against those of other directories: the same calls, in
// turns, on throw-away hosts. scripts/bench.sh runs it. It prints the whole table, and writes the
// aims and some rows into docs/performance.md.
//
// Times are compared in rounds: every side serves the call, one right after the other, and another one begins
// each time, so that what else the machine does falls on all. What is counted (programs, system calls, netlink
// messages, memory) is counted in calls of its own, which are traced and not timed.
package bench

import (
	"errors"
	"flag"
	"io"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestBench(t *testing.T) { nstest.RunSpecs(t, "test/bench") }

// options are what the command line says.
type options struct {
	ours   string      // directory of our plugins
	peers  [][2]string // names and directories of the others
	empty  string      // a directory with an empty program, as "bridge"
	facts  []string    // about the run
	work   string      // a directory on disk
	rows   *regexp.Regexp
	limit  time.Duration // for a scenario's loop, after the third round
	rounds int           // most rounds of a scenario
	quick  bool          // no scenario that takes long
	copies int           // of each program
	page   string        // the file to write
	table  string        // the file for the whole table
}

var given = options{rows: regexp.MustCompile("")}

func init() {
	// The first thread of a process never ends, so no host may get it: its namespaces would stay.
	runtime.LockOSThread()
	flag.StringVar(&given.ours, "ours", "", "`directory` of our plugins")
	flag.Func("peer", "`name=directory` of plugins to compare with, in the order of the tables", given.addPeer)
	flag.StringVar(&given.empty, "empty", "", "`directory` with an empty Go program named bridge")
	flag.Func("fact", "a `line` about the run", func(text string) error {
		given.facts = append(given.facts, text)
		return nil
	})
	flag.StringVar(&given.work, "work", os.TempDir(), "`directory` on disk for what plugins keep there")
	flag.Func("rows", "`regexp` of the rows to measure", func(text string) (err error) {
		given.rows, err = regexp.Compile(text)
		return err
	})
	flag.DurationVar(&given.limit, "time", 2*time.Second, "for each scenario, at least three rounds")
	flag.IntVar(&given.rounds, "n", 100, "at most so many rounds of a scenario")
	flag.BoolVar(&given.quick, "quick", false, "leave out what takes long")
	flag.IntVar(&given.copies, "copies", 8, "of each program, for the rounds in turn")
	flag.StringVar(&given.page, "page", "", "`file` in which the generated part is replaced")
	flag.StringVar(&given.table, "table", os.DevNull, "`file` for what is printed")
}

func (o *options) addPeer(text string) error {
	name, dir, ok := strings.Cut(text, "=")
	if !ok {
		return errors.New("is no name=directory")
	}
	o.peers = append(o.peers, [2]string{name, dir})
	return nil
}

var _ = It("measures the rows", Label("rows"), func() {
	if given.ours == "" { // nobody asks
		return
	}
	programs := nstest.Must(os.MkdirTemp(given.work, "programs"))
	DeferCleanup(os.RemoveAll, programs)
	b, began := newBench(&given, programs), time.Now()
	b.measureAll()
	r := report{bench: b, took: time.Since(began)}
	table := nstest.Must(os.Create(given.table))
	r.print(io.MultiWriter(os.Stdout, table))
	Expect(table.Close()).To(Succeed())
	if given.page != "" {
		r.writePage(given.page)
	}
})
