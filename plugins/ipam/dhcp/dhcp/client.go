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

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// client holds one lease of an attachment. Its goroutine, run, acquires the lease and renews it. Other goroutines wait
// for the channels and read applied. They read the record's namespace and interface only after ready is closed.
type client struct {
	record       record
	protocol     protocol  // DHCPv4 or IPv6
	progress     *progress // shared with the protocol's state machine
	daemon       *daemon
	log          *slog.Logger
	ns           *ns.NS                // container's namespace; nil until it is opened
	usePath      string                // path by which something other than the daemon uses the namespace; empty: none
	isUncertain  bool                  // a process that cannot be read may use the namespace
	lastError    string                // error of the last exchange; empty: none
	mountChanged chan struct{}         // has an element after the mount table changed
	applied      atomic.Pointer[lease] // the lease that the interface has; nil: none
	cancel       context.CancelFunc    // ends run
	ready        chan struct{}         // closed when the first lease is recorded; a later loss does not end the client
	done         chan struct{}         // closed when run has returned
	err          error                 // result of run
	cleanUpOnce  func() error          // cleanUp, on the first call
}

const (
	// exchangeTime limits an exchange. The next exchange verifies again that the namespace is used.
	exchangeTime  = 10 * time.Second
	useInterval   = time.Minute      // how often a client with nothing to send verifies that the namespace is used
	maxRetryPause = 10 * time.Second // longest pause after a failed exchange
)

// newClient returns a client for the lease of a record, which may be empty. The client is not started.
func (d *daemon) newClient(r record) *client {
	c := &client{record: r, progress: &progress{flags: d.flags}, daemon: d,
		log: d.log.With("lease", r.Attachment.String()), mountChanged: make(chan struct{}, 1),
		ready: make(chan struct{}), done: make(chan struct{})}
	if r.Client.IPv6 == "" {
		c.protocol = &machine{id: &c.record.Client, progress: c.progress}
	} else {
		c.protocol = &machine6{id: &c.record.Client, progress: c.progress, iaid: iaidOf(r.Attachment), ifName: r.IfName}
	}
	c.cleanUpOnce = sync.OnceValue(c.cleanUp)
	return c
}

func (c *client) key() clientKey { return clientKey{c.record.Hash(), c.record.Client.isV6()} }

// start adds the client to the daemon's clients and starts its goroutine. The caller holds daemon.mu.
func (c *client) start() {
	c.daemon.clients[c.key()] = c
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(c.daemon.ctx)
	c.daemon.goroutines.Go(func() {
		defer close(c.done)
		c.err = c.run(ctx)
	})
}

// end stops the client and releases its lease.
func (c *client) end() error {
	c.cancel()
	<-c.done
	return c.cleanUpOnce()
}

func (c *client) isReady() bool {
	select {
	case <-c.ready:
		return true
	default:
		return false
	}
}

// run acquires a lease and renews it until ctx ends or the container no longer exists. Before the first lease, an error
// also ends it.
func (c *client) run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := c.exchange(ctx)
		if ctx.Err() != nil {
			break
		}
		// A main plugin may take the link down briefly.
		endsADD := err != nil && !c.isReady() && !errors.Is(err, unix.ENETDOWN)
		if endsADD || isGone(err) {
			c.log.Info("dropped", "reason", err)
			return errors.Join(err, c.cleanUpOnce())
		}
		pause := min(c.progress.nextTick-sysctl.Uptime(), useInterval)
		if !c.isReady() { // only an exchange receives answers, and a slow server may answer the ADD at any time
			pause = 0
		}
		previous := c.lastError
		c.lastError = ""
		if err != nil {
			if c.lastError = err.Error(); c.lastError != previous {
				c.log.Warn("failed", "state", string(c.progress.state), "error", err)
			}
			pause = min(max(pause, time.Second), maxRetryPause)
		}
		c.wait(ctx, pause)
	}
	return context.Cause(ctx)
}

// wait waits for pause. It returns early if ctx ends, if the process to which usePath belongs ends, or if usePath is
// set and no longer refers to the client's namespace.
func (c *client) wait(ctx context.Context, pause time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	onExit(ctx, c.usePath, cancel)
	for isUnchanged := true; isUnchanged; {
		select {
		case <-ctx.Done():
			return
		case <-c.mountChanged:
			c.daemon.withThread(func() { isUnchanged = c.usePath == "" || hasInode(c.usePath, c.record.Netns) })
		}
	}
}

