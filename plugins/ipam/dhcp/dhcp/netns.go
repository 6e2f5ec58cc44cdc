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
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

var (
	// errGone reports that no other process uses the container's namespace.
	errGone = errors.New("no path, process or mount leads to it any more")
	// errUnseen reports that a process that may use the namespace could not be read.
	errUnseen = errors.New("its uses cannot be searched")
)

// isGone reports whether an error says that the container, or its interface, is not there any more.
func isGone(err error) bool {
	return errors.Is(err, errGone) || errors.Is(err, ns.ErrNotExist) || errors.Is(err, ns.ErrNotNetns) ||
		errors.Is(err, rtnl.ErrNoLink)
}

// reach opens the namespace once, so that the lease can be renewed and released after the path is removed. It returns
// errGone if nothing else uses the namespace, because the daemon's descriptor must not keep an unused namespace. A use
// is the path, a process, or a mount that a process sees. A descriptor of another process is not a use: it may belong
// to another daemon, which waits for this one.
func (c *client) reach() error {
	if c.ns != nil && leads(c.usedAt, c.NS) {
		return nil
	}
	isKnown := c.Index != 0 // NS says which one it is
	c.usedAt = c.hostPrefix + c.Netns
	if isKnown && !leads(c.usedAt, c.NS) {
		if err := c.seek(); err != nil {
			return fmt.Errorf("network namespace %q: %w", c.Netns, err)
		}
	}
	if c.ns != nil { // our descriptor is open, so no other namespace has the inode
		return nil
	}
	n, err := ns.Open(c.usedAt)
	if !isKnown && isGone(err) { // it exists, because the plugin that delegates to dhcp has opened it
		err = fmt.Errorf("%w; the daemon must see it: in a pod mount /run/netns with HostToContainer propagation, "+
			"or start the daemon with -hostprefix", err)
	}
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

// seek finds another use of the namespace. If a process cannot be read, the namespace is treated as used until the
// lease ends. Then neither the address may stay, nor a namespace that only the daemon may keep.
func (c *client) seek() error {
	var err error
	c.usedAt, err = c.elsewhere(c.NS)
	isProof := err == nil || errors.Is(err, errGone)
	if !isProof && !c.isUnseen {
		c.log.Warn("it may be used by a process that cannot be read; its lease lasts while the server renews it",
			"path", c.Netns, "error", err)
	}
	c.isUnseen = !isProof
	switch {
	case err == nil:
		c.log.Info("no longer at its path", "path", c.Netns, "now", c.usedAt)
	case isProof:
	case c.lease == nil || sysctl.SinceBoot() >= c.lease.expiry:
		err = fmt.Errorf("the lease has ended, and as far as processes can be read %w", errGone)
	case c.ns == nil:
		err = errUnseen
	default:
		err = nil
	}
	return err
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

// onExit calls do when a process ends whose directory in /proc contains path, unless ctx ends before that. path is of a
// process or thread, or of a mount that the process sees. There is no such event for other paths, or for the end of a
// thread.
func onExit(ctx context.Context, path string, do func()) {
	var pid int
	if n, _ := fmt.Sscanf(path, "/proc/%d/", &pid); n == 0 {
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
