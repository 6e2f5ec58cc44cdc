package statefile_test

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/statefile"
)

// lockerEnv makes the test binary hold the lock until its input ends.
const lockerEnv = "STATEFILE_LOCK"

func lockForEver(path string) {
	held, err := statefile.LockFile(context.Background(), path, 0o600)
	if err != nil {
		println(err.Error())
		os.Exit(1)
	}
	os.Stdout.WriteString("locked\n")
	os.Stdin.Read(make([]byte, 1))
	held.Unlock()
	os.Exit(0)
}

// holdLock starts a process that holds the lock; release ends it.
func holdLock(path string) (pid int, release func()) {
	GinkgoHelper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), lockerEnv+"="+path)
	in, err := cmd.StdinPipe()
	Expect(err).NotTo(HaveOccurred())
	out, err := cmd.StdoutPipe()
	Expect(err).NotTo(HaveOccurred())
	Expect(cmd.Start()).To(Succeed())
	line := make([]byte, 7)
	Expect(second(out.Read(line))).To(Succeed())
	return cmd.Process.Pid, func() { in.Close(); cmd.Wait() }
}

var _ = Describe("a lock", func() {
	var path string
	BeforeEach(func() { path = filepath.Join(GinkgoT().TempDir(), "lock") })

	It("is an empty file with the mode asked for, and stays", func() {
		held, err := statefile.LockFile(context.Background(), path, 0o750)
		Expect(err).NotTo(HaveOccurred())
		Expect(held.Unlock()).To(Succeed())
		info, err := os.Stat(path)
		Expect(err).NotTo(HaveOccurred())
		Expect(info.Size()).To(BeZero())
		Expect(info.Mode()).To(Equal(fs.FileMode(0o750)))
	})

	It("that another process holds is given up at the deadline, naming the holder", Label("locks"), func() {
		pid, release := holdLock(path)
		defer release()
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		_, err := statefile.LockFile(ctx, path, 0o600)
		Expect(err).To(MatchError(statefile.ErrBusy))
		comm, readErr := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		Expect(readErr).NotTo(HaveOccurred())
		Expect(err).To(MatchError(fmt.Sprintf("lock %s: held by process %d (%s)", path, pid, comm[:len(comm)-1])))
	})

	It("in a directory has a deadline of its own", func() {
		d := open(filepath.Dir(path))
		_, release := holdLock(path)
		_, err := d.LockFile(context.Background(), "lock", 0o600, 20*time.Millisecond)
		Expect(err).To(MatchError(statefile.ErrBusy))
		Expect(err).To(MatchError(ContainSubstring(path)))
		release()
		held, err := d.LockFile(context.Background(), "lock", 0o600, 5*time.Second)
		Expect(err).NotTo(HaveOccurred())
		Expect(held.Unlock()).To(Succeed())
		Expect(second(d.LockFile(context.Background(), "../lock", 0o600, 0))).To(MatchError(fs.ErrInvalid))
	})

	It("is had as soon as the holder lets go", func() {
		_, release := holdLock(path)
		done := make(chan error)
		go func() {
			held, err := statefile.LockFile(context.Background(), path, 0o600)
			if err == nil {
				err = held.Unlock()
			}
			done <- err
		}()
		Consistently(done, "50ms").ShouldNot(Receive())
		release()
		Eventually(done).Should(Receive(BeNil()))
	})

	It("that was waited for too long is not kept", func() {
		_, release := holdLock(path)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		_, err := statefile.LockFile(ctx, path, 0o600)
		Expect(err).To(MatchError(statefile.ErrBusy))
		release()
		again, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		held, err := statefile.LockFile(again, path, 0o600)
		Expect(err).NotTo(HaveOccurred())
		Expect(held.Unlock()).To(Succeed())
	})

	It("reports a cancelled wait as that", func() {
		_, release := holdLock(path)
		defer release()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := statefile.LockFile(ctx, path, 0o600)
		Expect(err).To(MatchError(context.Canceled))
	})

	It("is never a link", func() {
		Expect(os.Symlink("/dev/null", path)).To(Succeed())
		_, err := statefile.LockFile(context.Background(), path, 0o600)
		Expect(err).To(MatchError(unix.ELOOP))
		Expect(err).To(MatchError(ContainSubstring(path)))
	})
})

var _ = DescribeTable("the holder in /proc/locks", func(line string, want int) {
	Expect(statefile.HolderOf(line, 1234, unix.Mkdev(8, 2))).To(Equal(want))
},
	Entry("same device", "1: FLOCK  ADVISORY  WRITE 4711 08:02:1234 0 EOF\n", 4711),
	Entry("another device number (btrfs)", "1: FLOCK  ADVISORY  WRITE 4711 00:1f:1234 0 EOF\n", 4711),
	Entry("the same device first",
		"1: FLOCK ADVISORY WRITE 1 00:1f:1234 0 EOF\n2: FLOCK ADVISORY WRITE 2 08:02:1234 0 EOF\n", 2),
	Entry("a waiter", "1: -> FLOCK  ADVISORY  WRITE 4711 08:02:1234 0 EOF\n", 0),
	Entry("another inode", "1: FLOCK  ADVISORY  WRITE 4711 08:02:11234 0 EOF\n", 0),
	Entry("another kind", "1: POSIX  ADVISORY  WRITE 4711 08:02:1234 0 EOF\n", 0),
	Entry("garbage", "1: FLOCK\n\n1: FLOCK a b c d\n", 0))

var _ = Describe("a killed writer", func() {
	It("leaves whole files only, at whatever point it dies", func() {
		seed := uint64(GinkgoRandomSeed())
		random := rand.New(rand.NewPCG(seed, seed))
		path := GinkgoT().TempDir()
		d := open(path)
		for range 60 {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), writerEnv+"="+path)
			Expect(cmd.Start()).To(Succeed())
			Eventually(func() []string { return entries(path) }).WithPolling(time.Millisecond).ShouldNot(BeEmpty())
			<-time.After(time.Duration(random.IntN(3000)) * time.Microsecond)
			Expect(cmd.Process.Kill()).To(Succeed())
			cmd.Wait()

			names, err := d.Names()
			Expect(err).NotTo(HaveOccurred())
			for _, name := range names {
				Expect(d.Read(name)).To(Equal(killContent), "%s, seed %d", name, seed)
				Expect(d.Remove(name)).To(Succeed())
			}
			Expect(d.Sweep()).To(Succeed())
			Expect(entries(path)).To(BeEmpty())
		}
	})
})
