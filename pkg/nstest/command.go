package nstest

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// Program describes a process for [Host.Run] and [Host.Start].
type Program struct {
	Path   string   // a name to be looked up in PATH, or a path
	Args   []string // without the program itself
	Env    []string // in addition to the environment of the tests; later entries win
	Stdin  string
	Before func() // for Run: runs on the thread that starts the program
}

// Output is the outcome of a program. Exit is its status, or 128 plus the signal that ended it. CPU is its processor
// time, including the children that it waited for. Held means that the program succeeded, but a process that it started
// still had its stdout or stderr open seconds later.
type Output struct {
	Stdout, Stderr string
	Exit           int
	CPU            time.Duration
	Held           bool
}

// leftBehind is the time that [Host.Run] waits after the end of a program for other processes to close its stdout and
// stderr. On a busy machine a process of another goroutine has them open for seconds, between fork and exec.
const leftBehind = 10 * time.Second

// Run runs a program in the namespaces and returns its outcome. The spec fails only if the program cannot be started.
func (h *Host) Run(p Program) Output {
	ginkgo.GinkgoHelper()
	var stdout strings.Builder
	out := h.run(p, &stdout)
	out.Stdout = stdout.String()
	return out
}

// RunUnread is like Run, with a standard output that no process reads.
func (h *Host) RunUnread(p Program) Output {
	ginkgo.GinkgoHelper()
	reader, writer, err := os.Pipe()
	gomega.Expect(err).NotTo(gomega.HaveOccurred())
	gomega.Expect(reader.Close()).To(gomega.Succeed())
	defer writer.Close()
	return h.run(p, writer)
}

func (h *Host) run(p Program, stdout io.Writer) Output {
	ginkgo.GinkgoHelper()
	var stderr strings.Builder
	cmd := p.command(stdout, &stderr)
	cmd.WaitDelay = Patience(leftBehind)
	var err error
	h.Do(func() {
		if p.Before != nil {
			p.Before()
		}
		err = cmd.Run()
	})
	if cmd.ProcessState == nil {
		ginkgo.Fail(fmt.Sprintf("%s: %v", strings.Join(cmd.Args, " "), err))
	}
	return Output{Stderr: stderr.String(), Exit: exitStatus(cmd.ProcessState),
		CPU:  cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(),
		Held: errors.Is(err, exec.ErrWaitDelay)}
}

func (p Program) command(stdout, stderr io.Writer) *exec.Cmd {
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(p.Stdin), stdout, stderr
	return cmd
}

// exitStatus returns the exit status, or 128 plus the signal that ended the program.
func exitStatus(p *os.ProcessState) int {
	if ws := p.Sys().(syscall.WaitStatus); ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return p.ExitCode()
}

// Cmd runs a program in the namespaces and returns its standard output. The spec fails if the exit status is not 0.
func (h *Host) Cmd(name string, args ...string) string {
	ginkgo.GinkgoHelper()
	out := h.Run(Program{Path: name, Args: args})
	if out.Exit != 0 {
		ginkgo.Fail(fmt.Sprintf("%s: %s %s: exit %d\n%s%s", h.Name, name, strings.Join(args, " "),
			out.Exit, out.Stdout, out.Stderr))
	}
	return out.Stdout
}

// IP runs commands of ip(8) in one process. The spec fails if one of them fails.
func (h *Host) IP(commands ...string) {
	ginkgo.GinkgoHelper()
	out := h.Run(Program{Path: "ip", Args: []string{"-batch", "-"}, Stdin: strings.Join(commands, "\n") + "\n"})
	if out.Exit != 0 {
		ginkgo.Fail(fmt.Sprintf("%s: ip %q: exit %d\n%s", h.Name, commands, out.Exit, out.Stderr))
	}
}

// JSON decodes the standard output of a program into v, for example h.JSON(&links, "ip", "-j", "-d", "link"). Empty
// output, which some versions of ip write for an empty list, leaves v unchanged.
func (h *Host) JSON(v any, name string, args ...string) {
	ginkgo.GinkgoHelper()
	out := h.Cmd(name, args...)
	if strings.TrimSpace(out) == "" {
		return
	}
	if err := json.Unmarshal([]byte(out), v); err != nil {
		ginkgo.Fail(fmt.Sprintf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out))
	}
}

