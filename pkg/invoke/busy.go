package invoke

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// busyTimeout is how long we wait for an installer to finish writing a
// plugin's file.
const busyTimeout = 5 * time.Second

// retryBusy calls run again each time the last writer of file closes it, or
// another file takes its place, for as long as run says that the file is being
// written ("text file busy"), at most for limit.
func retryBusy(ctx context.Context, file string, limit time.Duration, run func() error) error {
	err := run()
	if !errors.Is(err, unix.ETXTBSY) {
		return err
	}
	watch, werr := watchFile(file)
	if werr != nil {
		return err
	}
	defer watch.Close()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// A deadline in the past ends a read that waits.
	defer context.AfterFunc(ctx, func() { _ = watch.SetReadDeadline(time.Unix(1, 0)) })()
	for events := make([]byte, 4096); ; {
		// After the watch began: the writer may have closed it before.
		if err = run(); !errors.Is(err, unix.ETXTBSY) {
			return err
		}
		if _, werr := watch.Read(events); werr != nil {
			break
		}
	}
	return cni.Errorf(cni.CodeTryAgain, "plugin file %q: still being written after %s: %w", file, limit, err)
}

// watchFile returns a file that can be read from when a writer of file is done,
// or file is another one.
func watchFile(file string) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	watch := os.NewFile(uintptr(fd), "inotify")
	_, err = unix.InotifyAddWatch(fd, file, unix.IN_CLOSE_WRITE|unix.IN_ATTRIB|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF)
	if err != nil {
		_ = watch.Close()
		return nil, err
	}
	return watch, nil
}
