package nft

import (
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// Stmt is one statement of a rule: its text as nft prints it, and the expressions that the kernel runs.
type Stmt struct {
	text  string
	proto byte // network protocol that the expressions presuppose, 0 for none
	exprs []expression
}

// Field is something of a packet that a rule can look at.
type Field int

// The fields.
const (
	IPSaddr Field = iota
	IPDaddr
	IP6Saddr
	IP6Daddr
	EtherSaddr
	IIFName
	OIFName
	L4Proto
	THDport
)

type fieldSpec struct {
	text   string
	proto  byte
	meta   uint32 // with base < 0
	base   int
	offset uint32
	size   uint32
}

// fieldTable says how each field is loaded.
var fieldTable = [...]fieldSpec{
	IPSaddr:    {"ip saddr", unix.NFPROTO_IPV4, 0, unix.NFT_PAYLOAD_NETWORK_HEADER, 12, 4},
	IPDaddr:    {"ip daddr", unix.NFPROTO_IPV4, 0, unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 4},
	IP6Saddr:   {"ip6 saddr", unix.NFPROTO_IPV6, 0, unix.NFT_PAYLOAD_NETWORK_HEADER, 8, 16},
	IP6Daddr:   {"ip6 daddr", unix.NFPROTO_IPV6, 0, unix.NFT_PAYLOAD_NETWORK_HEADER, 24, 16},
	EtherSaddr: {"ether saddr", 0, 0, unix.NFT_PAYLOAD_LL_HEADER, 6, 6},
	IIFName:    {"iifname", 0, unix.NFT_META_IIFNAME, -1, 0, 16},
	OIFName:    {"oifname", 0, unix.NFT_META_OIFNAME, -1, 0, 16},
	L4Proto:    {"meta l4proto", 0, unix.NFT_META_L4PROTO, -1, 0, 1},
	THDport:    {"th dport", 0, 0, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2},
}

// InPrefix matches packets whose address field lies in the prefix. The expressions are those of nft, so
// that a ruleset that it saved and loaded again is still the same: whole bytes need no mask.
func InPrefix(f Field, p netip.Prefix) Stmt {
	p = p.Masked()
	spec := fieldTable[f]
	s := Stmt{text: spec.text + " " + p.String(), proto: spec.proto}
	if p.IsSingleIP() {
		s.text = spec.text + " " + p.Addr().String()
	}
	want := p.Addr().AsSlice()
	if p.Bits() > 0 && p.Bits()%8 == 0 {
		spec.size = uint32(p.Bits() / 8)
		want = want[:spec.size]
		s.exprs = []expression{spec.load(reg1)}
	} else {
		mask := make([]byte, spec.size)
		for bit := range p.Bits() {
			mask[bit/8] |= 0x80 >> (bit % 8)
		}
		s.exprs = []expression{spec.load(reg1), bitwise(mask, make([]byte, spec.size))}
	}
	s.exprs = append(s.exprs, isEqual(want))
	return s
}

// InSet matches packets whose fields, concatenated, are an element of the set.
func InSet(set string, fields ...Field) Stmt {
	return lookup(fields, " @"+set, set)
}

// NotInSet is the opposite of InSet.
func NotInSet(set string, fields ...Field) Stmt {
	return lookup(fields, " != @"+set, set, num(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV))
}

// VerdictMap applies the verdict that the map has for the fields, and goes on when it has none.
func VerdictMap(set string, fields ...Field) Stmt {
	return lookup(fields, " vmap @"+set, set, num(unix.NFTA_LOOKUP_DREG, unix.NFT_REG_VERDICT))
}

// lookup loads the fields and looks them up in the set.
func lookup(fields []Field, tail, set string, more ...attr) Stmt {
	var s Stmt
	names := make([]string, len(fields))
	words := uint32(0)
	for i, f := range fields {
		spec := fieldTable[f]
		names[i] = spec.text
		s.proto = max(s.proto, spec.proto)
		s.exprs = append(s.exprs, spec.load(register(words)))
		words += (spec.size + 3) / 4
	}
	s.text = strings.Join(names, " . ") + tail
	s.exprs = append(s.exprs, expression{"lookup",
		append([]attr{str(unix.NFTA_LOOKUP_SET, set), num(unix.NFTA_LOOKUP_SREG, reg1),
			num(unix.NFTA_LOOKUP_SET_ID, 0)}, more...)})
	return s
}

// register numbers the registers by 32-bit words, in the way in which the kernel reports them.
func register(word uint32) uint32 {
	if word%4 == 0 {
		return unix.NFT_REG_1 + word/4
	}
	return unix.NFT_REG32_00 + word
}

func (spec fieldSpec) load(reg uint32) expression {
	if spec.base < 0 {
		return loadMeta(spec.meta, reg)
	}
	return expression{"payload", []attr{num(unix.NFTA_PAYLOAD_DREG, reg), num(unix.NFTA_PAYLOAD_BASE, uint32(spec.base)),
		num(unix.NFTA_PAYLOAD_OFFSET, spec.offset), num(unix.NFTA_PAYLOAD_LEN, spec.size)}}
}

// Return ends the chain.
func Return() Stmt { return ending("return", unix.NFT_RETURN, "") }

// Drop discards the packet.
func Drop() Stmt { return ending("drop", dropPacket, "") }

// Jump calls another chain of the table.
func Jump(chain string) Stmt { return ending("jump "+chain, unix.NFT_JUMP, chain) }

// Goto leaves this chain for another one of the table and does not come back.
func Goto(chain string) Stmt { return ending("goto "+chain, unix.NFT_GOTO, chain) }

func ending(text string, code int32, chain string) Stmt {
	return Stmt{text: text, exprs: []expression{verdict(code, chain)}}
}

// Masquerade gives the packet the source address of the interface it leaves by.
func Masquerade() Stmt { return Stmt{text: "masquerade", exprs: []expression{{name: "masq"}}} }

// compile returns the rule's expressions for a table of the family. In a family of several protocols
// a field of one of them needs a test for it first: without it nft prints raw offsets, too.
func (r Rule) compile(family Family) []expression {
	var out []expression
	var proto byte
	for _, s := range r {
		if s.proto != 0 && s.proto != proto && family == INet {
			proto = s.proto
			out = append(out, loadMeta(unix.NFT_META_NFPROTO, reg1), isEqual([]byte{proto}))
		}
		out = append(out, s.exprs...)
	}
	return out
}
