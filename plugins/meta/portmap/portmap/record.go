package portmap

import (
	"encoding/json"
	"errors"
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

// records returns the records of all attachments. A call that changes rules holds their lock. Other calls wait for the
// lock for up to a minute, because the holder may run iptables, which waits for the xtables lock.
func records() *statefile.Store[record] { return statefile.NewStore[record](recordDir, time.Minute) }

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
	// Skipped lists host ports that the container has on another network. Runtimes send each network the same ports.
	Skipped  []hostPort `json:"yielded,omitempty"`
	Localnet string     `json:"localnet,omitempty"` // link whose route_localnet the host ports need; empty = none
	// PriorLocalnet is the value of route_localnet before the link's first user. The guard also has it, but other
	// programs can flush the guard.
	PriorLocalnet string `json:"localnetWas,omitempty"`
}

// Plausible reports whether an ADD can have written the record. A file can be damaged, and rules are derived from it.
func (r record) Plausible() bool {
	return cni.ValidName(r.Network) && cni.ValidName(r.ContainerID) &&
		slices.Contains([]ipt.Backend{nftables, iptables}, r.Backend) && r.Options.check() == nil &&
		(r.Localnet == "" || cni.ValidIfName(r.Localnet)) &&
		!slices.ContainsFunc(r.Mappings, func(m mapping) bool {
			return m.Proto.String() == "" || m.HostPort == 0 || m.ContainerPort == 0 || !isCanonical(m.HostIP)
		}) &&
		!slices.ContainsFunc(r.Addrs, func(a address) bool {
			return !isCanonical(a.Addr.Addr()) || !a.MasqSources.IsValid() || !a.Addr.IsValid() ||
				a.MasqSources.Addr().Is4() != a.Addr.Addr().Is4()
		})
}

// isCanonical reports whether an address has the form that rules need.
func isCanonical(addr netip.Addr) bool { return addr.Zone() == "" && !addr.Is4In6() }

// checkRestorable returns an error with the reason if the rules may not be restored.
func (r *record) checkRestorable(exists bool, req *skel.Request) error {
	want := addressesOf(req.PrevResult.ContainerIPs(req.IfName))
	isSame := slices.EqualFunc(r.Addrs, want, func(a, b address) bool { return a.Addr == b.Addr })
	return netplugin.Restorable(exists, r.Ending, isSame)
}

// address is the container's address of one family.
type address struct {
	Addr netip.Prefix `json:"addr"` // with the length of its subnet
	// MasqSources is the prefix whose addresses the container reaches directly and not through the host. Packets from
	// them must be masqueraded, because the replies would bypass the translation. It is the subnet or, on a
	// point-to-point link, the container's own address. On iptables, it is always the subnet.
	MasqSources netip.Prefix `json:"near"`
}

func (a address) family() nft.Family { return nft.FamilyOf(a.Addr.Addr()) }

// addressesOf returns the first address of each family. MasqSources is the subnet until the link is known.
func addressesOf(ips []cni.IP) (out []address) {
	for _, f := range nft.Families() {
		i := slices.IndexFunc(ips, func(ip cni.IP) bool { return nft.FamilyOf(ip.Address.Addr()) == f })
		if i >= 0 {
			out = append(out, address{Addr: ips[i].Address, MasqSources: ips[i].Address.Masked()})
		}
	}
	return out
}

// sharesContainer reports whether two records belong to the same container on different networks. The namespace must
// also be the same, because runtimes can use a container ID twice.
func (r *record) sharesContainer(other *record) bool {
	return r.ContainerID == other.ContainerID && r.Network != other.Network && r.Location.Netns.Is(other.Location.Netns)
}

// location identifies an attachment's namespace and host end, which show whether it still owns its host ports.
type location struct {
	NetnsPath string      `json:"netnsPath"`
	Netns     ns.Identity `json:"netns"`
	Link      int         `json:"link,omitempty"` // index of the host end; 0 = none
	MAC       string      `json:"mac,omitempty"`  // of the host end
}

// UnmarshalJSON also reads the layout of earlier versions, in which the keys of the identity were next to the others.
func (l *location) UnmarshalJSON(data []byte) error {
	type fields location // without this method
	err := statefile.Decode(data, (*fields)(l))
	if l.Netns == (ns.Identity{}) && err == nil {
		err = json.Unmarshal(data, &struct {
			Cookie, Device, Inode *uint64
		}{&l.Netns.Cookie, &l.Netns.Device, &l.Netns.Inode})
	}
	return err
}

// ownerState is the state of an owner's location.
type ownerState int

const (
	ownerLive    ownerState = iota
	ownerLeaving            // the namespace no longer exists, and the kernel is about to remove the host end
	ownerStale
)

// state returns the state of the location:
//
//	namespace at the path  host end       state
//	the owner's            any            live
//	unknown                any            live
//	none                   none recorded  stale if the owner's namespace certainly no longer exists, otherwise live,
//	                                      because the path may be in another mount namespace
//	another one            none recorded  stale
//	none or another one    removed        stale
//	none or another one    exists         leaving
//
// The kernel removes a host end some time after the last process has left the namespace.
func (l location) state(host *rtnl.Conn) (ownerState, error) {
	netns, err := ns.Open(l.NetnsPath)
	if err == nil {
		id, err := netns.Identity()
		_ = netns.Close()
		if err != nil || id.Is(l.Netns) {
			return ownerLive, err
		}
	} else if !errors.Is(err, ns.ErrNotExist) && !errors.Is(err, ns.ErrNotNetns) {
		return ownerLive, nil
	} else if l.Link == 0 {
		if isGone, err := ns.Gone(); err != nil || !isGone(l.Netns) {
			return ownerLive, nil
		}
	}
	if l.Link == 0 {
		return ownerStale, nil
	}
	end, err := host.LinkByIndex(l.Link)
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return ownerStale, nil
	case err != nil:
		return ownerLive, err
	case end.MAC.String() != l.MAC: // another link has the index now
		return ownerStale, nil
	}
	return ownerLeaving, nil
}
