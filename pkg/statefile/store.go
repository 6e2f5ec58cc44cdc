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

// Record is a value that a Store keeps as JSON in the file <Hash>.json. Plausible reports whether a plugin can have
// written it, because a file may be damaged.
type Record interface {
	Hash() string
	Plausible() bool
}

// Store is a directory of records of type T. A file that cannot be decoded, has the name of another record, or is not
// Plausible, is not a record. If the directory does not exist, there are no records.
//
// Files change atomically, so reading (Get, Any, All, List) needs no lock. Put and Drop lock the directory for the
// call. To keep other processes from writing during several calls, use Open, OpenExisting or Locked, which provide a
// Store that holds the lock until Close. If another process still holds the lock after Wait, the error matches ErrBusy.
type Store[T Record] struct{ *recordDir }

// recordDir is the part of a Store that does not depend on T. The compiler would repeat methods of Store for each T,
// which takes 70 kB in the program of all plugins.
type recordDir struct {
	Path string
	Wait time.Duration // timeout for the lock

	isOpen bool
	dir    *Dir // nil if the store is not open, or if the directory does not exist
	lock   *Lock
}

// NewStore returns the store in the directory at path, which must not be a symbolic link. Links in its parents are
// followed. Calls wait for the lock for at most wait.
func NewStore[T Record](path string, wait time.Duration) *Store[T] {
	return &Store[T]{&recordDir{Path: path, Wait: wait}}
}

// Open locks the directory, which it creates if necessary, and returns a Store that holds the lock.
func (s *Store[T]) Open(ctx context.Context) (*Store[T], error) {
	opened, err := s.open(ctx, 0o700)
	return &Store[T]{opened}, err
}

// OpenExisting is Open for calls that put no record: it does not create the directory.
func (s *Store[T]) OpenExisting(ctx context.Context) (*Store[T], error) {
	opened, err := s.open(ctx, 0)
	return &Store[T]{opened}, err
}

// open locks the directory. If it does not exist, open creates it with perm, unless perm is 0.
func (d *recordDir) open(ctx context.Context, perm fs.FileMode) (opened *recordDir, err error) {
	opened = &recordDir{Path: d.Path, Wait: d.Wait, isOpen: true}
	if opened.dir, err = OpenNoFollow(d.Path, perm); err != nil {
		if perm == 0 && IsAbsent(err) {
			err = nil
		}
		return opened, err
	}
	if opened.lock, err = opened.dir.LockFile(ctx, storeLock, 0o600, d.Wait); err != nil {
		err = errors.Join(err, opened.dir.Close())
		opened.dir = nil
	}
	return opened, err
}

// Close releases the lock of a Store that Open or OpenExisting returned. Closing it again has no effect.
func (d *recordDir) Close() error {
	if d.dir == nil {
		return nil
	}
	err := errors.Join(d.dir.Close(), d.lock.Unlock())
	d.dir = nil
	return err
}

// Locked opens a Store by OpenExisting, passes it to work, and closes it afterwards, also after a panic.
func (s *Store[T]) Locked(ctx context.Context, work func(*Store[T]) error) error {
	return s.locked(ctx, 0, func(opened *recordDir) error { return work(&Store[T]{opened}) })
}

func (d *recordDir) locked(ctx context.Context, perm fs.FileMode, work func(opened *recordDir) error) (err error) {
	opened, err := d.open(ctx, perm)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	return work(opened)
}

// view passes the directory to read: the open one, or one that it opens without the lock, if it exists.
func (d *recordDir) view(read func(*Dir) error) error {
	if d.dir != nil {
		return read(d.dir)
	}
	if d.isOpen {
		return nil
	}
	dir, err := OpenNoFollow(d.Path, 0)
	if IsAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return read(dir)
}

// Get returns the record whose Hash is name. ok is false if it does not exist.
func (s *Store[T]) Get(name string) (record T, ok bool, err error) {
	r := newRecord[T]()
	if ok, err = s.get(name, r); ok {
		record = *typed[T](r)
	}
	return record, ok, err
}

// For recordDir, a *T is a Record: newRecord returns one, and typed converts it back.
func newRecord[T Record]() Record      { return any(new(T)).(Record) }
func typed[T Record](record Record) *T { return any(record).(*T) }

// get reads a record into the variable that record points to. ok is false if there is no such record.
func (d *recordDir) get(name string, record Record) (ok bool, err error) {
	err = d.view(func(dir *Dir) (err error) {
		ok, err = dir.readRecord(name, record)
		return err
	})
	return ok, err
}

func (d *Dir) readRecord(name string, record Record) (ok bool, err error) {
	data, err := d.Read(name + recordSuffix)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrIrregular) {
		return false, nil
	}
	return err == nil && Decode(data, record) == nil && record.Hash() == name && record.Plausible(), err
}

