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
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Use is a reason for which a network namespace exists: a thread is in it, a process has a descriptor of it, or it is
// mounted in the mount namespace of a process.
type Use struct {
	Inode   uint64
	Path    string // of the namespace, as long as the use lasts
	IsMount bool
}

// Uses yields the uses of all network namespaces by the processes of a proc file system. Uses by descriptors are
// searched only if descriptors is true. An error means that something could not be read, so that a namespace without a
// use may still be in use. After 20 seconds, the search ends with an error. A namespace that only a socket keeps is not
// found.
func Uses(proc string, descriptors bool) iter.Seq2[Use, error] {
	return func(yield func(Use, error) bool) {
		s := search{proc: proc, descriptors: descriptors, yield: yield}
		s.run()
	}
}

// OpenAs opens the namespace at path if it has the identity. Otherwise, the error matches ErrNotExist.
func OpenAs(path string, id Identity) (*NS, error) {
	n, err := Open(path)
	if errors.Is(err, ErrNotNetns) {
		return nil, (&NS{path: path}).wrap(ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	actual, err := n.Identity()
	if err == nil && !actual.Is(id) {
		err = n.wrap(ErrNotExist)
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// HasProcess reports whether a thread that is visible in /proc is in the namespace. It returns true if there are too
// many threads to examine.
func (n *NS) HasProcess() bool { return n.hasProcess(Uses("/proc", false)) }

func (n *NS) hasProcess(uses iter.Seq2[Use, error]) bool {
	var st unix.Stat_t
	if err := unix.Fstat(n.FD(), &st); err != nil {
		return false
	}
	for use, err := range uses {
		if errors.Is(err, unix.ETIMEDOUT) || err == nil && use.Inode == st.Ino && !use.IsMount {
			return true
		}
	}
	return false
}

// Finder opens namespaces that may have lost their paths. It searches all processes at most once, if necessary.
type Finder struct {
	Alternative string // path that is tried second, for example CNI_NETNS
	uses        []Use
	searchErr   error // the first error of the search
	hasSearched bool
}

// Open opens the namespace of an identity: at path, at the alternative path, by its cookie (Linux 6.18), or at a use by
// a process. The error matches ErrNotExist only if every process could be examined. An identity without a cookie is
// opened only at the two paths, because a later namespace can have the same inode.
func (f *Finder) Open(path string, id Identity) (n *NS, err error) {
	for _, path := range []string{path, f.Alternative} {
		if n, err = OpenAs(path, id); !errors.Is(err, ErrNotExist) {
			return n, err
		}
	}
	if id.Cookie == 0 {
		return nil, err
	}
	if isGone, handleErr := kernelTest(); handleErr == nil {
		if fd, err := openHandle(id); err == nil {
			return &NS{path: path, h: netns.NsHandle(fd)}, nil
		}
		if isGone(id) {
			return nil, err
		}
	}
	if n, searchErr := f.search(id); n != nil || searchErr != nil {
		return n, searchErr
	}
	return nil, err
}

// search opens a namespace at a use by a process. Without one, the error is why the search may have missed it, or nil.
func (f *Finder) search(id Identity) (*NS, error) {
	if !f.hasSearched {
		f.hasSearched = true
		for use, err := range Uses("/proc", true) {
			if err == nil {
				f.uses = append(f.uses, use)
			}
			f.searchErr = cmp.Or(f.searchErr, err)
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
	return nil, f.searchErr
}

// search examines all tasks once. A task is a thread; the main thread is the leader of the process.
type search struct {
	proc        string
	descriptors bool
	yield       func(Use, error) bool
	limit       time.Duration // 0 means searchTime
	end         time.Time
	isStopped   bool // yield has returned false, or the time is over

	self     unix.Statx_t       // this process's namespace: all network namespaces are on the same device
	tasks    map[string]bool    // examined tasks
	mounts   map[[2]string]bool // examined pairs of a mount namespace and a root in it
	mountNSs map[string]string  // paths of mount namespaces
	missed   error              // the first reason why the search may have missed a namespace
}

const maxPasses = 16 // limit of passes over something that changes during each pass

// searchTime limits a search, because containers can have many descriptors, and change them all the time.
const searchTime = 20 * time.Second

// run examines tasks until a pass finds no new one. A task that ended during a pass can have passed its namespace
// only to a new task.
func (s *search) run() {
	s.tasks, s.mounts, s.mountNSs = map[string]bool{}, map[[2]string]bool{}, map[string]string{}
	s.end = time.Now().Add(cmp.Or(s.limit, searchTime))
	s.report(statx("/proc/self/ns/net", &s.self))
	for range maxPasses {
		before := len(s.tasks)
		s.report(s.eachNumber(s.proc, func(process string) {
			s.report(s.eachNumber(filepath.Join(process, "task"), func(task string) { s.examine(process, task) }))
		}))
		if s.isStopped || len(s.tasks) == before {
			return
		}
	}
	s.setMissed("processes start faster than they can be examined")
}

// eachNumber calls do for each entry whose name is a number. It keeps the directory open while do runs, because
// the directory's own descriptor can be such an entry.
func (s *search) eachNumber(path string, do func(path string)) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, name := range names {
		if !s.isStopped && time.Now().After(s.end) {
			s.report(s.slow())
			s.isStopped = true
		}
		if _, err := strconv.Atoi(name); err == nil && !s.isStopped {
			do(path + "/" + name)
		}
	}
	return err
}

func (s *search) slow() error {
	return fmt.Errorf("the processes cannot be examined within %s: %w", cmp.Or(s.limit, searchTime), unix.ETIMEDOUT)
}

// report yields an error, unless it means that a process has ended. Reading mountinfo of an ended process is EINVAL.
func (s *search) report(err error) {
	if err != nil && !isGone(err) && !errors.Is(err, unix.EINVAL) && !s.isStopped {
		s.isStopped = !s.yield(Use{}, err)
	}
}

func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// setMissed notes why a namespace may have been missed.
func (s *search) setMissed(format string, args ...any) {
	s.missed = cmp.Or(s.missed, fmt.Errorf(format, args...))
}

// examine yields the uses by one task. Mounts and descriptors that threads share with the leader are examined once.
func (s *search) examine(process, task string) {
	if s.tasks[task] {
		return
	}
	s.tasks[task] = true
	var st unix.Statx_t
	if err := statx(task+"/ns/net", &st); err != nil {
		s.report(err)
		return // the other files would fail in the same way
	}
	s.yieldUse(Use{st.Ino, task + "/ns/net", false})
	if !s.shares(process, task, kcmpFS) {
		s.yieldMounts(task)
	}
	if s.descriptors && !s.shares(process, task, kcmpFiles) {
		s.yieldDescriptors(task)
	}
}

func (s *search) yieldUse(u Use) {
	if !s.isStopped {
		s.isStopped = !s.yield(u, nil)
	}
}

// Types of comparison of kcmp(2).
const (
	kcmpFiles = 2
	kcmpFS    = 3
)

// shares reports whether a thread other than the leader certainly has the leader's root (kcmpFS), and therefore its
// mount namespace, or its descriptors (kcmpFiles). A leader that has ended before its threads has neither.
func (s *search) shares(process, task string, kind uintptr) bool {
	leader, _ := strconv.Atoi(filepath.Base(process))
	thread, _ := strconv.Atoi(filepath.Base(task))
	if leader == thread || s.proc != "/proc" { // the IDs in another proc file system can be of another PID namespace
		return false
	}
	differs, _, err := unix.Syscall6(unix.SYS_KCMP, uintptr(leader), uintptr(thread), kind, 0, 0, 0)
	return differs == 0 && err == 0
}

// yieldDescriptors yields the namespaces of a task's descriptors. If a descriptor is closed during a pass, another pass
// follows, because a copy of the descriptor can have a number that the pass has already left behind.
func (s *search) yieldDescriptors(task string) {
	for range maxPasses {
		isComplete := true
		s.report(s.eachNumber(task+"/fd", func(path string) {
			err := s.yieldDescriptor(path)
			isComplete = isComplete && (err == nil || !isGone(err))
			s.report(err)
		}))
		if isComplete || s.isStopped {
			return
		}
	}
	s.setMissed("the descriptors of %s change faster than they can be examined", task)
}

// yieldDescriptor yields the namespace of a descriptor. It examines the file, because the text of the descriptor's link
// is the path of a mount for some namespaces.
func (s *search) yieldDescriptor(path string) error {
	var st unix.Statx_t
	if err := statx(path, &st); err != nil {
		return err
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFSOCK:
		return s.checkMessages(path)
	case !s.isNS(&st):
		return nil
	}
	fd, err := s.openNS(path, &st)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	switch kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE); kind {
	case unix.CLONE_NEWNET:
		s.yieldUse(Use{st.Ino, path, false})
	case unix.CLONE_NEWNS:
		s.mountNSs[fmt.Sprintf("mnt:[%d]", st.Ino)] = path
	default:
		return err
	}
	return nil
}

// openNS opens the namespace at path and fills in st. If another file has replaced the namespace, the error matches
// fs.ErrNotExist.
func (s *search) openNS(path string, st *unix.Statx_t) (fd int, err error) {
	fd, err = openChecked(path, func(fd int) error {
		const flags = unix.AT_EMPTY_PATH | unix.AT_STATX_DONT_SYNC
		err := retry(func() error { return unix.Statx(fd, "", flags, 0, st) })
		if err == nil && !s.isNS(st) {
			err = fs.ErrNotExist
		}
		return err
	})
	if err != nil {
		err = &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, err
}

// isNS reports whether a file is a namespace of any kind.
func (s *search) isNS(st *unix.Statx_t) bool {
	return st.Dev_major == s.self.Dev_major && st.Dev_minor == s.self.Dev_minor
}

// checkMessages notes that namespaces may have been missed if messages in a socket contain descriptors.
func (s *search) checkMessages(path string) error {
	info, err := os.ReadFile(filepath.Join(filepath.Dir(path), "..", "fdinfo", filepath.Base(path)))
	if _, count, ok := strings.Cut(string(info), "scm_fds: "); ok && !strings.HasPrefix(count, "0\n") {
		s.setMissed("%s: descriptors wait in a socket", path)
	}
	return err
}

// yieldMounts yields the namespaces that are mounted in a task's mount namespace, below its root.
func (s *search) yieldMounts(task string) {
	mountNS, err := os.Readlink(task + "/ns/mnt")
	root, rootErr := os.Readlink(task + "/root")
	if err = cmp.Or(err, rootErr); err != nil || s.mounts[[2]string{mountNS, root}] {
		s.report(err)
		return
	}
	info, err := os.ReadFile(task + "/mountinfo")
	if err != nil {
		s.report(err)
		return
	}
	s.mounts[[2]string{mountNS, root}], s.mountNSs[mountNS] = true, task+"/ns/mnt"
	for line := range strings.Lines(string(info)) {
		const root, point = 3, 4
		words := strings.Fields(line)
		var inode uint64
		if len(words) <= point || !strings.Contains(words[root], ":[") {
			continue
		}
		mountPoint, err := strconv.Unquote(`"` + words[point] + `"`) // the kernel writes a blank as \040
		if err != nil {
			mountPoint = words[point]
		}
		if strings.HasPrefix(words[root], "mnt:[") {
			s.mountNSs[words[root]] = task + "/root" + mountPoint
		}
		if n, _ := fmt.Sscanf(words[root], "net:[%d]", &inode); n == 1 {
			s.yieldUse(Use{inode, task + "/root" + mountPoint, true})
		}
	}
}

// searchHidden examines the mount namespaces whose root no task has shown, by entering them. Either they have no
// process (snapd keeps such namespaces), or only processes with another root (chroot). It returns the reason why the
// whole search may have missed a namespace, or nil.
func (s *search) searchHidden() error {
	for isNew := true; isNew; {
		isNew = false
		for mountNS, path := range s.mountNSs {
			if s.mounts[[2]string{mountNS, "/"}] {
				continue
			}
			if time.Now().After(s.end) {
				return s.slow()
			}
			err := s.yieldMountsOf(path)
			if isNew = s.mounts[[2]string{mountNS, "/"}]; !isNew {
				s.setMissed("the mounts of %s cannot be read: %w", mountNS, cmp.Or(err, fs.ErrNotExist))
				return s.missed
			}
		}
	}
	return s.missed
}

// yieldMountsOf calls yieldMounts with a task that is in the mount namespace at path. yieldMounts itself runs outside,
// because /proc may not be mounted inside.
func (s *search) yieldMountsOf(path string) error {
	fd, err := s.openNS(path, new(unix.Statx_t))
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	task, entered, done := "", make(chan error), make(chan bool)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		task = fmt.Sprintf("/proc/self/task/%d", unix.Gettid())
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNS)
		}
		entered <- err
		<-done
	}()
	if err = <-entered; err == nil {
		s.yieldMounts(task)
	}
	close(done)
	return err
}

// statx requests no field and no synchronization, so that it does not ask the server of a FUSE or network file system,
// which can refuse or block.
func statx(path string, st *unix.Statx_t) error {
	err := retry(func() error { return unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, 0, st) })
	if err != nil {
		return &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	return nil
}
