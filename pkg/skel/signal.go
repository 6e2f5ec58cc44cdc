package skel

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// told is a context that ends when the process is told to end. Nobody waits for
// the signal until somebody waits for the context: a goroutine that does, and
// taking the signals back when the call is over, wake other threads, which few
// calls ever need (signal.NotifyContext: a tenth of a millisecond).
type told struct {
	context.Context // ends with end
	end             context.CancelCauseFunc
	signals         chan os.Signal
	watch           sync.Once
}

// notify returns a told whose process is about to end anyway when it is given
// up.
func notify(ctx context.Context) (context.Context, context.CancelFunc) {
	t := &told{signals: make(chan os.Signal, 1)}
	t.Context, t.end = context.WithCancelCause(ctx)
	for _, s := range []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		if !signal.Ignored(s) { // nohup, and what a shell does for jobs in the background
			signal.Notify(t.signals, s)
		}
	}
	return t, func() { t.end(nil) }
}

// Done is that of context.Context.
func (t *told) Done() <-chan struct{} {
	t.watch.Do(func() {
		go func() {
			select {
			case s := <-t.signals:
				t.by(s)
			case <-t.Context.Done():
			}
		}()
	})
	return t.Context.Done()
}

// Err is that of context.Context.
func (t *told) Err() error {
	select {
	case s := <-t.signals:
		t.by(s)
	default:
	}
	return t.Context.Err()
}

func (t *told) by(s os.Signal) { t.end(errors.New(s.String() + " signal received")) }
