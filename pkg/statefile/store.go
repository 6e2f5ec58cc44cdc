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

// Store is a locked directory that holds JSON records of type T, each in a file
// of the name that the caller gives: an attachment's hash, say. Nobody else reads
// or writes it until Close. A file that no call of ours can have written is no record:
// one that cannot be decoded, or that *T's method Sane(name string) bool denies, where
// it has one.
type Store[T any] struct {
	dir  *Dir // nil where there is no directory
	held *Held
}

// OpenStore makes the directory at path and locks it. It waits for the lock at
// most as long as wait says; then the error matches ErrBusy and names the holder.
// The directory is no symbolic link; those before it are followed.
func OpenStore[T any](ctx context.Context, path string, wait time.Duration) (*Store[T], error) {
	return openStore[T](ctx, path, 0o700, wait)
}

// OpenExistingStore is OpenStore for calls that put no record: it makes no
// directory, and where there is none, or something else, the store is empty.
func OpenExistingStore[T any](ctx context.Context, path string, wait time.Duration) (*Store[T], error) {
	s, err := openStore[T](ctx, path, 0, wait)
	if IsAbsent(err) {
		return &Store[T]{}, nil
	}
	return s, err
}

func openStore[T any](ctx context.Context, path string, perm fs.FileMode, wait time.Duration) (*Store[T], error) {
	dir, err := OpenOwn(path, perm)
	if err != nil {
		return nil, err
	}
	held, err := dir.Lock(ctx, storeLock, 0o600, wait)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return &Store[T]{dir, held}, nil
}

// Close unlocks the directory. It may be called again.
func (s *Store[T]) Close() error {
	if s.dir == nil {
		return nil
	}
	err := errors.Join(s.held.Unlock(), s.dir.Close())
	s.dir = nil
	return err
}

// Get reads a record; ok is false when there is none.
func (s *Store[T]) Get(name string) (record T, ok bool, err error) {
	var none T
	if s.dir == nil {
		return none, false, nil
	}
	data, err := s.dir.Read(name + recordSuffix)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrIrregular) {
		return none, false, nil
	}
	if err != nil || json.Unmarshal(data, &record) != nil {
		return none, false, err
	}
	if r, can := any(&record).(interface{ Sane(name string) bool }); can && !r.Sane(name) {
		return none, false, nil
	}
	return record, true, nil
}

// MayHave says, without the lock, whether the store at path has the record or what
// a killed Put left of it.
func MayHave(path, name string) bool {
	isThere := func(file string) bool {
		_, err := os.Lstat(filepath.Join(path, file))
		return !errors.Is(err, fs.ErrNotExist)
	}
	return isThere(name+recordSuffix) || isThere(temporary(name+recordSuffix))
}

// Put writes a record, whole or not at all.
func (s *Store[T]) Put(name string, record T) error {
	data, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("record %q: %w", name, err)
	}
	if s.dir == nil {
		return fmt.Errorf("record %q: %w", name, fs.ErrClosed)
	}
	return s.dir.Replace(name+recordSuffix, data, 0o600)
}

// Drop removes a record. An absent one is no error, nor a directory in its place.
func (s *Store[T]) Drop(name string) error {
	if s.dir == nil {
		return nil
	}
	err := s.dir.Discard(name + recordSuffix)
	if errors.Is(err, unix.EISDIR) {
		err = nil
	}
	return err
}

// All reads all records, in the order of their names, and takes away what killed
// writers left.
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
		return false, nil
	}
	files, err := s.dir.Names()
	if err != nil {
		return false, err
	}
	for _, file := range slices.Sorted(slices.Values(files)) {
		name, isRecord := strings.CutSuffix(file, recordSuffix)
		if !isRecord {
			continue
		}
		record, ok, err := s.Get(name)
		if err != nil || ok && matches(record) {
			return err == nil, err
		}
	}
	return false, nil
}
