package trace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// runtimeCalls are the system calls that a Go runtime or a C library makes for itself.
var runtimeCalls = []int{
	unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_RESTART_SYSCALL,
	unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_MPROTECT, unix.SYS_BRK, unix.SYS_MINCORE,
	unix.SYS_CLONE, unix.SYS_CLONE3, unix.SYS_GETTID, unix.SYS_SET_TID_ADDRESS, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_TGKILL,
	unix.SYS_GETPID,
	unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EVENTFD2,
	unix.SYS_PRLIMIT64, unix.SYS_GETRANDOM, unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
}

// waits has the names of the system calls that can end by a timeout.
var waits = map[int]string{
	unix.SYS_NANOSLEEP: "nanosleep", unix.SYS_CLOCK_NANOSLEEP: "clock_nanosleep", unix.SYS_FUTEX: "futex",
	unix.SYS_EPOLL_PWAIT: "epoll_pwait", unix.SYS_EPOLL_PWAIT2: "epoll_pwait2", epollWaitCall: "epoll_wait",
	unix.SYS_PPOLL: "ppoll", pollCall: "poll", unix.SYS_PSELECT6: "pselect6",
}

// nap is the longest sleep of a runtime: Go's watchdog thread sleeps between its checks.
const nap = 10 * time.Millisecond

// call is one system call of a task.
type call struct {
	task   *task
	number int
	args   [6]uint64
}

func (c *call) enter() {
	process, program := c.task.process, c.task.process.program
	program.Syscalls++
	if c.isOwn() {
		program.Calls++
	}
	switch c.number {
	case unix.SYS_EXECVE:
		c.task.execs = c.text(c.args[0])
	case unix.SYS_EXECVEAT:
		c.task.execs = c.text(c.args[1])
	case unix.SYS_OPENAT:
		path := c.text(c.args[1])
		if strings.HasPrefix(path, "/proc/thread-self/") || strings.Contains(path, "/task/") {
			program.Threads = append(program.Threads, path)
		}
	case unix.SYS_CLOSE:
		delete(process.netlink, c.args[0])
		delete(process.wakers, c.args[0])
	}
}

// isOwn reports whether the program itself makes the call. The calls of its runtime are not its own, and neither are
// waits, because other processes may end them early and often.
func (c *call) isOwn() bool {
	if _, wait := waits[c.number]; wait || slices.Contains(runtimeCalls, c.number) {
		return false
	}
	return c.number != unix.SYS_READ && c.number != unix.SYS_WRITE || !c.task.process.wakers[c.args[0]]
}

// repeated has the results of calls that are repeated, because a signal of the scheduler interrupted them, which the
// kernel shows only to tracers, or because nothing could be read or written yet.
var repeated = []int64{-int64(unix.EINTR), -int64(unix.EAGAIN), -512, -513, -514, -516} // ERESTARTSYS to _RESTARTBLOCK

func (c *call) leave(result int64) {
	process, program := c.task.process, c.task.process.program
	if slices.Contains(repeated, result) && c.isOwn() {
		program.Calls--
	}
	switch c.number {
	case unix.SYS_SOCKET:
		if result >= 0 && c.args[0] == unix.AF_NETLINK {
			process.netlink[uint64(result)] = c.args[2]
		} else if result >= 0 {
			delete(process.netlink, uint64(result))
		}
	case unix.SYS_EVENTFD2: // with which Go wakes a thread that polls
		process.wakers[uint64(result)] = true
	case unix.SYS_SENDTO, unix.SYS_WRITE, unix.SYS_SENDMSG, unix.SYS_SENDMMSG, unix.SYS_WRITEV:
		if protocol, ok := process.netlink[c.args[0]]; ok && result > 0 {
			program.Sends++
			program.Messages = append(program.Messages, messages(protocol, c.sent(result))...)
		}
	case unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_READ, unix.SYS_PREAD64, unix.SYS_GETDENTS64:
		if _, ok := process.netlink[c.args[0]]; ok {
			program.Received += max(result, 0)
		} else {
			program.Read += max(result, 0)
		}
	default:
		if d, ok := c.slept(result); ok {
			program.Sleeps = append(program.Sleeps, fmt.Sprintf("%s for %v", waits[c.number], d))
		}
	}
}

