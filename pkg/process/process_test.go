package process_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/process"
)

// shell is a script, what it prints going to the buffers.
func shell(script string) (c process.Command, out, errs *bytes.Buffer) {
	out, errs = &bytes.Buffer{}, &bytes.Buffer{}
	return process.Command{Path: "/bin/sh", Args: []string{"-c", script}, Stdout: out, Stderr: errs}, out, errs
}

// broken is a writer that fails.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("full") }

var _ = Describe("Run", func() {
	ctx := context.Background()
	soon := nstest.Patience(3 * time.Second)

	It("passes arguments, environment and input, and keeps the outputs apart", func() {
		c, out, errs := shell(`echo "$0 $1 $X"; cat; echo oops >&2`)
		c.Args = append(c.Args, "name", "a b")
		c.Env = []string{"X=y", "PATH=" + os.Getenv("PATH")}
		c.Stdin = []byte("input")
		Expect(c.Run(ctx)).To(Succeed())
		Expect(out.String()).To(Equal("name a b y\ninput"))
		Expect(errs.String()).To(Equal("oops\n"))
	})

	It("hands on its own environment when none is given", func() {
		GinkgoT().Setenv("PROCESS_TEST", "there")
		c, out, _ := shell(`echo "$PROCESS_TEST"`)
		Expect(c.Run(ctx)).To(Succeed())
		Expect(out.String()).To(Equal("there\n"))
	})

	It("hands on no descriptor that it was started with itself", func() {
		var fds [2]int
		Expect(unix.Pipe(fds[:])).To(Succeed())
		defer func() { _, _ = unix.Close(fds[0]), unix.Close(fds[1]) }()
		c, out, _ := shell("echo /proc/$$/fd/*")
		Expect(c.Run(ctx)).To(Succeed())
		Expect(strings.Fields(out.String())).To(HaveEach(MatchRegexp(`/fd/[0-3]$`)), "3 is the shell's own")
	})

	It("gives and takes more than a pipe holds, both at once", func() {
		c, out, _ := shell("cat")
		c.Stdin = bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		Expect(c.Run(ctx)).To(Succeed())
		Expect(bytes.Equal(out.Bytes(), c.Stdin)).To(BeTrue())
	})

	It("does without an output that nobody wants, and without a reader of the input", func() {
		c, _, _ := shell("exec <&-; head -c 200000 /dev/zero; head -c 200000 /dev/zero >&2")
		c.Stdin, c.Stdout, c.Stderr = make([]byte, 1<<20), nil, nil
		Expect(c.Run(ctx)).To(Succeed())
	})

	It("leaves the program an input that it can wait for", func() {
		c, out, _ := shell("sleep 0.1; dd bs=1M count=1 iflag=fullblock 2>/dev/null | wc -c")
		c.Stdin = make([]byte, 1<<20)
		Expect(c.Run(ctx)).To(Succeed())
		Expect(strings.TrimSpace(out.String())).To(Equal("1048576"))
	})

	DescribeTable("says how a program ended", func(script, text string) {
		c, _, _ := shell(script)
		err := c.Run(ctx)
		exit := (*process.ExitError)(nil)
		Expect(errors.As(err, &exit)).To(BeTrue())
		Expect(err).To(MatchError(text))
		Expect(exit.Killed).NotTo(HaveOccurred())
	},
		Entry("a status", "exit 4", "exit status 4"), Entry("a signal", "kill -9 $$", "signal: killed"),
	)

	It("says what it could not run", func() {
		err := process.Command{Path: "/no/such"}.Run(ctx)
		Expect(err).To(MatchError("fork/exec /no/such: no such file or directory"))
		Expect(errors.As(err, new(*fs.PathError))).To(BeTrue())
		Expect(err).To(MatchError(unix.ENOENT))
	})

	It("tells of an output that could not be taken, and does not let the program write on", func() {
		c, _, _ := shell("exec yes")
		c.Stdout = broken{}
		Expect(c.Run(ctx)).To(MatchError("signal: broken pipe"))
		c.Args[1] = "echo x"
		Expect(c.Run(ctx)).To(MatchError("full"))
	})

	DescribeTable("ends a program", func(set func(*process.Command) context.Context, cause error) {
		c, out, _ := shell("echo started; exec sleep 60")
		began := time.Now()
		err := c.Run(set(&c))
		Expect(time.Since(began)).To(BeNumerically("<", soon))
		Expect(err).To(MatchError(cause))
		Expect(err).To(MatchError(cause.Error() + ": signal: killed"))
		Expect(out.String()).To(Equal("started\n"))
	},
		Entry("at its limit", func(c *process.Command) context.Context {
			c.Limit = 100 * time.Millisecond
			return ctx
		}, context.DeadlineExceeded),
		Entry("at the context's deadline", func(c *process.Command) context.Context {
			c.Limit = time.Hour
			ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			DeferCleanup(cancel)
			return ctx
		}, context.DeadlineExceeded),
		Entry("with the context, for its cause", func(c *process.Command) context.Context {
			ctx, cancel := context.WithCancelCause(ctx)
			c.Stdout = writerFunc{c.Stdout.(*bytes.Buffer), func() { cancel(errTold) }}
			return ctx
		}, errTold),
	)

	It("starts nothing when the context has ended", func() {
		ctx, cancel := context.WithCancelCause(ctx)
		cancel(errTold)
		c, out, _ := shell("echo started")
		Expect(c.Run(ctx)).To(MatchError(errTold))
		Expect(out.String()).To(BeEmpty())
	})

	It("does not wait long for children that hold the output", func() {
		c, out, _ := shell("sleep 60 & echo $!")
		c.Drain = 50 * time.Millisecond
		began := time.Now()
		Expect(c.Run(ctx)).To(Succeed())
		Expect(time.Since(began)).To(BeNumerically("<", soon))
		Expect(process.Command{Path: "/bin/sh", Args: []string{"-c", "kill " + strings.TrimSpace(out.String())}}.Run(ctx)).
			To(Succeed(), "the child is not ours to end")
	})

	It("waits for a program that has closed its output", func() {
		c, _, _ := shell("exec >&- 2>&-; sleep 0.1; exit 3")
		Expect(c.Run(ctx)).To(MatchError("exit status 3"))
	})

	It("leaves no descriptor behind", func() {
		fds := func() int {
			list, err := os.ReadDir("/proc/self/fd")
			Expect(err).NotTo(HaveOccurred())
			return len(list)
		}
		before := fds()
		c, _, _ := shell("cat >/dev/null")
		c.Stdin = make([]byte, 1<<20)
		Expect(c.Run(ctx)).To(Succeed())
		c.Path = "/no/such"
		Expect(c.Run(ctx)).NotTo(Succeed())
		Expect(fds()).To(Equal(before))
	})

	It("can do something else while the program runs", func() {
		c, out, _ := shell("touch $0; cat")
		there := filepath.Join(GinkgoT().TempDir(), "there")
		c.Args, c.Stdin = append(c.Args, there), []byte("input")
		p, err := c.Start()
		Expect(err).NotTo(HaveOccurred())
		Eventually(there).WithTimeout(soon).Should(BeAnExistingFile())
		Expect(p.Wait(ctx)).To(Succeed())
		Expect(out.String()).To(Equal("input"))
	})

	DescribeTable("keeps the input from a program until it is waited for", func(end func(*process.Process), wants string) {
		c, _, _ := shell("touch $0; cat >$0.in")
		there := filepath.Join(GinkgoT().TempDir(), "there")
		c.Args, c.Stdin, c.HoldStdin = append(c.Args, there), []byte("input"), true
		p, err := c.Start()
		Expect(err).NotTo(HaveOccurred())
		Eventually(there + ".in").WithTimeout(soon).Should(BeAnExistingFile())
		Expect(os.ReadFile(there + ".in")).To(BeEmpty())
		began := time.Now()
		end(p)
		Expect(time.Since(began)).To(BeNumerically("<", soon))
		Expect(os.ReadFile(there + ".in")).To(BeEquivalentTo(wants))
	},
		Entry("and then gives it", func(p *process.Process) { Expect(p.Wait(ctx)).To(Succeed()) }, "input"),
		Entry("and never gives it where it is abandoned", func(p *process.Process) { p.Abandon() }, ""),
	)

	It("needs no pidfd", func() {
		done := make(chan error)
		go func() { // the thread stays as it is, and ends with the goroutine
			defer GinkgoRecover()
			defer close(done)
			runtime.LockOSThread()
			nstest.RefuseCall(unix.SYS_PIDFD_OPEN)
			_, err := unix.PidfdOpen(os.Getpid(), 0)
			Expect(err).To(MatchError(syscall.ENOSYS))
			c, out, _ := shell("cat; exit 3")
			c.Stdin = []byte("input")
			Expect(c.Run(ctx)).To(MatchError("exit status 3"))
			Expect(out.String()).To(Equal("input"))
			c, _, _ = shell("exec sleep 60")
			c.Limit = 50 * time.Millisecond
			Expect(c.Run(ctx)).To(MatchError(context.DeadlineExceeded))
		}()
		Eventually(done).WithTimeout(soon).Should(BeClosed())
	})
})

