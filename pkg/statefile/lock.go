package statefile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrBusy means that another process held a lock until the deadline. The error that wraps it names the process.
var ErrBusy = errors.New("held by")

// Lock is an exclusive lock that this process holds, on a whole file (flock) or on one byte of it (fcntl).
type Lock struct {
	fd     int
	target target
}

// target is a file or a byte that can be locked. set takes the arguments of flock. busy returns the error for a lock
// that another process holds.
type target struct {
	set  func(fd, how int) error
	busy func() error
}

// Unlock releases the lock. The lock file remains.
func (l *Lock) Unlock() error {
	// Closing fd would not release the lock while a child process between fork and exec has a copy of fd.
	return errors.Join(l.target.set(l.fd, unix.LOCK_UN), unix.Close(l.fd))
}

// LockFile is Dir.LockFile for a path. It creates the directory if necessary.
func LockFile(ctx context.Context, path string, perm fs.FileMode) (*Lock, error) {
	dir, err := Open(filepath.Dir(path), 0o755)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.LockFile(ctx, filepath.Base(path), perm, DefaultWait)
}

// LockFile locks a file, which it creates with perm if necessary. It waits for the lock until wait has passed or ctx
// ends. After wait or the deadline of ctx, the error matches ErrBusy; if ctx was canceled, it wraps ctx.Err().
func (d *Dir) LockFile(ctx context.Context, name string, perm fs.FileMode, wait time.Duration) (*Lock, error) {
	fd, err := d.openFile(name, unix.O_RDONLY|unix.O_CREAT|unix.O_NONBLOCK, perm)
	if err != nil {
		return nil, d.pathError("lock", name, err)
	}
	return wholeFile(d.join(name)).lock(ctx, fd, d.join(name), wait)
}

// LockByte locks the byte at an offset of the file at path, which it creates if necessary. Many objects can share the
// file, each with its own offset, so that no lock file remains for each object. LockByte waits like LockFile, and its
// errors name the object.
func LockByte(ctx context.Context, path string, offset uint64, object string) (*Lock, error) {
	dir, err := Open(filepath.Dir(path), 0o755)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := dir.openFile(filepath.Base(path), unix.O_RDWR|unix.O_CREAT|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, dir.pathError("lock", filepath.Base(path), err)
	}
	t := target{
		set: func(fd, how int) error { return lockByte(fd, how, offset) },
		busy: func() error {
			return fmt.Errorf("lock %s: %w %s", object, ErrBusy, processName(byteHolder(path, offset, searchTime)))
		},
	}
	return t.lock(ctx, fd, path, DefaultWait)
}

// lockByte is flock for one byte. As with flock, the lock belongs to the open file, not to the process.
func lockByte(fd, how int, offset uint64) error {
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(offset), Len: 1}
	if how == unix.LOCK_UN {
		l.Type = unix.F_UNLCK
	}
	command := unix.F_OFD_SETLKW
	if how&unix.LOCK_NB != 0 {
		command = unix.F_OFD_SETLK
	}
	_, err := retry(func() (int, error) { return 0, unix.FcntlFlock(uintptr(fd), command, &l) })
	return err
}

func wholeFile(path string) target {
	return target{flock, func() error {
		return fmt.Errorf("lock %s: %w %s", path, ErrBusy, processName(fileHolder(path)))
	}}
}

const (
	searchTime     = time.Second // for the holder of a byte's lock
	maxDescriptors = 1024        // of a process that may be the holder; containers can have many more
)

// DefaultWait is the usual time limit for waiting for a lock.
const DefaultWait = 30 * time.Second

// LockFD is LockFile for the open file fd, which the caller must close. path is for errors.
func LockFD(ctx context.Context, fd int, path string) (*Lock, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	return wholeFile(path).lock(ctx, dup, path, DefaultWait)
}

// lock locks the open file fd, or closes it after an error. It waits in a goroutine, because a blocked call cannot be
// canceled. When ctx ends, the goroutine keeps fd, and closes it when the call returns.
func (t target) lock(ctx context.Context, fd int, path string, wait time.Duration) (*Lock, error) {
	err := t.set(fd, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		// If ctx has ended, the caller may have abandoned this call (as package ipam does in-process), so it must not
		// keep the lock.
		err = ctx.Err()
	}
	if err == unix.EWOULDBLOCK {
		ctx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		result := make(chan error)
		go func() {
			err := t.set(fd, unix.LOCK_EX)
			select {
			case result <- err:
			case <-ctx.Done():
				unix.Close(fd)
			}
		}()
		select {
		case err = <-result:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, t.busy()
			}
			return nil, &fs.PathError{Op: "lock", Path: path, Err: ctx.Err()}
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	return &Lock{fd, t}, nil
}

func flock(fd, how int) error {
	_, err := retry(func() (int, error) { return 0, unix.Flock(fd, how) })
	return err
}

// processName returns the ID and the name of a process for messages. ID 0 means an unknown process.
func processName(pid int) string {
	if pid == 0 {
		return "a process that was not found"
	}
	program, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(program)))
}

// byteHolder returns the ID of the process that holds the lock of a byte, or 0 if that process is not found within
// limit. It searches the descriptors of all processes, because /proc/locks does not name the holder of such a lock.
func byteHolder(path string, offset uint64, limit time.Duration) (pid int) {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return 0
	}
	// lock: 1: OFDLCK  ADVISORY  WRITE -1 00:19:1234 4026532000 4026532000
	lock := regexp.MustCompile(fmt.Sprintf(`(?m)^lock:.* OFDLCK .*:%d %d %d$`, st.Ino, offset, offset))
	end := time.Now().Add(limit)
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		dir, err := os.Open(process + "/fd")
		if err != nil {
			continue
		}
		names, _ := dir.Readdirnames(maxDescriptors)
		_ = dir.Close()
		for _, name := range names {
			if time.Now().After(end) {
				return 0
			}
			if file, _ := os.Readlink(process + "/fd/" + name); filepath.Base(file) != filepath.Base(path) {
				continue // reading fdinfo would cost more, and for some files megabytes
			}
			if text, _ := os.ReadFile(process + "/fdinfo/" + name); lock.Match(text) {
				pid, _ = strconv.Atoi(filepath.Base(process))
				return pid
			}
		}
	}
	return 0
}

// fileHolder returns the ID of the process that holds the flock of a file, or 0 if that process is not visible:
// /proc/locks does not show processes of other PID namespaces.
func fileHolder(path string) (pid int) {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return 0
	}
	locks, _ := os.ReadFile("/proc/locks")
	return findHolder(string(locks), st.Ino, uint64(st.Dev))
}

// findHolder returns the holder of the flock of an inode from the text of /proc/locks. It prefers a line with the same
// device, and accepts one with another, because for btrfs and overlayfs the text has another device than stat.
func findHolder(locks string, ino, dev uint64) (found int) {
	device := fmt.Sprintf("%02x:%02x", unix.Major(dev), unix.Minor(dev))
	for line := range strings.Lines(locks) {
		// 1: FLOCK  ADVISORY  WRITE 4711 08:02:1234 0 EOF
		// A waiting process has "->" after the number, so its line has FLOCK in another field.
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" {
			continue
		}
		lineDevice, isInode := strings.CutSuffix(f[5], ":"+strconv.FormatUint(ino, 10))
		pid, err := strconv.Atoi(f[4])
		if !isInode || err != nil || pid < 0 {
			continue
		}
		if lineDevice == device {
			return pid
		}
		found = pid
	}
	return found
}
