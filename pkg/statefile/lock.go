package statefile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrBusy says that a lock was held by somebody else until the deadline.
var ErrBusy = errors.New("lock is busy")

// Busy is the error of a lock that did not come free in time. It matches
// ErrBusy.
type Busy struct {
	Path    string // the lock file
	PID     int    // the holder, 0 when it cannot be seen
	Program string // the holder's program name
}

// Error names the lock file and, if it can be seen, its holder.
func (b *Busy) Error() string {
	if b.PID == 0 {
		return fmt.Sprintf("lock %s: held by a process that cannot be seen from here", b.Path)
	}
	return fmt.Sprintf("lock %s: held by process %d (%s)", b.Path, b.PID, b.Program)
}

// Is makes errors.Is(err, ErrBusy) true.
func (b *Busy) Is(target error) bool { return target == ErrBusy }

// Held is a lock that this process holds.
type Held struct{ fd int }

// Unlock gives the lock back. The lock file stays.
func (h *Held) Unlock() error {
	// Closing alone would not do while a child that is between fork and exec
	// still has a copy of the descriptor.
	return errors.Join(flock(h.fd, unix.LOCK_UN), unix.Close(h.fd))
}

const lockFlags = unix.O_RDONLY | unix.O_CREAT | unix.O_NOFOLLOW | unix.O_NONBLOCK

// Lock takes an exclusive flock(2) on the file at path, which it creates with
// perm when it is absent, and waits for it until ctx ends. At ctx's deadline
// the error is a *Busy; at its cancellation it wraps ctx.Err().
func Lock(ctx context.Context, path string, perm fs.FileMode) (*Held, error) {
	fd, err := openat(unix.AT_FDCWD, path, lockFlags, perm)
	return lock(ctx, fd, path, err)
}

// defaultWait is how long a call waits for its turn where nothing else is said.
const defaultWait = 30 * time.Second

// LockFD takes an exclusive flock(2) on the open file fd, which remains the
// caller's, and otherwise does as Lock, but waits for 30 seconds at most.
// Path is for messages, and to find the holder.
func LockFD(ctx context.Context, fd int, path string) (*Held, error) {
	ctx, cancel := context.WithTimeout(ctx, defaultWait)
	defer cancel()
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return lock(ctx, own, path, err)
}

// Lock is the function Lock for the entry name of the directory. It waits at
// most as long as wait says; 0 = 30 seconds.
func (d *Dir) Lock(ctx context.Context, name string, perm fs.FileMode, wait time.Duration) (*Held, error) {
	fd, err := d.open(name, lockFlags, perm)
	if err == nil && flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
		return &Held{fd}, nil // mostly: a timer would wake the runtime's poller
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(wait, defaultWait))
	defer cancel()
	return lock(ctx, fd, d.join(name), err)
}

// lock locks the file that was opened, or closes it. It waits in a goroutine,
// which owns fd once ctx ended: a blocked flock cannot be called off.
func lock(ctx context.Context, fd int, path string, err error) (*Held, error) {
	if err != nil {
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	err = flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if err == unix.EWOULDBLOCK {
		got := make(chan error)
		go func() {
			err := flock(fd, unix.LOCK_EX)
			select {
			case got <- err:
			case <-ctx.Done():
				unix.Close(fd)
			}
		}()
		select {
		case err = <-got:
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
	return &Held{fd}, nil
}

func flock(fd, how int) error { return ignoreEINTR(func() error { return unix.Flock(fd, how) }) }

// busy looks the lock's owner up in /proc/locks. Zero values mean that the
// kernel shows none to us (another PID namespace, no /proc).
func busy(path string) *Busy {
	b := &Busy{Path: path}
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return b
	}
	locks, _ := os.ReadFile("/proc/locks")
	if b.PID = holderOf(string(locks), st.Ino, uint64(st.Dev)); b.PID > 0 {
		comm, _ := os.ReadFile("/proc/" + strconv.Itoa(b.PID) + "/comm")
		b.Program = strings.TrimSpace(string(comm))
	}
	return b
}

// holderOf finds the owner of the flock on an inode in the text of
// /proc/locks. The device is a preference only: btrfs and overlayfs show
// another one there than stat does.
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
