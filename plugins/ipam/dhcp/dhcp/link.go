package dhcp

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
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	linklayer "github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
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

// openLink finds the interface of a record, whose index it notes the first time. It leaves no thread in the namespace.
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
		if r.Client.isV6() {
			l.sock, err = packetSocket(l.Index, unix.ETH_P_IPV6, filter6)
		} else {
			l.sock, err = packetSocket(l.Index, unix.ETH_P_IP, portFilter)
		}
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
	if _, err := l.conn.WaitUp(theirTurn, l.Index); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if err := l.conn.SetLink(l.Index, rtnl.LinkChange{Up: new(true)}); err != nil {
		return err
	}
	now, err := l.conn.WaitUp(ctx, l.Index)
	if ctx.Err() != nil {
		return fmt.Errorf("interface %q does not come up, it is %s", now.Name, now.Oper)
	}
	return err
}

// portFilter lets UDP from port 67 to port 68 through that is no fragment. A packet begins with its IP header.
var portFilter = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 9, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: 6},
	bpf.LoadAbsolute{Off: 6, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x1fff, SkipTrue: 4},
	bpf.LoadMemShift{Off: 0},
	bpf.LoadIndirect{Off: 0, Size: 4},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: serverPort<<16 | clientPort, SkipTrue: 1},
	bpf.RetConstant{Val: 1 << 16},
	bpf.RetConstant{Val: 0},
}

const (
	serverPort = 67
	clientPort = 68
)

// packetSocket opens a socket that sends and receives packets of a protocol, IP or ARP, on a
// link of the calling thread's namespace, whatever addresses and rules there are. It hears them on the port of a bridge
// too, such as an interface that KubeVirt gave to a virtual machine: of these a socket for one protocol hears none.
func packetSocket(index int, protocol uint16, filter []bpf.Instruction) (*linklayer.Conn, error) {
	program, err := bpf.Assemble(append([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtProto},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(protocol), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}, filter...))
	if err != nil {
		return nil, err
	}
	sock, err := linklayer.Listen(&net.Interface{Index: index}, linklayer.Datagram, int(protocol),
		&linklayer.Config{Filter: program})
	if err != nil {
		return nil, fmt.Errorf("socket for packets: %w", err)
	}
	if err := hearAll(sock, index); err != nil {
		_ = sock.Close()
		return nil, fmt.Errorf("socket for packets: %w", err)
	}
	return sock, nil
}

// hearAll binds a socket for one protocol, which it goes on to send, to those of all.
func hearAll(sock *linklayer.Conn, index int) error {
	raw, err := sock.SyscallConn()
	if err != nil {
		return err
	}
	inOrder := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	all := &unix.SockaddrLinklayer{Ifindex: index, Protocol: inOrder}
	var bound error
	err = raw.Control(func(fd uintptr) {
		bound = unix.Bind(int(fd), all)
		// That the link is still down would fail the first call after it is up.
		_, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
	})
	return cmp.Or(err, bound)
}

// directed is a packet socket whose packets go to one MAC address.
type directed struct {
	net.PacketConn
	to net.HardwareAddr
}

func (d directed) WriteTo(b []byte, _ net.Addr) (int, error) {
	return d.PacketConn.WriteTo(b, &linklayer.Addr{HardwareAddr: d.to})
}

// send sends a packet. It returns the MAC address that answered to ARP for the next hop; nil: nobody did, and the
// packet went to all. It asks each time, since a server's MAC address may change.
func (l *link) send(ctx context.Context, p *packet) (at net.HardwareAddr, err error) {
	to := nclient4.BroadcastMac
	if p.hop.IsValid() && len(l.MAC) == len(to) {
		mac := l.MAC
		if l.Master != 0 { // the port of a bridge, behind which somebody has the address and the MAC address
			mac = p.message.ClientHWAddr
		}
		if at, err = l.neighbor(ctx, mac, p.src, p.hop); err != nil {
			return nil, err
		}
		if at != nil {
			to = at
		}
	}
	from := net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.src, clientPort))
	conn := nclient4.NewBroadcastUDPConn(directed{l.sock, to}, from)
	server := net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.dst, serverPort))
	if _, err := conn.WriteTo(p.message.ToBytes(), server); err != nil {
		return nil, fmt.Errorf("send a %s: %w", p.message.MessageType(), err)
	}
	return at, nil
}

