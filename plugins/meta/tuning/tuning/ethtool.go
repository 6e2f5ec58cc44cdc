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

// groupAndKey returns the two names below the key ethtool.
func (v value) groupAndKey() (group, key string) {
	group, key, _ = strings.Cut(strings.TrimPrefix(v.Key, ethtoolKey), ".")
	return group, key
}

// values returns the configured settings, numbers first, because the available features may depend on them.
func (w wireEthtool) values() (all []value) {
	add := func(group, key string, v any) {
		all = append(all, value{Key: ethtoolKey + group + "." + key, Value: fmt.Sprint(v)})
	}
	addNumber := func(group, key string, n *uint32) {
		if n != nil {
			add(group, key, *n)
		}
	}
	addNumber("rings", "rx", w.Rings.RX)
	addNumber("rings", "rx-mini", w.Rings.RXMini)
	addNumber("rings", "rx-jumbo", w.Rings.RXJumbo)
	addNumber("rings", "tx", w.Rings.TX)
	addNumber("channels", "rx", w.Channels.RX)
	addNumber("channels", "tx", w.Channels.TX)
	addNumber("channels", "other", w.Channels.Other)
	addNumber("channels", "combined", w.Channels.Combined)
	for _, name := range slices.Sorted(maps.Keys(w.Features)) {
		if on := w.Features[name]; on != nil {
			add("features", name, *on)
		}
	}
	return all
}

// driver is a view of an interface's ethtool settings. It reads each group once.
type driver struct {
	link   rtnl.Link
	groups map[string]map[string]rtnl.Setting
}

// read returns the setting with the key of v. known is false if the kernel does not know the feature.
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

// currentValue returns the present value, in the form that set accepts. It fails if the interface cannot have v.
func (d *driver) currentValue(v value) (string, error) {
	have, known, err := d.read(v)
	n, _ := strconv.ParseUint(v.Value, 10, 32) // 0 for a feature
	switch {
	case err != nil:
		return "", err
	case !known:
		return "", cni.Refuse(v.Key, v.Value, "is a feature that the kernel does not know"+d.similar(v))
	case have.Fixed && have.Current != v.Value:
		return "", cni.Refuse(v.Key, v.Value, fmt.Sprintf("is not possible: interface %q has a fixed value",
			d.link.Name)).WithCode(cni.CodeUnsupportedField)
	case uint32(n) > have.Max:
		return "", cni.Refuse(v.Key, v.Value, fmt.Sprintf("is above %d, the maximum of interface %q",
			have.Max, d.link.Name))
	}
	return have.Wanted, nil
}

// similar lists the features whose names contain the key of v, because ethtool(8) has short names of its own.
func (d *driver) similar(v value) string {
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
	return "; similar features: " + strings.Join(names, ", ")
}

// set writes a value, unless the interface already has it. For a feature, it compares the requested state, because the
// active state can differ.
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

// device identifies hardware, which outlives its namespace and returns to the host.
type device struct {
	Parent string `json:"parent,omitempty"` // for example a PCI address; empty before Linux 5.14
	MAC    string `json:"permanentMAC"`
}

// deviceOf returns the identity of a link that is hardware, otherwise nil.
func deviceOf(l rtnl.Link) *device {
	if !l.IsHardware() {
		return nil
	}
	return &device{l.Parent, l.PermMAC.String()}
}

func (d *device) matches(l rtnl.Link) bool {
	other := deviceOf(l)
	return d != nil && other != nil && *d == *other
}

// restoreDevice restores the ethtool settings of hardware. The device may be in the container under another name, in a
// namespace without a path, or on the host. restoreDevice does not restore a setting that another program has changed
// since ADD.
func (c change) restoreDevice(finder *ns.Finder) error {
	if c.Device == nil || len(c.Values) == 0 {
		return nil
	}
	var insideErr error
	netns, err := finder.Open(c.NetnsPath, c.Netns)
	if err == nil { // otherwise, only the host is searched
		insideErr = netns.Do(c.restoreInNetns)
		_ = netns.Close()
	}
	return errors.Join(insideErr, c.restoreInNetns()) // the GC of host-device may have run first
}

// restoreInNetns restores the device if it is in the calling thread's namespace.
func (c change) restoreInNetns() error {
	conn, err := rtnl.Dial(nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	links, err := conn.Links()
	i := slices.IndexFunc(links, c.Device.matches)
	if i < 0 {
		return err
	}
	d := driver{link: links[i]}
	var errs []error
	for _, v := range slices.Backward(c.Values) {
		if !v.isEthtool() {
			continue
		}
		have, _, err := d.read(v)
		if err == nil && have.Wanted == v.NewValue {
			err = d.set(v)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// restoreFormer restores the settings that earlier containers have changed on the device. It is needed because, without
// a DEL, the device returns to the host with changed settings when a container's namespace ends.
func (c container) restoreFormer(s *store) {
	if len(c.cfg.Ethtool) == 0 || !c.ContEnd.IsHardware() {
		return
	}
	all, err := s.records.All()
	errs := []error{err}
	for _, r := range all {
		for _, ch := range r.Changes {
			if ch.Device.matches(c.ContEnd) && !ch.isOfEarlierBoot(s.boot) && !ch.Netns.Is(c.NetnsID) {
				errs = append(errs, ch.restoreInNetns())
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		c.Req.Warn("some values are not restored: %v", err)
	}
}

// compareDriver returns an error with this code that names each ethtool setting whose value differs.
func (c container) compareDriver(code uint) error {
	d := driver{link: c.ContEnd}
	var errs []error
	for _, want := range c.cfg.Ethtool {
		have, _, err := d.read(want)
		isUnknown := errors.Is(err, unix.EOPNOTSUPP) && code == cni.CodeDrift
		if isUnknown || err == nil && have.Current != want.Value {
			err = cni.Errorf(code, "interface %q: %s is %s, want %s", c.Req.IfName, want.Key,
				cmp.Or(have.Current, "unknown"), want.Value)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
