package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// daemon holds the leases of this host's containers.
type daemon struct {
	flags
	log     *slog.Logger
	records statefile.Records[record]
	ctx     context.Context
	sockets threads // for containers' interfaces
	files   threads // for records: another process may have their lock
	running sync.WaitGroup
	mounts  mountTable

	mu     sync.Mutex
	leases map[string]*holder // by the attachment's hash
}

// holder is an attachment's lease. One goroutine drives it, hold; others wait for the
// channels, and look at shown.
type holder struct {
	record
	machine
	ns    *ns.NS                // kept open while there is a lease; nil: not opened yet
	used  string                // the path at which another use of it was last seen
	shown atomic.Pointer[lease] // the one that the interface has; nil: none
	stop  context.CancelFunc
	ready chan struct{} // closed when there was a lease
	done  chan struct{} // closed when hold has ended
	err   error         // why it has
	over  func() error  // finish, once
}

// isReady reports whether there was a lease: from then on the holder keeps it, and asks
// for another one when it is lost.
func (h *holder) isReady() bool {
	select {
	case <-h.ready:
		return true
	default:
		return false
	}
}

const (
	// listen is how long an exchange lasts at most: what is sent later is another one,
	// which looks anew whether the container is still there.
	listen = 4 * time.Second
	// look is how often a lease's container is looked for, when nothing else is to do.
	look        = time.Minute
	retryMax    = 10 * time.Second // the longest pause after a failure
	callTime    = 10 * time.Second // for a plugin to make its call, or the daemon to write the answer
	mostThreads = 4
)

// runDaemon is "dhcp daemon". It ends at a signal, and leaves the leases for its
// successor.
func runDaemon(env skel.Env) int {
	f, err := parseFlags(env)
	if err != nil {
		return 2
	}
	log := slog.New(slog.NewTextHandler(env.Stderr, nil))
	if err := newDaemon(env.Notify(context.Background()), f, log).run(env); err != nil {
		log.Error(err.Error())
		return 1
	}
	return 0
}

func newDaemon(ctx context.Context, f flags, log *slog.Logger) *daemon {
	return &daemon{flags: f, log: log, records: recordsOf(f.hostPrefix, f.socket), ctx: ctx,
		sockets: make(threads, mostThreads), files: make(threads, mostThreads), leases: map[string]*holder{}}
}

func (d *daemon) run(env skel.Env) error {
	l, err := d.listener(env)
	if err != nil {
		return fmt.Errorf("error getting listener: %w", err)
	}
	defer l.Close()
	if d.pidFile != "" {
		if !filepath.IsAbs(d.pidFile) {
			return fmt.Errorf("error writing pidfile %q: path not absolute", d.pidFile)
		}
		if err := os.WriteFile(d.pidFile, []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
			return fmt.Errorf("error writing pidfile %q: %w", d.pidFile, err)
		}
		defer os.Remove(d.pidFile)
	}
	if err := d.restore(); err != nil {
		return err
	}
	d.running.Go(func() {
		if err := d.mounts.watch(d.ctx); d.ctx.Err() == nil {
			d.log.Warn("the mount table is not watched", "error", err)
		}
	})
	d.log.Info("serving", "socket", l.Addr().String())
	stop := context.AfterFunc(d.ctx, func() { _ = l.Close() })
	defer stop()
	for {
		conn, err := l.AcceptUnix()
		if d.ctx.Err() != nil {
			d.running.Wait()
			return nil
		}
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			d.log.Warn("no call for a second", "error", err)
			select {
			case <-d.ctx.Done():
			case <-time.After(time.Second):
			}
			continue
		}
		if err != nil {
			return err
		}
		d.running.Go(func() { d.answer(conn) })
	}
}

