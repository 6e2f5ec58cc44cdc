package faults_test

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// launchEnv makes this test binary run a program under a filter that reports
	// each watched call, of all its threads and children, and waits for our word.
	launchEnv = "FAULTS_LAUNCH"
	// changesEnv, when it is not empty, leaves out calls that change nothing.
	changesEnv = "FAULTS_CHANGES"

	// handOver is the launcher's end of a socket over which it hands us the
	// listener. The filter knows this number: nobody listens yet when it is used.
	handOver = 250
)

// launch becomes the program, under the filter. It returns only an error.
func launch(program string) error {
	runtime.LockOSThread() // the filter is the thread's, and exec hands it on
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

// listen puts the filter on this thread and returns the descriptor that its reports come from.
func listen(program []unix.SockFilter) (int, error) {
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	// Who waits for our word is not disturbed by signals, but those that kill.
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return -1, os.NewSyscallError("seccomp", errno)
	}
	return int(fd), nil
}

// filter reports the watched calls, but clone where it makes a thread, or only those that may change something.
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
