package dhcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/skel/start"
	"github.com/hawser-cni/plugins/pkg/statefile"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// daemon serves the plugins on this host, and has a client for each lease.
type daemon struct {
	flags
	log               *slog.Logger
	records, records6 statefile.Records[record]
	ctx               context.Context
	threads           chan struct{} // has an element for each thread that limited occupies
	writing           sync.Mutex    // of records: one thread waits for their lock, not one for each client
	running           sync.WaitGroup
	freed             chan struct{} // gets an element when descriptors are closed

	mu      sync.Mutex
	clients map[clientKey]*client
}

// clientKey is an attachment's hash, and one of its address families.
type clientKey struct {
	hash string
	isV6 bool
}

const (
	callTime    = 10 * time.Second // for a plugin to make its call, or the daemon to write the answer
	threadsMost = 4
)

// runDaemon is "dhcp daemon". It ends at a signal, and leaves the leases to the next one.
func runDaemon(env skel.Env) int {
	runtime.GOMAXPROCS(start.Processors)
	f, err := parseFlags(env)
	if err != nil {
		return 2
	}
	log := slog.New(slog.NewTextHandler(env.Stderr, nil))
	ctx, stop := context.WithCancelCause(context.Background())
	env.Notify(stop)
	if err := newDaemon(ctx, f, log).run(env); err != nil {
		log.Error(err.Error())
		return 1
	}
	return 0
}

func newDaemon(ctx context.Context, f flags, log *slog.Logger) *daemon {
	return &daemon{flags: f, log: log, records: recordsIn(f.hostPrefix+leaseRoot, f.socket),
		records6: recordsIn(f.hostPrefix+lease6Root, f.socket), ctx: ctx, threads: make(chan struct{}, threadsMost),
		freed: make(chan struct{}, 1), clients: map[clientKey]*client{}}
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
		if err := d.watchMounts(); d.ctx.Err() == nil {
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
		if errors.Is(err, unix.EMFILE) { // ENFILE is no error of root's processes
			d.log.Warn("no call until a descriptor is closed", "error", err)
			select {
			case <-d.ctx.Done():
			case <-d.freed:
			}
			continue
		}
		if err != nil {
			return err
		}
		d.running.Go(func() { d.answer(conn) })
	}
}

// listener takes the socket that systemd passes, or makes one. It replaces one that nobody serves.
func (d *daemon) listener(env skel.Env) (*net.UnixListener, error) {
	switch n := passed(env); n {
	case "", "0":
	case "1":
		const first = 3
		l, err := net.FileListener(os.NewFile(first, "systemd"))
		if unixListener, ok := l.(*net.UnixListener); ok {
			return unixListener, nil
		}
		return nil, errors.Join(errors.New("systemd passed no UNIX socket"), err)
	default:
		return nil, fmt.Errorf("too many (%s) FDs passed through socket activation", n)
	}
	addr := &net.UnixAddr{Name: d.hostPrefix + d.socket, Net: "unix"}
	if err := os.MkdirAll(filepath.Dir(addr.Name), 0o700); err != nil {
		return nil, err
	}
	alone, err := d.records.Open(d.ctx) // one daemon at a time
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
	mask := unix.Umask(0o177)
	defer unix.Umask(mask)
	return net.ListenUnix("unix", addr)
}

// passed is the number of sockets from systemd; empty: it passes none to this process.
func passed(env skel.Env) string {
	for _, kv := range env.Vars {
		n, ok := strings.CutPrefix(kv, "LISTEN_FDS=")
		if ok && slices.Contains(env.Vars, "LISTEN_PID="+strconv.Itoa(os.Getpid())) {
			return n
		}
	}
	return ""
}

// restore takes over the leases of a former daemon. Those whose renewal is due are asked
// for again (INIT-REBOOT); those whose container is gone end at once.
func (d *daemon) restore() error {
	all, err := d.records.All(context.Background())
	all6, err6 := d.records6.All(context.Background())
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range append(all, all6...) {
		c := d.newClient(*r)
		c.lease = c.leaseOf(c.ACK)
		c.current.Store(c.lease)
		if c.FormerRoutes != nil { // the former daemon may not have come to change the interface
			c.current.Store(c.leaseOf(c.FormerACK))
		}
		close(c.ready)
		if c.lease != nil {
			c.resume(sysctl.SinceBoot())
		}
		c.start()
	}
	return errors.Join(err, err6)
}

// limited calls do, which occupies a thread in the kernel, for a few clients at a time. Others wait without a thread.
func (d *daemon) limited(do func()) {
	d.threads <- struct{}{}
	defer func() {
		<-d.threads
		notify(d.freed)
	}()
	do()
}

