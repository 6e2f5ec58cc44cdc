package statefile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	recordSuffix = ".json"
	storeLock    = "lock"
)

// Record is a value that is kept as JSON, in a file that its Hash names. Plausible says whether
// a call of ours can have written it: a file may be damaged.
type Record interface {
	Hash() string
	Plausible() bool
}

// Records are the records of type T in the directory Path, which is no symbolic link; those
// before it are followed. A file that cannot be decoded, has another record's name, or is not
// Plausible, is no record.
//
// Files change in one step, so that Get and Any need no lock. Whoever writes waits for the
// directory's lock, at most as long as Wait says: then the error matches ErrBusy.
type Records[T Record] struct {
	Path string
	Wait time.Duration // 0 = 30 seconds
}

// Open makes the directory, where there is none, and locks it.
func (r Records[T]) Open(ctx context.Context) (*Store[T], error) {
	dir, err := OpenOwn(r.Path, 0o700)
	if err != nil {
		return nil, err
	}
	return r.lock(ctx, dir)
}

// OpenExisting is Open for calls that put no record: without a directory at the path the store is empty.
func (r Records[T]) OpenExisting(ctx context.Context) (*Store[T], error) {
	s := r.reader()
	if s.dir == nil {
		return s, s.err
	}
	return r.lock(ctx, s.dir)
}

// Locked calls work with the store of OpenExisting, which it closes, also after a panic.
func (r Records[T]) Locked(ctx context.Context, work func(*Store[T]) error) (err error) {
	s, err := r.OpenExisting(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return work(s)
}

func (r Records[T]) lock(ctx context.Context, dir *Dir) (*Store[T], error) {
	lock, err := dir.LockFile(ctx, storeLock, 0o600, r.Wait)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return &Store[T]{dir: dir, lock: lock}, nil
}

// reader opens the directory without the lock.
func (r Records[T]) reader() *Store[T] {
	dir, err := OpenOwn(r.Path, 0)
	if IsAbsent(err) {
		err = nil
	}
	return &Store[T]{dir: dir, err: err}
}

// Get is Store.Get.
func (r Records[T]) Get(name string) (record T, ok bool, err error) {
	s := r.reader()
	defer s.Close()
	return s.Get(name)
}

// Any is Store.Any.
func (r Records[T]) Any(matches func(record T) bool) (bool, error) {
	s := r.reader()
	defer s.Close()
	return s.Any(matches)
}

// Kept is a record, with its file.
type Kept[T Record] struct {
	Record  T
	Path    string
	Written time.Time
}

// List reads all records, in the order of their names. It takes no lock and removes nothing. What it could read comes
// beside an error.
func (r Records[T]) List() (all []Kept[T], err error) {
	s := r.reader()
	defer s.Close()
	if s.dir == nil {
		return nil, s.err
	}
	names, err := s.names()
	errs := []error{err}
	for _, name := range names {
		record, ok, err := s.Get(name)
		errs = append(errs, err)
		path := filepath.Join(r.Path, name+recordSuffix)
		if info, err := os.Lstat(path); ok && err == nil {
			all = append(all, Kept[T]{record, path, info.ModTime()})
		}
	}
	return all, errors.Join(errs...)
}

// HasFile says whether there is a file of the record, damaged or half written ones too:
// whether Drop has anything to do. It takes no lock.
func (r Records[T]) HasFile(name string) bool {
	return slices.ContainsFunc([]string{name + recordSuffix, temporary(name + recordSuffix)}, func(file string) bool {
		_, err := os.Lstat(filepath.Join(r.Path, file))
		return !errors.Is(err, fs.ErrNotExist)
	})
}

// Put is Store.Put. It makes the directory.
func (r Records[T]) Put(ctx context.Context, record T) error {
	s, err := r.Open(ctx)
	if err != nil {
		return err
	}
	return errors.Join(s.Put(record), s.Close())
}

// Drop is Store.Drop. It takes no lock when there is none of the records.
func (r Records[T]) Drop(ctx context.Context, names ...string) error {
	if !slices.ContainsFunc(names, r.HasFile) {
		return nil
	}
	return r.Locked(ctx, func(s *Store[T]) error { return s.Drop(names...) })
}

// All is Store.All.
func (r Records[T]) All(ctx context.Context) (all []*T, err error) {
	err = r.Locked(ctx, func(s *Store[T]) error {
		all, err = s.All()
		return err
	})
	return all, err
}

// Collect calls end for each record that is stale, and drops it unless that fails. It holds
// no lock meanwhile, and goes on after an error.
func (r Records[T]) Collect(ctx context.Context, stale func(T) bool, end func(T) error) error {
	all, err := r.All(ctx)
	errs := []error{err}
	var ended []string
	for _, record := range all {
		if !stale(*record) {
			continue
		}
		err := end(*record)
		if errs = append(errs, err); err == nil {
			ended = append(ended, (*record).Hash())
		}
	}
	return errors.Join(append(errs, r.Drop(ctx, ended...))...)
}

// Store is a directory of Records. Unless it was opened for reading only, nobody else writes there until Close.
type Store[T Record] struct {
	dir  *Dir  // nil where there is no directory
	lock *Lock // nil for reading
	err  error // of a directory that could not be opened for reading
}

// Close unlocks the directory. It may be called again.
func (s *Store[T]) Close() error {
	if s.dir == nil {
		return nil
	}
	err := s.dir.Close()
	if s.lock != nil {
		err = errors.Join(s.lock.Unlock(), err)
	}
	s.dir = nil
	return err
}

// Get reads a record; ok is false when there is none.
func (s *Store[T]) Get(name string) (record T, ok bool, err error) {
	var none T
	if s.dir == nil {
		return none, false, s.err
	}
	data, err := s.dir.Read(name + recordSuffix)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrIrregular) {
		return none, false, nil
	}
	if err != nil || json.Unmarshal(data, &record) != nil || record.Hash() != name || !record.Plausible() {
		return none, false, err
	}
	return record, true, nil
}

