package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/frame"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// del restores what can be restored and forgets it. It fails only where a repetition may have more success.
func del(ctx context.Context, req *skel.Request) error {
	s, err := openExisting(ctx, req)
	if s == nil || err != nil || len(backupName(req.Attachment)) > nameMax { // ADD refuses such a name
		return err
	}
	r, _, err := s.records.Get(recordName(req.Attachment))
	if err != nil {
		return err
	}
	own, rest := r.without(r.owner(req.Attachment))
	_, backup, err := s.backup()
	if err == nil && req.NS != nil && len(own.Values)+len(backup) > 0 {
		err = frame.InContainer(req, func(c *frame.Call) error { return container{Call: c}.remove(own, r, backup) })
	}
	if cni.Transient(err) {
		return err // the repetition needs the record
	}
	if err != nil {
		req.Warn("not all is restored: %v", err)
	}
	return s.put(req.Attachment, rest)
}

// owner is the attachment whose change DEL takes out: the call's or, where the network was renamed since ADD, the only
// one that the interface has.
func (r record) owner(a cni.Attachment) cni.Attachment {
	all := slices.DeleteFunc(slices.Clone(r.Changes), func(c change) bool { return c.IfName != a.IfName })
	if len(all) == 1 {
		return all[0].Attachment
	}
	return a
}

// remove restores the values that the attachment alone has changed, or those of the reference's backup file, where
// the path leads to the namespace in which they were changed.
func (c container) remove(own change, r record, backup []value) error {
	if err := frame.IgnoreNoLink(c.FindInterface()); err != nil {
		return err
	}
	if len(r.attributes(c.IfName, c.ContEnd.Index)) > 0 || !c.isReferences(backup) {
		backup = nil
	}
	known := c.NetnsID.Cookie != 0 || c.NetnsID.MAC != "" // the inode alone can be a later namespace's
	if known && own.Netns.Is(c.NetnsID) {
		backup = append(backup, own.Values...)
	}
	return c.restore(backup)
}

// restore puts values back, the last that was changed first, and goes on after an error. Those of an interface that is
// gone went with it.
func (c container) restore(before []value) error {
	var errs []error
	for _, v := range slices.Backward(before) {
		if v.Link != 0 && v.Link != c.ContEnd.Index {
			continue
		}
		if err := frame.IgnoreNoLink(c.set(v)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("restore %w", err))
		}
	}
	return errors.Join(errs...)
}

// set gives a sysctl or an attribute a value, unless it has that.
func (c container) set(v value) error {
	if !v.isAttribute() {
		key, err := sysctl.Parse(v.Key)
		if err != nil {
			return err
		}
		return key.Write(v.Value)
	}
	if v.isOf(c.ContEnd) {
		return nil
	}
	change, err := v.change()
	if err == nil {
		err = c.Cont.SetLink(c.ContEnd.Index, change)
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", v.Key, v.Value, err)
	}
	return nil
}

// gc forgets the values of attachments that are not valid. It restores nothing: their namespaces are gone, or somebody
// else's business.
func gc(ctx context.Context, req *skel.Request) error {
	s, err := openExisting(ctx, req)
	if s == nil || err != nil {
		return err
	}
	all, err := s.records.All()
	errs := []error{err, s.backups.Sweep()}
	for _, r := range all {
		for _, one := range r.Changes {
			if req.Valid.Excludes(one.Attachment) {
				_, *r = r.without(one.Attachment)
				errs = append(errs, s.put(one.Attachment, *r))
			}
		}
	}
	return errors.Join(errs...)
}

// openExisting opens the store for DEL and GC; nil, where there is none. It reads dataDir alone, so that no other key,
// however broken, stands in their way.
func openExisting(ctx context.Context, req *skel.Request) (*store, error) {
	var w struct {
		DataDir string `json:"dataDir"`
	}
	if err := req.Decode(&w); err != nil {
		return nil, err
	}
	s, err := openStore(ctx, req, cmp.Or(w.DataDir, defaultDataDir), false)
	if statefile.IsAbsent(err) {
		return nil, nil
	}
	return s, err
}
