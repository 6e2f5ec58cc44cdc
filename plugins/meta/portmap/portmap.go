package main

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// call is one call under way: the sockets that it uses.
type call struct {
	*skel.Request
	host *rtnl.Conn
	nf   *nft.Conn
}

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	if req.PrevResult == nil {
		return nil, cni.Errorf(cni.CodeConfig, "prevResult: missing; portmap works behind the plugin that makes the interface")
	}
	if len(cfg.mappings) == 0 {
		return req.PrevResult, nil
	}
	c, err := open(req)
	if err != nil {
		return nil, err
	}
	defer c.close()
	req.Step("look at the container")
	st, err := c.describe(cfg)
	if err != nil {
		return nil, err
	}
	c.warn(cfg, st)
	req.Step("publish the ports")
	dead, err := c.publish(ctx, cfg, st)
	if err != nil {
		return nil, err
	}
	req.Step("flush connections")
	return req.PrevResult, c.flushAdded(st, dead)
}

func del(ctx context.Context, req *skel.Request) error {
	c, err := open(req)
	if err != nil {
		return err
	}
	defer c.close()
	return c.unpublish(ctx, req.Attachment)
}

func check(ctx context.Context, req *skel.Request, cfg config) error {
	if req.PrevResult == nil {
		return cni.Errorf(cni.CodeConfig, "prevResult: missing; CHECK compares the rules with it")
	}
	if len(cfg.mappings) == 0 {
		return nil
	}
	c, err := open(req)
	if err != nil {
		return err
	}
	defer c.close()
	want, err := c.describe(cfg)
	if err != nil {
		return err
	}
	return c.verify(ctx, cfg, want)
}

func gc(ctx context.Context, req *skel.Request) error {
	c, err := open(req)
	if err != nil {
		return err
	}
	defer c.close()
	return c.collect(ctx)
}

func status(_ context.Context, req *skel.Request, cfg config) error {
	c, err := open(req)
	if err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	defer c.close()
	return c.status(cfg)
}

func open(req *skel.Request) (*call, error) {
	host, err := rtnl.Dial(nil)
	if err != nil {
		return nil, err
	}
	c := &call{Request: req, host: host, nf: nft.New()}
	return c, nil
}

func (c *call) close() {
	_ = c.host.Close()
	_ = c.nf.Close()
}

// describe works out what the attachment's rules are made from.
func (c *call) describe(cfg config) (*state, error) {
	st := &state{Network: c.Network, ContainerID: c.ContainerID, IfName: c.IfName,
		Options: cfg.options, Mappings: cfg.mappings, Targets: targets(c.PrevResult.ContainerIPs(c.IfName))}
	if len(st.Targets) == 0 {
		return nil, cni.Errorf(cni.CodeConfig, "prevResult: has no address of interface %q to forward ports to", c.IfName)
	}
	for i := range st.Targets {
		if err := c.inspect(st, &st.Targets[i]); err != nil {
			return nil, err
		}
	}
	var err error
	st.Life, err = lifeOf(c.host, c.NS, c.IfName)
	return st, err
}

// inspect looks where the host sends packets to the target. Without a way
// there nothing more is needed.
func (c *call) inspect(st *state, t *target) error {
	index, _, err := c.host.RouteTo(t.Addr.Addr())
	if err != nil && !unreachable(err) {
		return err
	}
	if err != nil || index == loopbackIndex {
		return nil
	}
	link, err := c.host.LinkByIndex(index)
	if err != nil {
		return err
	}
	if link.Kind == "veth" && link.PeerNS != -1 {
		// Nobody else is on a point to point link.
		t.Near = singlePrefix(t.Addr.Addr())
	}
	if t.v4() && st.Options.SNAT {
		st.Localnet = link.Name
	}
	return nil
}

// unreachable reports whether the answer to a question for a route was that there
// is none, or one of the types unreachable, prohibit and blackhole, or that the
// kernel lacks the family.
func unreachable(err error) bool {
	return slices.ContainsFunc([]error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ENETDOWN, unix.EACCES, unix.EINVAL,
		unix.EAFNOSUPPORT, unix.EOPNOTSUPP}, func(errno error) bool { return errors.Is(err, errno) })
}

func singlePrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
