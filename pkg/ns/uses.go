package ns

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Use is one way in which a network namespace is used: a thread is in it, a process has it open, or it is mounted where
// a process sees it.
type Use struct {
	Inode   uint64
	Path    string // leads to it, while it is used so
	IsMount bool
}

// Uses yields the uses of all network namespaces by the processes of a proc file system, those by descriptors if they
// are wanted. An error says that something could not be looked at: a namespace of which no use is found may be used
// nevertheless. A namespace that only a socket keeps is not found.
func Uses(proc string, descriptors bool) iter.Seq2[Use, error] {
	return func(yield func(Use, error) bool) {
		s := search{proc: proc, descriptors: descriptors, yield: yield}
		s.run()
	}
}

// search is one look at all tasks: threads, of which a process's leader is one.
type search struct {
	proc        string
	descriptors bool
	yield       func(Use, error) bool
	isOver      bool // yield wants no more

	own    unix.Statx_t       // of our namespace: all are of one device
	tasks  map[string]bool    // those that were looked at
	mounts map[[2]string]bool // the mount namespaces that were read, as they are seen from a root
	held   map[string]string  // mount namespaces, with paths to them
	missed error              // why a namespace may have been missed
}

// again is how often something that changes is looked at until it stays as it is.
const again = 16

// run looks until no task is new: one that hands its namespace on and ends does so to a new one.
func (s *search) run() {
	s.tasks, s.mounts, s.held = map[string]bool{}, map[[2]string]bool{}, map[string]string{}
	s.fail(statx("/proc/self/ns/net", &s.own))
	for range again {
		before := len(s.tasks)
		s.fail(s.each(s.proc, func(process string) {
			s.fail(s.each(filepath.Join(process, "task"), func(task string) { s.look(process, task) }))
		}))
		if s.isOver || len(s.tasks) == before {
			return
		}
	}
	s.miss("processes come faster than they can be looked at")
}

// each calls do for each entry that has a number for its name. The directory stays open, since it may be an entry.
func (s *search) each(path string, do func(path string)) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, name := range names {
		if _, err := strconv.Atoi(name); err == nil && !s.isOver {
			do(path + "/" + name)
		}
	}
	return err
}

// fail yields an error, unless it says that a process has ended meanwhile: its mountinfo says EINVAL then.
func (s *search) fail(err error) {
	if err != nil && !isGone(err) && !errors.Is(err, unix.EINVAL) && !s.isOver {
		s.isOver = !s.yield(Use{}, err)
	}
}

func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

func (s *search) miss(format string, args ...any) {
	s.missed = cmp.Or(s.missed, fmt.Errorf(format, args...))
}

// look looks at one task. Threads have mounts and descriptors in common with the leader, as a rule.
func (s *search) look(process, task string) {
	if s.tasks[task] {
		return
	}
	s.tasks[task] = true
	var st unix.Statx_t
	if err := statx(task+"/ns/net", &st); err != nil {
		s.fail(err) // and so would all else
		return
	}
	s.use(Use{st.Ino, task + "/ns/net", false})
	if !s.shares(process, task, kcmpFS) {
		s.mounted(task)
	}
	if s.descriptors && !s.shares(process, task, kcmpFiles) {
		s.open(task)
	}
}

func (s *search) use(u Use) {
	if !s.isOver {
		s.isOver = !s.yield(u, nil)
	}
}

// What kcmp(2) compares.
const (
	kcmpFiles = 2
	kcmpFS    = 3
)

// shares reports whether a thread, and not the leader, has for certain what the leader has: its root and, by that, its
// mount namespace, or its descriptors. A leader that ended before its threads has nothing.
func (s *search) shares(process, task string, kind uintptr) bool {
	leader, _ := strconv.Atoi(filepath.Base(process))
	thread, _ := strconv.Atoi(filepath.Base(task))
	if leader == thread || s.proc != "/proc" { // another proc file system may count others
		return false
	}
	differs, _, err := unix.Syscall6(unix.SYS_KCMP, uintptr(leader), uintptr(thread), kind, 0, 0, 0)
	return differs == 0 && err == 0
}

// open yields the namespaces that a task has open. It lists again when a descriptor was closed meanwhile, whose copy
// may have a number that was passed.
func (s *search) open(task string) {
	for range again {
		isWhole := true
		s.fail(s.each(task+"/fd", func(path string) {
			err := s.descriptor(path)
			isWhole = isWhole && (err == nil || !isGone(err))
			s.fail(err)
		}))
		if isWhole || s.isOver {
			return
		}
	}
	s.miss("the descriptors of %s change faster than they can be looked at", task)
}

// descriptor looks at one. The text of its link would not do: it is the path of a mount for some.
func (s *search) descriptor(path string) error {
	var st unix.Statx_t
	if err := statx(path, &st); err != nil {
		return err
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFSOCK:
		return s.underWay(path)
	case st.Dev_major != s.own.Dev_major || st.Dev_minor != s.own.Dev_minor:
		return nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	switch kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); kind {
	case unix.CLONE_NEWNET:
		s.use(Use{st.Ino, path, false})
	case unix.CLONE_NEWNS:
		s.held[fmt.Sprintf("mnt:[%d]", st.Ino)] = path
	default:
		return err
	}
	return nil
}

