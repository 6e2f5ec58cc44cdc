package frame

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// MarkedHostEnd finds the host end that one of our plugins made for an attachment, by its name and its owner. The
// error matches rtnl.ErrNoLink when there is none, also where a link of somebody else has the name.
func MarkedHostEnd(host *rtnl.Conn, a cni.Attachment) (rtnl.Link, error) {
	for _, name := range iface.HostNames(a) {
		l, err := host.Link(name)
		isOurs := IsHalfMade(l, a.Network) || l.IsPairEnd() && a.Owns(l.Alias)
		if err == nil && !isOurs {
			err = rtnl.ErrNoLink
		}
		if !errors.Is(err, rtnl.ErrNoLink) {
			return l, err
		}
	}
	return rtnl.Link{}, fmt.Errorf("host end of %s: %w", a, rtnl.ErrNoLink)
}

// IsHalfMade tells a host end of the network whose ADD died before it was marked.
func IsHalfMade(l rtnl.Link, network string) bool {
	return l.IsPairEnd() && l.Alias == "" && l.Group == cni.NetworkHash(network)
}

// HostEndOfResult finds the host end that the result names by its name and MAC address, and that canBe accepts:
// without the container's interface there is no other trace of it. The error matches rtnl.ErrNoLink where there is
// none.
func HostEndOfResult(host *rtnl.Conn, prev *cni.Result, canBe func(rtnl.Link) bool) (rtnl.Link, error) {
	if prev == nil {
		return rtnl.Link{}, rtnl.ErrNoLink
	}
	for _, i := range prev.Interfaces {
		if i.Sandbox != "" || i.MAC == "" {
			continue
		}
		l, err := host.Link(i.Name)
		if err == nil && (!canBe(l) || !strings.EqualFold(i.MAC, l.MAC.String())) {
			err = rtnl.ErrNoLink
		}
		if !errors.Is(err, rtnl.ErrNoLink) {
			return l, err
		}
	}
	return rtnl.Link{}, rtnl.ErrNoLink
}
