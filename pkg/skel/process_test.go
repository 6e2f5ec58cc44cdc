package skel_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(modeEnv); mode != "" {
		if mode == "no plugin" {
			var programs []skel.Program
			for _, name := range []string{"vrf", "tap", "local", "host-local", "tc-redirect-tap"} {
				programs = append(programs, skel.ProgramOf(name, func() skel.Plugin[any] {
					p := processPlugin("add")
					p.Name = name
					return p
				}))
			}
			skel.MainOf(programs)
			os.Exit(0)
		}
		skel.Main(processPlugin(mode))
	}
	for _, arg := range os.Args[1:] {
		if strings.HasPrefix(arg, "-test.fuzz") { // its workers speak over inherited descriptors
			os.Exit(m.Run())
		}
	}
	nstest.Main(m)
}

func TestSkel(t *testing.T) { nstest.RunSpecs(t, "pkg/skel") }

// request is a call of a plugin; its fields are what a runtime would give.
type request struct {
	command, id, netns, ifname string
	more                       []string // further variables
	args                       []string
	conf                       string
	stdin                      io.Reader // instead of conf
	called                     string    // base name of argv[0]
}

func (r request) vars() []string {
	vars := []string{"PATH=/bin", "CNI_PATH=/opt/cni/bin"}
	for key, value := range map[string]string{"CNI_COMMAND": r.command, "CNI_CONTAINERID": r.id, "CNI_NETNS": r.netns,
		"CNI_IFNAME": r.ifname} {
		if value != "" {
			vars = append(vars, key+"="+value)
		}
	}
	return append(vars, r.more...)
}

// answer is what came of a call.
type answer struct {
	code           int
	stdout, stderr string
}

func (r request) run(p skel.Plugin[any]) answer {
	return r.runIn(context.Background(), p)
}

func (r request) runIn(ctx context.Context, p skel.Plugin[any]) answer {
	var out, errs bytes.Buffer
	stdin := r.stdin
	if stdin == nil {
		stdin = strings.NewReader(r.conf)
	}
	code := skel.Run(ctx, p, skel.Env{Called: r.called, Args: r.args, Vars: r.vars(), Stdin: stdin,
		Stdout: &out, Stderr: &errs})
	return answer{code, out.String(), errs.String()}
}

type object = map[string]any

// document is the one JSON document on stdout.
func (a answer) document() object {
	GinkgoHelper()
	var doc object
	d := json.NewDecoder(strings.NewReader(a.stdout))
	Expect(d.Decode(&doc)).To(Succeed(), "stdout %q, stderr %q", a.stdout, a.stderr)
	Expect(d.Decode(new(any))).To(MatchError(io.EOF), "more than one document: %s", a.stdout)
	return doc
}

// expectError checks that the answer is one error object.
func (a answer) expectError(code uint, message any) object {
	GinkgoHelper()
	doc := a.document()
	Expect(a.code).To(Equal(1))
	Expect(doc).To(HaveKeyWithValue("code", BeEquivalentTo(code)), a.stdout)
	Expect(doc).To(HaveKey("cniVersion"))
	if text, ok := message.(string); ok {
		message = Equal(text)
	}
	Expect(doc).To(HaveKeyWithValue("msg", message))
	return doc
}

func (a answer) expectSilence() {
	GinkgoHelper()
	Expect(a).To(Equal(answer{}))
}

const conf1 = `{"cniVersion": "1.1.0", "name": "net1", "type": "probe"}`

var errHandler = errors.New("the handler was called")

// probe is a plugin whose handlers all run fn.
func probe(fn func(*skel.Request) error) skel.Plugin[any] {
	handler := func(_ context.Context, r *skel.Request) error { return fn(r) }
	return skel.Plugin[any]{
		Name: "probe", About: "does nothing",
		Add: func(_ context.Context, r *skel.Request, _ any) (*cni.Result, error) { return oneAddress(), fn(r) },
		Del: handler, Check: parsed(handler), GC: handler, Status: parsed(handler),
	}
}

// parsed is a handler that ignores the parsed configuration.
func parsed(handler func(context.Context, *skel.Request) error) func(context.Context, *skel.Request, any) error {
	return func(ctx context.Context, r *skel.Request, _ any) error { return handler(ctx, r) }
}

// forbidden is a plugin whose handlers must not be reached.
func forbidden() skel.Plugin[any] { return probe(func(*skel.Request) error { return errHandler }) }

