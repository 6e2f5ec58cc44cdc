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
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

const (
	firewalldName  = "org.fedoraproject.FirewallD1"
	firewalldPath  = "/org/fedoraproject/FirewallD1"
	firewalldZones = firewalldName + ".zone"
	busWait        = 5 * time.Second // timeout for all requests of a call to firewalld

	// The modification time of silenceFile is the time when firewalld last failed to answer within busWait. During the
	// next silenceTime, calls wait only for silentWait, because they hold the lock of the records.
	silenceFile = recordDir + "/firewalld.silent"
	silenceTime = time.Minute
	silentWait  = time.Second
)

// isSilent reports whether a request to firewalld timed out within the last silenceTime.
func isSilent() bool {
	st, err := os.Stat(silenceFile)
	return err == nil && time.Since(st.ModTime()).Abs() < silenceTime
}

// errNoFirewalld reports that firewalld is not running, so that its runtime configuration does not exist either.
var errNoFirewalld = errors.New("firewalld is not running: no owner of " + firewalldName + " on the system bus")

var errNoAnswer = errors.New("no answer") // firewalld, or the bus, did not answer in time

var errDenied = errors.New("denied") // the bus or polkit denied the call, and would deny it again

// isUnusable reports whether an error means that firewalld cannot be used at all, unlike errors with its own codes.
func isUnusable(err error) bool {
	return errors.Is(err, errNoFirewalld) || errors.Is(err, errNoAnswer) || errors.Is(err, errDenied)
}

// callFirewalld calls a method for each of the record's addresses in the record's zone, and passes the answers to
// handle. The error matches errNoFirewalld if firewalld is not running.
func callFirewalld(
	ctx context.Context, r *record, method string, handle func(netip.Addr, *dbus.Call) error,
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
			_ = os.WriteFile(silenceFile, nil, 0o600) // best effort: without the file, the next call waits for busWait
		}
	}()
	isRunning := false
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil { // there is no bus, or it refuses the connection
		err = fmt.Errorf("%w: %w", errNoFirewalld, err)
	} else {
		defer conn.Close()
		owner := conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.NameHasOwner", 0, firewalldName)
		err = owner.Store(&isRunning)
	}
	if err == nil && !isRunning {
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
		err := handle(a, answer)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("firewalld: %s %s, zone %q: %w", method, source, r.Zone, err))
		}
	}
	return errors.Join(errs...)
}

// checkFirewalld returns an error if firewalld is not running. Without addresses, callFirewalld calls no method.
func checkFirewalld(ctx context.Context) error { return callFirewalld(ctx, &record{}, "", nil) }

// errorFilter returns a function that returns the error in an answer, or nil if it has one of the codes. The error is
// only the first line of the text, and matches errDenied unless it has a code of firewalld.
func errorFilter(codes ...string) func(netip.Addr, *dbus.Call) error {
	return func(_ netip.Addr, answer *dbus.Call) error {
		refusal := dbus.Error{}
		hasCode := func(code string) bool { return strings.HasPrefix(refusal.Error(), code) }
		if answer.Err == nil || errors.As(answer.Err, &refusal) && slices.ContainsFunc(codes, hasCode) {
			return nil
		}
		text, _, _ := strings.Cut(answer.Err.Error(), "\n") // the rest can be 15 kB of JSON, from nftables
		code, _, hasColon := strings.Cut(text, ":")
		if hasColon && strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") == "" { // firewalld's own error code
			if code == "COMMAND_FAILED" {
				text += "; restart firewalld if its rules were flushed"
			}
			return errors.New(text)
		}
		return fmt.Errorf("%w: %s", errDenied, text)
	}
}

