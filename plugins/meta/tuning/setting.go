package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

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

func (s setting) name() string { return quoteKey(s.Source, s.Raw) }

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

func parseSettings(source string, raw json.RawMessage, ifName string) ([]setting, error) {
	var pairs pairs
	var problems cni.Problems
	if len(raw) > 0 {
		err := pairs.read(raw, func(key string, value json.RawMessage, reason string) error {
			refused := cni.Refuse(quoteKey(source, key), value, reason)
			if bytes.ContainsRune([]byte("-0123456789"), rune(value[0])) {
				refused.Suggest("write %q", value)
			}
			problems.Add(refused)
			return nil
		})
		if err != nil {
			problems.Add(cni.Refuse(source, nil, err.Error()))
		}
	}
	var out []setting
	for _, p := range pairs {
		key, err := sysctl.Parse(p.Key)
		if err == nil && ifName != "" {
			key, err = key.Replace(placeholder, ifName)
		}
		if err != nil {
			problems.Add(cni.Refuse(quoteKey(source, p.Key), p.Value, "cannot be set: "+err.Error()))
			continue
		}
		if i := find(out, key); i >= 0 {
			problems.Add(cni.Refuse(quoteKey(source, p.Key), p.Value, fmt.Sprintf("is a duplicate of %q", out[i].Raw)))
		}
		out = append(out, setting{Source: source, Raw: p.Key, Key: key, Value: p.Value})
	}
	return out, problems.Err()
}

// find returns the index of the setting of key, however it is spelt, or -1.
func find(settings []setting, key sysctl.Key) int {
	for i, s := range settings {
		if s.Key.Path() == key.Path() {
			return i
		}
	}
	return -1
}

// pairs is a JSON object of strings whose order counts.
type pairs []pair

type pair struct{ Key, Value string }

// UnmarshalJSON refuses a key that is there twice: which one the writer meant
// is not known.
func (p *pairs) UnmarshalJSON(data []byte) error {
	return p.read(data, func(key string, value json.RawMessage, reason string) error {
		return fmt.Errorf("%q: %s %s", key, value, reason)
	})
}

// read reads the pairs of an object. What is wrong with one of them is given to
// refuse, and reading goes on when that returns nil.
func (p *pairs) read(data []byte, refuse func(key string, value json.RawMessage, reason string) error) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	start, err := dec.Token()
	if err != nil || start == nil { // null
		return err
	}
	if start != json.Delim('{') {
		return errors.New("is no object of strings")
	}
	seen := map[string]bool{}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		key, _ := name.(string) // the keys of an object are strings
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return err
		}
		var text string
		switch {
		case value[0] != '"' || json.Unmarshal(value, &text) != nil:
			err = refuse(key, value, "is no string")
		case seen[key]:
			err = refuse(key, value, "is there twice")
		default:
			*p = append(*p, pair{key, text})
		}
		if err != nil {
			return err
		}
		seen[key] = true
	}
	return nil
}

// MarshalJSON writes the object in the order of the pairs.
func (p pairs) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, one := range p {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(one.Key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(one.Value)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// get returns the value of key; ok is false when there is none.
func (p pairs) get(key string) (value string, ok bool) {
	for _, one := range p {
		if one.Key == key {
			return one.Value, true
		}
	}
	return "", false
}
