package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"net/netip"
	"slices"
	"strings"
)

// ledger says who has which port of the host, and who needs which link's
// route_localnet. It repeats what the records say, in one small file, so that
// a conflict is found at a cost that hardly grows with the attachments: also
// one between an address and all addresses, which the kernel's maps would not
// tell without being read whole.
type ledger struct {
	// complete says that whatever portmap made has a record. It is false after
	// records were lost.
	complete bool
	claims   []claim
}

// claim is one entry of the ledger, of fixed size on disk.
type claim struct {
	kind  byte
	proto proto
	v4    bool
	port  uint16
	what  [16]byte // the host address, or a link's name
	owner [8]byte  // of the attachment's hash
	group [8]byte  // of groupOf: the container on its network
}

const (
	portClaim  = 0
	linkClaim  = 1
	groupClaim = 2 // nothing but that the attachment has rules

	claimSize    = 40
	ledgerHeader = 16
	ledgerMagic  = "hawser.portmap.1" // 16 bytes; the last one is the version
)

var errLedger = errors.New("ledger is damaged")

func (l ledger) encode() []byte {
	out := make([]byte, 0, ledgerHeader+5+len(l.claims)*claimSize)
	out = append(out, ledgerMagic...)
	flags := byte(0)
	if l.complete {
		flags = 1
	}
	out = append(out, flags)
	out = append(out, 0, 0, 0, 0)
	for _, c := range l.claims {
		v4 := byte(0)
		if c.v4 {
			v4 = 1
		}
		out = append(out, c.kind, byte(c.proto), v4, 0)
		out = binary.BigEndian.AppendUint16(out, c.port)
		out = append(out, 0, 0)
		out = append(out, c.what[:]...)
		out = append(out, c.owner[:]...)
		out = append(out, c.group[:]...)
	}
	binary.BigEndian.PutUint32(out[ledgerHeader+1:], crc32.ChecksumIEEE(out[ledgerHeader+5:]))
	return out
}

func decodeLedger(data []byte) (ledger, error) {
	if len(data) < ledgerHeader+5 || string(data[:ledgerHeader]) != ledgerMagic {
		return ledger{}, errLedger
	}
	body := data[ledgerHeader+5:]
	if len(body)%claimSize != 0 || binary.BigEndian.Uint32(data[ledgerHeader+1:]) != crc32.ChecksumIEEE(body) {
		return ledger{}, errLedger
	}
	l := ledger{complete: data[ledgerHeader] == 1, claims: make([]claim, 0, len(body)/claimSize)}
	for at := 0; at < len(body); at += claimSize {
		b := body[at : at+claimSize]
		c := claim{kind: b[0], proto: proto(b[1]), v4: b[2] == 1, port: binary.BigEndian.Uint16(b[4:])}
		copy(c.what[:], b[8:])
		copy(c.owner[:], b[24:])
		copy(c.group[:], b[32:])
		l.claims = append(l.claims, c)
	}
	return l, nil
}

// claims are the ledger's entries of an attachment.
func (s *state) claims() []claim {
	var out []claim
	base := claim{owner: ownerOf(s), group: groupKey(groupOf(s.Network, s.ContainerID))}
	for _, f := range s.forwards() {
		c := base
		c.proto, c.v4, c.port, c.what = f.proto, f.v4(), f.port, f.host.As16()
		out = append(out, c)
	}
	if s.Localnet != "" {
		c := base
		c.kind, c.what = linkClaim, linkKey(s.Localnet)
		out = append(out, c)
	}
	if len(out) == 0 { // all yielded
		base.kind = groupClaim
		out = append(out, base)
	}
	return out
}

func ownerOf(s *state) [8]byte { return hashKey(s.attachment().Hash()) }

// hashKey makes bytes of a hash of 16 hex digits.
func hashKey(hash string) (key [8]byte) {
	raw, err := hex.DecodeString(hash)
	if err == nil {
		copy(key[:], raw)
	}
	return key
}

// markKey is the owner whom an element's mark names.
func markKey(mark string) [8]byte {
	hash, _, _ := strings.Cut(mark, " ")
	return hashKey(hash)
}

func groupKey(group string) [8]byte { return hashKey(group[:16]) }

func linkKey(name string) (key [16]byte) {
	copy(key[:], name)
	return key
}

// without is the ledger without the claims of an owner.
func (l ledger) without(owner [8]byte) ledger {
	return ledger{l.complete, slices.DeleteFunc(slices.Clone(l.claims), func(c claim) bool { return c.owner == owner })}
}

// with is the ledger with the claims of an attachment in place of those that
// it had.
func (l ledger) with(s *state) ledger {
	l = l.without(ownerOf(s))
	l.claims = append(l.claims, s.claims()...)
	return l
}

// conflict is a port of the host that somebody else has.
type conflict struct {
	wanted forward
	host   netip.Addr // of the other: the same, or all addresses where wanted is one
	owner  [8]byte
}

// conflicts are the places that others have and that the forwards want, by the
// rules of bind(2): all addresses of a family collide with each of them,
// different ones do not collide.
func (l ledger) conflicts(wanted []forward, self [8]byte) []conflict {
	type service struct {
		proto proto
		v4    bool
		port  uint16
	}
	byPort := map[service][]forward{}
	for _, f := range wanted {
		s := service{f.proto, f.v4(), f.port}
		byPort[s] = append(byPort[s], f)
	}
	var out []conflict
	for _, c := range l.claims {
		if c.kind != portClaim || c.owner == self {
			continue
		}
		for _, f := range byPort[service{c.proto, c.v4, c.port}] {
			host := netip.AddrFrom16(c.what)
			if c.v4 {
				host = host.Unmap()
			}
			if collide(f.host, host) {
				out = append(out, conflict{f, host, c.owner})
			}
		}
	}
	return out
}

// collide says whether sockets could not be bound to both addresses of a
// family.
func collide(a, b netip.Addr) bool { return a == b || a.IsUnspecified() || b.IsUnspecified() }

// uses says whether anybody but the owner needs the link's route_localnet.
func (l ledger) uses(link string, but [8]byte) bool {
	return slices.ContainsFunc(l.claims, func(c claim) bool { return c.isLink(link) && c.owner != but })
}

func (c claim) isLink(name string) bool { return c.kind == linkClaim && c.what == linkKey(name) }

// has says whether the owner has any claim.
func (l ledger) has(owner [8]byte) bool {
	return slices.ContainsFunc(l.claims, func(c claim) bool { return c.owner == owner })
}

// link is the link whose route_localnet the owner needs; empty: none.
func (l ledger) link(owner [8]byte) string {
	for _, c := range l.claims {
		if c.kind == linkClaim && c.owner == owner {
			return string(bytes.TrimRight(c.what[:], "\x00"))
		}
	}
	return ""
}

// siblings are the other attachments of the container on its network.
func (l ledger) siblings(s *state) [][8]byte {
	self, group := ownerOf(s), groupKey(groupOf(s.Network, s.ContainerID))
	var out [][8]byte
	for _, c := range l.claims {
		if c.group == group && c.owner != self && !slices.Contains(out, c.owner) {
			out = append(out, c.owner)
		}
	}
	return out
}

// hasGroup says whether an attachment of ours has the reference's chain of
// this hash.
func (l ledger) hasGroup(group [8]byte) bool {
	return slices.ContainsFunc(l.claims, func(c claim) bool { return bytes.Equal(c.group[:], group[:]) })
}
