package statefile

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Records is the Store at Path; each method opens and closes it. It is for callers that
// need not keep others out between two calls. The errors are those of OpenStore, which
// waits for the lock as long as Wait says, and of the Store. Get and Drop of a record that
// is not there take no lock.
type Records[T any] struct {
	Path string
	Wait time.Duration
}

// Get is Store.Get.
func (r Records[T]) Get(ctx context.Context, name string) (record T, ok bool, err error) {
	if !r.mayHave(name) {
		return record, false, nil
	}
	err = r.existing(ctx, func(s *Store[T]) (err error) {
		record, ok, err = s.Get(name)
		return err
	})
	return record, ok, err
}

// All is Store.All.
func (r Records[T]) All(ctx context.Context) (all []*T, err error) {
	err = r.existing(ctx, func(s *Store[T]) (err error) {
		all, err = s.All()
		return err
	})
	return all, err
}

// Any is Store.Any.
func (r Records[T]) Any(ctx context.Context, matches func(record T) bool) (found bool, err error) {
	err = r.existing(ctx, func(s *Store[T]) (err error) {
		found, err = s.Any(matches)
		return err
	})
	return found, err
}

// Put is Store.Put. It makes the directory.
func (r Records[T]) Put(ctx context.Context, name string, record T) error {
	s, err := OpenStore[T](ctx, r.Path, r.Wait)
	if err != nil {
		return err
	}
	return errors.Join(s.Put(name, record), s.Close())
}

// Drop is Store.Drop of each name. It goes on after an error.
func (r Records[T]) Drop(ctx context.Context, names ...string) error {
	if !slices.ContainsFunc(names, r.mayHave) {
		return nil
	}
	return r.existing(ctx, func(s *Store[T]) error {
		var errs []error
		for _, name := range names {
			errs = append(errs, s.Drop(name))
		}
		return errors.Join(errs...)
	})
}

func (r Records[T]) mayHave(name string) bool { return MayHave(r.Path, name) }

// existing opens the Store for do, and makes no directory.
func (r Records[T]) existing(ctx context.Context, do func(*Store[T]) error) error {
	s, err := OpenExistingStore[T](ctx, r.Path, r.Wait)
	if err != nil {
		return err
	}
	return errors.Join(do(s), s.Close())
}
