package portmap

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// hostPort is a port of the host that is forwarded to a container, at one address or at all addresses of a family. A
// mapping without HostIP has one host port for each family.
type hostPort struct {
	Proto  proto          `json:"proto"`
	Addr   netip.Addr     `json:"addr"` // unspecified = all addresses of the family
	Port   uint16         `json:"port"`
	Target netip.AddrPort `json:"to"`
}

func (p hostPort) String() string {
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(p.Addr, p.Port), p.Proto)
}

func (p hostPort) holding(a cni.Attachment) cni.Holding {
	return cni.Holding{Attachment: a, Kind: cni.HeldPort, Value: fmt.Sprintf("%s to %s", p, p.Target)}
}

func unspecified(f nft.Family) netip.Addr {
	if f == nft.IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// isConflict reports whether two host ports conflict, by the rules of bind(2): the unspecified address conflicts with
// each address of the host, and different addresses do not conflict. An address that the host does not have conflicts
// only with itself, so that a configuration with such an address does not keep all other containers from the port.
func (p hostPort) isConflict(other hostPort, host *rtnl.Conn) bool {
	if p.Proto != other.Proto || p.Port != other.Port || p.Addr.Is4() != other.Addr.Is4() {
		return false
	}
	return p.Addr == other.Addr || p.Addr.IsUnspecified() && isLocal(host, other.Addr) ||
		other.Addr.IsUnspecified() && isLocal(host, p.Addr)
}

// at returns the port at another address, without its target.
func (p hostPort) at(addr netip.Addr) hostPort {
	return hostPort{Proto: p.Proto, Addr: addr, Port: p.Port}
}

// conflicts returns the wanted ports that conflict with a port of the owner, and the owner's port of the first one.
// Both lists can have thousands of ports, even with one number, so conflicts does not compare each pair.
func (c call) conflicts(wanted, ownerPorts []hostPort) (out []hostPort, first hostPort) {
	single := netip.Addr{} // the key of all ports of single addresses
	byAddr := map[hostPort][]hostPort{}
	for _, o := range ownerPorts {
		byAddr[o.at(o.Addr)] = append(byAddr[o.at(o.Addr)], o)
		if !o.Addr.IsUnspecified() {
			byAddr[o.at(single)] = append(byAddr[o.at(single)], o)
		}
	}
	for _, w := range wanted {
		others := single
		if !w.Addr.IsUnspecified() {
			others = unspecified(nft.FamilyOf(w.Addr))
		}
		for _, addr := range []netip.Addr{w.Addr, others} {
			same := byAddr[w.at(addr)]
			i := slices.IndexFunc(same, func(o hostPort) bool { return w.isConflict(o, c.Host) })
			if i < 0 {
				continue
			}
			if out == nil {
				first = same[i]
			}
			out = append(out, w)
			break
		}
	}
	return out, first
}

// hostPorts returns the record's host ports in the families of the container's addresses, except skipped ports.
func (r *record) hostPorts() (out []hostPort) {
	for _, a := range r.Addrs {
		out = append(out, r.addrPorts(a)...)
	}
	return out
}

// addrPorts returns the host ports that are forwarded to an address.
func (r *record) addrPorts(a address) (out []hostPort) {
	seen := map[hostPort]bool{}
	for _, p := range r.Skipped {
		seen[p] = true
	}
	for _, m := range r.Mappings {
		for _, addr := range m.hostAddrs() {
			p := hostPort{m.Proto, addr, m.HostPort, netip.AddrPortFrom(a.Addr.Addr(), m.ContainerPort)}
			if nft.FamilyOf(addr) == a.family() && !seen[p] {
				seen[p] = true
				out = append(out, p)
			}
		}
	}
	return out
}

// publishedAddrs returns the addresses to which host ports are forwarded.
func (r *record) publishedAddrs() []address {
	return slices.DeleteFunc(slices.Clone(r.Addrs), func(a address) bool { return len(r.addrPorts(a)) == 0 })
}

// trimLocalnet clears Localnet if there is no IPv4 host port, because only such ports need route_localnet.
func (r *record) trimLocalnet() {
	if !slices.ContainsFunc(r.hostPorts(), func(p hostPort) bool { return p.Addr.Is4() }) {
		r.Localnet = ""
	}
}
