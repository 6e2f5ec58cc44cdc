package dhcp

import (
	"net"
	"net/netip"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	serverPort = 67
	clientPort = 68
)

// packet is a DHCPv4 message with its addresses.
type packet struct {
	message  *dhcpv4.DHCPv4
	src, dst netip.Addr
	nextHop  netip.Addr // its MAC address is the destination; zero: broadcast
}

// portFilter accepts UDP packets from port 67 to port 68, but only the first fragment of a fragmented one. A packet
// begins with its IP header.
var portFilter = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 9, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: 6},
	bpf.LoadAbsolute{Off: 6, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x1fff, SkipTrue: 4},
	bpf.LoadMemShift{Off: 0},
	bpf.LoadIndirect{Off: 0, Size: 4},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: serverPort<<16 | clientPort, SkipTrue: 1},
	bpf.RetConstant{Val: 1 << 16},
	bpf.RetConstant{Val: 0},
}

// addrOf converts an address. It returns the zero Addr for an invalid one.
func addrOf(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}

// prefix converts a network with the host bits of its address.
func prefix(n net.IPNet) netip.Prefix {
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addrOf(n.IP), bits)
}

func isHostAddr(a netip.Addr) bool {
	return a.Is4() && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && a.As4()[0] < 240
}

func isDomain(name string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	return name != "" && len(name) < 255 && strings.Trim(name, allowed) == ""
}
