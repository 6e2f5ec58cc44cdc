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

// container is a call on a thread in the container's namespace, so that /proc/sys/net shows this namespace.
type container struct {
	*netplugin.Call
	cfg config
}

func (allowed allowList) add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	if err := allowed.check(cfg.Sysctls); err != nil {
		return nil, err
	}
	if cfg.isEmpty() {
		return req.PrevResult, nil
	}
	var s *store
	if cfg.hasWrites() {
		var err error
		if s, err = openStore(ctx, req, cfg.DataDir, true); err != nil {
			return nil, err
		}
	}
	return result(req, cfg), netplugin.InContainer(req, func(call *netplugin.Call) error {
		return container{call, cfg}.apply(ctx, s)
	})
}

// del restores the recorded values and removes them from the record. It fails only if a retry may succeed; otherwise it
// warns about values that could not be restored.
func del(ctx context.Context, req *skel.Request) error {
	s, err := openExisting(ctx, req)
	if err != nil || len(backupName(req.Attachment)) > nameMax { // ADD refuses such a name
		return err
	}
	r, _, err := s.records.Get(recordName(req.Attachment))
	if err != nil {
		return err
	}
	own, rest := r.without(r.owner(req))
	if own.isOfEarlierBoot(s.boot) {
		own.Values = nil
	}
	_, backup, err := s.backup()
	if err == nil && req.NS != nil && len(own.Values)+len(backup) > 0 {
		err = netplugin.InContainer(req, func(c *netplugin.Call) error {
			return container{Call: c}.restoreIn(own, r, backup)
		})
	}
	err = errors.Join(err, own.restoreDevice(&ns.Finder{Alternative: req.Netns}))
	if cni.Transient(err) {
		return err // a retry needs the record
	}
	if err != nil {
		req.Warn("some values are not restored: %v", err)
	}
	return s.put(ctx, req.Attachment, rest)
}

func check(_ context.Context, req *skel.Request, cfg config) error {
	if cfg.isEmpty() {
		return nil
	}
	return netplugin.InContainer(req, func(c *netplugin.Call) error { return container{c, cfg}.verify() })
}

// reapply writes the configured values if the attachment has a record. Like DEL, it holds the lock of the records.
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
		case own.isOfEarlierBoot(s.boot) || !own.Netns.Is(c.NetnsID):
			return netplugin.NotRestored("settings", netplugin.ErrStale)
		}
		if !cfg.setsInterface() {
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

// gc removes the recorded values of earlier boots, and of attachments that are not valid. It restores only settings of
// devices, because the namespaces no longer exist or belong to another attachment.
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
		for _, ch := range r.Changes {
			if req.Valid.Excludes(ch.Attachment) || ch.isOfEarlierBoot(s.boot) {
				errs = append(errs, s.dropChange(ctx, ch, r, &finder))
			}
		}
	}
	return errors.Join(errs...)
}

// dropChange removes a change from a record and restores the device that it names.
func (s *store) dropChange(ctx context.Context, ch change, r *record, finder *ns.Finder) error {
	own, rest := r.without(ch.Attachment)
	if !ch.isOfEarlierBoot(s.boot) {
		err := own.restoreDevice(finder)
		if cni.Transient(err) {
			return err
		}
		if err != nil {
			s.req.Warn("%s: some values are not restored: %v", ch.Attachment, err)
		}
	}
	*r = rest
	return s.put(ctx, ch.Attachment, rest)
}

// status returns an error if the allow-list is broken or forbids a sysctl, or if records or backups cannot be written.
func (allowed allowList) status(_ context.Context, _ *skel.Request, cfg config) error {
	err := cmp.Or(allowed.verify(), allowed.check(cfg.Sysctls))
	if cfg.hasWrites() {
		if dirErr := statefile.Writable(cfg.DataDir); dirErr != nil {
			err = errors.Join(err, cni.Errorf(cni.CodeIO, "dataDir: %w", dirErr))
		}
		if dirErr := statefile.Writable(recordRoot); dirErr != nil {
			err = errors.Join(err, cni.Errorf(cni.CodeIO, "saved values: %w", dirErr))
		}
	}
	return netplugin.Unavailable("", err)
}

// result returns prevResult with the new MAC address and MTU of the container's interface.
func result(req *skel.Request, cfg config) *cni.Result {
	res := req.PrevResult.Clone()
	i := slices.IndexFunc(res.Interfaces, func(i cni.Interface) bool { return i.Name == req.IfName && i.Sandbox != "" })
	for _, v := range cfg.Attributes {
		switch {
		case i < 0:
		case v.Key == "mac":
			res.Interfaces[i].MAC = v.Value
		case v.Key == "mtu":
			res.Interfaces[i].MTU, _ = strconv.Atoi(v.Value) // parseConfig has formatted it
		}
	}
	return res
}

