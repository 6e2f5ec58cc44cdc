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
	nat         = "nat"
	postrouting = "POSTROUTING"
	chainPrefix = "CNI-" // prefix of the reference plugins' chains for masquerade
)

func chainOf(network, containerID string) string {
	return ipt.ContainerChain(chainPrefix, network, containerID)
}

// recordDir has a record for each of Hawser's chains in iptables, because the rules of a chain name only the container,
// and not the interface of an address.
const recordDir = "/run/hawser/masq"

// record describes the chain that all attachments of a container to a network share. A chain without a record belongs
// to the reference plugins.
type record struct {
	Network     string                    `json:"network"`
	ContainerID string                    `json:"containerID"`
	Interfaces  map[string][]netip.Prefix `json:"interfaces"` // addresses of each of the container's interfaces
	Special                               // of the last ADD, because the interfaces share the chain
}

type store = statefile.Store[record]

// records returns the records of all chains. The timeout of their lock is long, because the holder may run iptables.
func records() *store { return statefile.NewStore[record](recordDir, time.Minute) }

// recordOf returns a container's record, or an empty record if the container has none.
func recordOf(s *store, a cni.Attachment) (record, error) {
	rec, exists, err := s.Get(chainOf(a.Network, a.ContainerID))
	if !exists {
		rec = record{Network: a.Network, ContainerID: a.ContainerID, Interfaces: map[string][]netip.Prefix{}}
	}
	return rec, err
}

// Hash returns the name of the record's file, which is the name of the chain.
func (r record) Hash() string { return chainOf(r.Network, r.ContainerID) }

// Plausible reports whether an ADD can have written the record. A file can be damaged, and rules are derived from it.
func (r record) Plausible() bool {
	isInvalid := func(p netip.Prefix) bool { return !p.IsValid() || p.Addr().Is4In6() }
	return r.Interfaces != nil && !slices.ContainsFunc(slices.Concat(r.addrs(), r.Exclude), isInvalid)
}

// chain returns the wanted chain: it has jumps from the record's addresses, and no jumps from other addresses in drop
// or, if drop is empty, from any other address.
func (r record) chain(f nft.Family, drop []netip.Prefix) natChain {
	c := newNATChain(f, cni.Attachment{Network: r.Network, ContainerID: r.ContainerID}, r.addrs(), drop)
	c.Special = r.Special
	return c
}

func (r record) addrs() []netip.Prefix {
	return slices.Concat(slices.Collect(maps.Values(r.Interfaces))...)
}

// natChain is the wanted state of the chain that all interfaces of a container on a network share.
type natChain struct {
	ipt.Chain
	comment string         // on each rule in the chain and each jump to it
	keep    []netip.Prefix // addresses with a jump to the chain
	drop    []netip.Prefix // addresses whose jumps are removed, unless they are in keep; empty = all others
	Special
}

func newNATChain(f nft.Family, a cni.Attachment, keep, drop []netip.Prefix) natChain {
	ch := ipt.Chain{Family: f, Table: nat, Name: chainOf(a.Network, a.ContainerID), From: postrouting}
	return natChain{Chain: ch, comment: ipt.OwnerComment("", a.Network, a.ContainerID),
		keep: ofFamily(f, distinct(keep)), drop: ofFamily(f, distinct(drop))}
}

func (c natChain) rule(chain, target string, match ...string) ipt.Rule {
	return ipt.NewRule(chain, append(match, "-m", "comment", "--comment", c.comment, "-j", target)...)
}

func (c natChain) jumps() (out []ipt.Rule) {
	for _, p := range c.keep {
		single := netip.PrefixFrom(p.Addr(), p.Addr().BitLen())
		out = append(out, c.rule(postrouting, c.Name, "-s", single.String()))
	}
	return out
}

