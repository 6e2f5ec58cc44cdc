package masq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const (
	// recordDir holds a record for each iptables chain of ours: the chain's rules name the container only,
	// so which of its interfaces has which address has to stand beside it.
	recordDir = "/run/hawser/masq"
	// lockWait is how long other calls may take; they run programs that wait for the xtables lock themselves.
	lockWait = time.Minute
)

// record says what Add gave to a container on one network: as the chain is, it is for all its attachments there.
// A chain without a record was made by the reference plugins.
type record struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	// Interfaces maps the container's interfaces to their addresses.
	Interfaces map[string][]netip.Prefix `json:"interfaces"`
}

type store = statefile.Store[record]

func records() statefile.Records[record] {
	return statefile.Records[record]{Path: recordDir, Wait: lockWait}
}

// recordOf reads a container's record, an empty one where there is none.
func recordOf(s *store, a cni.Attachment) (record, error) {
	rec, found, err := s.Get(chainOf(a.Network, a.ContainerID))
	if !found {
		rec = record{a.Network, a.ContainerID, map[string][]netip.Prefix{}}
	}
	return rec, err
}

// Hash is the name of the record's file: the chain's.
func (r record) Hash() string { return chainOf(r.Network, r.ContainerID) }

// Valid says whether a call can have written the record: rules are made from it.
func (r record) Valid() bool {
	for _, addrs := range r.Interfaces {
		if slices.ContainsFunc(addrs, func(p netip.Prefix) bool {
			return !p.IsValid() || p.Addr().Zone() != "" || p.Addr().Is4In6()
		}) {
			return false
		}
	}
	return r.Interfaces != nil
}

// with is the record with other addresses for an interface; none remove it.
func (r record) with(ifName string, addrs []netip.Prefix) record {
	r.Interfaces = maps.Clone(r.Interfaces)
	r.Interfaces[ifName] = addrs
	if len(addrs) == 0 {
		delete(r.Interfaces, ifName)
	}
	return r
}

// save writes the record, or removes it when no interface is left in it.
func (r record) save(s *store) error {
	if len(r.Interfaces) == 0 {
		return s.Drop(r.Hash())
	}
	return s.Put(r)
}

// addrs are the addresses of all interfaces.
func (r record) addrs() []netip.Prefix {
	return distinct(slices.Concat(slices.Collect(maps.Values(r.Interfaces))...))
}

func addIPTables(ctx context.Context, nf *nft.Conn, c Config) (err error) {
	for _, f := range nft.Families() { // before anything is written down: Del keeps it where a program is missing
		if err := ipt.Installed(f); err != nil && len(of(f, c.Addrs)) > 0 {
			return fmt.Errorf("masquerade with iptables: %w", err)
		}
	}
	s, err := records().Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	a := c.Attachment
	before, err := recordOf(s, a)
	if err != nil {
		return err
	}
	after := before.with(a.IfName, distinct(c.Addrs))
	// The record is written before the rules, and still has the addresses that an ADD without a DEL left: after a
	// kill in between it names too many, which harms nothing.
	stale := before.Interfaces[a.IfName]
	if err := before.with(a.IfName, distinct(append(slices.Clone(c.Addrs), stale...))).save(s); err != nil {
		return err
	}
	if err := apply(ctx, nf, after, stale); err != nil {
		return fmt.Errorf("masquerade with iptables: %w", err)
	}
	if len(stale) > 0 {
		return after.save(s)
	}
	return nil
}

// apply makes the container's chains from the record, with the programs that are plainly called iptables, and
// removes the jumps of stale addresses.
func apply(ctx context.Context, nf *nft.Conn, rec record, stale []netip.Prefix) error {
	for _, f := range nft.Families() {
		keep := of(f, rec.addrs())
		if len(keep) == 0 && len(of(f, stale)) == 0 {
			continue
		}
		tool, err := ipt.Find(ctx, f)
		if err != nil {
			return err
		}
		gone := func(j ipt.Rule) bool { return isFrom(j, stale) }
		ch := natChainOf(f, cni.Attachment{Network: rec.Network, ContainerID: rec.ContainerID})
		err = ch.change(ctx, nf, tool, func(live liveChain) []string { return ch.lines(live, keep, gone) })
		if err != nil {
			return err
		}
	}
	return nil
}

// liveChain is a chain, with the jumps to it, as one variant of iptables has it.
type liveChain struct {
	exists       bool
	rules, jumps []ipt.Rule
}

func (c natChain) change(ctx context.Context, nf *nft.Conn, tool ipt.Tool, edit func(liveChain) []string) error {
	return tool.Change(ctx, nat, func() ([]string, error) {
		where, err := c.Variants(ctx, nf)
		if err != nil && !ipt.NotInstalled(err) {
			return nil, err
		}
		live := liveChain{exists: slices.Contains(where, tool.Variant)}
		if live.exists {
			if live.rules, live.jumps, err = c.Live(ctx, tool); err != nil {
				return nil, err
			}
		}
		return edit(live), nil
	})
}

