package nft

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nlattr"
)

// Stmt is one statement of a rule.
type Stmt struct {
	text  string   // as nft prints it
	proto byte     // network protocol that the expressions require; 0 = none
	exprs [][]byte // the kernel's expressions
}

// Field is a packet field that a rule can compare. It is loaded from a header, or by a meta key.
type Field struct {
	text         string // as nft prints it
	proto        byte   // as in Stmt
	meta         uint32 // meta key, if base is -1
	base         int    // header (NFT_PAYLOAD_*)
	offset, size uint32
}

// Fields for rules.
var (
	IPSaddr    = Field{"ip saddr", unix.NFPROTO_IPV4, 0, unix.NFT_PAYLOAD_NETWORK_HEADER, 12, 4}
	IPDaddr    = Field{"ip daddr", unix.NFPROTO_IPV4, 0, unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 4}
	IP6Saddr   = Field{"ip6 saddr", unix.NFPROTO_IPV6, 0, unix.NFT_PAYLOAD_NETWORK_HEADER, 8, 16}
	IP6Daddr   = Field{"ip6 daddr", unix.NFPROTO_IPV6, 0, unix.NFT_PAYLOAD_NETWORK_HEADER, 24, 16}
	EtherSaddr = Field{"ether saddr", 0, 0, unix.NFT_PAYLOAD_LL_HEADER, 6, 6}
	IIFName    = Field{"iifname", 0, unix.NFT_META_IIFNAME, -1, 0, 16}
	OIFName    = Field{"oifname", 0, unix.NFT_META_OIFNAME, -1, 0, 16}
	L4Proto    = Field{"meta l4proto", 0, unix.NFT_META_L4PROTO, -1, 0, 1}
	THSport    = Field{"th sport", 0, 0, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2}
	THDport    = Field{"th dport", 0, 0, unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2}
)

// InPrefix matches packets whose address field is in the prefix. Like nft, it compares whole bytes without a mask.
func InPrefix(f Field, p netip.Prefix) Stmt {
	p = p.Masked()
	s := Stmt{text: f.text + " " + p.String(), proto: f.proto}
	if p.IsSingleIP() {
		s.text = f.text + " " + p.Addr().String()
	}
	want := p.Addr().AsSlice()
	if p.Bits() > 0 && p.Bits()%8 == 0 {
		f.size = uint32(p.Bits() / 8)
		want = want[:f.size]
		s.exprs = [][]byte{f.load(reg1)}
	} else {
		mask := net.CIDRMask(p.Bits(), p.Addr().BitLen())
		s.exprs = [][]byte{f.load(reg1), bitwise(mask, make([]byte, len(mask)))}
	}
	s.exprs = append(s.exprs, isEqual(want))
	return s
}

// FieldIs matches packets whose field has this value.
func FieldIs(f Field, value []byte) Stmt {
	text := fmt.Sprintf("%s %#x", f.text, value)
	return Stmt{text: text, proto: f.proto, exprs: [][]byte{f.load(reg1), isEqual(value)}}
}

// InSet matches packets whose fields, concatenated, are an element of the set.
func InSet(set string, fields ...Field) Stmt {
	return lookup(fields, " @"+set, set, nlattr.Net32(unix.NFTA_LOOKUP_FLAGS, 0))
}

// NotInSet matches packets that InSet does not match.
func NotInSet(set string, fields ...Field) Stmt {
	return lookup(fields, " != @"+set, set, nlattr.Net32(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV))
}

// VerdictMap applies the verdict that the map has for the fields. Without an element, the rule has no effect.
func VerdictMap(set string, fields ...Field) Stmt {
	return lookup(fields, " vmap @"+set, set, nlattr.Net32(unix.NFTA_LOOKUP_DREG, unix.NFT_REG_VERDICT))
}

func lookup(fields []Field, suffix, set string, attrs ...[]byte) (s Stmt) {
	names := make([]string, len(fields))
	words := uint32(0)
	for i, f := range fields {
		names[i] = f.text
		s.proto = max(s.proto, f.proto)
		s.exprs = append(s.exprs, f.load(register(words)))
		words += (f.size + 3) / 4
	}
	s.text = strings.Join(names, " . ") + suffix
	s.exprs = append(s.exprs, expression("lookup", append(attrs, nlattr.String(unix.NFTA_LOOKUP_SET, set),
		nlattr.Net32(unix.NFTA_LOOKUP_SREG, reg1), nlattr.Net32(unix.NFTA_LOOKUP_SET_ID, 0))...))
	return s
}

