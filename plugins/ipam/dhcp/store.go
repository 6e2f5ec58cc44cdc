package main

import (
	"context"
	"net"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// record is a lease as it is kept in a file, from before the plugin has its answer until
// DEL: whatever ends the daemon, the next one knows it. Times are since boot, which is
// when /run is empty.
type record struct {
	cni.Attachment
	Netns  string           `json:"netns"`
	NS     ns.Identity      `json:"ns"`
	Index  int              `json:"index"` // of the interface; 0: not known yet
	Client client           `json:"client"`
	ACK    []byte           `json:"ack,omitempty"` // none: the lease is lost
	Server net.HardwareAddr `json:"server,omitempty"`
	Since  time.Duration    `json:"since,omitempty"`
}

// Sane leaves out what no daemon has written.
func (r *record) Sane(name string) bool { return name == r.Hash() && r.Index > 0 && r.Netns != "" }

const storeWait = 10 * time.Second

// storeDir is where the leases are kept that a socket's daemon holds.
func storeDir(hostPrefix, socket string) string {
	return hostPrefix + "/run/hawser/dhcp/" + cni.Digest(socket, 16)
}

// update opens the store for one change. Others of this process wait without a thread.
func (d *daemon) update(change func(*statefile.Store[record]) error) error {
	d.storing.Lock()
	defer d.storing.Unlock()
	s, err := statefile.OpenStore[record](context.Background(), d.dir, storeWait)
	if err != nil {
		return err
	}
	defer s.Close()
	return change(s)
}

// keep puts the lease, if any, into the record.
func (r *record) keep(l *lease) {
	r.ACK, r.Server, r.Since = nil, nil, 0
	if l != nil {
		r.ACK, r.Server, r.Since = l.ack.ToBytes(), l.server, l.since
	}
}

// kept is the lease that keep has put; nil: there is none.
func (r *record) kept() *lease {
	ack, err := dhcpv4.FromBytes(r.ACK)
	if err != nil {
		return nil
	}
	l, _ := newLease(ack, r.Server, r.Since)
	return l
}
