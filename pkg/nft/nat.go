package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/netlink"
)

// DNATMap translates the destination to the address and port that the map has for the fields, and goes
// on when it has none. The map's data are an address of the family f and a port.
func DNATMap(f Family, set string, fields ...Field) Stmt {
	s := lookup(fields, "", set, num(unix.NFTA_LOOKUP_DREG, reg1))
	proto := uint32(unix.NFPROTO_IPV4)
	words := uint32(1)
	if f == IPv6 {
		proto, words = unix.NFPROTO_IPV6, 4
	}
	port := register(words)
	// Newer kernels set of their own what follows from the registers.
	const mapIPs, protoSpecified = 1 << 0, 1 << 1 // NF_NAT_RANGE_*
	flags := num(unix.NFTA_NAT_FLAGS, protoSpecified)
	flags.moot = mapIPs | protoSpecified
	s.exprs = append(s.exprs, expression{"nat", []attr{num(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT),
		num(unix.NFTA_NAT_FAMILY, proto),
		num(unix.NFTA_NAT_REG_ADDR_MIN, reg1), num(unix.NFTA_NAT_REG_ADDR_MAX, reg1),
		num(unix.NFTA_NAT_REG_PROTO_MIN, port), num(unix.NFTA_NAT_REG_PROTO_MAX, port), flags}})
	s.text = fmt.Sprintf("dnat %s to %s map @%s", f, s.text, set)
	return s
}

// DaddrIsLocal matches packets that are addressed to this host.
func DaddrIsLocal() Stmt {
	fib := expression{"fib", []attr{num(unix.NFTA_FIB_DREG, reg1), num(unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE),
		num(unix.NFTA_FIB_FLAGS, unix.NFTA_FIB_F_DADDR)}}
	return Stmt{text: "fib daddr type local", exprs: []expression{fib, isEqual(word(unix.RTN_LOCAL))}}
}

// IsFamily matches packets of one family in a table of several.
func IsFamily(f Family) Stmt {
	proto, name := byte(unix.NFPROTO_IPV4), "ipv4"
	if f == IPv6 {
		proto, name = unix.NFPROTO_IPV6, "ipv6"
	}
	return Stmt{text: "meta nfproto " + name,
		exprs: []expression{loadMeta(unix.NFT_META_NFPROTO, reg1), isEqual([]byte{proto})}}
}

const statusDNAT = 1 << 5 // IPS_DST_NAT

// CtTranslated matches packets of flows whose destination was translated.
func CtTranslated() Stmt {
	load := expression{"ct", []attr{num(unix.NFTA_CT_KEY, unix.NFT_CT_STATUS), num(unix.NFTA_CT_DREG, reg1)}}
	return Stmt{text: "ct status dnat",
		exprs: []expression{load, bitwise(word(statusDNAT), word(0)), compare(unix.NFT_CMP_NEQ, word(0))}}
}

// FwmarkHas matches packets whose fwmark has the bits.
func FwmarkHas(bits uint32) Stmt {
	return Stmt{text: fmt.Sprintf("meta mark & 0x%08x == 0x%08x", bits, bits),
		exprs: []expression{loadMeta(unix.NFT_META_MARK, reg1), bitwise(word(bits), word(0)), isEqual(word(bits))}}
}

// FwmarkWith sets the bits in the packet's fwmark and leaves the others alone.
func FwmarkWith(bits uint32) Stmt {
	return Stmt{text: fmt.Sprintf("meta mark set meta mark | 0x%08x", bits),
		exprs: []expression{loadMeta(unix.NFT_META_MARK, reg1), bitwise(word(^bits), word(bits)),
			storeMeta(unix.NFT_META_MARK)}}
}

// word is a number as registers hold it.
func word(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// Mentions says whether the rule has this value as it is: an address or a port that it compares with or
// translates to. It tells apart rules that other software made.
func (r LiveRule) Mentions(value []byte) bool {
	has := func(v []byte) bool { return bytes.Equal(v, value) }
	return slices.ContainsFunc(r.Compared(len(value)), has) ||
		slices.ContainsFunc(r.operands("immediate", unix.NFTA_IMMEDIATE_DATA), has)
}

// Compared returns the values of so many bytes that the rule compares something with.
func (r LiveRule) Compared(size int) [][]byte {
	return slices.DeleteFunc(r.operands("cmp", unix.NFTA_CMP_DATA), func(v []byte) bool { return len(v) != size })
}

func (r LiveRule) operands(name string, operand uint16) [][]byte {
	var out [][]byte
	for _, e := range netlink.Attributes(r.exprs) {
		if netlink.Text(netlink.Attribute(e, unix.NFTA_EXPR_NAME)) == name {
			data := netlink.Attribute(netlink.Attribute(e, unix.NFTA_EXPR_DATA), operand)
			out = append(out, netlink.Attribute(data, unix.NFTA_DATA_VALUE))
		}
	}
	return out
}
