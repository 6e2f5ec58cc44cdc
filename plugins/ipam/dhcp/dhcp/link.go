package dhcp

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
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

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// link is a container's interface during an exchange, with two sockets in the container's namespace.
type link struct {
	rtnl.Link
	ns   *ns.NS
	conn *rtnl.Conn
	sock *linklayer.Conn
}

// openLink opens the interface of a record. If the record has no index yet, openLink finds the interface by its name
// and sets the index.
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
		r.Index = l.Index // never changes again, because other goroutines read it once the client is ready
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

// bringUp waits until the interface passes packets. Usually the main plugin brings the interface up, after it has
// disabled duplicate address detection. If that does not happen within patience, bringUp brings the interface up.
func (l *link) bringUp(ctx context.Context) error {
	const patience = 100 * time.Millisecond
	waitCtx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := l.conn.WaitUp(waitCtx, l.Index); !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if err := l.conn.SetLink(l.Index, rtnl.LinkChange{Up: new(true)}); err != nil {
		return err
	}
	current, err := l.conn.WaitUp(ctx, l.Index)
	if ctx.Err() != nil {
		return fmt.Errorf("interface %q does not come up; its state is %s", current.Name, current.Oper)
	}
	return err
}

// packetSocket opens a socket that sends and receives packets of a protocol on a link of the calling thread's
// namespace, independent of addresses and firewall rules. It also works on a bridge port, for example an interface
// that KubeVirt connected to a virtual machine. There, a socket for a single protocol receives nothing, so this one
// receives all protocols and filters them.
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
	if err := receiveAllProtocols(sock, index); err != nil {
		_ = sock.Close()
		return nil, fmt.Errorf("socket for packets: %w", err)
	}
	return sock, nil
}

// receiveAllProtocols makes a socket receive the packets of all protocols. The socket still sends packets of the
// protocol with which it was opened.
func receiveAllProtocols(sock *linklayer.Conn, index int) error {
	raw, err := sock.SyscallConn()
	if err != nil {
		return err
	}
	allProtocols := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	addr := &unix.SockaddrLinklayer{Ifindex: index, Protocol: allProtocols}
	var bindErr error
	err = raw.Control(func(fd uintptr) {
		bindErr = unix.Bind(int(fd), addr)
		// While the link is down, bind leaves a pending error, which would fail the first call on the socket.
		_, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
	})
	return cmp.Or(err, bindErr)
}

// unicastConn is a packet socket that sends all packets to one MAC address.
type unicastConn struct {
	net.PacketConn
	dst net.HardwareAddr
}

func (c unicastConn) WriteTo(b []byte, _ net.Addr) (int, error) {
	return c.PacketConn.WriteTo(b, &linklayer.Addr{HardwareAddr: c.dst})
}

// send sends a packet to the MAC address of its next hop and returns that address. It resolves the address each time
// because it may change. If p has no next hop, or the next hop does not answer, send broadcasts the packet and hop is
// nil.
func (l *link) send(ctx context.Context, p *packet) (hop net.HardwareAddr, err error) {
	dst := nclient4.BroadcastMac
	if p.nextHop.IsValid() && len(l.MAC) == len(dst) { // ARP is only used with Ethernet addresses
		mac := l.MAC
		if l.Master != 0 { // a bridge port: a virtual machine behind it has the lease's addresses
			mac = p.message.ClientHWAddr
		}
		if hop, err = l.resolveMAC(ctx, mac, p.src, p.nextHop); err != nil {
			return nil, err
		}
		if hop != nil {
			dst = hop
		}
	}
	client := net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.src, clientPort))
	conn := nclient4.NewBroadcastUDPConn(unicastConn{l.sock, dst}, client)
	server := net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.dst, serverPort))
	if _, err := conn.WriteTo(p.message.ToBytes(), server); err != nil {
		return nil, fmt.Errorf("send a %s: %w", p.message.MessageType(), err)
	}
	return hop, nil
}

// readPacket returns the next packet, or nil if none arrives within wait.
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

