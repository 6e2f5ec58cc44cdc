package ipt

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Socket options of linux/netfilter_ipv4/ip_tables.h; those of IPv6 have the same numbers.
const (
	optInfo    = 64 // IPT_SO_GET_INFO
	optEntries = 65 // IPT_SO_GET_ENTRIES
)

// tableInfo is struct ipt_getinfo.
type tableInfo struct {
	name       [32]byte
	validHooks uint32
	hookEntry  [5]uint32
	underflow  [5]uint32
	numEntries uint32
	size       uint32
}

// entriesHeader is the beginning of struct ipt_get_entries.
type entriesHeader struct {
	name [32]byte
	size uint32
	_    uint32 // the entries are aligned to 8 bytes
}

// LegacyHas says whether the x_tables table of the calling thread's network namespace has a chain
// whose name begins with this. It runs no program. A table that does not exist is not made, except
// where /proc may not be read, which would tell.
func LegacyHas(f Family, table, chain string) (bool, error) {
	has, err := legacyTable(f, table)
	if err != nil || !has {
		return false, err
	}
	blob, err := legacyEntries(f, table)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOPROTOOPT) {
		return false, nil // the kernel has no such table, or no x_tables
	}
	if err != nil {
		return false, fmt.Errorf("legacy %s table %q: %w", f.program(), table, err)
	}
	// A chain is an entry with a target ERROR, followed by its name.
	target := make([]byte, 30)
	copy(target, "ERROR")
	for rest := blob; ; {
		_, after, ok := bytes.Cut(rest, target)
		if !ok {
			return false, nil
		}
		if bytes.HasPrefix(after, []byte(chain)) {
			return true, nil
		}
		rest = after
	}
}

// legacyTable asks /proc, because asking the socket would make the table. Root in a user namespace
// may not read it when both namespaces were made by one call, as in a container of LXC: nobody owns
// the file. Then there may be one.
func legacyTable(f Family, table string) (bool, error) {
	name := "ip_tables_names"
	if f == IPv6 {
		name = "ip6_tables_names"
	}
	data, err := readProc("/proc/thread-self/net/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if errors.Is(err, fs.ErrPermission) {
		return true, nil
	}
	return slices.Contains(strings.Fields(string(data)), table), err
}

// readProc is os.ReadFile by plain system calls: this file can be polled, and os would
// set up its poller for it.
func readProc(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for err == unix.EINTR {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	var data []byte
	for buf := make([]byte, 512); ; {
		n, err := unix.Read(fd, buf)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, &fs.PathError{Op: "read", Path: path, Err: err}
		case n == 0:
			return data, nil
		default:
			data = append(data, buf[:n]...)
		}
	}
}

// legacyEntries returns the table as the kernel keeps it.
func legacyEntries(f Family, table string) ([]byte, error) {
	domain, level := unix.AF_INET, unix.IPPROTO_IP
	if f == IPv6 {
		domain, level = unix.AF_INET6, unix.IPPROTO_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(fd) }()
	for attempt := 1; ; attempt++ {
		info := tableInfo{}
		copy(info.name[:], table)
		raw := unsafe.Slice((*byte)(unsafe.Pointer(&info)), unsafe.Sizeof(info))
		if err := getOption(fd, level, optInfo, raw); err != nil {
			return nil, err
		}
		var header entriesHeader
		blob := make([]byte, int(unsafe.Sizeof(header))+int(info.size))
		h := (*entriesHeader)(unsafe.Pointer(&blob[0]))
		h.name, h.size = info.name, info.size
		err := getOption(fd, level, optEntries, blob)
		if errors.Is(err, unix.EAGAIN) && attempt < 10 {
			continue // the table has another size by now
		}
		return blob[unsafe.Sizeof(header):], err
	}
}

func getOption(fd, level, option int, buf []byte) error {
	n := uint32(len(buf))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return os.NewSyscallError("getsockopt", errno)
	}
	return nil
}
