package tuning

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

const ethtoolKey = "ethtool."

func (v value) isEthtool() bool { return strings.HasPrefix(v.Key, ethtoolKey) }

// groupAndKey are the names below the key ethtool.
func (v value) groupAndKey() (group, key string) {
	group, key, _ = strings.Cut(strings.TrimPrefix(v.Key, ethtoolKey), ".")
	return group, key
}

// values are what is asked for, numbers first: a driver may offer other features with them.
func (w wireEthtool) values() (all []value) {
	want := func(group, key string, to any) {
		all = append(all, value{Key: ethtoolKey + group + "." + key, Value: fmt.Sprint(to)})
	}
	number := func(group, key string, n *uint32) {
		if n != nil {
			want(group, key, *n)
		}
	}
	number("rings", "rx", w.Rings.RX)
	number("rings", "rx-mini", w.Rings.RXMini)
	number("rings", "rx-jumbo", w.Rings.RXJumbo)
	number("rings", "tx", w.Rings.TX)
	number("channels", "rx", w.Channels.RX)
	number("channels", "tx", w.Channels.TX)
	number("channels", "other", w.Channels.Other)
	number("channels", "combined", w.Channels.Combined)
	for _, name := range slices.Sorted(maps.Keys(w.Features)) {
		if on := w.Features[name]; on != nil {
			want("features", name, *on)
		}
	}
	return all
}

// driver is what ethtool knows of an interface; each group is read once.
type driver struct {
	link   rtnl.Link
	groups map[string]map[string]rtnl.Setting
}

// read reads the setting that a value is about. known is false for the name of a feature that the kernel does not know.
func (d *driver) read(v value) (have rtnl.Setting, known bool, err error) {
	group, key := v.groupAndKey()
	if d.groups[group] == nil {
		all, err := rtnl.Ethtool(d.link.Index, group)
		if err != nil {
			return have, false, cni.Errorf(codeOf(err, cni.CodeInternal), "%s: %s: interface %q: %w", v.Key, v.Value,
				d.link.Name, err)
		}
		if d.groups == nil {
			d.groups = map[string]map[string]rtnl.Setting{}
		}
		d.groups[group] = all
	}
	have, known = d.groups[group][key]
	return have, known, nil
}

// before is what there is, as a value that set takes. It refuses what the interface cannot have.
func (d *driver) before(v value) (string, error) {
	have, known, err := d.read(v)
	n, _ := strconv.ParseUint(v.Value, 10, 32) // 0 of a feature
	switch {
	case err != nil:
		return "", err
	case !known:
		return "", cni.Refuse(v.Key, v.Value, "is a feature that the kernel does not know"+d.alike(v))
	case have.Fixed && have.Is != v.Value:
		return "", cni.Refuse(v.Key, v.Value, fmt.Sprintf("cannot be had: interface %q has it fixed", d.link.Name)).
			WithCode(cni.CodeUnsupportedField)
	case uint32(n) > have.Most:
		return "", cni.Refuse(v.Key, v.Value, fmt.Sprintf("is above %d, the most that interface %q can have", have.Most,
			d.link.Name))
	}
	return have.Wanted, nil
}

// alike names the features that have the value's key in their name: ethtool(8) has short names of its own.
func (d *driver) alike(v value) string {
	group, key := v.groupAndKey()
	var names []string
	for name := range d.groups[group] {
		if key != "" && strings.Contains(name, key) {
			names = append(names, strconv.Quote(name))
		}
	}
	if names == nil {
		return ""
	}
	slices.Sort(names)
	return "; it knows " + strings.Join(names, ", ")
}

// set gives the interface a value, unless it has that. Of a feature what is wanted counts.
func (d *driver) set(v value) error {
	have, _, err := d.read(v)
	if err != nil || have.Wanted == v.Value {
		return err
	}
	group, key := v.groupAndKey()
	if err := rtnl.SetEthtool(d.link.Index, group, key, v.Value); err != nil {
		return fmt.Errorf("%s: %s: %w", v.Key, v.Value, err)
	}
	return nil
}

// device identifies hardware, which outlives the namespace that it is in and goes home to the host's.
type device struct {
	Parent string `json:"parent,omitempty"` // a PCI address for instance; unknown before Linux 5.14
	MAC    string `json:"permanentMAC"`
}

// deviceOf is nil where the link is no hardware.
func deviceOf(l rtnl.Link) *device {
	if !l.IsHardware() {
		return nil
	}
	return &device{l.Parent, l.PermMAC.String()}
}

func (d *device) is(l rtnl.Link) bool {
	has := deviceOf(l)
	return d != nil && has != nil && *d == *has
}

// restoreDevice puts back what ethtool changed of hardware, wherever that is: in the container under another name, in a
// namespace that lost its path, or at home. What others have changed since ADD stays.
func (own change) restoreDevice(finder *ns.Finder) error {
	if own.Device == nil || len(own.Values) == 0 {
		return nil
	}
	var inside error
	if container, err := finder.Open("", own.Netns); err == nil { // an error: not all could be looked at, or it is gone
		inside = container.Do(own.restoreHere)
		_ = container.Close()
	}
	return errors.Join(inside, own.restoreHere()) // host-device's GC came first
}

// restoreHere is restoreDevice in the calling thread's namespace.
func (own change) restoreHere() error {
	conn, err := rtnl.Dial(nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	links, err := conn.Links()
	i := slices.IndexFunc(links, own.Device.is)
	if i < 0 {
		return err
	}
	d := driver{link: links[i]}
	var errs []error
	for _, v := range slices.Backward(own.Values) {
		if !v.isEthtool() {
			continue
		}
		have, _, err := d.read(v)
		if err == nil && have.Wanted == v.Set {
			err = d.set(v)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// undoFormer restores what former containers changed of the device. Their namespaces ended without a DEL, and what they
// left is not what there was before.
func (c container) undoFormer(s *store) {
	if len(c.cfg.Ethtool) == 0 || !c.ContEnd.IsHardware() {
		return
	}
	all, err := s.records.All()
	errs := []error{err}
	for _, r := range all {
		for _, one := range r.Changes {
			if one.Device.is(c.ContEnd) && !one.isOver(s.boot) && !one.Netns.Is(c.NetnsID) {
				errs = append(errs, one.restoreHere())
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		c.Req.Warn("not all is restored: %v", err)
	}
}

// compareDriver returns an error of the code with each value of ethtool that the interface does not have.
func (c container) compareDriver(code uint) error {
	d := driver{link: c.ContEnd}
	var errs []error
	for _, want := range c.cfg.Ethtool {
		have, _, err := d.read(want)
		isUnknown := errors.Is(err, unix.EOPNOTSUPP) && code == cni.CodeDrift
		if isUnknown || err == nil && have.Is != want.Value {
			err = cni.Errorf(code, "interface %q: %s is %s, want %s", c.Req.IfName, want.Key,
				cmp.Or(have.Is, "unknown"), want.Value)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
