// Package statefile is a locked directory whose files appear and change
// atomically, and Store, one JSON record for each attachment in such a directory.
//
// Whatever happens to the writer (kill, full disk, I/O error), a reader sees
// a file whole as it was before, whole as it is after, or not at all. No access
// follows a symbolic link inside the directory.
//
// Nothing here calls fsync: the files describe what lives in the running
// kernel, and a power cut ends that as well.
package statefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Dir is an open directory. Its methods act on it even when its path has come to
// lead elsewhere.
type Dir struct {
	fd   int
	path string
}

// Open opens the directory at path. Where there is none, it makes it and the
// missing parents with perm (less the umask); with perm 0 the error then matches
// fs.ErrNotExist. Links in path are followed.
func Open(path string, perm fs.FileMode) (*Dir, error) { return open(path, perm, 0) }

// OpenOwn is Open for a directory that we make ourselves: a symbolic link in its place
// is an error (ENOTDIR).
func OpenOwn(path string, perm fs.FileMode) (*Dir, error) { return open(path, perm, unix.O_NOFOLLOW) }

func open(path string, perm fs.FileMode, flags int) (*Dir, error) {
	flags |= unix.O_RDONLY | unix.O_DIRECTORY
	fd, err := openat(unix.AT_FDCWD, path, flags, 0)
	if err == unix.ENOENT && perm != 0 {
		if err := os.MkdirAll(path, perm); err != nil {
			return nil, err
		}
		fd, err = openat(unix.AT_FDCWD, path, flags, 0)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return &Dir{fd: fd, path: path}, nil
}

// IsAbsent reports whether the error of Open with perm 0 says that nothing is
// kept at the path: there is none, or a file is in its place.
func IsAbsent(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) }

// Path is the path that d was opened by, for messages.
func (d *Dir) Path() string { return d.path }

// Close closes the directory.
func (d *Dir) Close() error { return unix.Close(d.fd) }

// Names lists the entries, in no order, without the temporary files.
func (d *Dir) Names() ([]string, error) {
	names, err := d.list()
	return slices.DeleteFunc(names, isTemporary), err
}

// Sweep removes the temporary files that killed writers left. The caller holds the lock of
// all writers of this directory.
func (d *Dir) Sweep() error {
	names, err := d.list()
	errs := []error{err}
	for _, name := range names {
		if isTemporary(name) {
			errs = append(errs, d.Remove(name))
		}
	}
	return errors.Join(errs...)
}

func (d *Dir) list() ([]string, error) {
	fd, err := openat(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, d.fail("list", ".", err)
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close()
	return f.Readdirnames(-1)
}

// Stat describes the directory.
func (d *Dir) Stat() (st unix.Stat_t, err error) {
	err = unix.Fstat(d.fd, &st)
	return st, d.fail("stat", ".", err)
}

// SetModTime sets the directory's modification time, which the kernel
// overwrites as soon as an entry comes, goes or is renamed.
func (d *Dir) SetModTime(t time.Time) error {
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(t.UnixNano())}
	return d.fail("set time of", ".", unix.UtimesNanoAt(d.fd, ".", ts, 0))
}

func (d *Dir) join(name string) string { return filepath.Join(d.path, name) }

// fail names the entry in an error; nil stays nil.
func (d *Dir) fail(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: d.join(name), Err: err}
}

// open opens one entry of the directory, which is no link.
func (d *Dir) open(name string, flags int, perm fs.FileMode) (int, error) {
	if !isEntry(name) {
		return -1, fs.ErrInvalid
	}
	return openat(d.fd, name, flags|unix.O_NOFOLLOW, perm)
}

// isEntry keeps an access inside the directory.
func isEntry(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

func openat(dir int, name string, flags int, perm fs.FileMode) (int, error) {
	return retry(func() (int, error) { return unix.Openat(dir, name, flags|unix.O_CLOEXEC, uint32(perm.Perm())) })
}

// retry repeats a system call that a signal interrupts.
func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}
