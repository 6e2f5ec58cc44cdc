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

// attempts bounds how often a restore is planned again because others changed the same rules.
const attempts = 3

// undoTime is how long an ADD that failed half-way may take to remove the other half.
const undoTime = 5 * time.Second

func addIPTables(ctx context.Context, nf *nft.Conn, c Config) error {
	ch := natChainOf(c.Attachment.Network, c.Attachment.ContainerID)
	rec, err := openRecord(ctx, ch.name)
	if err != nil {
		return err
	}
	defer func() { _ = rec.close() }()
	if err := delStale(ctx, nf, rec, c); err != nil {
		return fmt.Errorf("masquerade with iptables: %w", err)
	}
	before := rec.content
	before.Interfaces = maps.Clone(rec.Interfaces)
	rec.Network, rec.ContainerID = c.Attachment.Network, c.Attachment.ContainerID
	rec.Interfaces[c.Attachment.IfName] = distinct(c.Addrs)
	// The record comes first: after a kill between the two it names too much, which harms nothing.
	if err := rec.save(); err != nil {
		return err
	}
	for _, f := range families() {
		if len(f.of(c.Addrs)) == 0 {
			continue
		}
		if err := (change{nf, f, ch, rec}).add(ctx, c.Attachment.IfName); err != nil {
			// The deadline may be why it failed.
			undoCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
			defer cancel()
			undo := errors.Join(delRecorded(undoCtx, nf, rec, job{chain: ch, ifName: c.Attachment.IfName}))
			rec.content = before
			return errors.Join(fmt.Errorf("masquerade with iptables: %w", err), undo, rec.save())
		}
	}
	return nil
}

// delStale removes what an ADD without a DEL left of other addresses: the record is about to forget them.
func delStale(ctx context.Context, nf *nft.Conn, rec *record, c Config) error {
	for _, p := range rec.Interfaces[c.Attachment.IfName] {
		if !slices.Contains(c.Addrs, p) {
			return errors.Join(delRecorded(ctx, nf, rec, job{chain: natChainOf(rec.Network, rec.ContainerID), ifName: c.Attachment.IfName}))
		}
	}
	return nil
}

// change is a change of one family's chain.
type change struct {
	nf    *nft.Conn
	f     family
	chain natChain
	rec   *record
}

func (g change) add(ctx context.Context, ifName string) error {
	tool, err := ipt.Find(ctx, g.f.ipt)
	if err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		lines, err := g.plan(ctx, tool, ifName)
		if err != nil {
			return err
		}
		err = tool.Restore(ctx, nat, lines)
		if err == nil || attempt == attempts || noTime(ctx, err) {
			return err
		}
	}
}

// plan returns the lines that make the chain whole for all interfaces of the record. Where the chain
// exists (of the reference, of another interface, of an ADD before) what it has is kept.
func (g change) plan(ctx context.Context, tool ipt.Tool, ifName string) ([]string, error) {
	addrs := append(g.f.of(g.rec.Interfaces[ifName]), g.rec.others(ifName, g.f)...)
	rules := g.chain.rules(g.f, addrs)
	where, err := variants(g.nf, g.f, g.chain.name)
	if err != nil {
		return nil, err
	}
	var jumps []ipt.Rule
	if slices.Contains(where, tool.Variant) {
		if jumps, err = tool.List(ctx, nat, postrouting); err != nil {
			return nil, err
		}
		own, err := tool.List(ctx, nat, g.chain.name)
		if err != nil {
			return nil, err
		}
		own = slices.DeleteFunc(own, func(r ipt.Rule) bool { return slices.ContainsFunc(rules, r.Equal) })
		rules = append(own, rules...)
	}
	lines := g.chain.fill(rules)
	for _, p := range addrs {
		if j := g.chain.jump(p); !slices.ContainsFunc(jumps, j.Equal) {
			lines = append(lines, j.Append())
		}
	}
	return lines, nil
}

// variants says which iptables have a chain of this name, without running either.
func variants(nf *nft.Conn, f family, chain string) ([]ipt.Variant, error) {
	var out []ipt.Variant
	live, err := nf.Chain(f.table, chain)
	if err := absent(err); err != nil {
		return nil, err
	}
	if live != nil {
		out = append(out, ipt.NFT)
	}
	has, err := ipt.LegacyHas(f.ipt, nat, chain)
	if has {
		out = append(out, ipt.Legacy)
	}
	return out, err
}

func delIPTables(ctx context.Context, nf *nft.Conn, a cni.Attachment, addrs []netip.Prefix) (missing, err error) {
	ch := natChainOf(a.Network, a.ContainerID)
	exists, err := recorded(ch.name)
	for _, f := range families() {
		where, e := variants(nf, f, ch.name)
		exists = exists || len(where) > 0
		err = errors.Join(err, e)
	}
	if err != nil || !exists {
		return nil, err
	}
	rec, err := openRecord(ctx, ch.name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rec.close() }()
	missing, err = delRecorded(ctx, nf, rec, job{chain: ch, ifName: a.IfName, hint: addrs})
	if missing != nil || err != nil {
		return missing, errors.Join(err, dropLock(rec))
	}
	delete(rec.Interfaces, a.IfName)
	return nil, rec.save()
}

