// Package bench measures our plugins against those of other directories: the same calls, in
// turns, on throw-away hosts. scripts/bench.sh runs it. It prints the whole table, and writes the
// aims and some rows into docs/performance.md.
//
// Times are compared in rounds: every side serves the call, one right after the other, and another one begins
// each time, so that what else the machine does falls on all. What is counted (programs, system calls, netlink
// messages, memory) is counted in calls of its own, which are traced and not timed.
package bench

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/nstest/trace"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestBench(t *testing.T) { nstest.RunSpecs(t, "test/bench") }

// options are what the command line says.
type options struct {
	ours   string      // directory of our plugins, each a program
	one    string      // directory of our plugins as one program; empty: they are not measured
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
	packs  []string      // command lines of programs that compress
	// pathTime is how long each figure of the data path is measured, in each of so many rounds.
	pathTime       time.Duration
	pathRoundCount int
	// stripped is a directory of the first peer's programs without symbols, for the sizes.
	stripped string
}

var given = options{rows: regexp.MustCompile("")}

func init() {
	// The first thread of a process never ends, so no host may get it: its namespaces would stay.
	runtime.LockOSThread()
	flag.StringVar(&given.ours, "ours", "", "`directory` of our plugins, each a program")
	flag.StringVar(&given.one, "one", "", "`directory` of our plugins as one program")
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
	flag.DurationVar(&given.pathTime, "path-time", 200*time.Millisecond, "for each figure of the data path and round")
	flag.IntVar(&given.pathRoundCount, "path-n", 9, "rounds of the data path")
	flag.StringVar(&given.page, "page", "", "`file` in which the generated part is replaced")
	flag.StringVar(&given.table, "table", os.DevNull, "`file` for what is printed")
	flag.StringVar(&given.stripped, "stripped", "", "`directory` of the first peer's programs, stripped, for the sizes")
	flag.Func("compress", "`command line` of a program that compresses, for the sizes", func(text string) error {
		given.packs = append(given.packs, text)
		return nil
	})
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
	b.measureSizes()
	r := report{bench: b, took: time.Since(began)}
	table := nstest.Must(os.Create(given.table))
	r.print(io.MultiWriter(os.Stdout, table))
	Expect(table.Close()).To(Succeed())
	if given.page != "" {
		r.writePage(given.page)
	}
})

// page is one with words before and after what is generated.
const page = "# Before\n" + pageBegin + "old\n" + pageEnd + "## After\n"

var _ = It("each plugin has rows", func() {
	var have []string
	for _, s := range scenarios() {
		for _, st := range s.steps {
			ipam, _ := st.conf(0)["ipam"].(object)
			have = append(have, st.plugin, fmt.Sprint(ipam["type"]))
		}
	}
	Expect(have).To(ContainElements(nstest.Plugins()))
	Expect(pluginNames()).To(Equal(nstest.Plugins()))
})

