package dhcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// record is the file of a lease, from which the next daemon continues. It is written before the plugin gets its
// answer, and removed when the lease is released. Times are since boot.
type record struct {
	cni.Attachment
	NetnsPath string        `json:"netnsPath"`
	Netns     ns.Identity   `json:"netns"`
	Index     int           `json:"index"` // interface index; 0: not known yet
	Client    identity      `json:"client"`
	ACK       []byte        `json:"ack,omitempty"` // see lease.encode; empty: the lease is lost
	Since     time.Duration `json:"since,omitempty"`

	// FormerACK and FormerRoutes are set while client.publish changes the interface from a former lease to this one:
	// the interface may still have the former addresses, and FormerRoutes lists where the former routes were. If the
	// lease is lost, FormerRoutes stays set, because the next lease's routes go to the same places.
	FormerACK    []byte      `json:"had,omitempty"`
	FormerRoutes []placement `json:"routes,omitempty"`
}

// Plausible reports whether a daemon can have written the record.
func (r record) Plausible() bool { return r.Index > 0 && r.NetnsPath != "" }

// setLease sets the record's lease. A nil lease means that the lease is lost.
func (r *record) setLease(l *lease) {
	r.ACK, r.Since = nil, 0
	if l != nil {
		r.ACK, r.Since = l.encode(), l.since
	}
}

// decodeLease decodes r.ACK or r.FormerACK. It returns nil if answer is not a lease of the client's address family.
func (r record) decodeLease(answer []byte) *lease {
	if r.Client.isV6() {
		var six lease6
		if json.Unmarshal(answer, &six) != nil {
			return nil
		}
		return newLease6(six, r.Since)
	}
	ack, err := dhcpv4.FromBytes(answer)
	if err != nil {
		return nil
	}
	l, _ := newLease(ack, r.Since)
	return l
}

const (
	leaseRoot  = "/run/hawser/dhcp/"
	lease6Root = "/run/hawser/dhcp6/" // for IPv6, because older daemons would read its records as IPv4
)

// recordsFor returns the records, below one of the roots, of the daemon that serves socket.
func recordsFor(root, socket string) *statefile.Store[record] {
	return statefile.NewStore[record](root+cni.Digest(socket, 16), 10*time.Second)
}

// list returns the leases of all daemons.
func list(context.Context, *skel.Request) (all []cni.Holding, err error) {
	dirs, _ := filepath.Glob(leaseRoot + "*") // the pattern is valid
	dirs6, _ := filepath.Glob(lease6Root + "*")
	boot := time.Now().Add(-sysctl.Uptime())
	var errs []error
	for _, dir := range append(dirs, dirs6...) {
		records := statefile.NewStore[record](dir, statefile.DefaultWait)
		holdings, err := netplugin.Holdings(records, func(r record) (held []cni.Holding) {
			add := func(value string) {
				held = append(held, cni.Holding{Attachment: r.Attachment, Kind: cni.HeldAddress, Value: value})
			}
			l := r.decodeLease(r.ACK)
			if l == nil {
				add("lost")
			}
			for _, ip := range l.result(options{}).IPs {
				add(fmt.Sprintf("%s %s expires %s", ip.Address.Addr(), l.source(),
					boot.Add(l.expiry).UTC().Format(time.RFC3339)))
			}
			return netplugin.WithNetns(r.NetnsPath, r.Netns, held...)
		})
		all, errs = append(all, holdings...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// placement lists the kernel's copies of a lease's route, one for each table. Chained plugins can move a route to other
// tables (sbr, vrf) or remove it.
type placement struct {
	Dst    netip.Prefix `json:"dst"`
	Routes []rtnl.Route `json:"at,omitempty"` // the route in each table; empty: it was removed
}
