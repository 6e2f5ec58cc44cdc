package portmap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nft"
)

// publication is the part of ADD that holds the lock of the records.
type publication struct {
	call
	store *store
	r     *record
	saved bool // the record is written, and the roll-back registered
	// restores is true if the rules are restored from an existing record.
	restores bool
	// leaving is the link of the owner that an attempt refused, where the kernel is about to remove it.
	leaving int
	// replaced are former owners that are gone. What they have is removed when the attachment's rules are made.
	replaced []*record
}

// linkPatience is how long the kernel may take to remove the host ends of containers whose namespaces went.
const linkPatience = time.Second

// publish makes the attachment's rules, unless somebody else has one of the ports.
func (c call) publish(ctx context.Context, cfg config, r *record) (err error) {
	if r.Backend, err = c.choose(cfg); err != nil {
		return err
	}
	if r.Backend == iptables {
		if err := r.tryConditions(ctx); err != nil {
			return err
		}
	}
	if err := c.publishLocked(ctx, cfg, r); err != nil {
		return err
	}
	return r.compileConditions(ctx)
}

// publishLocked is the part of publish for which other calls wait. Programs get only text of a configuration that was
// parsed before.
func (c call) publishLocked(ctx context.Context, cfg config, r *record) (err error) {
	s, err := records().Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p := &publication{call: c, store: s, r: r}
	wait, cancel := context.WithTimeout(ctx, linkPatience)
	defer cancel()
	var lack error
	for {
		p.leaving = 0
		err := p.attempt(ctx)
		switch {
		case err == nil:
			return nil
		case p.leaving != 0:
			if c.Host.WaitGone(wait, p.leaving) != nil {
				return err
			}
		case cfg.backend == auto && r.Backend == nftables && errors.Is(err, nft.ErrUnsupported):
			r.Backend, lack = iptables, err
		default:
			return ipt.Instead(err, lack)
		}
	}
}

// attempt makes the rules in the record's backend. All that may refuse the ports is asked before anything changes but
// what an earlier attachment of the same name left: the owners in nftables last, by the update that replaces them.
func (p *publication) attempt(ctx context.Context) error {
	r := p.r
	if r.Backend == iptables { // before the record says that the programs ran: DEL would keep it
		for _, a := range r.Addrs {
			if err := ipt.CheckInstalled(a.family()); err != nil {
				return fmt.Errorf("host ports with iptables: %w", err)
			}
		}
	}
	if err := p.resolveSelf(ctx); err != nil {
		return err
	}
	if err := p.resolveIPTables(ctx); err != nil {
		return err
	}
	if err := p.update(ctx); err != nil {
		return err
	}
	if r.Backend == iptables {
		for _, a := range r.chainAddrs() {
			make := p.addChain
			if p.restores {
				make = p.restoreChain
			}
			if err := make(ctx, p.store, r, a); err != nil {
				return fmt.Errorf("host ports with iptables: %w", err)
			}
		}
	}
	if r.Localnet != "" {
		if err := localnet(r.Localnet).Write("1"); err != nil {
			return err
		}
	}
	for _, o := range p.replaced {
		if err := p.removeRecord(ctx, p.store, o); err != nil {
			return err
		}
	}
	return nil
}

// resolveSelf refuses a second ADD. It removes what an earlier attachment of the same name left, since attempt
// overwrites the record by which DEL would find it.
func (p *publication) resolveSelf(ctx context.Context) error {
	own, ok, err := p.store.Get(p.r.Hash())
	if err != nil || !ok || p.saved {
		return err
	}
	exists := cni.Errorf(cni.CodeExists, "host ports: this attachment has them already (%s); DEL removes them",
		p.r.Attachment)
	if err := p.mustBeGone(ctx, &own, exists); err != nil {
		return err
	}
	if err := p.removeRecord(ctx, p.store, &own); err != nil {
		return err
	}
	if _, isKept, err := p.store.Get(p.r.Hash()); err != nil || !isKept {
		return err
	}
	return cni.Errorf(cni.CodeIO, "host ports: what %s had is still there, for want of a program", p.r.Attachment)
}

// resolve decides about an owner. The ports of one that is gone are taken over. Those of another attachment of the
// container are left to it, and the record notes them as skipped. Anybody else's are refused.
func (p *publication) resolve(ctx context.Context, o *record) error {
	wanted, held := p.conflicts(p.r.hostPorts(), o.hostPorts())
	if len(wanted) == 0 {
		return nil
	}
	taken := portTaken(wanted[0], fmt.Sprintf("on %s by %s", held.Addr, o.Attachment))
	err := p.mustBeGone(ctx, o, taken)
	if err == nil {
		p.replaced = append(p.replaced, o)
	}
	if err != taken || p.leaving != 0 || !o.sharesContainer(p.r) {
		return err
	}
	for _, port := range wanted {
		p.Req.Warn("host port %s: left to %s, which is the same container", port, o.Attachment)
	}
	p.r.Skipped = append(p.r.Skipped, wanted...)
	p.r.trimLocalnet()
	return nil
}

