package skel_test

import (
	"bufio"
	"bytes"
	"context"
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

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const (
	// modeEnv makes the test binary a plugin, of the kind that it says.
	modeEnv = "SKEL_TEST_PLUGIN"
	// logEnv is the file in which that plugin notes what it undid.
	logEnv = "SKEL_TEST_LOG"
)

// processPlugin is what the test binary is when it runs as a plugin: "add" succeeds, "wait" fails when it is
// told to end, "deaf" succeeds then, and so does "glance", which waits without the context's channel.
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
			r.OnFail("remove it", func(context.Context) error {
				return os.WriteFile(os.Getenv(logEnv), []byte("undone"), 0o600)
			})
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

	It("that lends addresses just ends: whoever called it gives them back", func() {
		p := newProcess("lend", "ADD")
		p.startReady()
		Expect(p.Process.Signal(unix.SIGTERM)).To(Succeed())
		Expect(p.Wait()).To(MatchError("signal: terminated"))
		Expect(p.log).NotTo(BeAnExistingFile())
	})
})
