package statefile

import (
	"encoding/hex"
	"errors"
	"hash/fnv"
	"io"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Replace gives the file name new content in one step; it is created when it
// is absent. An entry that is a symbolic link is itself replaced. The caller
// holds the lock that all writers of this name take. A kill may leave something
// where there is a file already; the next Replace or Discard of it takes that
// away.
func (d *Dir) Replace(name string, data []byte, perm fs.FileMode) error {
	if err := checkName("replace", d.path, name); err != nil {
		return err
	}
	err := d.replaceUnnamed(name, data, perm)
	if errors.Is(err, errNoUnnamed) {
		err = d.replaceNamed(name, data, perm)
	}
	if err != nil {
		return d.fail("replace", name, err)
	}
	return nil
}

func (d *Dir) replaceUnnamed(name string, data []byte, perm fs.FileMode) error {
	fd, err := d.writeUnnamed(data, perm)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := d.link(fd, name); err != unix.EEXIST {
		return err
	}
	tmp := successor(name)
	err = d.link(fd, tmp)
	if err == unix.EEXIST { // one was killed here
		if err = unix.Unlinkat(d.fd, tmp, 0); err == nil {
			err = d.link(fd, tmp)
		}
	}
	if err != nil {
		return err
	}
	return d.rename(tmp, name)
}

func (d *Dir) replaceNamed(name string, data []byte, perm fs.FileMode) error {
	tmp, err := d.writeTemporary(data, perm)
	if err != nil {
		return err
	}
	return d.rename(tmp, name)
}

// rename puts a finished file in its place, or removes it.
func (d *Dir) rename(tmp, name string) error {
	err := unix.Renameat(d.fd, tmp, d.fd, name)
	if err != nil {
		err = errors.Join(err, unix.Unlinkat(d.fd, tmp, 0))
	}
	return err
}

// successor is the name that new content of an existing file has for a moment.
// It says which file's it is, so that what a kill leaves is found without a
// search; a hash, since name may be as long as names can be.
func successor(name string) string {
	h := fnv.New64a()
	_, _ = io.WriteString(h, name)
	return temporary + hex.EncodeToString(h.Sum(nil))
}

// Discard is Remove for a file that Replace writes: what a Replace that was
// killed has left goes too. The caller holds the lock that its writers take.
func (d *Dir) Discard(name string) error {
	if err := d.Remove(name); err != nil {
		return err
	}
	return d.Remove(successor(name))
}
