package rtnl

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

// AddVRF creates a VRF, up, with a table of routes, and returns it. The error matches
// EEXIST when the name is taken, and EOPNOTSUPP when the kernel has no VRFs.
func (c *Conn) AddVRF(name string, table uint32) (Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Flags = name, net.FlagUp
	l, err := c.create(&netlink.Vrf{LinkAttrs: attrs, Table: table})
	if err != nil {
		return l, fmt.Errorf("vrf %q: create: %w", name, err)
	}
	return l, nil
}