var _ = Describe("a run", func() {
	It("prints each row, fills the page, and leaves the host alone", func() {
		dir, h := GinkgoT().TempDir(), nstest.NewHost()
		h.Cmd("sh", "-c", "mkdir "+dir+"/ours "+dir+"/one "+dir+"/peer "+dir+"/empty "+dir+"/disk")
		h.Cmd("cp", nstest.Build("hawser"), dir+"/hawser")
		for _, name := range nstest.Plugins() {
			h.Cmd("cp", nstest.Build(name), dir+"/ours")
			h.Cmd("ln", dir+"/hawser", dir+"/one/"+name)
			if name != "loopback" { // the other plugins have none
				h.Cmd("cp", nstest.Build(name), dir+"/peer")
			}
		}
		Expect(exec.Command("go", "build", "-trimpath", "-o", dir+"/empty/bridge", "./empty").Run()).To(Succeed())
		Expect(os.WriteFile(dir+"/page.md", []byte(page), 0o644)).To(Succeed())
		before := h.Snapshot()

		out := h.Run(nstest.Program{Path: "/proc/self/exe", Env: []string{"NSTEST_STAGE="}, Args: []string{
			"-ginkgo.label-filter", "rows", "-fact", "of this run", "-ours", dir + "/ours",
			"-one", dir + "/one", "-compress", "wc -c", "-compress", "cksum",
			"-peer", "hawser before=" + dir + "/peer", "-peer", "other=" + dir + "/peer", "-empty", dir + "/empty",
			"-copies", "2", "-work", dir + "/disk", "-n", "2", "-page", dir + "/page.md", "-table", dir + "/table",
			"-rows", `^(bridge.* against .*|dummy|ptp|loopback|portmap, 1 published|host-local, 1000 reserved|sbr.*` +
				`|start of (bridge|dummy)): |^chain.* 8 at a time`}})
		Expect(out.Exit).To(BeZero(), out.Stdout+out.Stderr)

		Expect(h.Snapshot()).To(Equal(before))
		Expect(filepath.Glob(dir + "/disk/*")).To(BeEmpty())
		table := nstest.Must(os.ReadFile(dir + "/table"))
		Expect(out.Stdout).To(ContainSubstring(string(table)))
		written := nstest.Must(os.ReadFile(dir + "/page.md"))
		Expect(string(written)).To(And(HavePrefix("# Before\n"), HaveSuffix("## After\n"),
			Not(ContainSubstring("old"))))
		const ratio, ratios = `[0-9.]+ \([0-9.]+ to [0-9.]+\)`, `([0-9.]+ \([0-9.]+ to [0-9.]+\) +){5}`
		for _, line := range []string{`of this run`,
			`bridge against an empty Go program: VERSION +` + ratio + ` +- +` + ratio + ` +` + ratio + ` +- +2 `,
			`bridge, masquerade, against itself: ADD +` + ratio +
				` .* 2 / 2 +[0-9]+ / [0-9]+ +[1-9][0-9]* / [1-9][0-9]* +0 / 0$`,
			`loopback: ADD +n/a: no loopback +n/a: no loopback +` + ratio +
				` +n/a: no loopback +n/a: no loopback +2 +[0-9.]+ / [0-9.]+ / - / - .* 1 / 1 / - `,
			`sbr, dual stack: ADD +` + ratios + `.* 0 / 0 / 0 / 0$`,
			`start of dummy: VERSION +` + ratios,
			`ptp: STATUS +` + ratios + `.* 2 / 1 / 2 +[0-9]+ / [0-9]+ / [0-9]+ `, // programs: IPAM is in the one
			`dummy: ADD +(` + ratio + ` .*|n/a: no dummy in this kernel +n/a: .* 0) .* 0 / 0 / 0 / 0$`,
			`portmap, 1 published: GC +` + ratios + `2 `,
			`host-local, 1000 reserved: ADD +` + ratios + `.* 0 / 0 / 0 +0 / 0 / 0 / 0$`,
			`chain of bridge, portmap, firewall, tuning, 8 at a time: ADD +` + ratios + `.* 0 / 0 / 0 / 0$`,
			`bridge +[0-9.]+ / [0-9.]+ / [0-9.]+ +[0-9.]+ / [0-9.]+ / [0-9.]+$`,
			`hawser +19 +[0-9]+ +[0-9]+ +[0-9]+$`,
			`hawser, one program +1 +[0-9]+ +[0-9]+ +[0-9]+$`,
			`hawser before +18 +[0-9]+ +[0-9]+ +[0-9]+$`,
			`our failures, all rows +at most 0 +0.00, yes +at most 0 +0.00, yes`,
		} {
			Expect(string(table)).To(MatchRegexp(`(?m)^` + line))
		}
		for _, line := range []string{`- of this run`,
			`\| loopback: ADD \| n/a: no loopback \| n/a: no loopback \| [0-9.]+ / [0-9.]+ / - \|`,
			`\| portmap, 1 published: ADD \| ` + ratio + ` \| ` + ratio + ` \| [0-9.]+ / [0-9.]+ / [0-9.]+ \|`,
			`\| hawser, one program \| 1 \| [0-9]+ \| [0-9]+ \| [0-9]+ \|`,
			`\| our failures, all rows \| at most 0 \| 0.00, yes \| at most 0 \| 0.00, yes \|`,
		} {
			Expect(string(written)).To(MatchRegexp(`(?m)^` + line))
		}
	})
})

