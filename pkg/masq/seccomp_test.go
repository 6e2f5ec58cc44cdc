package masq_test

import (
	"encoding/binary"
	"runtime"
	"unsafe"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// refuseNetfilterSockets makes the calling thread, and what it starts, see a kernel without nfnetlink:
// socket(AF_NETLINK, any, NETLINK_NETFILTER) is EPROTONOSUPPORT.
func refuseNetfilterSockets() {
	GinkgoHelper()
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		Skip("the filter knows the system call numbers of amd64 and arm64")
	}
	const dataNr, dataArg0, dataArg2 = 0, 16, 32 // struct seccomp_data
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		Skip("the filter is written for little-endian machines")
	}
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	unless := func(value uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: skip, K: value}
	}
	ret := func(value uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: value} }
	program := []unix.SockFilter{
		load(dataNr), unless(unix.SYS_SOCKET, 5),
		load(dataArg0), unless(unix.AF_NETLINK, 3),
		load(dataArg2), unless(unix.NETLINK_NETFILTER, 1),
		ret(unix.SECCOMP_RET_ERRNO | uint32(unix.EPROTONOSUPPORT)),
		ret(unix.SECCOMP_RET_ALLOW),
	}
	Expect(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)).To(Succeed())
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&fprog)))
	Expect(errno).To(BeZero())
}
