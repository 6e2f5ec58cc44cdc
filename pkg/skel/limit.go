package skel

import (
	"cmp"
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// Limits bound what a call may take. A zero field is the usual value; together they
// are less than the two minutes after which a kubelet gives up on us.
type Limits struct {
	Call     time.Duration // of every verb, up to the roll-back; 90 s
	Undo     time.Duration // of one step of the roll-back, so that the others have time left; 15 s
	RollBack time.Duration // of all of them; 20 s
}

func (l Limits) orDefault() Limits {
	return Limits{cmp.Or(l.Call, 90*time.Second), cmp.Or(l.Undo, 15*time.Second), cmp.Or(l.RollBack, 20*time.Second)}
}

// Most returns a context that ends after two thirds of the time that ctx has: what
// waits for locks leaves the rest to what can be done without them.
func Most(ctx context.Context) (context.Context, context.CancelFunc) {
	at, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(at)*2/3)
}

// notify returns a context that ends when the process is told to end. The process
// is not ended by such a signal any more. What our caller ignores, nohup for
// instance, we ignore as well.
func notify(ctx context.Context) context.Context {
	ignored := func(s os.Signal) bool { return signal.Ignored(s) }
	signals := []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}
	ctx, _ = signal.NotifyContext(ctx, slices.DeleteFunc(signals, ignored)...)
	return ctx
}
