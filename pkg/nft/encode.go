package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/netlink"
)

// Attributes that golang.org/x/sys does not name (linux/netfilter/nf_tables.h).
const (
	attrTableUserdata = 6
	attrChainUserdata = 12
	attrSetUserdata   = 13
	attrElemUserdata  = 6

	verdictData  = 0xffffff00 // NFT_DATA_VERDICT
	acceptPacket = 1          // NF_ACCEPT
	dropPacket   = 0          // NF_DROP

	chunkSize = 32 << 10 // of an element list: the length of an attribute has 16 bits
)

// message is one operation of a batch. What it does is kept for errors.
type message struct {
	typ     uint16
	flags   uint16
	table   Table
	body    netlink.Body
	what    string
	feature bool // creates what an old kernel may not know: a table or a base chain
	rule    bool // has expressions that an old kernel may not know
}

// request is the message with its header, for the wire.
func (m message) request(extra uint16) *nl.NetlinkRequest {
	res := uint16(0)
	if m.typ == unix.NFNL_MSG_BATCH_BEGIN || m.typ == unix.NFNL_MSG_BATCH_END {
		res = unix.NFNL_SUBSYS_NFTABLES
	}
	req := &nl.NetlinkRequest{NlMsghdr: unix.NlMsghdr{Type: m.typ, Flags: unix.NLM_F_REQUEST | m.flags | extra}}
	req.AddRawData(binary.BigEndian.AppendUint16([]byte{byte(m.table.Family), unix.NFNETLINK_V0}, res))
	req.AddRawData(m.body)
	return req
}

const nfgenmsgSize = 4

func nfMsg(typ uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | typ }

func newTable(t Table, text string) message {
	var a netlink.Body
	a.Text(unix.NFTA_TABLE_NAME, t.Name)
	if text != "" {
		a.Bytes(attrTableUserdata, udataText(udataComment, text))
	}
	return message{typ: nfMsg(unix.NFT_MSG_NEWTABLE), flags: unix.NLM_F_CREATE, table: t, body: a,
		what: "add table", feature: true}
}

func newChain(t Table, c Chain) message {
	var a netlink.Body
	a.Text(unix.NFTA_CHAIN_TABLE, t.Name)
	a.Text(unix.NFTA_CHAIN_NAME, c.Name)
	if c.Hook != nil {
		var hook netlink.Body
		hook.Net32(unix.NFTA_HOOK_HOOKNUM, uint32(c.Hook.Point))
		hook.Net32(unix.NFTA_HOOK_PRIORITY, uint32(c.Hook.Priority))
		a.Nest(unix.NFTA_CHAIN_HOOK, hook)
		a.Net32(unix.NFTA_CHAIN_POLICY, acceptPacket)
		a.Text(unix.NFTA_CHAIN_TYPE, c.Hook.Type)
	}
	if c.Comment != "" {
		a.Bytes(attrChainUserdata, udataText(udataComment, c.Comment))
	}
	return message{typ: nfMsg(unix.NFT_MSG_NEWCHAIN), flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, table: t,
		body: a, what: fmt.Sprintf("add chain %q", c.Name), feature: c.Hook != nil}
}

// chainRef names a chain for getting and deleting it.
func chainRef(typ uint16, t Table, chain string) message {
	var a netlink.Body
	a.Text(unix.NFTA_CHAIN_TABLE, t.Name)
	a.Text(unix.NFTA_CHAIN_NAME, chain)
	return message{typ: nfMsg(typ), table: t, body: a, what: fmt.Sprintf("delete chain %q", chain)}
}

func newRule(t Table, chain string, r Rule) message {
	var list, a netlink.Body
	for _, e := range r.compile(t.Family) {
		list.Nest(unix.NFTA_LIST_ELEM, e.encode())
	}
	a.Text(unix.NFTA_RULE_TABLE, t.Name)
	a.Text(unix.NFTA_RULE_CHAIN, chain)
	a.Nest(unix.NFTA_RULE_EXPRESSIONS, list)
	return message{typ: nfMsg(unix.NFT_MSG_NEWRULE), flags: unix.NLM_F_CREATE | unix.NLM_F_APPEND, table: t,
		body: a, what: fmt.Sprintf("add rule %q to chain %q", r, chain), rule: true}
}

func delRule(t Table, chain string, handle uint64) message {
	var a netlink.Body
	a.Text(unix.NFTA_RULE_TABLE, t.Name)
	a.Text(unix.NFTA_RULE_CHAIN, chain)
	a.Bytes(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, handle))
	return message{typ: nfMsg(unix.NFT_MSG_DELRULE), table: t, body: a,
		what: fmt.Sprintf("delete rule %d of chain %q", handle, chain)}
}

func newSet(t Table, s Set, id uint32) message {
	flags := uint32(0)
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	var a netlink.Body
	a.Text(unix.NFTA_SET_TABLE, t.Name)
	a.Text(unix.NFTA_SET_NAME, s.Name)
	keyType, keyLen := datatype(s.Key)
	a.Net32(unix.NFTA_SET_KEY_TYPE, keyType)
	a.Net32(unix.NFTA_SET_KEY_LEN, keyLen)
	switch {
	case s.Data == nil:
	case s.Data[0] == Verdict:
		flags |= unix.NFT_SET_MAP
		a.Net32(unix.NFTA_SET_DATA_TYPE, verdictData)
	default:
		flags |= unix.NFT_SET_MAP
		dataType, dataLen := datatype(s.Data)
		a.Net32(unix.NFTA_SET_DATA_TYPE, dataType)
		a.Net32(unix.NFTA_SET_DATA_LEN, dataLen)
	}
	a.Net32(unix.NFTA_SET_FLAGS, flags)
	a.Net32(unix.NFTA_SET_ID, id)
	a.Bytes(attrSetUserdata, setUserdata(s))
	return message{typ: nfMsg(unix.NFT_MSG_NEWSET), flags: unix.NLM_F_CREATE, table: t, body: a,
		what: fmt.Sprintf("add set %q", s.Name)}
}

// setUserdata holds what nft wants to know for printing and reloading the set.
func setUserdata(s Set) []byte {
	const host, network = 1, 2
	order := uint32(network)
	if len(s.Key) == 1 && s.Key[0] == IfName {
		order = host
	}
	u := udataNumber(udataKeyByteOrder, order)
	if s.Comment != "" {
		u = append(u, udataText(udataSetComment, s.Comment)...)
	}
	return u
}

// datatype is the number and the length of a type or a concatenation of types.
func datatype(types []Type) (number, length uint32) {
	for _, t := range types {
		number = number<<6 | uint32(t)
		length += uint32(t.size()+3) &^ 3
	}
	if len(types) == 1 {
		length = uint32(types[0].size())
	}
	return number, length
}
