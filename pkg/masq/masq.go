// Package masq masquerades packets of attachments: it replaces the source of packets that leave the attachment's
// network with an address of the host.
//
// The rule is the same on both backends. A packet is masqueraded if its source is one of the attachment's addresses and
// its destination is not in the prefix of that address, not multicast and not excluded.
//
// On nftables, the default, all attachments share a few rules. An attachment has one map element for each address. The
// element's comment names the owner, and its verdict selects the chain of the address's prefix. On iptables, a
// container has the chain of the reference plugins, byte for byte, so that either suite can delete the other's rules.
// Because such a chain names only the container, a record in /run/hawser/masq has the addresses of each interface.
//
// Del and GC find an attachment's rules without its namespace, configuration or result. They remove rules from both
// backends, including the reference plugins' rules.
package masq

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// Config describes the masquerade of one attachment.
type Config struct {
	Attachment cni.Attachment
	Backend    ipt.Backend
	// Link is the host's interface on which the container's packets arrive, or its VRF. Addrs has the container's
	// addresses with their prefix lengths. Both are optional for Del, which is more expensive without them.
	Link  string
	Addrs []netip.Prefix
	Special
	// Warn reports that another attachment's rules apply to an address. It also reports that Del cannot remove rules
	// because a program is missing; a later Del or GC removes them. If Warn is nil, Del returns an error instead.
	Warn func(format string, args ...any)
}

// Special has options that the reference plugins do not have. Del does not need them.
type Special struct {
	Exclude     []netip.Prefix `json:"exclude,omitempty"`     // destinations, of either family, that are not masqueraded
	RandomFully bool           `json:"randomFully,omitempty"` // randomizes source ports
	Ports       [2]uint16      `json:"ports,omitzero"`        // first and last source port for TCP and UDP; zero = any
}

// isSpecial reports whether the rules of a family differ from the reference plugins' rules. exclude has the excluded
// destinations of the family.
func (s Special) isSpecial(exclude []netip.Prefix) bool {
	return len(exclude) > 0 || s.RandomFully || s.Ports != [2]uint16{}
}

// Add adds the attachment's rules. It is idempotent, and after a failure Del removes the rules. If another attachment
// has rules for an address on the same interface, they apply until that attachment ends.
func Add(ctx context.Context, nf *nft.Conn, c Config) error { return c.add(ctx, nf, false) }

// Reapply is Add for an attachment that has rules. On iptables, it returns ErrNoRecord if there is no record of them.
func Reapply(ctx context.Context, nf *nft.Conn, c Config) error { return c.add(ctx, nf, true) }

func (c Config) add(ctx context.Context, nf *nft.Conn, isReapply bool) error {
	if len(c.Addrs) == 0 {
		return nil
	}
	if c.Backend == ipt.IPTables {
		return addIPTables(ctx, nf, c, isReapply)
	}
	err := addNFTables(ctx, nf, c)
	if c.Backend == ipt.Auto && errors.Is(err, nft.ErrUnsupported) {
		return ipt.AsFallback(addIPTables(ctx, nf, c, isReapply), err)
	}
	return err
}

// ErrNoRecord is returned by Reapply if there is no record of the rules on iptables.
var ErrNoRecord = errors.New("no record of these rules")

// Restore restores the attachments' rules on nftables in one batch, because another program may have flushed them. It
// returns what was missing, by the attachment's mark. It skips an attachment unless exists returns true for its mark.
// If an attachment ends concurrently, either Restore or DelElements in its DEL removes the restored rules.
func Restore(ctx context.Context, nf *nft.Conn, all []Config, exists func(marks []string) map[string]bool) (
	missing map[string]error, err error,
) {
	var wanted []nft.Item
	isFormer, err := formerMarks(nf, all)
	if err != nil {
		return nil, err
	}
	configs := map[string]Config{} // by chain
	for _, c := range all {
		if isFormer[c.Attachment.Mark()] && checkNFTables(nf, c) == nil {
			continue
		}
		for _, i := range c.items() {
			wanted, configs[i.Element.Goto] = append(wanted, i), c
		}
	}
	o := Config{}.owned()
	o.Chain = func(name string) (nft.Chain, bool) { return configs[name].chainByName(name) }
	lacking, err := o.Lacking(nf, wanted)
	if err != nil {
		return nil, err
	}
	missing, err = o.Restore(ctx, nf, wanted, exists(lacking))
	stillExists := exists(lacking)
	for _, mark := range lacking {
		// The namespace of an ended container cannot be opened. One that cannot be read in time therefore still exists.
		if exists, isRead := stillExists[mark]; missing[mark] != nil && isRead && !exists {
			delete(missing, mark)
			err = errors.Join(err, o.Remove(ctx, nf, wanted, func(live string) bool { return live == mark }))
		}
	}
	if len(missing) > 0 {
		err = errors.Join(err, deleteUnanswered(all))
	}
	return missing, err
}

