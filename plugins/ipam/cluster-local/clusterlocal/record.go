package clusterlocal

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ranges"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// record lists the lease names that an attachment's ADD has requested. It is written before each request, so that a
// later call finds the leases of a call that was killed.
type record struct {
	cni.Attachment
	Nonce string            `json:"nonce"`
	Held  []string          `json:"held,omitempty"` // names of leases that the API server has confirmed
	Open  []string          `json:"open,omitempty"` // names whose requests have not been answered
	UIDs  map[string]string `json:"uids,omitempty"` // UIDs of the leases in Held, by name
}

// addLease adds a lease that the API server has confirmed.
func (r *record) addLease(l lease) {
	r.Held = append(r.Held, l.name)
	if r.UIDs == nil {
		r.UIDs = map[string]string{}
	}
	r.UIDs[l.name] = l.uid
}

func (r *record) removeLease(name string) {
	r.Held = slices.DeleteFunc(r.Held, func(n string) bool { return n == name })
	delete(r.UIDs, name)
}

// Plausible reports whether the plugin can have written the record.
func (r record) Plausible() bool {
	return r.Nonce != "" && areLeaseNames(r.Held) && areLeaseNames(r.Open)
}

func areLeaseNames(names []string) bool {
	return !slices.ContainsFunc(names, func(n string) bool { _, ok := addressOf(n); return !ok })
}

// names returns the names of all leases that the attachment may hold.
func (r record) names() []string {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(r.Held, r.Open))))
}

// tombstone replaces a record that has open names, because the API server may carry out a request after DEL.
type tombstone struct {
	cni.Attachment
	Nonce string        `json:"nonce"`
	Names []string      `json:"names"`
	Boot  string        `json:"boot"`
	Since time.Duration `json:"since"` // time of DEL, since the boot
}

// Hash returns the name of the tombstone's file.
func (t tombstone) Hash() string { return t.Nonce }

// Plausible reports whether the plugin can have written the tombstone.
func (t tombstone) Plausible() bool { return cni.ValidName(t.Nonce) && areLeaseNames(t.Names) }

const (
	lateRequestTime    = 5 * time.Minute // time within which the API server may carry out an unanswered request
	tombstoneMaxAge    = 24 * time.Hour  // age at which a tombstone is removed even if its leases cannot be released
	tombstonesPerSweep = 2               // tombstones that one call handles
	sweepTime          = 2 * time.Second // time limit of one sweep
)

func (p place) records() *statefile.Store[record] {
	return statefile.NewStore[record](filepath.Join(p.dataDir, p.space), statefile.DefaultWait)
}

func (p place) tombstones() *statefile.Store[tombstone] {
	return statefile.NewStore[tombstone](filepath.Join(p.dataDir, p.space, "late"), statefile.DefaultWait)
}

// createRecord writes the first record of an ADD. If the attachment has a record, it returns an error with code 100.
func (s *session) createRecord(ctx context.Context, r record) (err error) {
	dir, err := s.records().Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	existing, ok, err := dir.Get(r.Hash())
	if err != nil {
		return err
	}
	if ok {
		held := cmp.Or(ranges.Join(leaseAddrs(existing.names()), ", "), "no address yet")
		return cni.Errorf(cni.CodeExists, "%s has been allocated to %s, duplicate allocation is not allowed; "+
			"DEL releases it", held, r.Attachment)
	}
	return dir.Put(ctx, r)
}

// updateRecord replaces the record of an ADD. It fails if DEL or another ADD has changed the record since.
func (s *session) updateRecord(ctx context.Context, r record) error {
	return s.records().Locked(ctx, func(dir *statefile.Store[record]) error {
		current, ok, err := dir.Get(r.Hash())
		if err == nil && (!ok || current.Nonce != r.Nonce) {
			err = cni.Errorf(cni.CodeTryAgain, "DEL ran during ADD: the record of %s no longer exists", r.Attachment)
		}
		if err != nil {
			return err
		}
		return dir.Put(ctx, r)
	})
}

