package dhcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// client is the DHCP client of one attachment. Its goroutine, run, acquires a lease and keeps it. Other goroutines
// wait for the channels, and read current; the record's namespace and interface only after ready is closed.
type client struct {
	record
	protocol
	*course
	*daemon
	log      *slog.Logger
	ns       *ns.NS                // nil until it is opened
	usedAt   string                // path of the last seen other use of the namespace; empty: none
	isUnseen bool                  // a process that cannot be read may use the namespace
	failed   string                // the last failure of an exchange; empty: it succeeded
	mounted  chan struct{}         // has an element after the mount table changed
	current  atomic.Pointer[lease] // the lease that the interface has; nil: none
	stop     context.CancelFunc    // ends run
	ready    chan struct{}         // closed when there was a lease: from then on a lost one is asked for again
	done     chan struct{}         // closed when run has returned
	err      error                 // what run returned
	finish   func() error          // release, once
}

// protocol is how a client asks for its lease, by packets on an open link.
type protocol interface {
	begin(ctx context.Context, l *link) error                      // prepares an exchange
	speak(ctx context.Context, l *link) error                      // sends what is to be sent now
	listen(ctx context.Context, l *link, wait time.Duration) error // waits for an answer
	resume(now time.Duration)                                      // goes on with the lease of a former daemon
	giveBack(l *link) (at string, err error)                       // tells the server, at which MAC address
	unanswered() string                                            // says who did not answer
}

const (
	// exchangeMax is how long an exchange lasts at most. The next one verifies again that the container is there.
	exchangeMax = 4 * time.Second
	// useInterval is how often a client that has nothing to send verifies that somebody uses the namespace.
	useInterval = time.Minute
	retryMax    = 10 * time.Second // the longest pause after a failure
)

func (d *daemon) newClient(r record) *client {
	c := &client{record: r, course: &course{flags: d.flags}, daemon: d,
		log: d.log.With("lease", r.Attachment.String()), mounted: make(chan struct{}, 1),
		ready: make(chan struct{}), done: make(chan struct{})}
	if r.Client.IPv6 == "" {
		c.protocol = &machine{identity: &c.Client, course: c.course}
	} else {
		c.protocol = &machine6{identity: &c.Client, course: c.course, iaid: iaidOf(r.Attachment), ifName: r.IfName}
	}
	c.finish = sync.OnceValue(c.release)
	return c
}

func (c *client) key() clientKey { return clientKey{c.Hash(), c.Client.isV6()} }

// start lists the client and starts its goroutine. The caller holds d.mu.
func (c *client) start() {
	c.clients[c.key()] = c
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
		pause := min(c.wake-sysctl.SinceBoot(), useInterval)
		was := c.failed
		c.failed = ""
		if err != nil {
			if c.failed = err.Error(); c.failed != was {
				c.log.Warn("failed", "state", string(c.state), "error", err)
			}
			pause = min(max(pause, time.Second), retryMax)
		}
		c.rest(ctx, pause)
	}
	return context.Cause(ctx)
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
			c.limited(func() { isUsed = c.usedAt == "" || leads(c.usedAt, c.NS) })
		}
	}
}