// notify puts an element into a channel that has room for one, unless it is there.
func notify(events chan<- struct{}) {
	select {
	case events <- struct{}{}:
	default:
	}
}

func (d *daemon) store(isV6 bool) statefile.Records[record] {
	if isV6 {
		return d.records6
	}
	return d.records
}

func (d *daemon) drop(a cni.Attachment, isV6 bool) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	return d.store(isV6).Drop(context.Background(), a.Hash())
}

// answer serves one call.
func (d *daemon) answer(conn *net.UnixConn) {
	defer notify(d.freed)
	defer conn.Close()
	if err := refuseOthers(conn); err != nil {
		d.log.Warn("refused", "error", err)
		return
	}
	_ = conn.SetDeadline(time.Now().Add(callTime)) // the errors are those of what follows
	// A client that sends nothing must not delay the daemon's end.
	inTime := context.AfterFunc(d.ctx, func() { _ = conn.SetDeadline(time.Now()) })
	head, c, err := readCall(conn)
	if !inTime() || err != nil {
		d.log.Warn("no call", "error", err)
		return
	}
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	_ = conn.SetDeadline(time.Time{})
	received := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, len(receipt))) // until the plugin confirms the answer, or ends
		received <- err
		cancel()
	}()
	res, err := d.serve(ctx, head.ServiceMethod, c)
	_ = conn.SetWriteDeadline(time.Now().Add(callTime))
	var answer any = struct{}{}
	if res != nil {
		answer = encode(res)
	}
	if err != nil {
		e := cni.AsError(err)
		head.Error, head.Details, head.Code = e.Msg, e.Details, e.Code
	}
	failed := writeGob(conn, head, answer)
	isNew := c.Exclusive && err == nil // else it may have been there before
	if isNew && failed == nil {
		// A plugin that was stopped may go on at any time: only the daemon's end limits the wait.
		limit := context.AfterFunc(d.ctx, func() { _ = conn.SetReadDeadline(time.Now().Add(callTime)) })
		failed = <-received
		limit()
	}
	if failed == nil {
		return
	}
	d.log.Warn("nobody takes the answer", "method", head.ServiceMethod, "error", failed)
	if isNew {
		_, _ = d.serve(ctx, methodRelease, c) // which logs what fails
	}
}

// refuseOthers lets only root's processes ask: the socket may have come with other rights.
func refuseOthers(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	closed := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(closed, err); err == nil && peer.Uid != 0 {
		err = fmt.Errorf("process %d is user %d's, and only root may ask", peer.Pid, peer.Uid)
	}
	return err
}

func (d *daemon) serve(ctx context.Context, method string, c rpcCall) (*cni.Result, error) {
	conf, err := cni.DecodeConfig(c.StdinData)
	if err != nil && method != methodStatus { // STATUS sends none
		return nil, err
	}
	a := cni.Attachment{Network: conf.Name, ContainerID: c.ContainerID, IfName: c.IfName}
	switch method {
	case methodStatus:
		return nil, nil
	case methodAllocate:
		return d.allocate(ctx, a, c)
	case methodRelease:
		return nil, d.release(a)
	case methodCheck:
		return d.check(a, c)
	case methodCollect:
		return nil, d.collect(conf)
	}
	return nil, errors.New(noMethod + method)
}

// release ends the leases of an attachment. Without a client there may be a record that could not be read.
func (d *daemon) release(a cni.Attachment) error {
	var errs []error
	for _, isV6 := range []bool{false, true} {
		if c := d.find(a, isV6); c != nil {
			errs = append(errs, c.end())
		} else {
			errs = append(errs, d.drop(a, isV6))
		}
	}
	return errors.Join(errs...)
}

func (d *daemon) find(a cni.Attachment, isV6 bool) *client {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.clients[clientKey{a.Hash(), isV6}]
}

// allocate acquires a lease of each family, or finds it: the reference's plugin asks in CHECK, too. Where one fails
// those that it acquired end.
func (d *daemon) allocate(ctx context.Context, a cni.Attachment, call rpcCall) (*cni.Result, error) {
	cfg, err := parseConfig(call.StdinData, call.Args)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.total)
	defer cancel()
	var all, started []*client
	for _, o := range cfg.families() {
		c, isNew, err := d.findOrStart(a, call, o)
		if err != nil {
			return nil, errors.Join(err, endAll(started))
		}
		if all = append(all, c); isNew {
			started = append(started, c)
		}
	}
	failed := make(chan *client, len(all)) // nil: has its lease
	for _, c := range all {
		go func() { failed <- c.await(ctx) }()
	}
	res := &cni.Result{}
	for range all {
		if c := <-failed; c != nil {
			timeUp := context.Cause(ctx)
			cancel()
			return nil, c.failure(timeUp, endAll(started))
		}
	}
	for _, c := range all {
		join(res, c.current.Load().result(c.Client.options))
	}
	return res, nil
}

