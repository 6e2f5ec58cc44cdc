package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// wrongTypesMax bounds how often a configuration is decoded again.
const wrongTypesMax = 100

// wrongTypes finds all the values in data that the decoder refuses for their
// type. It reports only the first by itself, err; so each is replaced by null,
// which every type takes, and the rest is decoded into v again. ok is false
// when err is something else.
func wrongTypes(data []byte, v any, err error) (problems Problems, ok bool) {
	for range wrongTypesMax {
		t := (*json.UnmarshalTypeError)(nil)
		if !errors.As(err, &t) {
			break
		}
		f := finder{data: data, dec: json.NewDecoder(bytes.NewReader(data)), offset: t.Offset}
		if !f.value("") || f.key == "" {
			break
		}
		problems.Add(newRefusal(Problem{Code: CodeConfig, Key: f.key, wrongType: true,
			Reason: fmt.Sprintf("is a JSON %s, want %s", t.Value, goKind(t)), Suggestion: asWanted(t, data[f.start:f.end])}))
		data = slices.Concat(data[:f.start], []byte("null"), data[f.end:])
		err = json.Unmarshal(data, v)
	}
	return problems, problems.list != nil
}

// asWanted spells a value as the type that is wanted, where that is easy.
func asWanted(t *json.UnmarshalTypeError, raw []byte) string {
	text := ""
	switch want := goKind(t); {
	case want == "a string" && len(raw) > 0 && raw[0] != '[' && raw[0] != '{':
		text = `"` + string(raw) + `"`
	case want == "an array" && t.Value != "array" && len(raw) < 100:
		text = "[" + string(raw) + "]"
	case (want == "true or false" || strings.HasPrefix(want, "a number")) && t.Value == "string":
		plain, err := strconv.Unquote(string(raw))
		if err != nil || json.Unmarshal([]byte(plain), new(any)) != nil || (plain == "true" || plain == "false") != (want == "true or false") {
			return ""
		}
		text = plain
	default:
		return ""
	}
	return "write " + text
}

// finder finds the value that the decoder had just read, or just entered, at
// an offset.
type finder struct {
	data   []byte
	dec    *json.Decoder
	offset int64

	key        string // the way to the value found
	start, end int64  // where it is in data
}

// value reads the next value, which is at key, and reports whether it is the
// one looked for, or has it inside.
func (f *finder) value(key string) bool {
	start := f.dec.InputOffset()
	for start < int64(len(f.data)) && strings.IndexByte(" \t\r\n:,", f.data[start]) >= 0 {
		start++
	}
	token, err := f.dec.Token()
	if err != nil {
		return false
	}
	hit := f.dec.InputOffset() == f.offset
	switch token {
	case json.Delim('{'):
		for f.dec.More() {
			name, err := f.dec.Token()
			if text, _ := name.(string); err != nil || f.value(childKey(key, text)) {
				return err == nil
			}
		}
	case json.Delim('['):
		for i := 0; f.dec.More(); i++ {
			if f.value(fmt.Sprintf("%s[%d]", key, i)) {
				return true
			}
		}
	}
	if _, inner := token.(json.Delim); inner {
		if _, err := f.dec.Token(); err != nil { // its end
			return false
		}
	}
	if hit {
		f.key, f.start, f.end = key, start, f.dec.InputOffset()
	}
	return hit
}

// childKey is the way to what an object at key has under name.
func childKey(key, name string) string {
	switch {
	case name == "" || strings.ContainsAny(name, ".[]\""):
		return fmt.Sprintf("%s[%q]", key, name)
	case key == "":
		return name
	}
	return key + "." + name
}
