package main

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nft"
)

// loopbackIndex is lo's, in every namespace. The kernel names it as the way to the host's own addresses.
const loopbackIndex = 1

// flushPasses bounds how often flushAdded looks again.
const flushPasses = 5

// flushAdded deletes the UDP flows that are older than the rules, so that their next packet takes the new way:
// flows to the host itself, and flows to a former owner of the port. Nobody else's flows are touched.
func (c *call) flushAdded(r *record, gone []*record) error {
	old := c.older(gone)
	for range flushPasses {
		if n, err := deleteUDP(r, old); err != nil || n == 0 {
			return err
		}
	}
	return nil
}

// older selects the flows that are older than the rules. An answer of the host that is on its way makes such a flow
// again, the other way round; nothing tells of one that comes after the last pass.
func (c *call) older(gone []*record) func(at []hostPort, f nft.Flow) bool {
	former := map[netip.Addr]bool{}
	for _, o := range gone {
		for _, a := range o.Addrs {
			former[a.Addr.Addr()] = true
		}
	}
	local := map[netip.Addr]bool{}
	cut := map[conversation]bool{}
	return func(at []hostPort, f nft.Flow) bool {
		if !f.Translated() && cut[conversation{f.Destination, f.Source}] {
			return true
		}
		if f.Translated() && !former[f.ReplySource.Addr()] || !c.isAt(at, f.Destination.Addr(), local) {
			return false
		}
		cut[conversation{f.Source, f.Destination}] = true
		return true
	}
}

// conversation is who speaks to whom.
type conversation struct{ from, to netip.AddrPort }

// isAt says whether one of the host ports is at this address of the host.
func (c *call) isAt(at []hostPort, addr netip.Addr, local map[netip.Addr]bool) bool {
	for _, p := range at {
		if p.Addr == addr {
			return true
		}
		if !p.Addr.IsUnspecified() {
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

// flushRemoved deletes the UDP flows that the rules led to the container.
func (c *call) flushRemoved(r *record) error {
	_, err := deleteUDP(r, func(at []hostPort, f nft.Flow) bool {
		for _, p := range at {
			here := p.Addr.IsUnspecified() || p.Addr == f.Destination.Addr()
			if here && f.Translated() && f.ReplySource == p.To {
				return true
			}
		}
		return false
	})
	return err
}

// deleteUDP deletes the UDP flows that match selects, and says how many. match is given a flow and those of the
// host ports that have its destination's port number. Without UDP host ports no flow is read.
func deleteUDP(r *record, match func(at []hostPort, f nft.Flow) bool) (deleted int, err error) {
	for _, f := range families() {
		ports := map[uint16][]hostPort{}
		for _, p := range r.hostPorts() {
			if p.Proto == unix.IPPROTO_UDP && p.Addr.Is4() == f.v4() {
				ports[p.Port] = append(ports[p.Port], p)
			}
		}
		if len(ports) == 0 {
			continue
		}
		n, err := nft.DeleteFlows(f.Family, unix.IPPROTO_UDP, func(flow nft.Flow) bool {
			return match(ports[flow.Destination.Port()], flow)
		})
		deleted += n
		if err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}
