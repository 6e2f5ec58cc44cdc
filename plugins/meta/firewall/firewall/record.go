package firewall

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const recordDir = "/run/hawser/firewall"

// record says what an attachment was given. DEL and CHECK make the rules from it again.
type record struct {
	cni.Attachment

	Path    string       `json:"path"`  // CNI_NETNS
	Netns   ns.Identity  `json:"netns"` // of the container
	Backend backend      `json:"backend"`
	Variant ipt.Variant  `json:"variant,omitempty"` // of iptables
	Addrs   []netip.Addr `json:"addrs"`
	options              // with the bit that ADD chose, and the network's last policy

	// Ending is true after a DEL has begun, so that reapply restores nothing.
	Ending bool `json:"ending,omitempty"`

	// Pending is true if firewalld is not the backend, but may still have the addresses as sources of the zone.
	Pending bool `json:"pending,omitempty"`

	Bridge string `json:"bridge,omitempty"` // interface of the policy; empty: no bridge, or not looked for
	Port   int    `json:"port,omitempty"`   // index of the host end, a port of the bridge
	// SetFlag says that the port is isolated because of a policy of the network, and not by the bridge plugin.
	SetFlag bool `json:"setFlag,omitempty"`
	// Found are addresses whose rules of iptables were there before ADD: the reference's, for a container of its own.
	Found []netip.Addr `json:"found,omitempty"`
}

// UnmarshalJSON knows records without the bit, which earlier versions wrote.
func (r *record) UnmarshalJSON(data []byte) error {
	type plain record
	r.Bit = defaultBit
	return json.Unmarshal(data, (*plain)(r))
}

type store = statefile.Store[record]

// records are locked for a whole call. One that runs iptables waits for the xtables lock itself.
func records() statefile.Records[record] {
	return statefile.Records[record]{Path: recordDir, Wait: time.Minute}
}

// Plausible says whether an ADD can have written the record. Rules are made from it, and its file may be damaged.
func (r record) Plausible() bool {
	bad := func(a netip.Addr) bool { return !a.IsValid() || a.Zone() != "" || a.Is4In6() }
	return cni.ValidName(r.Network) && cni.ValidName(r.ContainerID) &&
		(cni.ValidIfName(r.Bridge) || r.Bridge == "" && r.Policy == policyOpen) &&
		slices.Contains([]backend{nftables, iptables, firewalld}, r.Backend) &&
		!slices.ContainsFunc(slices.Concat(r.Addrs, r.Found), bad) &&
		r.Bit >= 0 && r.Bit < 32 && ipt.IsChainName(r.AdminChain) && slices.Contains(policies(), r.Policy)
}

// restorable returns nil if rules may be restored from the record, which ok says is there: no DEL has begun, and the
// container has the same addresses. Else it returns the reason.
func (r *record) restorable(ok bool, req *skel.Request) error {
	same := slices.Equal(r.Addrs, addressesOf(req.PrevResult, req.IfName))
	switch {
	case !ok:
		return netplugin.ErrNoRecord
	case r.Ending:
		return netplugin.ErrEnding
	case !same:
		return netplugin.ErrStale
	}
	return nil
}

// list lists the addresses of each record, with the backend and the policy.
func list(context.Context, *skel.Request) ([]cni.Holding, error) {
	return netplugin.Holdings(records(), func(r record) []cni.Holding {
		var words []string
		for _, a := range r.Addrs {
			words = append(words, a.String())
		}
		words = append(words, string(r.Backend), "policy", string(r.Policy))
		if r.Bridge != "" {
			words = append(words, "dev", r.Bridge)
		}
		return netplugin.WithNetns(r.Path, r.Netns,
			cni.Holding{Attachment: r.Attachment, Kind: cni.HeldAccept, Value: strings.Join(words, " ")})
	})
}

// ownAddrs are the addresses that no other attachment on the same backend has, without those whose rules ADD found.
func (r *record) ownAddrs(s *store) ([]netip.Addr, error) {
	own := slices.DeleteFunc(slices.Clone(r.Addrs), func(a netip.Addr) bool { return slices.Contains(r.Found, a) })
	_, err := s.Any(func(o record) bool {
		if o.Hash() != r.Hash() && o.Backend == r.Backend {
			own = slices.DeleteFunc(own, func(a netip.Addr) bool { return slices.Contains(o.Addrs, a) })
		}
		return len(own) == 0
	})
	return own, err
}

