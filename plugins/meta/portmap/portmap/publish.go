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

// publication is the part of ADD, or of reapply, that holds the lock of the records.
type publication struct {
	call        call
	store       *store
	r           *record
	isRecorded  bool      // the record is written, and its undo is registered
	isRestore   bool      // the rules are restored from an existing record
	leavingLink int       // index of the host end for whose removal the next attempt waits; 0 = none
	staleOwners []*record // owners whose rules are removed after the attachment's rules have been added
}

// leaveTimeout limits the wait for the kernel to remove the host ends of containers whose namespaces have ended.
const leaveTimeout = time.Second

// publish adds the attachment's rules, unless another attachment has one of the host ports.
func (c call) publish(ctx context.Context, cfg config, r *record) (err error) {
	if r.Backend, err = c.chooseBackend(cfg); err != nil {
		return err
	}
	if r.Backend == iptables {
		if err := r.testConditions(ctx); err != nil {
			return err
		}
	}
	if err := c.publishLocked(ctx, cfg, r); err != nil {
		return err
	}
	return r.compileConditions(ctx)
}

// publishLocked is the part of publish that holds the lock of the records. While it runs, no program parses unchecked
// text of a configuration, because that could delay other calls.
func (c call) publishLocked(ctx context.Context, cfg config, r *record) (err error) {
	s, err := records().Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	p := &publication{call: c, store: s, r: r}
	leaveCtx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	var unsupported error
	for {
		p.leavingLink = 0
		err := p.attempt(ctx)
		switch {
		case err == nil:
			return nil
		case p.leavingLink != 0:
			if c.Host.WaitGone(leaveCtx, p.leavingLink) != nil {
				return err
			}
		case cfg.backend == auto && r.Backend == nftables && errors.Is(err, nft.ErrUnsupported):
			r.Backend, unsupported = iptables, err
		default:
			return ipt.AsFallback(err, unsupported)
		}
	}
}

// attempt adds the rules in the record's backend. Stale rules of the attachment itself are removed first. Then all
// owners of the ports are checked before any other rule changes. The owners in nftables are checked last, in the
// transaction that replaces their elements.
func (p *publication) attempt(ctx context.Context) error {
	r := p.r
	if r.Backend == iptables { // before the record is written, because DEL keeps it while a program is missing
		for _, a := range r.Addrs {
			if err := ipt.CheckInstalled(a.family()); err != nil {
				return fmt.Errorf("host ports with iptables: %w", err)
			}
		}
	}
	if err := p.resolveOwnRecord(ctx); err != nil {
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
			addChain := p.call.addChain
			if p.isRestore {
				addChain = p.call.restoreChain
			}
			if err := addChain(ctx, p.store, r, a); err != nil {
				return fmt.Errorf("host ports with iptables: %w", err)
			}
		}
	}
	if r.Localnet != "" {
		if err := localnet(r.Localnet).Write("1"); err != nil {
			return err
		}
	}
	for _, o := range p.staleOwners {
		if err := p.call.removeRules(ctx, p.store, o); err != nil {
			return err
		}
	}
	return nil
}

// resolveOwnRecord refuses a second ADD of a live attachment. If the attachment has a stale record, resolveOwnRecord
// removes the rules of that record, because attempt overwrites it, and DEL would then not find them.
func (p *publication) resolveOwnRecord(ctx context.Context) error {
	own, ok, err := p.store.Get(p.r.Hash())
	if err != nil || !ok || p.isRecorded {
		return err
	}
	exists := cni.Errorf(cni.CodeExists, "host ports: this attachment has them already (%s); DEL removes them",
		p.r.Attachment)
	if err := p.refuseLiveOwner(ctx, &own, exists); err != nil {
		return err
	}
	if err := p.call.removeRules(ctx, p.store, &own); err != nil {
		return err
	}
	if _, isKept, err := p.store.Get(p.r.Hash()); err != nil || !isKept {
		return err
	}
	return cni.Errorf(cni.CodeIO, "host ports: earlier rules of %s could not be removed because a program is missing",
		p.r.Attachment)
}

// foreignRulesWarning begins the warning that iptables cannot be checked because a program is missing.
const foreignRulesWarning = `chain "` + hostportDNAT + `" may have rules of other plugins for the same ports`

// resolveIPTables decides about owners in iptables, and about the reference plugin's containers on both backends.
func (p *publication) resolveIPTables(ctx context.Context) error {
	isUsed := p.r.Backend == iptables
	for i := 0; i < len(p.r.Addrs) && !isUsed; i++ {
		variants, err := natChain(p.r.Addrs[i].family(), hostportDNAT).Variants(ctx, p.call.NF)
		if err := ipt.WarnIfMissing(p.call.Req.Warn, foreignRulesWarning, err); err != nil {
			return err
		}
		isUsed = len(variants) > 0
	}
	if isUsed {
		all, err := p.store.All()
		if err != nil {
			return err
		}
		hasRecord := map[string]bool{p.r.chain(): true} // by chain
		for _, o := range all {
			hasRecord[o.chain()] = true
			if o.Backend != iptables || o.Hash() == p.r.Hash() {
				continue
			}
			if err := p.resolveOwner(ctx, o); err != nil {
				return err
			}
		}
		if err := p.resolveReferenceChains(ctx, hasRecord); err != nil {
			return err
		}
	}
	return nft.IfSupported(p.resolveReferenceTables())
}

