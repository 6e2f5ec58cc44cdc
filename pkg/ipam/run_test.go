package ipam_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

// expectError checks code, message and details of a delegate's failure.
func expectError(err error, code uint, message, details any) {
	GinkgoHelper()
	var e *cni.Error
	Expect(errors.As(err, &e)).To(BeTrue(), "%v", err)
	Expect(e.Msg).To(ContainSubstring(fmt.Sprint(message)))
	Expect(e.Code).To(Equal(code), e.Msg)
	if text, ok := details.(string); ok {
		details = Equal(text)
	}
	Expect(e.Details).To(details.(OmegaMatcher))
}

var _ = Describe("a delegate", func() {
	ctx := context.Background()

	It("passes the environment through, with CNI_COMMAND replaced once", func() {
		c, _ := client("env")
		c.Env = append(c.Env, "CNI_ARGS=A=b;C=d", "CNI_COMMAND=again", "CNI_COMMANDX=kept", "X=a=b", "EMPTY=")
		out, err := run(ctx, c)
		Expect(err).NotTo(HaveOccurred())
		lines := strings.Split(string(out), "\n")
		Expect(lines).To(ContainElements("CNI_ARGS=A=b;C=d", "CNI_COMMANDX=kept", "X=a=b", "EMPTY="))
		Expect(strings.Count("\n"+string(out), "\nCNI_COMMAND=")).To(Equal(1))
		Expect(lines).To(ContainElement("CNI_COMMAND=ADD"))
	})

	It("passes the configuration on byte for byte", func() {
		conf := append([]byte("\ufeff{\n\t\"x\" : 1e400, \"x\":\"\x00\xff\" }\r\n\n"),
			bytes.Repeat([]byte("x"), 1<<20)...)
		c, _ := client("cat")
		c.Conf = conf
		out, err := run(ctx, c)
		Expect(err).NotTo(HaveOccurred())
		Expect(bytes.Equal(out, conf)).To(BeTrue())
	})

	It("hands its standard error on while it runs", Label("delegate-stderr"), func() {
		fifo := filepath.Join(GinkgoT().TempDir(), "fifo")
		Expect(unix.Mkfifo(fifo, 0o600)).To(Succeed())
		c, stderr := client("echo progress >&2; cat " + fifo)
		done := make(chan error, 1)
		go func() { _, err := run(ctx, c); done <- err }()
		Eventually(stderr.String).Should(Equal("progress\n"))
		Expect(done).NotTo(Receive())
		Expect(os.WriteFile(fifo, nil, 0o600)).To(Succeed())
		Eventually(done).Should(Receive(BeNil()))
	})

	DescribeTable("does not mind that nobody reads our own standard error", func(w io.Writer) {
		c, _ := client("echo one >&2; echo two >&2; echo {}")
		c.Stderr = w
		Expect(run(ctx, c)).To(BeEquivalentTo("{}\n"))
	}, Entry("it fails", broken{}), Entry("there is none", nil))

	DescribeTable("says what a delegate died of", Label("delegate-died"), func(
		script string, code uint, message string, details any,
	) {
		c, _ := client(script)
		out, err := run(ctx, c)
		expectError(err, code, message, details)
		Expect(out).To(BeNil())
	},
		Entry("its own: try again",
			`echo '{"cniVersion": "0.4.0", "code": 11, "msg": "busy", "details": "by 17"}'; exit 1`, cni.CodeTryAgain,
			"busy", "by 17"),
		Entry("its own: one of ours", `echo '{"code": 100, "msg": "there"}'; exit 1`, cni.CodeExists, "there", ""),
		Entry("its own: configuration", `echo '{"code": 7, "msg": "bad"}'; exit 3`, cni.CodeConfig, "bad", ""),
		Entry("its own, without a code", `echo '{"code": 0, "msg": "bad"}'; exit 1`, cni.CodeInternal, "bad", ""),
		Entry("nothing said", "exit 1", cni.CodeInternal,
			`plugin "ipam": failed without an error object: exit status 1`, "it printed \"\""),
		Entry("text on standard error", "echo boom >&2; exit 2", cni.CodeInternal, "exit status 2", "boom"),
		Entry("text on standard output", "echo hello; exit 1", cni.CodeInternal, "exit status 1", `it printed "hello"`),
		Entry("much text on standard output: its beginning", "yes x | head -c 1000 | tr -d '\\n'; exit 1",
			cni.CodeInternal, "exit status 1", `it printed "`+strings.Repeat("x", 200)+`"`),
		Entry("a result, and yet a failure", `echo '{"ips": []}'; exit 1`, cni.CodeInternal, "exit status 1",
			`it printed "{\"ips\": []}"`),
		Entry("text on both", "echo hello; echo boom >&2; exit 1", cni.CodeInternal, "exit status 1", "boom"),
		Entry("a signal", "echo boom >&2; kill -9 $$", cni.CodeInternal, "signal: killed", "boom"),
		Entry("a crash", "kill -SEGV $$", cni.CodeInternal, "signal: segmentation fault", "it printed \"\""),
		Entry("a long story: its end", "yes nonsense | head -c 90000 >&2; echo the end >&2; exit 1", cni.CodeInternal,
			"exit status 1",
			And(HaveSuffix("nonsense\nthe end"), WithTransform(func(s string) int { return len(s) }, BeNumerically("<=",
				4096)))),
		Entry("too much output", "head -c 17000000 /dev/zero; echo boom >&2", cni.CodeIO,
			"more than 16777216 bytes of output", ""),
		Entry("too much output, without end", "exec yes", cni.CodeInternal, "signal: broken pipe",
			`it printed "`+strings.Repeat(`y\n`, 100)+`"`),
	)

	It("does not wait for a file that is being written: try again", func() {
		c, _ := client("echo done")
		file := filepath.Join(c.Path, "ipam")
		writer, err := os.OpenFile(file, os.O_WRONLY, 0)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(writer.Close)
		if err := exec.Command(file).Run(); !errors.Is(err, unix.ETXTBSY) {
			Skip("this kernel runs files that are being written")
		}
		_, err = run(ctx, c)
		expectError(err, cni.CodeTryAgain, `plugin "ipam": its file is being written`, "")
	})

	It("names a file that cannot be run", func() {
		c, _ := client("")
		Expect(os.Chmod(filepath.Join(c.Path, "ipam"), 0o644)).To(Succeed())
		_, err := run(ctx, c)
		expectError(err, cni.CodeIO, `plugin "ipam": fork/exec `+c.Path+"/ipam: permission denied", "")
		Expect(os.WriteFile(filepath.Join(c.Path, "other"), []byte("not a program"), 0o755)).To(Succeed())
		_, err = run(ctx, &ipam.Client{Type: "other", Path: c.Path})
		expectError(err, cni.CodeIO, "exec format error", "")
	})

	DescribeTable("gives up after the time that it has", Label("delegate-deadline"), func(script string) {
		given, stderr := client("echo waiting >&2; " + script)
		began := time.Now()
		_, err := run(nstest.DeadlineWhen(func() bool { return stderr.String() != "" }), given)
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Hang))
		expectError(err, cni.CodeTryAgain, `plugin "ipam": no answer within `, "waiting")
	},
		Entry("one that hangs", "exec sleep 60"),
		Entry("one whose child hangs", "sleep 60"),
		Entry("one that ignores signals", "trap '' TERM INT HUP; exec sleep 60"),
		Entry("one that takes no input", "exec sleep 60 </dev/null"),
	)

	It("ends a delegate when it is told to end itself", func() {
		c, stderr := client("echo ready >&2; exec sleep 60")
		ctx, cancel := context.WithCancelCause(ctx)
		go func() {
			defer GinkgoRecover()
			Eventually(stderr.String).Should(Equal("ready\n"))
			cancel(errors.New("terminated"))
		}()
		_, err := run(ctx, c)
		expectError(err, cni.CodeTryAgain, `plugin "ipam": stopped: terminated`, "ready")
	})

	It("takes the answer of a delegate whose child holds the output open", func() {
		c, stderr := client("sleep 60 & echo $! >&2; echo '{}'")
		began := time.Now()
		Expect(run(ctx, c)).To(BeEquivalentTo("{}\n"))
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Hang))
		pid, err := strconv.Atoi(strings.TrimSpace(stderr.String()))
		Expect(err).NotTo(HaveOccurred())
		Expect(unix.Kill(pid, unix.SIGKILL)).To(Succeed(), "the child is not ours to end")
	})

	It("takes the delegate along when it is killed itself", Label("delegate-deadline"), func() {
		dir := GinkgoT().TempDir()
		install(dir, "ipam", "echo $$ >&2; exec sleep 60")
		parent := exec.Command("/proc/self/exe")
		parent.Env = append(os.Environ(), parentEnv+"="+dir)
		stderr, err := parent.StderrPipe()
		Expect(err).NotTo(HaveOccurred())
		Expect(parent.Start()).To(Succeed())
		var pid int
		_, err = fmt.Fscanln(stderr, &pid)
		Expect(err).NotTo(HaveOccurred())
		child, err := unix.PidfdOpen(pid, 0)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(unix.Close, child)
		Expect(parent.Process.Kill()).To(Succeed())
		_ = parent.Wait()
		fds := []unix.PollFd{{Fd: int32(child), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(nstest.Patience(nstest.Hang).Milliseconds()))
		Expect([]any{n, err}).To(HaveExactElements(1, nil), "the delegate lives")
	})
})

// broken is a standard error that cannot be written.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, unix.EPIPE }
