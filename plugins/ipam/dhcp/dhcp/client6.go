package dhcp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"time"

	linklayer "github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/sysctl"
)

const (
	allServers = "ff02::1:2"
	allRouters = "ff02::2"
	allNodes   = "ff02::1"
)

// filter6 lets DHCPv6 to a client, router advertisements and neighbour solicitations through, without extension
// headers.
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

// begin finds the link-local address, where neither an exchange nor a lease of a former daemon has told it. In an ADD
// the daemon takes router advertisements over from the kernel, which may have taken addresses and routes already.
func (m *machine6) begin(ctx context.Context, l *link) error {
	isFirst := m.isFirst()
	if !isFirst && m.Own.IsValid() {
		return nil
	}
	if isFirst {
		if err := l.enable6(); err != nil {
			return err
		}
	} else { // a former daemon has lost the lease
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, exchangeMax)
		defer cancel()
	}
	if m.Own, m.fault = l.conn.WaitLinkLocal(ctx, l.Index); m.fault != nil || !isFirst {
		return m.fault
	}
	return l.takeOver()
}

// enable6 turns IPv6 on, and the kernel's use of router advertisements off.
func (l *link) enable6() error {
	return l.ns.Do(func() error {
		for name, value := range map[string]string{"accept_ra": "0", "disable_ipv6": "0"} {
			err := sysctl.Net("ipv6", "conf", l.Name, name).Write(value)
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("the kernel has no IPv6: %w", err)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// takeOver removes the addresses that the kernel has of router advertisements, and the routes.
func (l *link) takeOver() error {
	addrs, err := l.conn.Addrs(l.Index)
	errs := []error{err}
	mine := map[netip.Prefix]bool{}
	for _, a := range addrs {
		if a.Prefix.Addr().Is6() && !a.Permanent {
			errs = append(errs, l.conn.DelAddr(l.Index, a.Prefix))
		} else {
			mine[a.Prefix.Masked()] = true
		}
	}
	routes, err := l.conn.Routes(l.Index, unix.AF_INET6)
	errs = append(errs, err)
	for _, r := range routes {
		isPrefix := r.Protocol == unix.RTPROT_KERNEL && r.Table == unix.RT_TABLE_MAIN
		if r.Protocol == unix.RTPROT_RA || isPrefix && !mine[r.Dst] {
			errs = append(errs, l.conn.DelRoute(r))
		}
	}
	return errors.Join(errs...)
}

func (m *machine6) speak(_ context.Context, l *link) error {
	now := sysctl.SinceBoot()
	if !m.tick(now) {
		return nil
	}
	if m.state == soliciting {
		return l.send6(unix.IPPROTO_ICMPV6, m.Own, allRouters, solicitation(l.macOf(m.Own)))
	}
	return l.send6(unix.IPPROTO_UDP, m.Own, allServers, m.message(now).encode())
}

// macOf is the MAC address at which the link-local address is. Behind the port of a bridge somebody has it, and the MAC
// address of which it was formed (RFC 4291, appendix A).
func (l *link) macOf(own netip.Addr) net.HardwareAddr {
	if id := own.AsSlice()[8:]; l.Master != 0 && id[3] == 0xff && id[4] == 0xfe {
		return net.HardwareAddr{id[0] ^ 2, id[1], id[2], id[5], id[6], id[7]}
	}
	return l.MAC
}

// send6 sends a message to a multicast group.
func (l *link) send6(protocol byte, src netip.Addr, group string, message []byte) error {
	dst := netip.MustParseAddr(group)
	mac := append(net.HardwareAddr{0x33, 0x33}, dst.AsSlice()[12:]...) // RFC 2464, section 7
	_, err := l.sock.WriteTo(packet6(protocol, src, dst, message), &linklayer.Addr{HardwareAddr: mac})
	if err != nil {
		return fmt.Errorf("send to %s: %w", group, err)
	}
	return nil
}

func (m *machine6) listen(ctx context.Context, l *link, wait time.Duration) error {
	b, err := readPacket(ctx, l.sock, wait)
	if err != nil {
		return err
	}
	// The address may be gone with a former MAC address, and a guest need not have it.
	if asksFor(b, m.Own) {
		return l.send6(unix.IPPROTO_ICMPV6, m.Own, allNodes, isAt(m.Own, l.macOf(m.Own)))
	}
	m.hear(sysctl.SinceBoot(), b)
	return nil
}

// hear takes a packet.
func (m *machine6) hear(now time.Duration, b []byte) {
	switch protocol, src, message := read6(b); protocol {
	case unix.IPPROTO_ICMPV6:
		if a, err := decodeAdvert(src, message); err == nil {
			m.advertised(now, a)
		}
	case unix.IPPROTO_UDP:
		if p, err := decode6(message, m.iaid); err == nil {
			m.receive(now, p)
		}
	}
}

func (m *machine6) resume(time.Duration) {
	m.heard = m.lease.six.heard
	m.enterBound()
}

// giveBack tells the server, and waits for its answer.
func (m *machine6) giveBack(l *link) (at string, err error) {
	const tries, pause = 3, 200 * time.Millisecond
	held := m.lease.six
	if held.Server == nil {
		return "no server", nil
	}
	m.enter(releasing, sysctl.SinceBoot())
	for range tries {
		now := sysctl.SinceBoot()
		if err := l.send6(unix.IPPROTO_UDP, m.Own, allServers, m.message(now).encode()); err != nil {
			return "", err
		}
		for end := now + pause; now < end; now = sysctl.SinceBoot() {
			if err := m.listen(context.Background(), l, end-now); err != nil {
				return "", err
			}
			if m.state != releasing {
				return fmt.Sprintf("%x", held.Server), nil
			}
		}
	}
	return "", errors.New("the DHCPv6 server does not answer to a Release")
}

func (m *machine6) unanswered() string {
	if n := m.asked[selecting]; n > 0 {
		return fmt.Sprintf("no DHCPv6 server answered %d Solicit messages", n)
	}
	return fmt.Sprintf("no router answered %d router solicitations", m.asked[soliciting])
}
