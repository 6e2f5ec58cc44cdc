package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/hawser-cni/plugins/pkg/cni"
)

const (
	firewalldName  = "org.fedoraproject.FirewallD1"
	firewalldPath  = "/org/fedoraproject/FirewallD1"
	firewalldZones = firewalldName + ".zone"

	defaultZone = "trusted"

	// busWait is how long firewalld may take for all that a call asks of it.
	busWait = 5 * time.Second

	// The modification time of silenceFile is when firewalld last gave no answer within busWait. For silenceTime calls
	// wait only for silentWait, because they hold the lock of the records.
	silenceFile = recordDir + "/firewalld.silent"
	silenceTime = time.Minute
	silentWait  = time.Second
)

// isSilent reports whether firewalld has given no answer within silenceTime.
func isSilent() bool {
	st, err := os.Stat(silenceFile)
	return err == nil && time.Since(st.ModTime()).Abs() < silenceTime
}

// errNoFirewalld says that firewalld does not run. What it had at runtime is gone with it.
var errNoFirewalld = errors.New("firewalld does not run: nobody has the name " + firewalldName + " on the system bus")

// errNoAnswer reports that firewalld, or the bus, gave no answer in time.
var errNoAnswer = errors.New("no answer")

// errDenied reports that the bus or polkit denied the call, and would deny it again.
var errDenied = errors.New("denied")

// isUnusable reports whether firewalld cannot be used at all. It is false for errors with firewalld's own codes.
func isUnusable(err error) bool {
	return errors.Is(err, errNoFirewalld) || errors.Is(err, errNoAnswer) || errors.Is(err, errDenied)
}

// askFirewalld calls a method about each of the addresses in the record's zone, and has heed decide about the answer.
// The error matches errNoFirewalld where firewalld does not run.
func askFirewalld(
	ctx context.Context, r *record, method string, heed func(netip.Addr, *dbus.Call) error,
) (err error) {
	wait := busWait
	if isSilent() {
		wait = silentWait
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait,
		cni.Errorf(cni.CodeTryAgain, "firewalld: %w on the system bus within %s", errNoAnswer, wait))
	defer cancel()
	defer func() {
		if wait == busWait && errors.Is(err, errNoAnswer) {
			_ = os.WriteFile(silenceFile, nil, 0o600) // best effort: without it the next call waits as long
		}
	}()
	there := false
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil { // there is no bus, or it does not let us in
		err = fmt.Errorf("%w: %w", errNoFirewalld, err)
	} else {
		defer conn.Close()
		err = conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.NameHasOwner", 0, firewalldName).Store(&there)
	}
	if err == nil && !there {
		err = errNoFirewalld
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("system bus: %w", err)
	}
	object := conn.Object(firewalldName, firewalldPath)
	var errs []error
	for _, a := range r.Addrs {
		source := netip.PrefixFrom(a, a.BitLen()).String()
		answer := object.CallWithContext(ctx, firewalldZones+"."+method, 0, r.Zone, source)
		err := heed(a, answer)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("firewalld: %s %s, zone %q: %w", method, source, r.Zone, err))
		}
	}
	return errors.Join(errs...)
}

// firewalldRuns is nil where firewalld is on the bus: of a record without an address nothing else is asked.
func firewalldRuns(ctx context.Context) error { return askFirewalld(ctx, &record{}, "", nil) }

// unless returns the first line of the answer's error, or nil where firewalld refused with one of these codes.
func unless(codes ...string) func(netip.Addr, *dbus.Call) error {
	return func(_ netip.Addr, answer *dbus.Call) error {
		refused := dbus.Error{}
		hasCode := func(code string) bool { return strings.HasPrefix(refused.Error(), code) }
		if answer.Err == nil || errors.As(answer.Err, &refused) && slices.ContainsFunc(codes, hasCode) {
			return nil
		}
		text, _, _ := strings.Cut(answer.Err.Error(), "\n") // more are 15 kB of JSON, if nftables has refused it
		code, _, isCoded := strings.Cut(text, ":")
		if isCoded && strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") == "" { // firewalld's own error code
			return errors.New(text)
		}
		return fmt.Errorf("%w: %s", errDenied, text)
	}
}

// addFirewalld makes the attachment's addresses sources of the zone, as the reference does: until firewalld reloads. It
// notes addresses that are sources before. After an error, pending reports whether firewalld may have, or get, one of
// them as a source.
func (c call) addFirewalld(ctx context.Context, r *record) (pending bool, err error) {
	var there []netip.Addr
	err = askFirewalld(ctx, r, "addSource", func(a netip.Addr, answer *dbus.Call) error {
		err := unless("ZONE_ALREADY_SET")(a, answer)
		refused := dbus.Error{}
		isRefused := errors.As(answer.Err, &refused) && refused.Name != "org.freedesktop.DBus.Error.NoReply"
		pending = pending || err == nil || !isRefused
		if err == nil && answer.Err != nil {
			there = append(there, a)
		}
		return err
	})
	err = errors.Join(err, c.noteFound(r, there))
	return pending && err != nil, err
}

// delFirewalld takes those addresses out of the zone that no other attachment has by now. It is no error if firewalld
// does not run, does not have the address or the zone, or has the address in another zone.
func delFirewalld(ctx context.Context, s *store, r *record) error {
	there := *r
	there.Backend = firewalld
	own, err := there.ownAddrs(s)
	if err != nil || len(own) == 0 {
		return err
	}
	allowed := unless("UNKNOWN_SOURCE", "INVALID_ZONE", "ZONE_CONFLICT")
	err = askFirewalld(ctx, &record{options: options{Zone: r.Zone}, Addrs: own}, "removeSource", allowed)
	if errors.Is(err, errNoFirewalld) {
		return nil
	}
	return err
}

// verifyFirewalld looks whether the addresses are in the zone.
func verifyFirewalld(ctx context.Context, r *record) error {
	var diffs []error
	err := askFirewalld(ctx, r, "querySource", func(a netip.Addr, answer *dbus.Call) error {
		in := false
		if err := answer.Store(&in); err != nil {
			return err
		}
		if !in {
			diffs = append(diffs, cni.Drift("firewalld: %s is no source of zone %q", a, r.Zone))
		}
		return nil
	})
	if errors.Is(err, errNoFirewalld) {
		return cni.Drift("%w", err)
	}
	return errors.Join(append(diffs, err)...)
}
