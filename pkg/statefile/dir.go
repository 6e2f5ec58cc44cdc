// Package statefile keeps small files in directories that several processes use at the same time.
//
// A Dir is an open directory whose files appear, change and disappear atomically. A Lock excludes other processes; its
// wait has a deadline, and its error names the holder. A Store keeps one record of a Go type for each attachment in a
// Dir, as JSON.
//
// A reader finds a file with its complete old content or its complete new content, or no file, even if a writer is
// killed, the disk is full or a write fails. A new file is therefore written under a temporary name and renamed. The
// next writer or a sweep removes the temporary file of a killed writer. No access follows a symbolic link inside a
// directory, because a container may be able to write there.
//
// The package never calls fsync: a power failure ends the state of the kernel that the files describe.
package statefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Dir is an open directory. Its methods act on this directory even if its path now names another directory.
type Dir struct {
	fd   int
	path string
}

// Open opens the directory at path. If it does not exist, Open creates it and its missing parents with perm (less the
// umask); if perm is 0, the error matches fs.ErrNotExist. Symbolic links in path are followed.
func Open(path string, perm fs.FileMode) (*Dir, error) { return open(path, perm, 0) }

// OpenNoFollow is Open for a directory that must not be a symbolic link. For a link, the error is ENOTDIR.
func OpenNoFollow(path string, perm fs.FileMode) (*Dir, error) {
	return open(path, perm, unix.O_NOFOLLOW)
}

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

// IsAbsent reports whether an error of Open with perm 0 means that the directory does not exist. There may
// be a file at its path.
func IsAbsent(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) }

// Path returns the path that d was opened with, for messages.
func (d *Dir) Path() string { return d.path }

// FD returns the file descriptor of the directory, which is valid until Close.
func (d *Dir) FD() int { return d.fd }

// Close closes the directory.
func (d *Dir) Close() error { return unix.Close(d.fd) }

// Names returns the names of the entries, in no particular order and without temporary files.
func (d *Dir) Names() ([]string, error) {
	names, err := d.list()
	return slices.DeleteFunc(names, isTemporary), err
}

// Sweep removes the temporary files of killed writers. The caller must hold the lock of all writers.
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
		return nil, d.pathError("list", ".", err)
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close()
	return f.Readdirnames(-1)
}

func (d *Dir) join(name string) string { return filepath.Join(d.path, name) }

// pathError adds the operation and the entry to an error. It returns nil if err is nil.
func (d *Dir) pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: d.join(name), Err: err}
}

// openFile opens an entry of the directory. It does not follow a symbolic link.
func (d *Dir) openFile(name string, flags int, perm fs.FileMode) (int, error) {
	if !isEntry(name) {
		return -1, fs.ErrInvalid
	}
	return openat(d.fd, name, flags|unix.O_NOFOLLOW, perm)
}

// isEntry reports whether name can only name an entry of the directory itself.
func isEntry(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// OpenAt opens a file relative to the directory and returns its descriptor. It repeats a call that a signal interrupts.
func (d *Dir) OpenAt(name string, flags int, perm fs.FileMode) (int, error) {
	return openat(d.fd, name, flags, perm)
}

func openat(dir int, name string, flags int, perm fs.FileMode) (int, error) {
	return retry(func() (int, error) { return unix.Openat(dir, name, flags|unix.O_CLOEXEC, uint32(perm.Perm())) })
}

// retry repeats a system call until no signal interrupts it.
func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}

const maxSize = 16 << 20 // bytes of the largest file that is read; state files are much smaller

// Replace atomically creates a file or replaces its content. If the entry is a symbolic link, Replace replaces the
// link. The caller must hold the lock of all writers of this name.
func (d *Dir) Replace(name string, data []byte, perm fs.FileMode) error {
	tmp, err := d.write(name, data, perm)
	if err == nil {
		if err = unix.Renameat(d.fd, tmp, d.fd, name); err != nil {
			err = errors.Join(err, unix.Unlinkat(d.fd, tmp, 0))
		}
	}
	return d.pathError("replace", name, err)
}