// noteFound notes addresses whose rules were there before ADD, except those whose rules another attachment made.
func (c call) noteFound(r *record, there []netip.Addr) error {
	if len(there) == 0 || c.adding == nil {
		return nil
	}
	_, err := c.adding.Any(func(o record) bool {
		if o.Hash() != r.Hash() && o.Backend == r.Backend {
			there = slices.DeleteFunc(there, func(a netip.Addr) bool {
				return slices.Contains(o.Addrs, a) && !slices.Contains(o.Found, a)
			})
		}
		return len(there) == 0
	})
	if err != nil || len(there) == 0 {
		return err
	}
	r.Found = append(r.Found, there...)
	return c.adding.Put(*r)
}

// adopt has the last attachment that found the rules of the record's addresses remove them, since their maker is gone.
func (r *record) adopt(s *store) error {
	all, err := s.All()
	for _, o := range all {
		left := slices.DeleteFunc(slices.Clone(o.Found), func(a netip.Addr) bool { return slices.Contains(r.Addrs, a) })
		if o.Backend == r.Backend && len(left) < len(o.Found) {
			o.Found = left
			err = errors.Join(err, s.Put(*o))
		}
	}
	return err
}

// ofFamily selects the addresses of a family.
func ofFamily(f nft.Family, addrs []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return nft.FamilyOf(a) != f })
}

// families are those of the addresses.
func (r *record) families() []nft.Family {
	return slices.DeleteFunc(nft.Families(), func(f nft.Family) bool { return len(ofFamily(f, r.Addrs)) == 0 })
}

// isNeighbor says whether another record is about the same network and bridge.
func (r *record) isNeighbor(o record) bool {
	return o.Hash() != r.Hash() && o.Network == r.Network && o.Bridge == r.Bridge
}

// hasIsolated says whether another attachment of the network on the bridge is isolated.
func (r *record) hasIsolated(s *store) (bool, error) {
	return s.Any(func(o record) bool { return r.isNeighbor(o) && o.Policy == policyIsolated })
}

// isBeside says whether another record is about the same bridge, in the same tables.
func (r *record) isBeside(o record) bool {
	sameTables := (o.Backend == iptables) == (r.Backend == iptables)
	return o.Hash() != r.Hash() && r.Bridge != "" && o.Bridge == r.Bridge && sameTables
}

// bridgePolicy is the policy of the record's bridge: the strictest that a record wants.
func (r *record) bridgePolicy(s *store) (policy, error) {
	others, err := r.othersPolicy(s, policyIsolated)
	return stricter(r.Policy, others), err
}

// othersPolicy is the strictest policy that other records want of the bridge, at most limit. It stops reading at a
// record that wants limit or a stricter one.
func (r *record) othersPolicy(s *store, limit policy) (policy, error) {
	p := policyOpen
	if limit == policyOpen {
		return policyOpen, nil
	}
	reached, err := s.Any(func(o record) bool {
		if r.isBeside(o) {
			p = stricter(p, o.Policy)
		}
		return p == stricter(p, limit) // p is at least as strict
	})
	if reached {
		p = limit
	}
	return p, err
}

// policyFamilies are the families in whose iptables the attachment has rules, or its bridge a policy.
func (r *record) policyFamilies(s *store) ([]nft.Family, error) {
	if r.Bridge == "" {
		return r.families(), nil
	}
	all := record{Addrs: slices.Clone(r.Addrs)}
	_, err := s.Any(func(o record) bool {
		if r.isBeside(o) && stricter(r.Policy, o.Policy) != policyOpen {
			all.Addrs = append(all.Addrs, o.Addrs...)
		}
		return len(all.families()) == len(nft.Families())
	})
	return all.families(), err
}

// addressesOf are the addresses of the interface in a result, or all where the result gives it none.
func addressesOf(prev *cni.Result, ifName string) []netip.Addr {
	ips := prev.ContainerIPs(ifName)
	if len(ips) == 0 && prev != nil {
		ips = prev.IPs
	}
	var out []netip.Addr
	for _, ip := range ips {
		if a := ip.Address.Addr(); !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}
