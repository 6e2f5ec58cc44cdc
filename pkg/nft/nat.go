package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Goto leaves this chain for another one of the table and does not come back.
func Goto(chain string) Stmt {
	return verdict("goto "+chain, expr.Verdict{Kind: expr.VerdictGoto, Chain: chain})
}

// DNATMap translates the destination to the address and port that the map has for the fields, and goes
// on when it has none. The map's data are an address of the family f and a port.
func DNATMap(f Family, set string, fields ...Field) Stmt {
	s := lookup(fields, "", &expr.Lookup{SetName: set, IsDestRegSet: true, DestRegister: unix.NFT_REG_1})
	proto := uint32(unix.NFPROTO_IPV4)
	words := uint32(1)
	if f == IPv6 {
		proto, words = unix.NFPROTO_IPV6, 4
	}
	port := register(words)
	s.exprs = append(s.exprs, &expr.NAT{Type: expr.NATTypeDestNAT, Family: proto, RegAddrMin: unix.NFT_REG_1,
		RegAddrMax: unix.NFT_REG_1, RegProtoMin: port, RegProtoMax: port, Specified: true})
	s.text = fmt.Sprintf("dnat %s to %s map @%s", f, s.text, set)
	return s
}

// DaddrIsLocal matches packets that are addressed to this host.
func DaddrIsLocal() Stmt {
	return Stmt{text: "fib daddr type local", exprs: []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)}}}
}

// IsFamily matches packets of one family in a table of several.
func IsFamily(f Family) Stmt {
	proto, name := byte(unix.NFPROTO_IPV4), "ipv4"
	if f == IPv6 {
		proto, name = unix.NFPROTO_IPV6, "ipv6"
	}
	return Stmt{text: "meta nfproto " + name, exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}}}}
}

const statusDNAT = 1 << 5 // IPS_DST_NAT

// CtTranslated matches packets of flows whose destination was translated.
func CtTranslated() Stmt {
	exprs := []expr.Any{&expr.Ct{Key: expr.CtKeySTATUS, Register: 1}, and(statusDNAT),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)}}
	return Stmt{text: "ct status dnat", exprs: exprs}
}

// MarkHas matches packets whose mark has the bits.
func MarkHas(bits uint32) Stmt {
	return Stmt{text: fmt.Sprintf("meta mark & 0x%08x == 0x%08x", bits, bits), exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, and(bits),
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.NativeEndian.AppendUint32(nil, bits)}}}
}

// MarkWith sets the bits in the packet's mark and leaves the others alone.
func MarkWith(bits uint32) Stmt {
	return Stmt{text: fmt.Sprintf("meta mark set meta mark | 0x%08x", bits), exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, bitwise(^bits, bits),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true}}}
}

func and(mask uint32) expr.Any { return bitwise(mask, 0) }

func bitwise(mask, xor uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
		Mask: binary.NativeEndian.AppendUint32(nil, mask), Xor: binary.NativeEndian.AppendUint32(nil, xor)}
}

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
	for _, e := range attributes(r.exprs) {
		if cstring(attribute(e, unix.NFTA_EXPR_NAME)) == name {
			data := attribute(attribute(e, unix.NFTA_EXPR_DATA), operand)
			out = append(out, attribute(data, unix.NFTA_DATA_VALUE))
		}
	}
	return out
}

// Text is a form of the rule's expressions that stays the same as long as nobody changes the rule: what
// counts packets is left out.
func (r LiveRule) Text() string {
	var b strings.Builder
	for _, e := range attributes(r.exprs) {
		name := cstring(attribute(e, unix.NFTA_EXPR_NAME))
		if name == "counter" || name == "quota" || name == "last" {
			continue
		}
		fmt.Fprintf(&b, "%s:%x ", name, attribute(e, unix.NFTA_EXPR_DATA))
	}
	return b.String()
}
