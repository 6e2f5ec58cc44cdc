package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// container is where one call works. What reads or writes sysctls runs on a thread
// in its namespace.
type container struct {
	*skel.Request
	cfg   config
	here  ns.Identity
	conn  *rtnl.Conn // nil while nobody needed it
	link  rtnl.Link  // the zero Link when there is none or none is needed
	found []value    // what the configuration is going to change
}

func (allowed allowList) add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	if err := allowed.check(cfg.Sysctls); err != nil {
		return nil, err
	}
	if cfg.empty() {
		return req.PrevResult, nil
	}
	c := &container{Request: req, cfg: cfg}
	if err := req.NS.Do(func() error { return c.change(ctx) }); err != nil {
		return nil, err
	}
	return c.result(), nil
}

func check(_ context.Context, req *skel.Request, cfg config) error {
	if cfg.empty() {
		return nil
	}
	c := &container{Request: req, cfg: cfg}
	return req.NS.Do(c.verify)
}

// gc forgets the values of attachments that are not valid. Nothing is restored:
// their namespaces are gone, or somebody else's business.
func gc(ctx context.Context, req *skel.Request) error {
	dir, err := dataDir(req)
	if err != nil {
		return err
	}
	s, err := openStore(ctx, req, dir, false)
	if s == nil || err != nil {
		return err
	}
	all, err := s.records.All()
	errs := []error{err, s.backups.Sweep()}
	for _, r := range all {
		for _, o := range r.owners() {
			if o.Network == req.Network && !req.Valid.Has(o) {
				r.Values, _ = r.without(o)
				errs = append(errs, s.put(o, *r))
			}
		}
	}
	return errors.Join(errs...)
}

// status looks for what would make ADD fail: a broken allow-list or one that
// forbids what is configured, a directory that cannot be written.
func (allowed allowList) status(_ context.Context, _ *skel.Request, cfg config) error {
	err := allowed.verify()
	if err == nil {
		err = allowed.check(cfg.Sysctls)
	}
	if !cfg.empty() {
		if unwritable := statefile.Writable(cfg.DataDir); unwritable != nil {
			err = errors.Join(err, cni.Errorf(cni.CodeIO, "dataDir: %w", unwritable))
		}
	}
	if err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	return nil
}

// change does the work of ADD.
func (c *container) change(ctx context.Context) (err error) {
	if c.here, err = c.NS.IdentityInside(); err != nil {
		return err
	}
	// What is wrong is refused here, before anything is written anywhere.
	if err := c.look(len(c.cfg.Attrs) > 0); err != nil {
		return err
	}
	if err := c.keep(ctx); err != nil {
		return err
	}
	if err := c.writeSysctls(); err != nil {
		return err
	}
	return c.changeLink()
}

// look reads what the configuration is going to change, and refuses what is
// not there.
func (c *container) look(atLink bool) (err error) {
	if atLink {
		err = c.lookAtLink()
	}
	switch {
	case errors.Is(err, rtnl.ErrNoLink) && len(c.cfg.Attrs) == 0:
	case errors.Is(err, rtnl.ErrNoLink):
		return c.NoInterface(rtnl.ErrNoLink)
	case err != nil:
		return err
	}
	if name := backupName(c.Attachment); len(name) > nameMax {
		return cni.Errorf(cni.CodeEnvironment, "CNI_CONTAINERID %q: too long for the file name %q", c.ContainerID, name)
	}
	if c.found, err = c.readSysctls(); err != nil {
		return err
	}
	for _, want := range c.cfg.Attrs {
		a, _ := attrNamed(want.Key)
		before := a.get(c.link)
		if want.Key == "mac" && len(before) != len(want.Value) {
			return bad("mac", want.Value, fmt.Sprintf("an address of %q has %d bytes", c.IfName, len(c.link.MAC)))
		}
		c.found = append(c.found, value{keyValue: keyValue{want.Key, before}, Link: c.link.Index})
	}
	return nil
}

// lookAtLink reads the interface, by a socket that is open until the call is over.
func (c *container) lookAtLink() (err error) {
	if c.conn == nil {
		if c.conn, err = rtnl.Dial(nil); err != nil {
			return err
		}
		c.OnDone(func() { _ = c.conn.Close() })
	}
	c.link, err = c.conn.Link(c.IfName)
	return err
}

