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
	Reason     string // the value, and what is wrong with it
	Suggestion string // what to do about it; empty when Reason says so
}

// String is the problem in one sentence, as error messages have it.
func (p Problem) String() string {
	if p.Key == "" {
		return p.Reason
	}
	return p.Key + ": " + p.Reason
}

// Refuse returns the error for a value that is refused: code 7, and one
// Problem. nil is the value of a key that is missing, and of one whose reason
// is clear without it.
func Refuse(key string, value any, reason string) *Error {
	switch v := value.(type) {
	case nil:
	case string:
		reason = strconv.Quote(v) + " " + reason
	case json.RawMessage:
		reason = string(v) + " " + reason
	default:
		reason = fmt.Sprint(v, " ", reason)
	}
	return refusal([]Problem{{Code: CodeConfig, Key: key, Reason: reason}})
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
	for _, p := range rest {
		lines = append(lines, p.String())
	}
	e.Details = strings.Join(lines, "; ")
	return e
}

// ProblemsOf returns the problems that err is made of. An error that is made
// of none is one itself.
func ProblemsOf(err error) []Problem {
	if err == nil {
		return nil
	}
	if e := (*Error)(nil); errors.As(err, &e) && e.problems != nil {
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
		if !slices.ContainsFunc(p.list, func(old Problem) bool { return within(new.Key, old.Key) }) {
			p.list = append(p.list, new)
		}
	}
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
