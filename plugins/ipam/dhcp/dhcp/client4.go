package dhcp

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// This file implements the interface protocol for machine; client6.go does so for machine6.

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
	hop, err := l.send(context.Background(), p) // it takes less than a second
	if err == nil && hop == nil {
		err = fmt.Errorf("no MAC address known for %s; sent to the broadcast address", cmp.Or(p.nextHop, p.dst))
	}
	return hop.String(), err
}

func (m *machine) noAnswer() string { return "no DHCP server answered" }
