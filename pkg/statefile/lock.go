package statefile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrBusy is in the error of a lock that somebody else held until the deadline. That names the holder.
var ErrBusy = errors.New("held by")

// Lock is an exclusive flock(2) that this process holds.
type Lock struct{ fd int }

// Unlock gives the lock back. The lock file stays.
func (l *Lock) Unlock() error {
	// Closing alone is not enough while a child between fork and exec has a copy.
	return errors.Join(flock(l.fd, unix.LOCK_UN), unix.Close(l.fd))
}

// LockFile is Dir.LockFile for a path, whose directory it makes where there is none.
func LockFile(ctx context.Context, path string, perm fs.FileMode) (*Lock, error) {
	dir, err := Open(filepath.Dir(path), 0o755)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.LockFile(ctx, filepath.Base(path), perm, 0)
}

// LockFile locks the file name, which it creates with perm when it is absent. It waits for at most wait (0: 30
// seconds), and not beyond ctx. When that is over the error matches ErrBusy; when ctx is cancelled it wraps ctx.Err().
func (d *Dir) LockFile(ctx context.Context, name string, perm fs.FileMode, wait time.Duration) (*Lock, error) {
	fd, err := d.open(name, unix.O_RDONLY|unix.O_CREAT|unix.O_NONBLOCK, perm)
	if err != nil {
		return nil, d.fail("lock", name, err)
	}
	return lock(ctx, fd, d.join(name), cmp.Or(wait, defaultWait))
}

// defaultWait is how long a call waits for its turn where nothing else is said.
const defaultWait = 30 * time.Second

// LockFD is LockFile for the open file fd, which remains the caller's. Path is for messages, and to find the holder.
func LockFD(ctx context.Context, fd int, path string) (*Lock, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	return lock(ctx, own, path, defaultWait)
}

// lock locks the open file fd, or closes it. It waits in a goroutine, which owns fd once ctx has ended: a blocked flock
// cannot be called off.
func lock(ctx context.Context, fd int, path string, wait time.Duration) (*Lock, error) {
	err := flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil { // its time is over: the caller may have gone on without it, as that of an IPAM plugin in process
		err = ctx.Err()
	}
	if err == unix.EWOULDBLOCK {
		ctx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		locked := make(chan error)
		go func() {
			err := flock(fd, unix.LOCK_EX)
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
				return nil, busy(path)
			}
			return nil, &fs.PathError{Op: "lock", Path: path, Err: ctx.Err()}
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	return &Lock{fd}, nil
}

func flock(fd, how int) error {
	_, err := retry(func() (int, error) { return 0, unix.Flock(fd, how) })
	return err
}

// busy names the lock's holder, by /proc/locks, which lacks those of other PID namespaces.
func busy(path string) error {
	holder := "a process that cannot be seen from here"
	var st unix.Stat_t
	if unix.Lstat(path, &st) == nil {
		locks, _ := os.ReadFile("/proc/locks")
		if pid := holderOf(string(locks), st.Ino, uint64(st.Dev)); pid != 0 {
			program, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			holder = fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(program)))
		}
	}
	return fmt.Errorf("lock %s: %w %s", path, ErrBusy, holder)
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
