package main

import (
	"context"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const kind = "dummy"

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	return attach.AddChild(ctx, req, cfg.child())
}

func del(ctx context.Context, req *skel.Request) error { return attach.DelChild(ctx, req, kind) }

func check(ctx context.Context, req *skel.Request, cfg config) error {
	return attach.CheckChild(ctx, req, cfg.child())
}

func status(ctx context.Context, req *skel.Request, cfg config) error {
	return attach.StatusChild(ctx, req, cfg.child())
}

func (c config) child() attach.Child {
	return attach.Child{Kind: kind, Link: c.Link, Make: func(s *attach.Session, name string) error {
		return s.MakeLink(rtnl.Child{Name: name, Kind: kind, MAC: c.Link.MAC, MTU: c.Link.MTU})
	}}
}