// Start starts a program in the namespaces and does not wait for it. The end of the spec kills the program. Its output
// becomes part of the spec's.
func (h *Host) Start(p Program) *exec.Cmd {
	ginkgo.GinkgoHelper()
	cmd := p.command(ginkgo.GinkgoWriter, ginkgo.GinkgoWriter)
	h.Do(func() { gomega.Expect(cmd.Start()).To(gomega.Succeed(), strings.Join(cmd.Args, " ")) })
	ginkgo.DeferCleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// HoldLock starts a process that holds the lock of a file until it is killed or the spec ends.
func (h *Host) HoldLock(path string) *os.Process {
	ginkgo.GinkgoHelper()
	script := fmt.Sprintf("exec sleep %g >/dev/null 2>&1", Patience(time.Minute).Seconds())
	holding := h.Start(Program{Path: "flock", Args: []string{"-o", path, "sh", "-c", script}})
	gomega.Eventually(func() string { return string(Must(os.ReadFile("/proc/locks"))) }).
		Should(gomega.MatchRegexp(`(?m)^\d+: FLOCK .* %d `, holding.Process.Pid))
	return holding.Process
}

// ReleaseLock kills the process of [Host.HoldLock] and returns when the lock is free.
func ReleaseLock(holder *os.Process) {
	ginkgo.GinkgoHelper()
	gomega.Expect(holder.Kill()).To(gomega.Succeed())
	Must(holder.Wait())
}

// Sysctl reads a value below /proc/sys in the namespaces.
func (h *Host) Sysctl(path string) string {
	ginkgo.GinkgoHelper()
	var value []byte
	h.Do(func() { value = Must(os.ReadFile("/proc/sys/" + path)) })
	return strings.TrimSpace(string(value))
}

// SetSysctl writes a value below /proc/sys in the namespaces.
func (h *Host) SetSysctl(path, value string) {
	ginkgo.GinkgoHelper()
	if strings.HasPrefix(path, "net/ipv6/") && !HasIPv6() {
		return
	}
	h.Do(func() { gomega.Expect(os.WriteFile("/proc/sys/"+path, []byte(value), 0)).To(gomega.Succeed(), h.Name) })
}

// SetBridgeNF sets net.bridge.bridge-nf-call-iptables and -ip6tables, which decide whether frames that a bridge
// forwards pass the IP rules. The initial value in a new namespace depends on the kernel.
func (h *Host) SetBridgeNF(on bool) {
	ginkgo.GinkgoHelper()
	Need("br_netfilter")
	value := map[bool]string{true: "1", false: "0"}[on]
	h.SetSysctl("net/bridge/bridge-nf-call-iptables", value)
	h.SetSysctl("net/bridge/bridge-nf-call-ip6tables", value)
}

// Arg is the value of an argument of a system call. Number counts from 0; Mask selects bits, and 0 means all.
type Arg struct{ Number, Value, Mask uint32 }

// FailCall makes a system call with these arguments fail with errno, in the calling thread and its children.
func FailCall(number uint32, errno unix.Errno, args ...Arg) {
	ginkgo.GinkgoHelper()
	var err error
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" || binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		err = errors.New("only amd64 and arm64 are supported")
	}
	NeedOK("a seccomp filter", err)
	// Offsets in struct seccomp_data, with the required values.
	conditions := [][3]uint32{{0, number, math.MaxUint32}}
	for _, a := range args {
		conditions = append(conditions, [3]uint32{16 + 8*a.Number, a.Value, cmp.Or(a.Mask, math.MaxUint32)})
	}
	var program []unix.SockFilter
	for i, c := range conditions {
		over := uint8(3*(len(conditions)-i) - 2) // to the last answer
		program = append(program, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: c[0]},
			unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: c[2]},
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

// FailNetfilterSockets makes the creation of nfnetlink sockets fail in the calling thread and its children.
func FailNetfilterSockets(errno unix.Errno) {
	ginkgo.GinkgoHelper()
	FailCall(unix.SYS_SOCKET, errno, Arg{Value: unix.AF_NETLINK}, Arg{Number: 2, Value: unix.NETLINK_NETFILTER})
}

// RefuseNetfilterSockets simulates a kernel without nfnetlink.
func RefuseNetfilterSockets() {
	ginkgo.GinkgoHelper()
	FailNetfilterSockets(unix.EPROTONOSUPPORT)
}

// WithoutDAC runs fn as root without the capabilities that override the modes of files.
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
