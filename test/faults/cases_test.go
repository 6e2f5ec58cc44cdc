// Package faults_test kills the plugins at each of their system calls, and makes
// each of them fail, and sees that nothing is lost or left behind.
package faults_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/trace"
)

func TestMain(m *testing.M) {
	if program := os.Getenv(launchEnv); program != "" {
		fmt.Fprintln(os.Stderr, "launch:", launch(program))
		os.Exit(1)
	}
	nstest.Main(m)
}

var _ = It("a scenario is there of each plugin", func() {
	var have []string
	for _, s := range scenarios() {
		have = append(have, s.plugin())
	}
	Expect(have).To(ContainElements(nstest.Plugins()))
})

func TestFaults(t *testing.T) { nstest.RunSpecs(t, "faults: kills and errors at every system call") }

// nodesAtOnce: a call spends half of its time waiting for the kernel. A node takes as long to make as
// some cases.
const (
	nodesAtOnce  = 4
	casesPerNode = 4
)

// errRetire says that all is well, and that the node cannot be used again.
var errRetire = errors.New("retire the node")

// trial is one case of a scenario.
type trial interface {
	// play disturbs a call and judges what came of it. hit is false when the call was
	// over before the fault could happen.
	play(n *node) (hit bool, err error)
}

// tally is what came of the cases of a scenario.
type tally struct {
	sync.Mutex
	hits   int
	failed []string
}

func (t *tally) count(hit bool, err error) {
	t.Lock()
	defer t.Unlock()
	if hit {
		t.hits++
	}
	if err != nil {
		t.failed = append(t.failed, err.Error())
	}
}

// each plays a sample of the cases, several nodes at a time, and fails with all that went wrong.
func each[T trial](l *lesson, all []T) {
	GinkgoHelper()
	cases := sample(all)
	todo := make(chan T, len(cases))
	for _, c := range cases {
		todo <- c
	}
	close(todo)
	var t tally
	var workers sync.WaitGroup
	for range min(nodesAtOnce, (len(cases)+casesPerNode-1)/casesPerNode) {
		workers.Go(func() {
			defer GinkgoRecover()
			work(l, todo, &t)
		})
	}
	workers.Wait()
	AddReportEntry(fmt.Sprintf("%s: %d of %d cases (seed %d), %d hit", l.Name, len(cases), len(all), GinkgoRandomSeed(),
		t.hits))
	if len(t.failed) > 0 {
		Fail(fmt.Sprintf("%d of %d cases:\n    %s", len(t.failed), len(cases), strings.Join(t.failed, "\n    ")))
	}
	Expect(2*t.hits).To(BeNumerically(">", len(cases)), "%d of %d cases hit", t.hits, len(cases))
}

// tries is how often a case is played until its fault happens: threads may be quicker this time.
const tries = 3

// work plays cases on one node. Whatever happened to it, the next case finds a good one.
func work[T trial](l *lesson, todo <-chan T, t *tally) {
	var n *node
	for c := range todo {
		var hit bool
		var err error
		for try := 0; try < tries && !hit && err == nil; try++ {
			n, hit, err = turn(l, n, c)
		}
		t.count(hit, err)
	}
}

// turn plays a case on the node, or on a new one where that is nil. It returns the node
// for the next case, nil where it cannot be used again.
func turn[T trial](l *lesson, n *node, c T) (next *node, hit bool, err error) {
	if n == nil {
		n, err = l.take()
	}
	if err == nil {
		hit, err = c.play(n)
	}
	if err != nil || l.Cold {
		n.retire()
		n = nil
	}
	if errors.Is(err, errRetire) {
		err = nil
	}
	return n, hit, err
}

// sampleSize is how many cases of a scenario are played where not all are.
const sampleSize = 14

// sample chooses some of the cases, the same for the same seed, unless HAWSER_FAULTS is all or messages.
func sample[T any](cases []T) []T {
	if everything() {
		return cases
	}
	random := rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 0))
	random.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	size := sampleSize
	if nstest.Patience(time.Second) > time.Second { // an emulated machine
		size /= 4
	}
	return cases[:min(len(cases), size)]
}

