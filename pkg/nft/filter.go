package nft

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/netlink"
)

// Forward is the hook of the packets that the host forwards.
const Forward HookPoint = 2

// The states of connections that were answered, and of those that belong to one.
const stateEstablished, stateRelated = 1 << 1, 1 << 2 // NF_CT_STATE_BIT

// CtEstablished matches packets of connections that were answered, and of those that belong to one.
func CtEstablished() Stmt {
	load := expression("ct", netlink.Net32(unix.NFTA_CT_KEY, unix.NFT_CT_STATE),
		netlink.Net32(unix.NFTA_CT_DREG, reg1))
	return Stmt{text: "ct state established,related", exprs: [][]byte{load,
		bitwise(word(stateEstablished|stateRelated), word(0)), compare(unix.NFT_CMP_NEQ, word(0))}}
}

// FwmarkWithout clears the bits in the packet's fwmark and leaves the others alone.
func FwmarkWithout(bits uint32) Stmt {
	return Stmt{text: fmt.Sprintf("meta mark set meta mark & 0x%08x", ^bits),
		exprs: [][]byte{loadMeta(unix.NFT_META_MARK, reg1), bitwise(word(^bits), word(0)),
			storeMeta(unix.NFT_META_MARK)}}
}
