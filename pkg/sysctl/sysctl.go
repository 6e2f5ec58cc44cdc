// Package sysctl reads and writes single values below /proc/sys/net. Values
// are those of the calling thread's network namespace.
package sysctl

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

const root = "/proc/sys/net/"

// ErrInvalidKey says that a key's spelling leads nowhere below /proc/sys/net.
var ErrInvalidKey = errors.New("invalid sysctl key")

// Key names one value below /proc/sys/net; no spelling leads out of there.
// The zero Key names nothing.
type Key struct {
	parts []string // below net, each one path element
}

// Net makes a key of the path elements below net, as in
// Net("ipv4", "conf", "eth0.100", "arp_notify").
func Net(parts ...string) (Key, error) {
	if len(parts) == 0 {
		return Key{}, fmt.Errorf("%w \"net\": names no value", ErrInvalidKey)
	}
	for _, p := range parts {
		if p == "" || p == "." || p == ".." || strings.ContainsAny(p, "/\x00") {
			return Key{}, fmt.Errorf("%w %q: bad element %q", ErrInvalidKey, "net/"+strings.Join(parts, "/"), p)
		}
	}
	return Key{parts: slices.Clone(parts)}, nil
}

// Parse reads a key as sysctl(8) spells it. The first of "." and "/" in it is
// the separator; with dots, a slash stands for a dot inside an element, so
// net.ipv4.conf.eth0/100.arp_notify and net/ipv4/conf/eth0.100/arp_notify are
// the same.
func Parse(s string) (Key, error) {
	path := s
	if i := strings.IndexAny(s, "./"); i >= 0 && s[i] == '.' {
		path = swap(s)
	}
	below, ok := strings.CutPrefix(path, "net/")
	if !ok {
		return Key{}, fmt.Errorf("%w %q: not below net", ErrInvalidKey, s)
	}
	k, err := Net(strings.Split(below, "/")...)
	if err != nil {
		return Key{}, fmt.Errorf("%w %q: an element is empty, \".\", \"..\" or has a NUL", ErrInvalidKey, s)
	}
	return k, nil
}

func swap(s string) string {
	return strings.NewReplacer(".", "/", "/", ".").Replace(s)
}

// Replace returns the key with value in the place of the first occurrence of
// placeholder. The value stays within its element: dots in it separate
// nothing, and one that would leave the element is ErrInvalidKey.
func (k Key) Replace(placeholder, value string) (Key, error) {
	i := slices.IndexFunc(k.parts, func(p string) bool { return strings.Contains(p, placeholder) })
	if i < 0 {
		return k, nil
	}
	parts := slices.Clone(k.parts)
	parts[i] = strings.Replace(parts[i], placeholder, value, 1)
	return Net(parts...)
}

// Has reports whether element, an interface's name for instance, is one of
// the key's path elements.
func (k Key) Has(element string) bool { return slices.Contains(k.parts, element) }

// Path is the key's file, /proc/sys/net/...
func (k Key) Path() string { return root + strings.Join(k.parts, "/") }

// String is the dotted spelling, which Parse understands.
func (k Key) String() string { return swap("net/" + strings.Join(k.parts, "/")) }

// Read returns the value without the newline at its end. The error, here and of
// Write, is an *fs.PathError; it matches fs.ErrNotExist when this kernel or
// namespace has no such key.
func (k Key) Read() (string, error) {
	data, err := k.read()
	if err != nil {
		return "", k.fail("read", err)
	}
	return strings.TrimSuffix(data, "\n"), nil
}

// Write sets the value unless the key has it already, so that a read-only
// /proc/sys is no obstacle where nothing is to be changed. Of several numbers
// in one value only the numbers count, not the blanks between them. The error
// matches fs.ErrNotExist when there is no such key.
func (k Key) Write(value string) error {
	err := k.update(value)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		err = k.separately(value)
	}
	if err != nil {
		return k.fail(fmt.Sprintf("write %q", value), err)
	}
	return nil
}

// failure is an *fs.PathError that names the key.
type failure struct {
	key Key
	fs.PathError
}

func (k Key) fail(op string, err error) error {
	return &failure{k, fs.PathError{Op: op, Path: k.Path(), Err: err}}
}

func (f *failure) Error() string { return fmt.Sprintf("sysctl %s: %s: %v", f.key, f.Op, f.Err) }

func (f *failure) Unwrap() error { return &f.PathError }

// separately is update for a value that cannot be read, or not be written.
func (k Key) separately(value string) error {
	if have, err := k.read(); err == nil && Equal(have, value) {
		return nil
	}
	return k.write(value)
}

// Equal tells whether two values are the same to the kernel: blanks, tabs and
// newlines only separate, and a list of ports may be written in several ways.
func Equal(a, b string) bool {
	return slices.EqualFunc(strings.Fields(a), strings.Fields(b), func(a, b string) bool {
		if a == b {
			return true
		}
		listA, okA := parseList(a)
		listB, okB := parseList(b)
		return okA && okB && slices.Equal(listA, listB)
	})
}

// span is a range of numbers, both ends included.
type span struct{ first, last uint64 }

// parseList reads numbers and ranges as in "8080,9000-9010", sorted and with
// what touches joined. A single number is left to the comparison as text.
func parseList(s string) ([]span, bool) {
	if !strings.ContainsAny(s, ",-") {
		return nil, false
	}
	var list []span
	for item := range strings.SplitSeq(s, ",") {
		first, last, isRange := strings.Cut(item, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.ParseUint(first, 10, 16)
		b, errB := strconv.ParseUint(last, 10, 16)
		if errA != nil || errB != nil || a > b {
			return nil, false
		}
		list = append(list, span{a, b})
	}
	slices.SortFunc(list, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	joined := list[:1]
	for _, next := range list[1:] {
		if end := &joined[len(joined)-1].last; next.first <= *end+1 {
			*end = max(*end, next.last)
		} else {
			joined = append(joined, next)
		}
	}
	return joined, true
}
