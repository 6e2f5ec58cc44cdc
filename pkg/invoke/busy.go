package invoke

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// busyTimeout is how long we wait for an installer to finish writing a
// plugin's file.
const busyTimeout = 5 * time.Second

// retryBusy calls run again each time the last writer of file closes it, for
// as long as run says that the file is being written ("text file busy").
func retryBusy(ctx context.Context, file string, run func() error) error {
	err := run()
	if !errors.Is(err, unix.ETXTBSY) {
		return err
	}
	watch, werr := unix.InotifyInit1(unix.IN_CLOEXEC)
	if werr != nil {
		return err
	}
	defer unix.Close(watch)
	if _, werr := unix.InotifyAddWatch(watch, file, unix.IN_CLOSE_WRITE); werr != nil {
		return err
	}
	for end := time.Now().Add(busyTimeout); ctx.Err() == nil; {
		if err = run(); !errors.Is(err, unix.ETXTBSY) {
			return err
		}
		left := time.Until(end)
		if left <= 0 {
			break
		}
		if err := waitReadable(watch, left); err != nil {
			return err
		}
	}
	return cni.Errorf(cni.CodeTryAgain, "plugin file %q: still being written after %s: %w", file, busyTimeout, err)
}

// waitReadable waits for an event of an inotify descriptor and takes it.
func waitReadable(fd int, limit time.Duration) error {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(limit.Milliseconds())+1)
	if errors.Is(err, unix.EINTR) || err == nil && n == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = unix.Read(fd, make([]byte, 4096))
	return err
}
