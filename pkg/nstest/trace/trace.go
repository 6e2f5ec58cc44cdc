// Package trace runs a program and counts what it asks of the kernel: the programs that it starts, its system
// calls, its netlink messages, its sleeps. It is a small ptrace(2) tracer, since the text of strace(1) does not
// tell netlink messages reliably. Tests import it, and nothing else.
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

// Command is what [Run] starts.
type Command struct {
	Path  string
	Args  []string // without the program itself
	Env   []string // all of it
	Stdin string
	// Kill, if it is there, is asked before each system call whether all are to be killed instead.
	Kill func(number int) bool
}

// Record is what a command, and all that it started, did.
type Record struct {
	Programs       []*Program // in the order of their start; the first is the command
	Stdout, Stderr string
	Exit           int // its status, or 128 plus the signal that ended it
}

// Program is one execve(2) and what followed it, with the processes that it forked and the threads of all.
type Program struct {
	Path     string
	Syscalls int // all of them
	Calls    int // those that the program itself asks for, not its runtime: see [Run]
	Sends    int // system calls that sent netlink messages
	Messages []Message
	Received int64    // bytes of netlink messages that came back
	Read     int64    // bytes read from files, directories and pipes
	Sleeps   []string // waits that lasted until their time was over: see [Run]
	Threads  []string // files of a thread of its own, below /proc, that it opened
	Peak     int64    // the largest resident set of one of its processes, in bytes
}

// Name is the last element of the path.
func (p *Program) Name() string { return filepath.Base(p.Path) }

// Names are the names of the programs.
func (r *Record) Names() (names []string) {
	for _, p := range r.Programs {
		names = append(names, p.Name())
	}
	return names
}

// limit is when a command that does not end is killed.
const limit = 5 * time.Minute

// Run runs a command to its end, in the namespaces of the calling thread, which it keeps for itself meanwhile.
//
// Calls leaves out what the Go runtime does more or less often from run to run, and the more often the busier
// the machine is: futex, memory, signals, threads, waits, and calls that come again since a signal interrupted
// them or nothing was there yet. A sleep is a wait that ended by its timeout: a timer of Go ends epoll_pwait
// that way. The runtime's own naps of 10 ms and less, nanosleep and timed futexes, are none.
func Run(c Command) (*Record, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var files [3]*os.File // the command's ends
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
		// Only our own: other threads of this process have children too.
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
			// A thread that another one's exit_group has killed is gone already.
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

// stopped handles one stop and lets the task go on.
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
	case slices.Contains(stops, signal): // a group-stop, which PTRACE_TRACEME cannot tell apart
	default:
		deliver = int(signal)
	}
	return unix.PtraceSyscall(tid, deliver)
}

const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACEEXIT |
	unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK

// stops are the signals that stop a process, and a new task's first stop.
var stops = []syscall.Signal{unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU}

// tracer is one [Run].
type tracer struct {
	root, exit int
	programs   []*Program
	tasks      map[int]*task
	kill       func(number int) bool // of the command
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

// task finds a task, or gives a new one its place: a thread is of its process, and a process begins as a copy
// of its parent. Its first stop may come before the parent's event, which therefore is not needed.
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

// Status is a number in /proc/<pid>/status, 0 when it cannot be read.
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
		// Descriptors are closed by exec, all but few.
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
	Index    int32 // of the link that a message about a link or an address is about; 0: none
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
	// The nftables and conntrack messages that ask.
	tableGets = []uint16{unix.NFT_MSG_GETTABLE, unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_GETRULE, unix.NFT_MSG_GETSET,
		unix.NFT_MSG_GETSETELEM, unix.NFT_MSG_GETOBJ, unix.NFT_MSG_GETFLOWTABLE}
	flowGets = []uint16{1, 4} // IPCTNL_MSG_CT_GET, IPCTNL_MSG_CT_GET_CTRZERO
)

const firstRoute = unix.RTM_NEWLINK

// Dump says that the message asks for all there is, or for all of one link ([Message.Index]).
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

// String is the kernel's name of the message: "RTM_GETLINK dump".
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
