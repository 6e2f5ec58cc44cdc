package dhcp

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// daemon is the state that all clients and calls share. It has a client for each lease.
type daemon struct {
	flags
	log                *slog.Logger
	records4, records6 *statefile.Store[record]
	ctx                context.Context
	threads            chan struct{}  // has an element for each running call of withThread
	recordMu           sync.Mutex     // held for writes, so that only one thread waits for the records' file lock
	goroutines         sync.WaitGroup // run waits for these before it returns
	fdClosed           chan struct{}  // gets an element when descriptors are closed

	mu      sync.Mutex
	clients map[clientKey]*client
}

// clientKey identifies a client by its attachment's hash and its address family.
type clientKey struct {
	hash string
	isV6 bool
}

const (
	callTime   = 10 * time.Second // limit for reading a call, and for writing its answer
	maxThreads = 4                // concurrent calls of withThread
)

func newDaemon(ctx context.Context, f flags, log *slog.Logger) *daemon {
	return &daemon{flags: f, log: log, records4: recordsFor(f.hostPrefix+leaseRoot, f.socket),
		records6: recordsFor(f.hostPrefix+lease6Root, f.socket), ctx: ctx, threads: make(chan struct{}, maxThreads),
		fdClosed: make(chan struct{}, 1), clients: map[clientKey]*client{}}
}

// client returns an attachment's client, or nil.
func (d *daemon) client(a cni.Attachment, isV6 bool) *client {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.clients[clientKey{a.Hash(), isV6}]
}

func (d *daemon) recordsOf(isV6 bool) *statefile.Store[record] {
	if isV6 {
		return d.records6
	}
	return d.records4
}

func (d *daemon) dropRecord(a cni.Attachment, isV6 bool) error {
	d.recordMu.Lock()
	defer d.recordMu.Unlock()
	return d.recordsOf(isV6).Drop(context.Background(), a.Hash())
}

// withThread calls do, which occupies a thread while it is in the kernel. At most maxThreads calls run simultaneously;
// other calls wait without a thread.
func (d *daemon) withThread(do func()) {
	d.threads <- struct{}{}
	defer func() {
		<-d.threads
		signal(d.fdClosed)
	}()
	do()
}

// signal adds an element to a channel with room for one, unless the channel is full.
func signal(events chan<- struct{}) {
	select {
	case events <- struct{}{}:
	default:
	}
}
