package portmap

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

const loopbackIndex = 1 // index of lo in every namespace; the kernel's routes to the host's own addresses use it

const flushPasses = 5 // maximum number of passes of flushAdded; a flow that is recreated after the last pass stays

// flushAdded deletes the UDP flows to the records' host ports that are older than the rules, so that their next packet
// is translated. It deletes only flows to the host itself.
func flushAdded(host *rtnl.Conn, records ...*record) error {
	isHostAddr := map[netip.Addr]bool{}
	isStale := staleFlows(func(addr netip.Addr) bool {
		if _, hasResult := isHostAddr[addr]; !hasResult {
			isHostAddr[addr] = isLocal(host, addr)
		}
		return isHostAddr[addr]
	})
	for range flushPasses {
		if n, err := deleteUDP(records, isStale); err != nil || n == 0 {
			return err
		}
	}
	return nil
}

// staleFlows returns a function that selects the flows that are older than the rules. A reply of the host that is in
// flight can recreate a deleted flow in the opposite direction. A later pass selects the recreated flow.
func staleFlows(isLocal func(netip.Addr) bool) func(ports []hostPort, f nft.Flow) bool {
	deleted := map[[2]netip.AddrPort]bool{} // by source and destination
	return func(ports []hostPort, f nft.Flow) bool {
		if f.Translated() {
			return false
		}
		if deleted[[2]netip.AddrPort{f.Destination, f.Source}] {
			return true
		}
		isStale := len(ports) > 0 && isLocal(f.Destination.Addr())
		if isStale {
			deleted[[2]netip.AddrPort{f.Source, f.Destination}] = true
		}
		return isStale
	}
}

// flushRemoved deletes the UDP flows that the rules translated to the container.
func (c call) flushRemoved(r *record) error {
	_, err := deleteUDP([]*record{r}, func(ports []hostPort, f nft.Flow) bool {
		return f.Translated() && slices.ContainsFunc(ports, func(p hostPort) bool { return p.Target == f.ReplySource })
	})
	return err
}

// deleteUDP deletes the UDP flows for which matches returns true, and returns their number. ports are the host ports at
// the flow's destination. Without UDP host ports, deleteUDP reads no flows.
func deleteUDP(records []*record, matches func(ports []hostPort, f nft.Flow) bool) (count int, err error) {
	for _, family := range nft.Families() {
		portsAt := udpPorts(family, records)
		if portsAt == nil {
			continue
		}
		n, err := nft.DeleteFlows(family, unix.IPPROTO_UDP, func(f nft.Flow) bool {
			return matches(portsAt(f.Destination), f)
		})
		count += n
		if err != nil {
			return count, err
		}
	}
	return count, nil
}

// udpPorts returns a function that returns the UDP host ports of a family at a destination. The function uses a map,
// because there can be thousands of addresses with the same port number, and thousands of flows to that number. The
// function is nil if there are no such ports.
func udpPorts(family nft.Family, records []*record) func(netip.AddrPort) []hostPort {
	byAddr := map[netip.AddrPort][]hostPort{}
	for _, r := range records {
		for _, p := range r.hostPorts() {
			if p.Proto == unix.IPPROTO_UDP && nft.FamilyOf(p.Addr) == family {
				addr := netip.AddrPortFrom(p.Addr, p.Port)
				byAddr[addr] = append(byAddr[addr], p)
			}
		}
	}
	if len(byAddr) == 0 {
		return nil
	}
	return func(at netip.AddrPort) []hostPort {
		return append(byAddr[at], byAddr[netip.AddrPortFrom(unspecified(family), at.Port())]...)
	}
}
