package ns

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Do runs fn on a thread of its own inside the namespace and returns fn's
// error. Goroutines that fn starts are outside. A panic of fn continues in the
// caller with the same value.
func (n *NS) Do(fn func() error) error {
	var out outcome
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.onThread(fn, &out)
	}()
	<-done
	if out.panicked {
		panic(out.value)
	}
	if out.exited {
		runtime.Goexit()
	}
	return out.err
}

type outcome struct {
	err      error
	value    any
	panicked bool
	exited   bool
}

func (n *NS) onThread(fn func() error, out *outcome) {
	runtime.LockOSThread()
	home, err := n.enter()
	if err != nil {
		runtime.UnlockOSThread()
		out.err = err
		return
	}
	defer func() {
		back := unix.Setns(home, unix.CLONE_NEWNET)
		unix.Close(home)
		// A goroutine that ends while it is locked takes its thread with it:
		// no other goroutine ever runs in the wrong namespace.
		if back == nil {
			runtime.UnlockOSThread()
		}
	}()
	run(fn, out)
}

// enter switches the calling thread and returns its former namespace.
func (n *NS) enter() (home int, err error) {
	home, err = openOwn()
	if err != nil {
		return -1, n.wrap(err)
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.fd < 0 {
		unix.Close(home)
		return -1, n.wrap(os.ErrClosed)
	}
	if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
		unix.Close(home)
		return -1, n.wrap(err)
	}
	return home, nil
}

func run(fn func() error, out *outcome) {
	returned := false
	defer func() {
		if returned {
			return
		}
		// Without a value it was runtime.Goexit, as t.FailNow does.
		out.value = recover()
		out.panicked = out.value != nil
		out.exited = !out.panicked
	}()
	out.err = fn()
	returned = true
}
