package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
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
		raw := data[f.start:f.end]
		p := Problem{Code: CodeConfig, Key: f.key, Raw: raw, Reason: misfit(t), Suggestion: asWanted(t, raw)}
		if number := numberOf(t); number != "" {
			p.Value = json.RawMessage(number)
		}
		problems.Add(newRefusal(p))
		data = slices.Concat(data[:f.start], []byte("null"), data[f.end:])
		err = json.Unmarshal(data, v)
	}
	return problems, problems.list != nil
}

// misfit says what the decoder wanted, going on after the key and, where it is
// a number, the value.
func misfit(t *json.UnmarshalTypeError) string {
	if numberOf(t) != "" {
		return "is no " + wholeNumber(t.Type)
	}
	return fmt.Sprintf("is a JSON %s, want %s", t.Value, goKind(t))
}

// numberOf is a number that does not fit; empty for any other value.
func numberOf(t *json.UnmarshalTypeError) string {
	number, ok := strings.CutPrefix(t.Value, "number ")
	if !ok {
		return ""
	}
	return number
}

// goKind says in JSON's words what the decoder wanted.
func goKind(t *json.UnmarshalTypeError) string {
	switch k := t.Type.Kind(); k {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Struct, reflect.Map:
		return "an object"
	default:
		return "a " + wholeNumber(t.Type)
	}
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

// asWanted spells a value as the type that is wanted, where that is easy.
func asWanted(t *json.UnmarshalTypeError, raw []byte) string {
	text, _ := strconv.Unquote(string(raw)) // empty for what is no string
	switch {
	case t.Type.Kind() == reflect.Slice && t.Value != "array" && len(raw) < 100:
		text = "[" + string(raw) + "]"
	case numberOf(t) != "":
		if n, err := strconv.ParseFloat(numberOf(t), 64); err == nil {
			text = strconv.FormatFloat(n, 'f', -1, 64)
		}
	}
	if text == "" || text == "null" || text == "[{}]" || json.Unmarshal([]byte(text), reflect.New(t.Type).Interface()) != nil {
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
			if text, _ := name.(string); err != nil || f.value(KeyIn(key, text)) {
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

// KeyIn is the way to what the object at key has under name, quoted where it
// would be misread or do something to a terminal: ["a.b"] or ipam["\x1b"].
func KeyIn(key, name string) string {
	switch {
	case name == "" || strings.ContainsAny(name, ".[]\"") || strings.ContainsFunc(name, notPrintable):
		return fmt.Sprintf("%s[%q]", key, name)
	case key == "":
		return name
	}
	return key + "." + name
}

func notPrintable(r rune) bool { return !strconv.IsPrint(r) || r == utf8.RuneError }
