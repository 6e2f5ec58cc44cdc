package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// link is a container's interface during an exchange: two sockets in its namespace.
type link struct {
	rtnl.Link
	conn *rtnl.Conn
	sock *os.File // of packets
}

// openLink finds the interface of a record, whose index it notes the first time. No
// thread is in the namespace when it returns.
func openLink(n *ns.NS, r *record) (*link, error) {
	l := &link{}
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
		l.sock, err = packetSocket(l.Index)
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

// raise brings the interface up, where nobody else does, and waits until packets pass.
// Main plugins have reasons to be first: they turn address detection off before.
func (l *link) raise(ctx context.Context) error {
	const theirs = 100 * time.Millisecond
	up := true
	first, cancel := context.WithTimeout(ctx, theirs)
	defer cancel()
	now, err := l.conn.WaitUp(first, l.Index)
	if errors.Is(err, context.DeadlineExceeded) {
		if err = nil; !now.Up {
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

// packetSocket opens a socket that sends and receives IP packets on a link of the
// calling thread's namespace, whatever addresses and rules there are.
func packetSocket(index int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socket for packets: %w", err)
	}
	filter := unix.SockFprog{Len: uint16(len(portFilter)), Filter: &portFilter[0]}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &filter)
	if err == nil { // nothing comes in before the filter is there
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocolIP(), Ifindex: index})
		// That the link is still down would fail the first call after it is up.
		_, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("socket for packets: %w", err)
	}
	return os.NewFile(uintptr(fd), "packets"), nil
}

func protocolIP() uint16 {
	return binary.NativeEndian.Uint16([]byte{unix.ETH_P_IP >> 8, unix.ETH_P_IP & 0xff})
}

func (l *link) send(p *packet) error {
	raw, err := l.sock.SyscallConn()
	if err != nil {
		return err
	}
	to := &unix.SockaddrLinklayer{Protocol: protocolIP(), Ifindex: l.Index, Halen: uint8(len(p.mac))}
	copy(to.Addr[:], p.mac)
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = unix.Sendto(int(fd), p.encode(), 0, to) }); err != nil {
		return err
	}
	if sent != nil {
		return fmt.Errorf("send a %s: %w", p.message.MessageType(), sent)
	}
	return nil
}

// receive returns the next message, and the MAC address that sent it; nil when none came
// in time, or the one that came was none.
func (l *link) receive(ctx context.Context, wait time.Duration) (*dhcpv4.DHCPv4, net.HardwareAddr, error) {
	if err := l.sock.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = l.sock.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := l.sock.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	buf := make([]byte, 1<<16)
	var n int
	var from unix.Sockaddr
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		n, from, failed = unix.Recvfrom(int(fd), buf, 0)
		return failed != unix.EAGAIN && failed != unix.EINTR
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, nil, nil
	}
	if err = errors.Join(err, failed); err != nil {
		return nil, nil, err
	}
	var mac net.HardwareAddr
	if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Halen <= 8 {
		mac = slices.Clone(ll.Addr[:ll.Halen])
	}
	return decodePacket(buf[:n]), mac, nil
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

// apply makes what the interface has of one result what another one says, and leaves
// alone what both have: it may be as an administrator wants it.
func (l *link) apply(was, is *cni.Result) error {
	moved := !slices.Equal(cni.Addresses(was.IPs), cni.Addresses(is.IPs))
	old, routes := l.routes(was), l.routes(is)
	var errs []error
	for _, r := range old {
		if !slices.Contains(routes, r) {
			errs = append(errs, l.conn.DelRoute(r))
		}
	}
	if moved {
		for _, ip := range was.IPs { // and with the last one all routes
			errs = append(errs, l.conn.DelAddr(l.Index, ip.Address))
		}
		for _, ip := range is.IPs {
			errs = append(errs, l.conn.AddAddr(l.Index, rtnl.Addr{Prefix: ip.Address}))
		}
	}
	for _, r := range routes {
		if moved || !slices.Contains(old, r) {
			if err := l.conn.AddRoute(r); !errors.Is(err, unix.EEXIST) {
				errs = append(errs, err)
			}
		}
	}
	if moved && len(is.IPs) > 0 {
		errs = append(errs, iface.Announce(l.conn, l.Link))
	}
	return errors.Join(errs...)
}

func (l *link) routes(res *cni.Result) (routes []rtnl.Route) {
	for _, r := range res.Routes {
		route := rtnl.Route{Dst: r.Dst, GW: r.GW, OutIndex: l.Index, Priority: r.Priority}
		if r.Scope != nil {
			route.Scope = *r.Scope
		}
		routes = append(routes, route)
	}
	return routes
}
