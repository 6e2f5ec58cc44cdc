package main

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const (
	recordDir = "/run/hawser/portmap"
	// lockWait is how long others may take. One that runs iptables waits for the xtables lock itself.
	lockWait = time.Minute
)

// record says what an attachment was given. DEL, CHECK and GC make the rules from it again.
type record struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`

	Home    home    `json:"owner"`
	Backend backend `json:"backend"`
	Options options `json:"options"`

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

type store = statefile.Store[record]

// openStore locks the host ports of the host: nobody else changes them until Close.
func openStore(ctx context.Context) (*store, error) {
	return statefile.OpenStore[record](ctx, recordDir, lockWait)
}

func openExistingStore(ctx context.Context) (*store, error) {
	return statefile.OpenExistingStore[record](ctx, recordDir, lockWait)
}

// recordOf reads the record with the hash; nil when there is none. One that no ADD can have written counts as none.
func recordOf(s *store, hash string) (*record, error) {
	r, ok, err := s.Get(hash)
	if err != nil || !ok || !r.sane() || r.attachment().Hash() != hash {
		return nil, err
	}
	return &r, nil
}

// records reads all records, in the order of their hashes.
func records(s *store) ([]*record, error) {
	all, err := s.All()
	var out []*record
	for hash, r := range all {
		if r.sane() && r.attachment().Hash() == hash {
			out = append(out, &r)
		}
	}
	slices.SortFunc(out, func(a, b *record) int { return cmp.Compare(a.hash(), b.hash()) })
	return out, err
}

// siblings are the records of the container's other attachments to the network that are on iptables:
// they share its chain.
func siblings(s *store, r *record) ([]*record, error) {
	all, err := records(s)
	return slices.DeleteFunc(all, func(o *record) bool {
		return o.Backend != iptables || o.Network != r.Network || o.ContainerID != r.ContainerID || o.IfName == r.IfName
	}), err
}

// sane says whether an ADD can have written the record. Rules are made from it, and its file may be damaged.
func (r *record) sane() bool {
	o := r.Options
	ok := cni.ValidName(r.Network) && cni.ValidName(r.ContainerID) &&
		(r.Backend == nftables || r.Backend == iptables) &&
		o.MarkBit >= 0 && o.MarkBit <= 31 && (o.MarkChain == "" || isChainName(o.MarkChain)) &&
		(r.Localnet == "" || cni.ValidIfName(r.Localnet))
	for _, tokens := range [][]string{o.ConditionsV4, o.ConditionsV6} {
		ok = ok && (len(tokens) == 0 || checkTokens("", tokens, syntaxOf(tokens)) == nil)
	}
	for _, m := range r.Mappings {
		_, known := protocolOf(m.Proto.String())
		ok = ok && known && m.HostPort > 0 && m.ContainerPort > 0 && m.HostIP.Zone() == "" && !m.HostIP.Is4In6()
	}
	for _, a := range r.Addrs {
		addr := a.Addr.Addr()
		ok = ok && a.Addr.IsValid() && a.Near.IsValid() && addr.Zone() == "" && !addr.Is4In6() &&
			a.Near.Addr().Is4() == addr.Is4()
	}
	return ok
}

func (r *record) attachment() cni.Attachment {
	return cni.Attachment{Network: r.Network, ContainerID: r.ContainerID, IfName: r.IfName}
}

func (r *record) hash() string { return r.attachment().Hash() }

// sharesContainer says whether both are attachments of one container to different networks. A container
// ID alone does not say so.
func (r *record) sharesContainer(other *record) bool {
	return r.ContainerID == other.ContainerID && r.Network != other.Network && r.Home.Is(other.Home.Identity)
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

// home is where an attachment lives: its namespace, and the host end of its interface. An owner whose home
// is gone has its host ports no more.
type home struct {
	Netns string `json:"netns"` // the path
	ns.Identity

	Link int    `json:"link,omitempty"` // index of the host end; 0: there is none
	MAC  string `json:"mac,omitempty"`
}

// homeOf describes the home of the attachment that has this interface in this namespace.
func homeOf(host *rtnl.Conn, netns *ns.NS, ifName string) (home, error) {
	id, err := netns.Identity()
	if err != nil {
		return home{}, err
	}
	h := home{Netns: netns.Path(), Identity: id}
	cont, err := rtnl.Dial(netns)
	if err != nil {
		return h, err
	}
	defer cont.Close()
	inside, err := cont.Link(ifName)
	if errors.Is(err, rtnl.ErrNoLink) {
		return h, nil
	}
	if err != nil || inside.Kind != "veth" || inside.Peer == 0 {
		return h, err
	}
	end, err := host.LinkByIndex(inside.Peer)
	if errors.Is(err, rtnl.ErrNoLink) {
		return h, nil
	}
	// The index may be another namespace's.
	if err == nil && end.Kind == "veth" && end.Peer == inside.Index {
		h.Link, h.MAC = end.Index, end.MAC.String()
	}
	return h, err
}

// gone says whether the path no longer leads to the namespace, and the host end does not exist either. In
// doubt it is there: the path may be invisible from here. Of an interface without a host end the home is gone
// when another namespace is at the path.
func (h home) gone(host *rtnl.Conn) (bool, error) {
	netns, err := ns.Open(h.Netns)
	switch {
	case err == nil:
		id, err := netns.Identity()
		_ = netns.Close()
		if err != nil || id.Is(h.Identity) {
			return false, err
		}
		if h.Link == 0 {
			return true, nil // another namespace is at the path
		}
	case !errors.Is(err, ns.ErrNotExist) && !errors.Is(err, ns.ErrNotNetns), h.Link == 0:
		return false, nil
	}
	end, err := host.LinkByIndex(h.Link)
	if errors.Is(err, rtnl.ErrNoLink) {
		return true, nil
	}
	return err == nil && end.MAC.String() != h.MAC, err
}
