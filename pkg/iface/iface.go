// Package iface makes a container's interface match a result, and tells whether it still does. It also has the settings
// of interfaces on the host.
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
)

// Target is the interface that a result is about.
type Target struct {
	NS    *ns.NS
	Conn  *rtnl.Conn // a socket in NS
	Name  string
	Index int // for Raise and Configure
	// EnableDAD asks for duplicate address detection of IPv6 addresses, which takes one to two seconds. Addresses of an
	// exclusive lease need none.
	EnableDAD bool
	// NoRouterAdverts keeps the container from obeying router advertisements: where we are the router they are forged.
	NoRouterAdverts bool
	// NoSubnetRoutes keeps the kernel from making a route to the subnet of each address.
	NoSubnetRoutes bool
	// Has lists addresses that the interface has before Configure.
	Has []netip.Addr
	// Routes are the plugin's own, which the result does not show and which come before its. OutIndex is filled in.
	Routes []rtnl.Route
}

const (
	// dadTimeout is how long Configure waits for duplicate address detection, a second for each probe.
	dadTimeout = 10 * time.Second
	// dadDelay is the delay before router solicitations. The kernel waits a random part of it before each duplicate
	// address detection, too: Raise has it wait for none.
	dadDelay = "router_solicitation_delay"
)

// Raise brings the interface up. What was done before an error stays, here and in Configure: the caller deletes the
// link.
func Raise(t Target) error {
	// arp_notify and ndisc_notify: see Announce.
	list := []setting{{family: "ipv4", name: "arp_notify", value: "1"}, {name: "ndisc_notify", value: "1"}}
	if t.EnableDAD {
		list = append(list, setting{name: "accept_dad", value: "1"}, setting{name: "enhanced_dad", value: "1"},
			setting{name: dadDelay, value: "0"})
	} else { // also for the link-local address, which the kernel makes
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
	list := []setting{{link: "lo", name: "disable_ipv6", value: "0", must: true},
		{name: "disable_ipv6", value: "0", must: true}, {name: "keep_addr_on_down", value: "1"}}
	if t.EnableDAD {
		list = append(list, setting{name: "accept_dad", value: "1", must: true})
	}
	return t.write(list)
}

// Configure gives the interface, which is up, the addresses and routes of the result. It must have none of them yet,
// except for Target.Has.
func Configure(ctx context.Context, t Target, res *cni.Result) error {
	want := wantedOf(t, res)
	if want.v6 {
		if err := t.EnableIPv6(); err != nil {
			return err
		}
	}
	for _, p := range want.addrs {
		if slices.Contains(t.Has, p.Addr()) {
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
	return t.restoreDelay()
}

// WaitDAD waits for duplicate address detection, which ends only where the link has a carrier.
func (t Target) WaitDAD(ctx context.Context) error {
	link, err := t.Conn.LinkByIndex(t.Index)
	if err != nil || !link.Carrier {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, dadTimeout)
	defer cancel()
	return t.Conn.WaitDAD(ctx, t.Index)
}

// restoreDelay sets what Raise changed to the container's default.
func (t Target) restoreDelay() error {
	return t.NS.Do(func() error {
		usual, err := readIPv6("default", dadDelay)
		if err != nil || usual == "" {
			return onlyTransient(err)
		}
		return t.set(setting{name: dadDelay, value: usual})
	})
}

// Announce has the kernel tell the neighbours of a link where its addresses are now, as it does when a MAC address is
// set, if to the same one: those that remember another would not find the container for up to a minute.
func Announce(c *rtnl.Conn, link rtnl.Link) error {
	return c.SetLink(link.Index, rtnl.LinkChange{MAC: link.MAC})
}

// addRoute adds a route unless it is there: IPAM may name one twice, or one that the kernel made for an address.
func addRoute(c *rtnl.Conn, index int, r route) error {
	r.OutIndex = index
	err := c.AddRoute(r.Route)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	have, listErr := c.Routes(index, r.family())
	if listErr == nil && r.verify(have) == nil {
		return nil
	}
	return errors.Join(err, listErr)
}

// setting is a kernel setting of a link. The result needs those with must; the others may fail: a container may have a
// read-only /proc/sys, or a kernel no IPv6.
type setting struct {
	family      string // empty = "ipv6"
	link        string // empty = the target
	name, value string
	must        bool
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
	err := writeConf(cmp.Or(s.family, "ipv6"), cmp.Or(s.link, t.Name), s.name, s.value)
	if s.must {
		return err
	}
	return onlyTransient(err)
}

// onlyTransient drops an error that would come again.
func onlyTransient(err error) error {
	if cni.Transient(err) {
		return err
	}
	return nil
}