// deleteUnanswered deletes the flows from the attachments' addresses that have no reply. A flow that began while the
// rules were missing is never translated, even if its packets are retransmitted.
func deleteUnanswered(all []Config) error {
	isContainer := map[netip.Addr]bool{}
	for _, c := range all {
		for _, p := range c.Addrs {
			isContainer[p.Addr()] = true
		}
	}
	isUnanswered := func(f nft.Flow) bool { return !f.Replied && isContainer[f.Source.Addr()] }
	var errs []error
	for _, f := range nft.Families() {
		for _, proto := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			_, err := nft.DeleteFlows(f, proto, isUnanswered)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Del removes the attachment's rules. It succeeds if there are none, and continues after a failure.
func Del(ctx context.Context, nf *nft.Conn, c Config) error {
	return errors.Join(
		nft.IfSupported(delNFTables(ctx, nf, c)),
		nft.IfSupported(delReference(ctx, nf, c.Attachment)),
		delIPTables(ctx, nf, c),
	)
}

// DelElements removes only the rules on nftables. DEL calls it after it has deleted the interface, because a concurrent
// Restore may have added rules after Del. If Link and Addrs are known and there are no such rules, it costs one request
// to the kernel.
func DelElements(ctx context.Context, nf *nft.Conn, c Config) (err error) {
	var found []nft.Item
	if items := c.items(); len(items) > 0 {
		found, err = c.owned().Live(nf, items, c.Attachment.Owns)
	} else {
		found, err = c.owned().All(nf, c.Attachment.Owns)
	}
	if err == nil {
		err = c.owned().Remove(ctx, nf, found, c.Attachment.Owns)
	}
	return nft.IfSupported(err)
}

// Check compares the kernel's rules with the attachment's rules and the shared rules. It also accepts rules of the
// other backend and of the reference plugins, because the configuration or the plugins may have been replaced while
// the container was running. Differences have code 101.
func Check(ctx context.Context, nf *nft.Conn, c Config) error {
	if len(c.Addrs) == 0 {
		return nil
	}
	check := func() error { return checkNFTables(nf, c) }
	checkOther := func() error { return checkIPTables(ctx, nf, c) }
	if c.Backend == ipt.IPTables {
		check, checkOther = checkOther, check
	}
	err := check()
	if err == nil || checkOther() == nil || !c.isSpecial(c.Exclude) && checkReference(nf, c) == nil {
		return nil
	}
	return err
}

// GC removes the rules of attachments on valid's network that are not in valid.
func GC(ctx context.Context, nf *nft.Conn, valid cni.Set) error {
	return errors.Join(
		nft.IfSupported(Config{}.owned().Sweep(ctx, nf, valid.IsGarbage)),
		nft.IfSupported(gcReference(ctx, nf, valid)),
		records().Locked(ctx, func(s *store) error { return gcIPTables(ctx, nf, valid, s) }),
	)
}

// Status returns an error if Add would fail. It does not run a program.
func Status(_ context.Context, nf *nft.Conn, b ipt.Backend) error {
	if b == ipt.IPTables {
		return statusIPTables(nf)
	}
	err := nf.Probe(Config{}.owned().Layout)
	if b != ipt.Auto || !errors.Is(err, nft.ErrUnsupported) {
		return err
	}
	if iptErr := statusIPTables(nf); iptErr != nil {
		return errors.Join(err, iptErr)
	}
	return nil
}

// List returns the masqueraded addresses from both backends, including the reference plugins'. It does not lock.
func List(ctx context.Context, nf *nft.Conn) ([]cni.Holding, error) {
	addr := func(it nft.Item) string { return keyAddr(it).String() }
	all, err := Config{}.owned().Holdings(nf, cni.HeldMasquerade, addr)
	chains, chainErr := listIPTables(ctx, nf)
	rules, ruleErr := listReference(nf)
	return slices.Concat(all, chains, rules), errors.Join(err, chainErr, nft.IfSupported(ruleErr))
}

// listIPTables returns the addresses in records, and the source addresses of jumps to chains without a record, which
// are the reference plugins'.
func listIPTables(ctx context.Context, nf *nft.Conn) (all []cni.Holding, err error) {
	files, err := records().List()
	hasRecord := map[string]bool{} // by chain
	for _, file := range files {
		hasRecord[file.Record.Hash()] = true
		for ifName, addrs := range file.Record.Interfaces {
			for _, p := range addrs {
				all = append(all, cni.Holding{Kind: cni.HeldMasquerade, Value: p.Addr().String(), Kept: file.Path,
					Since: file.Written, Attachment: cni.Attachment{Network: file.Record.Network,
						ContainerID: file.Record.ContainerID, IfName: ifName}})
			}
		}
	}
	errs := []error{err}
	for _, f := range nft.Families() {
		rules, err := newNATChain(f, cni.Attachment{}, nil, nil).Rules(ctx, nf, func(chain string) bool {
			return ipt.IsContainerChain(chainPrefix, chain) && !hasRecord[chain]
		})
		errs = append(errs, err)
		for _, r := range rules {
			network, id, ok := ipt.ParseOwner(r.Option("--comment"))
			if source := r.Option("-s"); ok && r.Chain == postrouting {
				all = append(all, cni.Holding{Kind: cni.HeldMasquerade, Reference: true,
					Value:      strings.TrimSuffix(strings.TrimSuffix(source, "/32"), "/128"),
					Kept:       "iptables chain " + nat + " " + r.Option("-j"),
					Attachment: cni.Attachment{Network: network, ContainerID: id}})
			}
		}
	}
	return all, errors.Join(errs...)
}
