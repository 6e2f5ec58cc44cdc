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

type call struct {
	*netplugin.Call
	addStore *store // the locked records during ADD; nil in other verbs
}

func newCall(req *skel.Request) call { return call{Call: netplugin.OpenHost(req)} }

const recordDir = "/run/hawser/firewall"

// record describes the rules of an attachment. DEL and CHECK derive the rules from it.
type record struct {
	cni.Attachment

	NetnsPath string       `json:"netnsPath"` // CNI_NETNS
	Netns     ns.Identity  `json:"netns"`     // of the container
	Backend   backend      `json:"backend"`
	Variant   ipt.Variant  `json:"variant,omitempty"` // of iptables
	Addrs     []netip.Addr `json:"addrs"`
	options                // Bit is the bit that ADD chose
	Ending    bool         `json:"ending,omitempty"` // true once a DEL has begun, so that reapply restores nothing

	// KeptClosed is true if ADD cleared Published against the configuration (keepUnpublished).
	KeptClosed bool `json:"keptClosed,omitempty"`
	// Pending is true if firewalld may have addresses of the attachment as sources although it is not the backend.
	Pending bool `json:"pending,omitempty"`

	Bridge string `json:"bridge,omitempty"` // interface that the policy applies to; empty = no bridge, or ADD did not need it
	Port   int    `json:"port,omitempty"`   // index of the host end, which is a port of the bridge
	// SetFlag is true if this plugin, and not the bridge plugin, set the port's isolated flag.
	SetFlag bool `json:"setFlag,omitempty"`
	// Preexisting lists addresses whose rules, or sources of the zone, existed before ADD. They belong to a container
	// that the reference plugin added, so this attachment's DEL leaves them.
	Preexisting []netip.Addr `json:"found,omitempty"`
}

// UnmarshalJSON also reads records of earlier versions, which may lack the bit.
func (r *record) UnmarshalJSON(data []byte) error {
	type fields record // without this method
	r.Bit = defaultBit
	return json.Unmarshal(data, (*fields)(r))
}

type store = statefile.Store[record]

// records returns the records of all attachments. A call that changes rules holds their lock. Other calls wait for the
// lock for up to a minute, because the holder may run iptables, which waits for the xtables lock.
func records() *statefile.Store[record] { return statefile.NewStore[record](recordDir, time.Minute) }

// Plausible reports whether an ADD can have written the record. A file can be damaged, and rules are derived from it.
func (r record) Plausible() bool {
	isInvalid := func(a netip.Addr) bool { return !a.IsValid() || a.Zone() != "" || a.Is4In6() }
	return cni.ValidName(r.Network) && cni.ValidName(r.ContainerID) &&
		(cni.ValidIfName(r.Bridge) || r.Bridge == "" && r.Policy == policyOpen) &&
		slices.Contains([]backend{nftables, iptables, firewalld}, r.Backend) &&
		!slices.ContainsFunc(slices.Concat(r.Addrs, r.Preexisting), isInvalid) &&
		r.Bit >= 0 && r.Bit < 32 && ipt.IsChainName(r.AdminChain) && slices.Contains(policies(), r.Policy)
}

// checkRestorable returns an error with the reason if the rules may not be restored.
func (r *record) checkRestorable(exists bool, req *skel.Request) error {
	return netplugin.Restorable(exists, r.Ending, slices.Equal(r.Addrs, addressesOf(req.PrevResult, req.IfName)))
}

// list returns a holding for each record: its addresses, backend, policy and bridge.
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
		return netplugin.WithNetns(r.NetnsPath, r.Netns,
			cni.Holding{Attachment: r.Attachment, Kind: cni.HeldAccept, Value: strings.Join(words, " ")})
	})
}

// ownAddrs returns the addresses whose rules DEL must remove: all except the addresses in Preexisting and the addresses
// of other attachments on the same backend.
func (r *record) ownAddrs(s *store) ([]netip.Addr, error) {
	return r.withoutOthers(s, without(r.Addrs, r.Preexisting), func(o record) []netip.Addr { return o.Addrs })
}

// withoutOthers removes from addrs the addresses that owned returns for other attachments on the same backend.
func (r *record) withoutOthers(s *store, addrs []netip.Addr, owned func(record) []netip.Addr) ([]netip.Addr, error) {
	_, err := s.Any(func(o record) bool {
		if o.Hash() != r.Hash() && o.Backend == r.Backend {
			addrs = without(addrs, owned(o))
		}
		return len(addrs) == 0
	})
	return addrs, err
}

// without returns the addresses that are not among others.
func without(addrs, others []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return slices.Contains(others, a) })
}

// addPreexisting adds addresses with existing rules to Preexisting, except addresses whose rules another attachment
// added. It does nothing outside ADD.
func (c call) addPreexisting(ctx context.Context, r *record, addrs []netip.Addr) error {
	if len(addrs) == 0 || c.addStore == nil {
		return nil
	}
	added := func(o record) []netip.Addr { return without(o.Addrs, o.Preexisting) }
	addrs, err := r.withoutOthers(c.addStore, addrs, added)
	if err != nil || len(addrs) == 0 {
		return err
	}
	r.Preexisting = append(r.Preexisting, addrs...)
	return c.addStore.Put(ctx, *r)
}

// releasePreexisting removes r's addresses from Preexisting of all records when a container of the reference plugin is
// deleted, so that the last attachment with an address removes the rules for it.
func (r *record) releasePreexisting(ctx context.Context, s *store) error {
	all, err := s.All()
	for _, o := range all {
		rest := without(o.Preexisting, r.Addrs)
		if o.Backend == r.Backend && len(rest) < len(o.Preexisting) {
			o.Preexisting = rest
			err = errors.Join(err, s.Put(ctx, *o))
		}
	}
	return err
}

func familyAddrs(f nft.Family, addrs []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return nft.FamilyOf(a) != f })
}

func (r *record) families() []nft.Family {
	return slices.DeleteFunc(nft.Families(), func(f nft.Family) bool { return len(familyAddrs(f, r.Addrs)) == 0 })
}

// addressesOf returns the addresses of an interface in a result, or all addresses if the interface has none there.
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

// hostBit returns the fwmark bit that attachments on the backend nftables use, or wanted if there is no such
// attachment. All of them must use the same bit, because addNFTables deletes the chains for any other bit. With
// firewalld, a policy creates the same chains, so ADD also uses this bit. anyRecord is Any of a statefile.Store.
func hostBit(anyRecord func(func(record) bool) (bool, error), wanted int) (bit int, err error) {
	bit = wanted
	_, err = anyRecord(func(o record) bool {
		if o.Backend == nftables {
			bit = o.Bit
		}
		return o.Backend == nftables
	})
	return bit, err
}
