package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// found is a device of the host.
type found struct {
	Link rtnl.Link // none of a device that a userspace driver has
	PCI  string    // its address, where it is known
}

// find finds the device in the host's namespace, and refuses lo. The error matches rtnl.ErrNoLink where the
// device is, but its interface is in another namespace, or where nothing can be found.
func (d device) find(host *rtnl.Conn) (f found, err error) {
	defer func() {
		if err == nil && f.Link.Index == 1 { // each namespace has its own
			err = cni.Refuse(d.Key, d.Value, "is the loopback interface, which cannot move")
		}
	}()
	switch {
	case d.Key == byName:
		f.Link, err = host.LinkByAnyName(d.Value)
	case d.Key == byMAC:
		f.Link, err = d.findMAC(host)
	case d.Key == byPath:
		path, err := filepath.EvalSymlinks(d.Value)
		if err != nil {
			return f, d.absent(err)
		}
		if !strings.HasPrefix(path, devicesDir) {
			return f, cni.Refuse(d.Key, d.Value, "leads to "+path+", which is not below "+devicesDir)
		}
		f.Link, err = d.interfaceOf(host, path)
		return f, err
	case isPCI(d.Value):
		f.PCI = d.Value
		f.Link, err = d.findPCI(host)
		return f, err
	default:
		f.Link, err = d.interfaceOf(host, filepath.Join("/sys/bus/auxiliary/devices", d.Value))
	}
	if isPCI(f.Link.Parent) {
		f.PCI = f.Link.Parent
	}
	return f, err
}

// absent is the error of a device that is not where the host's are.
func (d device) absent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		err = rtnl.ErrNoLink
	}
	return fmt.Errorf("%s: %q: %w", d.Key, d.Value, err)
}

// findMAC finds the one link with a MAC address.
func (d device) findMAC(host *rtnl.Conn) (rtnl.Link, error) {
	mac, _ := net.ParseMAC(d.Value) // as parseConfig saw
	links, err := host.Links()
	if err != nil {
		return rtnl.Link{}, err
	}
	links = slices.DeleteFunc(links, func(l rtnl.Link) bool { return !slices.Equal(l.MAC, mac) })
	switch len(links) {
	case 0:
		return rtnl.Link{}, d.absent(rtnl.ErrNoLink)
	case 1:
		return links[0], nil
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Name)
	}
	return rtnl.Link{}, cni.Refuse(d.Key, d.Value, "is the MAC address of "+strings.Join(names, ", ")).
		Suggest("name one of them by device")
}

// userspace are the drivers whose devices have no interface: a program of the container
// drives the device itself (DPDK).
var userspace = []string{"vfio-pci", "uio_pci_generic", "igb_uio"}

// findPCI finds the interface of a PCI device, that of its virtio device perhaps; none where
// a userspace driver has it.
func (d device) findPCI(host *rtnl.Conn) (rtnl.Link, error) {
	path := filepath.Join("/sys/bus/pci/devices", d.Value)
	if _, err := os.Lstat(path); err != nil {
		return rtnl.Link{}, d.absent(err)
	}
	driver, err := os.Readlink(filepath.Join(path, "driver"))
	if err != nil {
		return rtnl.Link{}, cni.Refuse(d.Key, d.Value, "this device has no driver")
	}
	if slices.Contains(userspace, filepath.Base(driver)) {
		return rtnl.Link{}, nil
	}
	virtio, _ := filepath.Glob(path + "/virtio*") // a good pattern
	return d.interfaceOf(host, append([]string{path}, virtio...)...)
}

// interfaceOf finds the first interface that a device has by its directory in /sys; of
// several directories the first counts that has one.
func (d device) interfaceOf(host *rtnl.Conn, dirs ...string) (rtnl.Link, error) {
	for _, dir := range dirs {
		list, err := os.ReadDir(filepath.Join(dir, "net"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return rtnl.Link{}, d.absent(err)
		}
		if len(list) > 0 {
			return host.Link(list[0].Name())
		}
	}
	return rtnl.Link{}, d.absent(rtnl.ErrNoLink)
}
