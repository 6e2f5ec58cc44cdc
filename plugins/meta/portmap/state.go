package main

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// state is all that is known of an attachment with port mappings: what its
// rules are made from, and whether it is still alive. It is also its record,
// so that DEL, CHECK and GC know everything without being told.
type state struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`

	Life    life    `json:"life"`
	Backend backend `json:"backend"`
	Options options `json:"options"`

	Mappings []mapping `json:"mappings"`
	Targets  []target  `json:"targets"` // at most one of each family
	// Localnet is the link whose route_localnet the mappings need; empty = none.
	Localnet string `json:"localnet,omitempty"`
	// LocalnetWas is what route_localnet was before the link's first user. The
	// guard says it too, but rules are flushed by others.
	LocalnetWas string `json:"localnetWas,omitempty"`
	// Yielded are places that another attachment of the container has: runtimes
	// give a container's ports to each of its networks.
	Yielded []place `json:"yielded,omitempty"`
	// Heirs are the hashes of attachments that yielded places to this one.
	Heirs []string `json:"heirs,omitempty"`
	// Compiled identifies what nft made of the conditions of each family.
	Compiled map[string]string `json:"compiled,omitempty"`
}

// sane says whether an ADD can have written this record. Rules are made from
// it, and its file may have been damaged.
func (s *state) sane() bool {
	o := s.Options
	ok := cni.ValidName(s.Network) && cni.ValidName(s.ContainerID) && (s.Backend == nftables || s.Backend == iptables) && o.MarkBit >= 0 && o.MarkBit <= 31 &&
		(o.MarkChain == "" || isChainName(o.MarkChain)) && (s.Localnet == "" || cni.ValidIfName(s.Localnet))
	for _, tokens := range [][]string{o.ConditionsV4, o.ConditionsV6} {
		ok = ok && (len(tokens) == 0 || checkTokens("", tokens, syntaxOf(tokens)) == nil)
	}
	for _, m := range s.Mappings {
		_, known := protocols[m.Proto.String()]
		ok = ok && known && m.HostPort > 0 && m.Port > 0 && m.HostIP.Zone() == "" && !m.HostIP.Is4In6()
	}
	for _, t := range s.Targets {
		a := t.Addr.Addr()
		ok = ok && t.Addr.IsValid() && t.Near.IsValid() && a.Zone() == "" && !a.Is4In6() && t.Near.Addr().Is4() == a.Is4()
	}
	return ok
}

// target is a container's address.
type target struct {
	Addr netip.Prefix `json:"addr"` // with the length of its subnet
	// Near are the sources whose packets the container would answer past the
	// host: its subnet, or on a point to point link only itself.
	Near netip.Prefix `json:"near"`
}

func (t target) v4() bool { return t.Addr.Addr().Is4() }

func (s *state) attachment() cni.Attachment {
	return cni.Attachment{Network: s.Network, ContainerID: s.ContainerID, IfName: s.IfName}
}

// forward is what happens at one place of the host.
type forward struct {
	proto proto
	host  netip.Addr // unspecified: all addresses of the family
	port  uint16
	to    netip.AddrPort
}

// place is where the host is asked; of each there is one forward.
type place struct {
	Proto proto      `json:"proto"`
	Host  netip.Addr `json:"host"` // unspecified: all addresses of the family
	Port  uint16     `json:"port"`
}

func (f forward) place() place { return place{f.proto, f.host, f.port} }

func (f forward) v4() bool { return f.host.Is4() }

func (f forward) String() string {
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(f.host, f.port), f.proto)
}

// forwards are the places of the host that the mappings occupy: those of the
// families that the container has an address of, without those yielded.
func (s *state) forwards() []forward {
	var out []forward
	seen := map[forward]bool{}
	for _, t := range s.Targets {
		for _, m := range s.Mappings {
			for _, host := range m.hosts() {
				f := forward{m.Proto, host, m.HostPort, netip.AddrPortFrom(t.Addr.Addr(), m.Port)}
				if host.Is4() == t.v4() && !seen[f] && !slices.Contains(s.Yielded, f.place()) {
					seen[f] = true
					out = append(out, f)
				}
			}
		}
	}
	return out
}

// served are the addresses to which anything leads: all places of a family may
// have been yielded, or there are mappings of the other one alone.
func (s *state) served() []target {
	forwards := s.forwards()
	return slices.DeleteFunc(slices.Clone(s.Targets), func(t target) bool {
		return !slices.ContainsFunc(forwards, func(f forward) bool { return f.v4() == t.v4() })
	})
}

// unreachable are the mappings of a family that the container lacks. That
// runtimes send both 0.0.0.0 and :: is no reason to complain.
func (s *state) unreachable() []mapping {
	var out []mapping
	for _, m := range s.Mappings {
		served := !m.HostIP.IsValid() || m.HostIP.IsUnspecified()
		for _, t := range s.Targets {
			served = served || m.HostIP.Is4() == t.v4()
		}
		if !served {
			out = append(out, m)
		}
	}
	return out
}

// targets are the container's first addresses of each family. Near is the
// subnet until more is known of the link.
func targets(ips []cni.IP) []target {
	var out []target
	for _, v4 := range []bool{true, false} {
		for _, ip := range ips {
			if ip.Address.Addr().Is4() == v4 {
				out = append(out, target{Addr: ip.Address, Near: ip.Address.Masked()})
				break
			}
		}
	}
	return out
}

// groupOf is the beginning of the reference's hash of a container on a
// network. It has no room for the interface, so all of the container's
// interfaces on that network share a chain.
func groupOf(network, containerID string) string {
	return cni.Digest(network+containerID, 21)
}
