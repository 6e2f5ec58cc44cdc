package nft

// The attributes of messages are read here: nl.ParseRouteAttr of vishvananda/netlink gives nothing of a list that has
// one bad element, and panics where the last one is not padded.

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

// attrBytes is an attribute. Its length has 16 bits: a longer one cannot be sent, and is the caller's to cut.
func attrBytes(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(attrHeader+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, -len(value)&3)...)
}

// attrText is an attribute with a text and the zero that ends it.
func attrText(kind uint16, s string) []byte { return attrBytes(kind, append([]byte(s), 0)) }

// attrNet32 is an attribute with a number in the order of the network, as nfnetlink has most of them.
func attrNet32(kind uint16, v uint32) []byte {
	return attrBytes(kind, binary.BigEndian.AppendUint32(nil, v))
}

// attrNest is an attribute that holds others.
func attrNest(kind uint16, attrs ...[]byte) []byte {
	return attrBytes(kind|unix.NLA_F_NESTED, slices.Concat(attrs...))
}

// attributes walks a list of attributes, kinds with their flags, and stops at the first whose length makes no sense.
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

// attribute is the value of the first attribute of that kind in the list that the kinds before it lead to, nil
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

// containsAttrs says whether a list has the attributes of another one, which attrNest and the others made, with the
// same values. A number that is 0 in one list may be absent from the other.
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

// textOf is the value of a text, without the zero that ends it.
func textOf(value []byte) string {
	s, _, _ := bytes.Cut(value, []byte{0})
	return string(s)
}

// textAt is the text to which the kinds lead, as in attribute.
func textAt(b []byte, kinds ...uint16) string { return textOf(attribute(b, kinds...)) }
