package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
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
)

// errNoFirewalld says that firewalld does not run. What it had at runtime is gone with it.
var errNoFirewalld = errors.New("firewalld does not run: nobody has the name " + firewalldName + " on the system bus")

// bus is a connection to firewalld.
type bus struct {
	ctx  context.Context
	conn *dbus.Conn
}

// withFirewalld connects to the system bus and calls do where firewalld is there: else the error is errNoFirewalld.
func withFirewalld(ctx context.Context, do func(*bus) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, busWait,
		cni.Errorf(cni.CodeTryAgain, "firewalld: no answer on the system bus within %s", busWait))
	defer cancel()
	there := false
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil { // there is no bus, or it does not let us in
		err = fmt.Errorf("%w: %w", errNoFirewalld, err)
	} else {
		defer conn.Close()
		err = conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.NameHasOwner", 0, firewalldName).Store(&there)
	}
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case there:
		return do(&bus{ctx, conn})
	case err == nil:
		err = errNoFirewalld
	}
	return fmt.Errorf("system bus: %w", err)
}

// firewalldRuns is nil where firewalld is there.
func firewalldRuns(ctx context.Context) error {
	return withFirewalld(ctx, func(*bus) error { return nil })
}

// ask calls a method about an address in a zone.
func (d *bus) ask(method, zone string, a netip.Addr, answer ...any) error {
	source := netip.PrefixFrom(a, a.BitLen()).String()
	object := d.conn.Object(firewalldName, firewalldPath)
	err := object.CallWithContext(d.ctx, firewalldZones+"."+method, 0, zone, source).Store(answer...)
	if d.ctx.Err() != nil {
		return context.Cause(d.ctx)
	}
	if err != nil {
		return fmt.Errorf("firewalld: %s %s, zone %q: %w", method, source, zone, err)
	}
	return nil
}

// isAnswer says whether firewalld refused with one of its codes.
func isAnswer(err error, codes ...string) bool {
	refused := dbus.Error{}
	return errors.As(err, &refused) && slices.ContainsFunc(codes, func(code string) bool {
		return strings.HasPrefix(refused.Error(), code)
	})
}

// addFirewalld makes the attachment's addresses sources of the zone, as the reference does: until firewalld reloads.
func addFirewalld(ctx context.Context, r *record) error {
	return withFirewalld(ctx, func(d *bus) error {
		for _, a := range r.Addrs {
			err := d.ask("addSource", r.Zone, a, new(string))
			if err != nil && !isAnswer(err, "ZONE_ALREADY_SET") {
				return err
			}
		}
		return nil
	})
}

// delFirewalld takes the addresses back that no other attachment has by now. Where firewalld does not run, or has no
// such address or zone, or the address in another zone, nothing has to be taken back.
func delFirewalld(ctx context.Context, s *store, r *record) error {
	err := withFirewalld(ctx, func(d *bus) error {
		var errs []error
		for _, a := range r.Addrs {
			used, err := r.othersHave(s, a)
			if err == nil && !used {
				err = d.ask("removeSource", r.Zone, a, new(string))
			}
			if !isAnswer(err, "UNKNOWN_SOURCE", "INVALID_ZONE", "ZONE_CONFLICT") {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	})
	if errors.Is(err, errNoFirewalld) {
		return nil
	}
	return err
}

// delReferenceSources takes the addresses in prevResult out of the zone that is configured, where no record of ours has
// them.
func (c *call) delReferenceSources(ctx context.Context, s *store, had *record) {
	var w struct {
		Zone string `json:"firewalldZone"`
	}
	_ = c.Decode(&w) // what cannot be read is none
	r := &record{Attachment: c.Attachment, Backend: firewalld, Zone: cmp.Or(w.Zone, defaultZone)}
	r.Addrs = slices.DeleteFunc(addressesOf(c.PrevResult, c.IfName), func(a netip.Addr) bool {
		return slices.Contains(had.Addrs, a)
	})
	if len(r.Addrs) == 0 {
		return
	}
	if err := delFirewalld(ctx, s, r); err != nil {
		c.Warn("sources of other plugins: %v", err)
	}
}

// checkFirewalld looks whether the addresses are in the zone.
func checkFirewalld(ctx context.Context, r *record) error {
	runs := false
	err := withFirewalld(ctx, func(d *bus) error {
		runs = true
		var diffs []error
		for _, a := range r.Addrs {
			in := false
			if err := d.ask("querySource", r.Zone, a, &in); err != nil {
				return err
			}
			if !in {
				diffs = append(diffs, drift("firewalld: %s is no source of zone %q", a, r.Zone))
			}
		}
		return errors.Join(diffs...)
	})
	if !runs {
		err = drift("%w", err)
	}
	return err
}
