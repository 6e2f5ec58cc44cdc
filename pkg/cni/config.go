package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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
// Text that is no JSON is code 6. A value of the wrong type is code 7, a
// Problem that names the key and what it wants; all such values are reported,
// and everything else is read.
func Unmarshal(data []byte, v any) error {
	err := json.Unmarshal(data, v)
	if err == nil {
		return nil
	}
	if problems, ok := wrongTypes(data, v, err); ok {
		return problems.Err()
	}
	code := CodeConfig
	if s := (*json.SyntaxError)(nil); errors.As(err, &s) {
		code = CodeDecode
	}
	return Errorf(code, "network configuration: %w", complaint(err))
}

// complaint says in JSON's words what the decoder did not like, beginning with
// the key where there is one.
func complaint(err error) error {
	if t := (*json.UnmarshalTypeError)(nil); errors.As(err, &t) {
		text := misfit(t)
		if number := numberOf(t); number != "" {
			text = number + " " + text
		}
		if t.Field != "" {
			text = t.Field + ": " + text
		}
		return errors.New(text)
	}
	if s := (*json.SyntaxError)(nil); errors.As(err, &s) {
		return fmt.Errorf("no valid JSON at byte %d: %w", s.Offset, err)
	}
	return err
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
