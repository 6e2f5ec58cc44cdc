package main

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const (
	recordDir = "/run/hawser/firewall"
	// lockWait is how long others may take. One that runs iptables waits for the xtables lock itself.
	lockWait = time.Minute
)

// record says what an attachment was given. DEL and CHECK make the rules from it again.
type record struct {
	cni.Attachment

	Path       string       `json:"path"`  // CNI_NETNS
	Netns      ns.Identity  `json:"netns"` // of the container
	Backend    backend      `json:"backend"`
	Variant    ipt.Variant  `json:"variant,omitempty"` // of iptables
	Addrs      []netip.Addr `json:"addrs"`
	AdminChain string       `json:"adminChain"`
	Zone       string       `json:"zone"`
	Published  bool         `json:"published"`
	Bit        *int         `json:"markAcceptBit"` // nil: of before there was a choice

	Policy policy `json:"policy"`
	Bridge string `json:"bridge,omitempty"` // the interface that the policy is about; empty where it was not looked for
	Port   int    `json:"port,omitempty"`   // index of the host end, a port of the bridge
	// SetFlag says that the port is isolated because of the policy, and not by the bridge plugin.
	SetFlag bool `json:"setFlag,omitempty"`
}

// bit is the bit of the fwmark.
func (r *record) bit() int {
	if r.Bit == nil {
		return defaultBit
	}
	return *r.Bit
}

// isBit says whether the fwmark has such a bit.
func isBit(n int) bool { return n >= 0 && n < 32 }

type store = statefile.Store[record]

func records() statefile.Records[record] {
	return statefile.Records[record]{Path: recordDir, Wait: lockWait}
}

// openStore locks the records: no other call of the plugin changes rules until Close.
func openStore(ctx context.Context) (*store, error) {
	return records().Open(ctx)
}

func openExistingStore(ctx context.Context) (*store, error) {
	return records().OpenExisting(ctx)
}

// Valid says whether an ADD can have written the record. Rules are made from it, and its file may be damaged.
func (r record) Valid() bool {
	bad := func(a netip.Addr) bool { return !a.IsValid() || a.Zone() != "" || a.Is4In6() }
	return cni.ValidName(r.Network) && cni.ValidName(r.ContainerID) &&
		slices.Contains([]backend{nftables, iptables, firewalld}, r.Backend) && !slices.ContainsFunc(r.Addrs, bad) &&
		isBit(r.bit()) && ipt.IsChainName(r.AdminChain) && slices.Contains(policies(), r.Policy) &&
		(r.Bridge == "" && r.Policy == open || cni.ValidIfName(r.Bridge))
}

// othersHave says whether another attachment on the same backend has the address.
func (r *record) othersHave(s *store, a netip.Addr) (bool, error) {
	return s.Any(func(o record) bool {
		return o.Hash() != r.Hash() && o.Backend == r.Backend && slices.Contains(o.Addrs, a)
	})
}

// ignoreOtherVariant returns nil for a missing program of a variant that ADD did not use: the rules there are
// others'.
func (r *record) ignoreOtherVariant(err error) error {
	if r.Variant == ipt.NFT && ipt.NotInstalled(err) {
		return nil
	}
	return err
}

// families are those of the addresses.
func (r *record) families() []nft.Family {
	return slices.DeleteFunc(nft.Families(), func(f nft.Family) bool { return len(r.of(f)) == 0 })
}

// of are the addresses of a family.
func (r *record) of(f nft.Family) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(r.Addrs), func(a netip.Addr) bool { return nft.FamilyOf(a) != f })
}

// otherPolicy is the policy that the network's other attachments have which are on the bridge, or of which ADD did
// not look for the bridge; the record's own where there are none. While align changes them they may differ: the
// first record is changed last, so it has the old policy.
func (r *record) otherPolicy(s *store) (policy, error) {
	p := r.Policy
	_, err := s.Any(func(o record) bool {
		if o.Network != r.Network || o.Bridge != r.Bridge && o.Bridge != "" || o.Hash() == r.Hash() {
			return false
		}
		p = o.Policy
		return true
	})
	return p, err
}

// left is the policy that the record's bridge has without it, in its backend: its own where others want that too.
func (r *record) left(s *store) (policy, error) {
	p := open
	if r.Policy == open {
		return p, nil
	}
	_, err := s.Any(func(o record) bool {
		if o.Hash() != r.Hash() && o.Bridge == r.Bridge && (o.Backend == iptables) == (r.Backend == iptables) {
			p = stricter(p, o.Policy)
		}
		return p == stricter(p, r.Policy)
	})
	if p == stricter(p, r.Policy) {
		p = r.Policy
	}
	return p, err
}

// addressesOf are the addresses of the container's interface in a result. A result that says of none that it is
// the interface's is about it as a whole.
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