// exchange sends the messages that are due and waits for answers, until the state is BOUND, for at most exchangeTime.
// It also ends when the lease is lost, so that the next exchange calls checkUse, which then refuses an uncertain use.
func (c *client) exchange(ctx context.Context) error {
	l, err := c.openLink(true)
	if err != nil {
		return err
	}
	defer c.daemon.withThread(l.close)
	if c.record.Client.isFirst() {
		if c.progress.fault = l.bringUp(ctx); c.progress.fault != nil {
			return c.progress.fault
		}
	}
	if err := c.protocol.prepare(ctx, l); err != nil {
		return err
	}
	c.record.Client.MAC = l.MAC
	hadLease := c.progress.lease != nil
	for end := sysctl.Uptime() + exchangeTime; ; {
		if err := c.protocol.transmit(ctx, l); err != nil {
			return err
		}
		now, isLost := sysctl.Uptime(), hadLease && c.progress.lease == nil
		if err := c.publish(l); err != nil || c.progress.state == bound || isLost || now >= end || ctx.Err() != nil {
			return err
		}
		if err := c.protocol.awaitAnswer(ctx, l, min(c.progress.nextTick, end)-now); err != nil {
			return err
		}
	}
}

// openLink opens the interface. It returns an error if nothing else uses the namespace, unless mustBeUsed is false and
// the namespace is already open.
func (c *client) openLink(mustBeUsed bool) (l *link, err error) {
	c.daemon.withThread(func() {
		if mustBeUsed || c.ns == nil {
			err = c.openNetns()
		}
		if err == nil {
			l, err = openLink(c.ns, &c.record)
		}
	})
	return l, err
}

// publish writes a change of the lease to the record and then applies it to the interface:
//
//	interface has      state machine has      publish
//	-------------      -----------------      -------
//	nothing, in ADD    the first lease        writes the record; the main plugin configures the interface
//	a lease            the same addresses     writes the record
//	                   and routes
//	a lease            another lease          writes both leases, changes the interface, writes the new one
//	a lease            none (it is lost)      removes addresses and routes; FormerRoutes keeps the routes' places
//	nothing, later     another lease          adds addresses and routes at the places of FormerRoutes
//
// FormerRoutes is set before the first change of the interface and cleared after the last one. Therefore, if a step
// fails or the daemon ends, the next exchange or daemon repeats the change.
func (c *client) publish(l *link) (err error) {
	former, next := c.applied.Load(), c.progress.lease
	if former == next {
		return nil
	}
	formerRes, nextRes := former.result(c.record.Client.options), next.result(c.record.Client.options)
	isChange := c.record.FormerRoutes != nil || c.isReady() && !slices.Equal(l.routes(formerRes), l.routes(nextRes))
	if isChange && c.record.FormerRoutes == nil {
		if c.record.FormerRoutes, err = l.findRoutes(formerRes); err != nil {
			return err
		}
	}
	if isChange && former != nil {
		c.record.FormerACK = former.encode()
	}
	c.record.setLease(next)
	if err = c.writeRecord(); isChange { // even after an error, because a lost address must not stay on the interface
		err = errors.Join(err, l.apply(c.record.FormerRoutes, formerRes, nextRes))
	}
	if err != nil {
		return err
	}
	c.applied.Store(next)
	if next == nil {
		c.log.Warn("lost", "address", former.String(), "reason", c.progress.fault)
	} else {
		c.log.Info("leased", "address", next.String(), "for", next.expiry-next.since)
	}
	if !c.isReady() {
		close(c.ready)
	}
	if !isChange {
		return nil
	}
	c.record.FormerACK = nil
	if next != nil {
		c.record.FormerRoutes = nil
	}
	return c.writeRecord()
}

func (c *client) writeRecord() error {
	c.daemon.recordMu.Lock()
	defer c.daemon.recordMu.Unlock()
	return c.daemon.recordsOf(c.record.Client.isV6()).Put(context.Background(), c.record)
}

// cleanUp releases the lease if the interface exists, and removes the record and the client. It removes the record
// first: while the client is in the daemon's list, no other client of this attachment can write a record.
func (c *client) cleanUp() error {
	if l := cmp.Or(c.progress.lease, c.applied.Load()); l != nil {
		log := c.log.With("address", l.String())
		if recipient, err := c.releaseLease(); err != nil {
			log.Warn("the server may not have received the release", "error", err)
		} else {
			log.Info("released", "at", recipient)
		}
	}
	if c.ns != nil {
		c.daemon.withThread(func() { _ = c.ns.Close() })
	}
	err := c.daemon.dropRecord(c.record.Attachment, c.record.Client.isV6())
	c.daemon.mu.Lock()
	defer c.daemon.mu.Unlock()
	delete(c.daemon.clients, c.key())
	return err
}

