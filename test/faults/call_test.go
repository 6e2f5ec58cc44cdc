package faults_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

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

// describe finds out what the call is about. The caller of it waits for our
// answer, so nothing moves.
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
		c.File = text(tid, c.Args[0])
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
		path = text(tid, name)
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
	b := make([]byte, 2)
	if peek(tid, address, b) != nil {
		return unix.AF_UNSPEC
	}
	return binary.NativeEndian.Uint16(b)
}

func text(tid int, address uint64) string {
	b := make([]byte, 256)
	for len(b) > 0 && peek(tid, address, b) != nil {
		b = b[:len(b)/2] // the end of its memory
	}
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

func peek(tid int, address uint64, into []byte) error {
	local := []unix.Iovec{{Base: &into[0]}}
	local[0].SetLen(len(into))
	n, err := unix.ProcessVMReadv(tid, local, []unix.RemoteIovec{{Base: uintptr(address), Len: len(into)}}, 0)
	if err == nil && n != len(into) {
		err = unix.EFAULT
	}
	return err
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
