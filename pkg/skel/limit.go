package skel

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// How long a call may take, together less than the two minutes after which a
// kubelet gives up on us.
const (
	callTimeout = 90 * time.Second
	// undoTimeout is one undo's share of rollBackTimeout: what waits for a lock
	// must not leave the others without any.
	undoTimeout     = 15 * time.Second
	rollBackTimeout = 20 * time.Second
)

// Limits bound what a call may take. A zero field is the usual value.
type Limits struct {
	Call     time.Duration // of every verb, up to the roll-back; 90 s
	Undo     time.Duration // of one step of the roll-back; 15 s
	RollBack time.Duration // of all of them; 20 s
}

func (l Limits) orDefault() Limits {
	return Limits{cmp.Or(l.Call, callTimeout), cmp.Or(l.Undo, undoTimeout), cmp.Or(l.RollBack, rollBackTimeout)}
}

// Limit returns a context that ends after d. It sets a timer, which costs a
// process its first threads for waiting, only when somebody waits for it.
func Limit(ctx context.Context, d time.Duration) context.Context {
	at := time.Now().Add(d)
	if earlier, ok := ctx.Deadline(); ok && earlier.Before(at) {
		return ctx
	}
	return limited{ctx, at, sync.OnceValue(func() context.Context {
		// A deadline of ctx comes later and need not have a timer.
		if l, ok := ctx.(limited); ok {
			ctx = l.Context
		}
		timed, cancel := context.WithDeadline(ctx, at)
		context.AfterFunc(timed, cancel)
		return timed
	})}
}

// Most returns a context that ends after two thirds of the time that ctx has: what
// waits for locks leaves the rest to what can be done without them.
func Most(ctx context.Context) context.Context {
	at, ok := ctx.Deadline()
	if !ok {
		return ctx
	}
	return Limit(ctx, time.Until(at)*2/3)
}

type limited struct {
	context.Context
	at    time.Time
	timed func() context.Context
}

func (l limited) Deadline() (time.Time, bool) { return l.at, true }

// Untimed is the context without the deadline, for those who keep that
// themselves.
func (l limited) Untimed() context.Context {
	if outer, ok := l.Context.(limited); ok {
		return outer.Untimed()
	}
	return l.Context
}

func (l limited) Done() <-chan struct{} { return l.timed().Done() }

func (l limited) Err() error {
	if err := l.Context.Err(); err != nil || time.Now().Before(l.at) {
		return err
	}
	return context.DeadlineExceeded
}
