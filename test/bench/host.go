package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// uplink is an interface that plugins' interfaces can be on.
const uplink = "up0"

// host is a machine for one side: network and mount namespaces with an empty /run,
// and /var/lib/cni on disk.
type host struct {
	jobs         chan func()
	mounts, net  *os.File
	disk, canary string
}

// newHost makes one. Its thread runs what [host.do] is given.
func newHost(work, canary string) (*host, error) {
	disk, err := os.MkdirTemp(work, "host-")
	if err != nil {
		return nil, err
	}
	h := &host{jobs: make(chan func()), disk: disk, canary: canary}
	ready := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine.
		runtime.LockOSThread()
		ready <- h.make()
		for job := range h.jobs {
			job()
		}
	}()
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("make a host: %w", err)
	}
	// What the namespace takes along when it is really gone.
	err = command("", "ip", "link", "add", canary, "type", "veth", "peer", "name", "canary", "netns",
		fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), h.net.Fd()))
	return h, err
}

func (h *host) make() error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS | unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := mountState(); err != nil {
		return err
	}
	if err := unix.Mount(h.disk, "/var/lib/cni", "", unix.MS_BIND, ""); err != nil {
		return err
	}
	var err error
	if h.mounts, err = os.Open("/proc/thread-self/ns/mnt"); err != nil {
		return err
	}
	if h.net, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	return command(strings.ReplaceAll(`link set lo up
link add UPLINK up type veth peer name far0
link set far0 up
`, "UPLINK", uplink), "ip", "-batch", "-")
}

// mountState puts empty directories in the places of the machine's, and the /sys of
// the calling thread's network namespace.
func mountState() error {
	for _, dir := range []string{"/run", "/var/lib"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	for _, dir := range []string{"/run/netns", "/run/lock", "/var/lib/cni"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	return nil
}

// do runs fn on the host's thread. Programs that it starts are on the host.
func (h *host) do(fn func() error) error {
	done := make(chan error)
	h.jobs <- func() { done <- fn() }
	return <-done
}

// join runs fn on a thread of its own on the host, for calls in parallel.
func (h *host) join(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			if err := unix.Setns(int(h.mounts.Fd()), unix.CLONE_NEWNS); err != nil {
				return err
			}
			if err := unix.Setns(int(h.net.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
			return fn()
		}()
	}()
	return <-done
}

// command runs a program on the host.
func (h *host) command(stdin, name string, args ...string) error {
	return h.do(func() error { return command(stdin, name, args...) })
}

// start runs a program on the host until the host ends.
func (h *host) start(name string, args ...string) error {
	return h.do(func() error {
		cmd := exec.Command(name, args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // of the host's thread
		err := cmd.Start()
		if err == nil {
			go func() { _ = cmd.Wait() }()
		}
		return err
	})
}

// awaitSocket waits until somebody serves it.
func awaitSocket(path string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		conn, err := net.Dial("unix", path)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

func command(stdin, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// kernelLacks says that no link of a kind can be made; "" when one can, or none is needed.
func kernelLacks(kind string) string {
	if kind == "" {
		return ""
	}
	err := command("link add on0 type veth peer name on1\nlink add link on0 name of0 type "+kind+"\nlink del of0\n",
		"ip", "-batch", "-")
	_ = command("", "ip", "link", "del", "on0")
	if err == nil {
		return ""
	}
	name, _, _ := strings.Cut(kind, " ")
	return "no " + name + " in this kernel"
}

// netns makes a container's network namespace, pinned where a runtime would.
func (h *host) netns(name string) (string, error) {
	path := filepath.Join("/run/netns", name)
	return path, h.join(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		if err := os.WriteFile(path, nil, 0o444); err != nil {
			return err
		}
		return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	})
}

// close ends the host and waits until the kernel has taken its links away, which
// would slow down whoever comes next.
func (h *host) close() error {
	close(h.jobs)
	_ = h.mounts.Close()
	_ = h.net.Close()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for {
		if _, err := net.InterfaceByName(h.canary); err != nil {
			return os.RemoveAll(h.disk)
		}
		select {
		case <-tick.C:
		case <-deadline:
			return fmt.Errorf("%s: the kernel still holds the host's network after a minute", h.canary)
		}
	}
}