// rules returns the rules in the chain. Packets to the prefixes of the addresses and to excluded destinations keep
// their source. All rules that accept come before the masquerade. The reference plugins add the accepting rule for a
// second prefix after the masquerade, and so masquerade the traffic within that prefix.
func (c natChain) rules() (out []ipt.Rule) {
	for _, p := range slices.Concat(c.keep, ofFamily(c.Family, c.Exclude)) {
		if r := c.rule(c.Name, "ACCEPT", "-d", p.Masked().String()); !slices.ContainsFunc(out, r.Equal) {
			out = append(out, r)
		}
	}
	masquerade := func(match, options []string) {
		r := c.rule(c.Name, "MASQUERADE", append([]string{"!", "-d", multicast(c.Family)}, match...)...)
		r.Args = append(r.Args, options...)
		if c.RandomFully {
			r.Args = append(r.Args, "--random-fully")
		}
		out = append(out, r)
	}
	if c.Ports != [2]uint16{} {
		ports := fmt.Sprint(c.Ports[0]) // as iptables lists a single port
		if c.Ports[1] != c.Ports[0] {
			ports += fmt.Sprintf("-%d", c.Ports[1])
		}
		for _, proto := range []string{"tcp", "udp"} {
			masquerade([]string{"-p", proto}, []string{"--to-ports", ports})
		}
	}
	masquerade(nil, nil)
	return out
}

// edit sets the rules of the chain, adds the jumps from the addresses in keep, and deletes the jumps from the addresses
// in drop. Other jumps to the chain are the reference plugins', for another interface of the container. They stay, with
// their rules in the chain.
func (c natChain) edit(e *ipt.Edit) {
	rules, jumps := c.rules(), c.jumps()
	isForeign := func(r ipt.Rule) bool { return c.IsJump(r) && !slices.ContainsFunc(jumps, r.Equal) }
	e.Delete(func(r ipt.Rule) bool { return isForeign(r) && !r.IsFrom(c.keep) && r.IsFrom(c.drop) })
	if slices.ContainsFunc(e.Rules, isForeign) {
		live := slices.DeleteFunc(slices.Clone(e.Rules), func(r ipt.Rule) bool { return r.Chain != c.Name })
		rules = append(ipt.Subtract(live, rules), rules...)
	}
	e.SetRules(c.Name, rules)
	e.Append(jumps...)
}

// apply applies the wanted state in one variant. It runs a program to read the table only if the variant has the chain.
// For the variant nf_tables, it runs no program if keep is empty.
func (c natChain) apply(ctx context.Context, nf *nft.Conn, tool ipt.Tool) error {
	if len(c.keep) == 0 {
		return c.Remove(ctx, nf, tool.Variant, c.drop)
	}
	return tool.EditFrom(ctx, nat, func() (*ipt.Edit, error) {
		variants, err := c.Variants(ctx, nf)
		if slices.Contains(variants, tool.Variant) {
			return tool.Read(ctx, nat)
		}
		if ipt.NotInstalled(err) {
			err = nil
		}
		return &ipt.Edit{}, err
	}, c.edit)
}

func addIPTables(ctx context.Context, nf *nft.Conn, c Config, isReapply bool) (err error) {
	for _, f := range nft.Families() { // before the record is written, because Del keeps it while a program is missing
		if err := ipt.CheckInstalled(f); err != nil && len(ofFamily(f, c.Addrs)) > 0 {
			return fmt.Errorf("masquerade with iptables: %w", err)
		}
	}
	s, err := records().Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	a := c.Attachment
	rec, err := recordOf(s, a)
	if err != nil {
		return err
	}
	// The record is written before the rules. It keeps the addresses of an earlier ADD without a DEL until their rules
	// have been removed. If this ADD is killed, they stay in the record, which is harmless.
	stale := rec.Interfaces[a.IfName]
	if isReapply && len(stale) == 0 {
		return ErrNoRecord
	}
	rec.Interfaces[a.IfName] = distinct(slices.Concat(c.Addrs, stale))
	rec.Special = c.Special
	if err := s.Put(ctx, rec); err != nil {
		return err
	}
	rec.Interfaces[a.IfName] = distinct(c.Addrs)
	for _, f := range nft.Families() {
		ch := rec.chain(f, slices.Concat(stale, rec.addrs()))
		if len(ch.drop) == 0 {
			continue
		}
		tool, err := ipt.FindTool(ctx, f)
		if err == nil {
			err = ch.apply(ctx, nf, tool)
		}
		if err != nil {
			return fmt.Errorf("masquerade with iptables: %w", err)
		}
	}
	if len(stale) == 0 {
		return nil
	}
	return s.Put(ctx, rec)
}

