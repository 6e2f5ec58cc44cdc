package nft

// nl.ParseRouteAttr of vishvananda/netlink returns nothing of a list with one bad element, and panics where the last
// one is not padded: attributes are read here.

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

// attrBytes is an attribute. Its length has 16 bits: the caller cuts a longer one.
func attrBytes(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(attrHeader+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, -len(value)&3)...)
}

// attrText is an attribute with a text and the zero that ends it.
func attrText(kind uint16, s string) []byte { return attrBytes(kind, append([]byte(s), 0)) }

// attrNet32 is an attribute with a number in network byte order.
func attrNet32(kind uint16, v uint32) []byte {
	return attrBytes(kind, binary.BigEndian.AppendUint32(nil, v))
}

func attrNest(kind uint16, attrs ...[]byte) []byte {
	return attrBytes(kind|unix.NLA_F_NESTED, slices.Concat(attrs...))
}

// attributes walks a list of attributes, kinds with their flags, up to one with an impossible length.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
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

// attribute is the value of the first attribute of the last kind, in the list to which the kinds before it lead; nil
// when there is none.
func attribute(b []byte, kinds ...uint16) []byte {
	for _, want := range kinds {
		list := b
		b = nil
		for kind, value := range attributes(list) {
			if kind&^attrFlags == want {
				b = value
				break
			}
		}
	}
	return b
}

// containsAttrs reports whether a list has all attributes of another one, with the same values. A number that is 0
// in one list may be absent from the other.
func containsAttrs(list, wanted []byte) bool {
	for kind, want := range attributes(wanted) {
		value := attribute(list, kind&^attrFlags)
		if kind&unix.NLA_F_NESTED != 0 {
			if !containsAttrs(value, want) {
				return false
			}
		} else if !bytes.Equal(value, want) && !(isZero(value) && isZero(want)) {
			return false
		}
	}
	return true
}

func isZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// textOf is the text in a value, without the zero that ends it.
func textOf(value []byte) string {
	s, _, _ := bytes.Cut(value, []byte{0})
	return string(s)
}

func textAt(b []byte, kinds ...uint16) string { return textOf(attribute(b, kinds...)) }
