package faults_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/trace"
)

// failure is one way in which a call fails.
type failure struct {
	errno unix.Errno
	// refused means that the call, which sends a netlink message, succeeds, and that the kernel's answer is the error.
	refused bool
}

func (f failure) String() string {
	name := unix.ErrnoName(f.errno)
	if f.refused {
		return "refused with " + name
	}
	return name
}

func fails(errnos ...unix.Errno) []failure {
	var all []failure
	for _, e := range errnos {
		all = append(all, failure{errno: e})
	}
	return all
}

// failures returns the ways in which the call can fail. iptables ignores some errors and then creates a wrong rule, so
// that only its start and its commit fail.
func (c call) failures(tid int) []failure {
	if !c.ours() && !c.is("execve", "sendmsg") {
		return nil
	}
	switch c.Name {
	case "openat", "open", "openat2":
		return c.openFailures()
	case "read", "pread64", "readv":
		switch c.File {
		case "anon_inode": // with which threads of the Go runtime wake each other
			return nil
		case "pipe":
			return fails(unix.EINTR)
		}
		if strings.HasPrefix(c.File, "/proc/sys/") { // other errors mean that it can only be written
			return fails(unix.ENOMEM, unix.EINTR)
		}
		return fails(unix.EIO, unix.EINTR)
	case "write", "pwrite64", "writev":
		return c.writeFailures()
	case "sendto", "sendmsg":
		all := interruptible(tid, c.Args[0], unix.ENOBUFS, unix.EPERM)
		if c.File == "netlink" && c.Name == "sendto" && c.ours() {
			all = append(all, failure{unix.EPERM, true}, failure{unix.ENOMEM, true}, failure{unix.EBUSY, true})
		}
		return all
	case "recvfrom", "recvmsg":
		return interruptible(tid, c.Args[0], unix.ENOBUFS, unix.ENOMEM)
	case "connect":
		return interruptible(tid, c.Args[0], unix.EAGAIN)
	case "fstat":
		if c.File == "net" { // /proc/thread-self/ns/net
			return fails(unix.ENOMEM)
		}
	case "close":
		if writable(tid, c.Args[0]) {
			return fails(unix.EIO)
		}
		return nil
	case "fcntl":
		switch c.Args[1] {
		case unix.F_DUPFD, unix.F_DUPFD_CLOEXEC:
			return fails(unix.EMFILE)
		case unix.F_SETLK, unix.F_SETLKW, unix.F_OFD_SETLK, unix.F_OFD_SETLKW:
			return fails(unix.ENOLCK, unix.EINTR)
		}
		return nil
	}
	return fails(possible[c.Name]...)
}

