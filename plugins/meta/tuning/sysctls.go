package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// placeholder in a sysctl's key stands for the name of the interface.
const placeholder = "IFNAME"

// setting is a sysctl that is to have a value.
type setting struct {
	Source string // "sysctl" or "args.cni.sysctl"
	Raw    string // the key as written, which the allow-list is about
	Key    sysctl.Key
	Value  string
}

// name is how messages call the sysctl.
func (s setting) name() string { return fmt.Sprintf("%s[%q]", s.Source, s.Raw) }

// parseSysctls reads both lists of sysctls, in the order in which they are
// written. A key of args.cni.sysctl replaces the value of the same key in
// sysctl.
func parseSysctls(w wireConfig, ifName string) ([]setting, error) {
	var problems cni.Problems
	settings, err := parseSettings("sysctl", w.Sysctl, ifName)
	problems.Add(err)
	more, err := parseSettings("args.cni.sysctl", w.Args.CNI.Sysctl, ifName)
	problems.Add(err)
	for _, s := range more {
		if i := find(settings, s.Key); i >= 0 {
			settings[i] = s
		} else {
			settings = append(settings, s)
		}
	}
	return settings, problems.Err()
}

func parseSettings(source string, raw json.RawMessage, ifName string) (settings []setting, err error) {
	var problems cni.Problems
	err = eachMember(raw, func(name string, value json.RawMessage) {
		s := setting{Source: source, Raw: name}
		if value[0] != '"' || json.Unmarshal(value, &s.Value) != nil {
			problems.Add(refuseType(s, value))
			return
		}
		var err error
		s.Key, err = sysctl.Parse(name)
		if err == nil && ifName != "" {
			s.Key, err = s.Key.Replace(placeholder, ifName)
		}
		if err != nil {
			problems.Add(cni.Refuse(s.name(), s.Value, "cannot be set: "+err.Error()))
			return
		}
		if i := find(settings, s.Key); i >= 0 {
			problems.Add(cni.Refuse(s.name(), s.Value, fmt.Sprintf("is duplicated, by %q", settings[i].Raw)))
		}
		settings = append(settings, s)
	})
	if err != nil {
		problems.Add(cni.Refuse(source, nil, err.Error()))
	}
	return settings, problems.Err()
}

func refuseType(s setting, value json.RawMessage) error {
	refused := cni.Refuse(s.name(), value, "is no string")
	if strings.ContainsRune("-0123456789", rune(value[0])) {
		refused.Suggest("write %q", value)
	}
	return refused
}

// find returns the index of the setting of key, however it is spelt, or -1.
func find(settings []setting, key sysctl.Key) int {
	return slices.IndexFunc(settings, func(s setting) bool { return s.Key.Path() == key.Path() })
}

// eachMember reads a JSON object, whose order counts.
func eachMember(raw json.RawMessage, member func(key string, value json.RawMessage)) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	start, err := dec.Token()
	if errors.Is(err, io.EOF) || err == nil && start == nil { // no key, or null
		return nil
	}
	if err != nil || start != json.Delim('{') {
		return errors.New("is no object of strings")
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return err
		}
		member(key.(string), value)
	}
	return nil
}
