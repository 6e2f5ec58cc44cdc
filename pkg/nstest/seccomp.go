package nstest

import (
	"encoding/binary"
	"errors"
	"runtime"
	"unsafe"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// RefuseNetfilterSockets makes the calling thread, and what it starts, see a
// kernel without nfnetlink: such a socket is EPROTONOSUPPORT.
func RefuseNetfilterSockets() {
	ginkgo.GinkgoHelper()
	FailNetfilterSockets(unix.EPROTONOSUPPORT)
}

// FailNetfilterSockets has such a socket fail for another reason.
func FailNetfilterSockets(errno unix.Errno) {
	ginkgo.GinkgoHelper()
	const first, third = 16, 32 // of struct seccomp_data
	filter(
		load(callNumber), unless(unix.SYS_SOCKET, 5),
		load(first), unless(unix.AF_NETLINK, 3),
		load(third), unless(unix.NETLINK_NETFILTER, 1),
		answer(errno),
	)
}

// RefuseCookies makes the calling thread, and what it starts, see a kernel before 5.14, which gives network
// namespaces no cookie.
func RefuseCookies() {
	ginkgo.GinkgoHelper()
	const second, third = 24, 32 // of struct seccomp_data
	filter(
		load(callNumber), unless(unix.SYS_GETSOCKOPT, 5),
		load(second), unless(unix.SOL_SOCKET, 3),
		load(third), unless(unix.SO_NETNS_COOKIE, 1),
		answer(unix.ENOPROTOOPT),
	)
}

// FailCall makes a system call of the calling thread, and of what it starts,
// fail with errno.
func FailCall(number uint32, errno unix.Errno) {
	ginkgo.GinkgoHelper()
	filter(load(callNumber), unless(number, 1), answer(errno))
}

const callNumber = 0 // in struct seccomp_data

func load(at uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
}

func unless(value uint32, skip uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: skip, K: value}
}

func answer(errno unix.Errno) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)}
}

// filter installs a seccomp filter that lets all calls pass that get to its
// end.
func filter(program ...unix.SockFilter) {
	ginkgo.GinkgoHelper()
	var err error
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" || binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		err = errors.New("the filter knows amd64 and arm64")
	}
	NeedOK("a seccomp filter", err)
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
	gomega.Expect(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)).To(gomega.Succeed())
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&fprog)))
	gomega.Expect(errno).To(gomega.BeZero())
}
