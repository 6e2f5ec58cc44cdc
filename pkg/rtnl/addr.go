package rtnl

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/netlink"
)

// Addr is an address of a link.
type Addr struct {
	Prefix    netip.Prefix // host bits kept
	Peer      netip.Addr   // the other end of a point to point link; zero = none
	Broadcast netip.Addr   // zero = AddAddr computes it for IPv4 shorter than /31
	Scope     int          // RT_SCOPE_*; 0 = universe, in AddAddr host for 127/8
	NoDAD     bool         // no duplicate address detection for it (IPv6)
	// NoPrefixRoute keeps the kernel from making a route to Prefix.
	NoPrefixRoute bool

	// Only read.
	Tentative bool // duplicate address detection is under way
	DADFailed bool // it found a duplicate
	Permanent bool // no lifetime
}

// Addrs lists the addresses of a link, of both families.
func (c *Conn) Addrs(index int) ([]Addr, error) {
	req := netlink.Request{Type: unix.RTM_GETADDR, Body: addrHeader{index: index}.body()}
	var addrs []Addr
	err := c.dump(req, func() { addrs = addrs[:0] }, func(data []byte) {
		// Kernels before 4.20 do not filter.
		if a, of := parseAddr(data); of == index && a.Prefix.IsValid() {
			addrs = append(addrs, a)
		}
	})
	if err != nil {
		return nil, c.linkError(index, "list addresses", err)
	}
	return addrs, nil
}

// AddAddr adds an address to a link. The error matches EEXIST when the link
// has it already.
func (c *Conn) AddAddr(index int, a Addr) error {
	header := newAddrHeader(index, a.Prefix)
	header.scope = uint8(a.scope())
	body := header.body()
	if flags := a.flags(); flags != 0 {
		body.Uint32(unix.IFA_FLAGS, flags)
	}
	far := a.Prefix.Addr()
	if a.Peer.IsValid() {
		far = a.Peer
	}
	addAddr(&body, unix.IFA_LOCAL, a.Prefix.Addr())
	addAddr(&body, unix.IFA_ADDRESS, far)
	if b := a.broadcast(); b.IsValid() {
		addAddr(&body, unix.IFA_BROADCAST, b)
	}
	return c.linkError(index, fmt.Sprintf("add address %s", a.Prefix), c.change(unix.RTM_NEWADDR, createNew, body))
}

func (a Addr) scope() int {
	if a.Scope == unix.RT_SCOPE_UNIVERSE && a.Prefix.Addr().Is4() && a.Prefix.Addr().IsLoopback() {
		return unix.RT_SCOPE_HOST
	}
	return a.Scope
}

func (a Addr) flags() uint32 {
	var flags uint32
	if a.NoDAD {
		flags |= unix.IFA_F_NODAD
	}
	if a.NoPrefixRoute {
		flags |= unix.IFA_F_NOPREFIXROUTE
	}
	return flags
}

func (a Addr) broadcast() netip.Addr {
	ip := a.Prefix.Addr()
	if a.Broadcast.IsValid() || !ip.Is4() || a.Prefix.Bits() >= 31 || a.Peer.IsValid() {
		return a.Broadcast
	}
	b := ip.As4()
	for bit := a.Prefix.Bits(); bit < 32; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(b)
}

// DelAddr takes an address from a link. That the link does not have it, or is
// gone, is no error.
func (c *Conn) DelAddr(index int, p netip.Prefix) error {
	body := newAddrHeader(index, p).body()
	addAddr(&body, unix.IFA_LOCAL, p.Addr())
	err := c.change(unix.RTM_DELADDR, 0, body)
	if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return c.linkError(index, fmt.Sprintf("delete address %s", p), err)
}

func newAddrHeader(index int, p netip.Prefix) addrHeader {
	return addrHeader{family: family(p.Addr()), prefixLen: uint8(max(p.Bits(), 0)), index: index}
}

func parseAddr(b []byte) (a Addr, index int) {
	if len(b) < unix.SizeofIfAddrmsg {
		return Addr{}, 0
	}
	flags := uint32(b[2])
	var local, far netip.Addr
	for kind, value := range netlink.Attributes(b[unix.SizeofIfAddrmsg:]) {
		switch kind {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(value)
		case unix.IFA_ADDRESS:
			far, _ = netip.AddrFromSlice(value)
		case unix.IFA_BROADCAST:
			a.Broadcast, _ = netip.AddrFromSlice(value)
		case unix.IFA_FLAGS:
			flags = number(value)
		}
	}
	if local.IsValid() && far != local {
		a.Peer = far
	}
	a.Prefix = netip.PrefixFrom(cmp.Or(local, far), int(b[1]))
	a.Scope = int(b[3])
	a.NoPrefixRoute = flags&unix.IFA_F_NOPREFIXROUTE != 0
	a.NoDAD = flags&unix.IFA_F_NODAD != 0
	a.Tentative = flags&unix.IFA_F_TENTATIVE != 0
	a.DADFailed = flags&unix.IFA_F_DADFAILED != 0
	a.Permanent = flags&unix.IFA_F_PERMANENT != 0
	return a, linkIndex(b)
}
