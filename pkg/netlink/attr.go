// Package netlink writes and reads the attributes of netlink messages, for those that vishvananda/netlink
// does not have. The sockets are those of its nl package. The attributes are not: nl.ParseRouteAttr gives
// nothing of a list that has one bad element, panics where the last one is not padded, and leaves
// flags in the kind.
package netlink

import (
	"bytes"
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// Body is what a message holds behind its header: the header of its family, if
// it has one, and attributes.
type Body []byte

// Bytes appends an attribute. Its length has 16 bits: a longer one cannot be
// sent, and is the caller's to cut.
func (b *Body) Bytes(kind uint16, value []byte) {
	*b = binary.NativeEndian.AppendUint16(*b, uint16(attrHeader+len(value)))
	*b = binary.NativeEndian.AppendUint16(*b, kind)
	*b = append(*b, value...)
	*b = append(*b, make([]byte, -len(value)&3)...)
}

// Text appends a text with the zero that ends it.
func (b *Body) Text(kind uint16, s string) { b.Bytes(kind, append([]byte(s), 0)) }

// Uint8 appends a number of 8 bits.
func (b *Body) Uint8(kind uint16, v uint8) { b.Bytes(kind, []byte{v}) }

// Uint32 appends a number of 32 bits in the order of the machine, as rtnetlink
// has them.
func (b *Body) Uint32(kind uint16, v uint32) { b.Bytes(kind, binary.NativeEndian.AppendUint32(nil, v)) }

// Net32 appends a number of 32 bits in the order of the network, as nfnetlink
// has them.
func (b *Body) Net32(kind uint16, v uint32) { b.Bytes(kind, binary.BigEndian.AppendUint32(nil, v)) }

// Nest appends an attribute that holds others.
func (b *Body) Nest(kind uint16, in Body) { b.Bytes(kind|unix.NLA_F_NESTED, in) }

const attrHeader = 4 // struct nlattr

// Attributes walks a list of attributes and stops at the first that makes no
// sense.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= attrHeader {
			n := int(binary.NativeEndian.Uint16(b))
			if n < attrHeader || n > len(b) {
				return
			}
			kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(kind, b[attrHeader:n]) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

// Attribute is the value of the first attribute of a kind, nil when there is
// none.
func Attribute(b []byte, want uint16) []byte {
	for kind, value := range Attributes(b) {
		if kind == want {
			return value
		}
	}
	return nil
}

// Text is the value of a text, without the zero that ends it.
func Text(value []byte) string {
	s, _, _ := bytes.Cut(value, []byte{0})
	return string(s)
}

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }
