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

// del restores what can be restored and forgets it. It fails only where files
// cannot be removed: a value that the kernel does not take back would not be
// taken the next time either.
func del(ctx context.Context, req *skel.Request) error {
	dir, err := dataDir(req)
	if err != nil {
		return err
	}
	s, err := openStore(ctx, req, dir, false)
	if s == nil || err != nil || len(backupName(req.Attachment)) > nameMax { // ADD refuses such a name
		return err
	}
	rec, _, err := s.records.Get(recordName(req.Attachment))
	if err != nil {
		return err
	}
	_, before, err := s.backup()
	if err == nil && req.NS != nil {
		c := &container{Request: req}
		err = req.NS.Do(func() error { return c.restore(rec, before) })
	}
	if cni.Transient(err) {
		return err // the repetition needs the record
	}
	if err != nil {
		req.Warn("%v; nothing is restored", err)
	}
	rec.Values, _ = rec.without(rec.owner(req.Attachment))
	return s.put(req.Attachment, rec)
}

// restore puts back what the attachment alone has changed, in the namespace to which
// CNI_NETNS leads by now.
func (c *container) restore(rec record, before []keyValue) error {
	_, last := rec.without(rec.owner(c.Attachment))
	if len(last) == 0 && before == nil {
		return nil
	}
	here, err := c.NS.IdentityInside()
	if err != nil {
		return err
	}
	if before != nil || here.Cookie == 0 || slices.ContainsFunc(last, func(v value) bool { return v.Link != 0 }) {
		if err := c.lookAtLink(); err != nil && !errors.Is(err, rtnl.ErrNoLink) {
			return err
		}
	}
	// A backup file is the reference plugin's unless the record speaks of the interface.
	if len(rec.attrsOf(c.IfName, c.link.Index)) > 0 || !c.isSameContainer(before) {
		before = nil
	}
	if rec.isAbout(here, c.IfName, c.link) {
		for _, v := range last {
			if v.Link == 0 || v.Link == c.link.Index { // else of an interface that is gone
				before = append(before, v.keyValue)
			}
		}
	}
	return c.apply(before)
}

// isSameContainer decides whether the namespace is still the one that a backup
// file without a record is about: its interface has the MAC address of prevResult
// or, where prevResult says none, every value of the file is now what the
// configuration makes of it.
func (c *container) isSameContainer(before []keyValue) bool {
	if len(before) == 0 || c.link.Index == 0 {
		return false
	}
	if c.PrevResult != nil {
		for _, i := range c.PrevResult.Interfaces {
			if i.Name == c.IfName && i.Sandbox != "" && i.MAC != "" {
				return strings.EqualFold(i.MAC, c.link.MAC.String())
			}
		}
	}
	cfg, err := parseConfig(c.Request)
	if err != nil || len(cfg.Attrs) == 0 || len(differing(cfg.Attrs, c.link)) > 0 {
		return false
	}
	return !slices.ContainsFunc(before, func(p keyValue) bool {
		return !slices.ContainsFunc(cfg.Attrs, func(want keyValue) bool { return want.Key == p.Key })
	})
}

// apply restores values, the last that was changed first. What cannot be
// restored is reported, and DEL goes on; an error says that its repetition may
// have more success.
func (c *container) apply(before []keyValue) error {
	var errs []error
	for _, p := range slices.Backward(before) {
		err := c.set(p)
		switch {
		case err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, rtnl.ErrNoLink):
		case cni.Transient(err):
			errs = append(errs, fmt.Errorf("restore %w", err))
		default:
			c.Warn("restore %v", err)
		}
	}
	return errors.Join(errs...)
}

func (c *container) set(p keyValue) error {
	if _, isAttr := attrNamed(p.Key); !isAttr {
		key, err := sysctl.Parse(p.Key)
		if err != nil {
			return err
		}
		return key.Write(p.Value)
	}
	if len(differing([]keyValue{p}, c.link)) == 0 {
		return nil
	}
	if err := setAttr(c.conn, c.link.Index, p); err != nil {
		return fmt.Errorf("%s %s: %w", p.Key, p.Value, err)
	}
	return nil
}
