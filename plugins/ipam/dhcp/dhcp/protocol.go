package dhcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// protocol drives a state machine over an open link. machine and machine6 implement it.
type protocol interface {
	prepare(ctx context.Context, l *link) error                         // before an exchange
	transmit(ctx context.Context, l *link) error                        // sends the message that is due, if any
	awaitAnswer(ctx context.Context, l *link, wait time.Duration) error // also processes the answer
	resume(now time.Duration)                                           // continues a former daemon's lease
	sendRelease(l *link) (recipient string, err error)                  // the recipient is for the log
	noAnswer() string                                                   // who did not answer: servers or routers
}

func (m *machine) prepare(_ context.Context, l *link) error {
	// ipvlan links share a MAC address. Until a link has its IP address, it receives only broadcasts.
	m.id.Broadcast = m.flags.broadcast || l.Kind == "ipvlan"
	return nil
}

func (m *machine) transmit(ctx context.Context, l *link) (err error) {
	if p := m.tick(sysctl.Uptime()); p != nil {
		_, err = l.send(ctx, p)
	}
	return err
}

func (m *machine) awaitAnswer(ctx context.Context, l *link, wait time.Duration) error {
	message, err := l.receive(ctx, wait)
	if message != nil && err == nil {
		m.receive(sysctl.Uptime(), message)
	}
	return err
}

func (m *machine) resume(now time.Duration) {
	if now >= m.lease.renew {
		m.enter(rebooting, now)
	} else {
		m.enterBound()
	}
}

func (m *machine) sendRelease(l *link) (string, error) {
	p := m.releasePacket()
	hop, err := l.send(context.Background(), p) // resolving the hop takes less than a second
	if err == nil && hop == nil {
		err = fmt.Errorf("no MAC address known for %s; sent to the broadcast address", cmp.Or(p.nextHop, p.dst))
	}
	return hop.String(), err
}

func (m *machine) noAnswer() string { return "no DHCP server answered" }

// prepare finds the link-local address unless an earlier exchange or the record has it. In an ADD, it also stops the
// kernel from using router advertisements and removes the addresses and routes that the kernel has taken from them.
func (m *machine6) prepare(ctx context.Context, l *link) error {
	isFirst := m.id.isFirst()
	if !isFirst && m.ra.LinkLocal.IsValid() {
		return nil
	}
	if isFirst {
		if err := l.enable6(); err != nil {
			return err
		}
	} else { // restored from the record of a lost lease, which has no link-local address
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, exchangeTime)
		defer cancel()
	}
	if m.ra.LinkLocal, m.fault = l.conn.WaitLinkLocal(ctx, l.Index); m.fault != nil || !isFirst {
		return m.fault
	}
	return l.removeKernelConfig()
}

func (m *machine6) transmit(_ context.Context, l *link) error {
	now := sysctl.Uptime()
	if !m.tick(now) {
		return nil
	}
	if m.state == soliciting {
		return l.send6(unix.IPPROTO_ICMPV6, m.ra.LinkLocal, allRouters, routerSolicit(l.macFor(m.ra.LinkLocal)))
	}
	return l.send6(unix.IPPROTO_UDP, m.ra.LinkLocal, allServers, m.message(now).encode())
}

func (m *machine6) awaitAnswer(ctx context.Context, l *link, wait time.Duration) error {
	b, err := readPacket(ctx, l.sock, wait)
	if err != nil {
		return err
	}
	// The kernel does not answer a neighbor solicitation if the interface lost the address when its MAC address was
	// changed, or if a virtual machine without the address uses the interface.
	if addr := m.ra.LinkLocal; isSolicitationFor(b, addr) {
		return l.send6(unix.IPPROTO_ICMPV6, addr, allNodes, neighborAdvert(addr, l.macFor(addr)))
	}
	m.receivePacket(sysctl.Uptime(), b)
	return nil
}

// receivePacket processes a packet. It ignores packets that it cannot decode.
func (m *machine6) receivePacket(now time.Duration, b []byte) {
	switch protocol, src, message := parsePacket6(b); protocol {
	case unix.IPPROTO_ICMPV6:
		if a, err := decodeAdvert(src, message); err == nil {
			m.receiveAdvert(now, a)
		}
	case unix.IPPROTO_UDP:
		if p, err := decode6(message, m.iaid); err == nil {
			m.receive(now, p)
		}
	}
}

func (m *machine6) resume(time.Duration) {
	m.ra = m.lease.v6.raState
	m.enterBound()
}

// sendRelease sends a Release and waits for the server's answer. A SLAAC address needs none.
func (m *machine6) sendRelease(l *link) (recipient string, err error) {
	const tries, pause = 3, 200 * time.Millisecond
	lease := m.lease.v6
	if lease.Server == nil {
		return "no server", nil
	}
	m.enter(releasing, sysctl.Uptime())
	for range tries {
		now := sysctl.Uptime()
		if err := l.send6(unix.IPPROTO_UDP, m.ra.LinkLocal, allServers, m.message(now).encode()); err != nil {
			return "", err
		}
		for end := now + pause; now < end; now = sysctl.Uptime() {
			if err := m.awaitAnswer(context.Background(), l, end-now); err != nil {
				return "", err
			}
			if m.state != releasing {
				return fmt.Sprintf("%x", lease.Server), nil
			}
		}
	}
	return "", errors.New("the DHCPv6 server did not answer the Release")
}

func (m *machine6) noAnswer() string {
	if n := m.transmissions[selecting]; n > 0 {
		return fmt.Sprintf("no DHCPv6 server answered %d Solicit messages", n)
	}
	return fmt.Sprintf("no router answered %d router solicitations", m.transmissions[soliciting])
}
