package skel

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// notify returns a context that ends when the process is told to end. The process
// is not ended by such a signal any more. What our caller ignores, nohup for
// instance, we ignore as well.
func notify(ctx context.Context) context.Context {
	ignored := func(s os.Signal) bool { return signal.Ignored(s) }
	ctx, _ = signal.NotifyContext(ctx, slices.DeleteFunc([]os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}, ignored)...)
	return ctx
}
