package hostdevice

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// findDevice returns the device's link in the host's namespace. It refuses lo, VLAN gateways, and links of other
// attachments or of other plugins' containers. The link is zero if a userspace driver has the device. The error matches
// rtnl.ErrNoLink if the device's interface is in another namespace, or if the device is not found.
func (d selector) findDevice(host *rtnl.Conn) (l rtnl.Link, err error) {
	switch {
	case d.Key == byName:
		l, err = host.LinkByAnyName(d.Value)
	case d.Key == byMAC:
		l, err = d.findMAC(host)
	case d.Key == byPath:
		l, err = d.findPath(host)
	case pciAddress(d.Value) != "":
		l, err = d.findPCI(host)
	default:
		l, err = d.interfaceOf(host, filepath.Join("/sys/bus/auxiliary/devices", d.Value))
	}
	if err == nil && l.Index == 1 { // lo, which each namespace has
		err = cni.Refuse(d.Key, d.Value, "is the loopback interface, which cannot move")
	}
	if err == nil {
		err = cmp.Or(netplugin.RefuseOwned(d.Key, l), netplugin.RefuseForeign(host, d.Key, l),
			netplugin.RefuseVLANGateway(host, d.Key, l))
	}
	return l, err
}

// wrap adds the selector to an error. It replaces fs.ErrNotExist by rtnl.ErrNoLink.
func (d selector) wrap(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		err = rtnl.ErrNoLink
	}
	return fmt.Errorf("%s: %q: %w", d.Key, d.Value, err)
}

// findMAC finds the link with the MAC address. It returns code 7 if several links have it.
func (d selector) findMAC(host *rtnl.Conn) (found rtnl.Link, err error) {
	links, err := host.Links()
	if err != nil {
		return found, err
	}
	mac, _ := net.ParseMAC(d.Value) // parseConfig has checked it
	var names []string
	for _, l := range links {
		if slices.Equal(l.MAC, mac) {
			found, names = l, append(names, l.Name)
		}
	}
	switch len(names) {
	case 0:
		return found, d.wrap(rtnl.ErrNoLink)
	case 1:
		return found, nil
	}
	return found, cni.Refuse(d.Key, d.Value, "is the MAC address of "+strings.Join(names, ", ")).
		Suggest("name one of them by device")
}

// findPath finds the interface of a device by its directory.
func (d selector) findPath(host *rtnl.Conn) (l rtnl.Link, err error) {
	path, err := filepath.EvalSymlinks(d.Value)
	if err != nil {
		return l, d.wrap(err)
	}
	if !strings.HasPrefix(path, devicesDir) {
		return l, cni.Refuse(d.Key, d.Value, "points to "+path+", which is not below "+devicesDir)
	}
	return d.interfaceOf(host, path)
}

// userspaceDrivers lists the drivers of devices without an interface, which a program in the container drives (DPDK).
var userspaceDrivers = []string{"vfio-pci", "uio_pci_generic", "igb_uio"}

// findPCI finds the interface of a PCI device or its virtio device. The link is zero if a userspace driver has it.
func (d selector) findPCI(host *rtnl.Conn) (rtnl.Link, error) {
	path := filepath.Join("/sys/bus/pci/devices", d.Value)
	if _, err := os.Lstat(path); err != nil {
		return rtnl.Link{}, d.wrap(err)
	}
	driver, err := os.Readlink(filepath.Join(path, "driver"))
	if err != nil {
		return rtnl.Link{}, cni.Refuse(d.Key, d.Value, "this device has no driver")
	}
	if slices.Contains(userspaceDrivers, filepath.Base(driver)) {
		return rtnl.Link{}, nil
	}
	virtio, _ := filepath.Glob(path + "/virtio*") // the pattern is valid
	return d.interfaceOf(host, append([]string{path}, virtio...)...)
}

// interfaceOf finds the first interface that is in one of the device's directories in /sys.
func (d selector) interfaceOf(host *rtnl.Conn, dirs ...string) (rtnl.Link, error) {
	for _, dir := range dirs {
		list, err := os.ReadDir(filepath.Join(dir, "net"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return rtnl.Link{}, d.wrap(err)
		}
		if len(list) > 0 {
			return host.Link(list[0].Name())
		}
	}
	return rtnl.Link{}, d.wrap(rtnl.ErrNoLink)
}