// recordsLink says whether the record is about the interface because of this call; the
// socket is spared where only sysctls of the whole namespace change.
func (c *container) recordsLink() bool {
	return len(c.cfg.Attrs) > 0 || c.here.Cookie == 0 ||
		slices.ContainsFunc(c.cfg.Sysctls, func(s setting) bool { return s.Key.Has(c.IfName) })
}

// readSysctls reads the present values. Those that can only be written have
// none to be kept.
func (c *container) readSysctls() (found []value, err error) {
	for _, s := range c.cfg.Sysctls {
		text, err := s.Key.Read()
		switch {
		case err == nil:
			v := value{keyValue: keyValue{s.Key.String(), text}}
			if s.Key.Has(c.IfName) {
				v.Link = c.link.Index
			}
			found = append(found, v)
		case errors.Is(err, fs.ErrNotExist):
			return nil, bad(s.name(), s.Value, "no such sysctl in the container's network namespace")
		case errors.Is(err, unix.EISDIR):
			return nil, bad(s.name(), s.Value, "is a directory of sysctls")
		case cni.Transient(err):
			return nil, sysctlError(s, err)
		}
	}
	return found, nil
}

// writeSysctls writes the sysctls in their order.
func (c *container) writeSysctls() error {
	for _, s := range c.cfg.Sysctls {
		// Before it is written: an error need not mean that it was not.
		for _, before := range c.found {
			if before.Key == s.Key.String() {
				c.OnFail("restore "+s.name(), func(context.Context) error {
					return c.NS.Do(func() error { return s.Key.Write(before.Value) })
				})
			}
		}
		if err := s.Key.Write(s.Value); err != nil {
			return sysctlError(s, err)
		}
	}
	return nil
}

func sysctlError(s setting, err error) error {
	code := cni.CodeIO
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ERANGE) || errors.Is(err, fs.ErrNotExist) {
		code = cni.CodeConfig
	}
	return cni.Errorf(code, "%s: %w", s.name(), err)
}

// changeLink sets the interface's attributes, each by itself, so that an error
// says which one the kernel refused.
func (c *container) changeLink() error {
	for _, want := range differing(c.cfg.Attrs, c.link) {
		a, _ := attrNamed(want.Key)
		before := keyValue{want.Key, a.get(c.link)}
		// Before it is set: the answer may be lost.
		c.OnFail("restore "+want.Key, func(context.Context) error { return setAttr(c.conn, c.link.Index, before) })
		if err := setAttr(c.conn, c.link.Index, want); err != nil {
			return attrError(want, err)
		}
	}
	return nil
}

func attrError(p keyValue, err error) error {
	code := cni.CodeInternal
	switch {
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ERANGE) || errors.Is(err, unix.EADDRNOTAVAIL):
		code = cni.CodeConfig
	case errors.Is(err, unix.EOPNOTSUPP):
		code = cni.CodeUnsupportedField
	}
	return cni.Errorf(code, "%s: %s: %w", p.Key, p.Value, err)
}

// result is the chain's result with the MAC address and the MTU of the
// container's interface. A host interface of the same name is another.
func (c *container) result() *cni.Result {
	res := c.PrevResult.Clone()
	for i := range res.Interfaces {
		one := &res.Interfaces[i]
		if one.Name != c.IfName || one.Sandbox == "" {
			continue
		}
		for _, p := range c.cfg.Attrs {
			switch p.Key {
			case "mac":
				one.MAC = p.Value
			case "mtu":
				one.MTU, _ = strconv.Atoi(p.Value) // parseConfig made the text
			}
		}
	}
	return res
}

// verify does the work of CHECK. It returns each difference; what was not asked for
// is anybody's.
func (c *container) verify() error {
	var errs []error
	for _, s := range c.cfg.Sysctls {
		text, err := s.Key.Read()
		switch {
		case errors.Is(err, fs.ErrPermission): // it can only be written
		case err != nil:
			errs = append(errs, cni.Drift("%s: %w, want %q", s.name(), err, s.Value))
		case !sysctl.Equal(text, s.Value):
			errs = append(errs, cni.Drift("%s: is %q, want %q", s.name(), text, s.Value))
		}
	}
	if len(c.cfg.Attrs) == 0 {
		return errors.Join(errs...)
	}
	err := c.lookAtLink()
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		err = cni.Drift("interface %q: is gone", c.IfName)
	case err == nil:
		for _, p := range differing(c.cfg.Attrs, c.link) {
			errs = append(errs, cni.Drift("interface %q: %s is not %s", c.IfName, p.Key, p.Value))
		}
	}
	return errors.Join(append(errs, err)...)
}
