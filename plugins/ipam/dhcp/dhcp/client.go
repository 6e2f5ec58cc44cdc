package dhcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/ns"
)

// client is the DHCP client of one attachment. Its goroutine, run, acquires a lease and keeps it. Other goroutines
// wait for the channels, and read current; the record's namespace and interface only after ready is closed.
type client struct {
	record
	machine
	*daemon
	log     *slog.Logger
	ns      *ns.NS                // nil until it is opened
	usedAt  string                // the path at which another use of the namespace was last seen
	mounted chan struct{}         // has an element after the mount table changed
	current atomic.Pointer[lease] // the lease that the interface has; nil: none
	stop    context.CancelFunc    // ends run
	ready   chan struct{}         // closed when there was a lease: from then on a lost one is asked for again
	done    chan struct{}         // closed when run has returned
	err     error                 // what run returned
	finish  func() error          // release, once
}

const (
	// exchangeMax is how long an exchange lasts at most. The next one verifies again that the container is there.
	exchangeMax = 4 * time.Second
	// useInterval is how often a client that has nothing to send verifies that somebody uses the namespace.
	useInterval = time.Minute
	retryMax    = 10 * time.Second // the longest pause after a failure
)

func (d *daemon) newClient(r record) *client {
	c := &client{record: r, machine: machine{identity: r.Client, pauses: d.flags}, daemon: d,
		log: d.log.With("lease", r.Attachment.String()), mounted: make(chan struct{}, 1),
		ready: make(chan struct{}), done: make(chan struct{})}
	c.finish = sync.OnceValue(c.release)
	return c
}

// start lists the client and starts its goroutine. The caller holds d.mu.
func (c *client) start() {
	c.clients[c.Hash()] = c
	var ctx context.Context
	ctx, c.stop = context.WithCancel(c.ctx)
	c.running.Go(func() {
		defer close(c.done)
		c.err = c.run(ctx)
	})
}

// end ends the lease.
func (c *client) end() error {
	c.stop()
	<-c.done
	return c.finish()
}

func (c *client) isReady() bool {
	select {
	case <-c.ready:
		return true
	default:
		return false
	}
}

// run acquires a lease and keeps it until ctx ends or the container is gone.
func (c *client) run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := c.exchange(ctx)
		if ctx.Err() != nil {
			break
		}
		// A main plugin may take the link down for a moment.
		isFatal := err != nil && !c.isReady() && !errors.Is(err, unix.ENETDOWN)
		if isFatal || isGone(err) {
			c.log.Info("dropped", "why", err)
			return errors.Join(err, c.finish())
		}
		pause := min(c.wake-sinceBoot(), useInterval)
		if err != nil {
			c.log.Warn("failed", "state", string(c.state), "error", err)
			pause = min(max(pause, time.Second), retryMax)
		}
		c.rest(ctx, pause)
	}
	return context.Cause(ctx)
}

func sinceBoot() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // which cannot fail
	return time.Duration(ts.Nano())
}

// rest waits for a while, or until the namespace has lost the use at usedAt.
func (c *client) rest(ctx context.Context, pause time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	onExit(ctx, c.usedAt, cancel)
	for isUsed := true; isUsed; {
		select {
		case <-ctx.Done():
			return
		case <-c.mounted:
			c.limited(func() { isUsed = leads(c.usedAt, c.NS) })
		}
	}
}

// exchange sends what is to be sent now, and waits for the answers.
func (c *client) exchange(ctx context.Context) error {
	l, err := c.open(true)
	if err != nil {
		return err
	}
	defer c.limited(l.close)
	if c.MAC == nil {
		if c.fault = l.bringUp(ctx); c.fault != nil {
			return c.fault
		}
	}
	// The links of ipvlan share a MAC address: before a link has its IP address, no answer to the MAC address finds it.
	c.MAC, c.Broadcast = l.MAC, c.broadcast || l.Kind == "ipvlan"
	c.Client = c.identity
	for end := sinceBoot() + exchangeMax; ; {
		now := sinceBoot()
		if p := c.tick(now); p != nil {
			if _, err := l.send(ctx, p); err != nil {
				return err
			}
		}
		if err := c.publish(l); err != nil || c.state == bound || now >= end || ctx.Err() != nil {
			return err
		}
		message, err := l.receive(ctx, min(c.wake, end)-now)
		if err != nil {
			return err
		}
		if message != nil {
			c.receive(sinceBoot(), message)
		}
	}
}

// open opens the interface. isInUse demands that somebody else still uses the namespace.
func (c *client) open(isInUse bool) (l *link, err error) {
	c.limited(func() {
		if isInUse || c.ns == nil {
			err = c.reach()
		}
		if err == nil {
			l, err = openLink(c.ns, &c.record)
		}
	})
	return l, err
}

// publish records a change of the lease, and then applies it to the interface. The plugin applies the first
// lease. A step that fails is repeated in the next exchange.
func (c *client) publish(l *link) (err error) {
	was, is := c.current.Load(), c.lease
	if was == is {
		return nil
	}
	changes := c.isReady() && !slices.Equal(l.routes(was, c.options), l.routes(is, c.options))
	if c.FormerRoutes != nil { // a change is unfinished, or the lease was lost and its routes are remembered
		changes = true
	} else if changes {
		if c.FormerRoutes, err = l.find(was, c.options); err != nil {
			return err
		}
	}
	if changes && was != nil {
		c.FormerACK = was.ack.ToBytes()
	}
	c.setLease(is)
	if err = c.put(); changes {
		err = errors.Join(err, l.apply(c.FormerRoutes, was, is, c.options))
	}
	if err != nil {
		return err
	}
	c.current.Store(is)
	if is == nil {
		c.log.Warn("lost", "address", was.prefix(), "why", c.fault)
	} else {
		c.log.Info("leased", "address", is.prefix(), "for", is.expiry-is.since)
	}
	if !c.isReady() {
		close(c.ready)
	}
	if !changes {
		return nil
	}
	c.FormerACK = nil
	if is != nil { // without a lease the places are kept for the next one
		c.FormerRoutes = nil
	}
	return c.put()
}

func (c *client) put() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.records.Put(context.Background(), c.record)
}

// release gives the lease back, as far as the interface is still there, and forgets it. The record goes before the
// client: as long as the client is listed, no other client of this attachment can write a record.
func (c *client) release() error {
	if c.lease != nil {
		log := c.log.With("address", c.lease.prefix())
		if at, err := c.sendRelease(); err != nil {
			log.Warn("the server may not know of a release", "error", err)
		} else {
			log.Info("released", "at", at.String())
		}
	}
	if c.ns != nil {
		c.limited(func() { _ = c.ns.Close() })
	}
	err := c.drop(c.Attachment)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.clients, c.Hash())
	return err
}

// sendRelease takes the address off, where the main plugin has not done so, and sends the server a RELEASE. It returns
// the MAC address to which that went. So the interface does not answer for an address that the server lends again.
func (c *client) sendRelease() (at net.HardwareAddr, err error) {
	l, err := c.open(false)
	if err != nil {
		return nil, err
	}
	// Closing the socket takes the kernel 10 ms and more. DEL does not wait for it.
	defer c.running.Go(func() { c.limited(l.close) })
	if current := c.current.Load(); current != nil {
		if err := l.conn.DelAddr(l.Index, current.prefix()); err != nil {
			return nil, err
		}
	}
	p := c.releasePacket()
	at, err = l.send(context.Background(), p) // it takes less than a second
	if err == nil && at == nil {
		err = fmt.Errorf("nobody answers for %s, so that it went to all on the link", cmp.Or(p.hop, p.dst))
	}
	return at, err
}
