package statefile

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// temporary begins the name of a file that is not finished.
const temporary = ".statefile-"

// maxSize is what Read takes at most: state files are small, and a device or
// an endless file put in their place must not eat the memory.
const maxSize = 16 << 20

// Create makes the file name with data and perm (less the umask), whole or
// not at all. It returns an error that matches fs.ErrExist when there is an
// entry of that name.
func (d *Dir) Create(name string, data []byte, perm fs.FileMode) error {
	if err := checkName("create", d.path, name); err != nil {
		return err
	}
	err := d.createUnnamed(name, data, perm)
	if errors.Is(err, errNoUnnamed) {
		err = d.createNamed(name, data, perm)
	}
	if err != nil {
		return d.fail("create", name, err)
	}
	return nil
}

var errNoUnnamed = errors.New("no unnamed files on this filesystem")

// createUnnamed links a file into the directory that had no name until then,
// so that a kill before that leaves nothing.
func (d *Dir) createUnnamed(name string, data []byte, perm fs.FileMode) error {
	fd, err := d.writeUnnamed(data, perm)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return d.link(fd, name)
}

func (d *Dir) writeUnnamed(data []byte, perm fs.FileMode) (fd int, err error) {
	fd, err = openat(d.fd, ".", unix.O_WRONLY|unix.O_TMPFILE, perm)
	switch err {
	case nil:
	case unix.EOPNOTSUPP, unix.EISDIR, unix.EINVAL:
		return -1, errNoUnnamed
	default:
		return -1, err
	}
	if err := writeAll(fd, data, 0); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// link gives an unnamed file a name.
func (d *Dir) link(fd int, name string) error {
	// Without CAP_DAC_READ_SEARCH (and before 6.10 always) the descriptor
	// cannot be linked as such.
	if err := unix.Linkat(fd, "", d.fd, name, unix.AT_EMPTY_PATH); err != unix.ENOENT {
		return err
	}
	err := unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), d.fd, name, unix.AT_SYMLINK_FOLLOW)
	if err == unix.ENOENT || err == unix.EXDEV {
		return errNoUnnamed
	}
	return err
}

func (d *Dir) createNamed(name string, data []byte, perm fs.FileMode) error {
	tmp, err := d.writeTemporary(data, perm)
	if err != nil {
		return err
	}
	err = unix.Linkat(d.fd, tmp, d.fd, name, 0)
	return errors.Join(err, unix.Unlinkat(d.fd, tmp, 0))
}

// Writable tries whether a file can be created and written: on a file system
// that is read-only or full it cannot. It leaves nothing behind.
func (d *Dir) Writable() error {
	fd, err := openat(d.fd, ".", unix.O_WRONLY|unix.O_TMPFILE, 0o600)
	switch err {
	case nil:
		err = errors.Join(writeAll(fd, []byte{0}, 0), unix.Close(fd))
	case unix.EOPNOTSUPP, unix.EISDIR, unix.EINVAL:
		var tmp string
		if tmp, err = d.writeTemporary([]byte{0}, 0o600); err == nil {
			err = unix.Unlinkat(d.fd, tmp, 0)
		}
	}
	if err != nil {
		return &fs.PathError{Op: "write in", Path: d.path, Err: err}
	}
	return nil
}

// Writable is Dir.Writable for the directory at path, or for the nearest one
// above it where Open would make it.
func Writable(path string) error {
	d, err := OpenExisting(path)
	if errors.Is(err, fs.ErrNotExist) && path != filepath.Dir(path) {
		return Writable(filepath.Dir(path))
	}
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Writable()
}

func (d *Dir) writeTemporary(data []byte, perm fs.FileMode) (string, error) {
	var random [8]byte
	if _, err := unix.Getrandom(random[:], 0); err != nil {
		return "", err
	}
	tmp := temporary + hex.EncodeToString(random[:])
	fd, err := openat(d.fd, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, perm)
	if err != nil {
		return "", err
	}
	if err := errors.Join(writeAll(fd, data, 0), unix.Close(fd)); err != nil {
		return "", errors.Join(err, unix.Unlinkat(d.fd, tmp, 0))
	}
	return tmp, nil
}

// ErrIrregular says that an entry can never be a state file: it is no regular
// file, or larger than 16 MiB.
var ErrIrregular = errors.New("not a regular file of at most 16 MiB")

// Read returns the content of the regular file name. For whatever else is there
// the error matches ErrIrregular.
func (d *Dir) Read(name string) ([]byte, error) {
	if err := checkName("read", d.path, name); err != nil {
		return nil, err
	}
	// A FIFO would block the open.
	fd, err := openat(d.fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err == unix.ELOOP || err == unix.ENXIO { // a link; a socket, a device
		err = fmt.Errorf("%w: %w", ErrIrregular, err)
	}
	if err != nil {
		return nil, d.fail("read", name, err)
	}
	defer unix.Close(fd)
	data, err := readAll(fd)
	if err != nil {
		return nil, d.fail("read", name, err)
	}
	return data, nil
}

// Remove removes the file name. An absent one is no error.
func (d *Dir) Remove(name string) error {
	if err := checkName("remove", d.path, name); err != nil {
		return err
	}
	err := unix.Unlinkat(d.fd, name, 0)
	if err == unix.EROFS { // it comes before ENOENT
		var st unix.Stat_t
		if unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == unix.ENOENT {
			return nil
		}
	}
	if err != nil && err != unix.ENOENT {
		return d.fail("remove", name, err)
	}
	return nil
}

// File is a file that is changed in place. A single ReadAt or WriteAt is not
// atomic against other processes; the caller's lock is.
type File struct {
	fd   int
	size int64
	path string
}

// OpenFile opens the regular file name for reading and writing in place. A
// file that has a second hard link is refused: it may be somebody else's.
func (d *Dir) OpenFile(name string) (*File, error) {
	if err := checkName("open", d.path, name); err != nil {
		return nil, err
	}
	fd, err := openat(d.fd, name, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, d.fail("open", name, err)
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1) {
		err = errNotPlain
	}
	if err != nil {
		unix.Close(fd)
		return nil, d.fail("open", name, err)
	}
	return &File{fd: fd, size: st.Size, path: d.join(name)}, nil
}

var errNotPlain = errors.New("not a regular file with one name")

// Size is the file's size in bytes when it was opened.
func (f *File) Size() int64 { return f.size }

// ReadAt is io.ReaderAt.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Pread(f.fd, p[done:], off+int64(done))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return done, &fs.PathError{Op: "read", Path: f.path, Err: err}
		case n == 0:
			return done, io.EOF
		default:
			done += n
		}
	}
	return done, nil
}

// WriteAt is io.WriterAt.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	if err := writeAll(f.fd, p, off); err != nil {
		return 0, &fs.PathError{Op: "write", Path: f.path, Err: err}
	}
	return len(p), nil
}

// Close closes the file.
func (f *File) Close() error { return unix.Close(f.fd) }

func writeAll(fd int, data []byte, off int64) error {
	for len(data) > 0 {
		n, err := unix.Pwrite(fd, data, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrShortWrite
		}
		data, off = data[n:], off+int64(n)
	}
	return nil
}

func readAll(fd int) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxSize {
		return nil, ErrIrregular
	}
	data := make([]byte, st.Size)
	for done := 0; done < len(data); {
		n, err := unix.Pread(fd, data[done:], int64(done))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, err
		case n == 0:
			return data[:done], nil
		default:
			done += n
		}
	}
	return data, nil
}
