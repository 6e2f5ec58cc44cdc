package ns

import (
	"runtime"

	"github.com/vishvananda/netns"
)

// Do runs fn on a thread of its own in the namespace. Goroutines that fn starts are
// outside. A panic of fn continues in the caller.
func (n *NS) Do(fn func() error) (err error) {
	panicked := make(chan any)
	go func() {
		defer func() { panicked <- recover() }()
		err = n.onThread(fn)
	}()
	if value := <-panicked; value != nil {
		panic(value)
	}
	return err
}

func (n *NS) onThread(fn func() error) error {
	runtime.LockOSThread()
	home, err := own()
	if err != nil {
		runtime.UnlockOSThread()
		return n.wrap(err)
	}
	defer func() {
		// A thread that cannot go back ends with its locked goroutine, and serves no other one.
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
