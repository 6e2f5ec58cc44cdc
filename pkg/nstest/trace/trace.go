// Package trace runs a program and counts its requests to the kernel: the programs that it starts, its system calls,
// its netlink messages and its sleeps. It is a small ptrace(2) tracer, because the output of strace(1) does not show
// netlink messages reliably. Only tests import it.
package trace

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Command describes a program for [Run].
type Command struct {
	Path  string
	Args  []string // without the program itself
	Env   []string // the complete environment
	Stdin string
	// Kill, if not nil, is called before each system call. If it returns true, the command and its children are killed.
	Kill func(number int) bool
}

// Record describes the run of a command and of the programs that it started.
type Record struct {
	Programs       []*Program // in the order of their start; the first is the command
	Stdout, Stderr string
	Exit           int // the command's status, or 128 plus the signal that ended it
}

// Program is the run of one program from its execve(2), with the processes that it forked and with all threads.
type Program struct {
	Path     string
	Syscalls int // all system calls
	Calls    int // system calls of the program itself, not of its runtime: see [Run]
	Sends    int // system calls that sent netlink messages
	Messages []Message
	Received int64    // bytes of received netlink messages
	Read     int64    // bytes read from files, directories and pipes
	Sleeps   []string // waits that ended by their timeout: see [Run]
	Threads  []string // opened files below /proc that belong to a single thread
	Peak     int64    // the largest resident set of one of its processes, in bytes
}

// Name returns the last element of the path.
func (p *Program) Name() string { return filepath.Base(p.Path) }

// Names returns the names of the programs.
func (r *Record) Names() (names []string) {
	for _, p := range r.Programs {
		names = append(names, p.Name())
	}
	return names
}

// limit is the time after which a command is killed.
const limit = 5 * time.Minute

// Run runs a command to its end, in the namespaces of the calling thread, which it locks for that time.
//
// Calls omits system calls whose number differs between runs and grows with the load of the machine: futex, memory,
// signals, threads, waits, and calls that are repeated because a signal interrupted them or nothing could be read yet.
// A sleep is a wait that ended by its timeout; a timer of Go ends epoll_pwait in this way. The runtime's own nanosleep
// and timed futex of at most 10 ms are not sleeps.
func Run(c Command) (*Record, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var files [3]*os.File // the command's ends of the pipes
	var outputs [2]<-chan string
	in, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	files[0] = in
	for i := range outputs {
		if files[i+1], outputs[i], err = collect(); err != nil {
			return nil, err
		}
	}
	fds := []uintptr{files[0].Fd(), files[1].Fd(), files[2].Fd()}
	pid, err := syscall.ForkExec(c.Path, append([]string{c.Path}, c.Args...), &syscall.ProcAttr{
		Env: c.Env, Files: fds, Sys: &syscall.SysProcAttr{Ptrace: true, Setpgid: true}})
	for _, f := range files {
		_ = f.Close()
	}
	go func() {
		_, _ = io.WriteString(w, c.Stdin)
		_ = w.Close()
	}()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	defer time.AfterFunc(limit, func() { _ = unix.Kill(-pid, unix.SIGKILL) }).Stop()
	t := newTracer(pid, c.Path)
	t.kill = c.Kill
	err = t.follow()
	r := &Record{Programs: t.programs, Stdout: <-outputs[0], Stderr: <-outputs[1], Exit: t.exit}
	return r, err
}

// collect returns the writing end of a pipe, and a channel that receives all output when no process has that end open.
func collect() (*os.File, <-chan string, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	text := make(chan string, 1)
	go func() {
		all, _ := io.ReadAll(r)
		_ = r.Close()
		text <- string(all)
	}()
	return w, text, nil
}

// follow lets the tracees run from stop to stop until none is left.
func (t *tracer) follow() error {
	for {
		var ws unix.WaitStatus
		// WNOTHREAD excludes the children of other threads of this process.
		tid, err := unix.Wait4(-1, &ws, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD):
			return nil
		case err != nil:
			return fmt.Errorf("wait: %w", err)
		case ws.Exited() || ws.Signaled():
			t.ended(tid, ws)
		case ws.Stopped():
			// The thread no longer exists if another thread called exit_group.
			if err := t.stopped(tid, ws); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("trace %d: %w", tid, err)
			}
		}
	}
}

