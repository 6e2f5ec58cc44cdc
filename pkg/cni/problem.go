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
	Code       uint
	Key        string // its path, runtimeConfig.portMappings[0].hostPort; empty for the whole document
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

// Refuse returns the error for a value that is refused: code 7, and one Problem. A nil
// value is not shown.
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

// ProblemsOf returns the problems that err is made of, or err itself as a problem.
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

// Problems collects all that is wrong with a configuration.
type Problems struct{ list []Problem }

// Add takes the problems of err, which may be nil. It leaves out a second problem of the
// same value, or of a value inside that.
func (p *Problems) Add(err error) { p.AddIn("", err) }

// AddIn is Add for the part of a configuration at path.
func (p *Problems) AddIn(path string, err error) {
	for _, new := range ProblemsOf(err) {
		if new.Key != "" && path != "" {
			new.Key = path + "." + new.Key
		}
		if !slices.ContainsFunc(p.list, func(old Problem) bool { return within(new.Key, old.Key) }) {
			p.list = append(p.list, new)
		}
	}
}

// within reports whether key, in any case, is outer or inside of it.
func within(key, outer string) bool {
	if outer == "" || len(key) < len(outer) || !strings.EqualFold(key[:len(outer)], outer) {
		return false
	}
	rest := key[len(outer):]
	return rest == "" || rest[0] == '.' || rest[0] == '['
}

// Err returns an error with the code and message of the first problem, and the others in
// its details; nil if there are none.
func (p *Problems) Err() error {
	if len(p.list) == 0 {
		return nil
	}
	return refusal(p.list)
}

// KeyIn is the path of name in the object at key. A name that would be misread, or do
// something to a terminal, is quoted: ["a.b"] or ipam["\x1b"].
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