// possible has the errors of calls that do not depend on their arguments. Errors that mean that an object does not
// exist, and errors that only a bug can cause, are omitted.
var possible = map[string][]unix.Errno{
	"mkdirat": {unix.ENOSPC, unix.EACCES, unix.EROFS}, "linkat": {unix.ENOSPC, unix.EIO, unix.EPERM},
	"symlinkat": {unix.ENOSPC, unix.EACCES}, "renameat": {unix.ENOSPC, unix.EIO, unix.EACCES},
	"renameat2": {unix.ENOSPC, unix.EIO, unix.EACCES}, "unlinkat": {unix.EIO, unix.EBUSY, unix.EROFS, unix.EACCES},
	"unlink": {unix.EIO, unix.EACCES}, "mknodat": {unix.EPERM}, "fchmod": {unix.EPERM, unix.EIO},
	"fchmodat": {unix.EPERM, unix.EIO}, "utimensat": {unix.EIO, unix.EPERM, unix.EROFS},
	"ftruncate": {unix.EIO, unix.EINTR}, "fsync": {unix.EIO, unix.ENOSPC}, "fdatasync": {unix.EIO, unix.ENOSPC},
	"newfstatat": {unix.EACCES, unix.EIO, unix.ENOMEM}, "fstat": {unix.EIO, unix.ENOMEM},
	"statx": {unix.EACCES, unix.EIO}, "getdents64": {unix.EIO, unix.ENOMEM}, "readlinkat": {unix.EACCES, unix.EIO},
	"readlink": {unix.EIO}, "faccessat": {unix.EACCES, unix.EIO}, "faccessat2": {unix.EACCES, unix.EIO},
	"access": {unix.EIO}, "dup3": {unix.EBUSY}, "dup2": {unix.EBUSY}, "flock": {unix.EINTR, unix.ENOLCK, unix.EIO},
	"pipe2": {unix.EMFILE, unix.ENFILE}, "pipe": {unix.EMFILE}, "memfd_create": {unix.EMFILE, unix.ENOMEM},
	"poll": {unix.EINTR, unix.ENOMEM}, "ppoll": {unix.EINTR, unix.ENOMEM}, "select": {unix.EINTR, unix.ENOMEM},
	"socket": {unix.EMFILE, unix.ENOBUFS, unix.EPERM}, "bind": {unix.ENOMEM},
	"setsockopt": {unix.ENOMEM, unix.EPERM, unix.ENOPROTOOPT}, "getsockopt": {unix.ENOMEM},
	"setns": {unix.EPERM, unix.ENOMEM}, "clone": {unix.EAGAIN, unix.ENOMEM}, "clone3": {unix.EAGAIN},
	"fork": {unix.EAGAIN}, "vfork": {unix.EAGAIN}, "execve": {unix.EACCES, unix.ENOMEM, unix.EIO},
	"wait4": {unix.EINTR}, "waitid": {unix.EINTR}, "inotify_init1": {unix.EMFILE},
	"inotify_add_watch": {unix.ENOSPC},
}

func (c call) openFailures() []failure {
	flags := c.Args[2]
	if c.Name == "open" {
		flags = c.Args[1]
	}
	switch {
	case strings.HasPrefix(c.File, "/sys/kernel/mm/"): // the Go runtime's own
		return nil
	case strings.HasPrefix(c.File, "/run/netns/") || strings.HasPrefix(c.File, "/proc/") &&
		flags&(unix.O_WRONLY|unix.O_RDWR) == 0:
		return fails(unix.EMFILE, unix.ENOMEM, unix.EINTR)
	case flags&(unix.O_CREAT|unix.O_TMPFILE&^unix.O_DIRECTORY) != 0:
		return fails(unix.ENOSPC, unix.EROFS, unix.EACCES, unix.EMFILE, unix.EIO, unix.EINTR)
	case flags&(unix.O_WRONLY|unix.O_RDWR) != 0:
		return fails(unix.EROFS, unix.EACCES, unix.EMFILE, unix.EIO, unix.EINTR)
	}
	return fails(unix.EACCES, unix.EMFILE, unix.ENOMEM, unix.EIO, unix.EINTR)
}

func (c call) writeFailures() []failure {
	switch {
	case c.File == "anon_inode":
		return nil
	case c.File == "pipe":
		return fails(unix.EINTR, unix.ENOMEM)
	case strings.HasPrefix(c.File, "/proc/sys/"):
		return fails(unix.EPERM, unix.EIO, unix.EINVAL, unix.EINTR)
	}
	return fails(unix.ENOSPC, unix.EIO, unix.EINTR)
}

// writable reports whether a descriptor is a regular file open for writing, whose close may report a failed write.
func writable(tid int, fd uint64) bool {
	var st unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", tid, int32(fd)), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return false
	}
	return flags(tid, fd)&(unix.O_WRONLY|unix.O_RDWR) != 0
}

// interruptible returns the failures of a call on a socket. A signal interrupts only a call that may block.
func interruptible(tid int, fd uint64, errnos ...unix.Errno) []failure {
	if flags(tid, fd)&unix.O_NONBLOCK == 0 {
		errnos = append(errnos, unix.EINTR)
	}
	return fails(errnos...)
}