// Put writes a record, whole or not at all.
func (s *Store[T]) Put(record T) error {
	data, err := json.Marshal(record)
	if err == nil && s.dir == nil {
		err = fs.ErrClosed
	}
	if err != nil {
		return fmt.Errorf("record %q: %w", record.Hash(), err)
	}
	return s.dir.Replace(record.Hash()+recordSuffix, data, 0o600)
}

// Drop removes records, also what a killed Put left of them, and goes on after an error. An
// absent one is no error, nor a directory in its place.
func (s *Store[T]) Drop(names ...string) error {
	if s.dir == nil {
		return nil
	}
	var errs []error
	for _, name := range names {
		if err := s.dir.Discard(name + recordSuffix); !errors.Is(err, unix.EISDIR) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// All reads all records, in the order of their names, and removes what killed writers left.
func (s *Store[T]) All() (all []*T, err error) {
	if s.dir == nil {
		return nil, nil
	}
	if err := s.dir.Sweep(); err != nil {
		return nil, err
	}
	_, err = s.Any(func(record T) bool {
		all = append(all, &record)
		return false
	})
	return all, err
}

// Any says whether there is a record that matches. It reads no more than it has to.
func (s *Store[T]) Any(matches func(record T) bool) (bool, error) {
	if s.dir == nil {
		return false, s.err
	}
	names, err := s.names()
	if err != nil {
		return false, err
	}
	for _, name := range names {
		record, ok, err := s.Get(name)
		if err != nil {
			return false, err
		}
		if ok && matches(record) {
			return true, nil
		}
	}
	return false, nil
}

// names are those of the records' files, sorted.
func (s *Store[T]) names() (names []string, err error) {
	files, err := s.dir.Names()
	slices.Sort(files)
	for _, file := range files {
		if name, isRecord := strings.CutSuffix(file, recordSuffix); isRecord {
			names = append(names, name)
		}
	}
	return names, err
}
