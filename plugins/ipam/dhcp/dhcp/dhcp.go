package dhcp

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const (
	// answerTime limits calls for which the daemon needs no server: the greeting, CHECK and STATUS.
	answerTime  = 5 * time.Second
	releaseTime = 30 * time.Second // limits the release of leases, in DEL and GC
)

func add(ctx context.Context, req *skel.Request, cfg *config) (*cni.Result, error) {
	call := newCall(req)
	call.Exclusive = true
	req.Step("call the daemon")
	res, err := callDaemon(ctx, cfg.socket, methodAllocate, call)
	if err != nil {
		return nil, err
	}
	req.OnFail("release the lease", func(ctx context.Context) error {
		_, err := callDaemon(ctx, cfg.socket, methodRelease, call)
		return err
	})
	isV6 := func(ip cni.IP) bool { return ip.Address.Addr().Is6() }
	if cfg.IPv6 != "" && !slices.ContainsFunc(res.IPs, isV6) {
		return nil, cni.Errorf(cni.CodeUnsupportedField, "ipam.ipv6: %q: the DHCP daemon at %s supports only "+
			"IPv4; start the daemon of this release", cfg.IPv6, cfg.socket)
	}
	return res, nil
}

// del makes the daemon release the lease. Without a daemon, it removes the record, so that no later daemon renews it.
func del(ctx context.Context, req *skel.Request) error {
	return endLeases(ctx, req, methodRelease, func(records *statefile.Store[record]) error {
		return records.Drop(ctx, req.Attachment.Hash())
	})
}

// gc makes the daemon release the leases of attachments that are not valid.
func gc(ctx context.Context, req *skel.Request) error {
	return endLeases(ctx, req, methodCollect, func(records *statefile.Store[record]) error {
		stale := func(r record) bool { return req.Valid.Excludes(r.Attachment) }
		return records.Collect(ctx, stale, func(record) error { return nil })
	})
}

// endLeases calls a method of the daemon that ends leases. If no daemon runs, drop removes their records.
func endLeases(ctx context.Context, req *skel.Request, method string,
	drop func(*statefile.Store[record]) error) error {
	socket, err := socketOf(req)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	_, err = callDaemon(ctx, socket, method, newCall(req))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		req.Warn("%v; the lease is not released with its server", err)
		return errors.Join(drop(recordsFor(leaseRoot, socket)), drop(recordsFor(lease6Root, socket)))
	case isReferenceDaemon(err):
		req.Warn("%v: the daemon is the reference plugin's; no lease is collected", err)
		return nil
	}
	return err
}

// check verifies that the daemon holds the leases of prevResult. It never acquires one.
func check(ctx context.Context, req *skel.Request, cfg *config) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	res, err := callDaemon(ctx, cfg.socket, methodCheck, newCall(req))
	if isReferenceDaemon(err) {
		req.Warn("%v: the daemon is the reference plugin's, which cannot check; nothing is checked", err)
		return nil
	}
	if err != nil || req.PrevResult == nil {
		return err
	}
	for _, ip := range res.IPs {
		if !slices.Contains(cni.Addresses(req.PrevResult.IPs), ip.Address) {
			return cni.Drift("prevResult: the leased address %s is missing", ip.Address)
		}
	}
	return nil
}

// status verifies that the daemon answers. It contacts no DHCP server, because the server depends on the interface.
func status(ctx context.Context, _ *skel.Request, cfg *config) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if _, err := callDaemon(ctx, cfg.socket, methodStatus, rpcCall{}); err != nil && !isReferenceDaemon(err) {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	return nil
}

func newCall(req *skel.Request) rpcCall {
	netns := req.Netns
	if abs, err := filepath.Abs(netns); netns != "" && err == nil { // the daemon's working directory differs
		netns = abs
	}
	return rpcCall{ContainerID: req.ContainerID, Netns: netns, IfName: req.IfName, Args: req.Args,
		StdinData: req.Conf}
}

// callDaemon calls a method of the daemon and returns its result. It fails at the deadline of ctx.
func callDaemon(ctx context.Context, socket, method string, c rpcCall) (*cni.Result, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		e := cni.Errorf(cni.CodeTryAgain, "error dialing DHCP daemon: %w", err)
		e.Details = "start the daemon with: systemctl start cni-dhcp.socket, or with: dhcp daemon"
		return nil, e
	}
	defer conn.Close()
	greetingCtx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	deadline, _ := greetingCtx.Deadline()
	_ = conn.SetDeadline(deadline) // if this fails, so do the reads and writes below
	var res *cni.Result
	if _, err = io.WriteString(conn, connectRequest); err == nil {
		err = readGreeting(conn, connectResponse)
	}
	if err == nil { // the daemon is responsive, so it gets the rest of the time
		deadline, _ = ctx.Deadline()
		_ = conn.SetDeadline(deadline)
		res, err = roundTrip(conn, method, c)
	}
	if err != nil && !errors.As(err, new(*cni.Error)) {
		err = cni.Errorf(cni.CodeTryAgain, "DHCP daemon at %s: %w", socket, err)
	}
	return res, err
}

// isReferenceDaemon reports whether err means that the daemon lacks a method, as the reference plugin's does.
func isReferenceDaemon(err error) bool { return err != nil && strings.Contains(err.Error(), noMethod) }
