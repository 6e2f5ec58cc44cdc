package main

import (
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
	Netns  string        `json:"netns"`
	NS     ns.Identity   `json:"ns"`
	Index  int           `json:"index"` // of the interface; 0: not known yet
	Client identity      `json:"client"`
	ACK    []byte        `json:"ack,omitempty"` // none: the lease is lost
	Since  time.Duration `json:"since,omitempty"`

	// While the interface is changed from one lease to the next: the ACK whose address it may still
	// have, and where its routes were. After a lost lease only the routes are kept.
	FormerACK    []byte   `json:"had,omitempty"`
	FormerRoutes []placed `json:"routes,omitempty"`
}

// Valid leaves out what no daemon has written.
func (r record) Valid() bool { return r.Index > 0 && r.Netns != "" }

// recordsOf are the leases that a socket's daemon holds.
func recordsOf(hostPrefix, socket string) statefile.Records[record] {
	path := hostPrefix + "/run/hawser/dhcp/" + cni.Digest(socket, 16)
	return statefile.Records[record]{Path: path, Wait: 10 * time.Second}
}

// setLease puts the lease, if any, into the record.
func (r *record) setLease(l *lease) {
	r.ACK, r.Since = nil, 0
	if l != nil {
		r.ACK, r.Since = l.ack.ToBytes(), l.since
	}
}

// leaseOf returns the lease of a stored ACK; nil: there is none.
func leaseOf(answer []byte, since time.Duration) *lease {
	ack, err := dhcpv4.FromBytes(answer)
	if err != nil {
		return nil
	}
	l, _ := newLease(ack, since)
	return l
}