// each calls visit with each record, in the order of their names, until visit returns false. create returns a variable
// for a record. each continues after an error.
func (d *recordDir) each(create func() Record, visit func(record Record) (more bool)) error {
	return d.view(func(dir *Dir) error {
		files, err := dir.Names()
		errs := []error{err}
		slices.Sort(files)
		for _, file := range files {
			name, isRecord := strings.CutSuffix(file, recordSuffix)
			if !isRecord {
				continue
			}
			record := create()
			ok, err := dir.readRecord(name, record)
			if errs = append(errs, err); ok && !visit(record) {
				break
			}
		}
		return errors.Join(errs...)
	})
}

// Any reports whether a record matches. It reads no further record after a match.
func (s *Store[T]) Any(matches func(record T) bool) (found bool, err error) {
	err = s.each(newRecord[T], func(record Record) bool {
		found = matches(*typed[T](record))
		return !found
	})
	return found, err
}

// All returns all records in the order of their names. If the store is open, All also removes the temporary files of
// killed writers. If All returns an error, it also returns the records that it could read.
func (s *Store[T]) All() (all []*T, err error) {
	records, err := s.all(newRecord[T])
	for _, record := range records {
		all = append(all, typed[T](record))
	}
	return all, err
}

func (d *recordDir) all(create func() Record) (all []Record, err error) {
	if d.dir != nil {
		err = d.dir.Sweep()
	}
	return all, errors.Join(err, d.each(create, func(record Record) bool {
		all = append(all, record)
		return true
	}))
}

// File is a record with the file that it was read from.
type File[T Record] struct {
	Record  T
	Path    string
	Written time.Time // modification time of the file
}

// List returns all records with their files, in the order of their names. It changes nothing. If List returns an error,
// it also returns the records that it could read.
func (s *Store[T]) List() (all []File[T], err error) {
	err = s.list(newRecord[T], func(record Record, path string, written time.Time) {
		all = append(all, File[T]{*typed[T](record), path, written})
	})
	return all, err
}

func (d *recordDir) list(create func() Record, visit func(record Record, path string, written time.Time)) error {
	return d.each(create, func(record Record) bool {
		path := filepath.Join(d.Path, record.Hash()+recordSuffix)
		if info, err := os.Lstat(path); err == nil {
			visit(record, path, info.ModTime())
		}
		return true
	})
}

// HasFile reports whether a record has a file, even a damaged file or the temporary file of a killed writer.
func (d *recordDir) HasFile(name string) bool {
	files := []string{name + recordSuffix, temporary(name + recordSuffix)}
	return slices.ContainsFunc(files, func(file string) bool {
		_, err := os.Lstat(filepath.Join(d.Path, file))
		return !errors.Is(err, fs.ErrNotExist)
	})
}

// Put writes a record atomically. Unless the store is open, Put creates the directory if necessary.
func (s *Store[T]) Put(ctx context.Context, record T) error { return s.put(ctx, record) }

func (d *recordDir) put(ctx context.Context, record Record) error {
	if !d.isOpen {
		return d.locked(ctx, 0o700, func(opened *recordDir) error { return opened.put(ctx, record) })
	}
	data, err := json.Marshal(record)
	if err == nil && d.dir == nil {
		err = fs.ErrClosed
	}
	if err != nil {
		return fmt.Errorf("record %q: %w", record.Hash(), err)
	}
	return d.dir.Replace(record.Hash()+recordSuffix, data, 0o600)
}

// Drop removes the records with these names, and their temporary files of killed writers. A missing record is not an
// error, and neither is a directory in its place. Drop continues after an error. If none of the records has a file,
// Drop does not lock the directory.
func (d *recordDir) Drop(ctx context.Context, names ...string) error {
	if !d.isOpen {
		if !slices.ContainsFunc(names, d.HasFile) {
			return nil
		}
		return d.locked(ctx, 0, func(opened *recordDir) error { return opened.Drop(ctx, names...) })
	}
	if d.dir == nil {
		return nil
	}
	var errs []error
	for _, name := range names {
		if err := d.dir.Discard(name + recordSuffix); !errors.Is(err, unix.EISDIR) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Collect calls remove for each stale record, and drops the record if remove succeeds. It does not hold the lock while
// remove runs, and it continues after an error.
func (s *Store[T]) Collect(ctx context.Context, isStale func(T) bool, remove func(T) error) error {
	return s.collect(ctx, newRecord[T], func(record Record) bool { return isStale(*typed[T](record)) },
		func(record Record) error { return remove(*typed[T](record)) })
}

func (d *recordDir) collect(ctx context.Context, create func() Record, isStale func(Record) bool,
	remove func(Record) error) error {
	var all []Record
	err := d.locked(ctx, 0, func(opened *recordDir) (err error) {
		all, err = opened.all(create)
		return err
	})
	errs := []error{err}
	var names []string
	for _, record := range all {
		if !isStale(record) {
			continue
		}
		err := remove(record)
		if errs = append(errs, err); err == nil {
			names = append(names, record.Hash())
		}
	}
	return errors.Join(append(errs, d.Drop(ctx, names...))...)
}