// register returns the kernel's number for the register of a 32-bit word. The first word of a 16-byte register has that
// register's number, as in the kernel's answers.
func register(word uint32) uint32 {
	if word%4 == 0 {
		return unix.NFT_REG_1 + word/4
	}
	return unix.NFT_REG32_00 + word
}

func (f Field) load(reg uint32) []byte {
	if f.base < 0 {
		return loadMeta(f.meta, reg)
	}
	return expression("payload", nlattr.Net32(unix.NFTA_PAYLOAD_DREG, reg),
		nlattr.Net32(unix.NFTA_PAYLOAD_BASE, uint32(f.base)),
		nlattr.Net32(unix.NFTA_PAYLOAD_OFFSET, f.offset), nlattr.Net32(unix.NFTA_PAYLOAD_LEN, f.size))
}

// Accept lets the packet pass the base chain.
func Accept() Stmt { return verdict("accept", acceptPacket, "") }

// Return ends the processing of the chain.
func Return() Stmt { return verdict("return", unix.NFT_RETURN, "") }

// Drop discards the packet.
func Drop() Stmt { return verdict("drop", dropPacket, "") }

// Jump continues in another chain of the table, and afterwards in this one.
func Jump(chain string) Stmt { return verdict("jump "+chain, unix.NFT_JUMP, chain) }

// Goto continues in another chain of the table.
func Goto(chain string) Stmt { return verdict("goto "+chain, unix.NFT_GOTO, chain) }

// verdict returns the statement for a verdict. chain is the target of a jump or goto.
func verdict(text string, code int32, chain string) Stmt {
	return Stmt{text: text, exprs: [][]byte{immediate(unix.NFT_REG_VERDICT,
		nlattr.Nest(unix.NFTA_IMMEDIATE_DATA, verdictValue(code, chain)))}}
}

// Masquerade translates the packet's source to the address of its output interface.
func Masquerade() Stmt { return MasqueradeTo([2]uint16{}, false) }

// MasqueradeTo is Masquerade with a source port in the range ports; a zero range means any port. A rule with a range
// must match a protocol with ports first. The kernel keeps the packet's source port if possible, unless random is set.
func MasqueradeTo(ports [2]uint16, random bool) Stmt {
	const protoSpecified, protoRandomFully = 1 << 1, 1 << 4 // NF_NAT_RANGE_*
	s := Stmt{text: "masquerade"}
	var flags uint32
	var attrs [][]byte
	if ports != [2]uint16{} {
		s.text += fmt.Sprintf(" to :%d-%d", ports[0], ports[1])
		flags |= protoSpecified
		for i, attr := range []uint16{unix.NFTA_MASQ_REG_PROTO_MIN, unix.NFTA_MASQ_REG_PROTO_MAX} {
			reg := reg1 + uint32(i)
			s.exprs = append(s.exprs, immediate(reg, operand(unix.NFTA_IMMEDIATE_DATA,
				binary.BigEndian.AppendUint16(nil, ports[i]))))
			attrs = append(attrs, nlattr.Net32(attr, reg))
		}
	}
	if random {
		s.text += " fully-random"
		flags |= protoRandomFully
	}
	s.exprs = append(s.exprs, expression("masq", append(attrs, nlattr.Net32(unix.NFTA_MASQ_FLAGS, flags))...))
	return s
}

func immediate(reg uint32, data []byte) []byte {
	return expression("immediate", nlattr.Net32(unix.NFTA_IMMEDIATE_DREG, reg), data)
}

