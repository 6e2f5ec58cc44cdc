package main

import (
	"errors"
	"net"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// life is by what an owner is known to be alive: its namespace, and the host's
// end of its interface.
type life struct {
	Netns  string `json:"netns"`            // the path
	Cookie uint64 `json:"cookie,omitempty"` // the namespace's; 0: the kernel has none
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`

	Link int    `json:"link,omitempty"` // index of the host's end; 0: there is none
	MAC  string `json:"mac,omitempty"`
}

// lifeOf describes the owner that has this interface in this namespace.
func lifeOf(host *rtnl.Conn, netns *ns.NS, ifName string) (life, error) {
	device, inode, err := netns.ID()
	if err != nil {
		return life{}, err
	}
	l := life{Netns: netns.Path(), Device: device, Inode: inode}
	cont, err := rtnl.Dial(netns)
	if err != nil {
		return l, err
	}
	defer cont.Close()
	l.Cookie, _ = cont.NetnsCookie()
	inside, err := cont.Link(ifName)
	if errors.Is(err, rtnl.ErrNoLink) {
		return l, nil
	}
	if err != nil || inside.Kind != "veth" || inside.Peer == 0 {
		return l, err
	}
	end, err := host.LinkByIndex(inside.Peer)
	if errors.Is(err, rtnl.ErrNoLink) {
		return l, nil
	}
	// The index may be another namespace's.
	if err == nil && end.Kind == "veth" && end.Peer == inside.Index {
		l.Link, l.MAC = end.Index, end.MAC.String()
	}
	return l, err
}

// leadsTo says whether the open namespace is the owner's.
func (l life) leadsTo(netns *ns.NS) (bool, error) {
	if cookie, ok := netns.Cookie(); ok && l.Cookie != 0 {
		return cookie == l.Cookie, nil
	}
	device, inode, err := netns.ID()
	return device == l.Device && inode == l.Inode, err
}

// alive says whether the owner may still be there: it is dead only when its
// path leads to that namespace no more and the host's end of its interface is
// gone. Where either cannot be told, it lives: the path may be invisible from
// here, and not every interface has an end on the host.
func (l life) alive(host *rtnl.Conn) (bool, error) {
	netns, err := ns.Open(l.Netns)
	switch {
	case err == nil:
		same, err := l.leadsTo(netns)
		_ = netns.Close()
		if err != nil || same {
			return true, err
		}
	case !errors.Is(err, ns.ErrNotExist) && !errors.Is(err, ns.ErrNotNetns):
		return true, nil
	case l.Link == 0:
		return true, nil
	}
	if l.Link == 0 {
		return false, nil // another namespace is where its own was
	}
	end, err := host.LinkByIndex(l.Link)
	if errors.Is(err, rtnl.ErrNoLink) {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	mac, err := net.ParseMAC(l.MAC)
	return err != nil || end.MAC.String() == mac.String(), nil
}
