package main

import (
	"errors"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// owner is by what it is known whether an attachment is still there: its namespace, and the host end of
// its interface.
type owner struct {
	Netns string `json:"netns"` // the path
	ns.Identity

	Link int    `json:"link,omitempty"` // index of the host end; 0: there is none
	MAC  string `json:"mac,omitempty"`
}

// ownerOf describes the owner that has this interface in this namespace.
func ownerOf(host *rtnl.Conn, netns *ns.NS, ifName string) (owner, error) {
	id, err := netns.Identity()
	if err != nil {
		return owner{}, err
	}
	o := owner{Netns: netns.Path(), Identity: id}
	cont, err := rtnl.Dial(netns)
	if err != nil {
		return o, err
	}
	defer cont.Close()
	inside, err := cont.Link(ifName)
	if errors.Is(err, rtnl.ErrNoLink) {
		return o, nil
	}
	if err != nil || inside.Kind != "veth" || inside.Peer == 0 {
		return o, err
	}
	end, err := host.LinkByIndex(inside.Peer)
	if errors.Is(err, rtnl.ErrNoLink) {
		return o, nil
	}
	// The index may be another namespace's.
	if err == nil && end.Kind == "veth" && end.Peer == inside.Index {
		o.Link, o.MAC = end.Index, end.MAC.String()
	}
	return o, err
}

// gone says whether the path leads to the namespace no more and the host end is gone too. In doubt the
// owner is there: the path may be invisible from here, and not every interface has a host end.
func (o owner) gone(host *rtnl.Conn) (bool, error) {
	netns, err := ns.Open(o.Netns)
	switch {
	case err == nil:
		id, err := netns.Identity()
		_ = netns.Close()
		if err != nil || id.Is(o.Identity) {
			return false, err
		}
		if o.Link == 0 {
			return true, nil // another namespace is at the path
		}
	case !errors.Is(err, ns.ErrNotExist) && !errors.Is(err, ns.ErrNotNetns), o.Link == 0:
		return false, nil
	}
	end, err := host.LinkByIndex(o.Link)
	if errors.Is(err, rtnl.ErrNoLink) {
		return true, nil
	}
	return err == nil && end.MAC.String() != o.MAC, err
}