var _ = It("a run of the data path prints each figure, and leaves the host alone", func() {
	dir, h := GinkgoT().TempDir(), nstest.NewHost()
	nstest.Need("nft", "nft-inet-nat")
	h.Cmd("mkdir", dir+"/ours")
	for _, name := range nstest.Plugins() {
		h.Cmd("cp", nstest.Build(name), dir+"/ours")
	}
	before := h.Snapshot()
	out := h.Run(nstest.Program{Path: "/proc/self/exe", Env: []string{"NSTEST_STAGE="}, Args: []string{
		"-ginkgo.label-filter", "paths", "-ours", dir + "/ours", "-peer", "other=" + dir + "/ours", "-copies", "1",
		"-work", dir, "-path-n", "2", "-path-time", "5ms", "-table", dir + "/table",
		"-rows", "^bridge, 1 container|^bridge, IPv6|^ptp"}})
	Expect(out.Exit).To(BeZero(), out.Stdout+out.Stderr)
	Expect(h.Snapshot()).To(Equal(before))
	table := string(nstest.Must(os.ReadFile(dir + "/table")))
	Expect(table).NotTo(MatchRegexp("n/a|not measured .* yes"))
	const figures = `([0-9.,]+ +){3}([0-9.]+ \([0-9.]+ to [0-9.]+\) *|- \(- to -\) *){3}$` // - of too few bytes
	for _, k := range figureKinds() {
		Expect(table).To(MatchRegexp(`(?m)^bridge, 1 container +` + regexp.QuoteMeta(k.name) + ` +` + figures))
	}
	for _, network := range []string{"bridge, IPv6", "ptp"} {
		Expect(table).To(MatchRegexp(`(?m)^` + network + `, 100 containers +` + portPackets + ` +` + figures))
	}
})

var _ = It("what takes long is measured with the first peer and ours before alone", func() {
	sc := scenario{steps: []step{ptp()}, long: true}
	dir := GinkgoT().TempDir()
	Expect(os.WriteFile(dir+"/ptp", nil, 0o755)).To(Succeed())
	Expect(lacks(&plugins{name: "newest", dir: dir}, true, &sc, "ADD")).To(BeEmpty())
	Expect(lacks(&plugins{name: beforeName, dir: dir}, false, &sc, "ADD")).To(BeEmpty())
	Expect(lacks(&plugins{name: "other", dir: dir}, false, &sc, "ADD")).To(Equal("takes long"))
})

var _ = It("leases of dhcp are measured with the peers that have it", func() {
	dir := GinkgoT().TempDir()
	Expect(os.WriteFile(dir+"/bridge", nil, 0o755)).To(Succeed())
	sc := scenario{steps: []step{bridge()}, daemon: true}
	Expect(lacks(&plugins{name: beforeName, dir: dir}, false, &sc, "ADD")).To(Equal("no dhcp"))
	Expect(os.WriteFile(dir+"/dhcp", nil, 0o755)).To(Succeed())
	Expect(lacks(&plugins{name: beforeName, dir: dir}, false, &sc, "ADD")).To(BeEmpty())
})

var _ = DescribeTable("quantiles", func(part, want float64, values ...float64) {
	Expect(quantile(values, part)).To(BeNumerically("~", want, 1e-9))
},
	Entry("of one", 0.99, 3.0, 3.0),
	Entry("between two", 0.25, 1.5, 3.0, 1.0),
	Entry("the middle", 0.5, 2.0, 3.0, 1.0, 2.0),
	Entry("the last", 1.0, 3.0, 3.0, 1.0, 2.0),
)

var _ = It("the rows of the page are there", func() {
	var have []string
	for _, sc := range scenarios() {
		for _, verb := range sc.verbs {
			have = append(have, sc.name+": "+verb)
		}
	}
	Expect(asked()).To(HaveLen(20))
	Expect(have).To(ContainElements(asked()))
})

type object = plugintest.Object