// DNATMap translates the destination to the address of family f and the port that the map has for the fields. For a
// packet without an element, the rule has no effect.
func DNATMap(f Family, set string, fields ...Field) Stmt {
	s := lookup(fields, "", set, nlattr.Net32(unix.NFTA_LOOKUP_DREG, reg1))
	port := register(uint32(f.Addr().size()) / 4) // after the address
	const mapIPs, protoSpecified = 1 << 0, 1 << 1 // NF_NAT_RANGE_*; newer kernels add both themselves
	s.exprs = append(s.exprs, expression("nat", nlattr.Net32(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT),
		nlattr.Net32(unix.NFTA_NAT_FAMILY, uint32(f)), nlattr.Net32(unix.NFTA_NAT_FLAGS, mapIPs|protoSpecified),
		nlattr.Net32(unix.NFTA_NAT_REG_ADDR_MIN, reg1), nlattr.Net32(unix.NFTA_NAT_REG_ADDR_MAX, reg1),
		nlattr.Net32(unix.NFTA_NAT_REG_PROTO_MIN, port), nlattr.Net32(unix.NFTA_NAT_REG_PROTO_MAX, port)))
	s.text = fmt.Sprintf("dnat %s to %s map @%s", f, s.text, set)
	return s
}

// DaddrIsLocal matches packets that are addressed to this host.
func DaddrIsLocal() Stmt {
	fib := expression("fib", nlattr.Net32(unix.NFTA_FIB_DREG, reg1),
		nlattr.Net32(unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE),
		nlattr.Net32(unix.NFTA_FIB_FLAGS, unix.NFTA_FIB_F_DADDR))
	return Stmt{text: "fib daddr type local", exprs: [][]byte{fib, isEqual(word(unix.RTN_LOCAL))}}
}

// IsFamily matches packets of one family in a table of the family inet.
func IsFamily(f Family) Stmt {
	return Stmt{text: "meta nfproto ipv" + f.Digit(),
		exprs: [][]byte{loadMeta(unix.NFT_META_NFPROTO, reg1), isEqual([]byte{byte(f)})}}
}

// IsProtocol matches packets of one transport protocol. name is its name in nft.
func IsProtocol(proto byte, name string) Stmt {
	return Stmt{text: L4Proto.text + " " + name, exprs: [][]byte{L4Proto.load(reg1), isEqual([]byte{proto})}}
}

// CtTranslated matches packets of flows whose destination was translated.
func CtTranslated() Stmt {
	const statusDNAT = 1 << 5 // IPS_DST_NAT
	return ctHas("status dnat", unix.NFT_CT_STATUS, statusDNAT)
}

// CtEstablished matches packets of connections that have been answered, and of related connections.
func CtEstablished() Stmt {
	const stateEstablished, stateRelated = 1 << 1, 1 << 2 // NF_CT_STATE_BIT
	return ctHas("state established,related", unix.NFT_CT_STATE, stateEstablished|stateRelated)
}

// ctHas matches packets of flows that have one of the bits.
func ctHas(text string, key, bits uint32) Stmt {
	load := expression("ct", nlattr.Net32(unix.NFTA_CT_KEY, key), nlattr.Net32(unix.NFTA_CT_DREG, reg1))
	return Stmt{text: "ct " + text,
		exprs: [][]byte{load, bitwise(word(bits), word(0)), compare(unix.NFT_CMP_NEQ, word(0))}}
}

// FwmarkHas matches packets whose fwmark has all of the bits.
func FwmarkHas(bits uint32) Stmt {
	return Stmt{text: fmt.Sprintf("meta mark & 0x%08x == 0x%08x", bits, bits),
		exprs: [][]byte{loadMeta(unix.NFT_META_MARK, reg1), bitwise(word(bits), word(0)), isEqual(word(bits))}}
}

// SetFwmark sets the bits in the packet's fwmark and keeps the others.
func SetFwmark(bits uint32) Stmt { return changeFwmark(fmt.Sprintf("| 0x%08x", bits), ^bits, bits) }

// ClearFwmark clears the bits in the packet's fwmark and keeps the others.
func ClearFwmark(bits uint32) Stmt { return changeFwmark(fmt.Sprintf("& 0x%08x", ^bits), ^bits, 0) }

func changeFwmark(text string, mask, xor uint32) Stmt {
	return Stmt{text: "meta mark set meta mark " + text,
		exprs: [][]byte{loadMeta(unix.NFT_META_MARK, reg1), bitwise(word(mask), word(xor)),
			storeMeta(unix.NFT_META_MARK)}}
}

