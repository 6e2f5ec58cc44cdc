package statefile

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Dir is an open directory. Its methods act on that directory even when its
// path has come to lead elsewhere.
type Dir struct {
	fd   int
	path string
}

// Open opens the directory at path and makes it, with the missing parents,
// with perm (less the umask). Links in path itself are followed: it is the
// administrator's.
func Open(path string, perm fs.FileMode) (*Dir, error) {
	d, err := OpenExisting(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return d, err
	}
	if err := os.MkdirAll(path, perm); err != nil {
		return nil, err
	}
	return OpenExisting(path)
}

// OpenExisting is Open for a directory that has to be there; the error
// matches fs.ErrNotExist when it is not.
func OpenExisting(path string) (*Dir, error) {
	fd, err := openat(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return &Dir{fd: fd, path: path}, nil
}

// IsAbsent reports whether the error of OpenExisting says that nothing is kept
// at the path: there is none, or a file is in its place.
func IsAbsent(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) }

// OpenDir opens a directory inside d and makes it with perm when it is
// absent. A symbolic link of that name is an error (ENOTDIR).
func (d *Dir) OpenDir(name string, perm fs.FileMode) (*Dir, error) {
	sub, err := d.OpenExistingDir(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return sub, err
	}
	if err := unix.Mkdirat(d.fd, name, uint32(perm.Perm())); err != nil && err != unix.EEXIST {
		return nil, d.fail("create", name, err)
	}
	return d.OpenExistingDir(name)
}

// OpenExistingDir is OpenDir for a directory that has to be there.
func (d *Dir) OpenExistingDir(name string) (*Dir, error) {
	fd, err := d.open(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, d.fail("open", name, err)
	}
	return &Dir{fd: fd, path: d.join(name)}, nil
}

// Path is the path that d was opened by, for messages.
func (d *Dir) Path() string { return d.path }

// Close closes the directory. It may be called again.
func (d *Dir) Close() error {
	if d.fd < 0 {
		return nil
	}
	fd := d.fd
	d.fd = -1
	return unix.Close(fd)
}

// Names lists the entries, in no order, without the temporary files.
func (d *Dir) Names() ([]string, error) {
	names, _, err := d.list()
	return names, err
}

// Sweep removes the temporary files that killed writers left behind. The
// caller holds the lock that all writers of this directory take.
func (d *Dir) Sweep() error {
	_, temporary, err := d.list()
	errs := []error{err}
	for _, name := range temporary {
		errs = append(errs, d.Remove(name))
	}
	return errors.Join(errs...)
}

func (d *Dir) list() (names, temporary []string, err error) {
	fd, err := openat(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, nil, &fs.PathError{Op: "list", Path: d.path, Err: err}
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close()
	all, err := f.Readdirnames(-1)
	for _, name := range all {
		if isTemporary(name) {
			temporary = append(temporary, name)
		} else {
			names = append(names, name)
		}
	}
	return names, temporary, err
}

// Info is what stat says of a directory.
type Info struct {
	Device, Inode uint64
	ModTime       time.Time // the last time an entry came, went or was renamed
}

// Stat describes the directory.
func (d *Dir) Stat() (Info, error) {
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		return Info{}, &fs.PathError{Op: "stat", Path: d.path, Err: err}
	}
	return Info{uint64(st.Dev), st.Ino, time.Unix(st.Mtim.Unix())}, nil
}

// SetModTime sets the directory's modification time, which the kernel
// overwrites as soon as an entry comes, goes or is renamed.
func (d *Dir) SetModTime(t time.Time) error {
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(t.UnixNano())}
	if err := unix.UtimesNanoAt(d.fd, ".", ts, 0); err != nil {
		return &fs.PathError{Op: "set time of", Path: d.path, Err: err}
	}
	return nil
}

func (d *Dir) join(name string) string { return d.path + "/" + name }

func (d *Dir) fail(op, name string, err error) error {
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

func openat(dir int, name string, flags int, perm fs.FileMode) (fd int, err error) {
	err = ignoreEINTR(func() error {
		fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC, uint32(perm.Perm()))
		return err
	})
	return fd, err
}

func ignoreEINTR(fn func() error) error {
	for {
		if err := fn(); err != unix.EINTR {
			return err
		}
	}
}
