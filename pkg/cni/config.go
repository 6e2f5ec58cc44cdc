package cni

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Config contains the keys that all plugins have (specification, section 1). Their case does not matter.
type Config struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Type       string `json:"type"`
	IPAM       struct {
		Type string `json:"type"`
	} `json:"ipam"`
	RawPrevResult       json.RawMessage `json:"prevResult"`
	RawValidAttachments json.RawMessage `json:"cni.dev/valid-attachments"`
	RawAttachments      json.RawMessage `json:"cni.dev/attachments"` // older name, which libcni also sends
	RawLog              json.RawMessage `json:"log"`                 // a key of Hawser
}

// Unmarshal decodes the JSON of a configuration into a plugin's struct. The error for invalid JSON has code 6. The
// error for a value of the wrong type has code 7, and names only the first such value; all other values are decoded.
func Unmarshal(data []byte, v any) error {
	err := decode(data, v)
	if err == nil || ProblemsOf(err)[0].Key != "" {
		return err
	}
	return Errorf(AsError(err).Code, "network configuration: %w", err)
}

func decode(data []byte, v any) error {
	err := json.Unmarshal(data, v)
	if err == nil {
		return nil
	}
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return refuseType(t, data)
	}
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		return Errorf(CodeDecode, "invalid JSON at byte %d: %w", s.Offset, err)
	}
	return Errorf(CodeConfig, "%w", err)
}

// ParseEither decodes a value that is one of a few words or of the type that value points to, such as "auto" or 1500.
// It returns the word, or sets the variable. A missing value and null have no effect.
func ParseEither(key string, raw json.RawMessage, value any, words ...string) (word string, err error) {
	if len(raw) == 0 {
		return "", nil
	}
	if json.Unmarshal(raw, &word) == nil && slices.Contains(words, word) {
		return word, nil
	}
	if err = decode(raw, value); err != nil {
		var shown any // only a string is shown, because other values can be long
		if raw[0] == '"' {
			shown = word
		}
		err = Refuse(key, shown, fmt.Sprintf("%s or one of %q", ProblemsOf(err)[0].Reason, words))
	}
	return "", err
}

// refuseType returns the error for a value of the wrong type. It shows only numbers, because other values can be
// secrets.
func refuseType(t *json.UnmarshalTypeError, doc []byte) *Error {
	want := map[reflect.Kind]string{reflect.Bool: "true or false", reflect.String: "a string",
		reflect.Slice: "an array", reflect.Array: "an array", reflect.Struct: "an object", reflect.Map: "an object"}
	var value any
	reason := fmt.Sprintf("is a JSON %s, want %s", t.Value, cmp.Or(want[t.Type.Kind()], "a whole number"))
	if number, ok := strings.CutPrefix(t.Value, "number "); ok {
		value, reason = json.RawMessage(number), "is not a whole number"
		if t.Type.Kind() == reflect.Uint32 {
			reason += " between 0 and 4294967295"
		}
	}
	e := Refuse(keyOfOffset(doc, t.Offset), value, reason)
	e.cause = t
	return e
}

// keyOfOffset returns the path of the value with an offset as in WalkValues, which is also the offset in a decoder's
// error. (The path in that error lacks the indexes of lists.)
func keyOfOffset(doc []byte, offset int64) (key string) {
	WalkValues(doc, func(path []string, o int64) bool {
		if o == offset {
			key = JoinKeys(path)
		}
		return o != offset
	})
	return key
}

// WalkValues calls visit for each value of a document, which must be valid JSON, in order, until visit returns false.
// path has the keys and indexes that lead to the value, such as "ipam", "ranges", "[0]", for JoinKeys. visit must not
// keep it. offset is the end of the value or, for an object or a list, the end of its opening bracket.
func WalkValues(doc []byte, visit func(path []string, offset int64) bool) {
	d := json.NewDecoder(bytes.NewReader(doc))
	var walk func(path []string) bool
	walk = func(path []string) bool {
		token, _ := d.Token()
		if !visit(path, d.InputOffset()) {
			return false
		}
		switch token {
		case json.Delim('{'):
			for d.More() {
				name, _ := d.Token()
				text, _ := name.(string)
				if !walk(append(path, KeyIn("", text))) {
					return false
				}
			}
		case json.Delim('['):
			for i := 0; d.More(); i++ {
				if !walk(append(path, fmt.Sprintf("[%d]", i))) {
					return false
				}
			}
		default:
			return true
		}
		_, _ = d.Token() // the end of the object or list
		return true
	}
	walk(nil)
}

