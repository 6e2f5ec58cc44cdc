package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// errGone says that nobody else uses the container's namespace any more.
var errGone = errors.New("the container's interface is gone")

// isGone reports whether an error says that the container, or its interface, is not there any more.
func isGone(err error) bool {
	return errors.Is(err, errGone) || errors.Is(err, ns.ErrNotExist) || errors.Is(err, ns.ErrNotNetns) ||
		errors.Is(err, rtnl.ErrNoLink)
}

// reach opens the namespace, once, so that the lease can be renewed and given back whatever became of the path. And
// it makes sure that somebody else still uses the namespace, which our descriptor must not keep for nobody. A use is
// the path, a process, or a mount that a process sees. A descriptor of another process is none: it may be that of
// another daemon, which waits for ours. Without a use the error is errGone.
func (c *client) reach() (err error) {
	path := c.hostPrefix + c.Netns
	switch {
	case c.ns != nil && leads(c.usedAt, c.NS):
		return nil
	case c.Index != 0 && !leads(path, c.NS):
		if path, err = c.elsewhere(c.NS); err != nil {
			return err
		}
		if path == "" {
			return fmt.Errorf("network namespace %q is no more, or another one by now: %w", c.Netns, errGone)
		}
		c.log.Info("no longer at its path", "path", c.Netns, "now", path)
	}
	if c.ns != nil { // our descriptor is open, so no other namespace has the inode
		c.usedAt = path
		return nil
	}
	n, err := ns.Open(path)
	if err != nil {
		return err
	}
	id, err := n.Identity()
	if err == nil && c.Index != 0 && !id.Is(c.NS) {
		err = fmt.Errorf("network namespace %q is another one by now: %w", c.Netns, errGone)
	}
	if err != nil {
		_ = n.Close()
		return err
	}
	if c.ns, c.usedAt = n, path; c.Index == 0 { // others read it from then on
		c.NS = id
	}
	return nil
}

// leads reports whether a path leads to a namespace, as far as the inode tells.
func leads(path string, id ns.Identity) bool {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	return err == nil && uint64(st.Dev) == id.Device && st.Ino == id.Inode
}

// elsewhere is a path to a namespace: of a process that is in it, or of a mount that a
// process sees; "" where there is none.
func (d *daemon) elsewhere(id ns.Identity) (string, error) {
	proc := d.hostPrefix + "/proc"
	if _, err := os.Stat(proc + "/1"); err != nil {
		proc = "/proc"
	}
	entries, err := os.ReadDir(proc)
	if err != nil {
		return "", err // no proof
	}
	seen := map[uint64]bool{} // by mount namespace
	for _, e := range entries {
		p := filepath.Join(proc, e.Name())
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue // no process
		}
		if leads(p+"/ns/net", id) {
			return p + "/ns/net", nil
		}
		var mounts unix.Stat_t
		if unix.Stat(p+"/ns/mnt", &mounts) != nil || seen[mounts.Ino] {
			continue
		}
		seen[mounts.Ino] = true
		if at := mountOf(p, id); at != "" {
			return p + "/root" + at, nil
		}
	}
	return "", nil
}

// mountOf is where a process sees a namespace mounted.
func mountOf(process string, id ns.Identity) string {
	mounts, _ := os.ReadFile(process + "/mountinfo") // none: the process has ended
	for line := range strings.Lines(string(mounts)) {
		const root, point = 3, 4
		if f := strings.Fields(line); len(f) > point && f[root] == fmt.Sprintf("net:[%d]", id.Inode) {
			at, _ := strconv.Unquote(`"` + f[point] + `"`) // a blank is \040 there
			return cmp.Or(at, f[point])
		}
	}
	return ""
}

// mountTable tells all clients that the mount table has changed: a namespace may have
// lost its path.
type mountTable struct {
	mu      sync.Mutex
	changed chan struct{}
}

// next is closed at the next change.
func (m *mountTable) next() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// watch waits for changes until ctx ends. Without it namespaces are verified each minute.
func (m *mountTable) watch(ctx context.Context) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	stop := context.AfterFunc(ctx, func() { _ = f.Close() })
	defer stop()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	// One Read without end: another Read would forget a change that came before it.
	return raw.Read(func(uintptr) bool { // is called at once, and after each change
		m.mu.Lock()
		defer m.mu.Unlock()
		close(m.changed)
		m.changed = make(chan struct{})
		return false
	})
}

// processEnd returns a channel that is closed at the end of the process below /proc to whose namespace a path leads,
// or of ctx; nil for another path, and where the kernel has no such event.
func processEnd(ctx context.Context, path string) <-chan struct{} {
	var pid int
	if _, err := fmt.Sscanf(path, "/proc/%d/ns/net", &pid); err != nil {
		return nil
	}
	ended := make(chan struct{})
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) { // it has ended
		close(ended)
		return ended
	}
	f := os.NewFile(uintptr(fd), path)
	raw, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	context.AfterFunc(ctx, func() { _ = f.Close() })
	go func() {
		defer close(ended)
		_ = raw.Read(func(fd uintptr) bool {
			n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0
		})
	}()
	return ended
}
