package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// Attributes that golang.org/x/sys does not name (linux/netfilter/nf_tables.h).
const (
	attrTableUserdata = 6
	attrChainUserdata = 12
	attrSetUserdata   = 13
	attrElemUserdata  = 6

	verdictData  = 0xffffff00 // NFT_DATA_VERDICT
	policyAccept = 1          // NF_ACCEPT

	chunkSize = 32 << 10 // of an element list: the length of an attribute has 16 bits
)

// message is one operation of a batch. What it does is kept for errors.
type message struct {
	typ     uint16
	flags   uint16
	table   Table
	body    attrs
	what    string
	feature bool // creates what an old kernel may not know: a table or a base chain
	rule    bool // has expressions that an old kernel may not know
}

// attrs is a list of netlink attributes.
type attrs []byte

func (a *attrs) put(typ uint16, data []byte) {
	*a = binary.NativeEndian.AppendUint16(*a, uint16(len(data)+4))
	*a = binary.NativeEndian.AppendUint16(*a, typ)
	*a = append(*a, data...)
	*a = append(*a, make([]byte, -len(data)&3)...)
}

func (a *attrs) str(typ uint16, s string) { a.put(typ, append([]byte(s), 0)) }

func (a *attrs) u32(typ uint16, v uint32) { a.put(typ, binary.BigEndian.AppendUint32(nil, v)) }

func (a *attrs) nest(typ uint16, in attrs) { a.put(typ|unix.NLA_F_NESTED, in) }

