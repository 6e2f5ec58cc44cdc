package dhcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/rfc1035label"
	"golang.org/x/sys/unix"
)

// Messages of DHCPv6 (RFC 8415) and of router discovery (RFC 4861). The libraries were tried: each is linked with all
// of its options. dhcpv6 adds 152 kB to the one program, 30 kB compressed by xz, mdlayher/ndp 152 and 41; the packages
// have room for 16 within their bound.

// kind6 is the type of a DHCPv6 message.
type kind6 byte

const (
	solicit     kind6 = 1
	advertise   kind6 = 2
	request6    kind6 = 3
	renew6      kind6 = 5
	rebind6     kind6 = 6
	reply6      kind6 = 7
	release6    kind6 = 8
	clientPort6       = 546
	serverPort6       = 547
)

// Options of DHCPv6.
const (
	optClientID = 1
	optServerID = 2
	optIANA     = 3
	optAddress  = 5
	optRequest  = 6
	optElapsed  = 8
	optStatus   = 13
	optDNS      = 23
	optSearch   = 24
)

const (
	routerSolicitation    = 133
	routerAdvertisement   = 134
	neighborSolicitation  = 135
	neighborAdvertisement = 136
	hopsOnLink            = 255 // of what no router has passed on
)

// message6 is a DHCPv6 message.
type message6 struct {
	kind           kind6
	xid            [3]byte
	client, server []byte // DUIDs
	iaid           [4]byte
	addr           netip.Addr
	elapsed        time.Duration
	dns            bool // ask for resolver settings

	// Of answers alone.
	status           error // of the whole, or of the IA
	code             uint16
	t1, t2           time.Duration
	preferred, valid time.Duration
	nameservers      []netip.Addr
	search           []string
}

// noBinding is the status of a server that does not know the lease.
const noBinding = 3

func option6(b []byte, code uint16, value ...byte) []byte {
	b = binary.BigEndian.AppendUint16(b, code)
	b = binary.BigEndian.AppendUint16(b, uint16(len(value)))
	return append(b, value...)
}

func (m *message6) encode() []byte {
	b := append([]byte{byte(m.kind)}, m.xid[:]...)
	b = option6(b, optClientID, m.client...)
	if m.server != nil {
		b = option6(b, optServerID, m.server...)
	}
	ia := append(m.iaid[:], make([]byte, 8)...) // the times are the server's choice
	if m.addr.IsValid() {
		ia = option6(ia, optAddress, append(m.addr.AsSlice(), make([]byte, 8)...)...)
	}
	b = option6(b, optIANA, ia...)
	hundredths := min(m.elapsed/(10*time.Millisecond), 1<<16-1)
	b = option6(b, optElapsed, byte(hundredths>>8), byte(hundredths))
	if m.dns {
		b = option6(b, optRequest, 0, optDNS, 0, optSearch)
	}
	return b
}

var errShort = errors.New("the message is cut short")

// options6 calls do for each option.
func options6(b []byte, do func(code uint16, value []byte) error) error {
	for len(b) > 0 {
		if len(b) < 4 {
			return errShort
		}
		end := 4 + int(binary.BigEndian.Uint16(b[2:]))
		if len(b) < end {
			return errShort
		}
		if err := do(binary.BigEndian.Uint16(b), b[4:end]); err != nil {
			return err
		}
		b = b[end:]
	}
	return nil
}

// decode6 reads an answer about one IA.
func decode6(b []byte, iaid [4]byte) (*message6, error) {
	if len(b) < 4 {
		return nil, errShort
	}
	m := &message6{kind: kind6(b[0]), xid: [3]byte(b[1:4]), iaid: iaid}
	err := options6(b[4:], func(code uint16, value []byte) error {
		switch code {
		case optClientID:
			m.client = bytes.Clone(value)
		case optServerID:
			m.server = bytes.Clone(value)
		case optStatus:
			return m.readStatus(value)
		case optDNS:
			for addr := range slices.Chunk(value, 16) {
				if ip, ok := netip.AddrFromSlice(addr); ok {
					m.nameservers = append(m.nameservers, ip)
				}
			}
		case optSearch:
			m.search = append(m.search, domains(value)...)
		case optIANA:
			if len(value) < 12 {
				return errShort
			}
			if m.addr.IsValid() || [4]byte(value) != iaid {
				return nil // of somebody else
			}
			m.t1, m.t2 = seconds(value[4:]), seconds(value[8:])
			return options6(value[12:], m.readIA)
		}
		return nil
	})
	return m, err
}

