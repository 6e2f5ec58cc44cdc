package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// upTimeout is how long the host end may take to come up: the kernel needs a
// millisecond.
const upTimeout = 5 * time.Second

// claim refuses an attachment that exists or is being added.
func (a *attachment) claim(ctx context.Context) error {
	release, err := a.pair().Claim(ctx, a.Warn)
	if err == nil {
		a.OnDone(release)
	}
	return err
}

// prepareHostEnd writes what must hold before the host end comes up.
func (a *attachment) prepareHostEnd(link string, p plan) error {
	// A host whose /proc/sys is read-only still has a working link.
	if err := a.tolerate(iface.IgnoreRouterAdverts(link)); err != nil {
		return err
	}
	v6 := false
	for _, gw := range p.Gateways {
		v6 = v6 || gw.Addr().Is6()
	}
	if !v6 {
		return nil
	}
	// The host may have IPv6 off by default; this link needs it.
	if err := writeIPv6(link, "disable_ipv6", "0"); err != nil {
		return err
	}
	// The host asks for neighbours of what it forwards from its link-local
	// address, and not at all while that is tentative. Nobody else is on this
	// link, so there is no duplicate to detect.
	if err := writeIPv6(link, "accept_dad", "0"); !errors.Is(err, fs.ErrNotExist) {
		return a.tolerate(err)
	}
	return nil
}

// tolerate tells of a setting that cannot be made, and returns what may succeed a
// moment later.
func (a *attachment) tolerate(err error) error {
	if err == nil || cni.Transient(err) {
		return err
	}
	a.Warn("%v", err)
	return nil
}

func writeIPv6(link, name, value string) error {
	key, err := sysctl.Net("ipv6", "conf", link, name)
	if err == nil {
		err = key.Write(value)
	}
	if err != nil {
		return fmt.Errorf("host interface %q: %w", link, err)
	}
	return nil
}

// setUpHost gives the host end the gateway addresses, and the host a route to
// each address of the container.
func (a *attachment) setUpHost(p plan) error {
	for _, gw := range p.Gateways {
		if err := a.host.AddAddr(a.hostEnd.Index, rtnl.Addr{Prefix: gw, NoDAD: gw.Addr().Is6()}); err != nil {
			return err
		}
		if err := iface.EnableForwarding(gw.Addr().Is4()); err != nil {
			return err
		}
	}
	for _, r := range p.HostRoutes {
		r.OutIndex = a.hostEnd.Index
		if err := a.host.AddRoute(r); err != nil {
			return fmt.Errorf("host interface %q: %w", a.hostEnd.Name, err)
		}
	}
	return nil
}

// waitUp waits until both ends pass packets, and take them for their IPv6
// addresses: what is sent before is lost, and repeated by the kernel a second later.
func (a *attachment) waitUp(ctx context.Context, p plan) error {
	ctx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	// The kernel tells the two ends of a change of carrier one after the other.
	err := errors.Join(a.host.WaitUp(ctx, a.hostEnd.Index), a.cont.WaitUp(ctx, a.contEnd.Index))
	if err != nil {
		return err
	}
	return a.tolerate(errors.Join(
		a.host.WaitLocal(ctx, a.hostEnd.Index, v6(p.Gateways)...), a.cont.WaitLocal(ctx, a.contEnd.Index, v6(cni.Addresses(p.Result.IPs))...)))
}

// v6 returns the IPv6 addresses among them.
func v6(all []netip.Prefix) (addrs []netip.Addr) {
	for _, p := range all {
		if p.Addr().Is6() {
			addrs = append(addrs, p.Addr())
		}
	}
	return addrs
}
