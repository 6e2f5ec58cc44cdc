// Package netlink writes and reads the attributes of netlink messages, for those that vishvananda/netlink
// does not have. The sockets are those of its nl package. The attributes are not: nl.ParseRouteAttr gives
// nothing of a list that has one bad element, panics where the last one is not padded, and leaves
// flags in the kind.
package netlink

import (
	"bytes"
	"encoding/binary"
	"iter"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	attrHeader = 4 // struct nlattr
	attrFlags  = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
)

// Bytes is an attribute. Its length has 16 bits: a longer one cannot be sent, and is the caller's to cut.
func Bytes(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(attrHeader+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, -len(value)&3)...)
}

// Text is an attribute with a text and the zero that ends it.
func Text(kind uint16, s string) []byte { return Bytes(kind, append([]byte(s), 0)) }

// Uint32 is an attribute with a number in the order of the machine.
func Uint32(kind uint16, v uint32) []byte {
	return Bytes(kind, binary.NativeEndian.AppendUint32(nil, v))
}

// Net32 is an attribute with a number in the order of the network, as nfnetlink has most of them.
func Net32(kind uint16, v uint32) []byte { return Bytes(kind, binary.BigEndian.AppendUint32(nil, v)) }

// Nest is an attribute that holds others.
func Nest(kind uint16, attrs ...[]byte) []byte {
	return Bytes(kind|unix.NLA_F_NESTED, slices.Concat(attrs...))
}

// Attributes walks a list of attributes and stops at the first that makes no sense.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for kind, value := range flagged(b) {
			if !yield(kind&^attrFlags, value) {
				return
			}
		}
	}
}

// flagged is Attributes with the flags in the kinds.
func flagged(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= attrHeader {
			n := int(binary.NativeEndian.Uint16(b))
			if n < attrHeader || n > len(b) || !yield(binary.NativeEndian.Uint16(b[2:]), b[attrHeader:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}

// Attribute is the value of the first attribute of that kind in the list that the kinds before it lead to, nil
// when there is none.
func Attribute(b []byte, kinds ...uint16) []byte {
	for _, want := range kinds {
		list := b
		b = nil
		for kind, value := range Attributes(list) {
			if kind == want {
				b = value
				break
			}
		}
	}
	return b
}

// Contains says whether a list has the attributes of another one, which Nest and the others made, with the same
// values. What is 0 in one may be absent from the other.
func Contains(list, wanted []byte) bool {
	for kind, want := range flagged(wanted) {
		value := Attribute(list, kind&^attrFlags)
		if kind&unix.NLA_F_NESTED != 0 {
			if !Contains(value, want) {
				return false
			}
		} else if !bytes.Equal(value, want) && !(isZero(value) && isZero(want)) {
			return false
		}
	}
	return true
}

func isZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// String is the value of a text, without the zero that ends it.
func String(value []byte) string {
	s, _, _ := bytes.Cut(value, []byte{0})
	return string(s)
}
