package nft

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/netlink"
)

// expression is one step of a rule as the kernel runs it.
type expression struct {
	name  string
	attrs []attr
}

// attr is one attribute of an expression: a value, or attributes in it.
type attr struct {
	kind  uint16
	value []byte
	inner []attr
	// moot are the bits of a number that kernels set of their own, some of them
	// and some not.
	moot uint32
}

func num(kind uint16, v uint32) attr {
	return attr{kind: kind, value: binary.BigEndian.AppendUint32(nil, v)}
}

func str(kind uint16, s string) attr { return attr{kind: kind, value: append([]byte(s), 0)} }

// operand is a value that an expression works with.
func operand(kind uint16, value []byte) attr {
	return attr{kind: kind, inner: []attr{{kind: unix.NFTA_DATA_VALUE, value: value}}}
}

// encode returns the expression as an element of a rule's list.
func (x expression) encode() netlink.Body {
	var b netlink.Body
	b.Text(unix.NFTA_EXPR_NAME, x.name)
	b.Nest(unix.NFTA_EXPR_DATA, encodeAttrs(x.attrs))
	return b
}

func encodeAttrs(attrs []attr) netlink.Body {
	var b netlink.Body
	for _, a := range attrs {
		if a.inner != nil {
			b.Nest(a.kind, encodeAttrs(a.inner))
		} else {
			b.Bytes(a.kind, a.value)
		}
	}
	return b
}

// known is the last of the expression's attributes that was known when this was
// written. What later kernels add says nothing about an expression that was
// made without it.
func (x expression) known() uint16 {
	const bitwiseData = 7
	switch x.name {
	case "bitwise":
		return bitwiseData
	case "cmp":
		return unix.NFTA_CMP_DATA
	case "ct":
		return unix.NFTA_CT_SREG
	case "fib":
		return unix.NFTA_FIB_FLAGS
	case "immediate":
		return unix.NFTA_IMMEDIATE_DATA
	case "lookup":
		return unix.NFTA_LOOKUP_FLAGS
	case "masq":
		return unix.NFTA_MASQ_REG_PROTO_MAX
	case "meta":
		return unix.NFTA_META_SREG
	case "nat":
		return unix.NFTA_NAT_FLAGS
	case "payload":
		return unix.NFTA_PAYLOAD_CSUM_FLAGS
	}
	return 63 // more than any has
}

// same says whether an expression of the kernel's does exactly this. The kernel
// gives back attributes that it was not given, with what they are by default;
// that is 0 for all of them.
func (x expression) same(live []byte) bool {
	if netlink.Text(netlink.Attribute(live, unix.NFTA_EXPR_NAME)) != x.name {
		return false
	}
	data := netlink.Attribute(live, unix.NFTA_EXPR_DATA)
	for kind := uint16(1); kind <= x.known(); kind++ {
		want := attr{kind: kind}
		for _, a := range x.attrs {
			if a.kind == kind {
				want = a
			}
		}
		if !want.same(netlink.Attribute(data, kind)) {
			return false
		}
	}
	return true
}

func (a attr) same(live []byte) bool {
	for _, in := range a.inner {
		if !in.same(netlink.Attribute(live, in.kind)) {
			return false
		}
	}
	switch {
	case a.inner != nil:
		return true
	case a.moot != 0:
		return netNumber(a.value)&^a.moot == netNumber(live)&^a.moot
	}
	return bytes.Equal(a.value, live) || isZero(a.value) && isZero(live)
}

func isZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

func netNumber(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// The expressions. reg1 is where those that need only one register work.
const reg1 = unix.NFT_REG_1

func loadMeta(key, reg uint32) expression {
	return expression{"meta", []attr{num(unix.NFTA_META_KEY, key), num(unix.NFTA_META_DREG, reg)}}
}

func storeMeta(key uint32) expression {
	return expression{"meta", []attr{num(unix.NFTA_META_KEY, key), num(unix.NFTA_META_SREG, reg1)}}
}

func compare(op uint32, value []byte) expression {
	return expression{"cmp", []attr{num(unix.NFTA_CMP_SREG, reg1), num(unix.NFTA_CMP_OP, op),
		operand(unix.NFTA_CMP_DATA, value)}}
}

func isEqual(value []byte) expression { return compare(unix.NFT_CMP_EQ, value) }

// bitwise is register & mask ^ xor.
func bitwise(mask, xor []byte) expression {
	return expression{"bitwise", []attr{num(unix.NFTA_BITWISE_SREG, reg1), num(unix.NFTA_BITWISE_DREG, reg1),
		num(unix.NFTA_BITWISE_LEN, uint32(len(mask))), operand(unix.NFTA_BITWISE_MASK, mask),
		operand(unix.NFTA_BITWISE_XOR, xor)}}
}

// verdict ends the rule; chain is where a jump or goto leads.
func verdict(code int32, chain string) expression {
	v := []attr{num(unix.NFTA_VERDICT_CODE, uint32(code))}
	if chain != "" {
		v = append(v, str(unix.NFTA_VERDICT_CHAIN, chain))
	}
	data := attr{kind: unix.NFTA_IMMEDIATE_DATA, inner: []attr{{kind: unix.NFTA_DATA_VERDICT, inner: v}}}
	return expression{"immediate", []attr{num(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT), data}}
}