// attributes walks a list of attributes and stops at the first that makes no sense.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= 4 {
			n := int(binary.NativeEndian.Uint16(b))
			if n < 4 || n > len(b) {
				return
			}
			typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(typ, b[4:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}

// attribute is the first attribute of the type, nil when there is none.
func attribute(b []byte, want uint16) []byte {
	for typ, val := range attributes(b) {
		if typ == want {
			return val
		}
	}
	return nil
}

func cstring(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// encode appends the message with its header.
func (m message) encode(out []byte, seq uint32, extra uint16) []byte {
	res := uint16(0)
	if m.typ == unix.NFNL_MSG_BATCH_BEGIN || m.typ == unix.NFNL_MSG_BATCH_END {
		res = unix.NFNL_SUBSYS_NFTABLES
	}
	out = binary.NativeEndian.AppendUint32(out, uint32(unix.SizeofNlMsghdr+nfgenmsgSize+len(m.body)))
	out = binary.NativeEndian.AppendUint16(out, m.typ)
	out = binary.NativeEndian.AppendUint16(out, unix.NLM_F_REQUEST|m.flags|extra)
	out = binary.NativeEndian.AppendUint32(out, seq)
	out = binary.NativeEndian.AppendUint32(out, 0)
	out = append(out, byte(m.table.Family), unix.NFNETLINK_V0)
	out = binary.BigEndian.AppendUint16(out, res)
	return append(out, m.body...)
}

func nfMsg(typ uint16) uint16 { return unix.NFNL_SUBSYS_NFTABLES<<8 | typ }

func comment(typ userdata.Type, text string) []byte { return userdata.AppendString(nil, typ, text) }

func newTable(t Table, text string) message {
	var a attrs
	a.str(unix.NFTA_TABLE_NAME, t.Name)
	if text != "" {
		a.put(attrTableUserdata, comment(0, text))
	}
	return message{typ: nfMsg(unix.NFT_MSG_NEWTABLE), flags: unix.NLM_F_CREATE, table: t, body: a,
		what: "add table", feature: true}
}

func newChain(t Table, c Chain) message {
	var a attrs
	a.str(unix.NFTA_CHAIN_TABLE, t.Name)
	a.str(unix.NFTA_CHAIN_NAME, c.Name)
	if c.Hook != nil {
		var hook attrs
		hook.u32(unix.NFTA_HOOK_HOOKNUM, uint32(c.Hook.Point))
		hook.u32(unix.NFTA_HOOK_PRIORITY, uint32(c.Hook.Priority))
		a.nest(unix.NFTA_CHAIN_HOOK, hook)
		a.u32(unix.NFTA_CHAIN_POLICY, policyAccept)
		a.str(unix.NFTA_CHAIN_TYPE, c.Hook.Type)
	}
	if c.Comment != "" {
		a.put(attrChainUserdata, comment(0, c.Comment))
	}
	return message{typ: nfMsg(unix.NFT_MSG_NEWCHAIN), flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, table: t,
		body: a, what: fmt.Sprintf("add chain %q", c.Name), feature: c.Hook != nil}
}

// chainRef names a chain for getting and deleting it.
func chainRef(typ uint16, t Table, chain string) message {
	var a attrs
	a.str(unix.NFTA_CHAIN_TABLE, t.Name)
	a.str(unix.NFTA_CHAIN_NAME, chain)
	return message{typ: nfMsg(typ), table: t, body: a, what: fmt.Sprintf("delete chain %q", chain)}
}

func newRule(t Table, chain string, r Rule) (message, error) {
	exprs, err := r.marshal(t.Family)
	if err != nil {
		return message{}, err
	}
	var list, a attrs
	for _, e := range exprs {
		list.nest(unix.NFTA_LIST_ELEM, e)
	}
	a.str(unix.NFTA_RULE_TABLE, t.Name)
	a.str(unix.NFTA_RULE_CHAIN, chain)
	a.nest(unix.NFTA_RULE_EXPRESSIONS, list)
	return message{typ: nfMsg(unix.NFT_MSG_NEWRULE), flags: unix.NLM_F_CREATE | unix.NLM_F_APPEND, table: t,
		body: a, what: fmt.Sprintf("add rule %q to chain %q", r, chain), rule: true}, nil
}

func delRule(t Table, chain string, handle uint64) message {
	var a attrs
	a.str(unix.NFTA_RULE_TABLE, t.Name)
	a.str(unix.NFTA_RULE_CHAIN, chain)
	a.put(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, handle))
	return message{typ: nfMsg(unix.NFT_MSG_DELRULE), table: t, body: a,
		what: fmt.Sprintf("delete rule %d of chain %q", handle, chain)}
}

func newSet(t Table, s Set, id uint32) message {
	flags := uint32(0)
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	var a attrs
	a.str(unix.NFTA_SET_TABLE, t.Name)
	a.str(unix.NFTA_SET_NAME, s.Name)
	keyType, keyLen := datatype(s.Key)
	a.u32(unix.NFTA_SET_KEY_TYPE, keyType)
	a.u32(unix.NFTA_SET_KEY_LEN, keyLen)
	switch {
	case s.Data == nil:
	case s.Data[0] == Verdict:
		flags |= unix.NFT_SET_MAP
		a.u32(unix.NFTA_SET_DATA_TYPE, verdictData)
	default:
		flags |= unix.NFT_SET_MAP
		dataType, dataLen := datatype(s.Data)
		a.u32(unix.NFTA_SET_DATA_TYPE, dataType)
		a.u32(unix.NFTA_SET_DATA_LEN, dataLen)
	}
	a.u32(unix.NFTA_SET_FLAGS, flags)
	a.u32(unix.NFTA_SET_ID, id)
	a.put(attrSetUserdata, setUserdata(s))
	return message{typ: nfMsg(unix.NFT_MSG_NEWSET), flags: unix.NLM_F_CREATE, table: t, body: a,
		what: fmt.Sprintf("add set %q", s.Name)}
}

// setUserdata holds what nft wants to know for printing and reloading the set.
func setUserdata(s Set) []byte {
	const host, network = 1, 2
	order := uint32(network)
	if len(s.Key) == 1 && (s.Key[0] == IfName || s.Key[0] == Mark) {
		order = host
	}
	u := userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, order)
	if s.Comment != "" {
		u = userdata.AppendString(u, userdata.NFTNL_UDATA_SET_COMMENT, s.Comment)
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
