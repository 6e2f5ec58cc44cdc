package main

import (
	"net/netip"

	"github.com/hawser-cni/plugins/pkg/conntrack"
	"golang.org/x/sys/unix"
)

// loopbackIndex is lo's, in every namespace. The kernel names it as the way to
// the host's own addresses.
const loopbackIndex = 1

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
	return eachUDP(st, func(at []forward, f conntrack.Flow) bool {
		if f.Translated() && !gone[f.ReplySource.Addr()] {
			return false
		}
		for _, fw := range at {
			if !fw.host.IsUnspecified() {
				if fw.host == f.Destination.Addr() {
					return true
				}
				continue
			}
			is, known := local[f.Destination.Addr()]
			if !known {
				index, _, err := c.host.RouteTo(f.Destination.Addr())
				is = err == nil && index == loopbackIndex
				local[f.Destination.Addr()] = is
			}
			if is {
				return true
			}
		}
		return false
	})
}

// flushRemoved makes UDP senders stop that the rules led to the container.
func (c *call) flushRemoved(st *state) error {
	return eachUDP(st, func(at []forward, f conntrack.Flow) bool {
		for _, fw := range at {
			here := fw.host.IsUnspecified() || fw.host == f.Destination.Addr()
			if here && f.Translated() && f.ReplySource == fw.to {
				return true
			}
		}
		return false
	})
}

// eachUDP deletes the flows to the state's UDP ports that match selects, which
// is given the forwards of the flow's port.
func eachUDP(st *state, match func(at []forward, f conntrack.Flow) bool) error {
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
		_, err := conntrack.Delete(family, unix.IPPROTO_UDP, func(flow conntrack.Flow) bool {
			at := ports[flow.Destination.Port()]
			return len(at) > 0 && match(at, flow)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
