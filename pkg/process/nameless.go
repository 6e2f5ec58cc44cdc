package process

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"runtime"

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
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		err := unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET)
		if err = errors.Join(err, hideNames()); err == nil {
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
	errs := []error{unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
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