// everything says that nothing is left out for want of time.
func everything() bool { return os.Getenv("HAWSER_FAULTS") == "all" || messages() }

// messages says that errors are those of netlink's messages alone, all of them.
func messages() bool { return os.Getenv("HAWSER_FAULTS") == "messages" }

// call is one watched call that is about to be made.
type call struct {
	N    int // of all threads and children together, from 1
	Name string
	Pid  int // of the process
	Main bool
	Args [6]uint64

	Program  string // that the process runs
	File     string // what a descriptor or a path leads to, as far as it is known
	Failures int    // in how many ways it can fail
}

func callName(nr uint64) string {
	if name, ok := watched[nr]; ok {
		return name
	}
	return older[nr]
}

// String is the call for people: "17 bridge openat /run/hawser/nft.lock".
func (c call) String() string {
	s := fmt.Sprintf("%d %s %s %s", c.N, c.Program, c.Name, c.File)
	switch c.Name {
	case "openat", "fcntl", "flock", "setsockopt":
		s += fmt.Sprintf(" %#x %#x", uint32(c.Args[1]), c.Args[2])
	}
	return strings.TrimSpace(s)
}

// ours reports whether the program is one of the plugins.
func (c call) ours() bool { return !strings.Contains(c.Program, "tables") }

func (c call) is(names ...string) bool { return slices.Contains(names, c.Name) }

// describe finds out what the call is about. The caller of it waits for our answer, so nothing moves.
func (c *call) describe(tid int) {
	program, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", tid))
	c.Program = filepath.Base(program)
	switch {
	case c.is("openat", "openat2", "mkdirat", "unlinkat", "readlinkat", "faccessat", "faccessat2", "newfstatat",
		"statx", "fchmodat", "utimensat", "mknodat"):
		c.File = pathAt(tid, c.Args[0], c.Args[1])
	case c.is("linkat", "renameat", "renameat2"):
		c.File = pathAt(tid, c.Args[2], c.Args[3])
	case c.is("symlinkat"):
		c.File = pathAt(tid, c.Args[1], c.Args[2])
	case c.is("execve", "open", "access", "readlink", "unlink"):
		c.File = trace.Text(tid, c.Args[0])
	case c.is("sendto") && c.Args[4] != 0 && family(tid, c.Args[4]) == unix.AF_NETLINK:
		c.File = "netlink"
	case c.is("read", "pread64", "readv", "write", "pwrite64", "writev", "close", "fstat", "getdents64", "fsync",
		"fdatasync", "ftruncate",
		"fchmod", "fcntl", "flock", "ioctl", "setns", "dup3", "dup2", "bind", "connect", "setsockopt", "getsockopt",
		"sendto", "sendmsg",
		"recvfrom", "recvmsg"):
		c.File = descriptor(tid, c.Args[0])
	}
}

func pathAt(tid int, dir, name uint64) string {
	path := ""
	if name != 0 {
		path = trace.Text(tid, name)
	}
	if filepath.IsAbs(path) || int32(dir) == unix.AT_FDCWD {
		return path
	}
	return filepath.Join(descriptor(tid, dir), path)
}

func descriptor(tid int, fd uint64) string {
	to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, int32(fd)))
	if err != nil {
		return fmt.Sprintf("fd %d", int32(fd))
	}
	if kind, _, ok := strings.Cut(to, ":["); ok {
		return kind
	}
	return to
}

func family(tid int, address uint64) uint16 {
	b := trace.Memory(tid, address, 2)
	if len(b) < 2 {
		return unix.AF_UNSPEC
	}
	return binary.NativeEndian.Uint16(b)
}

func poke(tid int, address uint64, data []byte) error {
	local := []unix.Iovec{{Base: &data[0]}}
	local[0].SetLen(len(data))
	n, err := unix.ProcessVMWritev(tid, local, []unix.RemoteIovec{{Base: uintptr(address), Len: len(data)}}, 0)
	if err == nil && n != len(data) {
		err = unix.EFAULT
	}
	return err
}