// dropLock removes a lock file that was made for a chain without a record.
func dropLock(rec *record) error {
	if len(rec.Interfaces) == 0 {
		return rec.save()
	}
	return nil
}

// job is what is to be removed: the rules of an interface, known from the record or from the hint.
type job struct {
	chain  natChain
	ifName string // empty for all that the record does not give to another interface
	hint   []netip.Prefix
}

// delRecorded removes an interface's rules wherever they are. What stays for want of a program is
// missing.
func delRecorded(ctx context.Context, nf *nft.Conn, rec *record, j job) (missing, failed error) {
	for _, f := range families() {
		where, err := variants(nf, f, j.chain.name)
		failed = errors.Join(failed, err)
		for _, v := range where {
			err := change{nf, f, j.chain, rec}.remove(ctx, v, j)
			if err != nil {
				err = fmt.Errorf("chain %q of table nat (iptables-%s): %w", j.chain.name, v, err)
			}
			if ipt.NotInstalled(err) {
				missing = errors.Join(missing, err)
				continue
			}
			failed = errors.Join(failed, err)
			if errors.Is(err, statefile.ErrBusy) {
				return missing, failed // the other programs wait for the same lock
			}
		}
	}
	return missing, failed
}

func (g change) remove(ctx context.Context, v ipt.Variant, j job) error {
	mine, others := g.f.of(g.rec.Interfaces[j.ifName]), g.rec.others(j.ifName, g.f)
	tool, err := ipt.FindVariant(ctx, g.f.ipt, v)
	if err != nil {
		if v == ipt.NFT && len(others) == 0 {
			return g.removeOverNetlink(ctx)
		}
		return err
	}
	if len(mine) > 0 {
		// All of it is in the record. Should the rules not be as recorded, nothing happens, and the
		// listing tells.
		var jumps []ipt.Rule
		for _, p := range mine {
			jumps = append(jumps, g.chain.jump(p))
		}
		err := tool.Restore(ctx, nat, g.lines(jumps, others, len(others) == 0))
		if err == nil || noTime(ctx, err) {
			return err
		}
	}
	for attempt := 1; ; attempt++ {
		lines, err := g.planRemoval(ctx, tool, j)
		if err != nil || len(lines) == 0 {
			return err
		}
		err = tool.Restore(ctx, nat, lines)
		if err == nil {
			return nil
		}
		// A restore that has failed for us, the one before too, may have done its work.
		if where, lost := variants(g.nf, g.f, g.chain.name); lost == nil && !slices.Contains(where, v) {
			return nil
		}
		if attempt == attempts || noTime(ctx, err) {
			return err
		}
	}
}

// noTime says of a failure that another attempt would not get further: the time is up, or the lock did
// not come free in it.
func noTime(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, statefile.ErrBusy)
}

// planRemoval finds the jumps in the kernel. An empty plan means that none of them is ours.
func (g change) planRemoval(ctx context.Context, tool ipt.Tool, j job) ([]string, error) {
	mine, others := g.f.of(g.rec.Interfaces[j.ifName]), g.rec.others(j.ifName, g.f)
	live, err := tool.List(ctx, nat, postrouting)
	if err != nil {
		return nil, err
	}
	live = slices.DeleteFunc(live, func(r ipt.Rule) bool { return !g.chain.leads(r) })
	mine = append(mine, g.f.of(j.hint)...)
	var gone []ipt.Rule
	for _, r := range live {
		if !isFrom(r, others) && (len(mine) == 0 || isFrom(r, mine)) {
			gone = append(gone, r)
		}
	}
	last := len(gone) == len(live)
	if len(gone) == 0 && !last {
		return nil, nil
	}
	return g.lines(gone, others, last), nil
}

// lines remove jumps, and either the chain with the last of them or what only they needed in it.
func (g change) lines(jumps []ipt.Rule, others []netip.Prefix, last bool) []string {
	var lines []string
	for _, r := range jumps {
		lines = append(lines, r.Delete())
	}
	switch {
	case last:
		lines = append(lines, g.chain.clear()...)
	case len(others) > 0:
		lines = append(lines, g.chain.fill(g.chain.rules(g.f, others))...)
	}
	return lines
}

// removeOverNetlink removes the chain and all jumps to it where the program is missing.
func (g change) removeOverNetlink(ctx context.Context) error {
	return g.nf.Update(ctx, func(tx *nft.Tx) error {
		rules, err := tx.Rules(g.f.table, postrouting)
		if err != nil {
			return err
		}
		for _, r := range rules {
			if r.Target == g.chain.name {
				tx.DeleteRule(g.f.table, postrouting, r.Handle)
			}
		}
		tx.DeleteChain(g.f.table, g.chain.name)
		return nil
	})
}
