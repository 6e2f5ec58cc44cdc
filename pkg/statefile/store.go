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

// Record is a value that is kept as JSON, in a file that its Hash names. Plausible says whether a call of ours can have
// written it: a file may be damaged.
type Record interface {
	Hash() string
	Plausible() bool
}

// Records are the records of type T in the directory Path, which is no symbolic link; those before it are followed. A
// file that cannot be decoded, has another record's name, or is not Plausible, is no record.
//
// Files change in one step, so that Get and Any need no lock. Whoever writes waits for the directory's lock, at most as
// long as Wait says: then the error matches ErrBusy.
type Records[T Record] struct {
	Path string
	Wait time.Duration // 0 = 30 seconds
}

// Store is a directory of Records. Unless it was opened for reading only, nobody else writes there until Close.
type Store[T Record] struct{ *store }

// store is Store without its type, so that there is one code for all types.
type store struct {
	path  string
	wait  time.Duration
	blank func() Record // a pointer to a T

	dir  *Dir  // nil where there is no directory
	lock *Lock // nil for reading
	err  error // of a directory that could not be opened for reading
}

// closed is the store before it is opened.
func (r Records[T]) closed() *store {
	return &store{path: r.Path, wait: r.Wait, blank: func() Record { return any(new(T)).(Record) }}
}

// of is the record that a pointer of a store leads to.
func of[T Record](r Record) (record T) {
	if r != nil {
		record = *any(r).(*T)
	}
	return record
}

// Open makes the directory, where there is none, and locks it.
func (r Records[T]) Open(ctx context.Context) (*Store[T], error) {
	s := r.closed()
	return &Store[T]{s}, s.open(ctx)
}

func (s *store) open(ctx context.Context) (err error) {
	if s.dir, err = OpenOwn(s.path, 0o700); err != nil {
		return err
	}
	return s.take(ctx)
}

// OpenExisting is Open for calls that put no record: without a directory at the path the store is empty.
func (r Records[T]) OpenExisting(ctx context.Context) (*Store[T], error) {
	s := r.closed()
	return &Store[T]{s}, s.openExisting(ctx)
}

func (s *store) openExisting(ctx context.Context) error {
	if s.read().dir == nil {
		return s.err
	}
	return s.take(ctx)
}

// take locks the directory, or closes it.
func (s *store) take(ctx context.Context) (err error) {
	if s.lock, err = s.dir.LockFile(ctx, storeLock, 0o600, s.wait); err != nil {
		err = errors.Join(err, s.Close())
	}
	return err
}

// read opens the directory without the lock.
func (s *store) read() *store {
	if s.dir, s.err = OpenOwn(s.path, 0); IsAbsent(s.err) {
		s.err = nil
	}
	return s
}

// Locked calls work with the store of OpenExisting, which it closes, also after a panic.
func (r Records[T]) Locked(ctx context.Context, work func(*Store[T]) error) error {
	s := r.closed()
	return s.locked(ctx, func() error { return work(&Store[T]{s}) })
}

