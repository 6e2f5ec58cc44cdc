package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// link is a container's interface during an exchange: two sockets in its namespace.
type link struct {
	rtnl.Link
	ns   *ns.NS
	conn *rtnl.Conn
	sock *os.File // of packets
}

// openLink finds the interface of a record, whose index it notes the first time. No
// thread is in the namespace when it returns.
func openLink(n *ns.NS, r *record) (*link, error) {
	l := &link{ns: n}
	err := n.Do(func() (err error) {
		if l.conn, err = rtnl.Dial(nil); err != nil {
			return err
		}
		if r.Index != 0 {
			l.Link, err = l.conn.LinkByIndex(r.Index)
		} else {
			l.Link, err = l.conn.Link(r.IfName)
		}
		if err != nil {
			return gone(err)
		}
		r.Index = l.Index // others read it from the first time on
		l.sock, err = packetSocket(l.Index, unix.ETH_P_IP, portFilter)
		return err
	})
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *link) close() {
	_ = l.conn.Close()
	if l.sock != nil {
		_ = l.sock.Close()
	}
}

// bringUp brings the interface up, where nobody else does, and waits until packets pass.
// Main plugins have reasons to be first: they turn address detection off before.
func (l *link) bringUp(ctx context.Context) error {
	const theirs = 100 * time.Millisecond
	up := true
	theirTurn, cancel := context.WithTimeout(ctx, theirs)
	defer cancel()
	now, err := l.conn.WaitUp(theirTurn, l.Index)
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil // it is our turn
		if !now.Up {
			err = l.conn.SetLink(l.Index, rtnl.Change{Up: &up})
		}
		if err == nil {
			now, err = l.conn.WaitUp(ctx, l.Index)
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("interface %q does not come up, it is %s", now.Name, now.Oper)
	}
	return err
}

// portFilter lets UDP to port 68 through that is no fragment; a packet begins with its
// IP header.
var portFilter = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 9},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_UDP, Jf: 6},
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 6},
	{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: 0x1fff, Jt: 4},
	{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: 0},
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: 2},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: clientPort, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
}

const (
	serverPort = 67
	clientPort = 68
	ipHead     = 20
	udpHead    = 8
)

// packetSocket opens a socket that sends and receives packets of a protocol, IP or ARP, on a
// link of the calling thread's namespace, whatever addresses and rules there are.
func packetSocket(index int, protocol uint16, pass []unix.SockFilter) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socket for packets: %w", err)
	}
	filter := unix.SockFprog{Len: uint16(len(pass)), Filter: &pass[0]}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &filter)
	if err == nil { // nothing comes in before the filter is there
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(protocol), Ifindex: index})
		// That the link is still down would fail the first call after it is up.
		_, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("socket for packets: %w", err)
	}
	return os.NewFile(uintptr(fd), "packets"), nil
}

func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16([]byte{byte(v >> 8), byte(v)})
}

// everyone is the MAC address of all on the link.
var everyone = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// send sends a packet. It returns the MAC address that answered to ARP for the next hop; nil: nobody did, and the
// packet went to all. It asks each time, since a server's MAC address may change.
func (l *link) send(ctx context.Context, p *packet) (at net.HardwareAddr, err error) {
	to := everyone
	if p.hop.IsValid() && len(l.MAC) == len(everyone) {
		if at, err = l.neighbor(ctx, p.src, p.hop); err != nil {
			return nil, err
		}
		if at != nil {
			to = at
		}
	}
	if err := l.sendFrame(l.sock, unix.ETH_P_IP, to, p.encode()); err != nil {
		return nil, fmt.Errorf("send a %s: %w", p.message.MessageType(), err)
	}
	return at, nil
}

// sendFrame sends one packet to a MAC address.
func (l *link) sendFrame(sock *os.File, protocol uint16, mac net.HardwareAddr, b []byte) error {
	raw, err := sock.SyscallConn()
	if err != nil {
		return err
	}
	to := &unix.SockaddrLinklayer{Protocol: networkOrder(protocol), Ifindex: l.Index, Halen: uint8(len(mac))}
	copy(to.Addr[:], mac)
	var sent error
	err = raw.Control(func(fd uintptr) { sent = unix.Sendto(int(fd), b, 0, to) })
	return errors.Join(err, sent)
}

