package main

import (
	"context"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

const kind = "dummy"

// child says how the dummy is to be made.
func (c config) child() attach.Child {
	return attach.Child{Kind: kind, Link: c.Link, Make: func(_ context.Context, s *attach.Session, name string) error {
		return s.MakeLink(rtnl.NewLink{Name: name, Kind: kind, MAC: c.Link.MAC, MTU: c.Link.MTU})
	}}
}