func oneAddress() *cni.Result {
	return &cni.Result{IPs: []cni.IP{{Address: netip.MustParsePrefix("10.0.0.5/24")}}}
}

// attach is a call with everything that an attachment needs, in an own netns.
func attach(command string) request {
	GinkgoHelper()
	return request{command: command, id: "c1", netns: nstest.NewNetns().Path, ifname: "eth0", conf: conf1}
}

// FuzzRun: whatever environment and input, a call never panics and prints exactly one JSON value when it fails,
// a result when ADD succeeds and nothing when any other succeeds.
func FuzzRun(f *testing.F) {
	for _, command := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION", "", "FOO"} {
		for _, conf := range []string{conf1, confPrev,
			`{"cniVersion":"1.1.0","name":"n","cni.dev/valid-attachments":null,"dns":{"serch":[]}}`, "x", ""} {
			f.Add(command, "c1", "/proc/self/ns/net", "eth0", "IP=x", []byte(conf))
		}
	}
	f.Fuzz(func(t *testing.T, command, id, netns, ifname, args string, conf []byte) {
		plugin := probe(func(r *skel.Request) error {
			r.OnFail("nothing", func(context.Context) error { return nil })
			var own wireConfig
			if err := r.Decode(&own); err != nil {
				return err
			}
			_, err := cni.ParseArgs(r.Args, "IP")
			return err
		})
		plugin.Keys, plugin.IPAM = wireConfig{}, true
		var out, errs bytes.Buffer
		code := skel.Run(context.Background(), plugin, skel.Env{
			Vars: []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_NETNS=" + netns,
				"CNI_IFNAME=" + ifname, "CNI_ARGS=" + args},
			Stdin: bytes.NewReader(conf), Stdout: &out, Stderr: &errs,
		})
		a := plugintest.Answer{Code: code, Stdout: out.String(), Stderr: errs.String()}
		if err := a.Verdict(command); err != nil {
			t.Fatalf("%s: status %d: %v\n%s%s", command, code, err, &out, &errs)
		}
	})
}

const (
	// modeEnv makes the test binary a plugin, of the kind that it says.
	modeEnv = "SKEL_TEST_PLUGIN"
	// logEnv is the file in which that plugin notes what it undid.
	logEnv = "SKEL_TEST_LOG"
)

// processPlugin is what the test binary is when it runs as a plugin: "add" succeeds, "wait" fails when it is
// told to end, "deaf" succeeds then, and so does "glance", which waits without the context's channel; "bare" has
// nothing to undo, "late" registers its undo when it was told to end.
func processPlugin(mode string) skel.Plugin[any] {
	ended := func(ctx context.Context, r *skel.Request) error {
		if mode == "add" {
			return nil
		}
		r.Warn("ready")
		for mode == "glance" && ctx.Err() == nil {
			runtime.Gosched()
		}
		if mode != "glance" {
			<-ctx.Done()
		}
		if mode == "deaf" || mode == "glance" {
			return nil
		}
		return ctx.Err()
	}
	return skel.Plugin[any]{
		Name: "probe", About: "does nothing", IPAM: mode == "lend",
		Add: func(ctx context.Context, r *skel.Request, _ any) (*cni.Result, error) {
			if mode == "late" {
				r.CatchSignals()
				_ = ended(ctx, r)
			}
			if mode != "bare" {
				r.OnFail("remove it", func(context.Context) error {
					return os.WriteFile(os.Getenv(logEnv), []byte("undone"), 0o600)
				})
			}
			res := oneAddress()
			if mode == "big" { // more than a pipe holds
				for range 20000 {
					res.Routes = append(res.Routes, cni.Route{Dst: netip.MustParsePrefix("10.0.0.0/8")})
				}
				return res, nil
			}
			return res, ended(ctx, r)
		},
		Del: ended,
	}
}

func conf() io.Reader { return strings.NewReader(conf1) }

// halfWriter takes half of the first document and nothing more.
type halfWriter struct{ writes int }

func (h *halfWriter) Write(p []byte) (int, error) {
	h.writes++
	return len(p) / 2, errors.New("full")
}

// process is a plugin process.
type process struct {
	*exec.Cmd
	log    string
	stdout bytes.Buffer
	stderr bytes.Buffer
}