// word encodes a number for a register.
func word(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// Counter counts packets and bytes. Each rule of iptables has one.
func Counter() Stmt { return Stmt{text: "counter", exprs: [][]byte{expression("counter")}} }

// EnableTrace marks packets for tracing (nft monitor trace).
func EnableTrace() Stmt {
	return Stmt{text: "meta nftrace set 1", exprs: [][]byte{
		immediate(reg1, operand(unix.NFTA_IMMEDIATE_DATA, []byte{1})), storeMeta(unix.NFT_META_NFTRACE)}}
}

// LimitRate matches at most rate packets per second.
func LimitRate(rate uint64) Stmt {
	net64 := func(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }
	return Stmt{text: fmt.Sprintf("limit rate %d/second", rate), exprs: [][]byte{expression("limit",
		nlattr.Bytes(unix.NFTA_LIMIT_RATE, net64(rate)), nlattr.Bytes(unix.NFTA_LIMIT_UNIT, net64(1)))}}
}

// XTMatch is a match of an iptables extension, in the form in which iptables-nft stores it in nf_tables.
func XTMatch(name string, revision uint32, info []byte) Stmt {
	return Stmt{text: "xt match " + name, exprs: [][]byte{expression("match", nlattr.String(unix.NFTA_MATCH_NAME, name),
		nlattr.Net32(unix.NFTA_MATCH_REV, revision), nlattr.Bytes(unix.NFTA_MATCH_INFO, info))}}
}

// Rule is a list of statements. String returns it as nft prints it.
type Rule []Stmt

func (r Rule) String() string {
	text := make([]string, len(r))
	for i, s := range r {
		text[i] = s.text
	}
	return strings.Join(text, " ")
}

// compile returns the rule's expressions. In the family inet, fields may need a preceding match of the protocol.
func (r Rule) compile(family Family) (out [][]byte) {
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

const reg1 = unix.NFT_REG_1 // first register

// expression encodes an expression of the kernel. attrs must include options whose value is 0, because otherwise a live
// rule with another value would compare equal.
func expression(name string, attrs ...[]byte) []byte {
	return append(nlattr.String(unix.NFTA_EXPR_NAME, name), nlattr.Nest(unix.NFTA_EXPR_DATA, attrs...)...)
}

func operand(kind uint16, value []byte) []byte {
	return nlattr.Nest(kind, nlattr.Bytes(unix.NFTA_DATA_VALUE, value))
}

func loadMeta(key, reg uint32) []byte {
	return expression("meta", nlattr.Net32(unix.NFTA_META_KEY, key), nlattr.Net32(unix.NFTA_META_DREG, reg))
}

func storeMeta(key uint32) []byte {
	return expression("meta", nlattr.Net32(unix.NFTA_META_KEY, key), nlattr.Net32(unix.NFTA_META_SREG, reg1))
}

func compare(op uint32, value []byte) []byte {
	return expression("cmp", nlattr.Net32(unix.NFTA_CMP_SREG, reg1), nlattr.Net32(unix.NFTA_CMP_OP, op),
		operand(unix.NFTA_CMP_DATA, value))
}

func isEqual(value []byte) []byte { return compare(unix.NFT_CMP_EQ, value) }

// bitwise computes register & mask ^ xor.
func bitwise(mask, xor []byte) []byte {
	return expression("bitwise", nlattr.Net32(unix.NFTA_BITWISE_SREG, reg1),
		nlattr.Net32(unix.NFTA_BITWISE_DREG, reg1), nlattr.Net32(unix.NFTA_BITWISE_LEN, uint32(len(mask))),
		operand(unix.NFTA_BITWISE_MASK, mask), operand(unix.NFTA_BITWISE_XOR, xor))
}

func verdictValue(code int32, chain string) []byte {
	v := nlattr.Net32(unix.NFTA_VERDICT_CODE, uint32(code))
	if chain != "" {
		v = append(v, nlattr.String(unix.NFTA_VERDICT_CHAIN, chain)...)
	}
	return nlattr.Nest(unix.NFTA_DATA_VERDICT, v)
}
