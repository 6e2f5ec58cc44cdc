package ns

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Use is how a network namespace is used.
type Use struct {
	Path    string // leads to it, while it is used so
	Process bool   // a process is in it or has it open; otherwise it is only mounted
}

// InUse finds, by their inodes, the network namespaces that the processes which we see are in, have open, or have
// mounted. The error says that some could not be looked at: a namespace that was not found may be used nevertheless. A
// namespace that only a socket keeps is not found.
func InUse() (map[uint64]Use, error) {
	s := search{found: map[uint64]Use{}, mounts: map[string]bool{}}
	if err := statx("/proc/self/ns/net", &s.own); err != nil {
		return s.found, err
	}
	entries, err := os.ReadDir("/proc")
	errs := []error{err}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			errs = append(errs, s.process("/proc/"+e.Name()))
		}
	}
	return s.found, errors.Join(errs...)
}

type search struct {
	own    unix.Statx_t // of our namespace: all are of one device
	found  map[uint64]Use
	mounts map[string]bool // the mount namespaces that were looked at
}

func (s *search) process(dir string) error {
	for pattern, below := range map[string]string{"task": "/ns/net", "fd": ""} {
		entries, err := os.ReadDir(filepath.Join(dir, pattern))
		if isGone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			path := filepath.Join(dir, pattern, e.Name()) + below
			inode, err := s.inode(path)
			switch {
			case err != nil:
				return err
			case inode != 0:
				s.found[inode] = Use{path, true}
			}
		}
	}
	space, err := os.Readlink(dir + "/ns/mnt")
	if err == nil && !s.mounts[space] {
		s.mounts[space] = true
		err = s.mounted(dir)
	}
	if isGone(err) {
		return nil
	}
	return err
}

// mounted adds what is mounted where a process is.
func (s *search) mounted(process string) error {
	file, err := os.Open(process + "/mountinfo")
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		var inode uint64
		if len(words) < 5 {
			continue
		}
		if n, _ := fmt.Sscanf(words[3], "net:[%d]", &inode); n == 1 && s.found[inode].Path == "" {
			s.found[inode] = Use{Path: process + "/root" + words[4]}
		}
	}
	return lines.Err()
}

// inode is that of the network namespace which a path of /proc leads to; 0 for a path that leads elsewhere or is gone.
// A link's text would not do: it is the path of a mount for some descriptors.
func (s *search) inode(path string) (uint64, error) {
	var st unix.Statx_t
	err := statx(path, &st)
	if err != nil && !isGone(err) {
		return 0, err
	}
	if err != nil || st.Dev_major != s.own.Dev_major || st.Dev_minor != s.own.Dev_minor {
		return 0, nil
	}
	return st.Ino, nil
}

// statx asks no file server.
func statx(path string, st *unix.Statx_t) error {
	err := retry(func() error {
		return unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_INO, st)
	})
	if err != nil {
		return &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	return nil
}

// isGone reports whether the error is that of a process that ended: its mountinfo says EINVAL.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL)
}
