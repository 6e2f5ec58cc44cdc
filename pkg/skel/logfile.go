package skel

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// logMax is how long the log may be, in bytes. Then it is renamed to end in
// .1, in the place of the one before, and a new one begins.
const logMax = 4 << 20

// logTries bounds how often the log is opened again, since it is another file by
// then.
const logTries = 100

// lineStart is how every line begins. A file that begins otherwise is no log.
const lineStart = `{"time":"`

// logFile is a log to which several processes write, which may be in a
// directory where others do what they like.
type logFile struct {
	path string
	max  int64
}

// append adds a line in one write. What is no log of ours is left as it is, and
// no symbolic link is followed.
func (l logFile) append(line []byte) error {
	dir, err := open(unix.AT_FDCWD, filepath.Dir(l.path), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return l.failed(err)
	}
	defer unix.Close(dir)
	for range logTries {
		fd, err := openLog(dir, filepath.Base(l.path))
		if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) {
			continue // somebody else made it, or renamed it
		}
		if err != nil {
			return l.failed(err)
		}
		again, err := l.appendTo(dir, fd, line)
		if err = errors.Join(err, unix.Close(fd)); err != nil || !again {
			return l.failed(err)
		}
	}
	return l.failed(errors.New("is another file all the time"))
}

func (l logFile) failed(err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: "write", Path: l.path, Err: err}
}

// openLog opens the log to write to it, and makes it where there is none. What
// is no regular file is not opened: of a device that alone can do harm.
func openLog(dir int, name string) (int, error) {
	const flags = unix.O_RDWR | unix.O_APPEND
	found, err := open(dir, name, unix.O_PATH)
	if errors.Is(err, unix.ENOENT) {
		return open(dir, name, flags|unix.O_CREAT|unix.O_EXCL)
	}
	if err != nil {
		return -1, err
	}
	defer unix.Close(found)
	var st unix.Stat_t
	if err := unix.Fstat(found, &st); err != nil {
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, errors.New("is no regular file")
	}
	return unix.Open("/proc/self/fd/"+strconv.Itoa(found), flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
}

// open opens a file of which no part is a symbolic link. Kernels before 5.6, and
// sandboxes that refuse openat2, look at the last part alone.
func open(dir int, name string, flags int) (fd int, err error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_NO_SYMLINKS}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o600
	}
	for fd, err = -1, unix.EINTR; errors.Is(err, unix.EINTR); {
		fd, err = unix.Openat2(dir, name, &how)
		if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
			fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, uint32(how.Mode))
		}
	}
	if errors.Is(err, unix.ELOOP) {
		err = errors.New("is a symbolic link, or there is one on the way to it")
	}
	return fd, err
}

// appendTo writes the line, or makes room: then it is to be tried again.
func (l logFile) appendTo(dir, fd int, line []byte) (again bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	if err := checkLog(fd, st); err != nil {
		return false, err
	}
	if st.Size > 0 && st.Size+int64(len(line)) > l.max {
		if again, err = l.rotate(dir, fd, st); again || err != nil {
			return again, err
		}
		if st.Size > 2*l.max {
			return false, errors.New("is full, and somebody keeps it from being renamed")
		}
	}
	if torn(fd, st.Size) {
		line = append([]byte{'\n'}, line...)
	}
	n, err := unix.Write(fd, line)
	if err == nil && n < len(line) {
		err = unix.ENOSPC
	}
	return false, err
}

// torn reports whether the last line has no end: the disk was full, or somebody is
// still writing it, when an empty line will do no harm.
func torn(fd int, size int64) bool {
	last := make([]byte, 1)
	n, err := unix.Pread(fd, last, max(0, size-1))
	return err == nil && n == 1 && last[0] != '\n'
}

// checkLog refuses what is no log of ours. Root would otherwise write to
// whatever a configuration names, or somebody puts in the log's place.
func checkLog(fd int, st unix.Stat_t) error {
	switch {
	case st.Nlink > 1:
		return errors.New("has another name, too")
	case int(st.Uid) != unix.Geteuid() || st.Mode&0o022 != 0:
		return errors.New("is a file that others may write to")
	case st.Size == 0:
		return nil
	}
	start := make([]byte, len(lineStart))
	if n, err := unix.Pread(fd, start, 0); err != nil || !bytes.Equal(start[:n], []byte(lineStart)) {
		return fmt.Errorf("is no log: it does not begin with %s", lineStart)
	}
	return nil
}

// rotate renames a full log. Only who has the lock on the file that bears the
// log's name may do so, and nobody waits for it: who does not get it writes to
// the full log, which becomes a little longer. again says that the log is another
// file by now.
func (l logFile) rotate(dir, fd int, st unix.Stat_t) (again bool, err error) {
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		return false, nil
	}
	name := filepath.Base(l.path)
	var now unix.Stat_t
	err = unix.Fstatat(dir, name, &now, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) || err == nil && (now.Ino != st.Ino || now.Dev != st.Dev) {
		return true, nil
	}
	if err == nil {
		err = checkOld(dir, name+".1")
	}
	if err == nil {
		err = unix.Renameat(dir, name, dir, name+".1")
	}
	return err == nil, err
}

// checkOld refuses to replace what is no log of ours.
func checkOld(dir int, name string) error {
	fd, err := openLog(dir, name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		err = checkLog(fd, st)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