// releaseRecord releases all leases that the record names, and then removes the record. If it has open names, it
// first writes a tombstone.
func (s *session) releaseRecord(ctx context.Context, r record) error {
	errs := []error{s.unguard(ctx, r.Attachment, leaseAddrs(r.names()))}
	for _, name := range r.names() {
		errs = append(errs, s.cluster.release(ctx, lease{name: name, uid: r.UIDs[name], Nonce: r.Nonce}))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if len(r.Open) > 0 {
		boot, err := sysctl.BootID()
		if err == nil {
			err = s.tombstones().Put(ctx, tombstone{r.Attachment, r.Nonce, r.Open, boot, sysctl.Uptime()})
		}
		if err != nil {
			return err
		}
	}
	return s.records().Locked(ctx, func(dir *statefile.Store[record]) error {
		if current, ok, err := dir.Get(r.Hash()); err != nil || ok && current.Nonce != r.Nonce {
			return err // the record of another ADD
		}
		return dir.Drop(ctx, r.Hash())
	})
}

// sweepTombstones releases leases that late requests have created since the last sweep, and removes old tombstones.
// It is best effort: its caller has already succeeded, and the next call retries.
func (s *session) sweepTombstones(ctx context.Context) {
	late, _ := s.tombstones().List()
	if len(late) == 0 {
		return
	}
	slices.SortFunc(late, func(a, b statefile.File[tombstone]) int { return a.Written.Compare(b.Written) })
	ctx, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	boot, err := sysctl.BootID()
	if err != nil || s.connect(ctx) != nil {
		return
	}
	for _, kept := range late[:min(len(late), tombstonesPerSweep)] {
		// A tombstone of an earlier boot gets this age and is dropped, because GC lists all leases once per boot.
		t, age := kept.Record, tombstoneMaxAge
		if t.Boot == boot {
			age = sysctl.Uptime() - t.Since // measured before the requests below
		}
		err := s.unguardLate(ctx, t)
		for _, name := range t.Names {
			err = errors.Join(err, s.cluster.release(ctx, lease{name: name, Nonce: t.Nonce}))
		}
		if age >= tombstoneMaxAge || err == nil && age > lateRequestTime {
			_ = s.tombstones().Drop(ctx, t.Hash())
		} else {
			_ = s.tombstones().Put(ctx, t) // makes it the newest file, so that the next sweep handles the others first
		}
	}
}

// unguardLate removes entries that late requests have created in whereabouts' pools. If the attachment has a record
// again, the entries may be of its new ADD, and its DEL removes them all.
func (s *session) unguardLate(ctx context.Context, t tombstone) error {
	if s.guard == "" || t.ContainerID == "" { // an earlier version wrote no attachment
		return nil
	}
	if _, ok, err := s.records().Get(t.Attachment.Hash()); ok || err != nil {
		return err
	}
	return s.unguard(ctx, t.Attachment, leaseAddrs(t.Names))
}

// removeDamaged removes the attachment's file if it does not contain a record, for example because the disk is damaged.
// It also makes the next GC list the node's leases in the cluster, so that GC finds the leases that the record named.
func (s *session) removeDamaged(ctx context.Context, a cni.Attachment) error {
	if !s.records().HasFile(a.Hash()) {
		return nil
	}
	dir, err := statefile.OpenNoFollow(s.records().Path, 0)
	if err != nil {
		return err
	}
	err = dir.Remove(gcMarkFile(a.Network))
	return errors.Join(err, dir.Close(), s.records().Drop(ctx, a.Hash()))
}

// gcMarkFile returns the name of the file with the ID of the boot in which gc last listed a network's leases.
func gcMarkFile(network string) string { return cni.Digest(network, 16) + ".listed" }

// nodeMarkFile returns the name of the file with the ID of the boot in which checkNode last found the node.
func nodeMarkFile(node string) string { return cni.Digest(node, 16) + ".known" }

// isMarked reports whether file contains the ID of this boot.
func (p place) isMarked(file, boot string) bool {
	content, err := os.ReadFile(filepath.Join(p.records().Path, file))
	return err == nil && string(content) == boot
}

// setMark writes the boot ID to file.
func (p place) setMark(ctx context.Context, file, boot string) error {
	lock, err := p.records().Open(ctx) // also creates the directory
	if err != nil {
		return err
	}
	dir, err := statefile.OpenNoFollow(p.records().Path, 0)
	if err == nil {
		err = errors.Join(dir.Replace(file, []byte(boot), 0o600), dir.Close())
	}
	return errors.Join(err, lock.Close())
}

func leaseAddrs(names []string) (all []netip.Addr) {
	for _, n := range names {
		addr, _ := addressOf(n)
		all = append(all, addr)
	}
	return all
}

// list returns the addresses in all records of all spaces in dataDir. It does not contact the API server.
func list(_ context.Context, req *skel.Request) (all []cni.Holding, err error) {
	p, err := parsePlace(req)
	if err != nil {
		return nil, err
	}
	spaces, err := os.ReadDir(p.dataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	errs := []error{err}
	for _, space := range spaces {
		p.space = space.Name()
		kept, err := p.records().List()
		errs = append(errs, err)
		for _, k := range kept {
			for i, addr := range leaseAddrs(k.Record.names()) {
				h := cni.Holding{Attachment: k.Record.Attachment, Kind: cni.HeldAddress, Kept: k.Path, Since: k.Written,
					Value: addr.String() + " of " + p.space}
				if !slices.Contains(k.Record.Held, k.Record.names()[i]) {
					h.Value += ", requested"
				}
				all = append(all, h)
			}
		}
	}
	return all, errors.Join(errs...)
}

// listCommand implements "cluster-local list", which the tool hawser runs because it does not contain this plugin.
// The command prints what list returns for the configuration on standard input, or for no configuration.
func listCommand(env skel.Env) int {
	conf, err := io.ReadAll(env.Stdin)
	if len(conf) == 0 {
		conf = nil
	}
	var all []cni.Holding
	if err == nil {
		all, err = skel.ProgramOf("cluster-local", Plugin).List(context.Background(), conf)
	}
	if err = errors.Join(err, json.NewEncoder(env.Stdout).Encode(all)); err != nil {
		fmt.Fprintf(env.Stderr, "%v\n", err)
		return 1
	}
	return 0
}