// DecodeConfig decodes the keys that all plugins have. It does not check the version, which is Oldest by default. If a
// value has the wrong type, DecodeConfig also returns the others.
func DecodeConfig(data []byte) (*Config, error) {
	c := &Config{}
	err := Unmarshal(data, c)
	if err == nil && c.CNIVersion == "" {
		c.CNIVersion = Oldest
	}
	return c, err
}

// PrevResult decodes prevResult. It returns nil if there is none. Its errors have code 7.
func (c *Config) PrevResult() (*Result, error) {
	if len(c.RawPrevResult) == 0 || string(c.RawPrevResult) == "null" {
		return nil, nil
	}
	r, err := decodeResult(c.RawPrevResult, c.CNIVersion)
	if err == nil {
		return r, nil
	}
	var problems Problems
	for _, p := range ProblemsOf(err) {
		p.Code, p.Key = CodeConfig, strings.TrimSuffix("prevResult."+p.Key, ".")
		problems.list = append(problems.list, p)
	}
	return nil, problems.Err()
}

// ValidAttachments decodes cni.dev/valid-attachments (specification 1.1, GC). null and [] mean that no attachment is
// valid. listed is false if the key is missing, which means that nothing is known.
func (c *Config) ValidAttachments() (refs []Attachment, listed bool, err error) {
	key, raw := "cni.dev/valid-attachments", c.RawValidAttachments
	if raw == nil {
		key, raw = "cni.dev/attachments", c.RawAttachments
	}
	if raw == nil {
		return nil, false, nil
	}
	if err := decode(raw, &refs); err != nil {
		return nil, true, Errorf(CodeConfig, "%s: want a list of {containerID, ifname}: %w", key, err)
	}
	for i, r := range refs {
		if r.ContainerID == "" || r.IfName == "" {
			return nil, true, Errorf(CodeConfig, "%s[%d]: containerID %q, ifname %q: neither may be empty", key, i,
				r.ContainerID, r.IfName)
		}
	}
	return refs, true, nil
}

// PairsOf returns the pairs of CNI_ARGS with this key, for plugins that ignore all other pairs.
func PairsOf(args, key string) string {
	pairs := strings.Split(args, ";")
	return strings.Join(slices.DeleteFunc(pairs, func(pair string) bool {
		name, _, ok := strings.Cut(pair, "=")
		return !ok || !strings.EqualFold(strings.TrimSpace(name), key)
	}), ";")
}

// ParseArgs parses CNI_ARGS, pairs KEY=value separated by semicolons (specification, section 2), and returns the values
// of the known keys. Keys are not case-sensitive. The error for a pair without "=", and for another key unless
// IgnoreUnknown is 1 or true, has code 4. It does not show values, because they can be secrets.
func ParseArgs(args string, known ...string) (map[string]string, error) {
	values := map[string]string{}
	var unknown []string
	ignore := ""
	for n, pair := range strings.Split(args, ";") {
		key, value, ok := strings.Cut(pair, "=")
		key = strings.TrimSpace(key)
		i := slices.IndexFunc(known, func(k string) bool { return strings.EqualFold(k, key) })
		switch {
		case key == "" && !ok: // nothing between two semicolons
		case key == "" || !ok:
			return nil, Errorf(CodeEnvironment, "CNI_ARGS: pair %d is not KEY=value", n+1)
		case strings.EqualFold(key, "IgnoreUnknown"):
			ignore = strings.ToLower(value)
		case i >= 0:
			values[known[i]] = value
		case strings.ContainsFunc(key, notPrintable):
			unknown = append(unknown, strconv.Quote(key))
		default:
			unknown = append(unknown, key)
		}
	}
	switch ignore {
	case "1", "true":
		unknown = nil
	case "", "0", "false":
	default:
		return nil, Errorf(CodeEnvironment, "CNI_ARGS: IgnoreUnknown is not 0, 1, true or false")
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return nil, Errorf(CodeEnvironment, "CNI_ARGS: unknown keys %s (known: %s; IgnoreUnknown=1 accepts any)",
			strings.Join(unknown, ", "), strings.Join(known, ", "))
	}
	return values, nil
}