// checkSources returns code 7 if an address must not become a source of a zone, because zones also apply to packets
// from other machines and containers. It does not trust prevResult, because the author of a configuration may have
// written it. There are two conditions:
//
//   - The container's interface has the address.
//   - The host has no route to it through a link to which the container is not connected. The container is connected
//     to its host end, to the bridge of its host end or to the link below its interface, and to links above these, such
//     as a VLAN. The default route is permitted, because the host has no other route to a network without a gateway.
func (c call) checkSources(r *record) error {
	addrs, links, err := c.readContainer()
	if err == nil && len(links) == 0 && len(addrs) > 0 { // a macvlan or ipvlan
		var lower rtnl.Link
		if lower, err = c.Cont.LinkBelow(c.ContEnd, c.Host); err == nil {
			links = []string{lower.Name}
		}
		err = netplugin.IgnoreNoLink(err)
	}
	if err != nil {
		return err
	}
	for _, a := range r.Addrs {
		if !slices.Contains(addrs, a) {
			return cni.Refuse("prevResult.ips", a.String(),
				fmt.Sprintf("is not an address of interface %q in the container", c.Req.IfName))
		}
		route, err := c.Host.RouteEntry(a)
		if rtnl.IsUnreachable(err) || err == nil && route.Dst.Bits() == 0 {
			continue
		}
		var link rtnl.Link
		if err == nil && route.OutIndex != 0 {
			link, err = c.Host.LinkByIndex(route.OutIndex)
		}
		if err != nil {
			return err
		}
		lower, err := c.Host.LinkBelow(link, c.Host)
		if netplugin.IgnoreNoLink(err) != nil {
			return err
		}
		isConnected := func(name string) bool {
			return link.Name == name || lower.Name == name || strings.HasPrefix(link.Name, name+".")
		}
		if !slices.ContainsFunc(links, isConnected) {
			return cni.Refuse("prevResult.ips", a.String(), fmt.Sprintf("belongs to another network: the host reaches "+
				"it through %q, to which the container is not connected", link.Name))
		}
	}
	return nil
}

// addFirewalld adds the attachment's addresses as sources of the zone. Like the reference plugin, it adds them to the
// runtime configuration, which lasts until firewalld reloads. Addresses that already are sources are added to
// Preexisting. After an error, pending reports whether firewalld has, or may still add, an address as a source.
func (c call) addFirewalld(ctx context.Context, r *record) (pending bool, err error) {
	var preexisting []netip.Addr
	err = callFirewalld(ctx, r, "addSource", func(a netip.Addr, answer *dbus.Call) error {
		err := errorFilter("ZONE_ALREADY_SET")(a, answer)
		refusal := dbus.Error{}
		isRefused := errors.As(answer.Err, &refusal) && refusal.Name != "org.freedesktop.DBus.Error.NoReply"
		pending = pending || err == nil || !isRefused
		if err == nil && answer.Err != nil {
			preexisting = append(preexisting, a)
		}
		return err
	})
	err = errors.Join(err, c.addPreexisting(ctx, r, preexisting))
	return pending && err != nil, err
}

// delFirewalld removes the addresses that no other attachment has from the zone. It is not an error if firewalld is not
// running, does not have the address or the zone, or has the address in another zone.
func delFirewalld(ctx context.Context, s *store, r *record) error {
	rec := *r
	rec.Backend = firewalld // r can have another backend, see Pending
	own, err := rec.ownAddrs(s)
	if err != nil || len(own) == 0 {
		return err
	}
	ignoreMissing := errorFilter("UNKNOWN_SOURCE", "INVALID_ZONE", "ZONE_CONFLICT")
	err = callFirewalld(ctx, &record{options: options{Zone: r.Zone}, Addrs: own}, "removeSource", ignoreMissing)
	if errors.Is(err, errNoFirewalld) {
		return nil
	}
	return err
}

func verifyFirewalld(ctx context.Context, r *record) error {
	var diffs []error
	err := callFirewalld(ctx, r, "querySource", func(a netip.Addr, answer *dbus.Call) error {
		isSource := false
		if err := answer.Store(&isSource); err != nil {
			return err
		}
		if !isSource {
			diffs = append(diffs, cni.Drift("firewalld: %s is not a source of zone %q", a, r.Zone))
		}
		return nil
	})
	if errors.Is(err, errNoFirewalld) {
		return cni.Drift("%w", err)
	}
	return errors.Join(append(diffs, err)...)
}
