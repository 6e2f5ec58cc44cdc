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

// Error codes. Codes up to 99 are the specification's (section 5), others Hawser's (docs/errors.md).
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
	CodeExists              uint = 100 // the attachment, or an interface with its name, already exists
	CodeDrift               uint = 101 // CHECK found a difference from what ADD created
	CodeIPAM                uint = 102 // the answer of the IPAM plugin is invalid
	CodeConflict            uint = 103 // another owner has a name or an address
	CodePortTaken           uint = 104 // another attachment has a host port
	CodeInternal            uint = 999
)

// Error is the error object that a plugin prints (specification, section 5).
type Error struct {
	Code    uint
	Msg     string
	Details string

	problems []Problem // problems in a configuration
	cause    error
	isQuoted bool // see IsQuoted
}

// Errorf returns an Error with a formatted message. It wraps causes like fmt.Errorf.
func Errorf(code uint, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Msg: err.Error(), cause: err}
}

// Drift returns the error for a difference that CHECK finds.
func Drift(format string, args ...any) *Error { return Errorf(CodeDrift, format, args...) }

// LacksModules returns the error, with code 2, for a kernel that may lack modules. err is the kernel's error.
func LacksModules(err error, modules string) *Error {
	return Errorf(CodeUnsupportedField, "%w: not supported by this kernel, which may lack %s", err, modules)
}

// Error returns the message and the details, if any.
func (e *Error) Error() string {
	if e.Details == "" {
		return e.Msg
	}
	return e.Msg + ": " + e.Details
}

// IsQuoted reports whether the message contains text of another program, which can contain secrets.
func (e *Error) IsQuoted() bool { return quotes(e) }

// Unwrap returns the cause, or nil.
func (e *Error) Unwrap() error { return e.cause }

// AsError converts any error to an Error. If err's tree contains an Error, the result has its code and details.
// Otherwise the code is CodeIO for an error of the file system, and CodeInternal for any other. nil stays nil.
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
	// e.Error() ends in the details, and so does err.Error() if err only adds text before it.
	if msg, ok := strings.CutSuffix(out.Msg, ": "+e.Details); ok && e.Details != "" {
		out.Msg, out.Details = msg, e.Details
	}
	return out
}

// quotes reports whether any error in err's tree contains text of another program.
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

// Encode returns the JSON of the error object, which contains the version.
func (e *Error) Encode(version string) []byte {
	return encode(wireError{CNIVersion: version, Code: e.Code, Msg: e.Msg, Details: e.Details})
}

// DecodeError decodes another plugin's error object. ok is false if data is not JSON with a code or a message.
func DecodeError(data []byte) (e *Error, ok bool) {
	var w wireError
	if err := json.Unmarshal(data, &w); err != nil {
		return nil, false
	}
	// Code 0 would mean success, so it is not kept.
	e = &Error{Code: cmp.Or(w.Code, CodeInternal), Msg: w.Msg, Details: w.Details, isQuoted: true}
	return e, w.Code != 0 || w.Msg != ""
}

// Transient reports whether err means that the kernel lacked memory, buffers, descriptors or time. DEL fails after such
// an error, so that the runtime repeats it. After most other errors DEL continues, because a repetition would not help.
func Transient(err error) bool {
	transient := []syscall.Errno{syscall.ENOMEM, syscall.ENOBUFS, syscall.EMFILE, syscall.ENFILE, syscall.EAGAIN,
		syscall.ETIMEDOUT}
	return slices.ContainsFunc(transient, func(errno syscall.Errno) bool { return errors.Is(err, errno) })
}

// Problem is one invalid value of a configuration.
type Problem struct {
	Code       uint
	Key        string // path of the value, such as runtimeConfig.portMappings[0].hostPort; empty for the whole document
	Reason     string // the value, and why it is invalid
	Suggestion string // how to correct it; empty if this is clear from Reason
}

// String returns the problem in the form of error messages.
func (p Problem) String() string {
	if p.Key == "" {
		return p.Reason
	}
	return p.Key + ": " + p.Reason
}

// Refuse returns the error for an invalid value, with code 7 and one Problem. A nil value is not shown.
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

// Suggest adds a suggestion to the error of Refuse.
func (e *Error) Suggest(format string, args ...any) *Error {
	e.problems[0].Suggestion = fmt.Sprintf(format, args...)
	return e
}

// WithCode replaces the code of the error of Refuse.
func (e *Error) WithCode(code uint) *Error {
	e.Code, e.problems[0].Code = code, code
	return e
}

// refusal returns the error for several problems. Its message is the first problem; the others are its details.
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

// ProblemsOf returns the problems of err, or err itself as a problem.
func ProblemsOf(err error) []Problem {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok && e.problems != nil {
		return e.problems
	}
	e := AsError(err)
	return []Problem{{Code: e.Code, Reason: e.Error()}}
}

const problemsMax = 64 // largest number of problems in an error

// Problems collects problems of a configuration, up to problemsMax.
type Problems struct{ list []Problem }

// Add adds the problems of err, which may be nil. It ignores a problem of a value if there is already one of the same
// value or of a value that contains it.
func (p *Problems) Add(err error) { p.AddIn("", err) }

// AddIn is Add for errors whose keys are relative to path.
func (p *Problems) AddIn(path string, err error) {
	for _, new := range ProblemsOf(err) {
		if len(p.list) == problemsMax {
			return
		}
		if new.Key != "" && path != "" {
			new.Key = path + "." + new.Key
		}
		if !slices.ContainsFunc(p.list, func(old Problem) bool { return isWithin(new.Key, old.Key) }) {
			p.list = append(p.list, new)
		}
	}
}

// isWithin reports whether key is outer, or names a value inside of outer's value. Keys are not case-sensitive.
func isWithin(key, outer string) bool {
	if outer == "" || len(key) < len(outer) || !strings.EqualFold(key[:len(outer)], outer) {
		return false
	}
	rest := key[len(outer):]
	return rest == "" || rest[0] == '.' || rest[0] == '['
}

// Err returns an error with the first problem's code and message and the others as details, or nil without problems.
func (p *Problems) Err() error {
	if len(p.list) == 0 {
		return nil
	}
	return refusal(p.list)
}

// KeyIn returns the path of a name in the object at key. An ambiguous or unprintable name is quoted, as in ["a.b"] or
// ipam["\x1b"].
func KeyIn(key, name string) string {
	switch {
	case name == "" || strings.ContainsAny(name, ".[]\"") || strings.ContainsFunc(name, notPrintable):
		return fmt.Sprintf("%s[%q]", key, name)
	case key == "":
		return name
	}
	return key + "." + name
}

const pathMax = 1 << 10 // bytes of a path in an error

// JoinKeys returns the path of a value, such as ipam.ranges[0]. Each key must be quoted as KeyIn quotes it. A path that
// is longer than pathMax is cut.
func JoinKeys(path []string) string {
	var b strings.Builder
	for _, name := range path {
		if b.Len() > 0 && name[0] != '[' {
			b.WriteByte('.')
		}
		b.WriteString(name[:min(len(name), pathMax+1)])
		if b.Len() > pathMax {
			return strings.ToValidUTF8(b.String()[:pathMax], "") + "..."
		}
	}
	return b.String()
}

func notPrintable(r rune) bool { return !strconv.IsPrint(r) || r == utf8.RuneError }
