package clusterlocal

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ranges"
	"github.com/hawser-cni/plugins/pkg/statefile"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// record says which names an attachment's ADD has asked for. It is written before each request, so that whoever comes
// after a killed call knows where to look.
type record struct {
	cni.Attachment
	Nonce string            `json:"nonce"`
	Held  []string          `json:"held,omitempty"` // names whose leases the store has confirmed
	Open  []string          `json:"open,omitempty"` // names for which a request is not answered
	UIDs  map[string]string `json:"uids,omitempty"` // of the leases of Held, by their names
}

// hold adds a lease that the store has confirmed.
func (r *record) hold(l lease) {
	r.Held = append(r.Held, l.name)
	if r.UIDs == nil {
		r.UIDs = map[string]string{}
	}
	r.UIDs[l.name] = l.uid
}

// drop is the reverse of hold.
func (r *record) drop(name string) {
	r.Held = slices.DeleteFunc(r.Held, func(n string) bool { return n == name })
	delete(r.UIDs, name)
}

// Plausible says whether a call of ours can have written the record.
func (r record) Plausible() bool { return r.Nonce != "" && areNames(r.Held) && areNames(r.Open) }

func areNames(names []string) bool {
	return !slices.ContainsFunc(names, func(n string) bool { _, ok := addressOf(n); return !ok })
}

func (r record) names() []string {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(r.Held, r.Open))))
}

// tombstone is what stays of a record with open names: a request that is under way may be carried out after DEL.
type tombstone struct {
	Nonce string        `json:"nonce"`
	Names []string      `json:"names"`
	Boot  string        `json:"boot"`
	Since time.Duration `json:"since"` // of the boot
}

// Hash names the tombstone's file.
func (t tombstone) Hash() string { return t.Nonce }

// Plausible says whether a call of ours can have written the tombstone.
func (t tombstone) Plausible() bool { return cni.ValidName(t.Nonce) && areNames(t.Names) }

const (
	lateTime = 5 * time.Minute // in which a request may still be carried out
	lateEnd  = 24 * time.Hour  // after which a tombstone goes though no look has succeeded
	lateMost = 2               // tombstones that a call looks after
	lookTime = 2 * time.Second // for that
)

func (p place) records() statefile.Records[record] {
	return statefile.Records[record]{Path: filepath.Join(p.dataDir, p.space)}
}

func (p place) tombstones() statefile.Records[tombstone] {
	return statefile.Records[tombstone]{Path: filepath.Join(p.dataDir, p.space, "late")}
}

// begin makes the record of an ADD; an attachment that has one is code 100.
func (s *session) begin(ctx context.Context, r record) (err error) {
	dir, err := s.records().Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	has, ok, err := dir.Get(r.Hash())
	if err != nil {
		return err
	}
	if ok {
		return cni.Errorf(cni.CodeExists, "%s has been allocated to %s, duplicate allocation is not allowed; "+
			"DEL gives it back", textOf(has.names()), r.Attachment)
	}
	return dir.Put(r)
}

// keep writes the record of an ADD anew. Where DEL has taken it away, or another ADD has its place, nothing is written.
func (s *session) keep(ctx context.Context, r record) error {
	return s.records().Locked(ctx, func(dir *statefile.Store[record]) error {
		has, ok, err := dir.Get(r.Hash())
		if err == nil && (!ok || has.Nonce != r.Nonce) {
			err = cni.Errorf(cni.CodeTryAgain, "DEL came during ADD: the record of %s is gone", r.Attachment)
		}
		if err != nil {
			return err
		}
		return dir.Put(r)
	})
}

// end releases what a record names. Then the record goes; names that are open become a tombstone before.
func (s *session) end(ctx context.Context, r record) error {
	errs := []error{s.unguard(ctx, r.Attachment, addrsOf(r.names()))}
	for _, name := range r.names() {
		errs = append(errs, s.store.release(ctx, lease{name: name, uid: r.UIDs[name], Nonce: r.Nonce}))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if len(r.Open) > 0 {
		boot, err := sysctl.BootID()
		if err == nil {
			err = s.tombstones().Put(ctx, tombstone{r.Nonce, r.Open, boot, sysctl.SinceBoot()})
		}
		if err != nil {
			return err
		}
	}
	return s.records().Locked(ctx, func(dir *statefile.Store[record]) error {
		if has, ok, err := dir.Get(r.Hash()); err != nil || ok && has.Nonce != r.Nonce {
			return err // another ADD's
		}
		return dir.Drop(r.Hash())
	})
}

// sweep looks after tombstones: late requests may have been carried out since the last look. The call that it is part
// of has done its work, so an error is left to the next one.
func (s *session) sweep(ctx context.Context) {
	late, _ := s.tombstones().List()
	if len(late) == 0 {
		return
	}
	slices.SortFunc(late, func(a, b statefile.Kept[tombstone]) int { return a.Written.Compare(b.Written) })
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	boot, err := sysctl.BootID()
	if err != nil || s.connect(ctx) != nil {
		return
	}
	for _, kept := range late[:min(len(late), lateMost)] {
		t, age := kept.Record, lateEnd // of an earlier boot: GC asks for all leases in each
		if t.Boot == boot {
			age = sysctl.SinceBoot() - t.Since // before the look
		}
		var err error
		for _, name := range t.Names {
			err = errors.Join(err, s.store.release(ctx, lease{name: name, Nonce: t.Nonce}))
		}
		if age >= lateEnd || err == nil && age > lateTime {
			_ = s.tombstones().Drop(ctx, t.Hash())
		} else {
			_ = s.tombstones().Put(ctx, t) // written last, so the others are looked after before
		}
	}
}

// forget removes a file that is no record, as a damaged disk leaves it. What it has named the next GC finds.
func (s *session) forget(ctx context.Context, a cni.Attachment) error {
	if !s.records().HasFile(a.Hash()) {
		return nil
	}
	dir, err := statefile.OpenOwn(s.records().Path, 0)
	if err != nil {
		return err
	}
	err = dir.Remove(listed(a.Network))
	return errors.Join(err, dir.Close(), s.records().Drop(ctx, a.Hash()))
}

// listed is the file that says in which boot GC has asked the store what the node holds of a network. Once in each it
// does: records may be lost with the node's disk, or by a power cut.
func listed(network string) string { return cni.Digest(network, 16) + ".listed" }

// known is the file that says in which boot the API server had a node of this name.
func known(node string) string { return cni.Digest(node, 16) + ".known" }

// isMarked says whether such a file is of this boot.
func (p place) isMarked(file, boot string) bool {
	was, err := os.ReadFile(filepath.Join(p.records().Path, file))
	return err == nil && string(was) == boot
}

// mark makes it so.
func (p place) mark(ctx context.Context, file, boot string) error {
	lock, err := p.records().Open(ctx) // which makes the directory
	if err != nil {
		return err
	}
	dir, err := statefile.OpenOwn(p.records().Path, 0)
	if err == nil {
		err = errors.Join(dir.Replace(file, []byte(boot), 0o600), dir.Close())
	}
	return errors.Join(err, lock.Close())
}

// textOf are the addresses of names, for messages.
func textOf(names []string) string {
	if len(names) == 0 {
		return "no address yet"
	}
	return ranges.Join(addrsOf(names), ", ")
}

func addrsOf(names []string) (all []netip.Addr) {
	for _, n := range names {
		addr, _ := addressOf(n)
		all = append(all, addr)
	}
	return all
}
