package main

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// attr is an attribute of an interface. Its values are texts here.
type attr struct {
	name string
	get  func(rtnl.Link) string
	set  func(text string) (rtnl.Change, error)
}

// attrs are in the order in which the reference plugin changes them and writes
// its backup file.
var attrs = []attr{
	{"mac", func(l rtnl.Link) string { return l.MAC.String() }, func(text string) (rtnl.Change, error) {
		mac, err := net.ParseMAC(text)
		return rtnl.Change{MAC: mac}, err
	}},
	{"promisc", func(l rtnl.Link) string {
		return strconv.FormatBool(l.Promisc)
	}, func(text string) (rtnl.Change, error) {
		on, err := strconv.ParseBool(text)
		return rtnl.Change{Promisc: &on}, err
	}},
	{"mtu", func(l rtnl.Link) string { return strconv.Itoa(l.MTU) }, func(text string) (rtnl.Change, error) {
		mtu, err := strconv.ParseUint(text, 10, 31)
		return rtnl.Change{MTU: int(mtu)}, err
	}},
	{"allmulti", func(l rtnl.Link) string {
		return strconv.FormatBool(l.AllMulti)
	}, func(text string) (rtnl.Change, error) {
		on, err := strconv.ParseBool(text)
		return rtnl.Change{AllMulti: &on}, err
	}},
	{"txQLen", func(l rtnl.Link) string { return strconv.Itoa(l.TxQLen) }, func(text string) (rtnl.Change, error) {
		packets, err := strconv.ParseUint(text, 10, 31)
		length := int(packets)
		return rtnl.Change{TxQLen: &length}, err
	}},
}

func attrNamed(name string) (attr, bool) {
	i := slices.IndexFunc(attrs, func(a attr) bool { return a.name == name })
	if i < 0 {
		return attr{}, false
	}
	return attrs[i], true
}

// keyValue is the value of an attribute or of a sysctl.
type keyValue struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// differing are the wanted attributes that the link does not have.
func differing(wanted []keyValue, link rtnl.Link) []keyValue {
	return slices.DeleteFunc(slices.Clone(wanted), func(p keyValue) bool {
		a, known := attrNamed(p.Key)
		return known && strings.EqualFold(a.get(link), p.Value)
	})
}

// setAttr changes one attribute of a link.
func setAttr(conn *rtnl.Conn, index int, p keyValue) error {
	a, _ := attrNamed(p.Key)
	change, err := a.set(p.Value)
	if err != nil {
		return err
	}
	return conn.SetLink(index, change)
}

// encodeBackup writes the backup file, byte for byte as the reference plugin.
func encodeBackup(before []keyValue) []byte {
	var lines []string
	for _, a := range attrs {
		for _, p := range before {
			if p.Key == a.name {
				text := p.Value
				if a.name == "mac" {
					text = strconv.Quote(text)
				}
				lines = append(lines, fmt.Sprintf(" %q: %s", a.name, text))
			}
		}
	}
	return []byte("{\n" + strings.Join(lines, ",\n") + "\n}")
}

func decodeBackup(data []byte) ([]keyValue, error) {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(data, &values); err != nil {
		return nil, fmt.Errorf("no backup: %w", err)
	}
	var before []keyValue
	for _, a := range attrs {
		raw, ok := values[a.name]
		if !ok {
			continue
		}
		text := strings.Trim(string(raw), `"`)
		if _, err := a.set(text); err != nil {
			return nil, fmt.Errorf("no backup: %s: %w", a.name, err)
		}
		before = append(before, keyValue{a.name, text})
	}
	return before, nil
}
