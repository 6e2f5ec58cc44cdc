package portmap

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const recordDir = "/run/hawser/portmap"

type store = statefile.Store[record]

// records are locked for a whole call. One that runs iptables waits for the xtables lock itself.
func records() *statefile.Store[record] {
	return statefile.NewStore[record](recordDir, time.Minute)
}

// record says what an attachment was given. DEL, CHECK and GC make the rules from it again.
type record struct {
	cni.Attachment

	Location location    `json:"owner"`
	Backend  ipt.Backend `json:"backend"`
	Options  options     `json:"options"`

	Mappings []mapping `json:"mappings"`
	Addrs    []address `json:"addrs"` // at most one of each family
	// Ending is true after a DEL has begun, so that reapply restores nothing, and others may claim the ports.
	Ending bool `json:"ending,omitempty"`
	// Skipped are host ports of another attachment of the container: runtimes send its ports to each of its networks.
	Skipped []hostPort `json:"yielded,omitempty"`

	// Localnet is the link whose route_localnet the host ports need; empty = none.
	Localnet string `json:"localnet,omitempty"`
	// LocalnetWas is the value of route_localnet before the first user. Others may flush the guard, which has it too.
	LocalnetWas string `json:"localnetWas,omitempty"`
}

// Plausible says whether an ADD can have written the record: its file may be damaged, and rules are made from it.
func (r record) Plausible() bool {
	return cni.ValidName(r.Network) && cni.ValidName(r.ContainerID) &&
		slices.Contains([]ipt.Backend{nftables, iptables}, r.Backend) && r.Options.check() == nil &&
		(r.Localnet == "" || cni.ValidIfName(r.Localnet)) &&
		!slices.ContainsFunc(r.Mappings, func(m mapping) bool {
			return m.Proto.String() == "" || m.HostPort == 0 || m.ContainerPort == 0 || !isPlain(m.HostIP)
		}) &&
		!slices.ContainsFunc(r.Addrs, func(a address) bool {
			return !isPlain(a.Addr.Addr()) || !a.MasqueradeFrom.IsValid() || !a.Addr.IsValid() ||
				a.MasqueradeFrom.Addr().Is4() != a.Addr.Addr().Is4()
		})
}

// isPlain says whether an address is written as rules have it.
func isPlain(addr netip.Addr) bool { return addr.Zone() == "" && !addr.Is4In6() }

// restorable returns nil if the rules of the record may be restored, otherwise the reason. found reports whether the
// record exists.
func (r *record) restorable(found bool, req *skel.Request) error {
	want := addressesOf(req.PrevResult.ContainerIPs(req.IfName))
	isSame := slices.EqualFunc(r.Addrs, want, func(a, b address) bool { return a.Addr == b.Addr })
	return netplugin.Restorable(found, r.Ending, isSame)
}

// address is the container's address of one family.
type address struct {
	Addr netip.Prefix `json:"addr"` // with the length of its subnet
	// MasqueradeFrom is the prefix whose hosts the container reaches directly, without the host. Their packets must
	// be masqueraded, or the replies bypass the translation. It is the subnet, or on a point to point link the
	// container itself. On iptables the subnet is masqueraded always.
	MasqueradeFrom netip.Prefix `json:"near"`
}

func (a address) family() nft.Family { return nft.FamilyOf(a.Addr.Addr()) }

// addressesOf are the first addresses of each family. MasqueradeFrom is the subnet until the link is known.
func addressesOf(ips []cni.IP) (out []address) {
	for _, f := range nft.Families() {
		i := slices.IndexFunc(ips, func(ip cni.IP) bool { return nft.FamilyOf(ip.Address.Addr()) == f })
		if i >= 0 {
			out = append(out, address{Addr: ips[i].Address, MasqueradeFrom: ips[i].Address.Masked()})
		}
	}
	return out
}

// hostPort is a port at one address of the host, or at all of a family: a mapping without HostIP makes one for each.
type hostPort struct {
	Proto proto          `json:"proto"`
	Addr  netip.Addr     `json:"addr"` // unspecified: all addresses of the family
	Port  uint16         `json:"port"`
	To    netip.AddrPort `json:"to"`
}

func (p hostPort) String() string {
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(p.Addr, p.Port), p.Proto)
}

func (p hostPort) holding(a cni.Attachment) cni.Holding {
	return cni.Holding{Attachment: a, Kind: cni.HeldPort, Value: fmt.Sprintf("%s to %s", p, p.To)}
}

// allOf stands for all addresses of a family.
func allOf(f nft.Family) netip.Addr {
	if f == nft.IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// conflicts reports whether two host ports conflict, by the rules of bind(2): the unspecified address conflicts with
// each address of the host, and different addresses do not conflict. An address that the host does not have conflicts
// with itself only, because otherwise a configuration that names it would keep all other containers from the port.
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

// hostPorts are those of the families that the container has an address of, without those skipped.
func (r *record) hostPorts() (out []hostPort) {
	for _, a := range r.Addrs {
		out = append(out, r.portsTo(a)...)
	}
	return out
}

// portsTo are the host ports that lead to an address.
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

// publishedAddrs are the container's addresses to which a host port leads.
func (r *record) publishedAddrs() []address {
	return slices.DeleteFunc(slices.Clone(r.Addrs), func(a address) bool { return len(r.portsTo(a)) == 0 })
}

// trimLocalnet forgets the link where no host port leads to an IPv4 address: only such ports need route_localnet.
func (r *record) trimLocalnet() {
	if !slices.ContainsFunc(r.hostPorts(), func(p hostPort) bool { return p.Addr.Is4() }) {
		r.Localnet = ""
	}
}

// sharesContainer says whether both are one container's on different networks. The container ID alone does not say so.
func (r *record) sharesContainer(other *record) bool {
	return r.ContainerID == other.ContainerID && r.Network != other.Network && r.Location.Is(other.Location.Identity)
}

// location is the attachment's namespace, and its host end. An owner whose location is gone has no host ports any more.
type location struct {
	Netns string `json:"netns"` // the path
	ns.Identity

	Link int    `json:"link,omitempty"` // index of the host end; 0: there is none
	MAC  string `json:"mac,omitempty"`  // of the host end
}

// state is what an owner is to those who want its host ports.
type state int

const (
	present state = iota
	leaving       // the kernel is about to remove its link
	gone
)

// state is gone when the path no longer leads to the namespace and the host end does not exist either. In doubt the
// owner is present: the path may be invisible from here. An interface without a host end is gone when
// another namespace is at the path. The kernel removes host ends a while after the last process left the namespace.
func (l location) state(host *rtnl.Conn) (state, error) {
	netns, err := ns.Open(l.Netns)
	if err == nil {
		id, err := netns.Identity()
		_ = netns.Close()
		if err != nil || id.Is(l.Identity) {
			return present, err
		}
		if l.Link == 0 {
			return gone, nil
		}
	} else if isMissing := errors.Is(err, ns.ErrNotExist) || errors.Is(err, ns.ErrNotNetns); !isMissing || l.Link == 0 {
		return present, nil
	}
	end, err := host.LinkByIndex(l.Link)
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return gone, nil
	case err != nil:
		return present, err
	case end.MAC.String() != l.MAC: // the index is another link's by now
		return gone, nil
	}
	return leaving, nil
}
