// Package tun makes taps through the kernel's control device. rtnetlink cannot.
package tun

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
)

const control = "/dev/net/tun"

// Probe is why this host can make no tap: code 2 where the kernel has none.
func Probe() error {
	f, err := os.OpenFile(control, os.O_RDWR, 0)
	if err != nil {
		return lacking(err)
	}
	return f.Close()
}

// lacking is err, with code 2 where there is no such device; others may not open it, or have too many files open.
func lacking(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		return cni.Lacking(err, "tun")
	}
	return err
}

// Open opens the control device in the namespace: what is made through it is there. It is not os.OpenFile, which
// would poll the device before it has an interface and remember the error.
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

// Create makes a tap of the control device, or opens one, and returns its name, which the kernel chooses where it is
// empty. Until Keep the tap goes with the descriptor.
func Create(f *os.File, name string, flags uint16) (string, error) {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return "", err
	}
	req.SetUint16(flags)
	err = os.NewSyscallError("TUNSETIFF", unix.IoctlIfreq(int(f.Fd()), unix.TUNSETIFF, req))
	return req.Name(), err
}

// SetOwner lets a user open the tap.
func SetOwner(f *os.File, id uint32) error {
	return unix.IoctlSetInt(int(f.Fd()), unix.TUNSETOWNER, int(id))
}

// SetGroup lets a group open the tap.
func SetGroup(f *os.File, id uint32) error {
	return unix.IoctlSetInt(int(f.Fd()), unix.TUNSETGROUP, int(id))
}

// Keep makes the tap persistent.
func Keep(f *os.File) error {
	return os.NewSyscallError("TUNSETPERSIST", unix.IoctlSetInt(int(f.Fd()), unix.TUNSETPERSIST, 1))
}
