package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// lockWait is how long a call waits for its turn.
const lockWait = 30 * time.Second

// store is dataDir: the backup files that the reference plugin knows, and beside
// them a record for each container. A backup file is made from the record; one
// without any was made by the reference plugin.
type store struct {
	*skel.Request
	backups *statefile.Dir
	records *statefile.Store[record]
}

// record is what was there before attachments of a container changed it.
type record struct {
	Netns  ns.Identity       `json:"netns"`
	MACs   map[string]string `json:"macs"` // of the interfaces, as ADD left them
	Values []value           `json:"values"`
}

// value is what an attribute or a sysctl had before the first ADD that changed
// it. It is put back with the last attachment that has changed it.
type value struct {
	keyValue
	Link int              `json:"link,omitempty"` // index of the interface that it belongs to; 0 = the namespace
	For  []cni.Attachment `json:"for"`            // of the record's container
}

// Hash is the name of the record's file: its container's.
func (r record) Hash() string {
	for _, o := range r.owners() {
		return recordName(o)
	}
	return ""
}

// Valid says whether an ADD can have written the record.
func (r record) Valid() bool { return true }

// nameMax is the longest name of a file, in bytes.
const nameMax = 255

// backupName is the reference plugin's name for the backup file.
func backupName(a cni.Attachment) string { return a.ContainerID + "_" + a.IfName + ".json" }

func recordName(a cni.Attachment) string { return cni.Attachment{ContainerID: a.ContainerID}.Hash() }

// openStore opens and locks dataDir until the call's answer is out. ADD creates
// it; for DEL and GC, where there is none the store is nil.
func openStore(ctx context.Context, req *skel.Request, dataDir string, create bool) (*store, error) {
	perm := fs.FileMode(0)
	records := statefile.Records[record]{Path: filepath.Join(dataDir, ".hawser"), Wait: lockWait}
	openRecords := records.OpenExisting
	if create {
		perm, openRecords = 0o700, records.Open
	}
	backups, err := statefile.Open(dataDir, perm)
	if !create && statefile.IsAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("dataDir: %w", err)
	}
	req.OnDone(func() { _ = backups.Close() })
	opened, err := openRecords(ctx)
	if err != nil {
		return nil, fmt.Errorf("dataDir: %w", err)
	}
	req.OnDone(func() { _ = opened.Close() })
	return &store{req, backups, opened}, nil
}

// put writes the record of an attachment's container, and the backup file of its
// interface from it; without values they go. The file goes first: a record alone is
// found again.
func (s *store) put(a cni.Attachment, r record) error {
	if err := s.putBackup(a, r); err != nil {
		return err
	}
	if len(r.Values) == 0 {
		return s.records.Drop(recordName(a))
	}
	return s.records.Put(r)
}

func (s *store) putBackup(a cni.Attachment, r record) error {
	before := r.attrsOf(a.IfName, 0)
	if len(before) == 0 {
		return s.backups.Discard(backupName(a))
	}
	return s.backups.Replace(backupName(a), encodeBackup(before), 0o600)
}

// backup reads the call's backup file: nothing when there is none, or one that
// says nothing.
func (s *store) backup() (text []byte, before []keyValue, err error) {
	name := backupName(s.Attachment)
	text, err = s.backups.Read(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, nil
	case err != nil && !errors.Is(err, statefile.ErrIrregular):
		return nil, nil, err
	case err == nil:
		before, err = decodeBackup(text)
	}
	if err != nil {
		s.Warn("backup %s/%s: %v", s.backups.Path(), name, err)
	}
	return text, before, nil
}

