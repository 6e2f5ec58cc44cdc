package tuning

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

const (
	ethtoolKey = "ethtool."
	features   = "features"
)

func (v value) isEthtool() bool { return strings.HasPrefix(v.Key, ethtoolKey) }

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
			want(features, name, *on)
		}
	}
	return all
}

// driver is what ethtool knows of an interface; each group is read once.
type driver struct {
	link     rtnl.Link
	features map[string]rtnl.Feature
	numbers  map[string]map[string]rtnl.Number
}

// split reads what a value is about. The group has no keys for features.
func (d *driver) split(v value) (group, key string, err error) {
	group, key, _ = strings.Cut(strings.TrimPrefix(v.Key, ethtoolKey), ".")
	switch {
	case group == features && d.features == nil:
		d.features, err = rtnl.Features(d.link.Index)
	case group != features && d.numbers[group] == nil:
		if d.numbers == nil {
			d.numbers = map[string]map[string]rtnl.Number{}
		}
		d.numbers[group], err = rtnl.EthtoolGroups()[group].Numbers(d.link.Index)
	}
	if err != nil {
		err = cni.Errorf(codeOf(err, cni.CodeInternal), "%s: %s: interface %q: %w", v.Key, v.Value, d.link.Name, err)
	}
	return group, key, err
}

// before is what there is, as a value that set takes. It refuses what the interface cannot have.
func (d *driver) before(v value) (string, error) {
	group, key, err := d.split(v)
	if err != nil {
		return "", err
	}
	if group == features {
		f, ok := d.features[key]
		switch {
		case !ok:
			return "", cni.Refuse(v.Key, v.Value, "is a feature that the kernel does not know"+d.alike(key))
		case f.Fixed && strconv.FormatBool(f.Active) != v.Value:
			return "", cni.Refuse(v.Key, v.Value, fmt.Sprintf("cannot be had: interface %q has it fixed", d.link.Name)).
				WithCode(cni.CodeUnsupportedField)
		}
		return strconv.FormatBool(f.Wanted), nil
	}
	have := d.numbers[group][key]
	if n, _ := strconv.ParseUint(v.Value, 10, 32); uint32(n) > have.Most {
		return "", cni.Refuse(v.Key, v.Value, fmt.Sprintf("is above %d, the most that interface %q can have", have.Most,
			d.link.Name))
	}
	return strconv.FormatUint(uint64(have.Is), 10), nil
}

// alike names the features that have the text in their name: ethtool(8) has short names of its own.
func (d *driver) alike(key string) string {
	var names []string
	for name := range d.features {
		if strings.Contains(name, key) {
			names = append(names, strconv.Quote(name))
		}
	}
	if key == "" || names == nil {
		return ""
	}
	slices.Sort(names)
	return "; it knows " + strings.Join(names, ", ")
}

// set gives the interface a value, unless it has that. Of a feature what is wanted counts.
func (d *driver) set(v value) error {
	group, key, err := d.split(v)
	if err != nil {
		return err
	}
	if group == features {
		if on := v.Value == "true"; d.features[key].Wanted != on {
			err = rtnl.SetFeature(d.link.Index, key, on)
		}
	} else if n, _ := strconv.ParseUint(v.Value, 10, 32); d.numbers[group][key].Is != uint32(n) {
		err = rtnl.EthtoolGroups()[group].Set(d.link.Index, key, uint32(n))
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", v.Key, v.Value, err)
	}
	return nil
}

// compareDriver returns an error of the code with each value of ethtool that the interface does not have.
func (c container) compareDriver(code uint) error {
	d := driver{link: c.ContEnd}
	var errs []error
	for _, want := range c.cfg.Ethtool {
		group, key, err := d.split(want)
		have := strconv.FormatUint(uint64(d.numbers[group][key].Is), 10)
		if group == features {
			have = strconv.FormatBool(d.features[key].Active)
		}
		switch {
		case errors.Is(err, unix.EOPNOTSUPP) && code == cni.CodeDrift, err == nil && have != want.Value:
			errs = append(errs, cni.Errorf(code, "interface %q: %s is %s, want %s", c.IfName, want.Key, have,
				want.Value))
		case err != nil:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