// await waits until the client has a lease. Else it returns it.
func (c *client) await(ctx context.Context) *client {
	select {
	case <-c.ready:
		return nil
	case <-c.done:
	case <-ctx.Done():
	}
	return c
}

// join adds the result of another family to one.
func join(to, from *cni.Result) {
	to.IPs, to.Routes = append(to.IPs, from.IPs...), append(to.Routes, from.Routes...)
	to.DNS = joinDNS(to.DNS, from.DNS)
}

// failure says why a client that was ended has no lease. timeUp: why nobody waits any more.
func (c *client) failure(timeUp, ended error) error {
	if timeUp == nil {
		return cni.Errorf(cni.CodeTryAgain, "%w", errors.Join(c.err, ended))
	}
	if errors.Is(timeUp, context.DeadlineExceeded) {
		timeUp = fmt.Errorf("interface %q: %s within %s", c.IfName, c.unanswered(), c.total)
	}
	err := errors.Join(cmp.Or(c.fault, timeUp), ended)
	return &cni.Error{Code: cni.CodeTryAgain, Msg: "no more tries", Details: err.Error()}
}

// endAll ends them, some at a time: each may wait for a server that does not answer, with three descriptors.
func endAll(clients []*client) error {
	const most = 32
	errs, some := make([]error, len(clients)), make(chan struct{}, most)
	var ended sync.WaitGroup
	for i, c := range clients {
		some <- struct{}{}
		ended.Go(func() {
			errs[i] = c.end()
			<-some
		})
	}
	ended.Wait()
	return errors.Join(errs...)
}

// findOrStart returns the attachment's client, which it starts where there is none.
func (d *daemon) findOrStart(a cni.Attachment, call rpcCall, o options) (c *client, isNew bool, err error) {
	who := identity{ID: clientID(a), options: o}
	if o.isV6() {
		who.ID = duid(a)
	} else if own, ok := o.Provide[dhcpv4.OptionClientIdentifier.Code()]; ok {
		who.ID = own
	}
	for {
		d.mu.Lock()
		c := d.clients[clientKey{a.Hash(), o.isV6()}]
		if c == nil {
			c = d.newClient(record{Attachment: a, Netns: call.Netns, Client: who})
			c.start()
			d.mu.Unlock()
			return c, true, nil
		}
		d.mu.Unlock()
		switch {
		case !c.isReady():
			return nil, false, cni.Errorf(cni.CodeTryAgain, "%s: another ADD waits for a server", a)
		case !leads(c.hostPrefix+call.Netns, c.NS):
			if err := c.end(); err != nil {
				return nil, false, err
			}
		case call.Exclusive:
			return nil, false, cni.Errorf(cni.CodeExists, "%s has a lease already", a)
		case c.current.Load() == nil:
			return nil, false, cni.Errorf(cni.CodeTryAgain, "%s has lost its lease", a)
		default:
			return c, false, nil
		}
	}
}

// check verifies that there are the leases of a configuration, and returns them.
func (d *daemon) check(a cni.Attachment, call rpcCall) (*cni.Result, error) {
	cfg, err := parseConfig(call.StdinData, call.Args)
	if err != nil {
		return nil, err
	}
	res := &cni.Result{}
	for _, o := range cfg.families() {
		name := "lease"
		if o.isV6() {
			name = "IPv6 lease"
		}
		c := d.find(a, o.isV6())
		if c == nil || !c.isReady() {
			return nil, cni.Errorf(cni.CodeDrift, "%s has no %s", a, name)
		}
		l := c.current.Load()
		if l == nil || sysctl.SinceBoot() >= l.expiry {
			return nil, cni.Errorf(cni.CodeDrift, "the %s of %s has expired, or the server refused it", name, a)
		}
		if !leads(c.hostPrefix+call.Netns, c.NS) {
			return nil, cni.Errorf(cni.CodeDrift, "%s has its %s in another namespace than %q", a, name, call.Netns)
		}
		join(res, l.result(c.Client.options))
	}
	return res, nil
}

// collect ends the leases of a network's attachments that are not valid.
func (d *daemon) collect(conf *cni.Config) error {
	refs, listed, err := conf.ValidAttachments()
	if err != nil || !listed {
		return err
	}
	valid := cni.NewSet(conf.Name, refs)
	d.mu.Lock()
	var stale []*client
	for _, c := range d.clients {
		if valid.Excludes(c.Attachment) && c.isReady() {
			stale = append(stale, c)
		}
	}
	d.mu.Unlock()
	return endAll(stale)
}
