package dhcp

import (
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
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// runDaemon implements "dhcp daemon". It ends at a signal, and the next daemon continues its leases.
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

// run serves calls until d.ctx ends.
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
	d.restore()
	d.goroutines.Go(func() {
		if err := d.watchMounts(); d.ctx.Err() == nil {
			d.log.Warn("cannot watch the mount table", "error", err)
		}
	})
	d.log.Info("serving", "socket", l.Addr().String())
	stop := context.AfterFunc(d.ctx, func() { _ = l.Close() })
	defer stop()
	for {
		conn, err := l.AcceptUnix()
		if d.ctx.Err() != nil {
			d.goroutines.Wait()
			return nil
		}
		if errors.Is(err, unix.EMFILE) { // processes of root never get ENFILE
			d.log.Warn("waiting for a free file descriptor before the next call", "error", err)
			select {
			case <-d.ctx.Done():
			case <-d.fdClosed:
			}
			continue
		}
		if err != nil {
			return err
		}
		d.goroutines.Go(func() { d.handle(conn) })
	}
}

// listener returns the socket that systemd passes, or creates one. It replaces a stale socket.
func (d *daemon) listener(env skel.Env) (*net.UnixListener, error) {
	switch n := socketCount(env); n {
	case "", "0":
	case "1":
		const first = 3
		l, err := net.FileListener(os.NewFile(first, "systemd"))
		if unixListener, ok := l.(*net.UnixListener); ok {
			return unixListener, nil
		}
		return nil, errors.Join(errors.New("the descriptor from systemd is not a Unix socket"), err)
	default:
		return nil, fmt.Errorf("too many (%s) FDs passed through socket activation", n)
	}
	addr := &net.UnixAddr{Name: d.hostPrefix + d.socket, Net: "unix"}
	if err := os.MkdirAll(filepath.Dir(addr.Name), 0o700); err != nil {
		return nil, err
	}
	lock, err := d.records4.Open(d.ctx) // so that only one daemon at a time replaces a stale socket
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	conn, err := net.DialUnix("unix", nil, addr)
	if err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("another daemon serves %s", addr.Name)
	}
	// A file of another type also refuses the connection, but must not be removed.
	if info, _ := os.Lstat(addr.Name); errors.Is(err, unix.ECONNREFUSED) && info.Mode().Type() == os.ModeSocket {
		if err := os.Remove(addr.Name); err != nil {
			return nil, err
		}
	}
	mask := unix.Umask(0o177)
	defer unix.Umask(mask)
	return net.ListenUnix("unix", addr)
}

// socketCount returns the number of sockets that systemd passes to this process, as text, or "" without systemd.
func socketCount(env skel.Env) string {
	for _, kv := range env.Vars {
		n, ok := strings.CutPrefix(kv, "LISTEN_FDS=")
		if ok && slices.Contains(env.Vars, "LISTEN_PID="+strconv.Itoa(os.Getpid())) {
			return n
		}
	}
	return ""
}