func newProcess(mode, command string) *process {
	GinkgoHelper()
	p := &process{Cmd: exec.Command("/proc/self/exe"), log: filepath.Join(GinkgoT().TempDir(), "log")}
	p.Env = append(request{command: command, id: "c1", netns: "/proc/self/ns/net", ifname: "eth0"}.vars(),
		"CNI_NETNS_OVERRIDE=1", modeEnv+"="+mode, logEnv+"="+p.log)
	p.Stdin, p.Stdout, p.Stderr = conf(), &p.stdout, &p.stderr
	return p
}

// startReady starts the process and waits until its handler runs.
func (p *process) startReady() {
	GinkgoHelper()
	p.Stderr = nil
	errs := nstest.Must(p.StderrPipe())
	Expect(p.Start()).To(Succeed())
	Expect(bufio.NewReader(errs).ReadString('\n')).To(Equal("probe: ready\n"))
}

// expectFailed checks that the process ended by itself with status 1.
func (p *process) expectFailed(err error) {
	GinkgoHelper()
	var exit *exec.ExitError
	Expect(errors.As(err, &exit)).To(BeTrue(), "%v", err)
	status := exit.Sys().(syscall.WaitStatus)
	Expect(status.Signaled()).To(BeFalse(), "killed by %s", status.Signal())
	Expect(status.ExitStatus()).To(Equal(1), p.stderr.String())
}

func (p *process) expectUndone() {
	GinkgoHelper()
	Expect(os.ReadFile(p.log)).To(BeEquivalentTo("undone"))
}

func devFull() *os.File {
	GinkgoHelper()
	f := nstest.Must(os.OpenFile("/dev/full", os.O_WRONLY, 0))
	DeferCleanup(f.Close)
	return f
}

// brokenPipe is a pipe that nobody reads.
func brokenPipe() *os.File {
	GinkgoHelper()
	r, w, err := os.Pipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(r.Close()).To(Succeed())
	DeferCleanup(w.Close)
	return w
}

var _ = Describe("a plugin process", func() {
	It("prints its result and exits with 0", func() {
		p := newProcess("add", "ADD")
		Expect(p.Run()).To(Succeed(), p.stderr.String())
		Expect(answer{stdout: p.stdout.String()}.document()).To(HaveKey("ips"))
		Expect(p.stderr.String()).To(BeEmpty())
		Expect(p.log).NotTo(BeAnExistingFile())
	})

	DescribeTable("whose result cannot be written rolls back and says so on standard error",
		Label("unwritten-result"), func(mode string, stdout func() *os.File) {
			p := newProcess(mode, "ADD")
			p.Stdout = stdout()
			p.expectFailed(p.Run())
			p.expectUndone()
			Expect(p.stderr.String()).To(And(HavePrefix("probe: {"), ContainSubstring(`"code": 5`),
				ContainSubstring("standard output")))
		},
		Entry("nobody reads it", "add", brokenPipe), Entry("it is full", "add", devFull),
		Entry("nobody reads a big one", "big", brokenPipe), Entry("it is full, a big one", "big", devFull),
	)

	DescribeTable("may have its output thrown away by its caller, which succeeds:", func(redirection string) {
		p := newProcess("add", "ADD")
		self := fmt.Sprintf("/proc/%d/exe", os.Getpid())
		p.Path, p.Args = "/bin/sh", []string{"sh", "-c", `exec "$0" ` + redirection, self}
		Expect(p.Run()).To(Succeed(), p.stderr.String())
		Expect(p.log).NotTo(BeAnExistingFile(), "nothing is undone")
	},
		Entry("to /dev/null", ">/dev/null"),
		Entry("to /dev/null, open for reading too, as Python's DEVNULL is", "1<>/dev/null"),
		Entry("by a closed descriptor, which Go replaces by the same", ">&-"),
	)

	It("lives although nobody reads its standard error", func() {
		for command, stdout := range map[string]func() *os.File{"ADD": devFull, "VERSION": brokenPipe} {
			p := newProcess("add", command)
			p.Stdout, p.Stderr = stdout(), brokenPipe()
			p.expectFailed(p.Run())
		}
	})

	DescribeTable("that is told to end during ADD rolls back and prints one error", func(mode string, sig os.Signal) {
		heard := make(chan os.Signal, 1) // or the process ignores it where we were told to, as by nohup
		signal.Notify(heard, sig)
		DeferCleanup(signal.Stop, heard)
		p := newProcess(mode, "ADD")
		p.startReady()
		Expect(p.Process.Signal(sig)).To(Succeed())
		p.expectFailed(p.Wait())
		p.expectUndone()
		doc := answer{code: 1, stdout: p.stdout.String()}.expectError(cni.CodeTryAgain, HavePrefix("stopped: "))
		Expect(doc["msg"]).To(ContainSubstring("signal"))
	},
		Entry("SIGTERM", "wait", unix.SIGTERM), Entry("SIGINT", "wait", unix.SIGINT), Entry("SIGHUP", "wait",
			unix.SIGHUP),
		Entry("a handler that does not notice", "deaf", unix.SIGTERM), Entry("a handler that only looks now and then",
			"glance", unix.SIGTERM),
		Entry("a handler that has its effect before the undo", "late", unix.SIGTERM),
	)

	It("goes on ignoring what it was started to ignore", func() {
		p := newProcess("wait", "ADD")
		p.Args = []string{"sh", "-c", `trap "" HUP INT; exec "$0"`, p.Path}
		p.Path, p.Args[3] = "/bin/sh", fmt.Sprintf("/proc/%d/exe", os.Getpid())
		p.startReady()
		for _, sig := range []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGTERM} {
			Expect(p.Process.Signal(sig)).To(Succeed())
		}
		p.expectFailed(p.Wait())
		p.expectUndone()
		answer{code: 1, stdout: p.stdout.String()}.expectError(cni.CodeTryAgain,
			HavePrefix("stopped: terminated signal"))
	})

	DescribeTable("just ends by a signal, without an answer,", func(mode, command string) {
		p := newProcess(mode, command)
		p.startReady()
		Expect(p.Process.Signal(unix.SIGTERM)).To(Succeed())
		Expect(p.Wait()).To(MatchError("signal: terminated"))
		Expect(p.stdout.String()).To(BeEmpty())
		Expect(p.log).NotTo(BeAnExistingFile())
	},
		Entry("during ADD of one that lends addresses: whoever called it gives them back", "lend", "ADD"),
		Entry("during ADD while there is nothing to undo", "bare", "ADD"),
		Entry("during DEL", "wait", "DEL"),
	)
})

