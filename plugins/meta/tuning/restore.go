package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// restorer is one DEL under way.
type restorer struct{ visit }

// del restores what can be restored and forgets it. It fails only where files
// cannot be removed: a value that the kernel does not take back would not be
// taken the next time either.
func del(ctx context.Context, req *skel.Request) error {
	dir, err := dataDir(req)
	if err != nil {
		return err
	}
	s, err := openStore(ctx, req, dir, false)
	if s == nil || err != nil || len(backupName(req.ContainerID, req.IfName)) > nameMax { // ADD refuses such a name
		return err
	}
	rec, _, err := s.records.Get(recordName(req.ContainerID))
	if err != nil {
		return err
	}
	_, before, err := s.backup()
	if err == nil && req.NS != nil {
		r := &restorer{visit{Request: req}}
		err = req.NS.Do(func() error { return r.restore(rec, before) })
	}
	if cni.Transient(err) {
		return err // the repetition needs the record
	}
	if err != nil {
		req.Warn("%v; nothing is restored", err)
	}
	rec.ContainerID = req.ContainerID
	rec.Values, _ = rec.without(rec.owner(req.Attachment))
	return s.put(rec, req.IfName)
}

// restore puts back what the attachment alone has changed, on a thread in the
// namespace to which CNI_NETNS leads by now.
func (r *restorer) restore(rec record, before []pair) error {
	_, last := rec.without(rec.owner(r.Attachment))
	if len(last) == 0 && before == nil {
		return nil
	}
	here, err := r.NS.IdentityInside()
	if err != nil {
		return err
	}
	if before != nil || here.Cookie == 0 || slices.ContainsFunc(last, func(v value) bool { return v.Link != 0 }) {
		if err := r.lookAtLink(); err != nil && !errors.Is(err, rtnl.ErrNoLink) {
			return err
		}
	}
	// A backup file is the reference plugin's unless the record speaks of the interface.
	if len(rec.attrsOf(r.IfName, r.link.Index)) > 0 || !r.isOurs(before) {
		before = nil
	}
	if rec.isAbout(here, r.IfName, r.link) {
		for _, v := range last {
			if v.Link == 0 || v.Link == r.link.Index { // else of an interface that is gone
				before = append(before, v.pair)
			}
		}
	}
	return r.apply(before)
}

// isOurs decides whether the namespace is still the one that a backup file
// without a record is about: its interface has the MAC address of prevResult
// or, where prevResult says none, every value of the file is now what the
// configuration makes of it.
func (r *restorer) isOurs(before []pair) bool {
	if len(before) == 0 || r.link.Index == 0 {
		return false
	}
	if r.PrevResult != nil {
		for _, i := range r.PrevResult.Interfaces {
			if i.Name == r.IfName && i.Sandbox != "" && i.MAC != "" {
				return strings.EqualFold(i.MAC, r.link.MAC.String())
			}
		}
	}
	cfg, err := parseConfig(r.Request)
	if err != nil || len(cfg.Attrs) == 0 || len(differing(cfg.Attrs, r.link)) > 0 {
		return false
	}
	return !slices.ContainsFunc(before, func(p pair) bool {
		return !slices.ContainsFunc(cfg.Attrs, func(want pair) bool { return want.Key == p.Key })
	})
}

// apply restores values, the last that was changed first. What cannot be
// restored is reported, and DEL goes on; an error says that its repetition may
// have more success.
func (r *restorer) apply(before []pair) error {
	var errs []error
	for _, p := range slices.Backward(before) {
		err := r.set(p)
		switch {
		case err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, rtnl.ErrNoLink):
		case cni.Transient(err):
			errs = append(errs, fmt.Errorf("restore %w", err))
		default:
			r.Warn("restore %v", err)
		}
	}
	return errors.Join(errs...)
}

func (r *restorer) set(p pair) error {
	if _, isAttr := attrNamed(p.Key); !isAttr {
		key, err := sysctl.Parse(p.Key)
		if err != nil {
			return err
		}
		return key.Write(p.Value)
	}
	if len(differing([]pair{p}, r.link)) == 0 {
		return nil
	}
	if err := setAttr(r.conn, r.link.Index, p); err != nil {
		return fmt.Errorf("%s %s: %w", p.Key, p.Value, err)
	}
	return nil
}
