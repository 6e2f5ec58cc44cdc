package main

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
)

// record says what an attachment was given. DEL, CHECK and GC make the rules from it again.
type record struct {
	cni.Attachment

	Home    home        `json:"owner"`
	Backend ipt.Backend `json:"backend"`
	Options options     `json:"options"`

	Mappings []mapping `json:"mappings"`
	Addrs    []address `json:"addrs"` // at most one of each family
	// Yielded are host ports that another attachment of the container has: runtimes send a container's
	// ports to each of its networks.
	Yielded []hostPort `json:"yielded,omitempty"`

	// Localnet is the link whose route_localnet the host ports need; empty = none.
	Localnet string `json:"localnet,omitempty"`
	// LocalnetWas is the value of route_localnet before the link's first user. The guard says it too, but
	// others may flush it.
	LocalnetWas string `json:"localnetWas,omitempty"`
}

// address is the container's address of one family.
type address struct {
	Addr netip.Prefix `json:"addr"` // with the length of its subnet
	// Near are the sources that the container would answer past the host: its subnet, or on a point to
	// point link the container itself. With nftables they are masqueraded; with iptables always the subnet is.
	Near netip.Prefix `json:"near"`
}

func (a address) v4() bool { return a.Addr.Addr().Is4() }

// addressesOf are the first addresses of each family. Near is the subnet until the link is known.
func addressesOf(ips []cni.IP) []address {
	var out []address
	for _, v4 := range []bool{true, false} {
		i := slices.IndexFunc(ips, func(ip cni.IP) bool { return ip.Address.Addr().Is4() == v4 })
		if i >= 0 {
			out = append(out, address{Addr: ips[i].Address, Near: ips[i].Address.Masked()})
		}
	}
	return out
}

// hostPort is a port of the host at one address, or at all of one family, and where it leads. A mapping
// without a HostIP makes one for each family.
type hostPort struct {
	Proto proto          `json:"proto"`
	Addr  netip.Addr     `json:"addr"` // unspecified: all addresses of the family
	Port  uint16         `json:"port"`
	To    netip.AddrPort `json:"to"`
}

func (p hostPort) String() string {
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(p.Addr, p.Port), p.Proto)
}

// conflicts compares by the rules of bind(2): all addresses of a family conflict with each of them,
// different addresses do not.
func (p hostPort) conflicts(other hostPort) bool {
	return p.Proto == other.Proto && p.Port == other.Port && p.Addr.Is4() == other.Addr.Is4() &&
		(p.Addr == other.Addr || p.Addr.IsUnspecified() || other.Addr.IsUnspecified())
}

func (m mapping) hostAddrs() []netip.Addr {
	if m.HostIP.IsValid() {
		return []netip.Addr{m.HostIP}
	}
	return []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
}

func (m mapping) name() string { return fmt.Sprintf("%d/%s", m.HostPort, m.Proto) }

func addrName(addr netip.Addr) string {
	if addr.IsUnspecified() {
		return addr.String() + " (all addresses)"
	}
	return addr.String()
}

// hostPorts are those of the families that the container has an address of, without those yielded.
func (r *record) hostPorts() []hostPort {
	var out []hostPort
	seen := map[hostPort]bool{}
	for _, p := range r.Yielded {
		seen[p] = true
	}
	for _, a := range r.Addrs {
		for _, m := range r.Mappings {
			for _, addr := range m.hostAddrs() {
				p := hostPort{m.Proto, addr, m.HostPort, netip.AddrPortFrom(a.Addr.Addr(), m.ContainerPort)}
				if addr.Is4() == a.v4() && !seen[p] {
					seen[p] = true
					out = append(out, p)
				}
			}
		}
	}
	return out
}

// served are the container's addresses to which a host port leads.
func (r *record) served() []address {
	ports := r.hostPorts()
	return slices.DeleteFunc(slices.Clone(r.Addrs), func(a address) bool {
		return !slices.ContainsFunc(ports, func(p hostPort) bool { return p.To.Addr() == a.Addr.Addr() })
	})
}

// unreachable are the mappings of a family that the container has no address of. That runtimes send both
// 0.0.0.0 and :: is no reason to complain.
func (r *record) unreachable() []mapping {
	return slices.DeleteFunc(slices.Clone(r.Mappings), func(m mapping) bool {
		return !m.HostIP.IsValid() || m.HostIP.IsUnspecified() ||
			slices.ContainsFunc(r.Addrs, func(a address) bool { return a.v4() == m.HostIP.Is4() })
	})
}

// trimLocalnet forgets the link where no host port leads to an IPv4 address: only such ports need route_localnet.
func (r *record) trimLocalnet() {
	if !slices.ContainsFunc(r.served(), address.v4) {
		r.Localnet = ""
	}
}

// holder has host ports that an attachment wants.
type holder struct {
	wanted []hostPort
	owner  *record // nil: there is no record
	name   string  // for people
	gone   bool    // what it has may be taken
	// remove removes rules of the reference's that are left of a container that is gone.
	remove func() error
}

// yieldOrReplace decides about those who have wanted host ports. The attachment replaces those who are gone. To
// other attachments of its container it leaves their ports, and the record notes them as yielded. Anybody else
// makes ADD fail before it changes anything.
func (r *record) yieldOrReplace(holders []holder) (replaced, left []holder, err error) {
	for _, h := range holders {
		h.wanted = slices.DeleteFunc(h.wanted, func(p hostPort) bool { return slices.Contains(r.Yielded, p) })
		switch {
		case len(h.wanted) == 0:
		case h.gone:
			replaced = append(replaced, h)
		case h.owner != nil && h.owner.sharesContainer(r):
			left = append(left, h)
			r.Yielded = append(r.Yielded, h.wanted...)
		default:
			return nil, nil, portTaken(h.wanted[0], h.name)
		}
	}
	r.trimLocalnet()
	return replaced, left, nil
}

// portTaken is the error of a host port that somebody else has.
func portTaken(wanted hostPort, holder string) error {
	return cni.Errorf(cni.CodePortTaken, "host port %s: held %s", wanted, holder)
}

// sharesContainer says whether both are attachments of one container to different networks. A container
// ID alone does not say so.
func (r *record) sharesContainer(other *record) bool {
	return r.ContainerID == other.ContainerID && r.Network != other.Network && r.Home.Is(other.Home.Identity)
}