func (t *tracer) ended(tid int, ws unix.WaitStatus) {
	delete(t.tasks, tid)
	if tid != t.root {
		return
	}
	t.exit = ws.ExitStatus()
	if ws.Signaled() {
		t.exit = 128 + int(ws.Signal())
	}
}

// stopped handles one stop and resumes the task.
func (t *tracer) stopped(tid int, ws unix.WaitStatus) error {
	task := t.task(tid)
	deliver := 0
	switch signal := ws.StopSignal(); {
	case signal == unix.SIGTRAP|0x80:
		if err := t.syscall(task); err != nil {
			return err
		}
	case signal == unix.SIGTRAP && ws.TrapCause() > 0:
		t.event(task, ws.TrapCause())
	case !task.started:
		task.started = true
		if tid == t.root {
			if err := unix.PtraceSetOptions(tid, options); err != nil {
				return err
			}
		}
	case slices.Contains(stops, signal): // maybe a group-stop, which PTRACE_TRACEME cannot distinguish
	default:
		deliver = int(signal)
	}
	return unix.PtraceSyscall(tid, deliver)
}

const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACEEXIT |
	unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK

// stops has the signals that stop a process. SIGSTOP is also the first stop of a new task.
var stops = []syscall.Signal{unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU}

// tracer is the state of one [Run].
type tracer struct {
	root, exit int
	programs   []*Program
	tasks      map[int]*task
	kill       func(number int) bool // Command.Kill
}

// task is one thread.
type task struct {
	tid     int
	started bool
	process *process
	entered *call  // the system call in progress
	execs   string // the path of the last execve
}

// process has the state that the threads of a process share.
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

// task returns a task, and adds it if it is new. A thread belongs to its process, and a new process begins as a copy of
// its parent. The parent's event is not used, because the first stop of a new task may precede it.
func (t *tracer) task(tid int) *task {
	if found, ok := t.tasks[tid]; ok {
		return found
	}
	fresh := &task{tid: tid}
	leader := Status(tid, "Tgid")
	if own, ok := t.tasks[int(leader)]; ok && leader != int64(tid) {
		fresh.process = own.process
	} else {
		fresh.process = newProcess(tid, t.programs[0])
		if above, ok := t.tasks[int(Status(tid, "PPid"))]; ok {
			fresh.process.program, fresh.process.netlink = above.process.program, maps.Clone(above.process.netlink)
		}
	}
	t.tasks[tid] = fresh
	return fresh
}

// Status returns a number in /proc/<pid>/status, or 0 if it cannot be read.
func Status(pid int, key string) (n int64) {
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
		// execve closes most descriptors.
		task.process = newProcess(task.tid, program)
		task.entered = nil
	case unix.PTRACE_EVENT_EXIT:
		if task.tid == task.process.pid {
			p := task.process.program
			p.Peak = max(p.Peak, 1024*Status(task.tid, "VmHWM"))
		}
	}
}

