package main

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// tuning is the plugin.
type tuning struct {
	allowList allowList
}

func (t tuning) plugin() skel.Plugin[config] {
	return skel.Plugin[config]{
		Name:   "tuning",
		About:  "changes the container's interface, and sysctls of its network namespace",
		Config: wireConfig{},
		Parse:  parseConfig,
		Add:    t.add,
		Del:    del,
		Check:  check,
		GC:     gc,
		Status: t.status,
	}
}

func (t tuning) add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	if err := needPrevResult(req); err != nil {
		return nil, err
	}
	if err := t.allowList.check(cfg.Sysctls); err != nil {
		return nil, err
	}
	if cfg.empty() {
		return req.PrevResult, nil
	}
	c := &change{Request: req, cfg: cfg}
	if err := req.NS.Do(func() error { return c.make(ctx) }); err != nil {
		return nil, err
	}
	return c.result(), nil
}

// del restores what can be restored and forgets it. It fails only where files
// cannot be removed: a value that the kernel does not take back would not be
// taken the next time either.
func del(ctx context.Context, req *skel.Request) error {
	dir, err := dataDir(req)
	if err != nil {
		return err
	}
	s, err := openExistingStore(ctx, dir, req.Warn)
	if s == nil || err != nil || len(backupName(req.Attachment)) > nameMax { // ADD refuses such a name
		return err
	}
	req.OnDone(func() { _ = s.close() })
	r := &restorer{Request: req, store: s}
	return r.run()
}

func check(_ context.Context, req *skel.Request, cfg config) error {
	if err := needPrevResult(req); err != nil || cfg.empty() {
		return err
	}
	c := &change{Request: req, cfg: cfg}
	return req.NS.Do(c.verify)
}

// gc forgets the originals of attachments that are not valid. Nothing is
// restored: their namespaces are gone, or somebody else's business.
func gc(ctx context.Context, req *skel.Request) error {
	dir, err := dataDir(req)
	if err != nil {
		return err
	}
	s, err := openExistingStore(ctx, dir, req.Warn)
	if s == nil || err != nil {
		return err
	}
	req.OnDone(func() { _ = s.close() })
	all, err := s.find("", "", "")
	errs := []error{err}
	for _, r := range all {
		if r.Network == req.Network && !req.Valid.Has(r.attachment()) {
			_, err := s.handOver(r)
			errs = append(errs, err, s.remove(r.name(), r.backup()))
		}
	}
	return errors.Join(errs...)
}

// status looks for what would make ADD fail: a configuration that is refused,
// a broken allow-list or one that forbids what is configured, a directory that
// cannot be written.
func (t tuning) status(_ context.Context, _ *skel.Request, cfg config) error {
	err := t.allowList.verify()
	if err == nil {
		err = t.allowList.check(cfg.Sysctls)
	}
	if !cfg.empty() {
		err = errors.Join(err, writable(cfg.DataDir))
	}
	if err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	return nil
}

// writable tries to write in a directory, or asks the directory in which it
// would be made.
func writable(dir string) error {
	d, err := statefile.OpenExisting(dir)
	if err == nil {
		err = errors.Join(d.Writable(), d.Close())
	}
	for errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		if err = unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
			err = &fs.PathError{Op: "write in", Path: dir, Err: err}
		}
	}
	if err != nil {
		return cni.Errorf(cni.CodeIO, "dataDir: %w", err)
	}
	return nil
}

// needPrevResult refuses an ADD or a CHECK without it.
func needPrevResult(req *skel.Request) error {
	if req.PrevResult == nil {
		return cni.Errorf(cni.CodeConfig, "prevResult: missing; tuning changes what another plugin of the chain made")
	}
	return nil
}

// result is the chain's result with what was changed of the container's
// interface. A host interface of the same name is another.
func (c *change) result() *cni.Result {
	res := c.PrevResult.Clone()
	for i := range res.Interfaces {
		one := &res.Interfaces[i]
		if one.Name != c.IfName || one.Sandbox == "" {
			continue
		}
		if c.cfg.Link.MAC != nil {
			one.MAC = c.cfg.Link.MAC.String()
		}
		if c.cfg.Link.MTU != 0 {
			one.MTU = c.cfg.Link.MTU
		}
	}
	return res
}
