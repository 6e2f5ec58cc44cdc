// Package process runs one other program, by os/exec: with its input from memory, its output as it
// comes, a limit of time, and no longer than we live ourselves.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// drain is how long children of the program may hold its output open when it has ended itself.
const drain = time.Second

// Command is a program that is to be run.
type Command struct {
	Path string   // of the file, which is not looked up
	Args []string // behind the program's name
	Env  []string // KEY=value; nil = that of this process
	// Stdin is all that the program can read.
	Stdin []byte
	// Stdout and Stderr are given what the program writes while it runs; nil discards it. After an
	// error of one the program cannot write there any more.
	Stdout, Stderr io.Writer
	// Limit is how long the program may run; 0 = as long as the context.
	Limit time.Duration
}

// Run runs the program to its end. It is killed when the context or Limit ends, and when we die.
//
// The error is an *fs.PathError with the kernel's errno for a file that cannot be run, and an *ExitError
// for a program that did not succeed. For one that did it is the error of Stdout or Stderr, if any.
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
type Process struct {
	cmd      *exec.Cmd
	deadline time.Time // zero = none
}

// Start starts the program, for a caller who has something else to do until it waits for it. Wait must
// follow, in the same goroutine.
func (c Command) Start() (*Process, error) {
	in, err := memory(c.Stdin)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	p := &Process{cmd: &exec.Cmd{
		Path: c.Path, Args: append([]string{c.Path}, c.Args...), Env: c.Env,
		Stdin: in, Stdout: c.Stdout, Stderr: c.Stderr, WaitDelay: drain,
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	}}
	if c.Limit > 0 {
		p.deadline = time.Now().Add(c.Limit)
	}
	// Whoever started us may have left descriptors open that are no business of the program's. Kernels
	// before 5.11 cannot close them in one call.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	runtime.LockOSThread() // the signal for our death comes when the thread that forks ends
	if err := p.cmd.Start(); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	return p, nil
}

// memory is a file with the data: unlike a pipe it needs no goroutine that fills it.
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
	if !p.deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, p.deadline)
		defer cancel()
	}
	stop := context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })
	err := p.cmd.Wait()
	inTime := stop()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		failed := &ExitError{ExitError: exit}
		if !inTime {
			failed.Killed = context.Cause(ctx)
		}
		return failed
	}
	if errors.Is(err, exec.ErrWaitDelay) { // children of the program have the rest
		return nil
	}
	return err
}

// ExitError is how a program ended that did not succeed.
type ExitError struct {
	*exec.ExitError
	// Killed is why we ended it: context.DeadlineExceeded or the cause of the context's end; nil when
	// we did not. errors.Is finds it.
	Killed error
}

// Error is "exit status 1" or "signal: killed", behind the reason that we had.
func (e *ExitError) Error() string {
	if e.Killed != nil {
		return e.Killed.Error() + ": " + e.ExitError.Error()
	}
	return e.ExitError.Error()
}

// Unwrap is Killed.
func (e *ExitError) Unwrap() error { return e.Killed }

// ErrNotFound says that no directory of PATH has a program.
var ErrNotFound = errors.New("executable file not found in $PATH")

// LookPath returns the file of a program: the first in the directories of PATH that we may run. One in a
// relative directory is not taken.
func LookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("program %q: %w", name, ErrNotFound)
	}
	return path, nil
}
