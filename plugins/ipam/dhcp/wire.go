package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
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
			return err
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
	theirTurn, cancel := context.WithTimeout(ctx, theirs)
	defer cancel()
	now, err := l.conn.WaitUp(theirTurn, l.Index)
	if errors.Is(err, context.DeadlineExceeded) && !now.Up {
		if err := l.conn.SetLink(l.Index, rtnl.Change{Up: new(true)}); err != nil {
			return err
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		now, err = l.conn.WaitUp(ctx, l.Index)
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
// link of the calling thread's namespace, whatever addresses and rules there are. It gets nothing
// before it has its filter.
func packetSocket(index int, protocol uint16, filter []unix.SockFilter) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socket for packets: %w", err)
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program)
	if err == nil {
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

// neighbor asks by ARP (RFC 826), from an address that need not be on the interface any more, who has another one;
// nil: nobody answers.
func (l *link) neighbor(ctx context.Context, src, addr netip.Addr) (mac net.HardwareAddr, err error) {
	const tries, pause, length = 3, 200 * time.Millisecond, 28
	const request, answer, operation, senderMAC, senderIP = 1, 2, 6, 8, 14
	filter := []unix.SockFilter{ // lets answers of the address through
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: operation},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: answer, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: senderIP},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: binary.BigEndian.Uint32(addr.AsSlice()), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: length},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	var sock *os.File
	err = l.ns.Do(func() (err error) {
		sock, err = packetSocket(l.Index, unix.ETH_P_ARP, filter)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer sock.Close()
	question := slices.Concat(words(1, unix.ETH_P_IP, 6<<8|4, request), l.MAC, src.AsSlice(),
		make([]byte, len(everyone)), addr.AsSlice())
	for range tries {
		if err := l.sendFrame(sock, unix.ETH_P_ARP, everyone, question); err != nil {
			return nil, fmt.Errorf("ask who has %s: %w", addr, err)
		}
		b, err := readFrame(ctx, sock, pause)
		if err != nil || ctx.Err() != nil {
			return nil, cmp.Or(err, context.Cause(ctx))
		}
		if len(b) == length {
			return b[senderMAC:senderIP], nil
		}
	}
	return nil, nil
}

// encode makes an IP packet.
func (p *packet) encode() []byte {
	message, src, dst := p.message.ToBytes(), p.src.As4(), p.dst.As4()
	length := uint16(udpHead + len(message))
	udp := slices.Concat(words(clientPort, serverPort, length, 0), message)
	pseudo := slices.Concat(src[:], dst[:], words(unix.IPPROTO_UDP, length), udp)
	binary.BigEndian.PutUint16(udp[6:], cmp.Or(checksum(pseudo), 0xffff)) // 0 means that there is no checksum
	const version, hops = 0x4500, 64 << 8
	ip := slices.Concat(words(version, ipHead+length, 0, 0, hops|unix.IPPROTO_UDP, 0), src[:], dst[:])
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	return append(ip, udp...)
}

func words(values ...uint16) (b []byte) {
	for _, v := range values {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	return b
}

// checksum is that of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for i, v := range b {
		sum += uint32(v) << (8 - i%2*8) // the first byte of two is the high one
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// decodePacket returns the message in an IP packet that passed portFilter; nil: it is none from a server.
// It does not look at checksums: a sender on this host leaves them to its device.
func decodePacket(b []byte) *dhcpv4.DHCPv4 {
	if len(b) < ipHead {
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