func flags(tid int, fd uint64) (flags int) {
	info, _ := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", tid, int32(fd)))
	_, after, _ := strings.Cut(string(info), "flags:")
	_, _ = fmt.Sscanf(strings.TrimSpace(after), "%o", &flags)
	return flags
}

func (m *monitor) inject(n notification, c call) (response, bool) {
	all := c.failures(int(n.tid))
	if len(all) == 0 {
		return response{flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}, true
	}
	f := all[m.Pick%len(all)]
	m.out.Hit, m.out.Injected = &c, f
	if !f.refused {
		return response{errno: -int32(f.errno)}, true
	}
	request := trace.Memory(int(n.tid), n.args[1], n.args[2])
	if len(request) < max(int(n.args[2]), unix.SizeofNlMsghdr) {
		m.out.Hit = nil
		return response{flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}, true
	}
	m.refusals[answerTo{c.Pid, n.args[0]}] = negative(request, f.errno, port(c.Pid, n.args[0]))
	return response{value: int64(len(request))}, true
}

// answerTo is a socket on which a process waits for an answer.
type answerTo struct {
	pid int
	fd  uint64
}

// batchSize is the size of the message that begins a batch.
const batchSize = unix.SizeofNlMsghdr + 4

// negative returns the kernel's answer to a port, which refuses each request of a datagram, or the first of a batch.
func negative(datagram []byte, errno unix.Errno, port uint32) (answer []byte) {
	order, batch := binary.NativeEndian, false
	for len(datagram) >= unix.SizeofNlMsghdr {
		length := (int(order.Uint32(datagram)) + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1)
		message := datagram[:min(max(length, unix.SizeofNlMsghdr), len(datagram))]
		// RTM_NEWLINK has the same number, and is longer.
		if order.Uint16(message[4:]) == unix.NFNL_MSG_BATCH_BEGIN && length == batchSize {
			batch = true
		} else {
			answer = append(answer, refusal(message, errno, port)...)
			if batch {
				return answer
			}
		}
		datagram = datagram[len(message):]
	}
	return answer
}

