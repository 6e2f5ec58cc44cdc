package nft

import (
	"encoding/binary"

	"github.com/hawser-cni/plugins/pkg/netlink"
)

// What nft keeps in a table, chain, set or element for itself, and the kernel
// does not read: a type, a length and a value (libnftnl/udata.h).
const (
	udataComment      = 0 // of everything but a set
	udataKeyByteOrder = 0 // of a set
	udataSetComment   = 7
)

func udataBytes(typ byte, value []byte) []byte {
	return append([]byte{typ, byte(len(value))}, value...)
}

func udataText(typ byte, text string) []byte { return udataBytes(typ, append([]byte(text), 0)) }

// udataNumber writes a number in the order of the machine, as libnftnl does.
func udataNumber(typ byte, v uint32) []byte {
	return udataBytes(typ, binary.NativeEndian.AppendUint32(nil, v))
}

// udata finds a text in what somebody else may have written: it trusts no length.
func udata(b []byte, want byte) string {
	for len(b) >= 2 && len(b) >= 2+int(b[1]) {
		if b[0] == want {
			return netlink.Text(b[2 : 2+int(b[1])])
		}
		b = b[2+int(b[1]):]
	}
	return ""
}
