// Package statefile is a locked directory whose files appear and change atomically, and Store, one JSON record for each
// attachment in such a directory.
//
// Whatever happens to the writer (kill, full disk, I/O error), a reader sees a file whole as it was before, whole as it
// is after, or not at all. No access follows a symbolic link inside the directory. Nothing here calls fsync: the files
// describe what lives in the running kernel, and a power cut ends that as well.
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

// Dir is an open directory. Its methods act on it even when its path has come to lead elsewhere.
type Dir struct {
	fd   int
	path string
}

// Open opens the directory at path. Where there is none, it makes it and the missing parents with perm (less the
// umask); for perm 0 the error then matches fs.ErrNotExist. Links in path are followed.
func Open(path string, perm fs.FileMode) (*Dir, error) { return open(path, perm, 0) }

// OpenOwn is Open for a directory that we make ourselves: a symbolic link in its place is an error (ENOTDIR).
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

// IsAbsent reports whether the error of Open with perm 0 says that nothing is kept at the path, which may be a file.
func IsAbsent(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) }

// Path is the path that d was opened by, for messages.
func (d *Dir) Path() string { return d.path }

// FD returns the file descriptor of the directory, which is valid until Close.
func (d *Dir) FD() int { return d.fd }

// Close closes the directory.
func (d *Dir) Close() error { return unix.Close(d.fd) }

// Names lists the entries, in no order, without the temporary files.
func (d *Dir) Names() ([]string, error) {
	names, err := d.list()
	return slices.DeleteFunc(names, isTemporary), err
}

// Sweep removes the temporary files that killed writers left. The caller holds the lock of all writers.
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

func (d *Dir) join(name string) string { return filepath.Join(d.path, name) }

// fail names the entry in an error; nil stays nil.
func (d *Dir) fail(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: d.join(name), Err: err}
}

// open opens one entry of the directory. It follows no symbolic link.
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

// maxSize is what Read takes at most: state files are small.
const maxSize = 16 << 20

// hasNoUnnamed reports whether the error says that the file system has no files without a name.
func hasNoUnnamed(err error) bool {
	return err == unix.EOPNOTSUPP || err == unix.EISDIR || err == unix.EINVAL
}

// Replace gives the file name new content in one step, or creates it. An entry that is a symbolic link is itself
// replaced. The caller holds the lock of all writers of this name.
func (d *Dir) Replace(name string, data []byte, perm fs.FileMode) error {
	tmp, err := d.write(name, data, perm)
	if err == nil {
		if err = unix.Renameat(d.fd, tmp, d.fd, name); err != nil {
			err = errors.Join(err, unix.Unlinkat(d.fd, tmp, 0))
		}
	}
	return d.fail("replace", name, err)
}

// write writes the temporary file of name. It replaces a killed writer's, which may be another name of a whole file.
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

// temporary is the name of the file that becomes name. Long names may share it: the lock keeps their writers apart.
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

// Discard is Remove for a file that Replace writes: what a killed Replace has left goes too. The caller holds the lock.
func (d *Dir) Discard(name string) error {
	if err := d.Remove(name); err != nil {
		return err
	}
	return d.Remove(temporary(name))
}

// ErrIrregular says that an entry can never be a state file: it is no regular file, or larger than 16 MiB.
var ErrIrregular = errors.New("not a regular file of at most 16 MiB")

// Read returns the content of the regular file name. For whatever else is there the error matches ErrIrregular.
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

// ReadRegular reads the regular file at any path, links in it followed. What is something else is not opened: that may
// start something, or never end. Nor may reading a kernel file, of size 0: it counts as empty.
func ReadRegular(path string) ([]byte, error) {
	look, err := os.OpenFile(path, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer look.Close()
	st, err := look.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxSize {
		return nil, &fs.PathError{Op: "read", Path: path, Err: ErrIrregular}
	}
	if st.Size() == 0 {
		return nil, nil
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", look.Fd()))
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.Unwrap(err)}
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, st.Size()))
}

// Writable tries whether a file can be created and written in the directory at path, or in the nearest one above it
// where Open would make it: the file system may be read-only or full. Nothing in the directory changes.
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
