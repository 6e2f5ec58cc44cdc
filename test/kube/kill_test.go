package kube_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// killAt runs the command until its system call of this number, from 1, counting those of all threads, and kills it
// before the kernel carries that out. It returns false when the program ended before.
func killAt(cmd *exec.Cmd, number int) (isKilled bool) {
	GinkgoHelper()
	const (
		syscallStop = syscall.SIGTRAP | 0x80
		exitKill    = 0x100000   // PTRACE_O_EXITKILL
		noThread    = 0x20000000 // __WNOTHREAD: children of other threads are others' to wait for
	)
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	cmd.Stdout = nil // nobody copies: Wait is not called
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the tracer is a thread, and its children are waited for by it alone
		done <- func() error {
			if err := cmd.Start(); err != nil {
				return err
			}
			var ws syscall.WaitStatus
			pid := cmd.Process.Pid
			if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil {
				return err
			}
			err := syscall.PtraceSetOptions(pid, syscall.PTRACE_O_TRACESYSGOOD|syscall.PTRACE_O_TRACECLONE|
				exitKill)
			if err != nil {
				return err
			}
			inside := map[int]bool{} // threads in a system call
			for at := pid; ; {
				_ = syscall.PtraceSyscall(at, pass(ws))
				if at, err = syscall.Wait4(-1, &ws, syscall.WALL|noThread, nil); err != nil {
					return fmt.Errorf("wait: %w", err)
				}
				switch {
				case (ws.Exited() || ws.Signaled()) && at == pid:
					return nil
				case ws.Exited() || ws.Signaled():
					delete(inside, at)
				case ws.Stopped() && ws.StopSignal() == syscallStop:
					if inside[at] = !inside[at]; inside[at] {
						if number--; number == 0 {
							isKilled = true
							_ = syscall.Kill(pid, syscall.SIGKILL)
						}
					}
				}
			}
		}()
	}()
	Expect(<-done).To(Succeed())
	return isKilled
}

// pass is the signal that a thread was stopped for, unless ptrace made the stop.
func pass(ws syscall.WaitStatus) int {
	if s := ws.StopSignal(); ws.Stopped() && s != syscall.SIGTRAP && s != syscall.SIGTRAP|0x80 && s != syscall.SIGSTOP {
		return int(s)
	}
	return 0
}

var _ = Describe("the program, killed at any system call", Ordered, Label("cluster-kill"), func() {
	BeforeAll(start)

	DescribeTable("leaves nothing after DEL:", func(command string) {
		n := newNode("node-a", object{"ranges": json.RawMessage(dual)})
		tried := 0
		for number, isKilled := 1, true; isKilled; number += 3 {
			if command == "DEL" {
				Expect(n.call("ADD", "one", nil).IPs).To(HaveLen(2))
			}
			isKilled = killAt(n.command(command, "one", nil), number)
			n.succeeds("DEL", "one", nil)
			tried++
		}
		AddReportEntry("kills", tried-1)
		Expect(tried).To(BeNumerically(">", 50))
		Eventually(func() []string { // without requests that were carried out after DEL
			n.succeeds("DEL", "none", nil)
			return there.leases()
		}).WithTimeout(nstest.Patience(time.Minute)).Should(BeEmpty())
	}, Entry("ADD", "ADD"), Entry("DEL", "DEL"))
})