// underWay misses what descriptors in messages that wait in a socket may lead to.
func (s *search) underWay(path string) error {
	info, err := os.ReadFile(filepath.Join(filepath.Dir(path), "..", "fdinfo", filepath.Base(path)))
	if _, count, ok := strings.Cut(string(info), "scm_fds: "); ok && !strings.HasPrefix(count, "0\n") {
		s.miss("%s: descriptors wait in a socket", path)
	}
	return err
}

// mounted yields what is mounted where a task is, below its root.
func (s *search) mounted(task string) {
	space, err := os.Readlink(task + "/ns/mnt")
	root, rootErr := os.Readlink(task + "/root")
	if err = cmp.Or(err, rootErr); err != nil || s.mounts[[2]string{space, root}] {
		s.fail(err)
		return
	}
	info, err := os.ReadFile(task + "/mountinfo")
	if err != nil {
		s.fail(err)
		return
	}
	s.mounts[[2]string{space, root}], s.held[space] = true, task+"/ns/mnt"
	for line := range strings.Lines(string(info)) {
		const root, point = 3, 4
		words := strings.Fields(line)
		var inode uint64
		if len(words) <= point || !strings.Contains(words[root], ":[") {
			continue
		}
		at, err := strconv.Unquote(`"` + words[point] + `"`) // a blank is \040 there
		if err != nil {
			at = words[point]
		}
		if strings.HasPrefix(words[root], "mnt:[") {
			s.held[words[root]] = task + "/root" + at
		}
		if n, _ := fmt.Sscanf(words[root], "net:[%d]", &inode); n == 1 {
			s.use(Use{inode, task + "/root" + at, true})
		}
	}
}

// hidden says why a namespace may be used though nothing was found, where that is no error of a look. It enters the
// mount namespaces that no process is in, as snapd keeps them, or only one that was put into a directory (chroot).
func (s *search) hidden() error {
	for isNew := true; isNew; {
		isNew = false
		for space, path := range s.held {
			if s.mounts[[2]string{space, "/"}] {
				continue
			}
			err := within(path, s.mounted)
			if isNew = s.mounts[[2]string{space, "/"}]; !isNew {
				s.miss("it is not seen what is mounted in %s: %w", space, cmp.Or(err, fs.ErrNotExist))
				return s.missed
			}
		}
	}
	return s.missed
}

// within has look look at a thread that is in a mount namespace, from outside: there may be no /proc inside.
func within(path string, look func(task string)) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	task, entered, seen := "", make(chan error), make(chan bool)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		task = fmt.Sprintf("/proc/self/task/%d", unix.Gettid())
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNS)
		}
		entered <- err
		<-seen
	}()
	if err = <-entered; err == nil {
		look(task)
	}
	close(seen)
	return err
}

// statx asks no file server, and for nothing that one knows: it says who may ask.
func statx(path string, st *unix.Statx_t) error {
	err := retry(func() error { return unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, 0, st) })
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

// HasProcess reports whether a thread that /proc shows is in the namespace.
func (n *NS) HasProcess() bool {
	var st unix.Stat_t
	if err := unix.Fstat(n.FD(), &st); err != nil {
		return false
	}
	for use, err := range Uses("/proc", false) {
		if err == nil && use.Inode == st.Ino && !use.IsMount {
			return true
		}
	}
	return false
}

// Finder opens namespaces that may have lost their paths. It looks at all processes once, when it has to.
type Finder struct {
	Also    string // another path that is tried: CNI_NETNS
	uses    []Use
	unseen  error // the first one
	hasSeen bool
}

// Open is OpenAs, and where that finds nothing it opens the namespace wherever it is: by its cookie (Linux 6.18), or
// wherever a process uses it. The error matches ErrNotExist only where all of them could be looked at. Without a cookie
// nothing but the path tells a namespace from a later one with its inode.
func (f *Finder) Open(path string, id Identity) (n *NS, err error) {
	for _, path := range []string{path, f.Also} {
		if n, err = OpenAs(path, id); !errors.Is(err, ErrNotExist) {
			return n, err
		}
	}
	if id.Cookie == 0 {
		return nil, err
	}
	if isGone, handleErr := byHandle(); handleErr == nil {
		if fd, err := openHandle(id); err == nil {
			return &NS{path: path, h: netns.NsHandle(fd)}, nil
		}
		if isGone(id) {
			return nil, err
		}
	}
	if n, seekErr := f.search(id); n != nil || seekErr != nil {
		return n, seekErr
	}
	return nil, err
}

// search looks where processes use a namespace. The error says why one that is not found may be there.
func (f *Finder) search(id Identity) (*NS, error) {
	if !f.hasSeen {
		f.hasSeen = true
		for use, err := range Uses("/proc", true) {
			if err == nil {
				f.uses = append(f.uses, use)
			}
			f.unseen = cmp.Or(f.unseen, err)
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
	return nil, f.unseen
}