// port returns the netlink port of a process's socket, or 0 if it has none.
func port(pid int, socket uint64) uint32 {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(process)
	fd, err := unix.PidfdGetfd(process, int(socket), 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	name, _ := unix.Getsockname(fd)
	if address, ok := name.(*unix.SockaddrNetlink); ok {
		return address.Pid
	}
	return 0
}

func refusal(request []byte, errno unix.Errno, port uint32) []byte {
	order := binary.NativeEndian
	m := make([]byte, unix.SizeofNlMsghdr+4, unix.SizeofNlMsghdr+4+len(request))
	order.PutUint32(m, uint32(cap(m)))
	order.PutUint16(m[4:], unix.NLMSG_ERROR)
	copy(m[8:12], request[8:12]) // the sequence number
	order.PutUint32(m[12:], port)
	order.PutUint32(m[16:], uint32(-int32(errno)))
	return append(m, request...)
}

// answer passes a refusal to a call that reads the kernel's answer.
func (m *monitor) answer(n notification, c call) (response, bool) {
	key := answerTo{c.Pid, n.args[0]}
	data, ok := m.refusals[key]
	if !ok || c.Name != "recvfrom" {
		return response{}, false
	}
	delete(m.refusals, key)
	tid := int(n.tid)
	err := poke(tid, n.args[1], data)
	if n.args[4] != 0 && err == nil {
		from := make([]byte, unix.SizeofSockaddrNetlink) // the kernel is port 0
		binary.NativeEndian.PutUint16(from, unix.AF_NETLINK)
		length := make([]byte, 4)
		binary.NativeEndian.PutUint32(length, uint32(len(from)))
		if err = poke(tid, n.args[4], from); err == nil {
			err = poke(tid, n.args[5], length)
		}
	}
	if err != nil {
		return response{errno: -int32(unix.EFAULT)}, true
	}
	return response{value: int64(len(data))}, true
}

// fault describes a kill or an error at a watched call.
type fault struct {
	At int // number of the call, 0 for none; an error hits the first call from there on that can fail

	// Changes counts only calls that change something outside of the process. A kill between two of them is like a kill
	// before the second.
	Changes bool

	Kill  bool // the plugin and its children are killed before the call
	Alone bool // only the plugin is killed, and its children continue

	Fail bool // the call is not made, and returns an error
	Pick int  // index of the error in the call's failures
}

// outcome is the result of a plugin's call.
type outcome struct {
	Stdout, Stderr string
	Exit           int // status, or 128 plus the signal that ended it
	Calls          []call
	Hit            *call // the call at which the fault happened, or nil
	Injected       failure
}

// notification and response are the kernel's struct seccomp_notif and its answer.
type notification struct {
	id         uint64
	tid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type response struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// monitor answers the reports of one call of a plugin.
type monitor struct {
	fault
	listener int
	plugin   int // its process, and the group of all
	began    bool
	pids     map[int]int     // of threads
	last     map[uint32]made // by thread
	refusals map[answerTo][]byte
	out      *outcome
}

// made is a call as the kernel sees it, and the file that it writes.
type made struct {
	nr   int32
	args [6]uint64
	file string
}

// limit is the maximum time of a call. No call in the specs has a reason to wait.
const limit = nstest.Hang

// run runs a program on the host and lets the fault happen. It returns when the
// program and all its children have ended.
func run(h *nstest.Host, p nstest.Program, f fault) (outcome, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return outcome{}, err
	}
	defer unix.Close(ours)
	cmd := exec.Command("/proc/self/exe", p.Args...)
	cmd.Env = append(append(os.Environ(), p.Env...), launchEnv+"="+p.Path)
	if f.Changes {
		cmd.Env = append(cmd.Env, changesEnv+"=1")
	}
	if waits() == 0 { // the kernel then reports a call again after a signal, as the Go runtime sends them
		cmd.Env = append(cmd.Env, "GODEBUG=asyncpreemptoff=1")
	}
	cmd.Stdin = strings.NewReader(p.Stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	h.Do(func() { err = cmd.Start() })
	_ = theirs.Close()
	if err != nil {
		return outcome{}, err
	}
	// Before Linux 6.11, a program's filter exists until its parent has waited for the program.
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	var out outcome
	m := &monitor{fault: f, plugin: cmd.Process.Pid, pids: map[int]int{}, last: map[uint32]made{},
		refusals: map[answerTo][]byte{}, out: &out}
	if m.listener, err = receiveListener(ours); err == nil {
		err = m.serve()
		_ = unix.Close(m.listener)
	}
	if err != nil {
		_ = unix.Kill(-m.plugin, unix.SIGKILL)
	}
	<-ended
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	out.Exit = ws.ExitStatus()
	if ws.Signaled() {
		out.Exit = 128 + int(ws.Signal())
	}
	out.Stdout, out.Stderr = stdout.String(), stderr.String()
	if err != nil {
		err = fmt.Errorf("%w; %s", err, out.Stderr)
	}
	return out, err
}

func socketPair() (ours int, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, nil, err
	}
	return fds[0], os.NewFile(uintptr(fds[1]), "launcher"), nil
}

func receiveListener(socket int) (int, error) {
	timeout := unix.Timeval{Sec: int64(nstest.Patience(limit).Seconds())}
	if err := unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return -1, err
	}
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	for errors.Is(err, unix.EINTR) {
		_, n, _, _, err = unix.Recvmsg(socket, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	}
	if err != nil {
		return -1, fmt.Errorf("no listener from the launcher: %w", err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return -1, fmt.Errorf("no listener from the launcher (%d messages): %w", len(msgs), cmp.Or(err, io.EOF))
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

// serve answers reports until all processes have ended.
func (m *monitor) serve() error {
	_ = unix.IoctlSetInt(m.listener, setFlags, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
	deadline := time.Now().Add(nstest.Patience(limit))
	for {
		fds := []unix.PollFd{{Fd: int32(m.listener), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(time.Until(deadline).Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0 || time.Now().After(deadline):
			return m.hung()
		case fds[0].Revents&unix.POLLIN != 0:
			if err := m.next(); err != nil {
				return err
			}
		default:
			return nil // all processes have ended
		}
	}
}

func (m *monitor) hung() error {
	var last []string
	for _, c := range m.out.Calls[max(0, len(m.out.Calls)-8):] {
		last = append(last, c.String())
	}
	return fmt.Errorf("did not end within %s; the last calls: %s", limit, strings.Join(last, "; "))
}

const setFlags = 0x40082104 // SECCOMP_IOCTL_NOTIF_SET_FLAGS

func (m *monitor) next() error {
	var n notification
	if errno := m.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)); errno != 0 {
		if errno == unix.ENOENT || errno == unix.EINTR { // the caller was killed
			return nil
		}
		return fmt.Errorf("receive a report: %w", errno)
	}
	r, answer := m.decide(n)
	if !answer {
		return nil
	}
	r.id = n.id
	if errno := m.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r)); errno != 0 && errno != unix.ENOENT {
		return fmt.Errorf("answer a report: %w", errno)
	}
	return nil
}

func (m *monitor) ioctl(request uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(m.listener), request, uintptr(arg))
	return errno
}

// decide returns the answer to a report: continue, or an error. It returns false if the caller was killed.
func (m *monitor) decide(n notification) (response, bool) {
	proceed := response{flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	name := callName(uint64(n.nr))
	if !m.began { // the launcher's calls are not the plugin's
		m.began = name == "execve"
		return proceed, true
	}
	if m.restarted(n, name) {
		return proceed, true
	}
	c := call{N: len(m.out.Calls) + 1, Name: name, Pid: m.pid(int(n.tid)), Args: n.args}
	if m.Changes && !c.changes(int(n.tid)) {
		return proceed, true
	}
	c.Main = c.Pid == m.plugin
	// Threads differ between runs, so that the call that can fail may be a later one.
	due := m.At > 0 && c.N >= m.At && m.out.Hit == nil
	if m.At == 0 || due {
		c.describe(int(n.tid))
		c.Failures = len(c.failures(int(n.tid)))
	}
	m.out.Calls = append(m.out.Calls, c)
	if r, ok := m.answer(n, c); ok {
		return r, true
	}
	if !due {
		return proceed, true
	}
	switch {
	case m.Kill:
		m.out.Hit = &c
		_ = unix.Kill(-m.plugin, unix.SIGKILL)
		return response{}, false
	case m.Alone:
		m.out.Hit = &c
		_ = unix.Kill(m.plugin, unix.SIGKILL)
	case m.Fail:
		return m.inject(n, c)
	}
	return proceed, true
}

// restarted reports whether the kernel makes the thread repeat its last call, as it does if a sysctl is written while
// links change. On a busy machine, this happens thousands of times.
func (m *monitor) restarted(n notification, name string) bool {
	was, is := m.last[n.tid], made{nr: n.nr, args: n.args}
	if name == "write" {
		is.file = descriptor(int(n.tid), n.args[0])
	}
	m.last[n.tid] = is
	return is == was && strings.HasPrefix(is.file, "/proc/sys/")
}

func (m *monitor) pid(tid int) int {
	if _, known := m.pids[tid]; !known {
		m.pids[tid] = int(trace.Status(tid, "Tgid"))
	}
	return m.pids[tid]
}

var _ = It("a write of a sysctl that the kernel repeats counts once", func() {
	m := &monitor{began: true, pids: map[int]int{}, last: map[uint32]made{}, out: &outcome{}}
	write := func(file string, times int) {
		f := nstest.Must(os.Open(file))
		DeferCleanup(f.Close)
		n := notification{tid: uint32(os.Getpid()), nr: unix.SYS_WRITE, args: [6]uint64{uint64(f.Fd()), 1, 2}}
		for range times {
			_, answered := m.decide(n)
			Expect(answered).To(BeTrue())
		}
	}
	write("/proc/sys/net/ipv4/ip_forward", 3)
	Expect(m.out.Calls).To(HaveLen(1))
	write("/proc/sys/net/ipv4/conf/all/forwarding", 2)
	Expect(m.out.Calls).To(HaveLen(2))
	write("/dev/null", 2)
	Expect(m.out.Calls).To(HaveLen(4))
})

const (
	// launchEnv makes this test binary run a program under a filter, which reports each watched call of all its threads
	// and children and waits for the monitor's answer.
	launchEnv = "FAULTS_LAUNCH"
	// changesEnv, if not empty, omits calls that change nothing.
	changesEnv = "FAULTS_CHANGES"

	// handOver is the launcher's end of a socket, over which the launcher sends the listener. The filter does not
	// report this call, because nothing reads the reports yet.
	handOver = 250
)

// launch becomes the program, under the filter. It returns only an error.
func launch(program string) error {
	runtime.LockOSThread() // the filter belongs to the thread, and exec keeps it
	if err := unix.Dup3(3, handOver, unix.O_CLOEXEC); err != nil {
		return err
	}
	if err := unix.Close(3); err != nil {
		return err
	}
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "FAULTS_") })
	listener, err := listen(filter(os.Getenv(changesEnv) != ""))
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(handOver, []byte{0}, unix.UnixRights(listener), nil, 0); err != nil {
		return err
	}
	return unix.Exec(program, append([]string{program}, os.Args[1:]...), env)
}