// listener takes the socket that systemd passes, or makes one. It replaces one that
// nobody serves, which a killed daemon leaves behind.
func (d *daemon) listener(env skel.Env) (*net.UnixListener, error) {
	if n := passed(env); n > 1 {
		return nil, fmt.Errorf("too many (%d) FDs passed through socket activation", n)
	} else if n == 1 {
		const first = 3
		l, err := net.FileListener(os.NewFile(first, "systemd"))
		if unixListener, ok := l.(*net.UnixListener); ok {
			return unixListener, nil
		}
		return nil, errors.Join(errors.New("systemd passed no UNIX socket"), err)
	}
	addr := &net.UnixAddr{Name: d.hostPrefix + d.socket, Net: "unix"}
	if err := os.MkdirAll(filepath.Dir(addr.Name), 0o700); err != nil {
		return nil, err
	}
	alone, err := statefile.OpenStore[record](d.ctx, d.records.Path, d.records.Wait) // one daemon at a time
	if err != nil {
		return nil, err
	}
	defer alone.Close()
	conn, err := net.DialUnix("unix", nil, addr)
	if err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("a daemon serves %s already", addr.Name)
	}
	// A file that is no socket refuses, too, and is not ours to remove.
	if info, _ := os.Lstat(addr.Name); errors.Is(err, unix.ECONNREFUSED) && info.Mode().Type() == os.ModeSocket {
		if err := os.Remove(addr.Name); err != nil {
			return nil, err
		}
	}
	defer unix.Umask(unix.Umask(0o177))
	return net.ListenUnix("unix", addr)
}

// passed is the number of sockets from systemd.
func passed(env skel.Env) (n int) {
	for _, kv := range env.Vars {
		if count, ok := strings.CutPrefix(kv, "LISTEN_FDS="); ok {
			n, _ = strconv.Atoi(count)
		}
	}
	if !slices.Contains(env.Vars, "LISTEN_PID="+strconv.Itoa(os.Getpid())) {
		return 0
	}
	return n
}

// restore takes over the leases of a former daemon. Those whose renewal is due are asked
// for again (INIT-REBOOT); those whose container is gone end with the first look.
func (d *daemon) restore() error {
	all, err := d.records.All(context.Background())
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range all {
		h := d.newHolder(*r)
		h.lease = r.kept()
		h.shown.Store(h.lease)
		if h.FormerRoutes != nil { // the former daemon may not have come to change the interface
			h.shown.Store(leaseOf(h.FormerACK, h.Since))
		}
		close(h.ready)
		switch now := sinceBoot(); {
		case h.lease == nil:
		case now >= h.lease.renew:
			h.enter(rebooting, now)
		default:
			h.settle()
		}
		d.start(h)
	}
	return err
}

func (d *daemon) newHolder(r record) *holder {
	return &holder{record: r, machine: machine{client: r.Client, pauses: d.flags},
		ready: make(chan struct{}), done: make(chan struct{})}
}

func (d *daemon) start(h *holder) {
	d.leases[h.Hash()] = h
	h.over = sync.OnceValue(func() error { return d.finish(h) })
	var ctx context.Context
	ctx, h.stop = context.WithCancel(d.ctx)
	d.running.Go(func() {
		defer close(h.done)
		h.err = d.hold(ctx, h)
	})
}

func sinceBoot() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // which cannot fail
	return time.Duration(ts.Nano())
}

// hold acquires a lease and keeps it until ctx ends or the container is gone.
func (d *daemon) hold(ctx context.Context, h *holder) error {
	for {
		changed := d.mounts.next() // what changes from here on is seen
		err := d.exchange(ctx, h)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// A main plugin may take the link down for a moment.
		if errors.Is(err, errGone) || err != nil && !h.isReady() && !errors.Is(err, unix.ENETDOWN) {
			d.log.Info("dropped", "lease", h.Attachment.String(), "why", err)
			return errors.Join(err, h.over())
		}
		pause := min(h.wake-sinceBoot(), look)
		if err != nil {
			d.log.Warn("failed", "lease", h.Attachment.String(), "state", string(h.state), "error", err)
			pause = min(max(pause, time.Second), retryMax)
		}
		if d.rest(ctx, h, pause, changed); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// rest waits for a while, or until the namespace has lost its path.
func (d *daemon) rest(ctx context.Context, h *holder, pause time.Duration, changed <-chan struct{}) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for isThere := true; isThere; {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			return
		case <-changed:
			changed = d.mounts.next()
			d.sockets.few(func() { isThere = leads(h.used, h.NS) })
		}
	}
}

