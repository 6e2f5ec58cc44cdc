package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// RunNameless is Run in a new mount namespace, in which the program cannot look up names of hosts, services, users and
// groups. It does not see /run, where the sockets of name services and the lock of iptables are.
func (c Command) RunNameless(ctx context.Context) error {
	netns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer netns.Close()
	program, err := os.OpenFile(c.Path, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer program.Close()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		err := unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET)
		if err = errors.Join(err, hideNames()); err == nil {
			if _, statErr := os.Stat(c.Path); statErr != nil { // on NixOS, programs are below /run
				c.Name, c.Path = cmp.Or(c.Name, c.Path), fmt.Sprintf("/proc/self/fd/%d", 3+len(c.Files))
				c.Files = append(slices.Clone(c.Files), program)
			}
			err = c.Run(ctx)
		}
		done <- err
	}()
	return <-done
}

// hideNames moves the calling thread to a new mount namespace, and hides the sources of names there.
func hideNames() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	errs := []error{makePrivate(),
		unix.Mount("none", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=1m")}
	for path, text := range map[string]string{
		"nsswitch.conf": "hosts: files\nservices: files\nprotocols: files\npasswd: files\ngroup: files\n",
		"resolv.conf":   "nameserver 255.255.255.255\noptions timeout:1 attempts:1\n", // for musl
		"hosts":         "", "services": "", "passwd": "", "group": "",
	} {
		if _, err := os.Stat("/etc/" + path); errors.Is(err, fs.ErrNotExist) {
			continue // nothing to hide
		}
		errs = append(errs, os.WriteFile("/run/"+path, []byte(text), 0o644),
			unix.Mount("/run/"+path, "/etc/"+path, "", unix.MS_BIND, ""))
	}
	return os.NewSyscallError("mount", errors.Join(errs...))
}

// makePrivate stops mounts of the thread from propagating to other mount namespaces. In a chroot, the root may not be a
// mount point, and mount fails. makePrivate then enters the thread's own mount namespace, which moves the thread to the
// root of the namespace, and returns to the chroot afterwards.
func makePrivate() error {
	err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	if err != unix.EINVAL {
		return err
	}
	root, err := os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer root.Close()
	self, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return err
	}
	defer self.Close()
	if err := unix.Setns(int(self.Fd()), unix.CLONE_NEWNS); err != nil {
		return err
	}
	err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	return errors.Join(err, unix.Fchdir(int(root.Fd())), unix.Chroot("."))
}
