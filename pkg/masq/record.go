package masq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hawser-cni/plugins/pkg/statefile"
)

// stateDir holds a record for each iptables chain of ours: the chain's rules name the container only,
// so which of its interfaces has which address has to stand beside it. A chain without a record was
// made by the reference plugins.
const stateDir = "/run/hawser/masq"

const lockSuffix = ".lock"

// lockWait is how long another call for the same container may take; it runs programs that wait for
// the xtables lock themselves.
const lockWait = time.Minute

// record is the file, and the lock that keeps others from the same chain.
type record struct {
	dir  *statefile.Dir
	held *statefile.Held
	name string

	content
}

type content struct {
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	// Interfaces maps the container's interfaces to their addresses.
	Interfaces map[string][]netip.Prefix `json:"interfaces"`
}

// decodeContent reads the record of a chain. One that no call can have written says nothing: rules are
// made from it, and its file may have been damaged.
func decodeContent(chain string, data []byte) content {
	var c content
	if json.Unmarshal(data, &c) != nil || chainOf(c.Network, c.ContainerID) != chain {
		return content{}
	}
	for _, addrs := range c.Interfaces {
		if slices.ContainsFunc(addrs, func(p netip.Prefix) bool {
			return !p.IsValid() || p.Addr().Zone() != "" || p.Addr().Is4In6()
		}) {
			return content{}
		}
	}
	return c
}

// openRecord locks and reads the record of a chain.
func openRecord(ctx context.Context, chain string) (*record, error) {
	dir, err := statefile.Open(stateDir, 0o700)
	if err != nil {
		return nil, err
	}
	held, err := dir.Lock(ctx, chain+lockSuffix, 0o600, lockWait)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	data, err := dir.Read(chain)
	r := &record{dir: dir, held: held, name: chain, content: decodeContent(chain, data)}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(err, r.close())
	}
	if r.Interfaces == nil {
		r.Interfaces = map[string][]netip.Prefix{}
	}
	return r, nil
}

// save writes the record, or removes it with its lock when no interface is left in it.
func (r *record) save() error {
	if len(r.Interfaces) == 0 {
		return errors.Join(r.dir.Discard(r.name), r.dir.Remove(r.name+lockSuffix))
	}
	data, err := json.Marshal(r.content)
	if err != nil {
		return fmt.Errorf("record %q: %w", r.name, err)
	}
	return r.dir.Replace(r.name, data, 0o600)
}

func (r *record) close() error { return errors.Join(r.held.Unlock(), r.dir.Close()) }

// others are the addresses of the family that the container's other interfaces have.
func (r *record) others(ifName string, f family) []netip.Prefix {
	var out []netip.Prefix
	for name, addrs := range r.Interfaces {
		if name != ifName {
			out = append(out, f.of(addrs)...)
		}
	}
	return out
}

// records reads all records of a network, without their locks. No directory means no records.
func records(network string) (map[string]content, error) {
	dir, err := statefile.OpenExisting(stateDir)
	if statefile.IsAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Names()
	if err != nil {
		return nil, err
	}
	out := map[string]content{}
	for _, name := range names {
		if strings.HasSuffix(name, lockSuffix) {
			continue
		}
		data, err := dir.Read(name)
		if err != nil {
			continue
		}
		if c := decodeContent(name, data); c.Network == network {
			out[name] = c
		}
	}
	return out, nil
}

// sweepLocks removes the locks of chains without a record: calls that were killed have left them. One that
// is held is not looked at.
func sweepLocks(ctx context.Context) error {
	dir, err := statefile.OpenExisting(stateDir)
	if statefile.IsAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Names()
	errs := []error{err}
	ctx, cancel := context.WithDeadline(ctx, time.Now())
	defer cancel()
	for _, name := range names {
		chain, isLock := strings.CutSuffix(name, lockSuffix)
		if !isLock || slices.Contains(names, chain) {
			continue
		}
		rec, err := openRecord(ctx, chain)
		if errors.Is(err, statefile.ErrBusy) {
			continue
		}
		if err == nil {
			err = errors.Join(dropLock(rec), rec.close())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// recorded says whether the chain has a record, or the lock of one: a call that was killed before it
// wrote the record leaves that.
func recorded(chain string) (bool, error) {
	dir, err := statefile.OpenExisting(stateDir)
	if statefile.IsAbsent(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = dir.Close() }()
	for _, name := range []string{chain, chain + lockSuffix} {
		_, err := dir.Read(name)
		if !errors.Is(err, fs.ErrNotExist) {
			return err == nil, err
		}
	}
	return false, nil
}
