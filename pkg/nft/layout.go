package nft

import "net/netip"

// Family is a protocol family: of a table, or of IP addresses.
type Family byte

// The families, by the kernel's numbers (NFPROTO).
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

// Families are the families of IP addresses.
func Families() []Family { return []Family{IPv4, IPv6} }

// FamilyOf is the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Digit is the version of IP, "4" or "6".
func (f Family) Digit() string { return ofIP(f, "4", "6") }

// Addr is the type of the family's addresses.
func (f Family) Addr() Type { return ofIP(f, IPv4Addr, IPv6Addr) }

// Saddr is a packet's source address.
func (f Family) Saddr() Field { return ofIP(f, IPSaddr, IP6Saddr) }

// Daddr is a packet's destination address.
func (f Family) Daddr() Field { return ofIP(f, IPDaddr, IP6Daddr) }

// ofIP returns what a family of IP addresses has.
func ofIP[T any](f Family, v4, v6 T) T {
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

// TableName is the table of any family that all plugins share. Names in it end in the version of their layout.
const TableName = "hawser"

func (t Table) String() string { return t.Family.String() + " " + t.Name }

// Layout is the part of a table that all attachments share: Ensure creates it, Verify compares it. Elements
// belong to one attachment each, and are no part of it.
type Layout struct {
	Table  Table
	Sets   []Set
	Chains []Chain // a chain that another one jumps to comes first
}

// Type is the type of one field of a key or of a map's data.
type Type byte

// The types, by the numbers that nft gives them.
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

// Set is a named set, or a map when it has Data.
type Set struct {
	Name     string
	Key      []Type // several make a concatenation
	Data     []Type // nil for a set; {Verdict} for a verdict map
	Interval bool   // the elements are ranges: for administrators, the plugins write none
	Comment  string
}

// Chain is a chain and the rules that it must have, in order.
type Chain struct {
	Name    string
	Hook    *Hook // nil for a chain that only jumps lead to
	Rules   []Rule
	Comment string
}

// The hooks of the families ip, ip6, inet and bridge that the plugins use.
const (
	Prerouting  = 0
	Forward     = 2
	Output      = 3
	Postrouting = 4
)

// Hook makes a chain a base chain; its policy is accept.
type Hook struct {
	Type     string // "filter", "nat" or "route"
	Point    uint32
	Priority int32
}

// Key builds the key or data of an element from its fields. Several are padded to whole registers.
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

// AddrKey is the key field of an address, in network order.
func AddrKey(a netip.Addr) []byte { return a.AsSlice() }

// IfNameKey is the key field of an interface name.
func IfNameKey(name string) []byte {
	field := make([]byte, IfName.size())
	copy(field, name)
	return field
}