// readFrame returns the next packet; nil when none came in time.
func readFrame(ctx context.Context, sock *os.File, wait time.Duration) ([]byte, error) {
	if err := sock.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = sock.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 1<<16)
	n, err := sock.Read(buf)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, nil
	}
	return buf[:n], err
}

// receive returns the next message; nil when none came in time, or the one that came was none.
func (l *link) receive(ctx context.Context, wait time.Duration) (*dhcpv4.DHCPv4, error) {
	b, err := readFrame(ctx, l.sock, wait)
	return decodePacket(b), err
}

// Of ARP (RFC 826): where in a packet the sender of an answer is, and how often and how
// long one is waited for.
const (
	arpSender, arpTarget = 8, 18
	arpLength            = 28
	arpTries             = 3
	arpWait              = 200 * time.Millisecond
)

// arpFilter lets answers through.
var arpFilter = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 6},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 2, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: arpLength},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
}

// neighbor asks by ARP, from an address that need not be on the interface any more, who has
// another one; nil: nobody answers.
func (l *link) neighbor(ctx context.Context, src, addr netip.Addr) (mac net.HardwareAddr, err error) {
	var sock *os.File
	err = l.ns.Do(func() (err error) {
		sock, err = packetSocket(l.Index, unix.ETH_P_ARP, arpFilter)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer sock.Close()
	ask := append([]byte{0, 1, 8, 0, 6, 4, 0, 1}, l.MAC...) // Ethernet, IPv4, who has?
	ask = append(append(ask, src.AsSlice()...), make([]byte, len(everyone))...)
	ask = append(ask, addr.AsSlice()...)
	for range arpTries {
		if err := l.sendFrame(sock, unix.ETH_P_ARP, everyone, ask); err != nil {
			return nil, fmt.Errorf("ask who has %s: %w", addr, err)
		}
		for end := time.Now().Add(arpWait); ; {
			b, err := readFrame(ctx, sock, time.Until(end))
			if err != nil || ctx.Err() != nil {
				return nil, cmp.Or(err, context.Cause(ctx))
			}
			if b == nil {
				break
			}
			if len(b) >= arpLength && bytes.Equal(b[arpSender+6:arpTarget], addr.AsSlice()) {
				return b[arpSender : arpSender+6], nil
			}
		}
	}
	return nil, nil
}

// encode makes an IP packet.
func (p *packet) encode() []byte {
	message := p.message.ToBytes()
	b := make([]byte, ipHead+udpHead, ipHead+udpHead+len(message))
	b = append(b, message...)
	src, dst := p.src.As4(), p.dst.As4()
	length := uint16(udpHead + len(message))
	ip, udp := b[:ipHead], b[ipHead:]
	// Until the header is complete, its place holds the pseudo-header of the checksum.
	binary.BigEndian.PutUint16(ip[8:], unix.IPPROTO_UDP)
	binary.BigEndian.PutUint16(ip[10:], length)
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	binary.BigEndian.PutUint16(udp[0:], clientPort)
	binary.BigEndian.PutUint16(udp[2:], serverPort)
	binary.BigEndian.PutUint16(udp[4:], length)
	binary.BigEndian.PutUint16(udp[6:], cmp.Or(checksum(b), 0xffff)) // 0 would be none
	ip[0], ip[8], ip[9], ip[10], ip[11] = 0x45, 64, unix.IPPROTO_UDP, 0, 0
	binary.BigEndian.PutUint16(ip[2:], ipHead+length)
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	return b
}

// checksum is that of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// decodePacket returns the message in an IP packet from a server; nil: there is none.
// It does not look at checksums: a sender on this host leaves them to its device.
func decodePacket(b []byte) *dhcpv4.DHCPv4 {
	if len(b) < ipHead || b[0]>>4 != 4 || b[9] != unix.IPPROTO_UDP {
		return nil
	}
	head, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if head < ipHead || total > len(b) || total < head+udpHead {
		return nil
	}
	udp := b[head:total]
	length := int(binary.BigEndian.Uint16(udp[4:]))
	if binary.BigEndian.Uint16(udp) != serverPort || length < udpHead || length > len(udp) {
		return nil
	}
	message, err := dhcpv4.FromBytes(udp[udpHead:length])
	if err != nil {
		return nil
	}
	return message
}
