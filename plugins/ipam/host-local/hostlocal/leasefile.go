package hostlocal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/statefile"
)

// Notes are in a trusted attribute of the lease file, which only root can access and tmpfs supports on all kernels.
const (
	noteAttr = "trusted.hawser"
	noteMax  = 64 // bytes
)

// createFile creates a file with data and a note, if the file system and the permissions of the process allow notes.
// The file gets its name only when it is complete. If the name is taken, the error matches fs.ErrExist.
func createFile(d *statefile.Dir, name string, data, note []byte) error {
	err := linkUnnamed(d, name, data, note)
	switch err {
	case unix.EOPNOTSUPP, unix.EISDIR, unix.EINVAL: // the file system has no unnamed files
		tmp := "." + name + ".tmp" // if the call is killed, Dir.Sweep removes it
		if err := d.Replace(tmp, data, leaseMode); err != nil {
			return err
		}
		err = errors.Join(unix.Linkat(d.FD(), tmp, d.FD(), name, 0), d.Remove(tmp))
	}
	return fileError(d, "create", name, err)
}

// linkUnnamed writes a file without a name, and links it at name.
func linkUnnamed(d *statefile.Dir, name string, data, note []byte) error {
	fd, err := d.OpenAt(".", unix.O_WRONLY|unix.O_TMPFILE, leaseMode)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), filepath.Join(d.Path(), name))
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if note != nil {
		_ = unix.Fsetxattr(fd, noteAttr, note, 0)
	}
	// Linking the descriptor itself requires CAP_DAC_READ_SEARCH.
	err = unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), d.FD(), name, unix.AT_SYMLINK_FOLLOW)
	if err == unix.ENOENT || err == unix.EXDEV { // /proc is not mounted
		return unix.EOPNOTSUPP
	}
	return err
}

// readNote returns the note of a file, or nil if it cannot be read. It uses the path of the directory, because the
// system call with a directory's descriptor exists only since Linux 6.13, and a path in /proc takes twice as long.
func readNote(d *statefile.Dir, name string) []byte {
	note := make([]byte, noteMax)
	n, err := unix.Lgetxattr(d.Path()+"/"+name, noteAttr, note)
	if err != nil {
		return nil
	}
	return note[:n]
}

// isLocal reports whether the file system of the directory is known to be on a disk or in memory of this machine, so
// that no other machine can use it.
func isLocal(d *statefile.Dir) bool {
	const zfs = 0x2FC12FC1
	var st unix.Statfs_t
	if err := unix.Fstatfs(d.FD(), &st); err != nil {
		return false
	}
	switch uint32(st.Type) { // signed on some machines
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, zfs,
		unix.OVERLAYFS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		return true
	}
	return false
}

// openInPlace opens a regular file for reading and for writing in place. The caller's lock makes writes atomic. A file
// with a second hard link is refused, because it may belong to another program.
func openInPlace(d *statefile.Dir, name string) (*os.File, error) {
	fd, err := d.OpenAt(name, unix.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fileError(d, "open", name, err)
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 {
		unix.Close(fd)
		return nil, fileError(d, "open", name, errors.New("not a regular file with one name"))
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.Path(), name)), nil
}

// fileError adds the operation and the file to an error. It returns nil if err is nil.
func fileError(d *statefile.Dir, op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: filepath.Join(d.Path(), name), Err: err}
}
