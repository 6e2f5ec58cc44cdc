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
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Messages of DHCPv6 (RFC 8415) and of router discovery (RFC 4861). No library is used, because each library links
// code for all of its options: insomniacslk's dhcpv6 would add 152 kB to the one program (30 kB compressed with xz),
// and mdlayher/ndp 152 kB (41 kB). The size limit of the packages leaves 16 kB.

// kind6 is the type of a DHCPv6 message.
type kind6 byte

const (
	solicit   kind6 = 1
	advertise kind6 = 2
	request6  kind6 = 3
	renew6    kind6 = 5
	rebind6   kind6 = 6
	reply6    kind6 = 7
	release6  kind6 = 8
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
	clientPort6           = 546
	serverPort6           = 547
	routerSolicitation    = 133
	routerAdvertisement   = 134
	neighborSolicitation  = 135
	neighborAdvertisement = 136
	maxHops               = 255 // hop limit of a packet that no router has forwarded
)

type message6 struct {
	kind           kind6
	xid            [3]byte
	client, server []byte // DUIDs
	iaid           [4]byte
	addr           netip.Addr
	elapsed        time.Duration
	dns            bool // request resolver settings

	// Only in answers.
	status           error  // error status of the message, its IA or its address
	code             uint16 // code of status
	t1, t2           time.Duration
	preferred, valid time.Duration
	nameservers      []netip.Addr
	search           []string
}

const noBinding = 3 // status code of a server that does not know the lease

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
	ia := append(m.iaid[:], make([]byte, 8)...) // T1 and T2 of 0 leave the choice to the server
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

var errShort = errors.New("the message is truncated")

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

// decode6 decodes an answer. It ignores the options of all IAs but the one with this IAID.
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
				if ip, ok := netip.AddrFromSlice(addr); ok && ip.Is6() {
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
				return nil
			}
			m.t1, m.t2 = seconds(value[4:]), seconds(value[8:])
			return options6(value[12:], m.readIA)
		}
		return nil
	})
	return m, err
}