// apply implements ADD. A configuration that cannot be applied fails before any change. s is nil if nothing is written.
func (c container) apply(ctx context.Context, s *store) error {
	c.Req.Step("read the values")
	if err := c.findInterface(); err != nil {
		return err
	}
	if c.cfg.OnlyCheck {
		if err := c.compareSysctls(cni.CodeConfig); err != nil {
			return fmt.Errorf("sysctlMode \"check\" writes no sysctl: %w", err)
		}
		c.cfg.Sysctls = nil
	}
	if s == nil {
		return nil
	}
	c.restoreFormer(s)
	originals, err := c.readValues()
	if err == nil && len(originals) > 0 {
		err = c.writeRecord(ctx, s, originals)
	}
	if err != nil {
		return err
	}
	c.Req.Step("write the values")
	c.Req.OnFail("restore the values", func(context.Context) error {
		err := c.FindInterface() // refresh the state of the interface
		return errors.Join(netplugin.IgnoreNoLink(err), c.Req.NS.Do(func() error { return c.restore(originals) }))
	})
	return c.write()
}

// findInterface finds the container's interface, which may be missing if the configuration sets only sysctls.
func (c container) findInterface() error {
	err := c.FindInterface()
	if !c.cfg.setsInterface() {
		err = netplugin.IgnoreNoLink(err)
	}
	if name := backupName(c.Req.Attachment); err == nil && len(name) > nameMax {
		err = cni.Errorf(cni.CodeEnvironment, "CNI_CONTAINERID %q: too long for the file name %q", c.Req.ContainerID,
			name)
	}
	return err
}

func (c container) write() error {
	for _, s := range c.cfg.Sysctls {
		if err := s.Key.Write(s.Value); err != nil {
			return s.failure(err)
		}
	}
	// Each value is set by its own request, so that an error names the value that the kernel refused.
	for _, want := range slices.Concat(c.cfg.Attributes, c.cfg.Ethtool) {
		if err := c.set(want); err != nil {
			return cni.Errorf(codeOf(err, cni.CodeInternal), "%w", err)
		}
	}
	if err := c.compareDriver(cni.CodeUnsupportedField); err != nil {
		return fmt.Errorf("the driver accepted the value without changing it: %w", err)
	}
	return nil
}

// readValues returns the present values of everything that the configuration changes, except write-only sysctls. A
// missing sysctl, attribute or setting is an error.
func (c container) readValues() (originals []value, err error) {
	for _, s := range c.cfg.Sysctls {
		text, err := s.Key.Read()
		switch {
		case err == nil:
			v := value{Key: s.Key.String(), Value: text, NewValue: s.Value}
			if s.Key.Has(c.Req.IfName) {
				v.Link = c.ContEnd.Index
			}
			originals = append(originals, v)
		case errors.Is(err, fs.ErrNotExist):
			return nil, refuse(s.name(), s.Value, "no such sysctl in the container's network namespace")
		case errors.Is(err, unix.EISDIR):
			return nil, refuse(s.name(), s.Value, "is a directory of sysctls")
		case cni.Transient(err):
			return nil, s.failure(err)
		}
	}
	for _, want := range c.cfg.Attributes {
		have := attributeOf(c.ContEnd, want.Key)
		if want.Key == "mac" && len(have) != len(want.Value) {
			reason := fmt.Sprintf("an address of %q has %d bytes", c.Req.IfName, len(c.ContEnd.MAC))
			return nil, refuse("mac", want.Value, reason)
		}
		originals = append(originals, value{want.Key, have, c.ContEnd.Index, want.Value})
	}
	known := driver{link: c.ContEnd}
	for _, want := range c.cfg.Ethtool {
		have, err := known.currentValue(want)
		if err != nil {
			return nil, err
		}
		originals = append(originals, value{want.Key, have, c.ContEnd.Index, want.Value})
	}
	return originals, nil
}

