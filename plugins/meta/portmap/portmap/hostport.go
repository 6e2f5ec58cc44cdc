package portmap

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// hostPort is a port of the host that is forwarded to a container, at one address or at all addresses of a family. A
// mapping without HostIP has one host port for each family.
type hostPort struct {
	Proto proto          `json:"proto"`
	Addr  netip.Addr     `json:"addr"` // unspecified = all addresses of the family
	Port  uint16         `json:"port"`
	To    netip.AddrPort `json:"to"`
}

func (p hostPort) String() string {
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(p.Addr, p.Port), p.Proto)
}

func (p hostPort) holding(a cni.Attachment) cni.Holding {
	return cni.Holding{Attachment: a, Kind: cni.HeldPort, Value: fmt.Sprintf("%s to %s", p, p.To)}
}

func unspecified(f nft.Family) netip.Addr {
	if f == nft.IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// conflicts reports whether two host ports conflict, by the rules of bind(2): the unspecified address conflicts with
// each address of the host, and different addresses do not conflict. An address that the host does not have conflicts
// only with itself. Otherwise a configuration with such an address would keep all other containers from the port.
func (p hostPort) conflicts(other hostPort, isLocal func(netip.Addr) bool) bool {
	if p.Proto != other.Proto || p.Port != other.Port || p.Addr.Is4() != other.Addr.Is4() {
		return false
	}
	return p.Addr == other.Addr || p.Addr.IsUnspecified() && isLocal(other.Addr) ||
		other.Addr.IsUnspecified() && isLocal(p.Addr)
}

// conflicts returns the wanted ports that conflict with a held port, and the held port of the first conflict.
func (c call) conflicts(wanted, held []hostPort) (taken []hostPort, by hostPort) {
	for _, w := range wanted {
		i := slices.IndexFunc(held, func(h hostPort) bool { return w.conflicts(h, c.isLocal) })
		if i < 0 {
			continue
		}
		if taken == nil {
			by = held[i]
		}
		taken = append(taken, w)
	}
	return taken, by
}

// hostPorts returns the record's host ports in the families of the container's addresses, without skipped ones.
func (r *record) hostPorts() (out []hostPort) {
	for _, a := range r.Addrs {
		out = append(out, r.portsTo(a)...)
	}
	return out
}

// portsTo returns the host ports that are forwarded to an address.
func (r *record) portsTo(a address) (out []hostPort) {
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

func (r *record) publishedAddrs() []address {
	return slices.DeleteFunc(slices.Clone(r.Addrs), func(a address) bool { return len(r.portsTo(a)) == 0 })
}

// trimLocalnet clears Localnet if there is no IPv4 host port, because only such ports need route_localnet.
func (r *record) trimLocalnet() {
	if !slices.ContainsFunc(r.hostPorts(), func(p hostPort) bool { return p.Addr.Is4() }) {
		r.Localnet = ""
	}
}
