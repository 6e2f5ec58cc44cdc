package tuning

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
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// container is where a call works, on a thread in its namespace: sysctls are that thread's.
type container struct {
	*netplugin.Call
	cfg config
}

func (allowed allowList) add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	if err := allowed.check(cfg.Sysctls); err != nil {
		return nil, err
	}
	if cfg.empty() {
		return req.PrevResult, nil
	}
	c := container{cfg: cfg}
	var before []value
	err := netplugin.InContainer(req, func(call *netplugin.Call) (err error) {
		c.Call = call
		before, err = c.examine()
		return err
	})
	if err != nil {
		return nil, err
	}
	var s *store
	if len(before) > 0 {
		req.Step("record the values")
		if s, err = openStore(ctx, req, cfg.DataDir, true); err != nil {
			return nil, err
		}
	}
	return result(req, cfg), req.NS.Do(func() error { return c.change(ctx, s) })
}

// del restores what can be restored and forgets it. It fails only where a repetition may have more success.
func del(ctx context.Context, req *skel.Request) error {
	s, err := openExisting(ctx, req)
	if err != nil || len(backupName(req.Attachment)) > nameMax { // ADD refuses such a name
		return err
	}
	r, _, err := s.records.Get(recordName(req.Attachment))
	if err != nil {
		return err
	}
	own, rest := r.without(r.owner(req.Attachment))
	if own.isOver(s.boot) {
		own.Values = nil
	}
	_, backup, err := s.backup()
	if err == nil && req.NS != nil && len(own.Values)+len(backup) > 0 {
		err = netplugin.InContainer(req, func(c *netplugin.Call) error {
			return container{Call: c}.restoreIn(own, r, backup)
		})
	}
	err = errors.Join(err, own.restoreDevice(&ns.Finder{Also: req.Netns}))
	if cni.Transient(err) {
		return err // the repetition needs the record
	}
	if err != nil {
		req.Warn("not all is restored: %v", err)
	}
	return s.put(ctx, req.Attachment, rest)
}

func check(_ context.Context, req *skel.Request, cfg config) error {
	if cfg.empty() {
		return nil
	}
	return netplugin.InContainer(req, func(c *netplugin.Call) error { return container{c, cfg}.verify() })
}

// reapply writes the configured values if the attachment has a record, under the lock under which DEL removes the
// record.
func reapply(ctx context.Context, req *skel.Request, cfg config) error {
	s, err := openStore(ctx, req, cfg.DataDir, false)
	if err != nil {
		return err
	}
	r, _, err := s.records.Get(recordName(req.Attachment))
	if err != nil {
		return err
	}
	return netplugin.InContainer(req, func(c *netplugin.Call) error {
		err := c.FindInterface()
		own := r.change(req.Attachment)
		switch {
		case len(own.Values) == 0:
			return netplugin.NotRestored("settings", netplugin.ErrNoRecord)
		case own.isOver(s.boot) || !own.Netns.Is(c.NetnsID):
			return netplugin.NotRestored("settings", netplugin.ErrStale)
		}
		if cfg.leavesInterface() {
			err = netplugin.IgnoreNoLink(err)
		}
		if cfg.OnlyCheck {
			cfg.Sysctls = nil
		}
		if err != nil {
			return err
		}
		return container{c, cfg}.write()
	})
}

// gc forgets the values of attachments that are not valid, and those of another boot. It restores those of devices
// alone: the namespaces are gone, or somebody else's business.
func gc(ctx context.Context, req *skel.Request) error {
	s, err := openExisting(ctx, req)
	if err != nil {
		return err
	}
	all, err := s.records.All()
	errs := []error{err}
	if s.backups != nil {
		errs = append(errs, s.backups.Sweep())
	}
	var finder ns.Finder
	for _, r := range all {
		for _, one := range r.Changes {
			if req.Valid.Excludes(one.Attachment) || one.isOver(s.boot) {
				errs = append(errs, s.forget(ctx, one, r, &finder))
			}
		}
	}
	return errors.Join(errs...)
}

// forget takes a change out of a record, and restores what it has of a device.
func (s *store) forget(ctx context.Context, one change, r *record, finder *ns.Finder) error {
	own, rest := r.without(one.Attachment)
	if !one.isOver(s.boot) {
		err := own.restoreDevice(finder)
		if cni.Transient(err) {
			return err
		}
		if err != nil {
			s.Warn("%s: not all is restored: %v", one.Attachment, err)
		}
	}
	*r = rest
	return s.put(ctx, one.Attachment, rest)
}