// update checks the owners in nftables, writes the record, and replaces the elements of stale owners with the
// attachment's elements, in one transaction. On the backend iptables, it adds only the guard's element.
func (p *publication) update(ctx context.Context) error {
	r := p.r
	err := owned(r.Options.MarkBit).Update(ctx, p.call.NF, func(tx *nft.Tx) error {
		return tx.Put(slices.Concat(r.items(), r.conflictItems()), func(others []nft.Item) ([]nft.Item, error) {
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
			p.call.Req.Warn("host ports of 127.0.0.1 do not work: the kernel has no nf_tables, which must protect " +
				"the host's loopback")
			r.Localnet = ""
		}
		return p.save(ctx)
	}
	return err
}

// save writes the record. It is called before the batch is committed, so that DEL finds everything that may exist.
func (p *publication) save(ctx context.Context) error {
	if !p.isRecorded {
		p.isRecorded = true
		p.call.Req.OnFail("remove the host ports", p.call.remove)
	}
	return p.store.Put(ctx, *p.r)
}

// resolveNFTables decides about the owners of conflicting elements. others has the elements with the keys of the wanted
// ports. A wanted port of all addresses also conflicts with elements of single addresses. Their keys are not known, so
// the maps of single addresses, which are usually short, are read as a whole.
func (p *publication) resolveNFTables(ctx context.Context, tx *nft.Tx, others []nft.Item) error {
	addrMaps := nft.Owned{Layout: nft.Layout{Table: table}}
	for _, f := range nft.Families() {
		if slices.ContainsFunc(p.r.hostPorts(), func(port hostPort) bool { return port.Addr == unspecified(f) }) {
			addrMaps.Sets = append(addrMaps.Sets, layoutName(f, addrPortMap))
		}
	}
	addrItems, err := addrMaps.All(tx.Conn, func(mark string) bool { return !p.r.Owns(mark) })
	if err != nil {
		return err
	}
	var marks []string // of the owners
	ports := map[string][]hostPort{}
	for _, it := range append(others, addrItems...) {
		if ports[it.Comment] == nil {
			marks = append(marks, it.Comment)
		}
		ports[it.Comment] = append(ports[it.Comment], elementPort(it))
	}
	for _, mark := range marks {
		wanted, _ := p.call.conflicts(p.r.hostPorts(), ports[mark])
		if len(wanted) == 0 {
			continue
		}
		hash, _, _ := strings.Cut(mark, " ")
		owner, ok := record{}, false
		if cni.ValidName(hash) {
			if owner, ok, err = p.store.Get(hash); err != nil {
				return err
			}
		}
		if !ok {
			remedy := "DEL or GC of that network removes it"
			if _, isMark := cni.ParseMark(mark); !isMark {
				remedy = "another program added it; nft delete element removes it"
			}
			return portConflict(wanted[0], fmt.Sprintf("by %q, which has no record (%s)", mark, remedy))
		}
		if err := p.resolveOwner(ctx, &owner); err != nil {
			return err
		}
	}
	return nil
}

// resolveOwner decides about an owner of wanted ports. A stale owner loses its ports. Another attachment of the same
// container keeps its ports, and the wanted ports that conflict with them are added to Skipped in p.r. Otherwise ADD
// fails.
func (p *publication) resolveOwner(ctx context.Context, o *record) error {
	wanted, port := p.call.conflicts(p.r.hostPorts(), o.hostPorts())
	if len(wanted) == 0 {
		return nil
	}
	refusal := portConflict(wanted[0], fmt.Sprintf("on %s by %s", port.Addr, o.Attachment))
	err := p.refuseLiveOwner(ctx, o, refusal)
	if err == nil {
		p.staleOwners = append(p.staleOwners, o)
	}
	if err != refusal || p.leavingLink != 0 || !o.sharesContainer(p.r) {
		return err
	}
	for _, port := range wanted {
		p.call.Req.Warn("host port %s: left to %s, which is the same container", port, o.Attachment)
	}
	p.r.Skipped = append(p.r.Skipped, wanted...)
	p.r.trimLocalnet()
	return nil
}

// refuseLiveOwner returns the refusal, or nil if the owner has lost its host ports. This is the case if its container
// no longer exists, its DEL has begun, or the reference plugin's DEL, which leaves Hawser's record, has removed its
// chain.
func (p *publication) refuseLiveOwner(ctx context.Context, o *record, refusal error) error {
	state, err := o.Location.state(p.call.Host)
	switch {
	case o.Ending: // the owner's DEL failed
		return nil
	case err != nil || state == ownerStale:
		return err
	case state == ownerLeaving:
		p.leavingLink = o.Location.Link
		return refusal
	case o.Backend == nftables:
		return refusal
	}
	isRemoved, err := p.call.isChainRemoved(ctx, o)
	if err != nil || isRemoved {
		return err
	}
	return refusal
}

// portConflict returns code 104 for a host port that another owner has. owner begins with "by" or "on".
func portConflict(wanted hostPort, owner string) error {
	return cni.Errorf(cni.CodePortTaken, "host port %s: held %s", wanted, owner)
}
