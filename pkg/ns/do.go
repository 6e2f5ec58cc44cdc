package ns

import (
	"runtime"

	"github.com/vishvananda/netns"
)

// Do runs fn on a thread of its own inside the namespace and returns fn's
// error. Goroutines that fn starts are outside. A panic of fn continues in the
// caller with the same value.
func (n *NS) Do(fn func() error) error {
	var failed error
	var panicked any
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		failed = n.onThread(fn)
	}()
	<-done
	if panicked != nil {
		panic(panicked)
	}
	return failed
}

func (n *NS) onThread(fn func() error) error {
	runtime.LockOSThread()
	home, err := own()
	if err != nil {
		runtime.UnlockOSThread()
		return n.wrap(err)
	}
	defer func() {
		// A goroutine that ends while it is locked takes its thread with it:
		// no other goroutine ever runs in the wrong namespace.
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		_ = home.Close()
	}()
	if err := netns.Set(n.h); err != nil {
		return n.wrap(err)
	}
	return fn()
}
