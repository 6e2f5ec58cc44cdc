package main

import (
	"bytes"
	"errors"
	"slices"
)

// former is what a store had before a record was put.
type former struct {
	alone  bool       // nobody else's record has to do with the backup file
	record *record    // of the same attachment in the same namespace
	backup *originals // of other software
}

// inherit completes a new record with what is known from before: an earlier
// ADD of the same attachment, or of the reference plugin. What the attachment
// left in a namespace of a former life is removed.
func (s *store) inherit(r *record) (former, error) {
	found, ok, err := s.backup(r.backup())
	if err != nil {
		return former{}, err
	}
	names := []string{r.name()}
	if ok { // else nothing but a record of our own can be there
		all, err := s.records.Names()
		if err != nil {
			return former{}, err
		}
		names = slices.DeleteFunc(all, func(n string) bool {
			return !isRecord(n, r.attachment().Hash(), "", "") && !isRecord(n, "", backupHash(r.backup()), "")
		})
	}
	known, err := s.read(names)
	if err != nil {
		return former{}, err
	}
	was := former{alone: true}
	for _, old := range known {
		switch {
		case old.attachment() != r.attachment():
			was.alone = false
		case old.Place.sameNetns(r.Place):
			was.record = &old
			r.follow(old)
		default:
			if err := s.records.Remove(old.name()); err != nil {
				return was, err
			}
		}
	}
	if ok && len(known) == 0 {
		was.backup = &found
		before := found
		before.fill(r.Before)
		r.Before = before
	}
	return was, nil
}

// follow takes over what an earlier ADD of the same attachment found in the
// same namespace.
func (r *record) follow(old record) {
	before := old.Before
	if old.Place.Link != r.Place.Link { // another interface has the name now
		before = before.withoutLink(r.IfName)
	}
	before.fill(r.Before)
	r.Since, r.Before = old.Since, before
}

// putBack undoes put.
func (s *store) putBack(r record, was former) error {
	if was.record != nil {
		return s.put(*was.record, was.alone)
	}
	if err := s.remove(r.name(), r.backup()); err != nil || was.backup == nil {
		return err
	}
	data, err := was.backup.encode()
	if err != nil {
		return err
	}
	return s.backups.Replace(r.backup(), data, fileMode)
}

// handOver prepares the end of a record. What a later attachment has changed
// again in the same namespace must stay as that one wants it; what was there
// before r is now the original of the later one. handOver returns the rest,
// which is r's to restore.
func (s *store) handOver(r record) (originals, error) {
	rest := r.Before
	all, err := s.find("", "", r.Place.namespace())
	if err != nil {
		return rest, err
	}
	var errs []error
	for _, later := range all {
		if later.Since <= r.Since || later.name() == r.name() || !later.Place.sameNetns(r.Place) {
			continue
		}
		had, err := later.Before.encode()
		if err != nil {
			return rest, err
		}
		rest.handSysctls(&later.Before)
		if later.Place.Link == r.Place.Link {
			rest.handLink(&later.Before)
		}
		has, err := later.Before.encode()
		if err != nil {
			return rest, err
		}
		if !bytes.Equal(had, has) {
			errs = append(errs, s.put(later, false))
		}
	}
	return rest, errors.Join(errs...)
}