// mustBeGone returns the refusal unless the owner has lost its host ports: the owner's container is gone, its DEL has
// begun, or the reference plugin's DEL removed its chain. The reference plugin's DEL does not remove Hawser's record.
func (p *publication) mustBeGone(ctx context.Context, o *record, refusal error) error {
	state, err := o.Location.state(p.Host)
	switch {
	case o.Ending: // the owner's DEL failed
		return nil
	case err != nil || state == gone:
		return err
	case state == leaving:
		p.leaving = o.Location.Link
		return refusal
	case o.Backend == nftables:
		return refusal
	}
	removed, err := p.chainRemoved(ctx, o)
	if err != nil || removed {
		return err
	}
	return refusal
}

// portTaken is the error of a host port that somebody else has.
func portTaken(wanted hostPort, by string) error {
	return cni.Errorf(cni.CodePortTaken, "host port %s: held %s", wanted, by)
}

// update replaces the elements of owners that are gone by the attachment's, in one batch.
func (p *publication) update(ctx context.Context) error {
	r := p.r
	err := owned(r.Options.MarkBit).Update(ctx, p.NF, func(tx *nft.Tx) error {
		return tx.Put(slices.Concat(r.items(), r.itemsBeside()), func(others []nft.Item) ([]nft.Item, error) {
			err := p.resolveNFTables(ctx, tx, others)
			switch {
			case err != nil:
			case r.Backend == nftables:
				err = tx.Ensure(r.ownChains()...)
			case r.Localnet != "":
				err = tx.EnsureLayout(guardLayout())
			}
			if err == nil {
				err = stageGuard(tx, p.store, r)
			}
			if err == nil {
				err = p.save(ctx)
			}
			if err != nil || r.Backend == iptables {
				return nil, err
			}
			return r.items(), nil
		})
	})
	if r.Backend == iptables && errors.Is(err, nft.ErrUnsupported) {
		if r.Localnet != "" {
			p.Req.Warn("host ports of 127.0.0.1 lead nowhere: the kernel has no nf_tables to guard the host's " +
				"loopback with")
			r.Localnet = ""
		}
		return p.save(ctx)
	}
	return err
}

// save writes the record, before the batch: from here on DEL knows what there may be.
func (p *publication) save(ctx context.Context) error {
	if !p.saved {
		p.saved = true
		p.Req.OnFail("remove the host ports", p.remove)
	}
	return p.store.Put(ctx, *p.r)
}

// resolveNFTables decides about the owners of elements that conflict: others were found by their keys; those of one
// address, which conflict with a port of all addresses, are in short maps, and are listed.
func (p *publication) resolveNFTables(ctx context.Context, tx *nft.Tx, others []nft.Item) error {
	atMaps := nft.Owned{Layout: nft.Layout{Table: table}}
	for _, f := range nft.Families() {
		if slices.ContainsFunc(p.r.hostPorts(), func(port hostPort) bool { return port.Addr == allOf(f) }) {
			atMaps.Sets = append(atMaps.Sets, named(f, atMap))
		}
	}
	listed, err := atMaps.All(tx.Conn, func(mark string) bool { return !p.r.Owns(mark) })
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, it := range append(others, listed...) {
		hash, _, _ := strings.Cut(it.Comment, " ")
		if seen[hash] {
			continue
		}
		wanted, _ := p.conflicts(p.r.hostPorts(), []hostPort{elementPort(it)})
		if len(wanted) == 0 {
			continue
		}
		owner, ok := record{}, false
		if cni.ValidName(hash) {
			if owner, ok, err = p.store.Get(hash); err != nil {
				return err
			}
		}
		if !ok {
			return portTaken(wanted[0], fmt.Sprintf("by %q, of whom there is no record (DEL or GC of that network"+
				" removes it)", it.Comment))
		}
		seen[hash] = true
		if err := p.resolve(ctx, &owner); err != nil {
			return err
		}
	}
	return nil
}

// mayHaveOthers is what cannot be known for want of a program.
const mayHaveOthers = `chain "` + hostportDNAT + `" may have rules of other plugins for the same ports`

// resolveIPTables decides about owners with host ports in iptables, and about the reference's containers.
func (p *publication) resolveIPTables(ctx context.Context) error {
	isUsed := p.r.Backend == iptables
	for i := 0; i < len(p.r.Addrs) && !isUsed; i++ {
		where, err := natChain(p.r.Addrs[i].family(), hostportDNAT).Variants(ctx, p.NF)
		if err := ipt.WarnIfMissing(p.Req.Warn, mayHaveOthers, err); err != nil {
			return err
		}
		isUsed = len(where) > 0
	}
	if isUsed {
		all, err := p.store.All()
		if err != nil {
			return err
		}
		known := map[string]bool{p.r.chain(): true}
		for _, o := range all {
			known[o.chain()] = true
			if o.Backend != iptables || o.Hash() == p.r.Hash() {
				continue
			}
			if err := p.resolve(ctx, o); err != nil {
				return err
			}
		}
		if err := p.resolveReferenceChains(ctx, known); err != nil {
			return err
		}
	}
	return nft.IfSupported(p.resolveReferenceTables(ctx))
}
