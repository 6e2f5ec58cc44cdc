package ns

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Use is one way in which a network namespace is used.
type Use struct {
	Inode uint64
	Path  string // leads to it, while it is used so
	Kind  UseKind
}

// UseKind is the kind of a use.
type UseKind int

// The kinds of uses: a thread is in the namespace, a process has it open, or it is mounted where a process sees it.
const (
	ByThread UseKind = iota
	ByDescriptor
	ByMount
)

// Uses yields the uses of all network namespaces by the processes of a proc file system, those by descriptors if they
// are wanted. An error says that something could not be looked at: a namespace of which no use is found may be used
// nevertheless. A namespace that only a socket keeps is not found.
func Uses(proc string, descriptors bool) iter.Seq2[Use, error] {
	return func(yield func(Use, error) bool) {
		s := search{mounts: map[string]bool{}, yield: yield}
		err := statx("/proc/self/ns/net", &s.own)
		entries, readErr := os.ReadDir(proc)
		if err = errors.Join(err, readErr); err != nil && !yield(Use{}, err) {
			return
		}
		for _, e := range entries {
			dir := filepath.Join(proc, e.Name())
			if _, err := strconv.Atoi(e.Name()); err != nil {
				continue // no process
			}
			more := s.links(dir, "task", "ns/net", ByThread) && s.mounted(dir) &&
				(!descriptors || s.links(dir, "fd", "", ByDescriptor))
			if !more {
				return
			}
		}
	}
}

type search struct {
	own    unix.Statx_t    // of our namespace: all are of one device
	mounts map[string]bool // the mount namespaces that were looked at
	yield  func(Use, error) bool
}

// fail yields an error, unless it says that a process has ended meanwhile: its mountinfo says EINVAL then.
func (s *search) fail(err error) (more bool) {
	isGone := err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL)
	return isGone || s.yield(Use{}, err)
}

// links yields the namespaces that the links of a process lead to. Their text would not do: it is the path of a mount
// for some descriptors.
func (s *search) links(process, dir, below string, kind UseKind) (more bool) {
	entries, err := os.ReadDir(filepath.Join(process, dir))
	more = s.fail(err)
	for _, e := range entries {
		path := filepath.Join(process, dir, e.Name(), below)
		var st unix.Statx_t
		err := statx(path, &st)
		switch {
		case !more:
			return false
		case err != nil:
			more = s.fail(err)
		case st.Dev_major == s.own.Dev_major && st.Dev_minor == s.own.Dev_minor:
			more = s.yield(Use{st.Ino, path, kind}, nil)
		}
	}
	return more
}

// mounted yields what is mounted where a process is.
func (s *search) mounted(process string) (more bool) {
	space, err := os.Readlink(process + "/ns/mnt")
	if err != nil || s.mounts[space] {
		return s.fail(err)
	}
	s.mounts[space] = true
	file, err := os.Open(process + "/mountinfo")
	if err != nil {
		return s.fail(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		const root, point = 3, 4
		words := strings.Fields(lines.Text())
		var inode uint64
		if len(words) <= point {
			continue
		}
		if n, _ := fmt.Sscanf(words[root], "net:[%d]", &inode); n == 1 {
			at, err := strconv.Unquote(`"` + words[point] + `"`) // a blank is \040 there
			if err != nil {
				at = words[point]
			}
			if !s.yield(Use{inode, process + "/root" + at, ByMount}, nil) {
				return false
			}
		}
	}
	return s.fail(lines.Err())
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

// OpenAs is Open for the namespace of an identity. The error matches ErrNotExist where nothing, something else or
// another namespace is at the path.
func OpenAs(path string, id Identity) (*NS, error) {
	n, err := Open(path)
	if errors.Is(err, ErrNotNetns) {
		return nil, (&NS{path: path}).wrap(ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	now, err := n.Identity()
	if err == nil && !now.Is(id) {
		err = n.wrap(ErrNotExist)
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Finder opens namespaces that may have lost their paths. It looks at all processes once, when it has to.
type Finder struct {
	Also    string // another path that is tried: CNI_NETNS
	uses    []Use
	hasSeen bool
}

// Open is OpenAs, and where that finds nothing it opens the namespace wherever a process uses it. Without a cookie
// nothing but the path tells it from a later one with its inode.
func (f *Finder) Open(path string, id Identity) (n *NS, err error) {
	for _, path := range []string{path, f.Also} {
		if n, err = OpenAs(path, id); !errors.Is(err, ErrNotExist) {
			return n, err
		}
	}
	if id.Cookie == 0 {
		return nil, err
	}
	if !f.hasSeen {
		f.hasSeen = true
		for use, err := range Uses("/proc", true) {
			if err == nil {
				f.uses = append(f.uses, use)
			}
		}
	}
	for _, use := range f.uses {
		if use.Inode != id.Inode {
			continue
		}
		if n, err := OpenAs(use.Path, id); !errors.Is(err, ErrNotExist) {
			return n, err
		}
	}
	return nil, err
}
