package main

import (
	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

const kind = "dummy"

// child says how the dummy is to be made.
func (c config) child() attach.Child {
	return attach.Child{New: rtnl.NewLink{Kind: kind}, Link: c.Link, Make: attach.MakeLink}
}