// info is struct ptrace_syscall_info.
type info struct {
	op      uint8
	_       [3]uint8
	arch    uint32
	ip, sp  uint64
	number  uint64 // the number at entry, the result at exit
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
		if t.kill != nil && t.kill(int(i.number)) {
			return unix.Kill(-t.root, unix.SIGKILL)
		}
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

// Message is a netlink message that a program sent.
type Message struct {
	Protocol int // unix.NETLINK_ROUTE
	Type     uint16
	Flags    uint16
	Index    int32 // link of a message about a link or an address; otherwise 0
}

func messages(protocol uint64, b []byte) (all []Message) {
	for len(b) >= unix.SizeofNlMsghdr {
		n := binary.NativeEndian.Uint32(b)
		if n < unix.SizeofNlMsghdr {
			break
		}
		m := Message{Protocol: int(protocol), Type: binary.NativeEndian.Uint16(b[4:]),
			Flags: binary.NativeEndian.Uint16(b[6:])}
		if m.Protocol == unix.NETLINK_ROUTE && m.Type < unix.RTM_NEWROUTE && len(b) >= 24 {
			m.Index = int32(binary.NativeEndian.Uint32(b[20:]))
		}
		all = append(all, m)
		b = b[min(len(b), int(n+3)&^3):]
	}
	return all
}

var (
	routeVerbs   = [4]string{"RTM_NEW", "RTM_DEL", "RTM_GET", "RTM_SET"}
	routeObjects = map[uint16]string{0: "LINK", 1: "ADDR", 2: "ROUTE", 3: "NEIGH", 4: "RULE", 5: "QDISC", 6: "TCLASS",
		7:  "TFILTER",
		16: "NETCONF", 17: "MDB", 18: "NSID", 19: "STATS", 24: "VLAN"}
	tableWords = []string{"NEWTABLE", "GETTABLE", "DELTABLE", "NEWCHAIN", "GETCHAIN", "DELCHAIN", "NEWRULE", "GETRULE",
		"DELRULE",
		"NEWSET", "GETSET", "DELSET", "NEWSETELEM", "GETSETELEM", "DELSETELEM", "NEWGEN", "GETGEN", "TRACE",
		"NEWOBJ", "GETOBJ", "DELOBJ", "GETOBJ_RESET", "NEWFLOWTABLE", "GETFLOWTABLE", "DELFLOWTABLE"}
	// The nftables and conntrack messages that request objects.
	tableGets = []uint16{unix.NFT_MSG_GETTABLE, unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_GETRULE, unix.NFT_MSG_GETSET,
		unix.NFT_MSG_GETSETELEM, unix.NFT_MSG_GETOBJ, unix.NFT_MSG_GETFLOWTABLE}
	flowGets = []uint16{1, 4} // IPCTNL_MSG_CT_GET, IPCTNL_MSG_CT_GET_CTRZERO
)

const firstRoute = unix.RTM_NEWLINK

// Dump reports whether the message requests all objects, or all objects of one link ([Message.Index]).
func (m Message) Dump() bool {
	if m.Flags&unix.NLM_F_DUMP != unix.NLM_F_DUMP {
		return false
	}
	switch subsystem, word := m.Type>>8, m.Type&0xff; m.Protocol {
	case unix.NETLINK_ROUTE:
		return m.Type >= firstRoute && (m.Type-firstRoute)%4 == 2
	case unix.NETLINK_NETFILTER:
		return subsystem == unix.NFNL_SUBSYS_NFTABLES && slices.Contains(tableGets, word) ||
			subsystem == unix.NFNL_SUBSYS_CTNETLINK && slices.Contains(flowGets, word)
	}
	return true
}

// String returns the kernel's name of the message, such as "RTM_GETLINK dump".
func (m Message) String() string {
	s := fmt.Sprintf("protocol %d type %d", m.Protocol, m.Type)
	switch subsystem, word := m.Type>>8, m.Type&0xff; m.Protocol {
	case unix.NETLINK_ROUTE:
		if object, ok := routeObjects[(m.Type-firstRoute)/4]; ok && m.Type >= firstRoute {
			s = routeVerbs[(m.Type-firstRoute)%4] + object
		}
	case unix.NETLINK_NETFILTER:
		switch {
		case m.Type == unix.NFNL_MSG_BATCH_BEGIN:
			s = "BATCH_BEGIN"
		case m.Type == unix.NFNL_MSG_BATCH_END:
			s = "BATCH_END"
		case subsystem == unix.NFNL_SUBSYS_NFTABLES && int(word) < len(tableWords):
			s = "NFT_" + tableWords[word]
		case subsystem == unix.NFNL_SUBSYS_CTNETLINK:
			s = fmt.Sprintf("CT message %d", word)
		}
	}
	if m.Index != 0 {
		s += fmt.Sprintf(" of link %d", m.Index)
	}
	if m.Dump() {
		s += " dump"
	}
	return s
}