// releaseLease removes the leased addresses from the interface, unless the main plugin has done so, and then sends a
// release to the server. In this order, the interface never answers for an address that the server has leased to
// another client. It returns the recipient for the log: the MAC address to which a DHCPRELEASE was sent, the DUID of a
// DHCPv6 server, or "no server".
func (c *client) releaseLease() (recipient string, err error) {
	l, err := c.openLink(false)
	if err != nil {
		return "", err
	}
	// DEL does not wait while the kernel closes the socket, which takes 10 ms or more.
	defer c.daemon.goroutines.Go(func() { c.daemon.withThread(l.close) })
	for _, ip := range c.applied.Load().result(options{}).IPs {
		if err := l.conn.DelAddr(l.Index, ip.Address); err != nil {
			return "", err
		}
	}
	if c.progress.lease == nil || sysctl.Uptime() >= c.progress.lease.expiry {
		return "no server", nil
	}
	return c.protocol.sendRelease(l)
}

// openNetns verifies that the namespace is used, and opens it if it is not open, so that the lease can be renewed and
// released after the path is removed. It returns errGone if nothing else uses the namespace, because the daemon's
// descriptor must not keep an unused namespace. A use is the path, a process, or a mount that a process sees. A
// descriptor of another process is not a use, because it may belong to another daemon, and the two daemons would keep
// the namespace for each other.
func (c *client) openNetns() error {
	if c.ns != nil && hasInode(c.usePath, c.record.Netns) {
		return nil
	}
	isIdentified := c.record.Index != 0 // record.Netns is set
	c.usePath = c.daemon.hostPrefix + c.record.NetnsPath
	if isIdentified && !hasInode(c.usePath, c.record.Netns) {
		if err := c.checkUse(); err != nil {
			return fmt.Errorf("network namespace %q: %w", c.record.NetnsPath, err)
		}
	}
	if c.ns != nil { // while the descriptor is open, no other namespace has the inode
		return nil
	}
	n, err := ns.Open(c.usePath)
	if !isIdentified && isGone(err) { // the main plugin has opened it, so only the daemon does not see it
		err = fmt.Errorf("%w; the daemon must see it: in a pod, mount /run/netns with HostToContainer propagation, "+
			"or start the daemon with -hostprefix", err)
	}
	if err != nil {
		return err
	}
	id, err := n.Identity()
	if err == nil && isIdentified && !id.Is(c.record.Netns) {
		err = fmt.Errorf("network namespace %q: %w; its inode belongs to another one now", c.record.NetnsPath, errGone)
	}
	if err != nil {
		return errors.Join(err, n.Close())
	}
	if c.ns = n; !isIdentified { // written only once, because other goroutines read it after the first lease
		c.record.Netns = id
	}
	return nil
}

// checkUse finds another use of the namespace and sets usePath. If a process cannot be read, the namespace is treated
// as used until the lease ends. After that, it returns errGone, because the address must not stay, and the daemon's
// descriptor may be the only thing that keeps the namespace.
func (c *client) checkUse() error {
	var err error
	c.usePath, err = findUse(c.daemon.hostPrefix, c.record.Netns)
	isCertain := err == nil || errors.Is(err, errGone)
	if !isCertain && !c.isUncertain {
		c.log.Warn("namespace may be used by a process that cannot be read; keeping the lease while the server "+
			"renews it", "path", c.record.NetnsPath, "error", err)
	}
	c.isUncertain = !isCertain
	switch {
	case err == nil:
		c.log.Info("namespace is no longer at its path", "path", c.record.NetnsPath, "now", c.usePath)
	case isCertain:
	case c.progress.lease == nil || sysctl.Uptime() >= c.progress.lease.expiry:
		err = fmt.Errorf("the lease has ended, and as far as processes could be read, %w", errGone)
	case c.ns == nil: // after a restart: there is no descriptor through which to renew the lease
		err = errUncertain
	default:
		err = nil
	}
	return err
}

// await waits for the client's first lease. It returns false if the client or ctx ends first.
func (c *client) await(ctx context.Context) (hasLease bool) {
	select {
	case <-c.ready:
		return true
	case <-c.done:
	case <-ctx.Done():
	}
	return false
}

// failure returns the error of a client that got no lease. ctxErr is the error of the ADD's context, or nil if the
// client ended first. endErr is the error of ending the ADD's clients.
func (c *client) failure(ctxErr, endErr error) error {
	if ctxErr == nil {
		return cni.Errorf(cni.CodeTryAgain, "%w", errors.Join(c.err, endErr))
	}
	if errors.Is(ctxErr, context.DeadlineExceeded) {
		ctxErr = fmt.Errorf("interface %q: %s within %s", c.record.IfName, c.protocol.noAnswer(), c.daemon.addTime)
	}
	err := errors.Join(cmp.Or(c.progress.fault, ctxErr), endErr)
	return &cni.Error{Code: cni.CodeTryAgain, Msg: "no more tries", Details: err.Error()}
}
