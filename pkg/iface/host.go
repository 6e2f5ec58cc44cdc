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

// Describe returns the entry of a link in a result, without the sandbox.
func Describe(l rtnl.Link) cni.Interface {
	return cni.Interface{Name: l.Name, MAC: l.MAC.String(), MTU: l.MTU}
}

// IsMACSet reports whether a program has set the MAC address of a host link. Otherwise, a bridge has the address of a
// port, and a VLAN has the address of its master. The error matches fs.ErrNotExist if /sys shows another network
// namespace, as with RootlessKit's detached namespace.
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

// HostNames returns the four names that the host end of an attachment can have: "veth" and 8 hex digits of a hash. ADD
// uses the first name that no other link has. The names are derived from the attachment, so that DEL finds the host end
// without a list of all links.
func HostNames(a cni.Attachment) (names []string) {
	ifName := a.IfName
	for i := range 4 {
		if i > 0 { // for example "eth0 1", which no attachment has, because no interface name contains a space
			a.IfName = fmt.Sprintf("%s %d", ifName, i)
		}
		names = append(names, "veth"+a.Hash()[:8])
	}
	return names
}

// EnableForwarding makes the host forward packets of a family. It has no undo, because other programs may rely on it.
func EnableForwarding(v4 bool) error { return forwardingKey(v4).Write("1") }

// VerifyForwarding returns code 101 if the host does not forward packets of a family.
func VerifyForwarding(v4 bool) error {
	key := forwardingKey(v4)
	value, err := key.Read()
	if err == nil && value == "0" {
		err = cni.Drift("sysctl %s: is 0, so the host does not forward what containers send", key)
	}
	return err
}

func forwardingKey(v4 bool) sysctl.Key {
	if v4 {
		return sysctl.Net("ipv4", "ip_forward")
	}
	return sysctl.Net("ipv6", "conf", "all", "forwarding")
}

// AcceptsRouterAdverts reports whether a host interface gets routes and addresses from router advertisements. An
// interface that forwards packets does so only with accept_ra=2. On a kernel without IPv6, no interface does.
func AcceptsRouterAdverts(link string) (bool, error) {
	acceptRA, err := readIPv6(link, "accept_ra")
	if err != nil || acceptRA != "1" {
		return acceptRA == "2", err
	}
	forwarding, err := readIPv6(link, "forwarding")
	return forwarding == "0", err
}

// readIPv6 returns a setting of a link, or the empty string if the kernel has no IPv6.
func readIPv6(link, name string) (string, error) {
	value, err := sysctl.Net("ipv6", "conf", link, name).Read()
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return value, err
}

// IgnoreRouterAdverts makes a host interface ignore router advertisements, which containers could forge.
func IgnoreRouterAdverts(link string) error { return disable(link, "accept_ra") }

// SkipDAD makes a host interface use its link-local address, which neighbor discovery needs, as soon as it is up,
// without duplicate address detection. No other host may have the interface's MAC address.
func SkipDAD(link string) error { return disable(link, "accept_dad") }

// EnableIPv6 turns IPv6 on for a host interface, because the host may disable it by default. It returns an error on a
// kernel without IPv6.
func EnableIPv6(link string) error {
	return sysctl.Net("ipv6", "conf", link, "disable_ipv6").Write("0")
}

// IPv6Remedy returns the arguments of sysctl(8) that turn IPv6 on for a host interface, and for interfaces that are
// created later. It returns nil if IPv6 is on.
func IPv6Remedy(link string) (assignments []string) {
	for _, name := range []string{"all", "default", link} {
		if value, err := readIPv6(name, "disable_ipv6"); err == nil && value == "1" {
			assignments = append(assignments, "net/ipv6/conf/"+name+"/disable_ipv6=0")
		}
	}
	return assignments
}

// disable turns a setting of a link off, if the kernel has IPv6.
func disable(link, name string) error {
	if err := sysctl.Net("ipv6", "conf", link, name).Write("0"); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
