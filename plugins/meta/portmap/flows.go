package main

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/conntrack"
)

// loopbackIndex is lo's, in every namespace. The kernel names it as the way to
// the host's own addresses.
const loopbackIndex = 1

// flushPasses bounds how often flushAdded looks again.
const flushPasses = 5

// flushAdded makes UDP senders that were there before the rules take the new
// way: those that spoke to the host itself, and those that spoke to a dead
// owner of the port. Nobody else's flows are touched.
func (c *call) flushAdded(st *state, dead []*state) error {
	gone := map[netip.Addr]bool{}
	for _, d := range dead {
		for _, t := range d.Targets {
			gone[t.Addr.Addr()] = true
		}
	}
	local := map[netip.Addr]bool{}
	cut := map[conversation]bool{}
	for range flushPasses {
		n, err := eachUDP(st, func(at []forward, f conntrack.Flow) bool {
			if !f.Translated() && cut[conversation{f.Destination, f.Source}] {
				// An answer of the host's that was on its way has made the old
				// flow anew, the other way round.
				return true
			}
			if f.Translated() && !gone[f.ReplySource.Addr()] || !c.isAt(at, f.Destination.Addr(), local) {
				return false
			}
			cut[conversation{f.Source, f.Destination}] = true
			return true
		})
		if err != nil || n == 0 {
			return err
		}
	}
	return nil
}

// conversation is who speaks to whom.
type conversation struct{ from, to netip.AddrPort }

// isAt says whether one of the forwards is about this address of the host.
func (c *call) isAt(at []forward, addr netip.Addr, local map[netip.Addr]bool) bool {
	for _, fw := range at {
		if fw.host == addr {
			return true
		}
		if !fw.host.IsUnspecified() {
			continue
		}
		if _, known := local[addr]; !known {
			index, _, err := c.host.RouteTo(addr)
			local[addr] = err == nil && index == loopbackIndex
		}
		return local[addr]
	}
	return false
}

// flushRemoved makes UDP senders stop that the rules led to the container.
func (c *call) flushRemoved(st *state) error {
	_, err := eachUDP(st, func(at []forward, f conntrack.Flow) bool {
		for _, fw := range at {
			here := fw.host.IsUnspecified() || fw.host == f.Destination.Addr()
			if here && f.Translated() && f.ReplySource == fw.to {
				return true
			}
		}
		return false
	})
	return err
}

// eachUDP deletes the flows that match selects, which is given the forwards of
// the port that a flow goes to, and says how many. It does nothing for a state
// without UDP.
func eachUDP(st *state, match func(at []forward, f conntrack.Flow) bool) (deleted int, err error) {
	for _, f := range families() {
		ports := map[uint16][]forward{}
		for _, fw := range st.forwards() {
			if fw.proto == unix.IPPROTO_UDP && fw.v4() == f.v4 {
				ports[fw.port] = append(ports[fw.port], fw)
			}
		}
		if len(ports) == 0 {
			continue
		}
		family := uint8(conntrack.IPv4)
		if !f.v4 {
			family = conntrack.IPv6
		}
		n, err := conntrack.Delete(family, unix.IPPROTO_UDP, func(flow conntrack.Flow) bool {
			return match(ports[flow.Destination.Port()], flow)
		})
		deleted += n
		if err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}
