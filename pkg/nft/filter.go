package nft

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Forward is the hook of the packets that the host forwards.
const Forward HookPoint = 2

// The states of connections that were answered, and of those that belong to one.
const stateEstablished, stateRelated = 1 << 1, 1 << 2 // NF_CT_STATE_BIT

// CtEstablished matches packets of connections that were answered, and of those that belong to one.
func CtEstablished() Stmt {
	return ctHas("state established,related", unix.NFT_CT_STATE, stateEstablished|stateRelated)
}

// FwmarkWithout clears the bits in the packet's fwmark and leaves the others alone.
func FwmarkWithout(bits uint32) Stmt {
	return Stmt{text: fmt.Sprintf("meta mark set meta mark & 0x%08x", ^bits),
		exprs: [][]byte{loadMeta(unix.NFT_META_MARK, reg1), bitwise(word(^bits), word(0)),
			storeMeta(unix.NFT_META_MARK)}}
}

// Accept lets the packet pass this hook's chain.
func Accept() Stmt { return ending("accept", acceptPacket, "") }

// Is matches packets whose field has the value.
func Is(f Field, value []byte) Stmt { return compareField(f, "", unix.NFT_CMP_EQ, value) }

// IsNot is the opposite of Is.
func IsNot(f Field, value []byte) Stmt { return compareField(f, "!= ", unix.NFT_CMP_NEQ, value) }

func compareField(f Field, not string, op uint32, value []byte) Stmt {
	spec := fieldTable[f]
	return Stmt{text: fmt.Sprintf("%s %s0x%x", spec.text, not, value), proto: spec.proto,
		exprs: [][]byte{spec.load(reg1), compare(op, value)}}
}

// Counter counts packets and bytes, as each rule of iptables does. Rules are compared without it.
func Counter() Stmt { return Stmt{text: "counter", exprs: [][]byte{expression("counter")}} }

// XTMatch is a match of iptables that nf_tables runs for iptables-nft.
func XTMatch(name string, revision uint32, info []byte) Stmt {
	return Stmt{text: "xt match " + name, exprs: [][]byte{expression("match", attrText(unix.NFTA_MATCH_NAME, name),
		attrNet32(unix.NFTA_MATCH_REV, revision), attrBytes(unix.NFTA_MATCH_INFO, info))}}
}
