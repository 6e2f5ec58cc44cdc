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

// Arg is a value of one of the arguments of a system call, from 0.
type Arg struct{ Number, Value uint32 }

// FailCall makes a system call of the calling thread, and of what it starts,
// fail with errno where it has these arguments.
func FailCall(number uint32, errno unix.Errno, args ...Arg) {
	ginkgo.GinkgoHelper()
	var err error
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" || binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		err = errors.New("the filter knows amd64 and arm64")
	}
	NeedOK("a seccomp filter", err)
	// Offsets of struct seccomp_data, and what must stand there.
	conditions := [][2]uint32{{0, number}}
	for _, a := range args {
		conditions = append(conditions, [2]uint32{16 + 8*a.Number, a.Value})
	}
	var program []unix.SockFilter
	for i, c := range conditions {
		over := uint8(2*(len(conditions)-i) - 1) // to the last answer
		program = append(program, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: c[0]},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: over, K: c[1]})
	}
	for _, answer := range []uint32{unix.SECCOMP_RET_ERRNO | uint32(errno), unix.SECCOMP_RET_ALLOW} {
		program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: answer})
	}
	gomega.Expect(unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)).To(gomega.Succeed())
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, failed := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&fprog)))
	gomega.Expect(failed).To(gomega.BeZero())
}

// FailNetfilterSockets has the calling thread, and what it starts, get no socket of nfnetlink.
func FailNetfilterSockets(errno unix.Errno) {
	ginkgo.GinkgoHelper()
	FailCall(unix.SYS_SOCKET, errno, Arg{0, unix.AF_NETLINK}, Arg{2, unix.NETLINK_NETFILTER})
}

// RefuseNetfilterSockets shows a kernel without nfnetlink.
func RefuseNetfilterSockets() {
	ginkgo.GinkgoHelper()
	FailNetfilterSockets(unix.EPROTONOSUPPORT)
}

// WithoutDAC runs fn as a root whom the modes of files bind: one without rights cannot be read.
func WithoutDAC(fn func()) {
	ginkgo.GinkgoHelper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var all [2]unix.CapUserData
	gomega.Expect(unix.Capget(&header, &all[0])).To(gomega.Succeed())
	less := all
	less[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	gomega.Expect(unix.Capset(&header, &less[0])).To(gomega.Succeed())
	defer func() { gomega.Expect(unix.Capset(&header, &all[0])).To(gomega.Succeed()) }()
	fn()
}