// plugins are a directory of them.
type plugins struct {
	name     string
	dir      string   // one of the copies
	copies   []string // directories
	versions []string // of the specification
	nft      bool     // whether they know the nftables backends
}

func (p *plugins) has(plugin string) bool {
	_, err := os.Stat(filepath.Join(p.dir, plugin))
	return err == nil
}

// turn takes a copy of the programs for a round. How long one file takes to start depends on how the page cache
// holds it, by up to a sixth.
func (p *plugins) turn(round int) { p.dir = p.copies[(round+len(p.copies))%len(p.copies)] }

// call is one call of one plugin.
type call struct {
	verb, plugin   string
	id, ifName, ns string
	conf           object
}

// spent is what a call took, milliseconds.
type spent struct {
	wall, cpu float64
	result    json.RawMessage
}

func (c call) command(p *plugins) trace.Command {
	return trace.Command{Path: filepath.Join(p.dir, c.plugin), Stdin: plugintest.Text(c.conf), Env: []string{
		"CNI_COMMAND=" + c.verb, "CNI_CONTAINERID=" + c.id, "CNI_NETNS=" + c.ns, "CNI_IFNAME=" + c.ifName,
		"CNI_PATH=" + p.dir, "PATH=" + os.Getenv("PATH")}}
}

// timed serves a call on the calling thread and takes its time: from the start of the program to its end.
func (c call) timed(p *plugins) (spent, error) {
	GinkgoHelper()
	command := c.command(p)
	var reads, writes [3]*os.File // of stdin, stdout and stderr
	var err error
	for i := range reads {
		reads[i], writes[i], err = os.Pipe()
		Expect(err).NotTo(HaveOccurred())
		defer reads[i].Close()
		// So that all fits, and nobody here has to write or read meanwhile.
		_, _ = unix.FcntlInt(writes[i].Fd(), unix.F_SETPIPE_SZ, 1<<20)
	}
	nstest.Must(writes[0].WriteString(command.Stdin))
	_ = writes[0].Close()
	attr := syscall.ProcAttr{Env: command.Env, Files: []uintptr{reads[0].Fd(), writes[1].Fd(), writes[2].Fd()}}
	began := time.Now()
	pid, err := syscall.ForkExec(command.Path, []string{command.Path}, &attr)
	var status syscall.WaitStatus
	var usage syscall.Rusage
	if err == nil {
		_, err = syscall.Wait4(pid, &status, 0, &usage)
	}
	wall := time.Since(began)
	_, _ = writes[1].Close(), writes[2].Close()
	if err != nil {
		return spent{}, fmt.Errorf("run %s: %w", command.Path, err)
	}
	stdout, _ := io.ReadAll(reads[1])
	stderr, _ := io.ReadAll(reads[2])
	return spent{ms(wall), ms(time.Duration(usage.Utime.Nano() + usage.Stime.Nano())), stdout},
		c.failure(status.ExitStatus(), stdout, stderr)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (c call) failure(exit int, stdout, stderr []byte) error {
	if exit == 0 {
		return nil
	}
	return fmt.Errorf("%s %s: exit %d: %s", c.plugin, c.verb, exit,
		strings.Join(strings.Fields(string(stdout)+string(stderr)), " "))
}

// counted serves a call under trace.
func (c call) counted(p *plugins) (counts, json.RawMessage, error) {
	r, err := trace.Run(c.command(p))
	if err != nil {
		return counts{}, nil, err
	}
	n := counts{programs: len(r.Programs)}
	for _, p := range r.Programs {
		n.syscalls += p.Syscalls
		n.messages += len(p.Messages)
		n.peak = max(n.peak, p.Peak)
	}
	return n, []byte(r.Stdout), c.failure(r.Exit, []byte(r.Stdout), []byte(r.Stderr))
}

// counts are what was counted in calls that were traced.
type counts struct {
	programs, syscalls, messages int
	peak                         int64 // memory of the largest program, bytes
}

func (n *counts) add(more counts) {
	n.programs += more.programs
	n.syscalls += more.syscalls
	n.messages += more.messages
	n.peak = max(n.peak, more.peak)
}