// readIA reads an option of the IA. Of several addresses the first one counts that can be used.
func (m *message6) readIA(code uint16, value []byte) error {
	switch {
	case code == optStatus:
		return m.readStatus(value)
	case code != optAddress:
		return nil
	case len(value) < 24:
		return errShort
	}
	addr, preferred, valid := netip.AddrFrom16([16]byte(value)), seconds(value[16:]), seconds(value[20:])
	if isHost6(addr) && valid > 0 && preferred <= valid && !m.addr.IsValid() {
		m.addr, m.preferred, m.valid = addr, preferred, valid
	}
	return options6(value[24:], func(code uint16, value []byte) error {
		if code == optStatus {
			return m.readStatus(value)
		}
		return nil
	})
}

func (m *message6) readStatus(value []byte) error {
	if len(value) < 2 {
		return errShort
	}
	code := binary.BigEndian.Uint16(value)
	if code == 0 || m.status != nil {
		return nil
	}
	names := []string{"Success", "UnspecFail", "NoAddrsAvail", "NoBinding", "NotOnLink", "UseMulticast"}
	name := fmt.Sprint("status ", code)
	if int(code) < len(names) {
		name = names[code]
	}
	m.code, m.status = code, fmt.Errorf("the DHCPv6 server refuses: %s %q", name, value[2:min(len(value), 202)])
	return nil
}

func seconds(b []byte) time.Duration { return time.Duration(binary.BigEndian.Uint32(b)) * time.Second }

// domains reads names, and drops those that are none (dnsOf says why).
func domains(b []byte) (names []string) {
	labels, err := rfc1035label.FromBytes(b)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(labels.Labels, func(name string) bool { return !isDomain(name) })
}

// isHost6 says whether a container can have an address beside its link-local one.
func isHost6(a netip.Addr) bool {
	return a.Is6() && !a.Is4In6() && a.IsGlobalUnicast()
}

// advert is what a router advertises.
type advert struct {
	router      netip.Addr
	isDefault   bool
	shortest    time.Duration // of the times for which it is true
	prefixes    []prefix6
	nameservers []netip.Addr
	search      []string
}

// prefix6 is a prefix of the link.
type prefix6 struct {
	netip.Prefix
	onLink, autonomous bool
	preferred, valid   time.Duration
}

// Options of router advertisements.
const (
	raPrefix = 3
	raDNS    = 25
	raSearch = 31
)

// decodeAdvert reads an advertisement, from its ICMPv6 header on.
func decodeAdvert(router netip.Addr, b []byte) (*advert, error) {
	if len(b) < 16 {
		return nil, errShort
	}
	if b[0] != routerAdvertisement || b[1] != 0 {
		return nil, errors.New("no router advertisement")
	}
	lifetime := time.Duration(binary.BigEndian.Uint16(b[6:])) * time.Second
	a := &advert{router: router, isDefault: lifetime > 0, shortest: advertMax}
	if a.isDefault {
		a.shortest = min(a.shortest, lifetime)
	}
	for b = b[16:]; len(b) > 0; {
		if len(b) < 8 || b[1] == 0 || len(b) < 8*int(b[1]) {
			return nil, errShort
		}
		a.read(b[0], b[:8*int(b[1])])
		b = b[8*int(b[1]):]
	}
	return a, nil
}

// advertMax is the longest time for which an advertisement is taken as true.
const advertMax = 2 * time.Hour

