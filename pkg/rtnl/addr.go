package rtnl

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addr is an address of a link.
type Addr struct {
	Prefix netip.Prefix // host bits kept
	NoDAD  bool         // no duplicate address detection for it (IPv6)
	// NoPrefixRoute keeps the kernel from making a route to Prefix.
	NoPrefixRoute bool

	// Only read.
	Permanent bool // it does not expire
	Tentative bool // duplicate address detection is under way
	DADFailed bool // it found a duplicate
}

// Addrs lists the addresses of a link, of both families.
func (c *Conn) Addrs(index int) (addrs []Addr, err error) {
	err = c.use(func(h *netlink.Handle) error {
		list, err := h.AddrList(byIndex(index), netlink.FAMILY_ALL)
		addrs = make([]Addr, len(list))
		for i, a := range list {
			addrs[i] = readAddr(a)
		}
		return err
	})
	return addrs, c.linkError(index, "list addresses", err)
}

func readAddr(in netlink.Addr) Addr {
	has := func(flag int) bool { return in.Flags&flag != 0 }
	a := Addr{
		Prefix: prefixOf(in.IPNet), NoDAD: has(unix.IFA_F_NODAD), NoPrefixRoute: has(unix.IFA_F_NOPREFIXROUTE),
		Permanent: has(unix.IFA_F_PERMANENT),
		Tentative: has(unix.IFA_F_TENTATIVE), DADFailed: has(unix.IFA_F_DADFAILED),
	}
	if in.Peer != nil { // which then has the length of the prefix
		a.Prefix = netip.PrefixFrom(a.Prefix.Addr(), prefixOf(in.Peer).Bits())
	}
	return a
}

// AddAddr adds an address to a link; the broadcast address is the subnet's last.
// The error matches EEXIST when the link has it already.
func (c *Conn) AddAddr(index int, a Addr) error {
	in := &netlink.Addr{IPNet: ipNet(a.Prefix)}
	if a.NoDAD {
		in.Flags |= unix.IFA_F_NODAD
	}
	if a.NoPrefixRoute {
		in.Flags |= unix.IFA_F_NOPREFIXROUTE
	}
	err := c.use(func(h *netlink.Handle) error { return h.AddrAdd(byIndex(index), in) })
	return c.linkError(index, fmt.Sprintf("add address %s", a.Prefix), err)
}

// DelAddr takes an address from a link. That the link does not have it, or is
// gone, is no error.
func (c *Conn) DelAddr(index int, p netip.Prefix) error {
	err := c.use(func(h *netlink.Handle) error {
		return h.AddrDel(byIndex(index), &netlink.Addr{IPNet: ipNet(p), Broadcast: net.IPv4zero})
	})
	return c.linkError(index, fmt.Sprintf("delete address %s", p), unless(err, unix.EADDRNOTAVAIL, unix.ENODEV))
}

func addrOf(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr
}

func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addrOf(n.IP).Unmap(), bits) // the library's 0.0.0.0 has 16 bytes
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
