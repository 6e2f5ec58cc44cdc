package nft

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nlattr"
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
)

// message is one operation of a batch, or a request to read.
type message struct {
	typ     uint16
	flags   uint16
	table   Table
	body    []byte
	what    string // description of the operation, for errors
	modules string // kernel modules that the operation needs; empty = none
}

// message returns a message about the table or an object in it. The first attribute is always the table's name.
func (t Table) message(kind uint16, what string, attrs ...[]byte) message {
	var name []byte
	if t.Name != "" {
		name = nlattr.String(unix.NFTA_TABLE_NAME, t.Name)
	}
	return message{typ: unix.NFNL_SUBSYS_NFTABLES<<8 | kind, table: t, what: what,
		body: slices.Concat(name, slices.Concat(attrs...))}
}

const nfgenmsgSize = 4

func (m message) request(flags uint16) *nl.NetlinkRequest {
	resID := uint16(0) // of struct nfgenmsg
	if m.typ == unix.NFNL_MSG_BATCH_BEGIN || m.typ == unix.NFNL_MSG_BATCH_END {
		resID = unix.NFNL_SUBSYS_NFTABLES
	}
	req := &nl.NetlinkRequest{NlMsghdr: unix.NlMsghdr{Type: m.typ, Flags: unix.NLM_F_REQUEST | m.flags | flags}}
	req.AddRawData(binary.BigEndian.AppendUint16([]byte{byte(m.table.Family), unix.NFNETLINK_V0}, resID))
	req.AddRawData(m.body)
	return req
}

func newTable(t Table) message {
	m := t.message(unix.NFT_MSG_NEWTABLE, "add table")
	if t.Family != IPv4 && t.Family != IPv6 { // tables in these families belong to iptables-nft and have no comment
		m.body = append(m.body, nlattr.Bytes(attrTableUserdata, udataText(udataComment, "Hawser CNI plugins"))...)
	}
	m.flags, m.modules = unix.NLM_F_CREATE, core
	return m
}

func (t Table) chainMessage(kind uint16, what, chain string) message {
	return t.message(kind, fmt.Sprintf("%s chain %q", what, chain), nlattr.String(unix.NFTA_CHAIN_NAME, chain))
}

func newChain(t Table, c Chain) message {
	m := t.chainMessage(unix.NFT_MSG_NEWCHAIN, "add", c.Name)
	m.flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	if c.Hook != nil {
		if m.modules = core; c.Hook.Type == "nat" {
			m.modules = "nft_chain_nat"
		}
		m.body = slices.Concat(m.body, nlattr.Nest(unix.NFTA_CHAIN_HOOK,
			nlattr.Net32(unix.NFTA_HOOK_HOOKNUM, c.Hook.Point),
			nlattr.Net32(unix.NFTA_HOOK_PRIORITY, uint32(c.Hook.Priority))),
			nlattr.Net32(unix.NFTA_CHAIN_POLICY, acceptPacket), nlattr.String(unix.NFTA_CHAIN_TYPE, c.Hook.Type))
	}
	if c.Comment != "" {
		m.body = append(m.body, nlattr.Bytes(attrChainUserdata, udataText(udataComment, c.Comment))...)
	}
	return m
}

// ruleMessage returns a message about a rule. attr is its handle or its expressions.
func (t Table) ruleMessage(kind uint16, what, chain string, attr []byte) message {
	return t.message(kind, fmt.Sprintf("%s chain %q", what, chain), nlattr.String(unix.NFTA_RULE_CHAIN, chain), attr)
}

func newRule(t Table, chain string, r Rule) message {
	var list []byte
	exprs := r.compile(t.Family)
	for _, x := range exprs {
		list = append(list, nlattr.Nest(unix.NFTA_LIST_ELEM, x)...)
	}
	m := t.ruleMessage(unix.NFT_MSG_NEWRULE, fmt.Sprintf("add rule %q to", r), chain,
		nlattr.Nest(unix.NFTA_RULE_EXPRESSIONS, list))
	m.flags, m.modules = unix.NLM_F_CREATE|unix.NLM_F_APPEND, modulesOf(exprs)
	return m
}

const core = "nf_tables" // main module of nftables

// modulesOf returns the modules of expressions. The basic expressions are part of nf_tables itself.
func modulesOf(exprs [][]byte) string {
	var modules []string
	for _, x := range exprs {
		switch name := nlattr.GetString(x, unix.NFTA_EXPR_NAME); name {
		case "bitwise", "byteorder", "cmp", "dynset", "immediate", "lookup", "meta", "payload", "range":
		default:
			modules = append(modules, "nft_"+name)
		}
	}
	return cmp.Or(strings.Join(modules, ", "), core)
}

