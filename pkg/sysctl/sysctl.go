// Package sysctl reads and writes single values below /proc/sys/net, which belong to the calling thread's network
// namespace. It also reads attributes of links below /sys/class/net, and the ID and the clock of this boot.
//
// A Key names a value, in either spelling of sysctl(8). It never names a file outside of /proc/sys/net, whatever text
// an administrator or a container has put into it.
//
// Write first reads the value, and writes only a different one. A plugin in a container of its own therefore works with
// a read-only /proc/sys if the host already has the right values.
package sysctl

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const root = "/proc/sys/net/"

// ErrInvalidKey means that a key does not name a value below /proc/sys/net.
var ErrInvalidKey = errors.New("invalid sysctl key")

// Key names a value below /proc/sys/net. Read and Write refuse an invalid key.
type Key struct {
	parts []string // path elements below net
}

// Net returns the key with these path elements below net, as in Net("ipv4", "conf", "eth0.100", "arp_notify").
func Net(parts ...string) Key { return Key{parts} }

func (k Key) validate() error {
	for _, p := range k.parts {
		if p == "" || p == "." || p == ".." || strings.ContainsAny(p, "/\x00") {
			return fmt.Errorf("%w %q: bad element %q", ErrInvalidKey, "net/"+strings.Join(k.parts, "/"), p)
		}
	}
	if len(k.parts) == 0 {
		return fmt.Errorf("%w \"net\": %w", ErrInvalidKey, unix.EISDIR)
	}
	return nil
}

// Parse parses a key as sysctl(8) does. The first "." or "/" in it is the separator. If that is a dot, a slash stands
// for a dot inside an element: net.ipv4.conf.eth0/100.arp_notify is net/ipv4/conf/eth0.100/arp_notify.
func Parse(s string) (Key, error) {
	path := s
	if i := strings.IndexAny(s, "./"); i >= 0 && s[i] == '.' {
		path = swapSeparators(s)
	}
	below, ok := strings.CutPrefix(path, "net/")
	if !ok {
		return Key{}, fmt.Errorf("%w %q: not below net", ErrInvalidKey, s)
	}
	k := Net(strings.Split(below, "/")...)
	if k.validate() != nil {
		return Key{}, fmt.Errorf("%w %q: an element is empty, \".\", \"..\" or has a NUL", ErrInvalidKey, s)
	}
	return k, nil
}

func swapSeparators(s string) string { return strings.NewReplacer(".", "/", "/", ".").Replace(s) }

// Replace returns the key with value instead of the first occurrence of placeholder. A dot in value is not a separator.
// If value is not part of one path element, the error matches ErrInvalidKey.
func (k Key) Replace(placeholder, value string) (Key, error) {
	i := slices.IndexFunc(k.parts, func(p string) bool { return strings.Contains(p, placeholder) })
	if i < 0 {
		return k, nil
	}
	parts := slices.Clone(k.parts)
	parts[i] = strings.Replace(parts[i], placeholder, value, 1)
	return Key{parts}, Key{parts}.validate()
}

// Has reports whether element, such as an interface's name, is one of the key's path elements.
func (k Key) Has(element string) bool { return slices.Contains(k.parts, element) }

// Path returns the key's file, /proc/sys/net/...
func (k Key) Path() string { return root + strings.Join(k.parts, "/") }

// String returns the dotted spelling, which Parse accepts.
func (k Key) String() string { return swapSeparators("net/" + strings.Join(k.parts, "/")) }

// Read returns the value without its final newline. Read and Write return an *fs.PathError, which matches
// fs.ErrNotExist if this kernel or namespace has no such key, or ErrInvalidKey.
func (k Key) Read() (string, error) {
	if err := k.validate(); err != nil {
		return "", err
	}
	value, err := read(k.Path())
	return value, k.failure("read", err)
}

// Write sets the value, unless the current value is Equal.
func (k Key) Write(value string) error {
	have, err := k.Read()
	if errors.Is(err, ErrInvalidKey) || (err == nil && Equal(have, value)) {
		return err
	}
	f, err := openKey(k.Path(), unix.O_WRONLY) // some values cannot be read
	if err == nil {
		_, err = f.WriteString(value + "\n")
		err = errors.Join(err, f.Close())
	}
	return k.failure(fmt.Sprintf("write %q", value), err)
}

// BootID returns the kernel's random ID of this boot.
func BootID() (string, error) { return read("/proc/sys/kernel/random/boot_id") }

// LinkAttribute returns an attribute of a link, from /sys/class/net.
func LinkAttribute(link, name string) (string, error) {
	return read("/sys/class/net/" + link + "/" + name)
}

func read(path string) (string, error) {
	f, err := openKey(path, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	return strings.TrimSuffix(string(data), "\n"), err
}

// openKey is os.OpenFile without Go's poller. Files below /proc/sys and /sys can be polled, so os.OpenFile would
// register each of them with the poller, whose thread would wake up for it.
func openKey(path string, flags int) (*os.File, error) {
	fd, err := -1, error(unix.EINTR)
	for err == unix.EINTR {
		fd, err = unix.Open(path, flags|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// failure adds the operation and the dotted key to an error. It returns nil if err is nil.
func (k Key) failure(op string, err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		err = path.Err
	}
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: "sysctl", Path: k.String() + ": " + op, Err: err}
}

// Equal reports whether two values mean the same to the kernel. Blanks, tabs and newlines are equivalent separators,
// and a list of ports can be written in several ways.
func Equal(a, b string) bool {
	return slices.EqualFunc(strings.Fields(a), strings.Fields(b), func(a, b string) bool {
		if a == b {
			return true
		}
		portsA, portsB := ports(a), ports(b)
		return portsA != nil && portsB != nil && *portsA == *portsB
	})
}

// ports parses numbers and ranges such as "8080,9000-9010". It returns nil for any other text, and for a single number.
func ports(list string) *[1 << 16]bool {
	if !strings.ContainsAny(list, ",-") {
		return nil
	}
	set := new([1 << 16]bool)
	for item := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(item, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.ParseUint(first, 10, 16)
		b, errB := strconv.ParseUint(last, 10, 16)
		if errA != nil || errB != nil {
			return nil
		}
		for port := a; port <= b; port++ {
			set[port] = true
		}
	}
	return set
}

// Uptime returns the time since boot, including suspended time. Setting the clock of the system does not change it.
func Uptime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // cannot fail
	return time.Duration(t.Nano())
}
