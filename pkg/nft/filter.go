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

// Counter counts packets and bytes, as each rule of iptables does. Rules are compared without it.
func Counter() Stmt { return Stmt{text: "counter", exprs: [][]byte{expression("counter")}} }
