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

// files are Records without their type, so that there is one code for all types: blank makes an empty record.
type files struct {
	path  string
	wait  time.Duration
	blank func() Record // a pointer to a T
}

func (r Records[T]) files() files {
	return files{r.Path, r.Wait, func() Record { return any(new(T)).(Record) }}
}

// of is the record that a pointer of files leads to.
func of[T Record](r Record) (record T) {
	if r != nil {
		record = *any(r).(*T)
	}
	return record
}

// Open makes the directory, where there is none, and locks it.
func (r Records[T]) Open(ctx context.Context) (*Store[T], error) {
	return storeOf[T](r.files().open(ctx))
}

func storeOf[T Record](s *store, err error) (*Store[T], error) {
	if s == nil {
		return nil, err
	}
	return &Store[T]{s}, err
}

func (f files) open(ctx context.Context) (*store, error) {
	dir, err := OpenOwn(f.path, 0o700)
	if err != nil {
		return nil, err
	}
	return f.lock(ctx, dir)
}

// OpenExisting is Open for calls that put no record: without a directory at the path the store is empty.
func (r Records[T]) OpenExisting(ctx context.Context) (*Store[T], error) {
	return storeOf[T](r.files().openExisting(ctx))
}

func (f files) openExisting(ctx context.Context) (*store, error) {
	s := f.reader()
	if s.dir == nil {
		return s, s.err
	}
	return f.lock(ctx, s.dir)
}

// Locked calls work with the store of OpenExisting, which it closes, also after a panic.
func (r Records[T]) Locked(ctx context.Context, work func(*Store[T]) error) error {
	return r.files().locked(ctx, func(s *store) error { return work(&Store[T]{s}) })
}

func (f files) locked(ctx context.Context, work func(*store) error) (err error) {
	s, err := f.openExisting(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return work(s)
}

func (f files) lock(ctx context.Context, dir *Dir) (*store, error) {
	lock, err := dir.LockFile(ctx, storeLock, 0o600, f.wait)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return &store{dir: dir, lock: lock, blank: f.blank}, nil
}

// reader opens the directory without the lock.
func (f files) reader() *store {
	dir, err := OpenOwn(f.path, 0)
	if IsAbsent(err) {
		err = nil
	}
	return &store{dir: dir, err: err, blank: f.blank}
}

// Get is Store.Get.
func (r Records[T]) Get(name string) (record T, ok bool, err error) {
	s := r.files().reader()
	defer s.Close()
	found, ok, err := s.get(name)
	return of[T](found), ok, err
}

// Any is Store.Any.
func (r Records[T]) Any(matches func(record T) bool) (bool, error) {
	s := r.files().reader()
	defer s.Close()
	return s.any(func(record Record) bool { return matches(of[T](record)) })
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
	list, err := r.files().list()
	for _, k := range list {
		all = append(all, Kept[T]{of[T](k.Record), k.Path, k.Written})
	}
	return all, err
}

func (f files) list() (all []Kept[Record], err error) {
	s := f.reader()
	defer s.Close()
	if s.dir == nil {
		return nil, s.err
	}
	names, err := s.names()
	errs := []error{err}
	for _, name := range names {
		record, ok, err := s.get(name)
		errs = append(errs, err)
		path := filepath.Join(f.path, name+recordSuffix)
		if info, err := os.Lstat(path); ok && err == nil {
			all = append(all, Kept[Record]{record, path, info.ModTime()})
		}
	}
	return all, errors.Join(errs...)
}

// HasFile says whether there is a file of the record, damaged or half written ones too:
// whether Drop has anything to do. It takes no lock.
func (r Records[T]) HasFile(name string) bool { return r.files().hasFile(name) }

func (f files) hasFile(name string) bool {
	return slices.ContainsFunc([]string{name + recordSuffix, temporary(name + recordSuffix)}, func(file string) bool {
		_, err := os.Lstat(filepath.Join(f.path, file))
		return !errors.Is(err, fs.ErrNotExist)
	})
}

// Put is Store.Put. It makes the directory.
func (r Records[T]) Put(ctx context.Context, record T) error { return r.files().put(ctx, record) }

func (f files) put(ctx context.Context, record Record) error {
	s, err := f.open(ctx)
	if err != nil {
		return err
	}
	return errors.Join(s.put(record), s.Close())
}

// Drop is Store.Drop. It takes no lock when there is none of the records.
func (r Records[T]) Drop(ctx context.Context, names ...string) error {
	return r.files().drop(ctx, names)
}

func (f files) drop(ctx context.Context, names []string) error {
	if !slices.ContainsFunc(names, f.hasFile) {
		return nil
	}
	return f.locked(ctx, func(s *store) error { return s.Drop(names...) })
}

// All is Store.All.
func (r Records[T]) All(ctx context.Context) (all []*T, err error) {
	list, err := r.files().all(ctx)
	return pointers[T](list), err
}

func pointers[T Record](list []Record) (all []*T) {
	for _, record := range list {
		all = append(all, any(record).(*T))
	}
	return all
}

func (f files) all(ctx context.Context) (all []Record, err error) {
	err = f.locked(ctx, func(s *store) error {
		all, err = s.all()
		return err
	})
	return all, err
}

// Collect calls end for each record that is stale, and drops it unless that fails. It holds
// no lock meanwhile, and goes on after an error.
func (r Records[T]) Collect(ctx context.Context, stale func(T) bool, end func(T) error) error {
	return r.files().collect(ctx, func(record Record) bool { return stale(of[T](record)) },
		func(record Record) error { return end(of[T](record)) })
}

func (f files) collect(ctx context.Context, stale func(Record) bool, end func(Record) error) error {
	all, err := f.all(ctx)
	errs := []error{err}
	var ended []string
	for _, record := range all {
		if !stale(record) {
			continue
		}
		err := end(record)
		if errs = append(errs, err); err == nil {
			ended = append(ended, record.Hash())
		}
	}
	return errors.Join(append(errs, f.drop(ctx, ended))...)
}

// Store is a directory of Records. Unless it was opened for reading only, nobody else writes there until Close.
type Store[T Record] struct{ *store }

// store is Store without its type.
type store struct {
	dir   *Dir  // nil where there is no directory
	lock  *Lock // nil for reading
	err   error // of a directory that could not be opened for reading
	blank func() Record
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

// Drop removes records, also what a killed Put left of them, and goes on after an error. An
// absent one is no error, nor a directory in its place.
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
	return pointers[T](list), err
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