// receive returns the next message. It returns nil if none arrives within wait or the packet is not a message.
// Checksums are not verified, because a sender on this host leaves the calculation to its device.
func (l *link) receive(ctx context.Context, wait time.Duration) (*dhcpv4.DHCPv4, error) {
	b, err := readPacket(ctx, nclient4.NewBroadcastUDPConn(l.sock, &net.UDPAddr{Port: clientPort}), wait)
	message, _ := dhcpv4.FromBytes(b)
	return message, err
}

// resolveMAC returns the MAC address of addr on the link, by ARP (RFC 826), or nil if nothing answers. The sender of
// the request is mac and src, which the interface may have lost.
func (l *link) resolveMAC(ctx context.Context, mac net.HardwareAddr, src, addr netip.Addr) (net.HardwareAddr, error) {
	const tries, pause, length = 3, 200 * time.Millisecond, 28
	const reply, operation, senderMAC, senderIP = 2, 6, 8, 14
	filter := []bpf.Instruction{ // accepts replies from addr
		bpf.LoadAbsolute{Off: operation, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: reply, SkipTrue: 3},
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
	head := []byte{0, 1, 8, 0, 6, 4, 0, 1} // Ethernet, IPv4, the lengths of their addresses, request
	request := slices.Concat(head, mac, src.AsSlice(), make([]byte, 6), addr.AsSlice())
	for range tries {
		if _, err := sock.WriteTo(request, &linklayer.Addr{HardwareAddr: nclient4.BroadcastMac}); err != nil {
			return nil, fmt.Errorf("send an ARP request for %s: %w", addr, err)
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

// enable6 enables IPv6 and stops the kernel from using router advertisements.
func (l *link) enable6() error {
	return l.ns.Do(func() error {
		for name, value := range map[string]string{"accept_ra": "0", "disable_ipv6": "0"} {
			err := sysctl.Net("ipv6", "conf", l.Name, name).Write(value)
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("the kernel has no IPv6 support: %w", err)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// removeKernelConfig removes the addresses and routes that the kernel has taken from router advertisements.
func (l *link) removeKernelConfig() error {
	addrs, err := l.conn.Addrs(l.Index)
	errs := []error{err}
	staticPrefixes := map[netip.Prefix]bool{}
	for _, a := range addrs {
		if a.Prefix.Addr().Is6() && !a.Permanent {
			errs = append(errs, l.conn.DelAddr(l.Index, a.Prefix))
		} else {
			staticPrefixes[a.Prefix.Masked()] = true
		}
	}
	routes, err := l.conn.Routes(l.Index, unix.AF_INET6)
	errs = append(errs, err)
	for _, r := range routes {
		isAddrRoute := r.Protocol == unix.RTPROT_KERNEL && r.Table == unix.RT_TABLE_MAIN
		if r.Protocol == unix.RTPROT_RA || isAddrRoute && !staticPrefixes[r.Dst] {
			errs = append(errs, l.conn.DelRoute(r))
		}
	}
	return errors.Join(errs...)
}

// macFor returns the MAC address that belongs to a link-local address. Behind a bridge port, a virtual machine has
// the MAC address from which the link-local address was formed (RFC 4291, appendix A).
func (l *link) macFor(linkLocal netip.Addr) net.HardwareAddr {
	if id := linkLocal.AsSlice()[8:]; l.Master != 0 && id[3] == 0xff && id[4] == 0xfe {
		return net.HardwareAddr{id[0] ^ 2, id[1], id[2], id[5], id[6], id[7]}
	}
	return l.MAC
}

func (l *link) send6(protocol byte, src netip.Addr, group string, message []byte) error {
	dst := netip.MustParseAddr(group)
	mac := append(net.HardwareAddr{0x33, 0x33}, dst.AsSlice()[12:]...) // RFC 2464, section 7
	_, err := l.sock.WriteTo(buildPacket6(protocol, src, dst, message), &linklayer.Addr{HardwareAddr: mac})
	if err != nil {
		return fmt.Errorf("send to %s: %w", group, err)
	}
	return nil
}
