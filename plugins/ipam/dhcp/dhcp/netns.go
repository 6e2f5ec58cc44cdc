package dhcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// errGone says that nobody else uses the container's namespace any more.
var errGone = errors.New("no path, process or mount leads to it any more")

// isGone reports whether an error says that the container, or its interface, is not there any more.
func isGone(err error) bool {
	return errors.Is(err, errGone) || errors.Is(err, ns.ErrNotExist) || errors.Is(err, ns.ErrNotNetns) ||
		errors.Is(err, rtnl.ErrNoLink)
}

// reach opens the namespace, once, so that the lease can be renewed and released whatever became of the path. And it
// makes sure that something else still uses the namespace, or else the error is errGone: our descriptor must not keep
// it for nobody. A use is the path, a process, or a mount that a process sees. A descriptor of another process is none:
// it may be that of another daemon, which waits for ours.
func (c *client) reach() error {
	if c.ns != nil && leads(c.usedAt, c.NS) {
		return nil
	}
	isKnown := c.Index != 0 // NS says which one it is
	c.usedAt = c.hostPrefix + c.Netns
	if isKnown && !leads(c.usedAt, c.NS) {
		var err error
		if c.usedAt, err = c.elsewhere(c.NS); err != nil {
			return fmt.Errorf("network namespace %q: %w", c.Netns, err)
		}
		c.log.Info("no longer at its path", "path", c.Netns, "now", c.usedAt)
	}
	if c.ns != nil { // our descriptor is open, so no other namespace has the inode
		return nil
	}
	n, err := ns.Open(c.usedAt)
	if err != nil {
		return err
	}
	id, err := n.Identity()
	if err == nil && isKnown && !id.Is(c.NS) {
		err = fmt.Errorf("network namespace %q: %w; another one has its inode by now", c.Netns, errGone)
	}
	if err != nil {
		return errors.Join(err, n.Close())
	}
	if c.ns = n; !isKnown { // else others read it
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

// elsewhere is a path to a namespace: of a thread that is in it, or of a mount that a
// process sees. Where there is none the error is errGone.
func (d *daemon) elsewhere(id ns.Identity) (string, error) {
	proc := d.hostPrefix + "/proc"
	if _, err := os.Stat(proc + "/1"); err != nil {
		proc = "/proc"
	}
	var unseen error // no proof
	for use, err := range ns.Uses(proc, false) {
		if err == nil && use.Inode == id.Inode {
			return use.Path, nil
		}
		unseen = cmp.Or(unseen, err)
	}
	return "", cmp.Or(unseen, errGone)
}

// watchMounts tells all clients, until ctx ends, that the mount table has changed: a namespace may have lost its
// path. Without it namespaces are verified each minute.
func (d *daemon) watchMounts() error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	stop := context.AfterFunc(d.ctx, func() { _ = f.Close() })
	defer stop()
	raw, _ := f.SyscallConn() // of any file
	// One Read without end: another Read would forget a change that came before it.
	return raw.Read(func(uintptr) bool { // is called at once, and after each change
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, c := range d.clients {
			notify(c.mounted)
		}
		return false
	})
}

// onExit calls do when the process ends to whose namespace a path below /proc leads, unless ctx ends before. A path
// elsewhere, and a kernel without that event, have none.
func onExit(ctx context.Context, path string, do func()) {
	var pid int
	if _, err := fmt.Sscanf(path, "/proc/%d/ns/net", &pid); err != nil {
		return
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		do()
	}
	if err != nil {
		return
	}
	process := os.NewFile(uintptr(fd), path)
	context.AfterFunc(ctx, func() { _ = process.Close() })
	raw, _ := process.SyscallConn() // of any file
	go func() {
		_ = raw.Read(func(fd uintptr) bool {
			n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n > 0
		})
		do()
	}()
}