// watched are the calls that can fail or that change something outside of the
// process, by number. What the Go runtime does for itself (memory, threads, signals,
// polling) is not: where that fails it ends the process, which is a kill.
var watched = map[uint64]string{
	unix.SYS_OPENAT: "openat", unix.SYS_OPENAT2: "openat2", unix.SYS_MKDIRAT: "mkdirat", unix.SYS_LINKAT: "linkat",
	unix.SYS_SYMLINKAT: "symlinkat", unix.SYS_RENAMEAT: "renameat", unix.SYS_RENAMEAT2: "renameat2",
	unix.SYS_UNLINKAT: "unlinkat", unix.SYS_MKNODAT: "mknodat", unix.SYS_FCHMOD: "fchmod",
	unix.SYS_FCHMODAT: "fchmodat", unix.SYS_UTIMENSAT: "utimensat", unix.SYS_FTRUNCATE: "ftruncate",
	unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fdatasync", unix.SYS_READ: "read", unix.SYS_PREAD64: "pread64",
	unix.SYS_READV: "readv", unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "pwrite64", unix.SYS_WRITEV: "writev",
	unix.SYS_NEWFSTATAT: "newfstatat", unix.SYS_FSTAT: "fstat", unix.SYS_STATX: "statx",
	unix.SYS_GETDENTS64: "getdents64", unix.SYS_READLINKAT: "readlinkat", unix.SYS_FACCESSAT: "faccessat",
	unix.SYS_FACCESSAT2: "faccessat2", unix.SYS_CLOSE: "close", unix.SYS_DUP3: "dup3", unix.SYS_FCNTL: "fcntl",
	unix.SYS_FLOCK: "flock", unix.SYS_IOCTL: "ioctl", unix.SYS_PIPE2: "pipe2", unix.SYS_MEMFD_CREATE: "memfd_create",
	unix.SYS_PPOLL: "ppoll", unix.SYS_SOCKET: "socket", unix.SYS_BIND: "bind", unix.SYS_CONNECT: "connect",
	unix.SYS_SETSOCKOPT: "setsockopt", unix.SYS_GETSOCKOPT: "getsockopt", unix.SYS_SENDTO: "sendto",
	unix.SYS_SENDMSG: "sendmsg", unix.SYS_RECVFROM: "recvfrom", unix.SYS_RECVMSG: "recvmsg", unix.SYS_SETNS: "setns",
	unix.SYS_CLONE: "clone", unix.SYS_CLONE3: "clone3", unix.SYS_EXECVE: "execve", unix.SYS_WAIT4: "wait4",
	unix.SYS_WAITID: "waitid", unix.SYS_INOTIFY_INIT1: "inotify_init1",
	unix.SYS_INOTIFY_ADD_WATCH: "inotify_add_watch",
}

// changing are the calls that change something outside of the process, or may. A lock
// that is taken or given back is none, since it goes with the process.
var changing = strings.Fields("openat open mkdirat linkat symlinkat renameat renameat2 unlinkat unlink mknodat " +
	"fchmod fchmodat utimensat ftruncate write pwrite64 writev sendto sendmsg execve clone clone3 fork vfork")

// changes reports whether the call changes something outside of the process.
func (c call) changes(tid int) bool {
	switch c.Name {
	case "openat":
		return c.Args[2]&(unix.O_CREAT|unix.O_TRUNC) != 0 // a file that O_TMPFILE makes has no name
	case "open":
		return c.Args[1]&(unix.O_CREAT|unix.O_TRUNC) != 0
	case "sendto":
		return !asks(tid, c)
	}
	return c.is(changing...)
}

// asks reports whether a message to the kernel is a question.
func asks(tid int, c call) bool {
	header := trace.Memory(tid, c.Args[1], unix.SizeofNlMsghdr)
	if len(header) < unix.SizeofNlMsghdr {
		return false
	}
	switch typ := binary.NativeEndian.Uint16(header[4:]); {
	case typ>>8 == unix.NFNL_SUBSYS_NFTABLES: // changes come in a batch
		return true
	case typ>>8 == 0:
		return typ >= unix.RTM_BASE && typ%4 == unix.RTM_GETLINK%4
	}
	return false
}