// readPacket returns the next packet; nil when none came in time.
func readPacket(ctx context.Context, sock net.PacketConn, wait time.Duration) ([]byte, error) {
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

// receive returns the next message; nil when none came in time, or the one that came was none. Checksums are not
// looked at: a sender on this host leaves them to its device.
func (l *link) receive(ctx context.Context, wait time.Duration) (*dhcpv4.DHCPv4, error) {
	b, err := readPacket(ctx, nclient4.NewBroadcastUDPConn(l.sock, &net.UDPAddr{Port: clientPort}), wait)
	message, _ := dhcpv4.FromBytes(b)
	return message, err
}

// neighbor asks by ARP (RFC 826) who has an address. from and src need not be the interface's any more. nil: nobody
// answers.
func (l *link) neighbor(ctx context.Context, from net.HardwareAddr, src, addr netip.Addr) (net.HardwareAddr, error) {
	const tries, pause, length = 3, 200 * time.Millisecond, 28
	const answer, operation, senderMAC, senderIP = 2, 6, 8, 14
	filter := []bpf.Instruction{ // lets answers of the address through
		bpf.LoadAbsolute{Off: operation, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: answer, SkipTrue: 3},
		bpf.LoadAbsolute{Off: senderIP, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(addr.AsSlice()), SkipTrue: 1},
		bpf.RetConstant{Val: length},
		bpf.RetConstant{Val: 0},
	}
	var sock *linklayer.Conn
	err := l.ns.Do(func() (err error) {
		sock, err = packetSocket(l.Index, unix.ETH_P_ARP, filter)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer sock.Close()
	head := []byte{0, 1, 8, 0, 6, 4, 0, 1} // Ethernet, IPv4, the lengths of their addresses, a request
	question := slices.Concat(head, from, src.AsSlice(), make([]byte, 6), addr.AsSlice())
	for range tries {
		if _, err := sock.WriteTo(question, &linklayer.Addr{HardwareAddr: nclient4.BroadcastMac}); err != nil {
			return nil, fmt.Errorf("ask who has %s: %w", addr, err)
		}
		b, err := readPacket(ctx, sock, pause)
		if err != nil || ctx.Err() != nil {
			return nil, cmp.Or(err, context.Cause(ctx))
		}
		if len(b) == length {
			return b[senderMAC:senderIP], nil
		}
	}
	return nil, nil
}

// placed says where a route of a lease is: plugins behind ours move it to other tables (sbr, vrf), or remove it.
type placed struct {
	Dst netip.Prefix `json:"dst"`
	At  []rtnl.Route `json:"at,omitempty"` // none: nowhere
}

// kernelMetric6 is the metric of routes that the kernel makes with IPv6 addresses.
const kernelMetric6 = 256

// routes are those of a result. The first are to the subnets, which the kernel makes with the addresses.
func (l *link) routes(of *cni.Result) (routes []rtnl.Route) {
	for _, ip := range of.IPs {
		r := rtnl.Route{Dst: ip.Address.Masked(), Src: ip.Address.Addr(), OutIndex: l.Index,
			Scope: unix.RT_SCOPE_LINK, Protocol: unix.RTPROT_KERNEL, Table: unix.RT_TABLE_MAIN}
		if r.Src.Is6() {
			r.Src, r.Priority = netip.Addr{}, kernelMetric6
		}
		routes = append(routes, r)
	}
	for _, r := range of.Routes {
		route := rtnl.Route{Dst: r.Dst, GW: r.GW, OutIndex: l.Index, Priority: r.Priority, Table: unix.RT_TABLE_MAIN}
		if r.Scope != nil {
			route.Scope = *r.Scope
		}
		routes = append(routes, route)
	}
	return routes
}

// find looks for the routes of a result in all tables.
func (l *link) find(of *cni.Result) (found []placed, err error) {
	if len(of.IPs) == 0 {
		return nil, nil
	}
	there, err := l.conn.Routes(l.Index, rtnl.FamilyOf(of.IPs[0].Address.Addr()))
	for _, r := range l.routes(of) {
		p := placed{Dst: r.Dst}
		for _, t := range there {
			if t.Type == unix.RTN_UNICAST && t.Dst == r.Dst && t.GW == r.GW {
				p.At = append(p.At, t)
			}
		}
		found = append(found, p)
	}
	return found, err
}

// place returns the routes of a lease, each in the tables where the former lease had its route to the same destination:
// none for a route that somebody removed. A new destination goes to the tables of the first gateway route that is
// there, else to those of the subnet's route, which is the first of both lists.
func place(routes []rtnl.Route, former []placed) (want []rtnl.Route) {
	isThere := func(p placed) bool { return len(p.At) > 0 }
	if !slices.ContainsFunc(former, isThere) { // nothing is known
		return routes
	}
	for i, r := range routes {
		at := slices.IndexFunc(former, func(p placed) bool { return p.Dst == r.Dst })
		if i == 0 {
			at = 0 // the subnet's route, whatever its destination
		}
		if at >= 0 {
			for _, copied := range former[at].At {
				if copied.GW.IsValid() != r.GW.IsValid() {
					copied.Scope = r.Scope
				}
				if copied.Src.IsValid() {
					copied.Src = routes[0].Src
				}
				copied.Dst, copied.GW = r.Dst, r.GW
				want = append(want, copied)
			}
			continue
		}
		beside := slices.IndexFunc(former[1:], isThere) + 1 // 0, the subnet, where there is none
		for _, b := range former[beside].At {
			r.Table = b.Table
			want = append(want, r)
		}
	}
	return want
}

// apply changes the interface from what was, whose routes are where former says, to what is. What both have
// stays: an administrator may have changed it. Old routes go after the new ones are made. It can be called again.
func (l *link) apply(former []placed, was, is *cni.Result) error {
	had, has := cni.Addresses(was.IPs), cni.Addresses(is.IPs)
	var errs []error
	for _, p := range had { // with the last address all routes of IPv4 go, too
		if !slices.Contains(has, p) {
			errs = append(errs, l.conn.DelAddr(l.Index, p))
		}
	}
	add := func(err error) {
		if !errors.Is(err, unix.EEXIST) {
			errs = append(errs, err)
		}
	}
	routes := l.routes(is)
	var made []rtnl.Route // by the kernel
	for i, p := range has {
		if !slices.Contains(had, p) {
			add(l.conn.AddAddr(l.Index, rtnl.Addr{Prefix: p}))
			made = append(made, routes[i])
		}
	}
	want := place(routes, former)
	for _, r := range want {
		add(l.conn.AddRoute(r))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	old := made // in the main table, also where a plugin had moved the others away
	for _, p := range former {
		old = append(old, p.At...)
	}
	for _, r := range old {
		isSame := func(w rtnl.Route) bool { // for the kernel
			return w.Dst == r.Dst && w.GW == r.GW && w.Table == r.Table && w.Priority == r.Priority
		}
		if !slices.ContainsFunc(want, isSame) {
			errs = append(errs, l.conn.DelRoute(r))
		}
	}
	if made != nil {
		errs = append(errs, iface.Announce(l.conn, l.Link))
	}
	return errors.Join(errs...)
}