var errTold = errors.New("told to end")

// writerFunc calls then after each write.
type writerFunc struct {
	*bytes.Buffer
	then func()
}

func (w writerFunc) Write(p []byte) (int, error) {
	defer w.then()
	return w.Buffer.Write(p)
}

var _ = Describe("LookPath", func() {
	It("finds the first program that can be run, in absolute directories only", func() {
		a, b := GinkgoT().TempDir(), GinkgoT().TempDir()
		GinkgoT().Chdir(a)
		GinkgoT().Setenv("PATH", ".::"+a+":"+b)
		write := func(dir string, mode fs.FileMode) {
			Expect(os.WriteFile(filepath.Join(dir, "prog"), nil, mode)).To(Succeed())
		}
		_, err := process.LookPath("prog")
		Expect(err).To(MatchError(process.ErrNotFound))
		Expect(err).To(MatchError(ContainSubstring("prog")))
		write(a, 0o644)
		write(b, 0o755)
		Expect(os.Mkdir(filepath.Join(a, "dir"), 0o755)).To(Succeed())
		Expect(process.LookPath("prog")).To(Equal(filepath.Join(b, "prog")))
		_, err = process.LookPath("dir")
		Expect(err).To(MatchError(process.ErrNotFound))
		Expect(os.Chmod(filepath.Join(a, "prog"), 0o755)).To(Succeed())
		Expect(process.LookPath("prog")).To(Equal(filepath.Join(a, "prog")))
	})
})
