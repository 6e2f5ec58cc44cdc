// Package iface makes a container's interface match a result, and tells
// whether it still does. It also makes the veth pair, finds its host end again
// by the owner, and has the settings of interfaces on the host.
package iface

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/sysctl"
	"golang.org/x/sys/unix"
)

// Target is the interface that a result is about.
type Target struct {
	NS    *ns.NS
	Conn  *rtnl.Conn // a socket in NS
	Name  string
	Index int // for Configure
	// EnableDAD asks for duplicate address detection of IPv6 addresses, which
	// takes one to two seconds. Without it they are usable at once, as befits
	// addresses that come from an exclusive lease.
	EnableDAD bool
	// NoRouterAdverts keeps the container from taking routes and addresses from
	// router advertisements: where we are the router they are forged.
	NoRouterAdverts bool
	// NoSubnetRoutes keeps the kernel from making a route to the subnet of each
	// address.
	NoSubnetRoutes bool
	// Routes are those of the plugin itself, which its result does not show:
	// they come before the result's. OutIndex is filled in.
	Routes []rtnl.Route
}

// dadPatience is how long Configure waits for duplicate address detection, which
// takes at most a random second, and one more for each probe.
const dadPatience = 10 * time.Second

// Configure gives the interface the addresses and routes of the result and
// brings it up. The interface must have none of these addresses. What was done
// before an error stays: the caller deletes the link.
func Configure(ctx context.Context, t Target, res *cni.Result) error {
	want := newPlan(t, res)
	// Before the link is up: coming up starts detection and announcements.
	if err := t.NS.Do(func() error { return write(settings(t, want)) }); err != nil {
		return fmt.Errorf("link %q: %w", t.Name, err)
	}
	for _, p := range want.addrs {
		a := rtnl.Addr{Prefix: p, NoPrefixRoute: t.NoSubnetRoutes, NoDAD: p.Addr().Is6() && !t.EnableDAD}
		if err := t.Conn.AddAddr(t.Index, a); err != nil {
			return err
		}
	}
	up := true
	if err := t.Conn.SetLink(t.Index, rtnl.Change{Up: &up}); err != nil {
		return err
	}
	for _, r := range want.routes {
		if err := addRoute(t.Conn, t.Index, r); err != nil {
			return err
		}
	}
	if !t.EnableDAD || !want.v6 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, dadPatience)
	defer cancel()
	return t.Conn.WaitDAD(ctx, t.Index)
}

// Announce has the kernel tell the neighbours of a link, by ARP and neighbour
// advertisements, where its addresses are now: those that remember another
// MAC address would not find the container for up to a minute. What the kernel
// sends when the link comes up is lost where a bridge does not forward yet. A
// MAC address that is set, to the same one, makes it send again.
func Announce(c *rtnl.Conn, link rtnl.Link) error {
	return c.SetLink(link.Index, rtnl.Change{MAC: link.MAC})
}

// addRoute adds a route unless it is there: IPAM may name one twice, or one
// that the kernel made for an address.
func addRoute(c *rtnl.Conn, index int, r route) error {
	r.OutIndex = index
	err := c.AddRoute(r.Route)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	have, listErr := c.Routes(index, r.family())
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	for _, h := range have {
		if r.mayBe(h) && len(r.differences(h)) == 0 {
			return nil
		}
	}
	return err
}

// setting is a kernel setting. The result needs those with must; the others may
// fail, since a container may have a read-only /proc/sys or a kernel without IPv6.
type setting struct {
	key   []string
	value string
	must  bool
}

func settings(t Target, want plan) []setting {
	v6 := func(name, key string) []string { return []string{"ipv6", "conf", name, key} }
	var list []setting
	if want.v6 {
		list = append(list,
			setting{v6("lo", "disable_ipv6"), "0", true},
			setting{v6(t.Name, "disable_ipv6"), "0", true},
			setting{v6(t.Name, "keep_addr_on_down"), "1", false})
	}
	if t.EnableDAD {
		list = append(list,
			setting{v6(t.Name, "enhanced_dad"), "1", false},
			setting{v6(t.Name, "accept_dad"), "1", want.v6})
	} else {
		// NoDAD is for the result's addresses; this is for the link-local one.
		list = append(list, setting{v6(t.Name, "accept_dad"), "0", false})
	}
	if t.NoRouterAdverts {
		list = append(list, setting{v6(t.Name, "accept_ra"), "0", false})
	}
	// So that neighbours of a reused address learn the new MAC; see Announce.
	return append(list,
		setting{[]string{"ipv4", "conf", t.Name, "arp_notify"}, "1", false},
		setting{v6(t.Name, "ndisc_notify"), "1", false})
}

func write(list []setting) error {
	for _, s := range list {
		key, err := sysctl.Net(s.key...)
		if err == nil {
			err = key.Write(s.value)
		}
		if err != nil && (s.must || cni.Transient(err)) {
			return err
		}
	}
	return nil
}
