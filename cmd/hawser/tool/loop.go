package tool

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// watchedEvents are the events after which a name may refer to another file or to changed content.
const watchedEvents = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_CLOSE_WRITE |
	unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF

// interval is the time between checks of the path, because some changes cause no event.
const interval = 5 * time.Second

// loop is an installation that is repeated after changes in its directory.
type loop struct {
	dir         string
	installOnce func(context.Context) error
	isRelevant  func(name string) bool // reports whether a change of the name in dir requires an installation
}

// run installs once, and again after each change in the directory that concerns the installation, until a signal ends
// the process. The installation's own changes also trigger another installation, which finds everything in place and
// changes nothing. A directory that is mounted into a container stays mounted when the host deletes it. run then
// returns an error, so that the container is started again with the directory that is now at the path.
func (l loop) run(ctx context.Context, out io.Writer) error {
	ctx, done := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT, syscall.SIGPIPE)
	defer done()
	for first := true; ; first = false {
		w, err := watchDir(l.dir)
		if err == nil {
			err = l.installOnce(ctx)
		}
		if err != nil && ctx.Err() == nil && !first && !errors.Is(err, errDeleted) {
			fmt.Fprintf(out, "%v\nretrying after the next change in %s\n", err, l.dir)
			select { // pause, because the failed installation may have caused events itself
			case <-ctx.Done():
			case <-time.After(interval):
			}
			err = nil
		}
		if err == nil && w.events != nil {
			err = w.wait(ctx, l.isRelevant)
		}
		_ = w.events.Close()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

var errDeleted = errors.New("the directory was deleted, but is still mounted here")

// dirWatch is an inotify watch of a directory.
type dirWatch struct {
	dir    string
	stat   unix.Stat_t
	events *os.File // nil without a watch
}

// watchDir watches the directory at the path. It creates a missing directory.
func watchDir(dir string) (w dirWatch, err error) {
	w.dir = dir
	if err := errors.Join(os.MkdirAll(dir, 0o755), unix.Stat(dir, &w.stat)); err != nil {
		return w, fmt.Errorf("%s: %w", dir, err)
	}
	if w.stat.Nlink == 0 {
		return w, fmt.Errorf("%s: %w", dir, errDeleted)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err == nil {
		w.events = os.NewFile(uintptr(fd), "inotify")
		_, err = unix.InotifyAddWatch(fd, dir, watchedEvents|unix.IN_ONLYDIR)
	}
	if err != nil {
		_ = w.events.Close()
		w.events = nil
		return w, fmt.Errorf("%s: inotify: %w", dir, err)
	}
	return w, nil
}

// wait returns nil after an event for a name for which isRelevant returns true, or when the watched directory is no
// longer at its path or was deleted.
func (w dirWatch) wait(ctx context.Context, isRelevant func(name string) bool) error {
	stop := context.AfterFunc(ctx, func() { _ = w.events.Close() })
	defer stop()
	buffer := make([]byte, 64<<10)
	for {
		_ = w.events.SetReadDeadline(time.Now().Add(interval)) // inotify supports deadlines
		n, err := w.events.Read(buffer)
		if err == nil && slices.ContainsFunc(eventNames(buffer[:n]), isRelevant) {
			return nil
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("inotify: %w", err)
		}
		var st unix.Stat_t
		if unix.Stat(w.dir, &st) != nil || st.Nlink == 0 || st.Dev != w.stat.Dev || st.Ino != w.stat.Ino {
			return nil
		}
	}
}

// eventNames returns the file name of each inotify event. Lost events and events of the directory itself have no name.
// For these, it returns toolName, which is always relevant.
func eventNames(events []byte) (names []string) {
	for len(events) >= unix.SizeofInotifyEvent {
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		name := string(bytes.TrimRight(events[unix.SizeofInotifyEvent:end], "\x00"))
		names, events = append(names, cmp.Or(name, toolName)), events[end:]
	}
	return names
}
