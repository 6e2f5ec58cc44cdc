package main

import (
	"context"
	"errors"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// add acts in a straight line, with the undoing of each deed on the line after
// it. Whatever fails from there on, a result that nobody reads too, is undone.
func add(_ context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	if req.PrevResult == nil {
		return nil, cni.Errorf(cni.CodeConfig, "prevResult: missing; sample labels what another plugin of the chain made")
	}
	conn, link, err := open(req)
	if err != nil {
		return nil, err
	}
	req.OnDone(func() { _ = conn.Close() })
	if link.Alias != "" {
		return nil, cni.Errorf(cni.CodeExists, "interface %q: has the alias %q already", link.Name, link.Alias)
	}
	if err := setAlias(conn, link, cfg.alias(req.Attachment)); err != nil {
		return nil, err
	}
	req.OnFail("take the label away", func(context.Context) error { return setAlias(conn, link, "") })
	return req.PrevResult, nil
}

// del succeeds when there is nothing to do, reads nothing of the configuration,
// and believes the mark rather than the path that it was given: the namespace
// may be another container's by now.
func del(_ context.Context, req *skel.Request) error {
	if req.NS == nil {
		return nil
	}
	conn, link, err := open(req)
	if errors.Is(err, rtnl.ErrNoLink) {
		return nil
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	if !req.Owns(link.Alias) {
		return nil
	}
	return setAlias(conn, link, "")
}

// check compares and changes nothing.
func check(_ context.Context, req *skel.Request, cfg config) error {
	conn, link, err := open(req)
	if err != nil {
		return err
	}
	defer conn.Close()
	if want := cfg.alias(req.Attachment); link.Alias != want {
		return cni.Errorf(cni.CodeDrift, "interface %q: alias is %q instead of %q", link.Name, link.Alias, want)
	}
	return nil
}

// open returns the container's interface, and a socket in its namespace. Nobody
// has to enter it.
func open(req *skel.Request) (*rtnl.Conn, rtnl.Link, error) {
	conn, err := rtnl.Dial(req.NS)
	if err != nil {
		return nil, rtnl.Link{}, err
	}
	link, err := conn.Link(req.IfName)
	if err != nil {
		_ = conn.Close()
	}
	return conn, link, err
}

func setAlias(conn *rtnl.Conn, link rtnl.Link, alias string) error {
	return conn.SetLink(link.Index, rtnl.Change{Alias: &alias})
}