// writeRecord writes the values from before this ADD to the record, so that DEL finds them even if this call is
// killed. If another attachment has already recorded a value, that value is used, because only that value is the
// original.
func (c container) writeRecord(ctx context.Context, s *store, originals []value) error {
	if err := s.openBackups(c.cfg.DataDir, 0o700); err != nil {
		return fmt.Errorf("dataDir: %w", err)
	}
	old, _, err := s.records.Get(recordName(c.Req.Attachment))
	if err != nil {
		return err
	}
	text, backup, err := s.backup()
	if err != nil {
		return err
	}
	if len(old.attributes(c.Req.IfName, 0)) > 0 {
		backup = nil // it is a copy of the record, and not from an earlier ADD of the reference
	}
	netns := c.NetnsID
	netns.MAC = "" // differs between interfaces
	// isFormer selects changes of an earlier container with this ID.
	isFormer := func(ch change) bool { return ch.isOfEarlierBoot(s.boot) || !ch.Netns.Is(netns) }
	r := record{slices.DeleteFunc(slices.Clone(old.Changes), isFormer)}
	known, own := r.values(), r.change(c.Req.Attachment)
	for _, v := range slices.Concat(backup, originals) {
		if v.isAttribute() {
			v.Link = c.ContEnd.Index
		}
		if i := indexOfValue(known, v); i >= 0 {
			v.Value = known[i].Value
		}
		if i := indexOfValue(own.Values, v); i < 0 {
			own.Values = append(own.Values, v)
		} else {
			own.Values[i].NewValue = v.NewValue
		}
	}
	own.Boot, own.NetnsPath, own.Netns = s.boot, c.Req.Netns, c.NetnsID
	if len(c.cfg.Ethtool) > 0 {
		own.Device = deviceOf(c.ContEnd)
	}
	if i := indexOfValue(c.cfg.Attributes, value{Key: "mac"}); i >= 0 {
		own.Netns.MAC = c.cfg.Attributes[i].Value
	}
	c.Req.OnFail("restore the backup file", func(ctx context.Context) error {
		err := s.put(ctx, c.Req.Attachment, old)
		if text != nil {
			err = errors.Join(err, s.backups.Replace(backupName(c.Req.Attachment), text, 0o600))
		}
		return err
	})
	// The record is written first, because a backup file without a record would be treated as the reference's.
	errs := []error{s.records.Put(ctx, r), s.putBackup(c.Req.Attachment, r)}
	for _, ch := range old.Changes {
		if ch.IfName != c.Req.IfName && isFormer(ch) {
			errs = append(errs, s.putBackup(ch.Attachment, r))
		}
	}
	return errors.Join(errs...)
}

// set writes a value, unless the sysctl, attribute or setting already has it.
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
	if v.matches(c.ContEnd) {
		return nil
	}
	ch, err := v.linkChange()
	if err == nil {
		err = c.Cont.SetLink(c.ContEnd.Index, ch)
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", v.Key, v.Value, err)
	}
	return nil
}

// codeOf returns the code for a value that the kernel refused; other is the code for all other errors.
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

// restoreIn restores the values of own and of the reference's backup file, if c is in their namespace.
func (c container) restoreIn(own change, r record, backup []value) error {
	if err := netplugin.IgnoreNoLink(c.FindInterface()); err != nil {
		return err
	}
	if len(r.attributes(c.Req.IfName, c.ContEnd.Index)) > 0 || !c.isFromReference(backup) {
		backup = nil
	}
	isCertain := c.NetnsID.Cookie != 0 || c.NetnsID.MAC != "" // an inode number alone may have been reused
	if isCertain && own.Netns.Is(c.NetnsID) {
		backup = append(backup, own.Values...)
	}
	return c.restore(backup)
}

// restore writes the values in reverse order. It skips missing interfaces and continues after errors.
func (c container) restore(originals []value) error {
	var errs []error
	for _, v := range slices.Backward(originals) {
		if v.Link != 0 && v.Link != c.ContEnd.Index {
			continue
		}
		if err := netplugin.IgnoreNoLink(c.set(v)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("restore %w", err))
		}
	}
	return errors.Join(errs...)
}

// compareSysctls returns an error with this code that names each sysctl whose value differs from the configuration.
func (c container) compareSysctls(code uint) error {
	var errs []error
	for _, s := range c.cfg.Sysctls {
		text, err := s.Key.Read()
		switch {
		case code == cni.CodeDrift && errors.Is(err, fs.ErrPermission): // write-only
		case err != nil:
			errs = append(errs, cni.Errorf(code, "%s: %w, want %q", s.name(), err, s.Value))
		case !sysctl.Equal(text, s.Value):
			errs = append(errs, cni.Errorf(code, "%s: is %q, want %q", s.name(), text, s.Value))
		}
	}
	return errors.Join(errs...)
}

// verify returns an error that names each difference from the configuration, and ignores other values.
func (c container) verify() error {
	errs := []error{c.compareSysctls(cni.CodeDrift)}
	if c.cfg.setsInterface() {
		errs = append(errs, c.VerifyInterface())
	}
	for _, want := range c.cfg.Attributes {
		if c.ContEnd.Index != 0 && !want.matches(c.ContEnd) {
			errs = append(errs, cni.Drift("interface %q: %s is not %s", c.Req.IfName, want.Key, want.Value))
		}
	}
	if c.ContEnd.Index != 0 {
		errs = append(errs, c.compareDriver(cni.CodeDrift))
	}
	return errors.Join(errs...)
}
