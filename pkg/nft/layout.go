package nft

import "net/netip"

// Family is a protocol family of tables or of IP addresses.
type Family byte

// The families, with the kernel's numbers (NFPROTO).
const (
	INet   Family = 1
	IPv4   Family = 2
	IPv6   Family = 10
	Bridge Family = 7
)

func (f Family) String() string {
	switch f {
	case IPv4:
		return "ip"
	case IPv6:
		return "ip6"
	case Bridge:
		return "bridge"
	}
	return "inet"
}

// Families returns the families of IP addresses.
func Families() []Family { return []Family{IPv4, IPv6} }

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Digit returns the IP version, "4" or "6".
func (f Family) Digit() string { return byFamily(f, "4", "6") }

// Addr returns the type of the family's addresses.
func (f Family) Addr() Type { return byFamily(f, IPv4Addr, IPv6Addr) }

// Saddr returns the field of the source address.
func (f Family) Saddr() Field { return byFamily(f, IPSaddr, IP6Saddr) }

// Daddr returns the field of the destination address.
func (f Family) Daddr() Field { return byFamily(f, IPDaddr, IP6Daddr) }

func byFamily[T any](f Family, v4, v6 T) T {
	if f == IPv6 {
		return v6
	}
	return v4
}

// Table names a table.
type Table struct {
	Family Family
	Name   string
}

// TableName is the name of the plugins' shared table, in any family. The names of the objects in it end in the version
// of their layout.
const TableName = "hawser"

func (t Table) String() string { return t.Family.String() + " " + t.Name }

// Layout is the part of a table that all attachments share. It has no elements.
type Layout struct {
	Table  Table
	Sets   []Set
	Chains []Chain // a chain precedes the chains that jump to it
}

// Type is the type of a field in a key or in a map's data.
type Type byte

// The types, with nft's numbers.
const (
	Verdict     Type = 1
	IPv4Addr    Type = 7
	IPv6Addr    Type = 8
	EtherAddr   Type = 9
	InetProto   Type = 12
	InetService Type = 13
	Mark        Type = 19
	IfName      Type = 41
)

func (t Type) size() (bytes int) {
	return [...]int{IPv4Addr: 4, IPv6Addr: 16, EtherAddr: 6, InetProto: 1, InetService: 2, Mark: 4, IfName: 16}[t]
}

// Set is a named set, or a map if it has Data.
type Set struct {
	Name     string
	Key      []Type // several types are a concatenation
	Data     []Type // nil for a set; {Verdict} for a verdict map
	Interval bool   // the elements are ranges, which only administrators add
	Comment  string
}

// Chain is a chain with the rules that it must have, in order.
type Chain struct {
	Name    string
	Hook    *Hook // nil for a chain that is reached only by jumps
	Rules   []Rule
	Comment string
	// Former lists chains of earlier layouts, base chains first. EnsureLayout deletes them in the batch that creates
	// the chain. Until then, Verify accepts them in its place.
	Former []Chain
}

// The hooks of the families ip, ip6, inet and bridge that the plugins use.
const (
	Prerouting  = 0
	Forward     = 2
	Output      = 3
	Postrouting = 4
)

// Hook attaches a base chain to a hook. The chain's policy is accept.
type Hook struct {
	Type     string // "filter", "nat" or "route"
	Point    uint32
	Priority int32
}

// Key returns the key or data of an element with these fields. If there are several fields, each one is padded to a
// multiple of 32 bits, the size of a register.
func Key(fields ...[]byte) []byte {
	if len(fields) == 1 {
		return fields[0]
	}
	var key []byte
	for _, f := range fields {
		key = append(key, f...)
		key = append(key, make([]byte, -len(f)&3)...)
	}
	return key
}

// AddrKey returns the key field of an address.
func AddrKey(a netip.Addr) []byte { return a.AsSlice() }

// IfNameKey returns the key field of an interface name.
func IfNameKey(name string) []byte {
	field := make([]byte, IfName.size())
	copy(field, name)
	return field
}