// keep writes down what there was, so that DEL finds it whatever becomes of us.
// What an earlier ADD found stays: only that was there before any of them.
func (c *container) keep(ctx context.Context) error {
	if len(c.found) == 0 {
		return nil
	}
	s, err := openStore(ctx, c.Request, c.cfg.DataDir, true)
	if err != nil {
		return err
	}
	old, _, err := s.records.Get(recordName(c.Attachment))
	if err != nil {
		return err
	}
	text, before, err := s.backup()
	if err != nil {
		return err
	}
	wasChanged := before != nil || slices.ContainsFunc(old.Values, func(v value) bool { return v.isOf(c.IfName) })
	if err := c.look(wasChanged || c.recordsLink()); err != nil { // again, now that nobody changes it
		return err
	}
	r := record{Netns: c.here, MACs: map[string]string{}}
	if old.Netns.Is(c.here) { // else of a former life of the container
		maps.Copy(r.MACs, old.MACs)
		r.Values = slices.DeleteFunc(slices.Clone(old.Values), func(v value) bool {
			return v.Link != c.link.Index && v.isOf(c.IfName) // of an interface that is gone
		})
	}
	if len(old.attrsOf(c.IfName, 0)) == 0 { // the reference plugin's counts as the first ADD
		for _, p := range before {
			r.add(value{keyValue: p, Link: c.link.Index}, c.Attachment)
		}
	}
	for _, v := range c.found {
		r.add(v, c.Attachment)
	}
	r.MACs[c.IfName] = c.link.MAC.String()
	if i := slices.IndexFunc(c.cfg.Attrs, func(p keyValue) bool { return p.Key == "mac" }); i >= 0 {
		r.MACs[c.IfName] = c.cfg.Attrs[i].Value
	}
	c.OnFail("restore the backup file", func(context.Context) error { return s.putBack(old, text) })
	// The record goes first: a backup file alone would be taken for the reference plugin's.
	if err := s.records.Put(r); err != nil {
		return err
	}
	return s.putBackup(c.Attachment, r)
}

// putBack undoes keep.
func (s *store) putBack(old record, backup []byte) error {
	err := s.put(s.Attachment, old)
	if backup != nil {
		err = errors.Join(err, s.backups.Replace(backupName(s.Attachment), backup, 0o600))
	}
	return err
}

// isAbout reports whether the record is about the namespace, where the link is.
// A cookie is given to one namespace only; an inode is used again, so there the
// interface's MAC address must be as ADD left it.
func (r record) isAbout(here ns.Identity, ifName string, link rtnl.Link) bool {
	return r.Netns.Is(here) && (here.Cookie != 0 || r.MACs[ifName] == link.MAC.String())
}

// owner is whose values DEL puts back: the attachment's or, where the network
// was renamed since ADD, those of the only one that the interface has.
func (r record) owner(a cni.Attachment) cni.Attachment {
	all := slices.DeleteFunc(r.owners(), func(o cni.Attachment) bool { return o.IfName != a.IfName })
	if len(all) == 1 {
		return all[0]
	}
	return a
}

func (r *record) add(v value, own cni.Attachment) {
	i := slices.IndexFunc(r.Values, func(old value) bool { return old.Key == v.Key && old.Link == v.Link })
	switch {
	case i < 0:
		v.For = []cni.Attachment{own}
		r.Values = append(r.Values, v)
	case !slices.Contains(r.Values[i].For, own):
		r.Values[i].For = append(slices.Clip(r.Values[i].For), own)
	}
}

// without splits the values into those that other attachments have changed too
// and those that the owner alone has.
func (r record) without(own cni.Attachment) (rest, last []value) {
	for _, v := range r.Values {
		others := slices.DeleteFunc(slices.Clone(v.For), func(o cni.Attachment) bool { return o == own })
		if len(others) == 0 {
			last = append(last, v)
			continue
		}
		v.For = others
		rest = append(rest, v)
	}
	return rest, last
}

func (r record) owners() (all []cni.Attachment) {
	for _, v := range r.Values {
		for _, o := range v.For {
			if !slices.Contains(all, o) {
				all = append(all, o)
			}
		}
	}
	return all
}

// attrsOf are the attributes that an interface had before; index 0 = whichever
// has the name.
func (r record) attrsOf(ifName string, index int) (before []keyValue) {
	for _, v := range r.Values {
		if _, ok := attrNamed(v.Key); ok && v.isOf(ifName) && (index == 0 || index == v.Link) {
			before = append(before, v.keyValue)
		}
	}
	return before
}

// isOf reports whether the value is one of an interface.
func (v value) isOf(ifName string) bool {
	return v.Link != 0 && slices.ContainsFunc(v.For, func(o cni.Attachment) bool { return o.IfName == ifName })
}
