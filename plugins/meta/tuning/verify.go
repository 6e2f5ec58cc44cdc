package main

import (
	"errors"
	"io/fs"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// verify does the work of CHECK, on a thread in the container's namespace.
func (c *change) verify() error {
	if err := c.dial(); err != nil {
		return err
	}
	return errors.Join(append(c.verifySysctls(), c.verifyLink()...)...)
}

// verifySysctls returns each sysctl that has another value than configured.
// Those that can only be written have none.
func (c *change) verifySysctls() []error {
	var errs []error
	for _, s := range c.cfg.Sysctls {
		value, err := s.Key.Read()
		switch {
		case errors.Is(err, fs.ErrPermission):
		case err != nil:
			errs = append(errs, cni.Errorf(cni.CodeDrift, "%s: %w, want %q", s.name(), err, s.Value))
		case !sysctl.Equal(value, s.Value):
			errs = append(errs, cni.Errorf(cni.CodeDrift, "%s: is %q, want %q", s.name(), value, s.Value))
		}
	}
	return errs
}

// verifyLink returns each attribute of the interface that is not as
// configured; the others are anybody's.
func (c *change) verifyLink() []error {
	if c.cfg.Link.empty() {
		return nil
	}
	link, err := c.conn.Link(c.IfName)
	if errors.Is(err, rtnl.ErrNoLink) {
		return []error{cni.Errorf(cni.CodeDrift, "interface %q: is gone", c.IfName)}
	}
	if err != nil {
		return []error{err}
	}
	var errs []error
	for _, s := range c.cfg.Link.steps(link) {
		errs = append(errs, cni.Errorf(cni.CodeDrift, "interface %q: %s is not %s", c.IfName, s.key, s.value))
	}
	return errs
}
