package nft

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Stmt is one statement of a rule: its text as nft prints it, and the expressions that the kernel runs.
type Stmt struct {
	text  string
	proto byte // network protocol that the expressions presuppose, 0 for none
	exprs []expr.Any
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
	meta   expr.MetaKey // with base < 0
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
	IIFName:    {"iifname", 0, expr.MetaKeyIIFNAME, -1, 0, 16},
	OIFName:    {"oifname", 0, expr.MetaKeyOIFNAME, -1, 0, 16},
	L4Proto:    {"meta l4proto", 0, expr.MetaKeyL4PROTO, -1, 0, 1},
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
		s.exprs = []expr.Any{spec.load(1)}
	} else {
		mask := make([]byte, spec.size)
		for bit := range p.Bits() {
			mask[bit/8] |= 0x80 >> (bit % 8)
		}
		s.exprs = []expr.Any{spec.load(1), &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: spec.size,
			Mask: mask, Xor: make([]byte, spec.size)}}
	}
	s.exprs = append(s.exprs, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: want})
	return s
}

// InSet matches packets whose fields, concatenated, are an element of the set.
func InSet(set string, fields ...Field) Stmt {
	return lookup(fields, " @"+set, &expr.Lookup{SetName: set})
}

// NotInSet is the opposite of InSet.
func NotInSet(set string, fields ...Field) Stmt {
	return lookup(fields, " != @"+set, &expr.Lookup{SetName: set, Invert: true})
}

// VerdictMap applies the verdict that the map has for the fields, and goes on when it has none.
func VerdictMap(set string, fields ...Field) Stmt {
	return lookup(fields, " vmap @"+set, &expr.Lookup{SetName: set, IsDestRegSet: true})
}

func lookup(fields []Field, tail string, l *expr.Lookup) Stmt {
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
	l.SourceRegister = 1
	s.text = strings.Join(names, " . ") + tail
	s.exprs = append(s.exprs, l)
	return s
}

// register numbers the registers by 32-bit words, in the way in which the kernel reports them.
func register(word uint32) uint32 {
	if word%4 == 0 {
		return unix.NFT_REG_1 + word/4
	}
	return unix.NFT_REG32_00 + word
}

func (spec fieldSpec) load(reg uint32) expr.Any {
	if spec.base < 0 {
		return &expr.Meta{Key: spec.meta, Register: reg}
	}
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBase(spec.base), Offset: spec.offset, Len: spec.size}
}

// Return ends the chain.
func Return() Stmt { return verdict("return", expr.Verdict{Kind: expr.VerdictReturn}) }

// Accept ends the hook's chain for the packet.
func Accept() Stmt { return verdict("accept", expr.Verdict{Kind: expr.VerdictAccept}) }

// Drop discards the packet.
func Drop() Stmt { return verdict("drop", expr.Verdict{Kind: expr.VerdictDrop}) }

// Jump calls another chain of the table.
func Jump(chain string) Stmt {
	return verdict("jump "+chain, expr.Verdict{Kind: expr.VerdictJump, Chain: chain})
}

func verdict(text string, v expr.Verdict) Stmt { return Stmt{text: text, exprs: []expr.Any{&v}} }

// Masquerade gives the packet the source address of the interface it leaves by.
func Masquerade() Stmt { return Stmt{text: "masquerade", exprs: []expr.Any{&expr.Masq{}}} }

// compile returns the rule's expressions for a table of the family. In a family of several protocols
// a field of one of them needs a test for it first: without it nft prints raw offsets, too.
func (r Rule) compile(family Family) []expr.Any {
	var out []expr.Any
	var proto byte
	for _, s := range r {
		if s.proto != 0 && s.proto != proto && family == INet {
			proto = s.proto
			out = append(out, &expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}})
		}
		out = append(out, s.exprs...)
	}
	return out
}

// marshal returns the rule's expressions as the kernel takes them.
func (r Rule) marshal(family Family) ([][]byte, error) {
	exprs := r.compile(family)
	out := make([][]byte, len(exprs))
	for i, e := range exprs {
		data, err := expr.Marshal(byte(family), e)
		if err != nil {
			return nil, fmt.Errorf("rule %q: %w", r, err)
		}
		out[i] = data
	}
	return out, nil
}
