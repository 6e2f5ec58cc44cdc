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

// RunNameless runs a program that gets text of a configuration. The program cannot look up names of hosts, services,
// users and groups, so it does not wait for a name server. It does not see /run, which has the sockets of name services
// and the lock of iptables.
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
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		err := unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET)
		if err = errors.Join(err, hideNames()); err == nil {
			if _, hidden := os.Stat(c.Path); hidden != nil { // NixOS has programs below /run
				c.Name, c.Path = cmp.Or(c.Name, c.Path), fmt.Sprintf("/proc/self/fd/%d", 3+len(c.Files))
				c.Files = append(slices.Clone(c.Files), program)
			}
			err = c.Run(ctx)
		}
		done <- err
	}()
	return <-done
}

// hideNames gives the calling thread a mount namespace without sources of names.
func hideNames() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	errs := []error{makePrivate(),
		unix.Mount("none", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=1m")}
	for path, text := range map[string]string{
		"nsswitch.conf": "hosts: files\nservices: files\nprotocols: files\npasswd: files\ngroup: files\n",
		"resolv.conf":   "nameserver 255.255.255.255\noptions timeout:1 attempts:1\n", // for musl, which has no switch
		"hosts":         "", "services": "", "passwd": "", "group": "",
	} {
		if _, err := os.Stat("/etc/" + path); errors.Is(err, fs.ErrNotExist) {
			continue // an absent file has no names
		}
		errs = append(errs, os.WriteFile("/run/"+path, []byte(text), 0o644),
			unix.Mount("/run/"+path, "/etc/"+path, "", unix.MS_BIND, ""))
	}
	return os.NewSyscallError("mount", errors.Join(errs...))
}

// makePrivate keeps the thread's mounts from other mount namespaces. The root of a chroot may not be a mount. Then the
// thread enters its own mount namespace, which moves it to the root of the namespace, and returns to the chroot.
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
