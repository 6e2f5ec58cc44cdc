package tool

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// watched is all that changes which file has a name, or what is in it.
const watched = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_CLOSE_WRITE |
	unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF

// loop installs, and once more after each change in the directory, until the process is told to end. Our own changes
// are seen too: the installation after them finds all in place and changes nothing.
func loop(ctx context.Context, dir string, once func(context.Context) error, say io.Writer) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	ctx, done := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer done()
	events := os.NewFile(uintptr(fd), "inotify")
	stop := context.AfterFunc(ctx, func() { _ = events.Close() })
	defer stop()
	buffer := make([]byte, 64<<10)
	for first := true; ; first = false {
		err := os.MkdirAll(dir, 0o755)
		if err == nil { // each time: the directory may be another one by now
			_, err = unix.InotifyAddWatch(fd, dir, watched|unix.IN_ONLYDIR)
		}
		if err == nil {
			err = once(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			fmt.Fprintf(say, "%s: %v; tried again after the next change\n", dir, err)
		}
		if _, err := events.Read(buffer); err != nil && ctx.Err() == nil {
			return fmt.Errorf("inotify: %w", err)
		} else if ctx.Err() != nil {
			return nil
		}
	}
}
