package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/frame"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// container is where a call works, on a thread in its namespace: sysctls are that thread's.
type container struct {
	*frame.Call
	cfg config
}

func (allowed allowList) add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	if err := allowed.check(cfg.Sysctls); err != nil {
		return nil, err
	}
	if cfg.empty() {
		return req.PrevResult, nil
	}
	return result(req, cfg), frame.InContainer(req, func(c *frame.Call) error { return container{c, cfg}.change(ctx) })
}

// change does the work of ADD.
func (c container) change(ctx context.Context) error {
	before, err := c.readValues() // what is wrong is refused here, before anything is written anywhere
	if err != nil {
		return err
	}
	if len(before) > 0 {
		s, err := openStore(ctx, c.Request, c.cfg.DataDir, true)
		if err != nil {
			return err
		}
		if before, err = c.readValues(); err != nil { // again, now that no other call changes them
			return err
		}
		if err := c.record(s, before); err != nil {
			return err
		}
	}
	c.OnFail("restore the values", func(context.Context) error {
		err := c.FindInterface() // as it is by now
		return errors.Join(frame.IgnoreNoLink(err), c.NS.Do(func() error { return c.restore(before) }))
	})
	for _, s := range c.cfg.Sysctls {
		if err := s.Key.Write(s.Value); err != nil {
			return s.failure(err)
		}
	}
	// Each attribute is set by itself, so that an error says which one the kernel refused.
	for _, want := range c.cfg.Attributes {
		if err := c.set(want); err != nil {
			return cni.Errorf(codeOf(err, cni.CodeInternal), "%w", err)
		}
	}
	return nil
}

// readValues reads the values that the configuration is going to change, and refuses what is not there. A sysctl that
// can only be written has none.
func (c container) readValues() (before []value, err error) {
	err = c.FindInterface()
	if len(c.cfg.Attributes) == 0 {
		err = frame.IgnoreNoLink(err)
	}
	if err != nil {
		return nil, err
	}
	if name := backupName(c.Attachment); len(name) > nameMax {
		return nil, cni.Errorf(cni.CodeEnvironment, "CNI_CONTAINERID %q: too long for the file name %q", c.ContainerID,
			name)
	}
	for _, s := range c.cfg.Sysctls {
		text, err := s.Key.Read()
		switch {
		case err == nil:
			v := value{Key: s.Key.String(), Value: text}
			if s.Key.Has(c.IfName) {
				v.Link = c.ContEnd.Index
			}
			before = append(before, v)
		case errors.Is(err, fs.ErrNotExist):
			return nil, bad(s.name(), s.Value, "no such sysctl in the container's network namespace")
		case errors.Is(err, unix.EISDIR):
			return nil, bad(s.name(), s.Value, "is a directory of sysctls")
		case cni.Transient(err):
			return nil, s.failure(err)
		}
	}
	for _, want := range c.cfg.Attributes {
		have := attributeOf(c.ContEnd, want.Key)
		if want.Key == "mac" && len(have) != len(want.Value) {
			reason := fmt.Sprintf("an address of %q has %d bytes", c.IfName, len(c.ContEnd.MAC))
			return nil, bad("mac", want.Value, reason)
		}
		before = append(before, value{want.Key, have, c.ContEnd.Index})
	}
	return before, nil
}

// record writes the values from before down, so that DEL finds them whenever this call is killed. Where a value is
// recorded already, that one counts: only it was there before any ADD.
func (c container) record(s *store, before []value) error {
	old, _, err := s.records.Get(recordName(c.Attachment))
	if err != nil {
		return err
	}
	text, backup, err := s.backup()
	if err != nil {
		return err
	}
	if len(old.attributes(c.IfName, 0)) > 0 {
		backup = nil // made from the record; any other is the reference's, whose ADD counts as the first
	}
	here := c.NetnsID
	here.MAC = ""                                                    // other interfaces have others
	isFormer := func(one change) bool { return !one.Netns.Is(here) } // of a former life of the container
	r := record{slices.DeleteFunc(slices.Clone(old.Changes), isFormer)}
	known, own := r.values(), r.change(c.Attachment)
	for _, v := range slices.Concat(backup, before) {
		if v.isAttribute() {
			v.Link = c.ContEnd.Index
		}
		if i := find(known, v); i >= 0 {
			v = known[i]
		}
		if find(own.Values, v) < 0 {
			own.Values = append(own.Values, v)
		}
	}
	own.Netns = c.NetnsID
	if i := find(c.cfg.Attributes, value{Key: "mac"}); i >= 0 {
		own.Netns.MAC = c.cfg.Attributes[i].Value
	}
	c.OnFail("restore the backup file", func(context.Context) error {
		err := s.put(c.Attachment, old)
		if text != nil {
			err = errors.Join(err, s.backups.Replace(backupName(c.Attachment), text, 0o600))
		}
		return err
	})
	// The record goes first: a backup file alone would be taken for the reference's.
	return errors.Join(s.records.Put(r), s.putBackup(c.Attachment, r))
}

// codeOf is the code for a value that the kernel did not take.
func codeOf(err error, other uint) uint {
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE), errors.Is(err, unix.EADDRNOTAVAIL),
		errors.Is(err, fs.ErrNotExist):
		return cni.CodeConfig
	case errors.Is(err, unix.EOPNOTSUPP):
		return cni.CodeUnsupportedField
	}
	return other
}

// result is the chain's result with the new MAC address and MTU of the container's interface.
func result(req *skel.Request, cfg config) *cni.Result {
	res := req.PrevResult.Clone()
	i := slices.IndexFunc(res.Interfaces, func(i cni.Interface) bool { return i.Name == req.IfName && i.Sandbox != "" })
	for _, v := range cfg.Attributes {
		switch {
		case i < 0:
		case v.Key == "mac":
			res.Interfaces[i].MAC = v.Value
		case v.Key == "mtu":
			res.Interfaces[i].MTU, _ = strconv.Atoi(v.Value) // parseConfig made the text
		}
	}
	return res
}

func check(_ context.Context, req *skel.Request, cfg config) error {
	if cfg.empty() {
		return nil
	}
	return frame.InContainer(req, func(c *frame.Call) error { return container{c, cfg}.verify() })
}

// verify returns each difference from the configuration. What that does not name is anybody's.
func (c container) verify() error {
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
	if len(c.cfg.Attributes) > 0 {
		errs = append(errs, c.VerifyInterface())
	}
	for _, want := range c.cfg.Attributes {
		if c.ContEnd.Index != 0 && !want.isOf(c.ContEnd) {
			errs = append(errs, cni.Drift("interface %q: %s is not %s", c.IfName, want.Key, want.Value))
		}
	}
	return errors.Join(errs...)
}

// status looks for an allow-list that is broken or forbids what is configured, and whether dataDir can be written.
func (allowed allowList) status(_ context.Context, _ *skel.Request, cfg config) error {
	err := cmp.Or(allowed.verify(), allowed.check(cfg.Sysctls))
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
