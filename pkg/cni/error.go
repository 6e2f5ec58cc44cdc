package cni

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
)

// Error codes. Up to 99 they are the specification's (section 5), from 100 on
// they are this suite's; docs/errors.md says of each when it comes and what
// to do.
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
// It wraps the error that caused it, if any.
type Error struct {
	Code    uint
	Msg     string
	Details string

	problems []Problem // of a configuration
	cause    error
}

// Errorf returns an Error whose message is formatted, and whose causes are
// wrapped, as fmt.Errorf does.
func Errorf(code uint, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Msg: err.Error(), cause: err}
}

// Drift is the error of a difference that CHECK finds.
func Drift(format string, args ...any) *Error { return Errorf(CodeDrift, format, args...) }

// Error returns the message, and the details when there are any.
func (e *Error) Error() string {
	if e.Details == "" {
		return e.Msg
	}
	return e.Msg + ": " + e.Details
}

// Unwrap returns the cause, nil if there is none.
func (e *Error) Unwrap() error { return e.cause }

// AsError makes an Error of any error. One in err's chain gives its code and
// its details, and is returned as it is when nothing was wrapped around it; an
// error of the file system is CodeIO; any other, and one without a code, is
// CodeInternal. It returns nil for nil.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	e := (*Error)(nil)
	if !errors.As(err, &e) {
		code := CodeInternal
		if p := (*fs.PathError)(nil); errors.As(err, &p) {
			code = CodeIO
		}
		return &Error{Code: code, Msg: err.Error(), cause: err}
	}
	if err == error(e) && e.Code != 0 {
		return e
	}
	out := &Error{Code: cmp.Or(e.Code, CodeInternal), Msg: err.Error(), cause: err}
	if msg, ok := strings.CutSuffix(out.Msg, ": "+e.Details); ok && e.Details != "" {
		out.Msg, out.Details = msg, e.Details
	}
	return out
}

// wireError is the error object on the wire.
type wireError struct {
	CNIVersion string `json:"cniVersion,omitempty" help:"version of the configuration"`
	Code       uint   `json:"code" help:"what went wrong: docs/errors.md has the list" schema:"required"`
	Msg        string `json:"msg" help:"what happened, and to what" schema:"required"`
	Details    string `json:"details,omitempty" help:"more about it"`
}

// Encode writes the error object as version asks: the same object in every
// version, with the version in it.
func (e *Error) Encode(version string) []byte {
	return encode(wireError{CNIVersion: version, Code: e.Code, Msg: e.Msg, Details: e.Details})
}

// DecodeError reads an error object that another plugin printed. ok is false
// when data is no such object: not JSON, or neither a code nor a message.
func DecodeError(data []byte) (e *Error, ok bool) {
	var w wireError
	if json.Unmarshal(data, &w) != nil || w.Code == 0 && w.Msg == "" {
		return nil, false
	}
	if w.Code == 0 { // 0 would tell our caller that nothing went wrong
		w.Code = CodeInternal
	}
	return &Error{Code: w.Code, Msg: w.Msg, Details: w.Details}, true
}

// Transient reports whether an error says that the machine was short of memory,
// buffers or descriptors, or did not answer in time: the same call may well
// succeed a moment later. DEL, which takes most refusals for final, leaves what it
// could not do to its repetition then.
func Transient(err error) bool {
	for _, errno := range []syscall.Errno{syscall.ENOMEM, syscall.ENOBUFS, syscall.EMFILE, syscall.ENFILE,
		syscall.EAGAIN, syscall.ETIMEDOUT} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
