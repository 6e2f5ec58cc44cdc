package portmap

import (
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const recordDir = "/run/hawser/portmap"

type store = statefile.Store[record]

// records returns the records of all attachments. A call holds their lock until it ends. Other calls wait for the lock
// for up to a minute, because the holder may run iptables, which waits for the xtables lock.
func records() *statefile.Store[record] {
	return statefile.NewStore[record](recordDir, time.Minute)
}

// record describes the rules of an attachment. DEL, CHECK and GC derive the rules from it.
type record struct {
	cni.Attachment

	Location location    `json:"owner"`
	Backend  ipt.Backend `json:"backend"`
	Options  options     `json:"options"`

	Mappings []mapping `json:"mappings"`
	Addrs    []address `json:"addrs"` // at most one per family
	// Ending is true once a DEL has begun, so that reapply restores nothing, and other attachments can claim the ports.
	Ending bool `json:"ending,omitempty"`
	// Skipped lists host ports that another attachment of the container has, because runtimes send a container's ports
	// for each of its networks.
	Skipped []hostPort `json:"yielded,omitempty"`

	// Localnet is the link whose route_localnet the host ports need; empty = none.
	Localnet string `json:"localnet,omitempty"`
	// LocalnetWas is the value of route_localnet before the link's first user. The guard has it too, but other programs
	// can flush the guard.
	LocalnetWas string `json:"localnetWas,omitempty"`
}

// Plausible reports whether an ADD can have written the record. A file can be damaged, and rules are derived from it.
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

// isPlain reports whether an address has the form that rules need.
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
	// MasqueradeFrom is the prefix whose addresses the container reaches directly and not through the host. Packets
	// from them must be masqueraded, because the replies would bypass the translation. It is the subnet or, on a
	// point-to-point link, the container's own address. On iptables, it is always the subnet.
	MasqueradeFrom netip.Prefix `json:"near"`
}

func (a address) family() nft.Family { return nft.FamilyOf(a.Addr.Addr()) }

// addressesOf returns the first address of each family. MasqueradeFrom is the subnet until the link is known.
func addressesOf(ips []cni.IP) (out []address) {
	for _, f := range nft.Families() {
		i := slices.IndexFunc(ips, func(ip cni.IP) bool { return nft.FamilyOf(ip.Address.Addr()) == f })
		if i >= 0 {
			out = append(out, address{Addr: ips[i].Address, MasqueradeFrom: ips[i].Address.Masked()})
		}
	}
	return out
}

// sharesContainer reports whether two records belong to the same container on different networks. The namespace must
// also be the same, because runtimes can use a container ID twice.
func (r *record) sharesContainer(other *record) bool {
	return r.ContainerID == other.ContainerID && r.Network != other.Network && r.Location.Netns.Is(other.Location.Netns)
}
