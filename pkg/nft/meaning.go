package nft

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Meaning is what a rule does with which packets, as far as it is understood here.
type Meaning struct {
	Chain, Target string         // the chain that has it, and the one that it jumps or goes to
	Ends          bool           // it drops or rejects packets
	MayAccept     bool           // it accepts them, or asks a map what becomes of them
	IsForAll      bool           // it has no condition
	IsForOne      bool           // its one condition is an interface, a set of them or a network
	Links         []string       // interfaces that its packets come from or go to, or nam*
	Sets          []string       // such of a set, of which one is enough
	Indexes       []int          // such by their index
	Networks      []netip.Prefix // that its packets come from or go to
	About         []string       // the bytes with which it compares
}

// Meanings returns those of the rules of a chain, in order; for an empty name of all chains of the table.
func (c *Conn) Meanings(t Table, chain string) (all []Meaning, err error) {
	rules, err := c.Rules(t, chain)
	for _, r := range rules {
		m, lookups := r.meaning()
		for _, lookup := range lookups {
			elements, err := c.Elements(t, textAt(lookup, unix.NFTA_LOOKUP_SET))
			if err != nil {
				return all, err
			}
			m.addSet(elements, asksMap(lookup))
		}
		all = append(all, m)
	}
	return all, err
}

// meaning reads the expressions of the rule: one loads something of a packet, the next ones mask it, compare it or look
// it up. What leads to a continue is for each packet. The lookups are those of interfaces in a set.
func (r LiveRule) meaning() (m Meaning, lookups [][]byte) {
	m = Meaning{Chain: r.Chain, Target: r.Target, IsForAll: true}
	var loaded, mask []byte // what was loaded, and the bits of it that count; nil = all
	field, conditions := "", 0
	for _, x := range attributes(r.exprs) {
		name, data := textAt(x, unix.NFTA_EXPR_NAME), attribute(x, unix.NFTA_EXPR_DATA)
		switch name {
		case "counter", "log":
			continue
		case "immediate":
			verdict := attribute(data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT)
			code := number(verdict, unix.NFTA_VERDICT_CODE)
			m.Ends = m.Ends || verdict != nil && code == dropPacket
			m.MayAccept = m.MayAccept || verdict != nil && code == acceptPacket
			continue
		case "reject":
			m.Ends = true
			continue
		case "target", "match": // of iptables
			switch of := textAt(data, unix.NFTA_TARGET_NAME); { // also of a match
			case of == "comment":
				continue
			case of == "REJECT":
				m.Ends = true
				continue
			case name == "match":
				conditions++
			}
		case "meta", "payload":
			loaded, mask, field = data, nil, fieldOf(name, data)
		case "bitwise":
			mask = attribute(data, unix.NFTA_BITWISE_MASK, unix.NFTA_DATA_VALUE)
		case "cmp":
			value := attribute(data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)
			m.About = append(m.About, string(value))
			if field != "family" {
				conditions++
			}
			switch isEqual := number(data, unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ; {
			case isEqual && field == "name":
				m.Links = append(m.Links, linkName(value))
			case isEqual && field == "index" && len(value) == 4:
				m.Indexes = append(m.Indexes, int(binary.NativeEndian.Uint32(value)))
			case isEqual && field == "payload":
				m.Networks = append(m.Networks, networkOf(loaded, value, mask)...)
			}
		case "lookup":
			conditions++
			m.MayAccept = m.MayAccept || asksMap(data)
			if number(data, unix.NFTA_LOOKUP_FLAGS) == 0 && (field == "name" || field == "index") {
				lookups = append(lookups, data)
			}
		case "range", "limit", "quota", "connlimit":
			conditions++
		}
		m.IsForAll = false
	}
	m.IsForOne = conditions == 1 && len(m.Links)+len(m.Indexes)+len(m.Networks)+len(lookups) == 1
	return m, lookups
}

// addSet adds what a set of interfaces has, or whose packets a map accepts.
func (m *Meaning) addSet(elements []Element, isMap bool) {
	for _, e := range elements {
		switch {
		case isMap && !e.Accepts:
		case len(e.Key) == 4:
			m.Indexes = append(m.Indexes, int(binary.NativeEndian.Uint32(e.Key)))
		default:
			m.Sets = append(m.Sets, linkName(e.Key))
		}
	}
}

// asksMap says that a lookup is in a map, which says what becomes of packets.
func asksMap(lookup []byte) bool { return attribute(lookup, unix.NFTA_LOOKUP_DREG) != nil }

// fieldOf is what an expression loads: the name or index of an interface, the family, or else its own name.
func fieldOf(name string, data []byte) string {
	if name == "meta" {
		switch number(data, unix.NFTA_META_KEY) {
		case unix.NFT_META_IIFNAME, unix.NFT_META_OIFNAME:
			return "name"
		case unix.NFT_META_IIF, unix.NFT_META_OIF:
			return "index"
		case unix.NFT_META_NFPROTO:
			return "family"
		}
	}
	return name
}

// linkName is the name of an interface in a rule or a set. Without its end it is of all that begin so.
func linkName(value []byte) string {
	if bytes.HasSuffix(value, []byte{0}) {
		return textOf(value)
	}
	return string(value) + "*"
}

// networkOf is the network with whose address a part of a packet's header is compared, if it is an address.
func networkOf(payload, value, mask []byte) []netip.Prefix {
	size := 0
	switch number(payload, unix.NFTA_PAYLOAD_OFFSET) {
	case 12, 16: // of IPv4's source and destination
		size = net.IPv4len
	case 8, 24:
		size = net.IPv6len
	}
	if number(payload, unix.NFTA_PAYLOAD_BASE) != unix.NFT_PAYLOAD_NETWORK_HEADER || len(value) > size {
		return nil
	}
	addr, bits := make([]byte, size), net.CIDRMask(8*len(value), 8*size)
	copy(addr, value)
	copy(bits, mask)
	from, _ := netip.AddrFromSlice(addr)
	ones, _ := bits.Size()
	return []netip.Prefix{netip.PrefixFrom(from, ones)}
}
