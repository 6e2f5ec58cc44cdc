package invoke_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/invoke"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = Describe("a plugin that is being installed", func() {
	var (
		r      invoke.Runner
		file   string
		writer *os.File
	)
	BeforeEach(func() {
		r, _ = runner("echo done")
		r.Limits.Busy = nstest.Patience(5 * time.Second)
		file = filepath.Join(r.Path, "ipam")
		var err error
		writer, err = os.OpenFile(file, os.O_WRONLY, 0)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = writer.Close() })
		if err := exec.Command(file).Run(); !errors.Is(err, unix.ETXTBSY) {
			Skip("this kernel runs files that are being written")
		}
	})

	// watched waits until Run waits: this process has an inotify descriptor then.
	watched := func() {
		Eventually(func() bool {
			fds, _ := filepath.Glob("/proc/self/fd/*")
			for _, fd := range fds {
				if to, _ := os.Readlink(fd); to == "anon_inode:inotify" {
					return true
				}
			}
			return false
		}).WithTimeout(nstest.Patience(5 * time.Second)).WithPolling(time.Millisecond).Should(BeTrue())
	}

	type outcome struct {
		out []byte
		err error
	}
	start := func(ctx context.Context) chan outcome {
		done := make(chan outcome, 1)
		go func() { out, err := r.Run(ctx, "ipam", "ADD", nil); done <- outcome{out, err} }()
		return done
	}
	soon := nstest.Patience(time.Second)

	It("is run as soon as it is closed", func() {
		done := start(context.Background())
		watched()
		Expect(writer.Close()).To(Succeed())
		Eventually(done).WithTimeout(soon).Should(Receive(Equal(outcome{out: []byte("done\n")})))
	})

	It("is run as soon as another takes its place", func() {
		done := start(context.Background())
		watched()
		install(r.Path, "ipam", "echo new")
		Eventually(done).WithTimeout(soon).Should(Receive(Equal(outcome{out: []byte("new\n")})))
	})

	It("is not waited for without end: try again", func() {
		r.Limits.Busy = 50 * time.Millisecond
		_, err := r.Run(context.Background(), "ipam", "ADD", nil)
		expectError(err, cni.CodeTryAgain, `plugin file "`+file+`": still being written after 50ms`, "")
		Expect(errors.Is(err, unix.ETXTBSY)).To(BeTrue())
	})

	It("is not waited for when the call is ended", func() {
		ctx, cancel := context.WithCancelCause(context.Background())
		done := start(ctx)
		watched()
		cancel(errors.New("terminated"))
		var o outcome
		Eventually(done).WithTimeout(soon).Should(Receive(&o))
		expectError(o.err, cni.CodeTryAgain, "stopped: terminated", "")
	})

	It("leaves no descriptor behind", func() {
		r.Limits.Busy = time.Millisecond
		_, _ = r.Run(context.Background(), "ipam", "ADD", nil)
		fds, err := filepath.Glob("/proc/self/fd/*")
		Expect(err).NotTo(HaveOccurred())
		for _, fd := range fds {
			to, _ := os.Readlink(fd)
			Expect(to).NotTo(ContainSubstring("inotify"))
		}
	})
})
