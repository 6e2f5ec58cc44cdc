// Package process runs one other program: with its input from memory, its
// output as it comes, a limit of time, and no longer than we live ourselves.
//
// It does what os/exec does, on the calling thread alone: without a goroutine
// for each stream, and without the process by which package os tries what the
// kernel can do.
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
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Command is a program that is to be run.
type Command struct {
	Path string   // of the file, which is not looked up
	Args []string // behind the program's name
	Env  []string // KEY=value; nil = that of this process
	// Stdin is all that the program can read.
	Stdin []byte
	// HoldStdin keeps it from the program until Wait is called: one that does
	// nothing before it has read its input can get ready meanwhile.
	HoldStdin bool
	// Stdout and Stderr are given what the program writes while it runs; nil
	// discards it. After an error of one the program cannot write there any more.
	Stdout, Stderr io.Writer
	// Limit is how long the program may run, with HoldStdin from the time that it
	// is waited for; 0 = as long as the context.
	Limit time.Duration
	// Drain is how long children of the program may hold its output open when
	// it has ended itself; 0 = a second.
	Drain time.Duration
}

// watcher is the key of a context's function that Watch put there.
type watcher struct{}

// Watch returns a context by which ended is told of each program that is run
// with it: the file, and how long it took. Programs that run side by side call
// it side by side.
func Watch(ctx context.Context, ended func(file string, took time.Duration)) context.Context {
	return context.WithValue(ctx, watcher{}, ended)
}

// Run runs the program to its end. It is killed when the context or Limit ends,
// and when we die.
//
// A file that cannot be run is an *fs.PathError with the kernel's errno, a
// program that did not succeed an *ExitError. With one that did, an error of
// Stdout or Stderr is returned.
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

// Start starts the program, for a caller who has something else to do until it
// waits for it. Wait must follow, in the same goroutine. The program can read
// of Stdin what a pipe holds, unless it is held back.
func (c Command) Start() (*Process, error) {
	// The signal for our death comes when the thread that forks ends.
	runtime.LockOSThread()
	p, err := c.start()
	if err != nil {
		runtime.UnlockOSThread()
	}
	return p, err
}

// Wait serves the program until it ends, and returns what Run does.
func (p *Process) Wait(ctx context.Context) error {
	if told, ok := ctx.Value(watcher{}).(func(string, time.Duration)); ok {
		defer func() { told(p.path, time.Since(p.began)) }()
	}
	defer runtime.UnlockOSThread()
	defer p.close()
	if p.limit > 0 {
		p.deadline = time.Now().Add(p.limit)
	}
	killed := make(chan struct{})
	stop := context.AfterFunc(untimed(ctx), func() {
		p.kill()
		close(killed)
	})
	err := p.serve(ctx)
	if !stop() {
		<-killed // before the wait below makes the number another process's
	}
	status, waitErr := p.wait()
	switch {
	case waitErr != nil:
		return errors.Join(waitErr, err)
	case status.Exited() && status.ExitStatus() == 0:
		return err
	}
	return &ExitError{Status: status, Killed: p.reason(ctx)}
}

// untimed is a context without its deadline where it offers that: serve keeps the
// deadline itself, and a timer would cost the process its first threads.
func untimed(ctx context.Context) context.Context {
	if timed, ok := ctx.(interface{ Untimed() context.Context }); ok {
		return timed.Untimed()
	}
	return ctx
}

// Abandon ends the program instead of waiting for it. What was held back of its
// input it never sees.
func (p *Process) Abandon() {
	p.kill()
	closeAll(p.stdin.fd) // the program is dead, so this is no end of its input
	p.stdin.fd = -1
	_ = p.Wait(context.Background())
}

// start starts the program with a pipe for each stream.
func (c Command) start() (_ *Process, err error) {
	p := &Process{path: c.Path, began: time.Now(), drain: cmp.Or(c.Drain, time.Second), exited: -1, stdin: stdin{fd: -1, rest: c.Stdin}}
	switch {
	case c.HoldStdin:
		p.limit = c.Limit
	case c.Limit > 0:
		p.deadline = p.began.Add(c.Limit)
	}
	p.out = [2]output{{fd: -1, to: c.Stdout}, {fd: -1, to: c.Stderr}}
	theirs := [3]int{-1, -1, -1}
	defer func() {
		closeAll(theirs[:]...)
		if err != nil {
			p.close()
		}
	}()
	if theirs[0], p.stdin.fd, err = pipe(); err != nil {
		return nil, err
	}
	for i := range p.out {
		if p.out[i].fd, theirs[i+1], err = pipe(); err != nil {
			return nil, err
		}
	}
	if err := p.stdin.dontBlock(); err != nil {
		return nil, err
	}
	if !c.HoldStdin { // mostly the pipe takes all of it
		if err := p.stdin.fill(); err != nil {
			return nil, err
		}
	}
	env := c.Env
	if env == nil {
		env = syscall.Environ()
	}
	// Whoever started us may have left descriptors open that are no business of
	// the program's. Kernels before 5.11 cannot close them in one call.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	p.pid, err = syscall.ForkExec(c.Path, append([]string{c.Path}, c.Args...), &syscall.ProcAttr{
		Env: env, Files: []uintptr{uintptr(theirs[0]), uintptr(theirs[1]), uintptr(theirs[2])},
		Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return nil, &fs.PathError{Op: "fork/exec", Path: c.Path, Err: err}
	}
	if p.exited, err = watchExit(p.pid); err != nil {
		p.kill()
		_, _ = p.wait()
		return nil, err
	}
	return p, nil
}

// watchExit returns a descriptor that can be read from, or is at its end, once
// the process has ended.
func watchExit(pid int) (int, error) {
	if fd, err := unix.PidfdOpen(pid, 0); err == nil {
		return fd, nil
	}
	// Kernels before 5.3, and sandboxes that refuse it.
	ends, none, err := pipe()
	if err != nil {
		return -1, err
	}
	go func() {
		defer closeAll(none)
		for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
	}()
	return ends, nil
}

func pipe() (read, write int, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, os.NewSyscallError("pipe2", err)
	}
	return fds[0], fds[1], nil
}

func closeAll(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// ErrNotFound says that no directory of PATH has a program.
var ErrNotFound = errors.New("executable file not found in $PATH")

// LookPath returns the file of a program: the first in the directories of PATH
// that we may run. A relative directory is passed over.
func LookPath(name string) (string, error) {
	path, _ := syscall.Getenv("PATH")
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, name)
		var st unix.Stat_t
		if !filepath.IsAbs(dir) || unix.Stat(file, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue
		}
		if unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS) == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("program %q: %w", name, ErrNotFound)
}
