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
	linklayer "github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// link is a container's interface during an exchange: two sockets in its namespace.
type link struct {
	rtnl.Link
	ns   *ns.NS
	conn *rtnl.Conn
	sock *linklayer.Conn
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
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if !now.Up {
		if err := l.conn.SetLink(l.Index, rtnl.LinkChange{Up: new(true)}); err != nil {
			return err
		}
	}
	now, err = l.conn.WaitUp(ctx, l.Index)
	if ctx.Err() != nil {
		return fmt.Errorf("interface %q does not come up, it is %s", now.Name, now.Oper)
	}
	return err
}

// portFilter lets UDP to port 68 through that is no fragment; a packet begins with its
// IP header.
var portFilter = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 9, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: 6},
	bpf.LoadAbsolute{Off: 6, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x1fff, SkipTrue: 4},
	bpf.LoadMemShift{Off: 0},
	bpf.LoadIndirect{Off: 2, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: clientPort, SkipTrue: 1},
	bpf.RetConstant{Val: 1 << 16},
	bpf.RetConstant{Val: 0},
}

const (
	serverPort = 67
	clientPort = 68
	ipHead     = 20
	udpHead    = 8
)

// packetSocket opens a socket that sends and receives packets of a protocol, IP or ARP, on a
// link of the calling thread's namespace, whatever addresses and rules there are.
func packetSocket(index, protocol int, filter []bpf.Instruction) (*linklayer.Conn, error) {
	program, err := bpf.Assemble(filter)
	if err != nil {
		return nil, err
	}
	sock, err := linklayer.Listen(&net.Interface{Index: index}, linklayer.Datagram, protocol,
		&linklayer.Config{Filter: program})
	if err != nil {
		return nil, fmt.Errorf("socket for packets: %w", err)
	}
	// That the link is still down would fail the first call after it is up.
	if raw, err := sock.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR) })
	}
	return sock, nil
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
	if _, err := l.sock.WriteTo(p.encode(), &linklayer.Addr{HardwareAddr: to}); err != nil {
		return nil, fmt.Errorf("send a %s: %w", p.message.MessageType(), err)
	}
	return at, nil
}

// readFrame returns the next packet; nil when none came in time.
func readFrame(ctx context.Context, sock net.PacketConn, wait time.Duration) ([]byte, error) {
	if err := sock.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = sock.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 1<<16)
	n, _, err := sock.ReadFrom(buf)
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
	filter := []bpf.Instruction{ // lets answers of the address through
		bpf.LoadAbsolute{Off: operation, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: answer, SkipTrue: 3},
		bpf.LoadAbsolute{Off: senderIP, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(addr.AsSlice()), SkipTrue: 1},
		bpf.RetConstant{Val: length},
		bpf.RetConstant{Val: 0},
	}
	var sock *linklayer.Conn
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
		if _, err := sock.WriteTo(question, &linklayer.Addr{HardwareAddr: everyone}); err != nil {
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
	if head < ipHead || total > len(b) || total < head+udpHead || binary.BigEndian.Uint16(b[head:]) != serverPort {
		return nil
	}
	message, err := dhcpv4.FromBytes(b[head+udpHead : total])
	if err != nil {
		return nil
	}
	return message
}
