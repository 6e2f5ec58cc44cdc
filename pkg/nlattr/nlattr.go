// Package nlattr encodes and reads the attributes of netlink messages (struct nlattr).
//
// A list is a sequence of attributes; the value of a nested attribute is a list. Functions that read accept any bytes:
// a list ends at an attribute with an impossible length. nl.ParseRouteAttr of vishvananda/netlink does not, because it
// returns nothing for a list with one malformed attribute, and panics if the last attribute is not padded.
package nlattr

import (
	"bytes"
	"encoding/binary"
	"iter"
	"slices"

	"golang.org/x/sys/unix"
)

const headerSize = 4 // struct nlattr

// Flags are the bits of an attribute's kind that are not part of its number.
const Flags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER

// Bytes encodes an attribute. The length field has 16 bits; the caller must not pass a longer value.
func Bytes(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(headerSize+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, -len(value)&3)...)
}

// String encodes an attribute that holds a zero-terminated string.
func String(kind uint16, s string) []byte { return Bytes(kind, append([]byte(s), 0)) }

// Net32 encodes an attribute that holds a number in network byte order.
func Net32(kind uint16, v uint32) []byte { return Bytes(kind, binary.BigEndian.AppendUint32(nil, v)) }

// Nest encodes an attribute that holds a list.
func Nest(kind uint16, attrs ...[]byte) []byte {
	return Bytes(kind|unix.NLA_F_NESTED, slices.Concat(attrs...))
}

// All iterates over the attributes of a list: kind, including its flags, and value.
func All(list []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(list) >= headerSize {
			n := int(binary.NativeEndian.Uint16(list))
			if n < headerSize || n > len(list) || !yield(binary.NativeEndian.Uint16(list[2:]), list[headerSize:n]) {
				return
			}
			list = list[min((n+3)&^3, len(list)):]
		}
	}
}

// Get returns the value at a path of kinds: the last kind names the attribute, the kinds before it name the nested
// attributes that contain it. It returns nil if the path does not exist.
func Get(list []byte, path ...uint16) []byte {
	value := list
	for _, want := range path {
		list, value = value, nil
		for kind, v := range All(list) {
			if kind&^Flags == want {
				value = v
				break
			}
		}
	}
	return value
}

// GetString returns the zero-terminated string at a path, as described at Get.
func GetString(list []byte, path ...uint16) string { return unix.ByteSliceToString(Get(list, path...)) }

// GetNumber returns the number in network byte order, of any size, at a path, as described at Get, or 0.
func GetNumber(list []byte, path ...uint16) (n uint64) {
	for _, b := range Get(list, path...) {
		n = n<<8 | uint64(b)
	}
	return n
}

// Contains reports whether a list has all attributes of wanted, with the same values. An attribute that is 0 in one of
// them may be absent from the other.
func Contains(list, wanted []byte) bool {
	for kind, want := range All(wanted) {
		value := Get(list, kind&^Flags)
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
