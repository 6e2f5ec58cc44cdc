package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
)

// Config is what the configurations of all plugins have in common
// (specification, section 1). Keys match without regard to case, as every
// runtime relies on.
type Config struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Type       string `json:"type"`
	IPAM       struct {
		Type string `json:"type"`
	} `json:"ipam"`
	RawPrevResult       json.RawMessage `json:"prevResult"`
	RawValidAttachments json.RawMessage `json:"cni.dev/valid-attachments"`
	// RawAttachments is an older spelling that libcni still sends beside the
	// specification's.
	RawAttachments json.RawMessage `json:"cni.dev/attachments"`
	// RawLog is a key of this suite: the file of the log.
	RawLog json.RawMessage `json:"log"`
}

// Unmarshal reads the JSON of a configuration into a plugin's own struct.
// Text that is no JSON is code 6. The first value of the wrong type is code 7, a
// Problem that names the key and what it wants; everything else is read.
func Unmarshal(data []byte, v any) error {
	err := json.Unmarshal(data, v)
	if err == nil {
		return nil
	}
	t, s := (*json.UnmarshalTypeError)(nil), (*json.SyntaxError)(nil)
	switch {
	case errors.As(err, &t) && t.Field != "":
		// Field names embedded structs and no elements of lists. The offset may be one
		// in a part of the document that reads itself.
		if key := keyAt(data, t.Offset); lastName(key) == lastName(t.Field) {
			t.Field = key
		}
		return refuseType(t)
	case errors.As(err, &s):
		return Errorf(CodeDecode, "network configuration: %w", complaint(err))
	}
	return Errorf(CodeConfig, "network configuration: %w", complaint(err))
}

// keyAt is the way to the value that ends, or whose inside begins, at an offset of
// a JSON document; empty when there is none.
func keyAt(doc []byte, offset int64) string {
	d := json.NewDecoder(bytes.NewReader(doc))
	var walk func(key string) string
	walk = func(key string) (found string) {
		token, _ := d.Token()
		if d.InputOffset() == offset {
			return key
		}
		switch token {
		case json.Delim('{'):
			for d.More() && found == "" {
				name, _ := d.Token()
				text, _ := name.(string)
				found = walk(KeyIn(key, text))
			}
		case json.Delim('['):
			for i := 0; d.More() && found == ""; i++ {
				found = walk(fmt.Sprintf("%s[%d]", key, i))
			}
		default:
			return ""
		}
		if found == "" {
			_, _ = d.Token() // its end
		}
		return found
	}
	return walk("")
}

// lastName is the name at the end of a key, in lower case and without an index.
func lastName(key string) string {
	return strings.ToLower(strings.TrimRight(key[strings.LastIndexByte(key, '.')+1:], "[]0123456789"))
}

// complaint says in JSON's words what the decoder did not like, beginning with
// the key where there is one.
func complaint(err error) error {
	if t := (*json.UnmarshalTypeError)(nil); errors.As(err, &t) {
		return errors.New(refuseType(t).Msg)
	}
	if s := (*json.SyntaxError)(nil); errors.As(err, &s) {
		return fmt.Errorf("no valid JSON at byte %d: %w", s.Offset, err)
	}
	return err
}

// refuseType refuses a value of the wrong type. Only a number is quoted: what is in
// others may be a secret.
func refuseType(t *json.UnmarshalTypeError) *Error {
	if number, ok := strings.CutPrefix(t.Value, "number "); ok {
		return Refuse(t.Field, json.RawMessage(number), "is no "+wholeNumber(t.Type))
	}
	want := "a " + wholeNumber(t.Type)
	switch t.Type.Kind() {
	case reflect.Bool:
		want = "true or false"
	case reflect.String:
		want = "a string"
	case reflect.Slice, reflect.Array:
		want = "an array"
	case reflect.Struct, reflect.Map:
		want = "an object"
	}
	return Refuse(t.Field, nil, fmt.Sprintf("is a JSON %s, want %s", t.Value, want))
}

// wholeNumber says which numbers a type takes: a plain int is as good as any.
func wholeNumber(t reflect.Type) string {
	switch k := t.Kind(); {
	case k >= reflect.Uint && k <= reflect.Uint64:
		return fmt.Sprintf("whole number from 0 to %d", uint64(math.MaxUint64)>>(64-t.Bits()))
	case k >= reflect.Int8 && k <= reflect.Int32:
		return fmt.Sprintf("whole number from %d to %d", -1<<(t.Bits()-1), 1<<(t.Bits()-1)-1)
	case k == reflect.Float32 || k == reflect.Float64:
		return "number"
	}
	return "whole number"
}

// DecodeConfig reads what all configurations have in common. The version is
// Oldest when the key is missing; it is not checked here. When a value has the
// wrong type, the error comes with what the others say.
func DecodeConfig(data []byte) (*Config, error) {
	c := &Config{}
	err := Unmarshal(data, c)
	if err == nil && c.CNIVersion == "" {
		c.CNIVersion = Oldest
	}
	return c, err
}

// PrevResult reads prevResult; nil when there is none. One that cannot be
// read is code 7.
func (c *Config) PrevResult() (*Result, error) {
	if isNull(c.RawPrevResult) {
		return nil, nil
	}
	r, err := DecodeResult(c.RawPrevResult, c.CNIVersion)
	if err != nil {
		return nil, refuseResult("prevResult", err)
	}
	return r, nil
}

// refuseResult has the error of a result that is part of a configuration say
// where in it.
func refuseResult(key string, err error) *Error {
	reason := strings.TrimPrefix(err.Error(), "result: ")
	if inner, rest, ok := strings.Cut(reason, ": "); ok && !strings.ContainsAny(inner, " \"") {
		key, reason = key+"."+inner, rest
	}
	return Refuse(key, nil, reason)
}

// ValidAttachments reads cni.dev/valid-attachments (specification 1.1, GC).
// null and [] both mean that none is valid. listed is false where there is no
// such key: nobody said that any is not valid.
func (c *Config) ValidAttachments() (refs []AttachmentRef, listed bool, err error) {
	key, raw := "cni.dev/valid-attachments", c.RawValidAttachments
	if raw == nil {
		key, raw = "cni.dev/attachments", c.RawAttachments
	}
	if isNull(raw) && !isNull(c.RawAttachments) && string(c.RawAttachments) != "[]" {
		return nil, true, Errorf(CodeConfig, "cni.dev/valid-attachments: empty, but cni.dev/attachments is not; GC removes nothing while they contradict")
	}
	if raw == nil {
		return nil, false, nil
	}
	if err := json.Unmarshal(raw, &refs); err != nil {
		return nil, true, Errorf(CodeConfig, "%s: want a list of {containerID, ifname}: %w", key, complaint(err))
	}
	for i, r := range refs {
		if r.ContainerID == "" || r.IfName == "" {
			return nil, true, Errorf(CodeConfig, "%s[%d]: containerID %q, ifname %q: neither may be empty", key, i, r.ContainerID, r.IfName)
		}
	}
	return refs, true, nil
}

func isNull(raw json.RawMessage) bool {
	t := bytes.TrimSpace(raw)
	return len(t) == 0 || bytes.Equal(t, []byte("null"))
}

// encode writes v as plugins print it: indented, no trailing newline, with
// <, > and & as they are.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "    ")
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
