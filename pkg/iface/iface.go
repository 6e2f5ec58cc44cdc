// Package iface configures a container's interface from a result, and verifies that the interface still matches it. It
// also has settings of interfaces on the host, and the names of host ends.
//
// A Target is the container's interface with its settings. Raise brings it up, Configure assigns the addresses and
// routes of a result, and Verify compares them for CHECK. None of these functions has an undo, because an ADD that
// fails deletes the link.
//
// Later plugins of the chain may have changed the interface. Therefore, Verify accepts additional addresses and routes,
// and a route in another table (sbr, vrf).
package iface

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// Target is the container's interface.
type Target struct {
	NS    *ns.NS
	Conn  *rtnl.Conn // a socket in NS
	Name  string
	Index int // for Raise and Configure; Verify finds the interface by its name
	// EnableDAD turns on duplicate address detection for IPv6 addresses, which takes one to two seconds. Addresses of
	// an exclusive lease do not need it.
	EnableDAD bool
	// NoRouterAdverts makes the container ignore router advertisements. If the host is the router, they are forged.
	NoRouterAdverts bool
	NoSubnetRoutes  bool         // keeps the kernel from adding a route to the subnet of each address
	Existing        []netip.Addr // addresses that the interface has before Configure
	// Routes are additional routes, which Configure adds before the result's. OutIndex is ignored.
	Routes []rtnl.Route
}

const (
	// dadTimeout limits the wait for duplicate address detection, which takes a second for each probe.
	dadTimeout = 10 * time.Second
	// dadDelay is a sysctl for the delay before router solicitations. The kernel also waits for a random part of it
	// before each duplicate address detection, so Raise sets it to 0, and Configure restores it.
	dadDelay = "router_solicitation_delay"
)

// Raise brings the interface up.
func Raise(t Target) error {
	// arp_notify and ndisc_notify: see Announce.
	list := []setting{{family: "ipv4", name: "arp_notify", value: "1"}, {name: "ndisc_notify", value: "1"}}
	if t.EnableDAD {
		list = append(list, setting{name: "accept_dad", value: "1"}, setting{name: "enhanced_dad", value: "1"},
			setting{name: dadDelay, value: "0"})
	} else { // for the link-local address, which the kernel assigns without NoDAD
		list = append(list, setting{name: "accept_dad", value: "0"})
	}
	if t.NoRouterAdverts {
		list = append(list, setting{name: "accept_ra", value: "0"})
	}
	if err := t.write(list); err != nil {
		return err
	}
	return t.Conn.SetLink(t.Index, rtnl.LinkChange{Up: new(true)})
}

// EnableIPv6 enables IPv6 on the interface, with the settings that its addresses need.
func (t Target) EnableIPv6() error {
	list := []setting{{link: "lo", name: "disable_ipv6", value: "0", required: true},
		{name: "disable_ipv6", value: "0", required: true}, {name: "keep_addr_on_down", value: "1"}}
	if t.EnableDAD {
		list = append(list, setting{name: "accept_dad", value: "1", required: true})
	}
	return t.write(list)
}

// Configure adds the addresses and routes of the result to the interface, which must be up and have none of them except
// Target.Existing.
func Configure(ctx context.Context, t Target, res *cni.Result) error {
	want := newWantedState(t, res)
	if want.v6 {
		if err := t.EnableIPv6(); err != nil {
			return err
		}
	}
	for _, p := range want.addrs {
		if slices.Contains(t.Existing, p.Addr()) {
			continue
		}
		a := rtnl.Addr{Prefix: p, NoPrefixRoute: t.NoSubnetRoutes, NoDAD: p.Addr().Is6() && !t.EnableDAD}
		if err := t.Conn.AddAddr(t.Index, a); err != nil {
			return err
		}
	}
	for _, r := range want.routes {
		if err := addRoute(t.Conn, t.Index, r); err != nil {
			return err
		}
	}
	if !t.EnableDAD {
		return nil
	}
	if want.v6 {
		if err := t.WaitDAD(ctx); err != nil {
			return err
		}
	}
	return t.restoreDADDelay()
}

// WaitDAD waits for duplicate address detection. Without a carrier, detection does not end, and WaitDAD returns
// immediately.
func (t Target) WaitDAD(ctx context.Context) error {
	link, err := t.Conn.LinkByIndex(t.Index)
	if err != nil || !link.Carrier {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, dadTimeout)
	defer cancel()
	return t.Conn.WaitDAD(ctx, t.Index)
}

// restoreDADDelay sets dadDelay, which Raise changed, to the container's default.
func (t Target) restoreDADDelay() error {
	return t.NS.Do(func() error {
		value, err := readIPv6("default", dadDelay)
		if err != nil || value == "" {
			return ignorePermanent(err)
		}
		return t.set(setting{name: dadDelay, value: value})
	})
}

// Announce makes the kernel announce the addresses of a link, because a neighbor with a stale entry would not reach the
// container for up to a minute. Because of arp_notify and ndisc_notify, which Raise sets, the kernel announces them
// when the MAC address is set, even to the same value.
func Announce(c *rtnl.Conn, link rtnl.Link) error {
	return c.SetLink(link.Index, rtnl.LinkChange{MAC: link.MAC})
}

// addRoute adds a route. It returns nil if the same route exists, because IPAM may list a route twice, or list a route
// that the kernel added for an address. It returns code 7 for a gateway that the interface does not reach.
func addRoute(c *rtnl.Conn, index int, r route) error {
	r.OutIndex = index
	err := c.AddRoute(r.Route)
	switch {
	case r.GW.IsValid() && (errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH)):
		return cni.Errorf(cni.CodeConfig, "ipam: gateway %s of route %s cannot be reached through the interface; "+
			"correct the gateway, or add an on-link route to it", r.GW, r.Dst)
	case !errors.Is(err, unix.EEXIST):
		return err
	}
	have, listErr := c.Routes(index, r.family())
	if listErr == nil && r.verify(have) == nil {
		return nil
	}
	return errors.Join(err, listErr)
}

// setting is a sysctl of a link. A setting that is not required is best effort, because a container may have a
// read-only /proc/sys and a kernel may lack IPv6.
type setting struct {
	family      string // empty = "ipv6"
	link        string // empty = the target
	name, value string
	required    bool // the addresses of the result need the setting
}

func (t Target) write(list []setting) error {
	return t.NS.Do(func() error {
		for _, s := range list {
			if err := t.set(s); err != nil {
				return err
			}
		}
		return nil
	})
}

// set writes a setting in the calling thread's namespace.
func (t Target) set(s setting) error {
	err := sysctl.Net(cmp.Or(s.family, "ipv6"), "conf", cmp.Or(s.link, t.Name), s.name).Write(s.value)
	if s.required {
		return err
	}
	return ignorePermanent(err)
}

// ignorePermanent returns a transient error, and nil for every other error.
func ignorePermanent(err error) error {
	if cni.Transient(err) {
		return err
	}
	return nil
}
