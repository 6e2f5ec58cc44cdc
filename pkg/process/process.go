// Package process runs other programs with os/exec: IPAM plugins, and tools such as iptables.
//
// A Command describes a program. Run runs it to its end. Start and Wait let the caller do other work while it runs. The
// kernel kills the program when this process ends, and Wait kills it when the context ends, so that no program outlives
// the call that started it.
//
// A program inherits only the descriptors that Command lists, also if the runtime left others open in this process.
//
// RunNameless is for programs that receive text from a configuration, for example iptables with conditions of portmap,
// because a lookup of a name in the text could wait for a name server for seconds.
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

// outputWait is the time that Wait waits for children of the program that still have its output open after its end.
const outputWait = time.Second

// Command describes how to run a program.
type Command struct {
	Path     string   // path of the file, which is not searched in PATH
	Name     string   // argv[0]; empty means Path
	Args     []string // without the program's name
	Env      []string // KEY=value; nil means the environment of this process
	Stdin    []byte
	Files    []*os.File // descriptors 3 and higher of the program
	OwnGroup bool       // the program is in its own process group, so that Ctrl-C does not signal it
	// Stdout and Stderr receive the program's output while it runs; nil discards it. After one of them returns an
	// error, the program can no longer write to it.
	Stdout, Stderr io.Writer
}

// ExitError is the error of a program that ended without success.
type ExitError = exec.ExitError

// Run runs the program to its end, and kills it when the context or this process ends.
//
// The error is an *fs.PathError with the kernel's errno if the file cannot be run, the context's cause if the context
// has ended the program, an *ExitError if the program failed, or an error of Stdout or Stderr.
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

// Process is a started program.
type Process struct{ cmd *exec.Cmd }

// Start starts the program and returns immediately. The caller must call Wait in the same goroutine.
func (c Command) Start() (*Process, error) {
	in, err := memoryFile(c.Stdin)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	p := &Process{cmd: &exec.Cmd{
		Path: c.Path, Args: append([]string{cmp.Or(c.Name, c.Path)}, c.Args...), Env: c.Env,
		Stdin: in, Stdout: c.Stdout, Stderr: c.Stderr, WaitDelay: outputWait, ExtraFiles: c.Files,
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: c.OwnGroup},
	}}
	setCloseOnExec()
	runtime.LockOSThread() // until Wait, because Pdeathsig kills the program when this thread ends
	if err := p.cmd.Start(); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	return p, nil
}

// setCloseOnExec sets close-on-exec on the descriptors that the runtime left open in this process. It is best effort.
func setCloseOnExec() {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	files, _ := os.ReadDir("/proc/self/fd") // Linux before 5.11
	for _, file := range files {
		if fd, err := strconv.Atoi(file.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}

// memoryFile returns a file that contains data. Unlike a pipe, it needs no goroutine that writes to it.
func memoryFile(data []byte) (*os.File, error) {
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

// Wait waits until the program ends. It returns the same errors as Run.
func (p *Process) Wait(ctx context.Context) error {
	defer runtime.UnlockOSThread()
	stop := context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })
	err := p.cmd.Wait()
	switch isKilled := !stop(); {
	case isKilled && err != nil:
		return fmt.Errorf("%w: %v", context.Cause(ctx), err)
	case errors.Is(err, exec.ErrWaitDelay): // only children of the program still have its output open
		return nil
	}
	return err
}

// ErrNotFound means that no directory of PATH contains the program.
var ErrNotFound = errors.New("executable file not found in $PATH")

// LookPath returns the path of the first executable file with a name in the absolute directories of PATH. The error is
// an *fs.PathError, which cni.AsError converts to code 5.
func LookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", &fs.PathError{Op: "program", Path: strconv.Quote(name), Err: ErrNotFound}
	}
	return path, nil
}
