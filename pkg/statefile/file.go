package statefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxSize is what Read takes at most: state files are small.
const maxSize = 16 << 20

// Create makes the file name with data and perm (less the umask), whole or not at all. When
// there is an entry of that name the error matches fs.ErrExist. The caller holds the lock of
// all writers.
func (d *Dir) Create(name string, data []byte, perm fs.FileMode) error {
	if !isEntry(name) {
		return d.fail("create", name, fs.ErrInvalid)
	}
	err := d.createUnnamed(name, data, perm)
	if err == errNoUnnamed {
		var tmp string
		if tmp, err = d.write(name, data, perm); err == nil {
			err = errors.Join(unix.Linkat(d.fd, tmp, d.fd, name, 0), unix.Unlinkat(d.fd, tmp, 0))
		}
	}
	return d.fail("create", name, err)
}

var errNoUnnamed = errors.New("no unnamed files on this file system")

// createUnnamed links a file into the directory that had no name until then: a
// writer that is killed leaves nothing that other programs could read.
func (d *Dir) createUnnamed(name string, data []byte, perm fs.FileMode) error {
	fd, err := openat(d.fd, ".", unix.O_WRONLY|unix.O_TMPFILE, perm)
	if hasNoUnnamed(err) {
		return errNoUnnamed
	}
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), d.join(name))
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return err
	}
	// The descriptor itself can be linked only with CAP_DAC_READ_SEARCH.
	err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), d.fd, name, unix.AT_SYMLINK_FOLLOW)
	if err == unix.ENOENT || err == unix.EXDEV { // there is no /proc
		return errNoUnnamed
	}
	return err
}

// hasNoUnnamed reports whether opening a file with O_TMPFILE failed because the file system has no such files.
func hasNoUnnamed(err error) bool {
	return err == unix.EOPNOTSUPP || err == unix.EISDIR || err == unix.EINVAL
}

// Replace gives the file name new content in one step, or creates it. An entry that is a
// symbolic link is itself replaced. The caller holds the lock of all writers of this name.
func (d *Dir) Replace(name string, data []byte, perm fs.FileMode) error {
	tmp, err := d.write(name, data, perm)
	if err == nil {
		if err = unix.Renameat(d.fd, tmp, d.fd, name); err != nil {
			err = errors.Join(err, unix.Unlinkat(d.fd, tmp, 0))
		}
	}
	return d.fail("replace", name, err)
}

// write writes the temporary file of name. One that a killed writer left is
// replaced: it may be another name of a file that was whole.
func (d *Dir) write(name string, data []byte, perm fs.FileMode) (tmp string, err error) {
	if !isEntry(name) {
		return "", fs.ErrInvalid
	}
	tmp = temporary(name)
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL
	fd, err := d.open(tmp, flags, perm)
	if err == unix.EEXIST && unix.Unlinkat(d.fd, tmp, 0) == nil {
		fd, err = d.open(tmp, flags, perm)
	}
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), d.join(tmp))
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, unix.Unlinkat(d.fd, tmp, 0))
	}
	return tmp, nil
}

const temporarySuffix = ".tmp"

// temporary is the name of the file that becomes name. Two long names may share one: only
// who holds the lock has such a file.
func temporary(name string) string {
	const nameMax = 255
	return "." + name[:min(len(name), nameMax-len("."+temporarySuffix))] + temporarySuffix
}

func isTemporary(name string) bool {
	return strings.HasPrefix(name, ".") && strings.HasSuffix(name, temporarySuffix)
}

// Remove removes the file name. An absent one is no error.
func (d *Dir) Remove(name string) error {
	if !isEntry(name) {
		return d.fail("remove", name, fs.ErrInvalid)
	}
	err := unix.Unlinkat(d.fd, name, 0)
	if err == unix.EROFS { // also for an absent one
		if absent := unix.Faccessat(d.fd, name, unix.F_OK, unix.AT_SYMLINK_NOFOLLOW); absent == unix.ENOENT {
			return nil
		}
	}
	if err == unix.ENOENT {
		return nil
	}
	return d.fail("remove", name, err)
}

// Discard is Remove for a file that Replace writes: what a Replace that was
// killed has left goes too. The caller holds the lock that its writers take.
func (d *Dir) Discard(name string) error {
	if err := d.Remove(name); err != nil {
		return err
	}
	return d.Remove(temporary(name))
}

// ErrIrregular says that an entry can never be a state file: it is no regular
// file, or larger than 16 MiB.
var ErrIrregular = errors.New("not a regular file of at most 16 MiB")

// Read returns the content of the regular file name. For whatever else is there
// the error matches ErrIrregular.
func (d *Dir) Read(name string) ([]byte, error) {
	data, err := d.read(name)
	return data, d.fail("read", name, err)
}

func (d *Dir) read(name string) ([]byte, error) {
	fd, err := d.open(name, unix.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO would block the open
	if err == unix.ELOOP || err == unix.ENXIO {               // a link; a socket, a device
		return nil, fmt.Errorf("%w: %w", ErrIrregular, err)
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxSize {
		return nil, ErrIrregular
	}
	data := make([]byte, st.Size)
	n, err := retry(func() (int, error) { return unix.Pread(fd, data, 0) })
	return data[:max(n, 0)], err
}

// OpenFile opens the regular file name for reading and writing in place. A single
// ReadAt or WriteAt is not atomic against other processes; the caller's lock is. A
// file that has a second hard link is refused: it may be somebody else's.
func (d *Dir) OpenFile(name string) (*os.File, error) {
	fd, err := d.open(name, unix.O_RDWR, 0)
	if err != nil {
		return nil, d.fail("open", name, err)
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 {
		unix.Close(fd)
		return nil, d.fail("open", name, errors.New("not a regular file with one name"))
	}
	return os.NewFile(uintptr(fd), d.join(name)), nil
}

// Writable tries whether a file can be created and written in the directory at
// path, or in the nearest one above it where Open would make it: on a file system
// that is read-only or full it cannot. Nothing in the directory changes.
func Writable(path string) error {
	fd, err := openat(unix.AT_FDCWD, path, unix.O_WRONLY|unix.O_TMPFILE, 0o600)
	switch {
	case err == nil:
		_, err = unix.Write(fd, []byte{0})
		err = errors.Join(err, unix.Close(fd))
	case err == unix.ENOENT && path != filepath.Dir(path):
		return Writable(filepath.Dir(path))
	case hasNoUnnamed(err):
		err = unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	}
	if err != nil {
		return &fs.PathError{Op: "write in", Path: path, Err: err}
	}
	return nil
}