var _ = Describe("the undos of ADD", func() {
	var log []string
	note := func(what string) func(context.Context) error {
		return func(context.Context) error { log = append(log, what); return nil }
	}
	BeforeEach(func() { log = nil })

	// adding is a plugin that has three effects and ends with end.
	adding := func(end func() (*cni.Result, error)) skel.Plugin[any] {
		return skel.Plugin[any]{Name: "probe",
			Add: func(_ context.Context, r *skel.Request, _ any) (*cni.Result, error) {
				r.OnFail("remove one", note("one"))
				r.OnFail("remove two", note("two"))
				r.OnFail("remove three", note("three"))
				return end()
			}}
	}

	DescribeTable("run last in, first out", func(end func() (*cni.Result, error), code uint, message any) {
		attach("ADD").run(adding(end)).expectError(code, message)
		Expect(log).To(HaveExactElements("three", "two", "one"))
	},
		Entry("after an error", func() (*cni.Result, error) { return oneAddress(), errHandler }, cni.CodeInternal,
			"the handler was called"),
		Entry("after a panic", func() (*cni.Result, error) { panic(errHandler) }, cni.CodeInternal,
			"internal error: the handler was called"),
		Entry("without a result", func() (*cni.Result, error) { return nil, nil }, cni.CodeInternal,
			"the plugin returned no result"),
	)

	It("all run, and what failed is told in the details, with the first error's own", func() {
		p := skel.Plugin[any]{Name: "probe", Add: func(_ context.Context, r *skel.Request, _ any) (*cni.Result, error) {
			r.OnFail("remove one", note("one"))
			r.OnFail("remove two", func(context.Context) error { return errors.New("no") })
			r.OnFail("remove three", func(context.Context) error { panic("never") })
			return nil, &cni.Error{Code: cni.CodeIPAM, Msg: "the first", Details: "its own"}
		}}
		doc := attach("ADD").run(p).expectError(cni.CodeIPAM, "the first")
		Expect(doc["details"]).To(HavePrefix("its own; roll-back: remove three: internal error: never: goroutine"))
		Expect(doc["details"]).To(HaveSuffix("; roll-back: remove two: no"))
		Expect(log).To(HaveExactElements("one"))
	})

	It("are not told to end by what ended the call", func() {
		ctx, cancel := context.WithCancelCause(context.Background())
		p := skel.Plugin[any]{Name: "probe",
			Add: func(ctx context.Context, r *skel.Request, _ any) (*cni.Result, error) {
				r.OnFail("remove one", func(undo context.Context) error {
					log = append(log, "one")
					return undo.Err()
				})
				cancel(errors.New("terminated"))
				<-ctx.Done()
				return nil, ctx.Err()
			}}
		doc := attach("ADD").runIn(ctx, p).expectError(cni.CodeTryAgain, "stopped: terminated: context canceled")
		Expect(doc).NotTo(HaveKey("details"))
		Expect(log).To(HaveExactElements("one"))
	})

	It("leave a handler's own code alone when the call was ended", func() {
		ctx, cancel := context.WithCancel(context.Background())
		attach("ADD").runIn(ctx, adding(func() (*cni.Result, error) {
			cancel()
			return nil, cni.Errorf(cni.CodeConflict, "taken")
		})).expectError(cni.CodeConflict, "taken")
	})

	It("belong to ADD alone", func() {
		for _, command := range []string{"DEL", "CHECK"} {
			attach(command).run(probe(func(r *skel.Request) error {
				r.OnFail("remove one", note("one"))
				return errHandler
			})).expectError(cni.CodeInternal, "the handler was called")
		}
		Expect(log).To(BeEmpty())
	})

	It("run once when half of the result was written, and no second document follows", func() {
		r := attach("ADD")
		r.stdin = nil
		half := &halfWriter{}
		code := skel.Run(context.Background(), adding(func() (*cni.Result, error) { return oneAddress(), nil }),
			skel.Env{
				Vars: r.vars(), Stdin: conf(), Stdout: half, Stderr: GinkgoWriter,
			})
		Expect(code).To(Equal(1))
		Expect(half.writes).To(Equal(1))
		Expect(log).To(HaveExactElements("three", "two", "one"))
	})
})