func newSet(t Table, s Set, id uint32) message {
	flags := uint32(0)
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	var data []byte
	if s.Data != nil {
		flags |= unix.NFT_SET_MAP
		number, length := datatype(s.Data)
		data = append(nlattr.Net32(unix.NFTA_SET_DATA_TYPE, number), nlattr.Net32(unix.NFTA_SET_DATA_LEN, length)...)
	}
	number, length := datatype(s.Key)
	m := t.message(unix.NFT_MSG_NEWSET, fmt.Sprintf("add set %q", s.Name),
		nlattr.String(unix.NFTA_SET_NAME, s.Name),
		nlattr.Net32(unix.NFTA_SET_KEY_TYPE, number), nlattr.Net32(unix.NFTA_SET_KEY_LEN, length), data,
		nlattr.Net32(unix.NFTA_SET_FLAGS, flags), nlattr.Net32(unix.NFTA_SET_ID, id),
		nlattr.Bytes(attrSetUserdata, setUserdata(s)))
	m.flags = unix.NLM_F_CREATE
	return m
}

// setUserdata returns the data that nft needs to print and reload the set.
func setUserdata(s Set) []byte {
	const host, network = 1, 2
	order := uint32(network)
	if len(s.Key) == 1 && s.Key[0] == IfName {
		order = host
	}
	u := udataBytes(udataKeyByteOrder, binary.NativeEndian.AppendUint32(nil, order))
	if s.Comment != "" {
		u = append(u, udataText(udataSetComment, s.Comment)...)
	}
	return u
}

// datatype returns the number and the length of a type or a concatenation. A verdict has length 0.
func datatype(types []Type) (number, length uint32) {
	for _, t := range types {
		number = number<<6 | uint32(t)
		length += uint32(t.size()+3) &^ 3
	}
	if len(types) == 1 {
		length = uint32(types[0].size())
	}
	if types[0] == Verdict {
		number = verdictData
	}
	return number, length
}

// Element is one element of a set or map.
type Element struct {
	Key     []byte // as returned by Key
	Data    []byte // of a map; nil for a set or a verdict map
	Goto    string // of a verdict map: the chain that packets go to
	Verdict []byte // of a verdict map: the verdict's code, in network byte order; only set by reads
	IsEnd   bool   // the key ends an interval, and is not in it; only set by reads
	Comment string // the owner's mark; at most 128 bytes, because nft refuses to load a longer one
}

// elementMessage returns a message about the elements in attrs or, without attrs, about all elements of the set.
func (t Table) elementMessage(kind uint16, what, set string, attrs ...[]byte) message {
	return t.message(kind, fmt.Sprintf("%s set %q", what, set), nlattr.String(unix.NFTA_SET_ELEM_LIST_SET, set),
		slices.Concat(attrs...))
}

func elementList(elems []Element, encode func(Element) []byte) []byte {
	var list []byte
	for _, e := range elems {
		list = append(list, nlattr.Nest(unix.NFTA_LIST_ELEM, encode(e))...)
	}
	return nlattr.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list)
}

func (e Element) encodeKey() []byte {
	return nlattr.Nest(unix.NFTA_SET_ELEM_KEY, nlattr.Bytes(unix.NFTA_DATA_VALUE, e.Key))
}

func (e Element) encode() []byte {
	out := e.encodeKey()
	switch {
	case e.Goto != "":
		out = append(out, nlattr.Nest(unix.NFTA_SET_ELEM_DATA, verdictValue(unix.NFT_GOTO, e.Goto))...)
	case e.Data != nil:
		out = append(out, nlattr.Nest(unix.NFTA_SET_ELEM_DATA, nlattr.Bytes(unix.NFTA_DATA_VALUE, e.Data))...)
	}
	if e.Comment != "" {
		out = append(out, nlattr.Bytes(attrElemUserdata, udataText(udataComment, e.Comment))...)
	}
	return out
}

func decodeElements(data []byte) (out []Element) {
	for _, raw := range nlattr.All(nlattr.Get(data, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
		value := nlattr.Get(raw, unix.NFTA_SET_ELEM_DATA)
		out = append(out, Element{
			Key:     nlattr.Get(raw, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE),
			Data:    nlattr.Get(value, unix.NFTA_DATA_VALUE),
			Goto:    nlattr.GetString(value, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CHAIN),
			Verdict: nlattr.Get(value, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CODE),
			IsEnd:   nlattr.GetNumber(raw, unix.NFTA_SET_ELEM_FLAGS)&unix.NFT_SET_ELEM_INTERVAL_END != 0,
			Comment: udata(nlattr.Get(raw, attrElemUserdata), udataComment),
		})
	}
	return out
}

// Types of nft's user data (libnftnl/udata.h), which the kernel only stores. An item has a type, a length and a value.
const (
	udataComment      = 0 // of all objects except sets
	udataKeyByteOrder = 0 // of a set
	udataSetComment   = 7
)

func udataBytes(typ byte, value []byte) []byte {
	return append([]byte{typ, byte(len(value))}, value...)
}

func udataText(typ byte, text string) []byte { return udataBytes(typ, append([]byte(text), 0)) }

// udata returns a text from user data. Other programs may have written the data, so all lengths are checked.
func udata(b []byte, want byte) string {
	for len(b) >= 2 && len(b) >= 2+int(b[1]) {
		if b[0] == want {
			return unix.ByteSliceToString(b[2 : 2+int(b[1])])
		}
		b = b[2+int(b[1]):]
	}
	return ""
}
