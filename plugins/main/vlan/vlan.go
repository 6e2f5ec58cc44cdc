package main

import (
	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

const kind = "vlan"

// child says how the VLAN interface is to be made.
func (c config) child() attach.Child {
	return attach.Child{New: rtnl.NewLink{Kind: kind, VLAN: c.VLAN}, Link: c.Link, Master: &c.Master, DAD: c.DAD,
		Make: attach.MakeLink}
}