var _ = Describe("the time that a call has", func() {
	brief := 50 * time.Millisecond
	serve := func(command string, limit time.Duration, p skel.Plugin[any]) answer {
		GinkgoHelper()
		var out bytes.Buffer
		r := attach(command)
		if command == "GC" {
			r.conf = strings.Replace(conf1, "{", `{"cni.dev/valid-attachments": [], `, 1)
		}
		code := skel.Run(context.Background(), p,
			skel.Env{Vars: r.vars(), Stdin: strings.NewReader(r.conf), Stdout: &out, Stderr: GinkgoWriter,
				Limit: limit})
		return answer{code: code, stdout: out.String()}
	}
	waits := func(ctx context.Context, _ *skel.Request) error {
		<-ctx.Done()
		return ctx.Err()
	}

	DescribeTable("ends, and with it what it waits for, in", func(command string) {
		a := serve(command, brief, skel.Plugin[any]{Name: "probe",
			Add: func(ctx context.Context, r *skel.Request, _ any) (*cni.Result, error) { return nil, waits(ctx, r) },
			Del: waits, Check: parsed(waits), GC: waits, Status: parsed(waits)})
		a.expectError(cni.CodeTryAgain, "no time left: context deadline exceeded")
	}, Entry(nil, "ADD"), Entry(nil, "DEL"), Entry(nil, "CHECK"), Entry(nil, "GC"), Entry(nil, "STATUS"))

	DescribeTable("is less than a kubelet's two minutes in", Label("locks"), func(command string) {
		looks := func(ctx context.Context, _ *skel.Request) error {
			at, _ := ctx.Deadline()
			Expect(time.Until(at)).To(BeNumerically("~", 90*time.Second, nstest.Patience(5*time.Second)))
			return errHandler
		}
		serve(command, 0, skel.Plugin[any]{Name: "probe",
			Add: func(ctx context.Context, r *skel.Request, _ any) (*cni.Result, error) { return nil, looks(ctx, r) },
			Del: looks, Check: parsed(looks), GC: looks, Status: parsed(looks)}).
			expectError(cni.CodeInternal, errHandler.Error())
	}, Entry(nil, "ADD"), Entry(nil, "DEL"), Entry(nil, "CHECK"), Entry(nil, "GC"), Entry(nil, "STATUS"))

	It("is limited for the roll-back as a whole, and for each step of it", Label("locks"), func() {
		var left []time.Duration
		a := serve("ADD", 18*time.Second, skel.Plugin[any]{Name: "probe",
			Add: func(_ context.Context, r *skel.Request, _ any) (*cni.Result, error) {
				r.OnFail("remove one", func(ctx context.Context) error { return ctx.Err() })
				r.OnFail("remove two", func(ctx context.Context) error { return waits(ctx, r) })
				return nil, errHandler
			}})
		doc := a.expectError(cni.CodeInternal, errHandler.Error())
		Expect(doc).To(HaveKeyWithValue("details", "roll-back: remove two: context deadline exceeded"))
		serve("ADD", 0, skel.Plugin[any]{Name: "probe",
			Add: func(_ context.Context, r *skel.Request, _ any) (*cni.Result, error) {
				r.OnFail("remove it", func(ctx context.Context) error {
					at, _ := ctx.Deadline()
					left = append(left, time.Until(at))
					return nil
				})
				return nil, errHandler
			}}).expectError(cni.CodeInternal, errHandler.Error())
		Expect(left).To(ConsistOf(BeNumerically("~", 15*time.Second, nstest.Patience(5*time.Second))))
	})
})

