package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// call is one call under way. The socket is open until a failed ADD is rolled back.
type call struct {
	*skel.Request
	host *rtnl.Conn
}

func open(req *skel.Request) (*call, error) {
	host, err := rtnl.Dial(nil)
	if err != nil {
		return nil, err
	}
	req.OnDone(func() { _ = host.Close() })
	return &call{req, host}, nil
}

func add(_ context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	if cfg.ingress.rate == 0 && cfg.egress.rate == 0 {
		return req.PrevResult, nil
	}
	c, err := open(req)
	if err != nil {
		return nil, err
	}
	end, err := c.hostEnd()
	if err != nil {
		return nil, err
	}
	ingress, egress, err := cfg.plan(end.MTU)
	if err != nil {
		return nil, err
	}
	for _, f := range []*filter{ingress, egress} {
		if f != nil && f.warning != "" {
			req.Warn("%s", f.warning)
		}
	}
	was, found, err := c.readLimits(end)
	if err != nil {
		return nil, err
	}
	// Before anything is made: the kernel's answer may be lost.
	req.OnFail("restore the limits", func(context.Context) error {
		_, err := c.replace(end, was)
		return err
	})
	want := limits{ingress: ingress, egress: egress}
	var ifb rtnl.Link
	if !found {
		ifb, err = c.limit(end, want)
	}
	if found || errors.Is(err, unix.EEXIST) { // an IFB may be left of an ADD before this one, or of the reference
		ifb, err = c.replace(end, want)
	}
	if errors.Is(err, unix.EEXIST) {
		return nil, cni.Errorf(cni.CodeConflict, "%w: something else queues there; remove it, or the limit", err)
	}
	if err != nil {
		return nil, err
	}
	res := req.PrevResult.Clone()
	if egress != nil {
		res.Interfaces = append(res.Interfaces, iface.Describe(ifb))
	}
	return res, nil
}

// del removes whatever the attachment has. The host end may live on.
func del(_ context.Context, req *skel.Request) error {
	c, err := open(req)
	if err != nil {
		return err
	}
	end, err := c.findHostEnd()
	if err != nil {
		return err
	}
	return c.remove(end)
}

// gc removes the IFBs of attachments that are not valid, what leads to them, and the
// filters of the host ends that do. Other host ends go with the GC of the plugin that made them.
func gc(_ context.Context, req *skel.Request) error {
	c, err := open(req)
	if err != nil {
		return err
	}
	links, err := c.host.Links()
	errs := []error{err}
	var keep []string // names that IFBs of valid attachments may have without a mark
	for _, a := range req.Valid.All() {
		keep = append(keep, names(a)...)
	}
	for _, l := range links {
		halfMade := isHalfMade(l, req.Network) && !slices.Contains(keep, l.Name)
		if l.Kind != "ifb" || !req.Valid.Garbage(l.Alias) && !halfMade {
			continue
		}
		users, err := c.users(l)
		errs = append(errs, err)
		for _, end := range users {
			errs = append(errs, c.unlimit(end.Index, l.Index))
		}
		errs = append(errs, c.host.DelLink(l.Index))
	}
	return errors.Join(errs...)
}

// check compares what is limited.
func check(_ context.Context, req *skel.Request, cfg config) error {
	if cfg.ingress.rate == 0 && cfg.egress.rate == 0 {
		return nil
	}
	c, err := open(req)
	if err != nil {
		return err
	}
	end, err := c.hostEnd()
	if err != nil && cni.AsError(err).Code != cni.CodeInternal {
		err = cni.Errorf(cni.CodeDrift, "%w", err)
	}
	if err != nil {
		return err
	}
	ingress, egress, err := cfg.plan(end.MTU)
	if err != nil {
		return err
	}
	return errors.Join(c.verify("ingress", end, ingress), c.verifyEgress(end, egress))
}

// status says whether the kernel can limit anything.
func status(_ context.Context, req *skel.Request, _ config) error {
	c, err := open(req)
	if err == nil {
		err = c.host.ProbeQdisc("tbf")
	}
	if err != nil {
		return cni.Errorf(cni.CodeUnavailable, "token bucket filter: %w", err)
	}
	return nil
}

// hostEnd finds the host end of the container's interface. Who is in the container can
// choose indexes, and so point at another's host end: the result must name it, too.
func (c *call) hostEnd() (rtnl.Link, error) {
	inside, err := c.inside()
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return inside, c.NoInterface(rtnl.ErrNoLink)
	case err != nil:
		return inside, err
	case !inside.IsPairEnd():
		return inside, cni.Errorf(cni.CodeUnsupportedField,
			"CNI_IFNAME %q: is of kind %q, and bandwidth limits the host end of a veth or netkit pair", c.IfName,
			inside.Kind)
	}
	end, err := c.host.LinkByIndex(inside.Peer)
	if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
		return end, err
	}
	named := slices.ContainsFunc(c.PrevResult.Interfaces, func(i cni.Interface) bool {
		return i.Name == end.Name && i.Sandbox == ""
	})
	if err != nil || !named || end.Kind != inside.Kind || end.Peer != inside.Index {
		return end, cni.Refuse("prevResult.interfaces", nil, fmt.Sprintf(
			"has no interface of the host that is the other end of %q", c.IfName))
	}
	return end, nil
}

// inside looks at the container's interface.
func (c *call) inside() (rtnl.Link, error) {
	cont, err := rtnl.Dial(c.NS)
	if err != nil {
		return rtnl.Link{}, fmt.Errorf("container: %w", err)
	}
	defer cont.Close()
	return cont.Link(c.IfName)
}

// findHostEnd finds the host end for DEL: ours by its mark, that of other software by
// the namespace and the result, or without the namespace by the result alone. Where there is
// none its index is 0.
func (c *call) findHostEnd() (rtnl.Link, error) {
	for _, name := range iface.HostNames(c.Attachment) {
		end, err := c.host.Link(name)
		if err == nil && end.IsPairEnd() && c.Owns(end.Alias) || err != nil && !errors.Is(err, rtnl.ErrNoLink) {
			return end, err
		}
	}
	if c.PrevResult != nil && c.NS != nil {
		end, err := c.hostEnd()
		if err == nil || cni.AsError(err).Code == cni.CodeInternal {
			return end, err
		}
		return rtnl.Link{}, nil // the pair is gone
	}
	if c.PrevResult == nil {
		return rtnl.Link{}, nil
	}
	for _, i := range c.PrevResult.Interfaces {
		if i.Sandbox != "" || i.MAC == "" {
			continue
		}
		end, err := c.host.Link(i.Name)
		if err == nil && end.IsPairEnd() && strings.EqualFold(i.MAC, end.MAC.String()) ||
			err != nil && !errors.Is(err, rtnl.ErrNoLink) {
			return end, err
		}
	}
	return rtnl.Link{}, nil
}