func (a *advert) read(kind byte, option []byte) {
	switch {
	case kind == raPrefix && len(option) == 32:
		p := prefix6{Prefix: netip.PrefixFrom(netip.AddrFrom16([16]byte(option[16:])), int(option[2])),
			onLink: option[3]&0x80 != 0, autonomous: option[3]&0x40 != 0,
			valid: seconds(option[4:]), preferred: seconds(option[8:])}
		p.Prefix = p.Masked()
		if !p.IsValid() || p.preferred > p.valid || !isHost6(p.Addr()) {
			return
		}
		a.prefixes = append(a.prefixes, p)
		if p.valid > 0 {
			a.shortest = min(a.shortest, p.valid)
		}
	case kind == raDNS && seconds(option[4:]) > 0:
		for addr := range slices.Chunk(option[8:], 16) {
			if ip, ok := netip.AddrFromSlice(addr); ok && ip.Is6() {
				a.nameservers = append(a.nameservers, ip)
			}
		}
	case kind == raSearch && seconds(option[4:]) > 0:
		a.search = append(a.search, domains(option[8:])...)
	}
}

// solicitation asks routers for an advertisement.
func solicitation(mac net.HardwareAddr) []byte {
	b := []byte{routerSolicitation, 0, 0, 0, 0, 0, 0, 0}
	if len(mac) == 6 {
		b = append(append(b, 1, 1), mac...) // source link-layer address, of eight bytes
	}
	return b
}

// asksFor tells whether a packet asks who has an address. One of duplicate address detection has no link-local source,
// and is none that counts.
func asksFor(b []byte, own netip.Addr) bool {
	protocol, _, m := read6(b)
	return protocol == unix.IPPROTO_ICMPV6 && len(m) >= 24 && m[0] == neighborSolicitation &&
		bytes.Equal(m[8:24], own.AsSlice())
}

// isAt says at which MAC address an address is, whatever was said before.
func isAt(own netip.Addr, mac net.HardwareAddr) []byte {
	const override = 0x20
	b := append([]byte{neighborAdvertisement, 0, 0, 0, override, 0, 0, 0}, own.AsSlice()...)
	return append(append(b, 2, 1), mac...) // target link-layer address, of eight bytes
}

// packet6 makes an IPv6 packet of an ICMPv6 or a UDP message, with its checksum.
func packet6(protocol byte, src, dst netip.Addr, message []byte) []byte {
	at := 2 // of the checksum
	if protocol == unix.IPPROTO_UDP {
		at = 6
		head := binary.BigEndian.AppendUint16([]byte{clientPort6 >> 8, clientPort6 & 0xff, serverPort6 >> 8,
			serverPort6 & 0xff}, uint16(8+len(message)))
		message = slices.Concat(head, []byte{0, 0}, message)
	}
	length := uint16(len(message))
	tail := []byte{0, 0, byte(length >> 8), byte(length), 0, 0, 0, protocol}
	pseudo := slices.Concat(src.AsSlice(), dst.AsSlice(), tail, message)
	binary.BigEndian.PutUint16(message[at:], checksum(pseudo))
	head := []byte{0x60, 0, 0, 0, byte(length >> 8), byte(length), protocol, hopsOnLink}
	return slices.Concat(head, src.AsSlice(), dst.AsSlice(), message)
}

// checksum is RFC 1071's; 0 is none for UDP, and the same number as its inverse.
func checksum(b []byte) uint16 {
	var sum uint32
	for i, octet := range b {
		sum += uint32(octet) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	if sum == 0xffff {
		return 0xffff
	}
	return ^uint16(sum)
}

// read6 returns the message in an IPv6 packet, and its protocol. nil: there is none that is for us.
func read6(b []byte) (protocol byte, src netip.Addr, message []byte) {
	const head = 40
	if len(b) < head {
		return 0, src, nil
	}
	end := head + int(binary.BigEndian.Uint16(b[4:]))
	if len(b) < end {
		return 0, src, nil
	}
	protocol, src, message = b[6], netip.AddrFrom16([16]byte(b[8:])), b[head:end]
	switch {
	case protocol == unix.IPPROTO_ICMPV6 && b[7] == hopsOnLink && src.IsLinkLocalUnicast():
		return protocol, src, message
	case protocol == unix.IPPROTO_UDP && len(message) >= 8:
		if length := int(binary.BigEndian.Uint16(message[4:])); length >= 8 && length <= len(message) {
			return protocol, src, message[8:length]
		}
	}
	return 0, src, nil
}