// restore starts a client for each record of a former daemon. Leases whose renewal is due are requested again
// (INIT-REBOOT). Leases whose container no longer exists end immediately. The files of unreadable records stay.
func (d *daemon) restore() {
	all, err := d.records4.All()
	all6, err6 := d.records6.All()
	if err := errors.Join(err, err6); err != nil {
		d.log.Warn("cannot read all leases", "error", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range append(all, all6...) {
		c := d.newClient(*r)
		c.progress.lease = c.record.decodeLease(c.record.ACK)
		c.applied.Store(c.progress.lease)
		if c.record.FormerRoutes != nil { // the interface may still have the former lease (nil: none)
			c.applied.Store(c.record.decodeLease(c.record.FormerACK))
		}
		close(c.ready)
		if c.progress.lease != nil {
			c.protocol.resume(sysctl.Uptime())
		}
		c.start()
	}
	for _, isV6 := range []bool{false, true} {
		files, _ := filepath.Glob(d.recordsOf(isV6).Path + "/*.json") // a path without patterns
		for _, file := range files {
			if d.clients[clientKey{strings.TrimSuffix(filepath.Base(file), ".json"), isV6}] == nil {
				d.log.Warn("the lease of an unreadable record is not renewed", "file", file)
			}
		}
	}
}

// handle reads a call, carries it out and writes the answer. Without the plugin's receipt, it releases a new lease.
func (d *daemon) handle(conn *net.UnixConn) {
	defer signal(d.fdClosed)
	defer conn.Close()
	if err := checkPeer(conn); err != nil {
		d.log.Warn("refused", "error", err)
		return
	}
	_ = conn.SetDeadline(time.Now().Add(callTime)) // if this fails, so does the read below
	// A peer that sends nothing must not delay the daemon's end.
	stopWatch := context.AfterFunc(d.ctx, func() { _ = conn.SetDeadline(time.Now()) })
	head, c, err := readCall(conn)
	if !stopWatch() || err != nil {
		d.log.Warn("cannot read the call", "error", err)
		return
	}
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	_ = conn.SetDeadline(time.Time{})
	receiptErr := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, len(receipt))) // returns when the plugin confirms the answer or ends
		receiptErr <- err
		cancel()
	}()
	res, err := d.dispatch(ctx, head.ServiceMethod, c)
	_ = conn.SetWriteDeadline(time.Now().Add(callTime))
	var answer any = struct{}{}
	if res != nil {
		answer = encodeResult(res)
	}
	if err != nil {
		e := cni.AsError(err)
		head.Error, head.Details, head.Code = e.Msg, e.Details, e.Code
	}
	sendErr := writeGob(conn, head, answer)
	isNew := c.Exclusive && err == nil // otherwise the lease may be older than the call
	if isNew && sendErr == nil {
		// A stopped plugin may continue at any time, so only the daemon's end limits the wait.
		stopLimit := context.AfterFunc(d.ctx, func() { _ = conn.SetReadDeadline(time.Now().Add(callTime)) })
		sendErr = <-receiptErr
		stopLimit()
	}
	if sendErr == nil {
		return
	}
	d.log.Warn("the plugin did not receive the answer", "method", head.ServiceMethod, "error", sendErr)
	if isNew {
		_, _ = d.dispatch(ctx, methodRelease, c) // logs its errors
	}
}

// checkPeer refuses the calls of users other than root, because a socket from systemd may have any permissions.
func checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	controlErr := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(controlErr, err); err == nil && peer.Uid != 0 {
		err = fmt.Errorf("process %d belongs to user %d; only root may call the daemon", peer.Pid, peer.Uid)
	}
	return err
}

