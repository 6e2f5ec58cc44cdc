package attach

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// Smallest and largest MTU of a veth, in bytes.
const mtuMin, mtuMax = 68, 65535

// parse checks the keys. It returns LinkConfig's MTU and AutoFrom.
func (k MTUKeys) parse(problems *cni.Problems) (mtu int, autoFrom *string) {
	word, err := cni.ParseEither("mtu", k.MTU, &mtu, "auto")
	problems.Add(err)
	if mtu != 0 && (mtu < mtuMin || mtu > mtuMax) {
		problems.Add(cni.Refuse("mtu", mtu, fmt.Sprintf("is not between %d and %d", mtuMin, mtuMax)).
			Suggest("leave it out for the kernel's own"))
	}
	switch {
	case word != "":
		autoFrom = &k.MTUFrom
	case k.MTUFrom != "":
		problems.Add(cni.Refuse("mtuFrom", k.MTUFrom, "has no effect without \"mtu\": \"auto\"").
			Suggest(`write "mtu": "auto", or leave it out`))
	}
	if k.MTUFrom != "" {
		problems.Add(cni.CheckIfName(cni.CodeConfig, "mtuFrom", k.MTUFrom))
	}
	return mtu, autoFrom
}

// ResolveMTU sets l.MTU if the configured MTU is "auto". It uses the MTU of the link that mtuFrom names or, without
// that key, the smallest MTU of the links of the default routes. It returns code 7 if there is no such link.
func (l *LinkConfig) ResolveMTU(host *rtnl.Conn) error {
	if l.AutoFrom == nil {
		return nil
	}
	links, err := mtuLinks(host, *l.AutoFrom)
	if err != nil {
		return err
	}
	l.MTU = mtuMax
	for _, uplink := range links {
		l.MTU = min(l.MTU, uplink.MTU)
	}
	return nil
}

// mtuLinks returns the link called name or, if name is empty, the links of the default routes.
func mtuLinks(host *rtnl.Conn, name string) (all []rtnl.Link, err error) {
	if name != "" {
		l, err := host.Link(name)
		if errors.Is(err, rtnl.ErrNoLink) {
			err = cni.Refuse("mtuFrom", name, fmt.Sprintf("is not an interface of the host: %v", rtnl.ErrNoLink))
		}
		return []rtnl.Link{l}, err
	}
	routes, err := defaultRoutes(host)
	for _, r := range routes {
		for _, index := range r.Links() {
			l, err := host.LinkByIndex(index)
			if err != nil {
				return nil, err
			}
			all = append(all, l)
		}
	}
	if err == nil && len(all) == 0 {
		err = cni.Refuse("mtu", "auto", "needs a default route of the host through an interface").
			Suggest(`name the interface in "mtuFrom", or write the MTU as a number`)
	}
	return all, err
}

// defaultRoutes lists the default routes of the main table that send packets through an interface.
func defaultRoutes(conn *rtnl.Conn) (found []rtnl.RouteCopy, err error) {
	all, err := conn.RouteCopies()
	for _, route := range all {
		r := route.Route()
		if r.Dst.Bits() == 0 && r.Table == unix.RT_TABLE_MAIN && r.Type == unix.RTN_UNICAST && r.OutIndex != 0 {
			found = append(found, route)
		}
	}
	return found, err
}

// resolveChildMTU is ResolveMTU for a child, whose MTU cannot exceed its master's. The MTU of a VLAN on a MACsec link
// is smaller by the VLAN tag, because MACsec encrypts the tag with the payload.
func (c *Call) resolveChildMTU() error {
	link, master := &c.Child.Link, c.Master
	if err := link.ResolveMTU(c.Host); err != nil || link.AutoFrom == nil || master.Index == 0 {
		return err
	}
	const tag = 4 // bytes
	if c.Child.New.Kind == vlanKind && master.Kind == "macsec" {
		master.MTU -= tag
	}
	link.MTU = min(link.MTU, master.MTU)
	return nil
}

// ExpectMTU sets the MTU that CHECK expects if the configured MTU is "auto". resolve sets l.MTU to the current value.
// If resolve returns code 7, CHECK expects the MTU that ADD reported.
func (c *Call) ExpectMTU(l *LinkConfig, resolve func() error) error {
	if l.AutoFrom == nil {
		return nil
	}
	if err := resolve(); err != nil {
		if cni.AsError(err).Code == cni.CodeConfig {
			return nil
		}
		return err
	}
	c.Req.PrevResult = c.Req.PrevResult.Clone()
	for i := range c.Req.PrevResult.Interfaces {
		link := &c.Req.PrevResult.Interfaces[i]
		if link.Sandbox != "" && link.Name == c.Req.IfName || link.Sandbox == "" && link.Name == c.HostEnd.Name {
			link.MTU = l.MTU
		}
	}
	return nil
}
