package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const (
	// recordDir is where the records are, inside dataDir; the reference plugin
	// only looks for its own files.
	recordDir = ".hawser"
	lockName  = "lock"
	dirMode   = 0o700
	fileMode  = 0o600
	// lockWait is how long a call waits for its turn.
	lockWait = 30 * time.Second
)

// store is dataDir: the backup files that the reference plugin knows, and the
// records beside them. A backup file is made from the records of its name, and
// one without any record was made by other software.
type store struct {
	warn    func(format string, args ...any)
	backups *statefile.Dir
	records *statefile.Dir // nil where there are none
	held    *statefile.Held
}

// openStore opens and locks dataDir, and makes it.
func openStore(ctx context.Context, dataDir string, warn func(string, ...any)) (*store, error) {
	backups, err := statefile.Open(dataDir, dirMode)
	if err != nil {
		return nil, fmt.Errorf("dataDir: %w", err)
	}
	s := &store{warn: warn, backups: backups}
	if s.records, err = backups.OpenDir(recordDir, dirMode); err != nil {
		return nil, errors.Join(fmt.Errorf("dataDir: %w", err), s.close())
	}
	return s, s.lock(ctx)
}

// openExistingStore is openStore for DEL and GC, which make nothing: where
// there is no directory the store is nil.
func openExistingStore(ctx context.Context, dataDir string, warn func(string, ...any)) (*store, error) {
	backups, err := statefile.OpenExisting(dataDir)
	if statefile.IsAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("dataDir: %w", err)
	}
	s := &store{warn: warn, backups: backups}
	s.records, err = backups.OpenExistingDir(recordDir)
	if errors.Is(err, fs.ErrNotExist) { // nothing of ours, so nobody to lock out
		return s, nil
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("dataDir: %w", err), s.close())
	}
	return s, s.lock(ctx)
}

// lock locks the store or closes it.
func (s *store) lock(ctx context.Context) error {
	var err error
	s.held, err = s.records.Lock(ctx, lockName, fileMode, lockWait)
	if errors.Is(err, statefile.ErrBusy) {
		err = cni.Errorf(cni.CodeTryAgain, "dataDir: %w", err)
	}
	if err != nil {
		return errors.Join(err, s.close())
	}
	return nil
}

func (s *store) close() error {
	var errs []error
	if s.held != nil {
		errs = append(errs, s.held.Unlock())
	}
	if s.records != nil {
		errs = append(errs, s.records.Close())
	}
	return errors.Join(append(errs, s.backups.Close())...)
}

// names lists the records with these parts in their names; empty ones match
// any.
func (s *store) names(owner, backup, namespace string) ([]string, error) {
	if s.records == nil {
		return nil, nil
	}
	all, err := s.records.Names()
	return slices.DeleteFunc(all, func(name string) bool { return !isRecord(name, owner, backup, namespace) }), err
}

// read reads records, the oldest first. One that cannot be read is reported,
// and says nothing.
func (s *store) read(names []string) ([]record, error) {
	var all []record
	for _, name := range names {
		data, err := s.records.Read(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		r, err := decodeRecord(name, data)
		if err != nil {
			s.warn("record %s: %v", name, err)
			continue
		}
		all = append(all, r)
	}
	sortRecords(all)
	return all, nil
}

// find returns the records with these parts in their names.
func (s *store) find(owner, backup, namespace string) ([]record, error) {
	names, err := s.names(owner, backup, namespace)
	if err != nil {
		return nil, err
	}
	return s.read(names)
}

// put writes a record and the backup file that it is part of; alone says that
// no other record is. The record goes first: a backup file alone would be taken
// for other software's.
func (s *store) put(r record, alone bool) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := s.records.Replace(r.name(), data, fileMode); err != nil {
		return err
	}
	if !alone {
		return s.refresh(r.backup(), "")
	}
	return s.write(r.backup(), []record{r})
}

// remove removes a record, by its name, and the backup file with the last that
// it was made from. The file goes first: a record alone is found again.
func (s *store) remove(name, backup string) error {
	if err := s.refresh(backup, name); err != nil {
		return err
	}
	return s.records.Discard(name)
}

// refresh makes a backup file anew from its records, or removes it when there
// is none. One record is left out.
func (s *store) refresh(backup, without string) error {
	names, err := s.names("", backupHash(backup), "")
	if err != nil {
		return err
	}
	all, err := s.read(slices.DeleteFunc(names, func(n string) bool { return n == without }))
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return s.backups.Discard(backup)
	}
	return s.write(backup, all)
}

func (s *store) write(backup string, all []record) error {
	data, err := combine(all).encode()
	if err != nil {
		return err
	}
	return s.backups.Replace(backup, data, fileMode)
}

// combine takes of each value the oldest. The file serves one interface: that
// of the oldest record.
func combine(all []record) originals {
	var o originals
	for _, r := range all {
		if r.Place.sameNetns(all[0].Place) && r.Place.Link == all[0].Place.Link {
			o.fill(r.Before)
		}
	}
	return o
}

// backup reads a backup file; ok is false when there is none, or one that
// says nothing.
func (s *store) backup(name string) (o originals, ok bool, err error) {
	data, err := s.backups.Read(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return o, false, nil
	case err != nil && !errors.Is(err, statefile.ErrIrregular):
		return o, false, err
	case err == nil:
		o, err = decodeOriginals(data)
	}
	if err != nil {
		s.warn("backup %s/%s: %v", s.backups.Path(), name, err)
		return originals{}, false, nil
	}
	return o, true, nil
}
