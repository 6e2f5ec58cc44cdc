package tool

import (
	"os"
	"path/filepath"
	"runtime"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

var _ = Describe("a directory that inotify cannot watch", Label("install"), func() {
	It("has no events for which hawser install --loop would wait forever", func() {
		dir := filepath.Join(GinkgoT().TempDir(), "bin")
		Expect(os.Mkdir(dir, 0o700)).To(Succeed())
		Expect(os.Chmod(filepath.Dir(dir), 0o755)).To(Succeed())
		var w dirWatch
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // the thread ends with the goroutine, because its user is another one
			if err = unix.Setfsuid(65534); err == nil {
				w, err = watchDir(dir)
			}
		}()
		Eventually(done).Should(BeClosed())
		Expect(err).To(MatchError(dir + ": inotify: permission denied"))
		Expect(w.events).To(BeNil())
	})
})