func (c *call) sent(n int64) []byte {
	switch c.number {
	case unix.SYS_SENDTO, unix.SYS_WRITE:
		return c.bytes(c.args[1], uint64(n))
	case unix.SYS_WRITEV:
		return c.vector(c.args[1], c.args[2])
	case unix.SYS_SENDMSG:
		return c.header(c.args[1])
	}
	var all []byte
	for i := range uint64(n) { // struct mmsghdr
		all = append(all, c.header(c.args[1]+64*i)...)
	}
	return all
}

// header reads the data to which a struct msghdr points.
func (c *call) header(at uint64) []byte {
	h := c.bytes(at, 56)
	return c.vector(word(h, 16), word(h, 24))
}

func (c *call) vector(at, n uint64) (all []byte) {
	v := c.bytes(at, 16*n)
	for i := range n {
		all = append(all, c.bytes(word(v, 16*i), word(v, 16*i+8))...)
	}
	return all
}

func word(b []byte, at uint64) uint64 {
	if at+8 > uint64(len(b)) {
		return 0
	}
	return binary.NativeEndian.Uint64(b[at:])
}

func (c *call) bytes(at, n uint64) []byte { return Memory(c.task.tid, at, n) }

func (c *call) text(at uint64) string { return Text(c.task.tid, at) }

// Memory reads n bytes of a thread's memory. The result is shorter if some of them cannot be read.
func Memory(tid int, at, n uint64) []byte {
	b := make([]byte, min(n, 1<<24))
	if len(b) == 0 {
		return nil
	}
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	got, _ := unix.ProcessVMReadv(tid, local, []unix.RemoteIovec{{Base: uintptr(at), Len: len(b)}}, 0)
	return b[:max(got, 0)]
}

// Text reads a text that ends with a zero byte.
func Text(tid int, at uint64) string {
	// Two reads, because the text may end in the last page that is mapped.
	text, _, _ := bytes.Cut(append(Memory(tid, at, 4096-at%4096), Memory(tid, (at|4095)+1, 4096)...), []byte{0})
	return string(text)
}

// slept reports whether a call waited until its timeout, and how long.
func (c *call) slept(result int64) (time.Duration, bool) {
	errno := unix.Errno(-result)
	switch c.number {
	case unix.SYS_NANOSLEEP:
		d := c.time(c.args[0])
		return d, d > nap
	case unix.SYS_CLOCK_NANOSLEEP:
		return c.time(c.args[2]), true
	case unix.SYS_FUTEX:
		d := c.time(c.args[3])
		return d, d > nap && errno == unix.ETIMEDOUT
	case unix.SYS_EPOLL_PWAIT, pollCall, epollWaitCall:
		ms := int32(c.args[3])
		if c.number == pollCall {
			ms = int32(c.args[2])
		}
		return time.Duration(ms) * time.Millisecond, ms > 0 && result == 0
	case unix.SYS_EPOLL_PWAIT2:
		d := c.time(c.args[3])
		return d, d > 0 && result == 0
	case unix.SYS_PPOLL:
		d := c.time(c.args[2])
		return d, d > 0 && result == 0
	case unix.SYS_PSELECT6:
		d := c.time(c.args[4])
		return d, d > 0 && result == 0
	}
	return 0, false
}

// time reads a struct timespec. It returns 0 for address 0.
func (c *call) time(at uint64) time.Duration {
	if at == 0 {
		return 0
	}
	b := c.bytes(at, 16)
	return time.Duration(word(b, 0))*time.Second + time.Duration(word(b, 8))
}