// write writes the temporary file for name. It does not write into the temporary file of a killed writer, but replaces
// it, because it may be a second link to a complete file.
func (d *Dir) write(name string, data []byte, perm fs.FileMode) (tmp string, err error) {
	if !isEntry(name) {
		return "", fs.ErrInvalid
	}
	tmp = temporary(name)
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL
	fd, err := d.openFile(tmp, flags, perm)
	if err == unix.EEXIST && unix.Unlinkat(d.fd, tmp, 0) == nil {
		fd, err = d.openFile(tmp, flags, perm)
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

// temporary returns the name of the file that is renamed to name. Long names may share it, because only one writer at a
// time holds the lock.
func temporary(name string) string {
	const nameMax = 255
	return "." + name[:min(len(name), nameMax-len("."+temporarySuffix))] + temporarySuffix
}

func isTemporary(name string) bool {
	return strings.HasPrefix(name, ".") && strings.HasSuffix(name, temporarySuffix)
}

// Remove removes a file. It returns nil if the file does not exist.
func (d *Dir) Remove(name string) error {
	if !isEntry(name) {
		return d.pathError("remove", name, fs.ErrInvalid)
	}
	err := unix.Unlinkat(d.fd, name, 0)
	if err == unix.EROFS && unix.Faccessat(d.fd, name, unix.F_OK, unix.AT_SYMLINK_NOFOLLOW) == unix.ENOENT {
		err = unix.ENOENT // the kernel checks for EROFS first
	}
	if err == unix.ENOENT {
		return nil
	}
	return d.pathError("remove", name, err)
}

// Discard removes a file and its temporary file from a killed Replace. The caller must hold the lock.
func (d *Dir) Discard(name string) error {
	if err := d.Remove(name); err != nil {
		return err
	}
	return d.Remove(temporary(name))
}

// ErrIrregular means that an entry cannot be a state file, because it is not a regular file or is larger than 16 MiB.
var ErrIrregular = errors.New("not a regular file of at most 16 MiB")

// Read returns the content of a regular file. If the entry is of another kind, the error matches ErrIrregular.
func (d *Dir) Read(name string) ([]byte, error) {
	data, err := d.read(name)
	return data, d.pathError("read", name, err)
}

func (d *Dir) read(name string) ([]byte, error) {
	fd, err := d.openFile(name, unix.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO would block the open
	if err == unix.ELOOP || err == unix.ENXIO {                   // a symbolic link; a socket or a device
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

// ReadRegular reads the regular file at path and follows symbolic links. It does not open other kinds of files, because
// opening a device can have an effect, and opening a FIFO can block. It does not read a file of size 0, because files
// of /proc have this size, and reading them can block as well.
func ReadRegular(path string) ([]byte, error) {
	handle, err := os.OpenFile(path, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	st, err := handle.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxSize {
		return nil, &fs.PathError{Op: "read", Path: path, Err: ErrIrregular}
	}
	if st.Size() == 0 {
		return nil, nil
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", handle.Fd()))
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.Unwrap(err)}
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, st.Size()))
}

// Writable returns nil if a file can be created and written in the directory at path. If the directory does not exist,
// Writable tests the nearest parent in which Open would create it. The file system may be read-only or full, for
// example. Nothing in the directory changes.
func Writable(path string) error {
	fd, err := openat(unix.AT_FDCWD, path, unix.O_WRONLY|unix.O_TMPFILE, 0o600)
	switch {
	case err == nil:
		_, err = unix.Write(fd, []byte{0})
		err = errors.Join(err, unix.Close(fd))
	case err == unix.ENOENT && path != filepath.Dir(path):
		return Writable(filepath.Dir(path))
	case err == unix.EOPNOTSUPP || err == unix.EISDIR || err == unix.EINVAL: // the file system has no unnamed files
		err = unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	}
	if err != nil {
		return &fs.PathError{Op: "write in", Path: path, Err: err}
	}
	return nil
}