// readIA decodes an option of the IA. It uses the first usable address.
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
	if isHostAddr6(addr) && valid > 0 && preferred <= valid && !m.addr.IsValid() {
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

// domains decodes names. It drops names that are not domain names, for the reason given at dnsOf.
func domains(b []byte) (names []string) {
	labels, err := rfc1035label.FromBytes(b)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(labels.Labels, func(name string) bool { return !isDomain(name) })
}

// isHostAddr6 reports whether a container can have the address in addition to its link-local address.
func isHostAddr6(a netip.Addr) bool { return a.Is6() && !a.Is4In6() && a.IsGlobalUnicast() }

type advert struct {
	router      netip.Addr
	isDefault   bool          // the router is a default router
	minLifetime time.Duration // shortest lifetime of its contents, at most maxAdvertTime
	prefixes    []prefix6
	nameservers []netip.Addr
	search      []string
}

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

// decodeAdvert decodes an advertisement, which begins with the ICMPv6 header.
func decodeAdvert(router netip.Addr, b []byte) (*advert, error) {
	if len(b) < 16 {
		return nil, errShort
	}
	if b[0] != routerAdvertisement || b[1] != 0 {
		return nil, errors.New("not a router advertisement")
	}
	lifetime := time.Duration(binary.BigEndian.Uint16(b[6:])) * time.Second
	a := &advert{router: router, isDefault: lifetime > 0, minLifetime: maxAdvertTime}
	if a.isDefault {
		a.minLifetime = min(a.minLifetime, lifetime)
	}
	for b = b[16:]; len(b) > 0; {
		if len(b) < 8 || b[1] == 0 || len(b) < 8*int(b[1]) {
			return nil, errShort
		}
		a.readOption(b[0], b[:8*int(b[1])])
		b = b[8*int(b[1]):]
	}
	return a, nil
}

// maxAdvertTime limits how long an advertisement is used. It is also the time below which an advertisement cannot
// reduce the remaining lifetime of an address (RFC 4862, section 5.5.3 e).
const maxAdvertTime = 2 * time.Hour

// readOption decodes an option. It ignores invalid ones.
func (a *advert) readOption(kind byte, option []byte) {
	switch {
	case kind == raPrefix && len(option) == 32:
		p := prefix6{Prefix: netip.PrefixFrom(netip.AddrFrom16([16]byte(option[16:])), int(option[2])),
			onLink: option[3]&0x80 != 0, autonomous: option[3]&0x40 != 0,
			valid: seconds(option[4:]), preferred: seconds(option[8:])}
		p.Prefix = p.Masked()
		if !p.IsValid() || p.preferred > p.valid || !isHostAddr6(p.Addr()) {
			return
		}
		a.prefixes = append(a.prefixes, p)
		if p.valid > 0 {
			a.minLifetime = min(a.minLifetime, p.valid)
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

func routerSolicit(mac net.HardwareAddr) []byte {
	b := []byte{routerSolicitation, 0, 0, 0, 0, 0, 0, 0}
	if len(mac) == 6 {
		b = append(append(b, 1, 1), mac...) // source link-layer address, of eight bytes
	}
	return b
}

// isSolicitationFor reports whether a packet is a neighbor solicitation for an address. It returns false for
// solicitations of duplicate address detection, because parsePacket6 refuses their unspecified source.
func isSolicitationFor(b []byte, linkLocal netip.Addr) bool {
	protocol, _, m := parsePacket6(b)
	return protocol == unix.IPPROTO_ICMPV6 && len(m) >= 24 && m[0] == neighborSolicitation &&
		bytes.Equal(m[8:24], linkLocal.AsSlice())
}

// neighborAdvert returns an advertisement of an address's MAC address, which overrides earlier ones.
func neighborAdvert(linkLocal netip.Addr, mac net.HardwareAddr) []byte {
	const override = 0x20
	b := append([]byte{neighborAdvertisement, 0, 0, 0, override, 0, 0, 0}, linkLocal.AsSlice()...)
	return append(append(b, 2, 1), mac...) // target link-layer address, of eight bytes
}

// buildPacket6 returns an IPv6 packet with an ICMPv6 or a UDP message and its checksum.
func buildPacket6(protocol byte, src, dst netip.Addr, message []byte) []byte {
	offset := 2 // of the checksum in the message
	if protocol == unix.IPPROTO_UDP {
		offset = 6
		header := binary.BigEndian.AppendUint16([]byte{clientPort6 >> 8, clientPort6 & 0xff, serverPort6 >> 8,
			serverPort6 & 0xff}, uint16(8+len(message)))
		message = slices.Concat(header, []byte{0, 0}, message)
	}
	length := uint16(len(message))
	tail := []byte{0, 0, byte(length >> 8), byte(length), 0, 0, 0, protocol}
	pseudo := slices.Concat(src.AsSlice(), dst.AsSlice(), tail, message)
	binary.BigEndian.PutUint16(message[offset:], checksum(pseudo))
	header := []byte{0x60, 0, 0, 0, byte(length >> 8), byte(length), protocol, maxHops}
	return slices.Concat(header, src.AsSlice(), dst.AsSlice(), message)
}

// checksum returns the checksum of RFC 1071. It returns 0xffff, which has the same meaning, instead of 0, which in
// UDP means that there is no checksum.
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

// parsePacket6 returns the ICMPv6 or UDP message in an IPv6 packet. message is nil if the packet has neither, or an
// ICMPv6 message that does not come from this link.
func parsePacket6(b []byte) (protocol byte, src netip.Addr, message []byte) {
	const headerLen = 40
	if len(b) < headerLen {
		return 0, src, nil
	}
	end := headerLen + int(binary.BigEndian.Uint16(b[4:]))
	if len(b) < end {
		return 0, src, nil
	}
	protocol, src, message = b[6], netip.AddrFrom16([16]byte(b[8:])), b[headerLen:end]
	switch {
	case protocol == unix.IPPROTO_ICMPV6 && b[7] == maxHops && src.IsLinkLocalUnicast():
		return protocol, src, message
	case protocol == unix.IPPROTO_UDP && len(message) >= 8:
		if length := int(binary.BigEndian.Uint16(message[4:])); length >= 8 && length <= len(message) {
			return protocol, src, message[8:length]
		}
	}
	return 0, src, nil
}

const (
	allServers = "ff02::1:2"
	allRouters = "ff02::2"
	allNodes   = "ff02::1"
)

// filter6 accepts DHCPv6 messages to a client, router advertisements and neighbor solicitations, but no packets with
// extension headers.
var filter6 = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 6, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_ICMPV6, SkipTrue: 3},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: 6},
	bpf.LoadAbsolute{Off: 42, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: clientPort6, SkipTrue: 3, SkipFalse: 4},
	bpf.LoadAbsolute{Off: 40, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: routerAdvertisement, SkipTrue: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: neighborSolicitation, SkipTrue: 1},
	bpf.RetConstant{Val: 1 << 16},
	bpf.RetConstant{Val: 0},
}