// open is openLink for a holder whose namespace others have, too.
func (d *daemon) open(h *holder) (l *link, err error) {
	d.sockets.few(func() {
		if err = d.reach(h); err == nil {
			l, err = openLink(h.ns, &h.record)
		}
	})
	return l, err
}

// threads has an element for each thread that few occupies, mostThreads at a time.
type threads chan struct{}

// few calls what blocks in the kernel, and so occupies a thread: for so many holders
// at a time, the others wait without a thread.
func (t threads) few(do func()) {
	t <- struct{}{}
	defer func() { <-t }()
	do()
}

// exchange sends what is to be sent now, and listens for the answers.
func (d *daemon) exchange(ctx context.Context, h *holder) error {
	l, err := d.open(h)
	if err != nil {
		return err
	}
	defer d.sockets.few(l.close)
	if h.MAC == nil {
		if h.fault = l.raise(ctx); h.fault != nil {
			return h.fault
		}
	}
	// Links of ipvlan share a MAC address: an answer to it finds none that has no address.
	h.MAC, h.Broadcast = l.MAC, d.broadcast || l.Kind == "ipvlan"
	h.Client = h.client
	for end := sinceBoot() + listen; ; {
		now := sinceBoot()
		if p := h.tick(now); p != nil {
			if _, err := l.send(ctx, p); err != nil {
				return err
			}
		}
		if err := d.publish(l, h); err != nil || h.state == bound || now >= end || ctx.Err() != nil {
			return err
		}
		message, err := l.receive(ctx, min(h.wake, end)-now)
		if err != nil {
			return err
		}
		if message != nil {
			h.receive(sinceBoot(), message)
		}
	}
}

// publish records a change of the lease, and then applies it to the interface. The plugin applies the first
// lease. A step that fails is repeated in the next exchange.
func (d *daemon) publish(l *link, h *holder) (err error) {
	was, is, isFirst := h.shown.Load(), h.lease, !h.isReady()
	if was == is {
		return nil
	}
	isPending := h.FormerRoutes != nil // a change is unfinished, or the lease was lost and its routes are remembered
	isSame := slices.Equal(l.routes(was, h.options), l.routes(is, h.options))
	changes := !isFirst && (isPending || !isSame)
	if changes && !isPending {
		if h.FormerRoutes, err = l.find(was, h.options); err != nil {
			return err
		}
	}
	if changes && was != nil {
		h.FormerACK = was.ack.ToBytes()
	}
	h.keep(is)
	err = d.put(h)
	if changes {
		err = errors.Join(err, l.apply(h.FormerRoutes, was, is, h.options))
	}
	if err != nil {
		return err
	}
	h.shown.Store(is)
	if is == nil {
		d.log.Warn("lost", "lease", h.Attachment.String(), "address", was.prefix(), "why", h.fault)
	} else {
		d.log.Info("leased", "lease", h.Attachment.String(), "address", is.prefix(), "for", is.expiry-is.since)
	}
	if isFirst {
		close(h.ready)
	}
	if !changes {
		return nil
	}
	h.FormerACK = nil
	if is != nil { // without a lease the places are kept for the next one
		h.FormerRoutes = nil
	}
	return d.put(h)
}

// put writes the record of a lease.
func (d *daemon) put(h *holder) (err error) {
	d.files.few(func() { err = d.records.Put(context.Background(), h.Hash(), h.record) })
	return err
}

// drop removes the record of a lease.
func (d *daemon) drop(a cni.Attachment) (err error) {
	d.files.few(func() { err = d.records.Drop(context.Background(), a.Hash()) })
	return err
}

// end ends a lease.
func (d *daemon) end(h *holder) error {
	h.stop()
	<-h.done
	return h.over()
}

