package skel

import (
	"context"
	"sync"
	"time"
)

// Limit returns a context that ends after d. It sets a timer, which costs a
// process its first threads for waiting, only when somebody waits for it.
func Limit(ctx context.Context, d time.Duration) context.Context {
	at := time.Now().Add(d)
	if earlier, ok := ctx.Deadline(); ok && earlier.Before(at) {
		return ctx
	}
	return limited{ctx, at, sync.OnceValue(func() context.Context {
		timed, cancel := context.WithDeadline(ctx, at)
		context.AfterFunc(timed, cancel)
		return timed
	})}
}

type limited struct {
	context.Context
	at    time.Time
	timed func() context.Context
}

func (l limited) Deadline() (time.Time, bool) { return l.at, true }

func (l limited) Done() <-chan struct{} { return l.timed().Done() }

func (l limited) Err() error {
	if err := l.Context.Err(); err != nil || time.Now().Before(l.at) {
		return err
	}
	return context.DeadlineExceeded
}