// exchange sends the due message and waits for answers, at most until the lease is lost, because the next exchange
// begins with another search for the namespace.
func (c *client) exchange(ctx context.Context) error {
	l, err := c.open(true)
	if err != nil {
		return err
	}
	defer c.limited(l.close)
	if c.Client.isFirst() {
		if c.fault = l.bringUp(ctx); c.fault != nil {
			return c.fault
		}
	}
	if err := c.begin(ctx, l); err != nil {
		return err
	}
	c.Client.MAC = l.MAC
	had := c.lease != nil
	for end := sysctl.SinceBoot() + exchangeMax; ; {
		if err := c.speak(ctx, l); err != nil {
			return err
		}
		now, isLost := sysctl.SinceBoot(), had && c.lease == nil
		if err := c.publish(l); err != nil || c.state == bound || isLost || now >= end || ctx.Err() != nil {
			return err
		}
		if err := c.listen(ctx, l, min(c.wake, end)-now); err != nil {
			return err
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
	had, has := was.result(c.Client.options), is.result(c.Client.options)
	// A change that is unfinished goes on, and the routes of a lost lease are those of the next one.
	changes := c.FormerRoutes != nil || c.isReady() && !slices.Equal(l.routes(had), l.routes(has))
	if changes && c.FormerRoutes == nil {
		if c.FormerRoutes, err = l.find(had); err != nil {
			return err
		}
	}
	if changes && was != nil {
		c.FormerACK = was.bytes()
	}
	c.setLease(is)
	if err = c.put(); changes {
		err = errors.Join(err, l.apply(c.FormerRoutes, had, has))
	}
	if err != nil {
		return err
	}
	c.current.Store(is)
	if is == nil {
		c.log.Warn("lost", "address", was.String(), "why", c.fault)
	} else {
		c.log.Info("leased", "address", is.String(), "for", is.expiry-is.since)
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
	return c.store(c.Client.isV6()).Put(context.Background(), c.record)
}

// release gives the lease back, as far as the interface is still there, and forgets it. The record goes before the
// client: as long as the client is listed, no other client of this attachment can write a record.
func (c *client) release() error {
	if l := cmp.Or(c.lease, c.current.Load()); l != nil {
		log := c.log.With("address", l.String())
		if at, err := c.sendRelease(); err != nil {
			log.Warn("the server may not know of a release", "error", err)
		} else {
			log.Info("released", "at", at)
		}
	}
	if c.ns != nil {
		c.limited(func() { _ = c.ns.Close() })
	}
	err := c.drop(c.Attachment, c.Client.isV6())
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.clients, c.key())
	return err
}

// sendRelease removes the address if the main plugin has not done so, so that the interface does not answer for an
// address that the server lends again. Then it sends the server a RELEASE, unless the lease has ended. It returns the
// MAC address to which the RELEASE went.
func (c *client) sendRelease() (at string, err error) {
	l, err := c.open(false)
	if err != nil {
		return "", err
	}
	// Closing the socket takes the kernel 10 ms and more. DEL does not wait for it.
	defer c.running.Go(func() { c.limited(l.close) })
	for _, ip := range c.current.Load().result(options{}).IPs {
		if err := l.conn.DelAddr(l.Index, ip.Address); err != nil {
			return "", err
		}
	}
	if c.lease == nil || sysctl.SinceBoot() >= c.lease.expiry {
		return "no server", nil
	}
	return c.giveBack(l)
}

func (m *machine) begin(_ context.Context, l *link) error {
	// The links of ipvlan share a MAC address: before a link has its IP address, no answer to the MAC address finds it.
	m.Broadcast = m.flags.broadcast || l.Kind == "ipvlan"
	return nil
}

func (m *machine) speak(ctx context.Context, l *link) (err error) {
	if p := m.tick(sysctl.SinceBoot()); p != nil {
		_, err = l.send(ctx, p)
	}
	return err
}

func (m *machine) listen(ctx context.Context, l *link, wait time.Duration) error {
	message, err := l.receive(ctx, wait)
	if message != nil && err == nil {
		m.receive(sysctl.SinceBoot(), message)
	}
	return err
}

func (m *machine) resume(now time.Duration) {
	if now >= m.lease.renew {
		m.enter(rebooting, now)
	} else {
		m.enterBound()
	}
}

func (m *machine) giveBack(l *link) (string, error) {
	p := m.releasePacket()
	at, err := l.send(context.Background(), p) // it takes less than a second
	if err == nil && at == nil {
		err = fmt.Errorf("nobody answers for %s, so that it went to all on the link", cmp.Or(p.hop, p.dst))
	}
	return at.String(), err
}

func (m *machine) unanswered() string { return "no DHCP server answered" }
