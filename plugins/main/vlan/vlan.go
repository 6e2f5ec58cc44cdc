package main

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

const kind = "vlan"

// child says how the vlan is to be made.
func (c config) child() attach.Child {
	return attach.Child{Kind: kind, Unique: fmt.Sprintf("VLAN %d", c.VLAN), Link: c.Link, Master: &c.Master, DAD: c.DAD,
		Make: c.make, Verify: c.verify}
}

func (c config) verify(_ *attach.Session, l rtnl.Link) []string {
	if l.VLAN != c.VLAN {
		return []string{fmt.Sprintf("VLAN is %d instead of %d", l.VLAN, c.VLAN)}
	}
	return nil
}

// make makes the VLAN interface. EEXIST says that the name is taken, or the VLAN.
func (c config) make(_ context.Context, s *attach.Session, name string) error {
	err := s.MakeLink(rtnl.NewLink{Name: name, Kind: kind, MTU: c.Link.MTU, VLAN: c.VLAN})
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	if name := c.findHolder(s); name != "" {
		return cni.Errorf(cni.CodeConflict, "VLAN %d of master %q: is held by interface %q beside it", c.VLAN,
			s.Master.Name, name)
	}
	return err
}

// findHolder names the link in the master's namespace that has the VLAN; empty: there is none.
func (c config) findHolder(s *attach.Session) string {
	links, _ := s.MasterSide().Links() // it is for the message alone
	for _, l := range links {
		if l.Kind == kind && l.VLAN == c.VLAN && l.Peer == s.Master.Index && l.PeerNS < 0 {
			return l.Name
		}
	}
	return ""
}
