package statefile

import (
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
	Program string // the holder's program name, "" when it cannot be seen
}

// Error names the lock file and, as far as it is known, its holder.
func (b *Busy) Error() string {
	switch {
	case b.PID == 0:
		return fmt.Sprintf("lock %s: held by a process that cannot be seen from here", b.Path)
	case b.Program == "":
		return fmt.Sprintf("lock %s: held by process %d", b.Path, b.PID)
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
	err := ignoreEINTR(func() error { return unix.Flock(h.fd, unix.LOCK_UN) })
	return errors.Join(err, unix.Close(h.fd))
}

// Lock takes an exclusive flock(2) on the file at path, which it creates with
// perm when it is absent, and waits for it until ctx ends. At ctx's deadline
// the error is a *Busy; at its cancellation it wraps ctx.Err().
func Lock(ctx context.Context, path string, perm fs.FileMode) (*Held, error) {
	return lockAt(ctx, lockFile{dir: unix.AT_FDCWD, name: path, path: path}, perm)
}

// Lock is the function Lock for the entry name of the directory, with a
// deadline of its own: it waits at most that long. Passing it here and not in
// ctx keeps the timer, whose first use costs a process a thread, for those
// that have to wait.
func (d *Dir) Lock(ctx context.Context, name string, perm fs.FileMode, wait time.Duration) (*Held, error) {
	if err := checkName("lock", d.path, name); err != nil {
		return nil, err
	}
	return lockAt(ctx, lockFile{dir: d.fd, name: name, path: d.join(name), wait: wait}, perm)
}

type lockFile struct {
	dir  int
	name string
	path string        // for messages
	wait time.Duration // 0 = as long as the context lasts
}

func lockAt(ctx context.Context, f lockFile, perm fs.FileMode) (*Held, error) {
	for {
		fd, err := openat(f.dir, f.name, unix.O_RDONLY|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK, perm)
		if err != nil {
			return nil, &fs.PathError{Op: "lock", Path: f.path, Err: err}
		}
		if err := flock(ctx, fd, f); err != nil {
			return nil, err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			unix.Close(fd)
			return nil, &fs.PathError{Op: "lock", Path: f.path, Err: err}
		}
		if st.Nlink > 0 {
			return &Held{fd}, nil
		}
		// The file was removed while we waited: whoever comes next locks
		// another one, so ours keeps nobody out.
		unix.Close(fd)
	}
}

// flock locks fd or closes it.
func flock(ctx context.Context, fd int, f lockFile) error {
	err := ignoreEINTR(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err == nil {
		return nil
	}
	if err != unix.EWOULDBLOCK {
		unix.Close(fd)
		return &fs.PathError{Op: "lock", Path: f.path, Err: err}
	}
	if f.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.wait)
		defer cancel()
	}
	return waitFlock(ctx, fd, f.path)
}

// waitFlock waits for the lock in a goroutine that owns fd once ctx ended: a
// blocked flock cannot be called off.
func waitFlock(ctx context.Context, fd int, path string) error {
	got := make(chan error)
	go func() {
		err := ignoreEINTR(func() error { return unix.Flock(fd, unix.LOCK_EX) })
		select {
		case got <- err:
		case <-ctx.Done():
			unix.Close(fd)
		}
	}()
	select {
	case err := <-got:
		if err != nil {
			unix.Close(fd)
			return &fs.PathError{Op: "lock", Path: path, Err: err}
		}
		return nil
	case <-ctx.Done():
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &fs.PathError{Op: "lock", Path: path, Err: ctx.Err()}
	}
	busy := &Busy{Path: path}
	busy.PID, busy.Program = holder(path)
	return busy
}

// holder looks the lock's owner up in /proc/locks. Zero values mean that the
// kernel shows none to us (another PID namespace, no /proc).
func holder(path string) (pid int, program string) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, ""
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, ""
	}
	pid = holderOf(string(locks), st.Ino, uint64(st.Dev))
	if pid <= 0 {
		return 0, ""
	}
	comm, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	if err != nil {
		return pid, ""
	}
	return pid, strings.TrimSpace(string(comm))
}

// holderOf finds the owner of the flock on an inode in the text of
// /proc/locks. The device is a preference only: btrfs and overlayfs show
// another one there than stat does.
func holderOf(locks string, ino, dev uint64) int {
	device := fmt.Sprintf("%02x:%02x", unix.Major(dev), unix.Minor(dev))
	number := strconv.FormatUint(ino, 10)
	found := 0
	for line := range strings.Lines(locks) {
		// 1: FLOCK  ADVISORY  WRITE 4711 08:02:1234 0 EOF
		// A waiter has "->" after the number and is skipped.
		f := strings.Fields(line)
		if len(f) < 6 || f[1] != "FLOCK" {
			continue
		}
		at := strings.LastIndexByte(f[5], ':')
		if at < 0 || f[5][at+1:] != number {
			continue
		}
		pid, err := strconv.Atoi(f[4])
		if err != nil {
			continue
		}
		if f[5][:at] == device {
			return pid
		}
		found = pid
	}
	return found
}
