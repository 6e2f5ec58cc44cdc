package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	Code       uint   // of the error that it makes
	Key        string // where it is: runtimeConfig.portMappings[0].hostPort; empty where it has no place
	Value      any    // nil when it is missing, or when Reason is clear without it
	Reason     string // what is wrong, going on after key and value
	Suggestion string // what to do about it; empty when Reason says so
}

// String is the problem in one sentence, as error messages have it.
func (p Problem) String() string {
	words := make([]string, 0, 3)
	if p.Key != "" {
		words = append(words, p.Key+":")
	}
	if p.Value != nil {
		words = append(words, valueText(p.Value))
	}
	return strings.Join(append(words, p.Reason), " ")
}

func valueText(v any) string {
	switch v := v.(type) {
	case string:
		return strconv.Quote(v)
	case json.RawMessage:
		return string(v)
	}
	return fmt.Sprint(v)
}

// Refuse returns the error for a value that is refused: code 7, and one
// Problem. nil is the value of a key that is missing, and of one whose reason
// is clear without it.
func Refuse(key string, value any, reason string) *Error {
	return refusal([]Problem{{Code: CodeConfig, Key: key, Value: value, Reason: reason}})
}

// Suggest adds what to do about the problem of a Refuse.
func (e *Error) Suggest(format string, args ...any) *Error {
	e.problems[0].Suggestion = fmt.Sprintf(format, args...)
	return e
}

// WithCode gives the problem of a Refuse another code than 7.
func (e *Error) WithCode(code uint) *Error {
	e.Code, e.problems[0].Code = code, code
	return e
}

func refusal(list []Problem) *Error {
	first, rest := list[0], list[1:]
	e := &Error{Code: first.Code, Msg: first.String(), problems: list}
	lines := make([]string, 0, len(rest))
	for i, p := range rest {
		if i == detailsMax {
			lines = append(lines, fmt.Sprintf("and %d more", len(rest)-i))
			break
		}
		lines = append(lines, p.String())
	}
	e.Details = strings.Join(lines, "; ")
	return e
}

// detailsMax bounds how many problems the details of an error list.
const detailsMax = 20

// ProblemsOf returns the problems that err is made of. An error that is made
// of none is one itself.
func ProblemsOf(err error) []Problem {
	if err == nil {
		return nil
	}
	if e := (*Error)(nil); errors.As(err, &e) && e != nil && e.problems != nil {
		return e.problems
	}
	e := AsError(err)
	return []Problem{{Code: e.Code, Reason: e.Error()}}
}

// Problems collects what is wrong with a configuration, so that all of it is
// reported at once.
type Problems struct{ list []Problem }

// Add takes the problems of err; nil has none. What only follows from a
// problem that is there already is left out: a second one of the same value or
// of what is in it.
func (p *Problems) Add(err error) { p.AddIn("", err) }

// AddIn is Add for a configuration that is part of a greater one; prefix is the
// way to it, with a dot at its end.
func (p *Problems) AddIn(prefix string, err error) {
	for _, new := range ProblemsOf(err) {
		if new.Key != "" {
			new.Key = prefix + new.Key
		}
		if !p.explains(new) {
			p.list = append(p.list, new)
		}
	}
}

// explains reports whether there is a problem of the same value, or of one that it
// is in.
func (p *Problems) explains(new Problem) bool {
	return slices.ContainsFunc(p.list, func(old Problem) bool { return within(new.Key, old.Key) })
}

// within reports whether key is outer, or leads to something in it. Either may
// be spelt as the configuration spells it, in any case.
func within(key, outer string) bool {
	if outer == "" || len(key) < len(outer) || !strings.EqualFold(key[:len(outer)], outer) {
		return false
	}
	rest := key[len(outer):]
	return rest == "" || rest[0] == '.' || rest[0] == '['
}

// Err returns an error with all the problems, nil if there are none. Its code
// and message are the first one's, the others are in its details.
func (p *Problems) Err() error {
	if len(p.list) == 0 {
		return nil
	}
	return refusal(p.list)
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
