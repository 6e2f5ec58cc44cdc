// Package process runs one other program, by os/exec, no longer than its context or we ourselves live.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// outputWait is how long children of the program may hold its output open when it has ended itself.
const outputWait = time.Second

// Command is a program that is to be run.
type Command struct {
	Path  string   // of the file, which is not looked up
	Name  string   // argv[0]; empty = Path
	Args  []string // without the program's name
	Env   []string // KEY=value; nil = that of this process
	Stdin []byte
	Files []*os.File // its descriptors 3 and up
	// Apart puts the program into a process group of its own: what a terminal sends on Ctrl-C does not reach it.
	Apart bool
	// Stdout and Stderr get what the program writes while it runs; nil discards it. After an error of
	// one the program cannot write there any more.
	Stdout, Stderr io.Writer
}

// ExitError says how a program ended that did not succeed.
type ExitError = exec.ExitError

// Run runs the program to its end. It is killed when the context ends, and when we die.
//
// The error is an *fs.PathError with the kernel's errno for a file that cannot be run, the context's cause
// for a program that it ended, an *ExitError for one that failed, or else that of Stdout or Stderr.
func (c Command) Run(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p, err := c.Start()
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}

// Process is a program that was started.
type Process struct{ cmd *exec.Cmd }

// Start starts the program, for a caller who does something else meanwhile. Wait must follow, in the same
// goroutine.
func (c Command) Start() (*Process, error) {
	in, err := memory(c.Stdin)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	p := &Process{cmd: &exec.Cmd{
		Path: c.Path, Args: append([]string{cmp.Or(c.Name, c.Path)}, c.Args...), Env: c.Env,
		Stdin: in, Stdout: c.Stdout, Stderr: c.Stderr, WaitDelay: outputWait, ExtraFiles: c.Files,
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: c.Apart},
	}}
	markInherited()
	runtime.LockOSThread() // the signal for our death comes when the thread that forks ends
	if err := p.cmd.Start(); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	return p, nil
}

// markInherited has descriptors that our caller left open closed in the programs that we run, as far as it can.
func markInherited() {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	open, _ := os.ReadDir("/proc/self/fd") // Linux before 5.11
	for _, file := range open {
		if fd, err := strconv.Atoi(file.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}

// memory is a file with the data, which needs no goroutine that fills it, as a pipe does.
func memory(data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("stdin", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "stdin")
	if _, err := f.WriteAt(data, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Wait waits until the program ends, and returns what Run does.
func (p *Process) Wait(ctx context.Context) error {
	defer runtime.UnlockOSThread()
	stop := context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })
	err := p.cmd.Wait()
	switch inTime := stop(); {
	case !inTime && err != nil:
		return fmt.Errorf("%w: %v", context.Cause(ctx), err)
	case errors.Is(err, exec.ErrWaitDelay): // children of the program have the rest
		return nil
	}
	return err
}

// ErrNotFound says that no directory of PATH has the program.
var ErrNotFound = errors.New("executable file not found in $PATH")

// LookPath returns the file of a program: the first in the absolute directories of PATH that we may run.
// The error is an *fs.PathError, which cni.AsError makes code 5.
func LookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", &fs.PathError{Op: "program", Path: strconv.Quote(name), Err: ErrNotFound}
	}
	return path, nil
}