// listen installs the filter on this thread and returns the descriptor of its reports.
func listen(program []unix.SockFilter) (int, error) {
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	flags := unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | waits()
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return -1, os.NewSyscallError("seccomp", errno)
	}
	return int(fd), nil
}

// waits returns the flag with which only fatal signals interrupt a call that waits for the monitor's answer, or 0
// before Linux 5.19.
var waits = sync.OnceValue(func() uintptr {
	const flag = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flag, 0); errno == unix.EINVAL {
		return 0
	}
	return unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV // EFAULT, because there is no program
})

// filter returns a filter that reports the watched calls except clones of threads, or only calls that may change
// something.
func filter(changes bool) []unix.SockFilter {
	const callNumber, firstArg, thirdArg = 0, 16, 32 // offsets in struct seccomp_data, of a little-endian machine
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	unless := func(value uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: skip, K: value}
	}
	hasNot := func(bits uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, Jf: skip, K: bits}
	}
	ret := func(value uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: value} }
	allow, report := ret(unix.SECCOMP_RET_ALLOW), ret(unix.SECCOMP_RET_USER_NOTIF)
	program := []unix.SockFilter{
		load(callNumber),
		unless(unix.SYS_CLONE, 4), load(firstArg), hasNot(unix.CLONE_THREAD, 1), allow, report,
		unless(unix.SYS_SENDMSG, 4), load(firstArg), unless(handOver, 1), allow, report,
	}
	if changes {
		program = append(program, unless(unix.SYS_OPENAT, 4), load(thirdArg), hasNot(unix.O_CREAT|unix.O_TRUNC, 1),
			report, allow)
	}
	for _, calls := range []map[uint64]string{watched, older} {
		for nr, name := range calls {
			if nr != unix.SYS_CLONE && nr != unix.SYS_SENDMSG && (!changes || slices.Contains(changing, name)) {
				program = append(program, unless(uint32(nr), 1), report)
			}
		}
	}
	return append(program, allow)
}