func (s *store) locked(ctx context.Context, work func() error) (err error) {
	if err := s.openExisting(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return work()
}

// Get is Store.Get.
func (r Records[T]) Get(name string) (record T, ok bool, err error) {
	s := Store[T]{r.closed().read()}
	defer s.Close()
	return s.Get(name)
}

// Any is Store.Any.
func (r Records[T]) Any(matches func(record T) bool) (bool, error) {
	s := Store[T]{r.closed().read()}
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
	list, err := r.closed().list()
	for _, k := range list {
		all = append(all, Kept[T]{of[T](k.Record), k.Path, k.Written})
	}
	return all, err
}

func (s *store) list() (all []Kept[Record], err error) {
	if s.read().dir == nil {
		return nil, s.err
	}
	defer s.Close()
	names, err := s.names()
	errs := []error{err}
	for _, name := range names {
		record, ok, err := s.get(name)
		errs = append(errs, err)
		path := filepath.Join(s.path, name+recordSuffix)
		if info, err := os.Lstat(path); ok && err == nil {
			all = append(all, Kept[Record]{record, path, info.ModTime()})
		}
	}
	return all, errors.Join(errs...)
}

// HasFile says whether there is a file of the record, damaged or half written ones too. It takes no lock.
func (r Records[T]) HasFile(name string) bool { return hasFile(r.Path, name) }

func hasFile(dir, name string) bool {
	return slices.ContainsFunc([]string{name + recordSuffix, temporary(name + recordSuffix)}, func(file string) bool {
		_, err := os.Lstat(filepath.Join(dir, file))
		return !errors.Is(err, fs.ErrNotExist)
	})
}

// Put is Store.Put. It makes the directory.
func (r Records[T]) Put(ctx context.Context, record T) error {
	s := r.closed()
	if err := s.open(ctx); err != nil {
		return err
	}
	return errors.Join(s.put(record), s.Close())
}

// Drop is Store.Drop. It takes no lock when there is none of the records.
func (r Records[T]) Drop(ctx context.Context, names ...string) error {
	return r.closed().drop(ctx, names)
}

func (s *store) drop(ctx context.Context, names []string) error {
	if !slices.ContainsFunc(names, func(name string) bool { return hasFile(s.path, name) }) {
		return nil
	}
	return s.locked(ctx, func() error { return s.Drop(names...) })
}

// All is Store.All.
func (r Records[T]) All(ctx context.Context) (all []*T, err error) {
	err = r.Locked(ctx, func(s *Store[T]) error {
		all, err = s.All()
		return err
	})
	return all, err
}

// Collect calls end for each record that is stale, and drops it unless that fails. It holds no lock meanwhile, and goes
// on after an error.
func (r Records[T]) Collect(ctx context.Context, stale func(T) bool, end func(T) error) error {
	return r.closed().collect(ctx, func(record Record) (isStale bool, err error) {
		if typed := of[T](record); stale(typed) {
			return true, end(typed)
		}
		return false, nil
	})
}

func (s *store) collect(ctx context.Context, end func(Record) (isStale bool, err error)) error {
	var all []Record
	err := s.locked(ctx, func() (err error) {
		all, err = s.all()
		return err
	})
	errs := []error{err}
	var ended []string
	for _, record := range all {
		isStale, err := end(record)
		if errs = append(errs, err); isStale && err == nil {
			ended = append(ended, record.Hash())
		}
	}
	return errors.Join(append(errs, s.drop(ctx, ended))...)
}

// Close unlocks the directory. It may be called again.
func (s *store) Close() error {
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
	found, ok, err := s.get(name)
	return of[T](found), ok, err
}

func (s *store) get(name string) (record Record, ok bool, err error) {
	if s.dir == nil {
		return nil, false, s.err
	}
	data, err := s.dir.Read(name + recordSuffix)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrIrregular) {
		return nil, false, nil
	}
	record = s.blank()
	if err != nil || json.Unmarshal(data, record) != nil || record.Hash() != name || !record.Plausible() {
		return nil, false, err
	}
	return record, true, nil
}

// Put writes a record, whole or not at all.
func (s *Store[T]) Put(record T) error { return s.put(record) }

func (s *store) put(record Record) error {
	data, err := json.Marshal(record)
	if err == nil && s.dir == nil {
		err = fs.ErrClosed
	}
	if err != nil {
		return fmt.Errorf("record %q: %w", record.Hash(), err)
	}
	return s.dir.Replace(record.Hash()+recordSuffix, data, 0o600)
}

// Drop removes records, also what a killed Put left of them, and goes on after an error. An absent one is no error, nor
// a directory in its place.
func (s *store) Drop(names ...string) error {
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
	list, err := s.all()
	for _, record := range list {
		all = append(all, any(record).(*T))
	}
	return all, err
}

func (s *store) all() (all []Record, err error) {
	if s.dir == nil {
		return nil, nil
	}
	if err := s.dir.Sweep(); err != nil {
		return nil, err
	}
	_, err = s.any(func(record Record) bool {
		all = append(all, record)
		return false
	})
	return all, err
}

// Any says whether there is a record that matches. It reads no more than it has to.
func (s *Store[T]) Any(matches func(record T) bool) (bool, error) {
	return s.any(func(record Record) bool { return matches(of[T](record)) })
}

func (s *store) any(matches func(Record) bool) (bool, error) {
	if s.dir == nil {
		return false, s.err
	}
	names, err := s.names()
	if err != nil {
		return false, err
	}
	for _, name := range names {
		record, ok, err := s.get(name)
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
func (s *store) names() (names []string, err error) {
	files, err := s.dir.Names()
	slices.Sort(files)
	for _, file := range files {
		if name, isRecord := strings.CutSuffix(file, recordSuffix); isRecord {
			names = append(names, name)
		}
	}
	return names, err
}
