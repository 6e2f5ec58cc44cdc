package rtnl

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/netlink"
)

// Attributes that golang.org/x/sys does not name (linux/veth.h, linux/if_bridge.h, linux/rtnetlink.h).
const (
	vethInfoPeer = 1

	bridgeVLANInfo   = 2
	vlanPVID         = 1 << 1
	vlanUntagged     = 1 << 2
	vlanRangeBegin   = 1 << 3
	vlanRangeEnd     = 1 << 4
	extBridgeVLANs   = 1 << 2 // RTEXT_FILTER_BRVLAN_COMPRESSED
	extSkipStats     = 1 << 3 // RTEXT_FILTER_SKIP_STATS
	sizeofBridgeVLAN = 4
)

// linkHeader is struct ifinfomsg.
type linkHeader struct {
	family        uint8
	index         int
	flags, change uint32
}

func (h linkHeader) body() netlink.Body {
	b := netlink.Body{h.family, 0, 0, 0}
	b = binary.NativeEndian.AppendUint32(b, uint32(h.index))
	b = binary.NativeEndian.AppendUint32(b, h.flags)
	return binary.NativeEndian.AppendUint32(b, h.change)
}

// addrHeader is struct ifaddrmsg.
type addrHeader struct {
	family, prefixLen, flags, scope uint8
	index                           int
}

func (h addrHeader) body() netlink.Body {
	return binary.NativeEndian.AppendUint32(netlink.Body{h.family, h.prefixLen, h.flags, h.scope}, uint32(h.index))
}

// routeHeader is struct rtmsg.
type routeHeader struct {
	family, dstLen         uint8
	table, protocol, scope uint8
	kind                   uint8
	flags                  uint32
}

func (h routeHeader) body() netlink.Body {
	b := netlink.Body{h.family, h.dstLen, 0, 0, h.table, h.protocol, h.scope, h.kind}
	return binary.NativeEndian.AppendUint32(b, h.flags)
}

func parseRouteHeader(b []byte) routeHeader {
	return routeHeader{family: b[0], dstLen: b[1], table: b[4], protocol: b[5], scope: b[6], kind: b[7],
		flags: binary.NativeEndian.Uint32(b[8:])}
}

// routeQuery asks for the way to an address.
func routeQuery(addr netip.Addr) netlink.Request {
	b := routeHeader{family: family(addr), dstLen: uint8(addr.BitLen())}.body()
	addAddr(&b, unix.RTA_DST, addr)
	return netlink.Request{Type: unix.RTM_GETROUTE, Body: b}
}

func family(ip netip.Addr) uint8 {
	if ip.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func addAddr(b *netlink.Body, kind uint16, ip netip.Addr) { b.Bytes(kind, ip.AsSlice()) }

func number(b []byte) uint32 {
	switch len(b) {
	case 1:
		return uint32(b[0])
	case 2:
		return uint32(binary.NativeEndian.Uint16(b))
	case 4:
		return binary.NativeEndian.Uint32(b)
	}
	return 0
}
