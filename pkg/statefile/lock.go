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

// ErrBusy is in the error of a lock that somebody else held until the deadline. That names the holder.
var ErrBusy = errors.New("held by")

// Lock is an exclusive lock that this process holds: a flock(2), or a lock of one byte of a file.
type Lock struct {
	fd int
	kind
}

// kind is a kind of lock: set locks and unlocks as flock does, and busy returns the error of a held lock, which names
// the holder.
type kind struct {
	set  func(fd, how int) error
	busy func() error
}

// Unlock releases the lock. The lock file stays.
func (l *Lock) Unlock() error {
	// Closing alone is not enough while a child between fork and exec has a copy.
	return errors.Join(l.set(l.fd, unix.LOCK_UN), unix.Close(l.fd))
}

// LockFile is Dir.LockFile for a path, whose directory it makes where there is none.
func LockFile(ctx context.Context, path string, perm fs.FileMode) (*Lock, error) {
	dir, err := Open(filepath.Dir(path), 0o755)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.LockFile(ctx, filepath.Base(path), perm, DefaultWait)
}

// LockFile locks the file name, which it creates with perm when it is absent. It waits for at most wait (0: 30
// seconds), and not beyond ctx. When that is over the error matches ErrBusy; when ctx is cancelled it wraps ctx.Err().
func (d *Dir) LockFile(ctx context.Context, name string, perm fs.FileMode, wait time.Duration) (*Lock, error) {
	fd, err := d.open(name, unix.O_RDONLY|unix.O_CREAT|unix.O_NONBLOCK, perm)
	if err != nil {
		return nil, d.fail("lock", name, err)
	}
	return whole(d.join(name)).lock(ctx, fd, d.join(name), wait)
}

// LockByte locks the byte at an offset of the file at path, which it creates if it is absent. Many things share the
// file, each with its own offset, so that a lock does not leave a file of its own. LockByte waits as LockFile does. The
// error of a held lock names the thing.
func LockByte(ctx context.Context, path string, at uint64, thing string) (*Lock, error) {
	dir, err := Open(filepath.Dir(path), 0o755)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	fd, err := dir.open(filepath.Base(path), unix.O_RDWR|unix.O_CREAT|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, dir.fail("lock", filepath.Base(path), err)
	}
	k := kind{
		set: func(fd, how int) error { return lockByte(fd, how, at) },
		busy: func() error {
			return fmt.Errorf("lock %s: %w %s", thing, ErrBusy, named(holderOfByte(path, at)))
		},
	}
	return k.lock(ctx, fd, path, DefaultWait)
}

// lockByte does for one byte what flock does for a file. Like the lock of flock, this lock belongs to the open file.
func lockByte(fd, how int, at uint64) error {
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(at), Len: 1}
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

// whole returns the kind of a lock of a whole file by flock.
func whole(path string) kind { return kind{flock, func() error { return busy(path) }} }

// DefaultWait is how long a call waits for its turn where nothing else is said.
const DefaultWait = 30 * time.Second

// LockFD is LockFile for the open file fd, which remains the caller's. Path is for messages, and to find the holder.
func LockFD(ctx context.Context, fd int, path string) (*Lock, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	return whole(path).lock(ctx, own, path, DefaultWait)
}

// lock locks the open file fd, or closes it. It waits in a goroutine, because a blocked call cannot be canceled. When
// ctx ends, the goroutine owns fd.
func (k kind) lock(ctx context.Context, fd int, path string, wait time.Duration) (*Lock, error) {
	err := k.set(fd, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil { // its time is over: the caller may have gone on without it, as that of an IPAM plugin in process
		err = ctx.Err()
	}
	if err == unix.EWOULDBLOCK {
		ctx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		locked := make(chan error)
		go func() {
			err := k.set(fd, unix.LOCK_EX)
			select {
			case locked <- err:
			case <-ctx.Done():
				unix.Close(fd)
			}
		}()
		select {
		case err = <-locked:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, k.busy()
			}
			return nil, &fs.PathError{Op: "lock", Path: path, Err: ctx.Err()}
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	return &Lock{fd, k}, nil
}

func flock(fd, how int) error {
	_, err := retry(func() (int, error) { return 0, unix.Flock(fd, how) })
	return err
}

// busy names the lock's holder, by /proc/locks, which lacks those of other PID namespaces.
func busy(path string) error {
	pid := 0
	var st unix.Stat_t
	if unix.Lstat(path, &st) == nil {
		locks, _ := os.ReadFile("/proc/locks")
		pid = holderOf(string(locks), st.Ino, uint64(st.Dev))
	}
	return fmt.Errorf("lock %s: %w %s", path, ErrBusy, named(pid))
}

// named returns the holder of a lock in words. A pid of 0 means an unknown process.
func named(pid int) string {
	if pid == 0 {
		return "a process that cannot be seen from here"
	}
	program, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(program)))
}

// holderOfByte returns the ID of the process that holds the lock of a byte; 0 if it cannot be seen. It searches the
// open files of processes, because /proc/locks does not name the holder of such a lock.
func holderOfByte(path string, at uint64) (pid int) {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return 0
	}
	// lock: 1: OFDLCK  ADVISORY  WRITE -1 00:19:1234 4026532000 4026532000
	lock := regexp.MustCompile(fmt.Sprintf(`(?m)^lock:.* OFDLCK .*:%d %d %d$`, st.Ino, at, at))
	files, _ := filepath.Glob("/proc/[0-9]*/fdinfo/*")
	for _, file := range files {
		if text, _ := os.ReadFile(file); lock.Match(text) {
			pid, _ = strconv.Atoi(strings.Split(file, "/")[2])
			return pid
		}
	}
	return 0
}

// holderOf finds the holder of the flock on an inode in the text of /proc/locks. The device is a preference only: btrfs
// and overlayfs show another one than stat does.
func holderOf(locks string, ino, dev uint64) (found int) {
	device := fmt.Sprintf("%02x:%02x", unix.Major(dev), unix.Minor(dev))
	for line := range strings.Lines(locks) {
		// 1: FLOCK  ADVISORY  WRITE 4711 08:02:1234 0 EOF
		// A waiter has "->" after the number and is skipped.
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" {
			continue
		}
		on, isInode := strings.CutSuffix(f[5], ":"+strconv.FormatUint(ino, 10))
		pid, err := strconv.Atoi(f[4])
		if !isInode || err != nil || pid < 0 {
			continue
		}
		if on == device {
			return pid
		}
		found = pid
	}
	return found
}
