package portmap

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// loopbackIndex is lo's, in every namespace. The kernel names it as the way to the host's own addresses.
const loopbackIndex = 1

// flushPasses bounds how often flushAdded looks again.
const flushPasses = 5

// flushAdded deletes the UDP flows to the host itself that are older than the rules, so that their next packet takes
// the new way. Nobody else's flows are touched.
func flushAdded(host *rtnl.Conn, records ...*record) error {
	isLocal := map[netip.Addr]bool{}
	isOutdated := outdated(func(addr netip.Addr) bool {
		if _, known := isLocal[addr]; !known {
			index, err := host.RouteTo(addr)
			isLocal[addr] = err == nil && index == loopbackIndex
		}
		return isLocal[addr]
	})
	for range flushPasses {
		if n, err := deleteUDP(records, isOutdated); err != nil || n == 0 {
			return err
		}
	}
	return nil
}

// outdated selects the flows that are older than the rules. A reply of the host that is in flight can recreate a
// deleted flow with its directions swapped. The passes catch those; a later one is not detected.
func outdated(isLocal func(netip.Addr) bool) func(at []hostPort, f nft.Flow) bool {
	deleted := map[[2]netip.AddrPort]bool{} // by source and destination
	return func(at []hostPort, f nft.Flow) bool {
		if f.Translated() {
			return false
		}
		if deleted[[2]netip.AddrPort{f.Destination, f.Source}] {
			return true
		}
		isOld := len(at) > 0 && isLocal(f.Destination.Addr())
		if isOld {
			deleted[[2]netip.AddrPort{f.Source, f.Destination}] = true
		}
		return isOld
	}
}

// flushRemoved deletes the UDP flows that the rules led to the container.
func (c call) flushRemoved(r *record) error {
	_, err := deleteUDP([]*record{r}, func(at []hostPort, f nft.Flow) bool {
		return f.Translated() && slices.ContainsFunc(at, func(p hostPort) bool { return p.To == f.ReplySource })
	})
	return err
}

// deleteUDP deletes the UDP flows that match selects, and says how many. match is given a flow and those of the
// host ports to which it is addressed. Without UDP host ports no flow is read.
func deleteUDP(records []*record, match func(at []hostPort, f nft.Flow) bool) (deleted int, err error) {
	for _, family := range nft.Families() {
		ports := map[uint16][]hostPort{}
		for _, r := range records {
			for _, p := range r.hostPorts() {
				if p.Proto == unix.IPPROTO_UDP && nft.FamilyOf(p.Addr) == family {
					ports[p.Port] = append(ports[p.Port], p)
				}
			}
		}
		if len(ports) == 0 {
			continue
		}
		n, err := nft.DeleteFlows(family, unix.IPPROTO_UDP, func(f nft.Flow) bool {
			var at []hostPort
			for _, p := range ports[f.Destination.Port()] {
				if p.Addr.IsUnspecified() || p.Addr == f.Destination.Addr() {
					at = append(at, p)
				}
			}
			return match(at, f)
		})
		deleted += n
		if err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}
