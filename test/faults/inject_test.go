package faults_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest/trace"
)

// failure is one way in which a call fails.
type failure struct {
	errno unix.Errno
	// refused: the call, which sends to the kernel over netlink, succeeds, and the
	// kernel's answer is the error.
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

// failures lists how the call can fail. What iptables makes of its errors is its own affair (some it ignores,
// and makes a wrong rule): it cannot be started, and it cannot commit.
func (c call) failures(tid int) []failure {
	if !c.ours() && !c.is("execve", "sendmsg") {
		return nil
	}
	switch c.Name {
	case "openat", "open", "openat2":
		return c.openFailures()
	case "read", "pread64", "readv":
		switch c.File {
		case "anon_inode": // of the Go runtime, by which its threads wake each other
			return nil
		case "pipe":
			return fails(unix.EINTR)
		}
		if strings.HasPrefix(c.File, "/proc/sys/") { // others say that it can only be written
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

// possible are the errors of calls that fail in the same way whatever they are about. Not here: those that say
// that something is absent, and those that only a program's own mistake brings about.
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

// writable reports whether a descriptor is a regular file, open for writing:
// then its close may have to tell of a write that failed.
func writable(tid int, fd uint64) bool {
	var st unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d/fd/%d", tid, int32(fd)), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return false
	}
	return flags(tid, fd)&(unix.O_WRONLY|unix.O_RDWR) != 0
}

// interruptible are the failures of a call on a socket: no signal interrupts one that does not block.
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

// answerTo is the socket on which an answer is waited for.
type answerTo struct {
	pid int
	fd  uint64
}

// batchSize is the size of the message that begins a batch.
const batchSize = unix.SizeofNlMsghdr + 4

// negative is the kernel's answer to a port that refuses each request of a datagram. Of a
// batch it is the first that is refused.
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

// port is the netlink port of a process's socket, 0 when it has none.
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

// answer gives the kernel's refusal to who waits for the kernel's answer.
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
