// Package tun creates tap devices through /dev/net/tun, because rtnetlink cannot create them.
//
// Open the control device in the namespace of the tap, then Create the tap, set its owner, and Keep it. Until Keep, the
// kernel deletes the tap when the file is closed, so that nothing is left if the process is killed.
package tun

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
)

const control = "/dev/net/tun"

// Probe returns an error if this host cannot create taps. The error has code 2 if the kernel has no tap devices.
func Probe() error {
	f, err := os.OpenFile(control, os.O_RDWR, 0)
	if err != nil {
		return lacking(err)
	}
	return f.Close()
}

// lacking returns err, with code 2 if it means that the device does not exist.
func lacking(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		return cni.LacksModules(err, "tun")
	}
	return err
}

// Open opens the control device in a namespace, in which Create then creates the tap. It does not use os.OpenFile,
// which would poll the device before it has an interface, and remember the error.
func Open(n *ns.NS) (f *os.File, err error) {
	err = n.Do(func() error {
		fd, err := -1, error(unix.EINTR)
		for errors.Is(err, unix.EINTR) {
			fd, err = unix.Open(control, unix.O_RDWR|unix.O_CLOEXEC, 0)
		}
		if err != nil {
			return lacking(&os.PathError{Op: "open", Path: control, Err: err})
		}
		f = os.NewFile(uintptr(fd), control)
		return nil
	})
	return f, err
}

// Create creates or opens a tap and returns its name. The kernel names it if name is empty. flags are IFF_*.
func Create(f *os.File, name string, flags uint16) (string, error) {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return "", err
	}
	req.SetUint16(flags)
	err = os.NewSyscallError("TUNSETIFF", unix.IoctlIfreq(int(f.Fd()), unix.TUNSETIFF, req))
	return req.Name(), err
}

// SetOwner allows a user to open the tap.
func SetOwner(f *os.File, id uint32) error {
	return unix.IoctlSetInt(int(f.Fd()), unix.TUNSETOWNER, int(id))
}

// SetGroup allows a group to open the tap.
func SetGroup(f *os.File, id uint32) error {
	return unix.IoctlSetInt(int(f.Fd()), unix.TUNSETGROUP, int(id))
}

// Keep makes the tap persistent, so that it remains when the file is closed.
func Keep(f *os.File) error {
	return os.NewSyscallError("TUNSETPERSIST", unix.IoctlSetInt(int(f.Fd()), unix.TUNSETPERSIST, 1))
}