// delIPTables removes the rules of an interface's recorded addresses, and of c.Addrs, from both variants. If the
// container has neither a record nor a chain, delIPTables does not wait for the lock.
func delIPTables(ctx context.Context, nf *nft.Conn, c Config) error {
	exists := records().HasFile(chainOf(c.Attachment.Network, c.Attachment.ContainerID))
	for _, f := range nft.Families() {
		if !exists {
			variants, err := newNATChain(f, c.Attachment, nil, nil).Variants(ctx, nf)
			exists = len(variants) > 0 || err != nil && !ipt.NotInstalled(err)
		}
	}
	if !exists {
		return nil
	}
	return records().Locked(ctx, func(s *store) error { return delLocked(ctx, nf, s, c) })
}

// delLocked is delIPTables for a caller that holds the lock of the records. If a program is missing, it warns and keeps
// the record, so that a later DEL or GC can remove the rules.
func delLocked(ctx context.Context, nf *nft.Conn, s *store, c Config) error {
	rec, err := recordOf(s, c.Attachment)
	if err != nil {
		return err
	}
	own := rec.Interfaces[c.Attachment.IfName]
	delete(rec.Interfaces, c.Attachment.IfName)
	for _, f := range nft.Families() {
		ch := rec.chain(f, slices.Concat(own, c.Addrs))
		variants, variantsErr := ch.Variants(ctx, nf)
		if ipt.NotInstalled(variantsErr) && (len(variants) > 0 || len(ofFamily(f, own)) == 0) {
			variantsErr = nil // the rules were not added with the missing program
		}
		err = errors.Join(err, variantsErr)
		for _, v := range variants {
			err = errors.Join(err, ch.apply(ctx, nf, ipt.Tool{Family: f, Variant: v}))
		}
		if errors.Is(err, statefile.ErrBusy) {
			break // the programs of the other family would wait for the same lock
		}
	}
	if ipt.NotInstalled(err) && c.Warn != nil {
		c.Warn("masquerade of %s: %v", c.Attachment, err)
		return nil
	}
	if err != nil {
		return err
	}
	if len(rec.Interfaces) == 0 {
		return s.Drop(ctx, rec.Hash())
	}
	return s.Put(ctx, rec)
}

func checkIPTables(ctx context.Context, nf *nft.Conn, c Config) error {
	var errs []error
	for _, f := range nft.Families() {
		ch := newNATChain(f, c.Attachment, c.Addrs, nil)
		ch.Special = c.Special
		if len(ch.keep) == 0 {
			continue
		}
		errs = append(errs, ch.Verify(ctx, nf, func(live *ipt.Edit) (diffs []error) {
			for _, want := range ipt.Subtract(append(ch.rules(), ch.jumps()...), live.Rules) {
				diffs = append(diffs, cni.Drift("iptables chain %q: %w: no rule %q", want.Chain, nft.ErrDrift,
					want.Append()))
			}
			return diffs
		}))
	}
	return errors.Join(errs...)
}

func gcIPTables(ctx context.Context, nf *nft.Conn, valid cni.Set, s *store) error {
	all, err := s.All()
	if err != nil {
		return err
	}
	var errs []error
	hasRecord := map[string]bool{} // by chain
	for _, rec := range all {
		a := cni.Attachment{Network: rec.Network, ContainerID: rec.ContainerID}
		hasRecord[rec.Hash()] = true
		for a.IfName = range rec.Interfaces {
			if valid.Excludes(a) {
				errs = append(errs, delLocked(ctx, nf, s, Config{Attachment: a}))
			}
		}
	}
	for _, f := range nft.Families() {
		ids, err := newNATChain(f, cni.Attachment{}, nil, nil).Containers(ctx, nf, chainPrefix, valid.Network)
		errs = append(errs, err)
		for _, id := range ids {
			a := cni.Attachment{Network: valid.Network, ContainerID: id}
			// The reference plugins' rules name no interface. They stay while any interface of the container is valid.
			if !hasRecord[chainOf(a.Network, id)] && !valid.HasContainer(id) {
				errs = append(errs, delLocked(ctx, nf, s, Config{Attachment: a}))
			}
		}
	}
	return errors.Join(errs...)
}

func statusIPTables(nf *nft.Conn) error {
	err := statefile.Writable(recordDir)
	if err == nil {
		err = ipt.Ready(nf)
	}
	if err != nil {
		return fmt.Errorf("masquerade with iptables: %w", err)
	}
	return nil
}