// finish gives a lease back, as far as the interface is still there, and removes what is
// known of it. It removes the record first, and the holder after: as long as the holder is listed no other
// one of this attachment can write a record.
func (d *daemon) finish(h *holder) error {
	if h.lease != nil {
		says := []any{"lease", h.Attachment.String(), "address", h.lease.prefix()}
		if at, err := d.release(h); err != nil {
			d.log.Warn("the server may not know of a release", append(says, "error", err)...)
		} else {
			d.log.Info("released", append(says, "at", at.String())...)
		}
	}
	err := d.drop(h.Attachment)
	if h.ns != nil {
		_ = h.ns.Close()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.leases, h.Hash())
	return err
}

// release takes the address off, where the main plugin has not done so, and sends the
// server a RELEASE, at the MAC address that it returns. Whatever keeps the interface,
// nobody answers there to an address that is lent again. Nobody waits until the socket is
// closed: that takes the kernel as long as deleting the link, 10 ms and more, and both at
// once no longer.
func (d *daemon) release(h *holder) (at net.HardwareAddr, err error) {
	var l *link
	d.sockets.few(func() {
		if h.ns == nil {
			err = d.reach(h)
		}
		if err == nil {
			l, err = openLink(h.ns, &h.record)
		}
	})
	if err != nil {
		return nil, err
	}
	defer d.running.Go(func() { d.sockets.few(l.close) })
	if shown := h.shown.Load(); shown != nil {
		if err := l.conn.DelAddr(l.Index, shown.prefix()); err != nil {
			return nil, err
		}
	}
	p := h.release()
	at, err = l.send(context.Background(), p) // which takes less than a second
	if err == nil && at == nil {
		err = fmt.Errorf("nobody answers for %s, so that it went to all on the link", cmp.Or(p.hop, p.dst))
	}
	return at, err
}

// answer serves one call.
func (d *daemon) answer(conn *net.UnixConn) {
	defer conn.Close()
	if err := refuseOthers(conn); err != nil {
		d.log.Warn("refused", "error", err)
		return
	}
	_ = conn.SetDeadline(time.Now().Add(callTime)) // the errors are those of what follows
	// Who says nothing does not hold up the daemon's end.
	inTime := context.AfterFunc(d.ctx, func() { _ = conn.SetDeadline(time.Now()) })
	head, c, err := readCall(conn)
	if !inTime() || err != nil {
		d.log.Warn("no call", "error", err)
		return
	}
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	_ = conn.SetDeadline(time.Time{})
	heard := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, len(taken))) // until the plugin says taken, or ends
		heard <- err
		cancel()
	}()
	res, err := d.serve(ctx, head.ServiceMethod, c)
	_ = conn.SetWriteDeadline(time.Now().Add(callTime))
	failed := writeAnswer(conn, head, res, err)
	isNew := c.Exclusive && err == nil // else it may have been there before
	if isNew && failed == nil {
		// A plugin that was stopped may go on at any time: only the daemon's end limits the wait.
		limit := context.AfterFunc(d.ctx, func() { _ = conn.SetReadDeadline(time.Now().Add(callTime)) })
		failed = <-heard
		limit()
	}
	if failed != nil {
		d.log.Warn("nobody takes the answer", "method", head.ServiceMethod, "error", failed)
	}
	if failed != nil && isNew {
		_, _ = d.serve(ctx, methodRelease, c)
	}
}

// refuseOthers lets only root's processes ask: the socket may have come with other rights.
func refuseOthers(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, failed); err == nil && peer.Uid != 0 {
		err = fmt.Errorf("process %d is user %d's, and only root may ask", peer.Pid, peer.Uid)
	}
	return err
}

func (d *daemon) serve(ctx context.Context, method string, c rpcCall) (*cni.Result, error) {
	switch method {
	case methodStatus:
		return nil, nil
	case methodAllocate, methodRelease, methodCheck, methodCollect:
	default:
		return nil, errors.New(noMethod + method)
	}
	conf, err := cni.DecodeConfig(c.StdinData)
	if err != nil {
		return nil, err
	}
	a := cni.Attachment{Network: conf.Name, ContainerID: c.ContainerID, IfName: c.IfName}
	switch method {
	case methodAllocate:
		return d.allocate(ctx, a, c)
	case methodCheck:
		return d.check(a, c.Netns)
	case methodCollect:
		refs, listed, err := conf.ValidAttachments()
		if err != nil || !listed {
			return nil, err
		}
		return nil, d.collect(conf.Name, cni.NewSet(conf.Name, refs))
	}
	if h := d.find(a); h != nil {
		return nil, d.end(h)
	}
	return nil, d.drop(a) // there may be a record that could not be read
}

