package trace

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACEEXIT |
	unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK

// stops are the signals that stop a process, and a new task's first stop.
var stops = []syscall.Signal{unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU}

// tracer is one [Run].
type tracer struct {
	root, exit int
	programs   []*Program
	tasks      map[int]*task
}

// task is one thread.
type task struct {
	tid     int
	started bool
	process *process
	entered *call  // the system call that it is in
	execs   string // the path of the execve that it is in
}

// process is what the threads of a process share.
type process struct {
	pid     int
	program *Program
	netlink map[uint64]uint64 // descriptor -> protocol
	wakers  map[uint64]bool   // descriptors of eventfd(2)
}

func newProcess(pid int, program *Program) *process {
	return &process{pid: pid, program: program, netlink: map[uint64]uint64{}, wakers: map[uint64]bool{}}
}

func newTracer(pid int, path string) *tracer {
	p := &Program{Path: path}
	root := &task{tid: pid, process: newProcess(pid, p)}
	return &tracer{root: pid, programs: []*Program{p}, tasks: map[int]*task{pid: root}}
}

// task finds a task, or gives a new one its place: a thread is of its process, and a
// process begins as a copy of its parent. Its first stop may come before the
// parent's event, which therefore is not needed.
func (t *tracer) task(tid int) *task {
	if found, ok := t.tasks[tid]; ok {
		return found
	}
	fresh := &task{tid: tid}
	leader := status(tid, "Tgid")
	if own, ok := t.tasks[int(leader)]; ok && leader != int64(tid) {
		fresh.process = own.process
	} else {
		fresh.process = newProcess(tid, t.programs[0])
		if above, ok := t.tasks[int(status(tid, "PPid"))]; ok {
			fresh.process.program, fresh.process.netlink = above.process.program, maps.Clone(above.process.netlink)
		}
	}
	t.tasks[tid] = fresh
	return fresh
}

// status is a number in /proc/<pid>/status, 0 when it cannot be read.
func status(pid int, key string) (n int64) {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if rest, ok := bytes.CutPrefix(lines.Bytes(), []byte(key+":")); ok {
			_, _ = fmt.Sscan(string(rest), &n)
		}
	}
	return n
}

func (t *tracer) event(task *task, event int) {
	switch event {
	case unix.PTRACE_EVENT_EXEC:
		program := &Program{Path: task.execs}
		t.programs = append(t.programs, program)
		// Descriptors are closed by exec, all but few.
		task.process = newProcess(task.tid, program)
		task.entered = nil
	case unix.PTRACE_EVENT_EXIT:
		if task.tid == task.process.pid {
			p := task.process.program
			p.Peak = max(p.Peak, 1024*status(task.tid, "VmHWM"))
		}
	}
}

// info is struct ptrace_syscall_info.
type info struct {
	op      uint8
	_       [3]uint8
	arch    uint32
	ip, sp  uint64
	number  uint64 // at entry; at exit the result
	args    [6]uint64
	_, more uint64
}

const (
	atEntry = 1 // PTRACE_SYSCALL_INFO_ENTRY
	atExit  = 2
)

// syscall handles a stop at the entry or the exit of a system call.
func (t *tracer) syscall(task *task) error {
	var i info
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(task.tid),
		unsafe.Sizeof(i), uintptr(unsafe.Pointer(&i)), 0, 0)
	if errno != 0 {
		return errno
	}
	switch i.op {
	case atEntry:
		task.entered = &call{task: task, number: int(i.number), args: i.args}
		task.entered.enter()
	case atExit:
		if task.entered != nil {
			task.entered.leave(int64(i.number))
			task.entered = nil
		}
	}
	return nil
}
