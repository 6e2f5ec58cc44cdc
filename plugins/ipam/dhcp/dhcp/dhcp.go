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
	// answerTime is how long the daemon may take for what needs no server: its greeting, CHECK and STATUS.
	answerTime = 5 * time.Second
	// endTime is how long it may take to end leases, in DEL and GC.
	endTime = 30 * time.Second
)

// add has the daemon acquire a lease.
func add(ctx context.Context, req *skel.Request, cfg *config) (*cni.Result, error) {
	call := callOf(req)
	call.Exclusive = true
	req.Step("ask the daemon")
	res, err := ask(ctx, cfg.socket, methodAllocate, call)
	if err != nil {
		return nil, err
	}
	req.OnFail("release the lease", func(ctx context.Context) error {
		_, err := ask(ctx, cfg.socket, methodRelease, call)
		return err
	})
	isV6 := func(ip cni.IP) bool { return ip.Address.Addr().Is6() }
	if cfg.isV6() && !slices.ContainsFunc(res.IPs, isV6) {
		return nil, cni.Errorf(cni.CodeUnsupportedField, "ipam.ipv6: %q: the DHCP daemon at %s asks for IPv4 "+
			"addresses only; start that of this release", cfg.IPv6, cfg.socket)
	}
	return res, nil
}

// del has the daemon release the lease. Without a daemon it removes the record, so that the next one does not keep it.
func del(ctx context.Context, req *skel.Request) error {
	return endLeases(ctx, req, methodRelease, func(records statefile.Records[record]) error {
		return records.Drop(ctx, req.Attachment.Hash())
	})
}

// gc has the daemon release the leases of attachments that are not valid.
func gc(ctx context.Context, req *skel.Request) error {
	return endLeases(ctx, req, methodCollect, func(records statefile.Records[record]) error {
		stale := func(r record) bool { return req.Valid.Excludes(r.Attachment) }
		return records.Collect(ctx, stale, func(record) error { return nil })
	})
}

// endLeases has the daemon end leases. Where there is no daemon, drop removes their records.
func endLeases(ctx context.Context, req *skel.Request, method string,
	drop func(statefile.Records[record]) error) error {
	socket, err := socketOf(req)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	_, err = ask(ctx, socket, method, callOf(req))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		req.Warn("%v; no server is told", err)
		return errors.Join(drop(recordsIn(leaseRoot, socket)), drop(recordsIn(lease6Root, socket)))
	case isForeign(err):
		req.Warn("%v: the daemon is the reference's; nothing is collected", err)
		return nil
	}
	return err
}

// check verifies that the daemon holds the lease that the result has. It never acquires one.
func check(ctx context.Context, req *skel.Request, cfg *config) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	res, err := ask(ctx, cfg.socket, methodCheck, callOf(req))
	if isForeign(err) {
		req.Warn("%v: the daemon is the reference's, which can only acquire; nothing is checked", err)
		return nil
	}
	if err != nil || req.PrevResult == nil {
		return err
	}
	for _, ip := range res.IPs {
		if !slices.Contains(cni.Addresses(req.PrevResult.IPs), ip.Address) {
			return cni.Errorf(cni.CodeDrift, "prevResult: address %s, which is lent now, is missing", ip.Address)
		}
	}
	return nil
}

// status says whether the daemon answers. It asks for no server: which one there is depends on the interface.
func status(ctx context.Context, _ *skel.Request, cfg *config) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if _, err := ask(ctx, cfg.socket, methodStatus, rpcCall{}); err != nil && !isForeign(err) {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	return nil
}

func callOf(req *skel.Request) rpcCall {
	netns := req.Netns
	if abs, err := filepath.Abs(netns); netns != "" && err == nil { // the daemon has another directory
		netns = abs
	}
	return rpcCall{ContainerID: req.ContainerID, Netns: netns, IfName: req.IfName, Args: req.Args,
		StdinData: req.Conf}
}

// ask makes a call to the daemon, until ctx ends.
func ask(ctx context.Context, socket, method string, c rpcCall) (*cni.Result, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		e := cni.Errorf(cni.CodeTryAgain, "error dialing DHCP daemon: %w", err)
		e.Details = "the daemon is started by: systemctl start cni-dhcp.socket, or by: dhcp daemon"
		return nil, e
	}
	defer conn.Close()
	greeting, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	end, _ := greeting.Deadline()
	_ = conn.SetDeadline(end) // the errors are those of what follows
	var res *cni.Result
	if _, err = io.WriteString(conn, connect); err == nil {
		err = expect(conn, connected)
	}
	if err == nil { // the daemon does not hang
		end, _ = ctx.Deadline()
		_ = conn.SetDeadline(end)
		res, err = roundTrip(conn, method, c)
	}
	if err != nil && !errors.As(err, new(*cni.Error)) {
		err = cni.Errorf(cni.CodeTryAgain, "DHCP daemon at %s: %w", socket, err)
	}
	return res, err
}

// isForeign reports whether the daemon is one that lacks a method: the reference's.
func isForeign(err error) bool { return err != nil && strings.Contains(err.Error(), noMethod) }