// status returns an error if the allow-list is broken or forbids a configured sysctl, or if records or backup files
// cannot be written.
func (allowed allowList) status(_ context.Context, _ *skel.Request, cfg config) error {
	err := cmp.Or(allowed.verify(), allowed.check(cfg.Sysctls))
	if cfg.changes() {
		if unwritable := statefile.Writable(cfg.DataDir); unwritable != nil {
			err = errors.Join(err, cni.Errorf(cni.CodeIO, "dataDir: %w", unwritable))
		}
		if unwritable := statefile.Writable(recordRoot); unwritable != nil {
			err = errors.Join(err, cni.Errorf(cni.CodeIO, "saved values: %w", unwritable))
		}
	}
	return netplugin.Unavailable("", err)
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

// examine refuses a bad configuration before ADD writes anything. It returns the values that ADD may change.
func (c *container) examine() ([]value, error) {
	c.Req.Step("read the values")
	if c.cfg.OnlyCheck {
		if err := c.compare(cni.CodeConfig); err != nil {
			return nil, fmt.Errorf("sysctlMode \"check\" writes no sysctl: %w", err)
		}
		c.cfg.Sysctls = nil
	}
	return c.readValues()
}

// change does the work of ADD. s is nil if there is nothing to record.
func (c container) change(ctx context.Context, s *store) (err error) {
	var before []value
	if s != nil {
		c.undoFormer(s)
		if before, err = c.readValues(); err != nil { // again, now that no other call changes them
			return err
		}
		if err := c.record(ctx, s, before); err != nil {
			return err
		}
	}
	c.Req.Step("write the values")
	c.Req.OnFail("restore the values", func(context.Context) error {
		err := c.FindInterface() // as it is by now
		return errors.Join(netplugin.IgnoreNoLink(err), c.Req.NS.Do(func() error { return c.restore(before) }))
	})
	return c.write()
}

// write gives the configured values to sysctls, attributes and the driver.
func (c container) write() error {
	for _, s := range c.cfg.Sysctls {
		if err := s.Key.Write(s.Value); err != nil {
			return s.failure(err)
		}
	}
	// Each value is set by itself, so that an error says which one the kernel refused.
	for _, want := range slices.Concat(c.cfg.Attributes, c.cfg.Ethtool) {
		if err := c.set(want); err != nil {
			return cni.Errorf(codeOf(err, cni.CodeInternal), "%w", err)
		}
	}
	if err := c.compareDriver(cni.CodeUnsupportedField); err != nil {
		return fmt.Errorf("the driver took it, and changed nothing: %w", err)
	}
	return nil
}

// readValues reads the values that the configuration is going to change, and refuses what is not there. A sysctl that
// can only be written has none.
func (c container) readValues() (before []value, err error) {
	err = c.FindInterface()
	if c.cfg.leavesInterface() {
		err = netplugin.IgnoreNoLink(err)
	}
	if err != nil {
		return nil, err
	}
	if name := backupName(c.Req.Attachment); len(name) > nameMax {
		return nil, cni.Errorf(cni.CodeEnvironment, "CNI_CONTAINERID %q: too long for the file name %q",
			c.Req.ContainerID, name)
	}
	for _, s := range c.cfg.Sysctls {
		text, err := s.Key.Read()
		switch {
		case err == nil:
			v := value{Key: s.Key.String(), Value: text, Set: s.Value}
			if s.Key.Has(c.Req.IfName) {
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
			reason := fmt.Sprintf("an address of %q has %d bytes", c.Req.IfName, len(c.ContEnd.MAC))
			return nil, bad("mac", want.Value, reason)
		}
		before = append(before, value{want.Key, have, c.ContEnd.Index, want.Value})
	}
	known := driver{link: c.ContEnd}
	for _, want := range c.cfg.Ethtool {
		have, err := known.before(want)
		if err != nil {
			return nil, err
		}
		before = append(before, value{want.Key, have, c.ContEnd.Index, want.Value})
	}
	return before, nil
}

// record writes the values from before down, so that DEL finds them whenever this call is killed. Where a value is
// recorded already, that one counts: only it was there before any ADD.
func (c container) record(ctx context.Context, s *store, before []value) error {
	old, _, err := s.records.Get(recordName(c.Req.Attachment))
	if err != nil {
		return err
	}
	text, backup, err := s.backup()
	if err != nil {
		return err
	}
	if len(old.attributes(c.Req.IfName, 0)) > 0 {
		backup = nil // made from the record; any other is the reference's, whose ADD counts as the first
	}
	here := c.NetnsID
	here.MAC = "" // other interfaces have others
	// Of a former life of the container.
	isFormer := func(one change) bool { return one.isOver(s.boot) || !one.Netns.Is(here) }
	r := record{slices.DeleteFunc(slices.Clone(old.Changes), isFormer)}
	known, own := r.values(), r.change(c.Req.Attachment)
	for _, v := range slices.Concat(backup, before) {
		if v.isAttribute() {
			v.Link = c.ContEnd.Index
		}
		if i := find(known, v); i >= 0 {
			v.Value = known[i].Value
		}
		if i := find(own.Values, v); i < 0 {
			own.Values = append(own.Values, v)
		} else {
			own.Values[i].Set = v.Set
		}
	}
	own.Boot, own.Netns = s.boot, c.NetnsID
	if len(c.cfg.Ethtool) > 0 {
		own.Device = deviceOf(c.ContEnd)
	}
	if i := find(c.cfg.Attributes, value{Key: "mac"}); i >= 0 {
		own.Netns.MAC = c.cfg.Attributes[i].Value
	}
	c.Req.OnFail("restore the backup file", func(ctx context.Context) error {
		err := s.put(ctx, c.Req.Attachment, old)
		if text != nil {
			err = errors.Join(err, s.backups.Replace(backupName(c.Req.Attachment), text, 0o600))
		}
		return err
	})
	// The record goes first: a backup file alone would be taken for the reference's.
	errs := []error{s.records.Put(ctx, r), s.putBackup(c.Req.Attachment, r)}
	for _, one := range old.Changes {
		if one.IfName != c.Req.IfName && isFormer(one) {
			errs = append(errs, s.putBackup(one.Attachment, r))
		}
	}
	return errors.Join(errs...)
}

// set gives a sysctl or an attribute a value, unless it has that.
func (c container) set(v value) error {
	if v.isEthtool() {
		return (&driver{link: c.ContEnd}).set(v)
	}
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

// restoreIn restores the values that the attachment alone has changed, or those of the reference's backup file, where
// the path leads to the namespace in which they were changed.
func (c container) restoreIn(own change, r record, backup []value) error {
	if err := netplugin.IgnoreNoLink(c.FindInterface()); err != nil {
		return err
	}
	if len(r.attributes(c.Req.IfName, c.ContEnd.Index)) > 0 || !c.isReferences(backup) {
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
		if err := netplugin.IgnoreNoLink(c.set(v)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("restore %w", err))
		}
	}
	return errors.Join(errs...)
}

// compare returns an error of the code with each sysctl that differs from the configuration.
func (c container) compare(code uint) error {
	var errs []error
	for _, s := range c.cfg.Sysctls {
		text, err := s.Key.Read()
		switch {
		case code == cni.CodeDrift && errors.Is(err, fs.ErrPermission): // it can only be written
		case err != nil:
			errs = append(errs, cni.Errorf(code, "%s: %w, want %q", s.name(), err, s.Value))
		case !sysctl.Equal(text, s.Value):
			errs = append(errs, cni.Errorf(code, "%s: is %q, want %q", s.name(), text, s.Value))
		}
	}
	return errors.Join(errs...)
}

// verify returns each difference from the configuration. What that does not name is anybody's.
func (c container) verify() error {
	errs := []error{c.compare(cni.CodeDrift)}
	if !c.cfg.leavesInterface() {
		errs = append(errs, c.VerifyInterface())
	}
	for _, want := range c.cfg.Attributes {
		if c.ContEnd.Index != 0 && !want.isOf(c.ContEnd) {
			errs = append(errs, cni.Drift("interface %q: %s is not %s", c.Req.IfName, want.Key, want.Value))
		}
	}
	if c.ContEnd.Index != 0 {
		errs = append(errs, c.compareDriver(cni.CodeDrift))
	}
	return errors.Join(errs...)
}