func (d *daemon) dispatch(ctx context.Context, method string, c rpcCall) (*cni.Result, error) {
	conf, err := cni.DecodeConfig(c.StdinData)
	if err != nil && method != methodStatus { // STATUS sends no configuration
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

// release ends the leases of an attachment. If there is no client, it removes the record, which may be unreadable.
func (d *daemon) release(a cni.Attachment) error {
	var errs []error
	for _, isV6 := range []bool{false, true} {
		if c := d.client(a, isV6); c != nil {
			errs = append(errs, c.end())
		} else {
			errs = append(errs, d.dropRecord(a, isV6))
		}
	}
	return errors.Join(errs...)
}

// allocate acquires a lease of each address family that the configuration requests. It also accepts an existing
// lease, because the reference plugin calls it in CHECK. If one family fails, it ends the leases that it acquired.
func (d *daemon) allocate(ctx context.Context, a cni.Attachment, call rpcCall) (*cni.Result, error) {
	cfg, err := parseConfig(call.StdinData, call.Args)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.addTime)
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
	failures := make(chan *client, len(all)) // gets each client that has no lease, and nil for the others
	for _, c := range all {
		go func() {
			if c.await(ctx) {
				failures <- nil
			} else {
				failures <- c
			}
		}()
	}
	for range all {
		if c := <-failures; c != nil {
			ctxErr := context.Cause(ctx)
			cancel()
			return nil, c.failure(ctxErr, endAll(started))
		}
	}
	res := &cni.Result{}
	for _, c := range all {
		mergeResult(res, c.applied.Load().result(c.record.Client.options))
	}
	return res, nil
}

func mergeResult(res, added *cni.Result) {
	res.IPs, res.Routes = append(res.IPs, added.IPs...), append(res.Routes, added.Routes...)
	res.DNS = mergeDNS(res.DNS, added.DNS)
}

// endAll ends clients, at most maxParallel at a time, because each has three descriptors while it waits for a server.
func endAll(clients []*client) error {
	const maxParallel = 32
	errs, slots := make([]error, len(clients)), make(chan struct{}, maxParallel)
	var ended sync.WaitGroup
	for i, c := range clients {
		slots <- struct{}{}
		ended.Go(func() {
			errs[i] = c.end()
			<-slots
		})
	}
	ended.Wait()
	return errors.Join(errs...)
}

// findOrStart returns the attachment's client for the address family of o. It starts a client if the attachment has
// none, or if the client's namespace differs from the call's. isNew is true if it started the client.
func (d *daemon) findOrStart(a cni.Attachment, call rpcCall, o options) (c *client, isNew bool, err error) {
	id := identity{ID: clientID(a), options: o}
	if o.isV6() {
		id.ID = duidOf(a)
	} else if provided, ok := o.Provide[dhcpv4.OptionClientIdentifier.Code()]; ok {
		id.ID = provided
	}
	for {
		d.mu.Lock()
		c := d.clients[clientKey{a.Hash(), o.isV6()}]
		if c == nil {
			c = d.newClient(record{Attachment: a, NetnsPath: call.Netns, Client: id})
			c.start()
			d.mu.Unlock()
			return c, true, nil
		}
		d.mu.Unlock()
		switch {
		case !c.isReady():
			return nil, false, cni.Errorf(cni.CodeTryAgain, "%s: another ADD is waiting for a server", a)
		case !hasInode(d.hostPrefix+call.Netns, c.record.Netns):
			if err := c.end(); err != nil {
				return nil, false, err
			}
		case call.Exclusive:
			return nil, false, cni.Errorf(cni.CodeExists, "%s has a lease already", a)
		case c.applied.Load() == nil:
			return nil, false, cni.Errorf(cni.CodeTryAgain, "%s has lost its lease", a)
		default:
			return c, false, nil
		}
	}
}

// check verifies that the attachment has the leases that the configuration requests, and returns them.
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
		c := d.client(a, o.isV6())
		if c == nil || !c.isReady() {
			return nil, cni.Drift("%s has no %s", a, name)
		}
		l := c.applied.Load()
		if l == nil || sysctl.Uptime() >= l.expiry {
			return nil, cni.Drift("the %s of %s has expired or was refused by the server", name, a)
		}
		if !hasInode(d.hostPrefix+call.Netns, c.record.Netns) {
			return nil, cni.Drift("the %s of %s is in another namespace than %q", name, a, call.Netns)
		}
		mergeResult(res, l.result(c.record.Client.options))
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
		if valid.Excludes(c.record.Attachment) && c.isReady() {
			stale = append(stale, c)
		}
	}
	d.mu.Unlock()
	return endAll(stale)
}

// watchMounts signals all clients when the mount table changes, because a namespace may have lost its path. It
// returns when d.ctx ends. Without it, clients verify their namespaces only each minute.
func (d *daemon) watchMounts() error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	stop := context.AfterFunc(d.ctx, func() { _ = f.Close() })
	defer stop()
	raw, _ := f.SyscallConn() // never fails for an open file
	// Read calls the function once, and again each time the poller reports the file as ready, until the function
	// returns true. The kernel reports mountinfo as ready after each change of the mount table. The function always
	// returns false, so that this is one Read until f is closed: starting another Read would discard a change that
	// was reported in between, because Read begins by resetting the poller.
	return raw.Read(func(uintptr) bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, c := range d.clients {
			signal(c.mountChanged)
		}
		return false
	})
}
