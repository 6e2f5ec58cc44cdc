package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const (
	stateDir     = "/run/hawser/portmap"
	lockFile     = "lock"
	ledgerFile   = "ledger"
	recordSuffix = ".json"

	// lockWait is how long others may take. One that runs iptables waits for
	// the xtables lock itself.
	lockWait = time.Minute
)

// store is the directory of the records and the ledger, locked.
type store struct {
	dir    *statefile.Dir // nil where there is none, and so no record
	held   *statefile.Held
	ledger ledger
}

// openStore locks the host's port mappings: nobody else changes them until
// close. A lock that stays held is code 11 and names its holder.
func openStore(ctx context.Context) (*store, error) {
	dir, err := statefile.Open(stateDir, 0o700)
	if err != nil {
		return nil, err
	}
	return lockStore(ctx, dir)
}

func lockStore(ctx context.Context, dir *statefile.Dir) (*store, error) {
	held, err := dir.Lock(ctx, lockFile, 0o600, lockWait)
	if err != nil {
		return nil, errors.Join(tryAgain(err), dir.Close())
	}
	s := &store{dir: dir, held: held}
	if err := s.load(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// openExistingStore is openStore for calls that write no record. On a host that
// never had one they make nothing.
func openExistingStore(ctx context.Context) (*store, error) {
	dir, err := statefile.OpenExisting(stateDir)
	if statefile.IsAbsent(err) {
		return &store{}, nil
	}
	if err != nil {
		return nil, err
	}
	return lockStore(ctx, dir)
}

func (s *store) close() error {
	if s.dir == nil {
		return nil
	}
	return errors.Join(s.held.Unlock(), s.dir.Close())
}

// load reads the ledger, or makes it anew from the records when it cannot be
// read.
func (s *store) load() error {
	data, err := s.dir.Read(ledgerFile)
	if err == nil {
		if s.ledger, err = decodeLedger(data); err == nil {
			return nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	all, err := s.all()
	for _, st := range all {
		s.ledger = s.ledger.with(st)
	}
	return err
}

// put writes an attachment's record, and then the ledger: a claim without a
// record is a leftover.
func (s *store) put(st *state) error {
	data, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("record of %s: %w", st.attachment(), err)
	}
	if err := s.dir.Replace(st.attachment().Hash()+recordSuffix, data, 0o600); err != nil {
		return err
	}
	return s.write(s.ledger.with(st))
}

// drop removes an attachment from the ledger, and then its record.
func (s *store) drop(owner [8]byte) error {
	if s.dir == nil {
		return nil
	}
	record := hex.EncodeToString(owner[:]) + recordSuffix
	err := s.write(s.ledger.without(owner))
	if errors.Is(err, unix.ENOSPC) { // the record has the room that the ledger needs
		return errors.Join(s.dir.Discard(record), s.write(s.ledger.without(owner)))
	}
	if err != nil {
		return err
	}
	return s.dir.Discard(record)
}

func (s *store) write(l ledger) error {
	if err := s.dir.Replace(ledgerFile, l.encode(), 0o600); err != nil {
		return err
	}
	s.ledger = l
	return nil
}

// record reads an attachment's record; nil when there is none. One that cannot
// be decoded, or that no ADD has written, is as good as none.
func (s *store) record(owner [8]byte) (*state, error) {
	if s.dir == nil {
		return nil, nil
	}
	data, err := s.dir.Read(hex.EncodeToString(owner[:]) + recordSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	st := &state{}
	if json.Unmarshal(data, st) != nil || ownerOf(st) != owner || !st.sane() {
		return nil, nil
	}
	return st, nil
}

// all reads all records.
func (s *store) all() ([]*state, error) {
	if s.dir == nil {
		return nil, nil
	}
	names, err := s.dir.Names()
	if err != nil {
		return nil, err
	}
	var out []*state
	for _, name := range names {
		hash, isRecord := strings.CutSuffix(name, recordSuffix)
		if !isRecord {
			continue
		}
		st, err := s.record(hashKey(hash))
		if err != nil {
			return nil, err
		}
		if st != nil {
			out = append(out, st)
		}
	}
	return out, nil
}

// siblings reads the records of the container's other attachments to the
// network that are on iptables: they share its chain.
func (s *store) siblings(st *state) ([]*state, error) {
	var out []*state
	for _, owner := range s.ledger.siblings(st) {
		other, err := s.record(owner)
		if err != nil {
			return nil, err
		}
		if other != nil && other.Backend == iptables {
			out = append(out, other)
		}
	}
	return out, nil
}

// tryAgain gives an error about a lock its code.
func tryAgain(err error) error {
	if errors.Is(err, statefile.ErrBusy) {
		return cni.Errorf(cni.CodeTryAgain, "%w", err)
	}
	return err
}
