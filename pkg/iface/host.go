package iface

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// Describe makes a link an entry of a result, without sandbox.
func Describe(l rtnl.Link) cni.Interface {
	return cni.Interface{Name: l.Name, MAC: l.MAC.String(), MTU: l.MTU}
}

// IsMACSet reports whether a program has set the MAC address of a host link. Otherwise a bridge takes the address of a
// port, and a VLAN the address of its master. The error matches fs.ErrNotExist where /sys does not show the link:
// it may show another namespace, as with RootlessKit's detached network namespace.
func IsMACSet(link rtnl.Link) (bool, error) {
	for attribute, want := range map[string]string{"ifindex": strconv.Itoa(link.Index), "address": link.MAC.String()} {
		value, err := sysctl.LinkAttribute(link.Name, attribute)
		if err == nil && value != want {
			err = fmt.Errorf("link %q: /sys has %s %s, not %s: %w", link.Name, attribute, value, want, fs.ErrNotExist)
		}
		if err != nil {
			return false, err
		}
	}
	kind, err := sysctl.LinkAttribute(link.Name, "addr_assign_type")
	return kind == "3", err // NET_ADDR_SET
}

// HostNames returns the four names that the host end of a may have, with 8 hex digits of the owner. ADD takes the next
// one where something else has a name.
func HostNames(a cni.Attachment) (names []string) {
	ifName := a.IfName
	for try := range 4 {
		if try > 0 {
			a.IfName = fmt.Sprintf("%s %d", ifName, try) // a blank, which no interface has in its name
		}
		names = append(names, "veth"+a.Hash()[:8])
	}
	return names
}

// EnableForwarding lets the host forward packets of a family. It is never undone: others rely on it.
func EnableForwarding(v4 bool) error { return forwarding(v4).Write("1") }

// VerifyForwarding is code 101 when the host does not forward the family.
func VerifyForwarding(v4 bool) error {
	key := forwarding(v4)
	value, err := key.Read()
	if err == nil && value == "0" {
		err = cni.Drift("sysctl %s: is 0, so the host does not forward what containers send", key)
	}
	return err
}

func forwarding(v4 bool) sysctl.Key {
	if v4 {
		return sysctl.Net("ipv4", "ip_forward")
	}
	return sysctl.Net("ipv6", "conf", "all", "forwarding")
}

// AcceptsRouterAdverts tells whether a host interface takes routes and addresses from router advertisements. Without
// IPv6 it does not, and one that forwards does only with accept_ra=2.
func AcceptsRouterAdverts(link string) (bool, error) {
	accepts, err := readIPv6(link, "accept_ra")
	if err != nil || accepts != "1" {
		return accepts == "2", err
	}
	forwards, err := readIPv6(link, "forwarding")
	return forwards == "0", err
}

// readIPv6 is a setting of a link, empty where the kernel has no IPv6.
func readIPv6(link, name string) (string, error) {
	value, err := sysctl.Net("ipv6", "conf", link, name).Read()
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return value, err
}

// IgnoreRouterAdverts keeps a host interface from taking routes and addresses from what containers send.
func IgnoreRouterAdverts(link string) error { return turnOff(link, "accept_ra") }

// SkipDAD has a host interface, whose MAC address nobody else can have, use its link-local address as soon as it goes
// up, without duplicate address detection: the host needs it to ask for neighbours.
func SkipDAD(link string) error { return turnOff(link, "accept_dad") }

// EnableIPv6 turns IPv6 on for a host interface: the host may have it off by default. A kernel without it is an error.
func EnableIPv6(link string) error { return writeConf("ipv6", link, "disable_ipv6", "0") }

// IPv6Disabled returns the assignments for sysctl that turn IPv6 on for a host interface, and for interfaces that are
// created later. It is empty if IPv6 is on.
func IPv6Disabled(link string) (assignments []string) {
	for _, of := range []string{"all", "default", link} {
		if value, err := readIPv6(of, "disable_ipv6"); err == nil && value == "1" {
			assignments = append(assignments, "net/ipv6/conf/"+of+"/disable_ipv6=0")
		}
	}
	return assignments
}

// turnOff turns a setting of a link off, if the kernel has IPv6.
func turnOff(link, name string) error {
	if err := writeConf("ipv6", link, name, "0"); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// writeConf writes a setting of a link in the calling thread's namespace. The error names the sysctl.
func writeConf(family, link, name, value string) error {
	return sysctl.Net(family, "conf", link, name).Write(value)
}