var _ = It("Most gives two thirds of the time that there is to what may wait", func() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	most, cancel := skel.WithTwoThirds(ctx)
	defer cancel()
	at, _ := most.Deadline()
	Expect(at).To(BeTemporally("~", time.Now().Add(40*time.Minute), time.Minute))
	most, cancel = skel.WithTwoThirds(context.Background())
	defer cancel()
	_, ok := most.Deadline()
	Expect(ok).To(BeFalse())
})

var _ = It("answers a call of a plugin that the program does not have", Label("no-plugin"), func() {
	p := newProcess("no plugin", "ADD")
	p.Stdin = strings.NewReader(`{"cniVersion": "0.4.0", "name": "net", "type": "x"}`)
	Expect(p.Run()).NotTo(Succeed())
	Expect(p.ProcessState.ExitCode()).To(Equal(1))
	Expect(p.stdout.String()).To(And(MatchJSON(p.stdout.String()), ContainSubstring(`"cniVersion": "0.4.0"`),
		ContainSubstring(`"code": 7`),
		ContainSubstring(`type: \"`+filepath.Base(p.Path)+`\" is not a plugin of this program, which has `)))
	p = newProcess("no plugin", "ADD")
	p.Args = append(p.Args, "install")
	Expect(p.Run()).To(Succeed(), "it goes on with what a program's own main does")
	Expect(p.stdout.String()).To(BeEmpty())
})

var _ = DescribeTable("is the plugin whose name the program's name ends in, after a dash", Label("other-name"),
	func(name, answers string) {
		for _, command := range []string{"VERSION", "ADD", "DEL", "CHECK", "GC", "STATUS"} {
			p := newProcess("no plugin", command)
			p.Args[0] = "/opt/cni/bin/" + name
			p.Stdin = strings.NewReader(`{"cniVersion": "1.1.0", "name": "net", "type": "` + name + `"}`)
			_ = p.Run()
			Expect(p.stdout.String()).NotTo(ContainSubstring("is not a plugin of this program"), command)
		}
		p := newProcess("no plugin", "ADD")
		p.Args = []string{name, "--version"}
		Expect(p.Run()).To(Succeed())
		Expect(p.stdout.String()).To(HavePrefix(answers + " "))
	},
	Entry(nil, "cnv-vrf", "vrf"),
	Entry(nil, "buildkit-cni-tap", "tap"),
	Entry(nil, "tc-redirect-tap", "tc-redirect-tap"),
	Entry(nil, "my-tc-redirect-tap", "tc-redirect-tap"),
	Entry(nil, "x-host-local", "host-local"),
	Entry(nil, "x-local", "local"),
)

var _ = It("a program whose name only ends in a plugin's letters is not that plugin", Label("other-name"), func() {
	for _, name := range []string{"myvrf", "vrf-", "-", "tap-x", "vrf.old", "VRF", "cluster-locals"} {
		p := newProcess("no plugin", "DEL")
		p.Args[0] = name
		p.Stdin = strings.NewReader(`{"cniVersion": "1.1.0", "name": "net", "type": "x"}`)
		Expect(p.Run()).NotTo(Succeed())
		Expect(p.stdout.String()).To(ContainSubstring("is not a plugin of this program"), name)
	}
})