func (d *daemon) find(a cni.Attachment) *holder {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.leases[a.Hash()]
}

// allocate acquires a lease. The reference's plugin asks in CHECK, too: it gets the lease
// that there is.
func (d *daemon) allocate(ctx context.Context, a cni.Attachment, c rpcCall) (*cni.Result, error) {
	cfg, err := parseConfig(c.StdinData, c.Args)
	if err != nil {
		return nil, err
	}
	h, err := d.claim(a, c, cfg.options)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.total,
		fmt.Errorf("interface %q: no DHCP server answered within %s", a.IfName, d.total))
	defer cancel()
	select {
	case <-h.ready:
		return h.shown.Load().result(h.options), nil
	case <-h.done:
		return nil, cni.Errorf(cni.CodeTryAgain, "%w", h.err)
	case <-ctx.Done():
	}
	err = d.end(h)
	fault := h.fault
	if fault == nil {
		fault = context.Cause(ctx)
	}
	return nil, &cni.Error{Code: cni.CodeTryAgain, Msg: "no more tries", Details: errors.Join(fault, err).Error()}
}

// claim returns the attachment's holder, which it starts where there is none.
func (d *daemon) claim(a cni.Attachment, c rpcCall, o options) (*holder, error) {
	for {
		d.mu.Lock()
		h := d.leases[a.Hash()]
		if h == nil {
			h = d.newHolder(record{Attachment: a, Netns: c.Netns, Client: client{ID: clientID(a), options: o}})
			d.start(h)
			d.mu.Unlock()
			return h, nil
		}
		d.mu.Unlock()
		switch {
		case !h.isReady():
			return nil, cni.Errorf(cni.CodeTryAgain, "%s: another ADD waits for a server", a)
		case !d.isOf(h, c.Netns):
			if err := d.end(h); err != nil {
				return nil, err
			}
		case c.Exclusive:
			return nil, cni.Errorf(cni.CodeExists, "%s has a lease already", a)
		case h.shown.Load() == nil:
			return nil, cni.Errorf(cni.CodeTryAgain, "%s has lost its lease", a)
		default:
			return h, nil
		}
	}
}

// isOf reports whether a path leads to the namespace of a holder that is ready.
func (d *daemon) isOf(h *holder, path string) bool {
	n, err := ns.Open(d.hostPrefix + path)
	if err != nil {
		return false
	}
	defer n.Close()
	id, err := n.Identity()
	return err == nil && id.Is(h.NS)
}

func (d *daemon) check(a cni.Attachment, netns string) (*cni.Result, error) {
	h := d.find(a)
	if h == nil || !h.isReady() {
		return nil, cni.Errorf(cni.CodeDrift, "%s has no lease", a)
	}
	l := h.shown.Load()
	if l == nil || sinceBoot() >= l.expiry {
		return nil, cni.Errorf(cni.CodeDrift, "the lease of %s has expired, or the server refused it", a)
	}
	if !d.isOf(h, netns) {
		return nil, cni.Errorf(cni.CodeDrift, "%s has its lease in another namespace than %q", a, netns)
	}
	return l.result(h.options), nil
}

// collect ends the leases of a network's attachments that are not valid.
func (d *daemon) collect(network string, valid cni.Set) error {
	d.mu.Lock()
	var stale []*holder
	for _, h := range d.leases {
		if h.Network == network && !valid.Has(h.Attachment) && h.isReady() {
			stale = append(stale, h)
		}
	}
	d.mu.Unlock()
	var errs []error
	for _, h := range stale {
		errs = append(errs, d.end(h))
	}
	return errors.Join(errs...)
}