// delIPTables removes an interface's rules wherever they are. The addresses are a hint. Where the container has
// neither a record nor a chain the call waits for no lock.
func delIPTables(ctx context.Context, nf *nft.Conn, c Config) (err error) {
	there := records().MayHave(chainOf(c.Attachment.Network, c.Attachment.ContainerID))
	for _, f := range nft.Families() {
		if !there {
			where, err := natChainOf(f, c.Attachment).Variants(ctx, nf)
			there = len(where) > 0 || err != nil && !ipt.NotInstalled(err)
		}
	}
	if !there {
		return nil
	}
	s, err := records().OpenExisting(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return delRecorded(ctx, nf, s, c)
}

// delRecorded is delIPTables with the records. What stays for want of a program is a warning, and the record
// stays with it: the next call that finds the program removes both.
func delRecorded(ctx context.Context, nf *nft.Conn, s *store, c Config) error {
	before, err := recordOf(s, c.Attachment)
	if err != nil {
		return err
	}
	after, own := before.with(c.Attachment.IfName, nil), before.Interfaces[c.Attachment.IfName]
	stays := false
	report := func(err error) error {
		if !ipt.NotInstalled(err) || c.Warn == nil {
			return err
		}
		c.Warn("masquerade of %s: %v", c.Attachment, err)
		stays = true
		return nil
	}
	for _, f := range nft.Families() {
		ch := natChainOf(f, c.Attachment)
		where, lost := ch.Variants(ctx, nf)
		if !ipt.NotInstalled(lost) || len(where) == 0 && len(of(f, own)) > 0 {
			err = errors.Join(err, report(lost)) // not where a legacy program is missing that we did not use
		}
		for _, v := range where {
			r := removal{keep: of(f, after.addrs()), gone: of(f, append(slices.Clone(own), c.Addrs...))}
			err = errors.Join(err, report(ch.remove(ctx, nf, v, r)))
		}
		if errors.Is(err, statefile.ErrBusy) {
			break // the programs of the other family wait for the same lock
		}
	}
	if err != nil || stays {
		return err
	}
	return after.save(s)
}

// removal says which addresses keep their jumps to a chain, and which lose them. Where gone is empty, all lose them
// that are not kept.
type removal struct{ keep, gone []netip.Prefix }

func (c natChain) remove(ctx context.Context, nf *nft.Conn, v ipt.Variant, r removal) error {
	overNetlink := v == ipt.NFT && len(r.keep) == 0
	if overNetlink {
		alone, err := c.LeadsOnlyFrom(nf, r.gone)
		if err != nil || alone {
			return errors.Join(err, c.Remove(ctx, nf, v))
		}
	}
	tool, err := ipt.FindVariant(ctx, c.Family, v)
	if overNetlink && ipt.NotInstalled(err) {
		return c.Remove(ctx, nf, v)
	}
	if err == nil {
		err = c.change(ctx, nf, tool, func(live liveChain) []string {
			return c.lines(live, r.keep, func(j ipt.Rule) bool {
				return !isFrom(j, r.keep) && (len(r.gone) == 0 || isFrom(j, r.gone))
			})
		})
	}
	if err != nil {
		return fmt.Errorf("chain %q of table nat (iptables-%s): %w", c.Name, v, err)
	}
	return nil
}

func checkIPTables(ctx context.Context, nf *nft.Conn, c Config) error {
	var diffs []error
	for _, f := range nft.Families() {
		addrs := of(f, c.Addrs)
		if len(addrs) == 0 {
			continue
		}
		ch := natChainOf(f, c.Attachment)
		where, err := ch.Variants(ctx, nf)
		if len(where) == 0 && err != nil {
			return err
		}
		if len(where) == 0 {
			diffs = append(diffs, cni.Errorf(cni.CodeDrift, "iptables chain %q: %w: no such chain",
				ch.Name, nft.ErrDrift))
			continue
		}
		tool, err := ipt.FindVariant(ctx, f, where[0])
		if err != nil {
			return fmt.Errorf("chain %q of table nat (iptables-%s): %w", ch.Name, where[0], err)
		}
		missing, drifted, err := tool.Missing(ctx, nat, append(ch.rules(addrs), ch.jumps(addrs)...))
		if err != nil {
			return err
		}
		if drifted {
			diffs = append(diffs, cni.Errorf(cni.CodeDrift,
				"iptables chain %q: %w: no rule %q", missing.Chain, nft.ErrDrift,
				missing.Append()))
		}
	}
	return errors.Join(diffs...)
}

func gcIPTables(ctx context.Context, nf *nft.Conn, network string, valid cni.Set) (err error) {
	s, err := records().OpenExisting(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	all, err := s.All()
	if err != nil {
		return err
	}
	garbage := map[cni.Attachment]bool{}
	ours := map[string]bool{}
	for _, rec := range all {
		if rec.Network != network {
			continue
		}
		ours[rec.ContainerID] = true
		for ifName := range rec.Interfaces {
			a := cni.Attachment{Network: network, ContainerID: rec.ContainerID, IfName: ifName}
			garbage[a] = !valid.Has(a)
		}
	}
	errs := []error{}
	for _, f := range nft.Families() {
		ids, err := natChainOf(f, cni.Attachment{}).Containers(ctx, nf, chainPrefix, network)
		errs = append(errs, err)
		for _, id := range ids {
			// The rules of the reference tell no interface apart: they stay until the container has none.
			garbage[cni.Attachment{Network: network, ContainerID: id}] = !ours[id] && !valid.HasContainer(id)
		}
	}
	for a, is := range garbage {
		if is {
			errs = append(errs, delRecorded(ctx, nf, s, Config{Attachment: a}))
		}
	}
	return errors.Join(errs...)
}

func statusIPTables(nf *nft.Conn) error {
	if err := statefile.Writable(recordDir); err != nil {
		return err
	}
	for _, f := range nft.Families() {
		if _, err := nf.Chain(nft.Table{Family: f, Name: nat}, postrouting); nft.IfSupported(err) != nil {
			return err
		}
	}
	// That of IPv6 is needed by containers with an address of that family only.
	if err := ipt.Installed(nft.IPv4); err != nil {
		return fmt.Errorf("masquerade with iptables: %w", err)
	}
	return nil
}
