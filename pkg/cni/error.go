package cni

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"
)

// Error codes: up to 99 the specification's (section 5), from 100 on this suite's. See
// docs/errors.md.
const (
	CodeIncompatibleVersion uint = 1
	CodeUnsupportedField    uint = 2
	CodeUnknownContainer    uint = 3
	CodeEnvironment         uint = 4
	CodeIO                  uint = 5
	CodeDecode              uint = 6
	CodeConfig              uint = 7
	CodeTryAgain            uint = 11
	CodeUnavailable         uint = 50
	CodeExists              uint = 100 // the attachment, or an interface of its name, is there already
	CodeDrift               uint = 101 // CHECK found something other than what ADD made
	CodeIPAM                uint = 102 // the IPAM plugin's answer cannot be used
	CodeConflict            uint = 103 // a name or an address is held by something else
	CodePortTaken           uint = 104 // a port of the host is held by another attachment
	CodeInternal            uint = 999
)

// Error is the error object that a plugin prints (specification, section 5).
type Error struct {
	Code    uint
	Msg     string
	Details string

	problems []Problem // of a configuration
	cause    error
	isQuoted bool // see IsQuoted
}

// Errorf returns an Error that is formatted, and wraps its causes, as by fmt.Errorf.
func Errorf(code uint, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Msg: err.Error(), cause: err}
}

// Drift is the error of a difference that CHECK finds.
func Drift(format string, args ...any) *Error { return Errorf(CodeDrift, format, args...) }

// Lacking gives err, the kernel's answer where it has none of the modules, code 2.
func Lacking(err error, modules string) *Error {
	return Errorf(CodeUnsupportedField, "%w: not supported by this kernel, which may lack %s", err, modules)
}

// Error returns the message, and the details when there are any.
func (e *Error) Error() string {
	if e.Details == "" {
		return e.Msg
	}
	return e.Msg + ": " + e.Details
}

// IsQuoted reports whether the message has words of another program, such as an IPAM plugin. These words may contain
// secrets.
func (e *Error) IsQuoted() bool { return quotes(e) }

// Unwrap returns the cause, nil if there is none.
func (e *Error) Unwrap() error { return e.cause }

// AsError makes an Error of any error; nil of nil. An Error in err's chain gives its code
// and details. Without one an error of the file system is CodeIO, any other CodeInternal.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		code := CodeInternal
		if _, ok := errors.AsType[*fs.PathError](err); ok {
			code = CodeIO
		}
		return &Error{Code: code, Msg: err.Error(), cause: err}
	}
	if err == error(e) && e.Code != 0 {
		return e
	}
	out := &Error{Code: cmp.Or(e.Code, CodeInternal), Msg: err.Error(), cause: err, isQuoted: quotes(err)}
	if msg, ok := strings.CutSuffix(out.Msg, ": "+e.Details); ok && e.Details != "" {
		out.Msg, out.Details = msg, e.Details
	}
	return out
}

// quotes reports whether any error in err's tree has words of another program.
func quotes(err error) bool {
	switch e := err.(type) {
	case *Error:
		return e.isQuoted || quotes(e.cause)
	case interface{ Unwrap() error }:
		return quotes(e.Unwrap())
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), quotes)
	}
	return false
}

type wireError struct {
	CNIVersion string `json:"cniVersion,omitempty" help:"version of the configuration"`
	Code       uint   `json:"code" help:"what went wrong: docs/errors.md has the list" schema:"required"`
	Msg        string `json:"msg" help:"what happened, and to what" schema:"required"`
	Details    string `json:"details,omitempty" help:"more about it"`
}

// Encode writes the error object, which names the version.
func (e *Error) Encode(version string) []byte {
	return encode(wireError{CNIVersion: version, Code: e.Code, Msg: e.Msg, Details: e.Details})
}

// DecodeError reads another plugin's error object. ok is false unless data is JSON with a code or a message.
func DecodeError(data []byte) (e *Error, ok bool) {
	var w wireError
	if err := json.Unmarshal(data, &w); err != nil {
		return nil, false
	}
	// Code 0 would mean success.
	e = &Error{Code: cmp.Or(w.Code, CodeInternal), Msg: w.Msg, Details: w.Details, isQuoted: true}
	return e, w.Code != 0 || w.Msg != ""
}

// Transient reports whether the kernel was short of memory, buffers or descriptors, or of time. DEL, which takes most
// other refusals for final, leaves the rest to its repetition then.
func Transient(err error) bool {
	passing := []syscall.Errno{syscall.ENOMEM, syscall.ENOBUFS, syscall.EMFILE, syscall.ENFILE, syscall.EAGAIN,
		syscall.ETIMEDOUT}
	return slices.ContainsFunc(passing, func(errno syscall.Errno) bool { return errors.Is(err, errno) })
}

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

// problemsMax is how many problems an error names.
const problemsMax = 64

// Problems collects what is wrong with a configuration, at most problemsMax of it.
type Problems struct{ list []Problem }

// Add takes the problems of err, which may be nil, but no second one of the same value, or of a value inside that.
func (p *Problems) Add(err error) { p.AddIn("", err) }

// AddIn is Add for the part of a configuration at path.
func (p *Problems) AddIn(path string, err error) {
	for _, new := range ProblemsOf(err) {
		if len(p.list) == problemsMax {
			return
		}
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

// Err returns an error with the code and message of the first problem, and the others in its details; or nil.
func (p *Problems) Err() error {
	if len(p.list) == 0 {
		return nil
	}
	return refusal(p.list)
}

// KeyIn is the path of name in the object at key. A misleading or unprintable name is quoted: ["a.b"] or ipam["\x1b"].
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
