// Package sysctl reads and writes single values below /proc/sys/net, and reads
// attributes of links and the ID of this boot. Values below /proc/sys/net are
// those of the calling thread's network namespace.
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

// ErrInvalidKey says that a key's spelling leads nowhere below /proc/sys/net.
var ErrInvalidKey = errors.New("invalid sysctl key")

// Key names one value below /proc/sys/net. What leads out of there, or nowhere, is no key: Read and Write refuse it.
type Key struct {
	parts []string // below net, each one path element
}

// Net makes a key of the path elements below net, as in
// Net("ipv4", "conf", "eth0.100", "arp_notify").
func Net(parts ...string) Key { return Key{parts} }

// check is ErrInvalidKey for what is no key.
func (k Key) check() error {
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

// Parse reads a key as sysctl(8) spells it. The first of "." and "/" in it is the separator; with dots, a slash stands
// for a dot inside an element: net.ipv4.conf.eth0/100.arp_notify is net/ipv4/conf/eth0.100/arp_notify.
func Parse(s string) (Key, error) {
	path := s
	if i := strings.IndexAny(s, "./"); i >= 0 && s[i] == '.' {
		path = swap(s)
	}
	below, ok := strings.CutPrefix(path, "net/")
	if !ok {
		return Key{}, fmt.Errorf("%w %q: not below net", ErrInvalidKey, s)
	}
	k := Net(strings.Split(below, "/")...)
	if k.check() != nil {
		return Key{}, fmt.Errorf("%w %q: an element is empty, \".\", \"..\" or has a NUL", ErrInvalidKey, s)
	}
	return k, nil
}

func swap(s string) string {
	return strings.NewReplacer(".", "/", "/", ".").Replace(s)
}

// Replace returns the key with value in the place of the first occurrence of placeholder. Dots in value separate
// nothing; one that would leave the element is ErrInvalidKey.
func (k Key) Replace(placeholder, value string) (Key, error) {
	i := slices.IndexFunc(k.parts, func(p string) bool { return strings.Contains(p, placeholder) })
	if i < 0 {
		return k, nil
	}
	parts := slices.Clone(k.parts)
	parts[i] = strings.Replace(parts[i], placeholder, value, 1)
	return Key{parts}, Key{parts}.check()
}

// Has reports whether element, such as an interface's name, is one of the key's path elements.
func (k Key) Has(element string) bool { return slices.Contains(k.parts, element) }

// Path is the key's file, /proc/sys/net/...
func (k Key) Path() string { return root + strings.Join(k.parts, "/") }

// String is the dotted spelling, which Parse understands.
func (k Key) String() string { return swap("net/" + strings.Join(k.parts, "/")) }

// Read returns the value without the newline at its end. The error, here and of Write, is an *fs.PathError; it matches
// fs.ErrNotExist when this kernel or namespace has no such key. For what is no key it is ErrInvalidKey.
func (k Key) Read() (string, error) {
	if err := k.check(); err != nil {
		return "", err
	}
	value, err := read(k.Path())
	return value, k.failure("read", err)
}

// Write sets the value unless the key has one that is Equal, so that a read-only /proc/sys is no obstacle where nothing
// is to be changed.
func (k Key) Write(value string) error {
	have, err := k.Read()
	if errors.Is(err, ErrInvalidKey) || (err == nil && Equal(have, value)) {
		return err
	}
	f, err := open(k.Path(), unix.O_WRONLY) // some can only be written
	if err == nil {
		_, err = f.WriteString(value + "\n")
		err = errors.Join(err, f.Close())
	}
	return k.failure(fmt.Sprintf("write %q", value), err)
}

// BootID is the random number that the kernel has for this boot.
func BootID() (string, error) { return read("/proc/sys/kernel/random/boot_id") }

// LinkAttribute returns an attribute of a link, from /sys/class/net.
func LinkAttribute(link, name string) (string, error) {
	return read("/sys/class/net/" + link + "/" + name)
}

func read(path string) (string, error) {
	f, err := open(path, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	return strings.TrimSuffix(string(data), "\n"), err
}

// open is os.OpenFile without the runtime's poller. Files below /proc/sys and /sys can be
// polled, so os.OpenFile would hand each to the poller, whose thread wakes up for it.
func open(path string, flags int) (*os.File, error) {
	fd, err := -1, error(unix.EINTR)
	for err == unix.EINTR {
		fd, err = unix.Open(path, flags|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// failure names the key as sysctl(8) spells it.
func (k Key) failure(op string, err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		err = path.Err
	}
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: "sysctl", Path: k.String() + ": " + op, Err: err}
}

// Equal tells whether two values are the same to the kernel: blanks, tabs and
// newlines only separate, and a list of ports may be written in several ways.
func Equal(a, b string) bool {
	return slices.EqualFunc(strings.Fields(a), strings.Fields(b), func(a, b string) bool {
		if a == b {
			return true
		}
		portsA, portsB := ports(a), ports(b)
		return portsA != nil && portsB != nil && *portsA == *portsB
	})
}

// ports reads numbers and ranges as in "8080,9000-9010"; nil, for any other text and for a single number.
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

// SinceBoot is a clock that nobody sets, and that runs while the machine sleeps.
func SinceBoot() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // which cannot fail
	return time.Duration(t.Nano())
}
