package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a program that was started.
type Process struct {
	path     string
	began    time.Time
	pid      int
	exited   int // readable when it has ended
	stdin    stdin
	out      [2]output
	deadline time.Time     // zero = none
	limit    time.Duration // from Wait on; 0 = none
	drain    time.Duration

	late   bool  // the deadline came
	broken error // why we could not feed or watch it
}

// serve feeds the program and takes its output until it has ended and nobody
// holds its output open any more, or for not much longer. It returns the first
// error of a writer.
func (p *Process) serve(ctx context.Context) error {
	if d, ok := ctx.Deadline(); ok && (p.deadline.IsZero() || d.Before(p.deadline)) {
		p.deadline = d
	}
	var failed error
	buf := make([]byte, 8<<10)
	for over := false; !over || p.out[0].fd >= 0 || p.out[1].fd >= 0; {
		fds := [4]unix.PollFd{
			{Fd: int32(p.exited), Events: unix.POLLIN}, {Fd: int32(p.stdin.fd), Events: unix.POLLOUT},
			{Fd: int32(p.out[0].fd), Events: unix.POLLIN}, {Fd: int32(p.out[1].fd), Events: unix.POLLIN},
		}
		if over {
			fds[0].Fd = -1
		}
		n, err := unix.Poll(fds[:], p.timeout())
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			p.kill()
			p.broken = err
			return err
		case n == 0 && over: // children of the program have the rest
			return failed
		case n == 0:
			p.late, p.deadline = true, time.Time{}
			p.kill()
		}
		if fds[1].Revents != 0 {
			if p.broken = p.stdin.fill(); p.broken != nil {
				p.kill() // before it sees an end of its input
				closeAll(p.stdin.fd)
				p.stdin.fd = -1
			}
		}
		for i := range p.out {
			if fds[2+i].Revents != 0 {
				failed = errors.Join(failed, p.out[i].take(buf))
			}
		}
		if fds[0].Revents != 0 {
			over, p.deadline = true, time.Now().Add(p.drain)
		}
	}
	return failed
}

// timeout is the time until the deadline as poll(2) wants it.
func (p *Process) timeout() int {
	if p.deadline.IsZero() {
		return -1
	}
	// Rounded up: too early would be a turn for nothing.
	return int(max(0, time.Until(p.deadline)+time.Millisecond-1).Milliseconds())
}

func (p *Process) kill() { _ = unix.Kill(p.pid, unix.SIGKILL) }

func (p *Process) wait() (status syscall.WaitStatus, err error) {
	for {
		if _, err = syscall.Wait4(p.pid, &status, 0, nil); !errors.Is(err, syscall.EINTR) {
			return status, err
		}
	}
}

// reason is why we killed the program, nil when we did not.
func (p *Process) reason(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if p.late {
		return context.DeadlineExceeded
	}
	return p.broken
}

func (p *Process) close() { closeAll(p.exited, p.stdin.fd, p.out[0].fd, p.out[1].fd) }

// stdin is our end of the program's input.
type stdin struct {
	fd   int
	rest []byte
}

func (s *stdin) dontBlock() error {
	_, err := unix.FcntlInt(uintptr(s.fd), unix.F_SETFL, unix.O_NONBLOCK)
	return err
}

// fill writes what there is room for. A program need not read its input; one that
// reads must not take a part for the whole, so any other error is one.
func (s *stdin) fill() error {
	for len(s.rest) > 0 {
		n, err := unix.Write(s.fd, s.rest)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EPIPE):
			s.rest = nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("standard input: %w", err)
		default:
			s.rest = s.rest[max(n, 0):]
		}
	}
	closeAll(s.fd)
	s.fd = -1
	return nil
}

// output is our end of one of the program's outputs.
type output struct {
	fd int
	to io.Writer
}

// take hands on what is there.
func (o *output) take(buf []byte) error {
	n, err := unix.Read(o.fd, buf)
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	if n > 0 && o.to != nil {
		_, err = o.to.Write(buf[:n])
	}
	if n <= 0 || err != nil {
		closeAll(o.fd)
		o.fd = -1
	}
	return err
}

// ExitError is how a program ended that did not succeed.
type ExitError struct {
	Status syscall.WaitStatus
	// Killed is why we ended it: context.DeadlineExceeded or the cause of the
	// context's end; nil when we did not. errors.Is finds it.
	Killed error
}

// Error is "exit status 1" or "signal: killed", behind the reason that we had.
func (e *ExitError) Error() string {
	text := "exit status " + strconv.Itoa(e.Status.ExitStatus())
	if e.Status.Signaled() {
		text = "signal: " + e.Status.Signal().String()
	}
	if e.Status.CoreDump() {
		text += " (core dumped)"
	}
	if e.Killed != nil {
		text = e.Killed.Error() + ": " + text
	}
	return text
}

// Unwrap is Killed.
func (e *ExitError) Unwrap() error { return e.Killed }
