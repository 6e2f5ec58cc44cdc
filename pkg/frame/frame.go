// Package frame is what the calls of all network plugins have in common: the request, sockets
// in the namespaces that the plugin works in, and the links that it looks for there. A chained
// plugin works on an interface that another one made. What it needs of that interface, of its
// other end and of the container's namespace is here.
package frame

import (
	"context"
	"errors"
	"fmt"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// Call is a call under way. It has the sockets that the plugin opens, until the call is over, and a failed ADD rolled
// back.
type Call struct {
	*skel.Request
	Host *rtnl.Conn // in the host's namespace
	Cont *rtnl.Conn // in the container's
	NF   *nft.Conn

	NetnsID ns.Identity // of the container's namespace, read with Cont

	ContEnd rtnl.Link // the container's interface
	HostEnd rtnl.Link // its other end, on the host; none of an interface that has no pair
}

// OpenHost begins a call that works on the host: it opens Host and NF.
func OpenHost(req *skel.Request) (*Call, error) {
	host, err := rtnl.Dial(nil)
	if err != nil {
		return nil, err
	}
	c := &Call{Request: req, Host: host, NF: nft.New()}
	req.OnDone(func() { _ = errors.Join(c.Host.Close(), c.NF.Close()) })
	return c, nil
}

// OpenContainer begins a call that works in the container alone: it opens Cont.
func OpenContainer(req *skel.Request) (*Call, error) {
	c := &Call{Request: req}
	return c, c.OpenContainer()
}

// OpenContainer opens Cont, and reads NetnsID.
func (c *Call) OpenContainer() error {
	err := c.NS.Do(func() (err error) {
		if c.NetnsID, err = c.NS.IdentityInside(); err == nil {
			c.Cont, err = rtnl.Dial(nil)
		}
		return err
	})
	c.OnDone(func() { _ = c.Cont.Close() })
	if err != nil {
		return fmt.Errorf("container: %w", err)
	}
	return nil
}

// LockNetns keeps other calls of chained plugins, also of the reference's, from changing the container's namespace
// until this call is over.
func (c *Call) LockNetns(ctx context.Context) error {
	held, err := LockNetns(ctx, c.NS)
	if err == nil {
		c.OnDone(func() { _ = held.Unlock() })
	}
	return err
}

// LockNetns is Call.LockNetns for a namespace and a caller who unlocks it.
func LockNetns(ctx context.Context, n *ns.NS) (*statefile.Held, error) {
	return statefile.LockFD(ctx, n.FD(), n.Path())
}

// FindInterface finds the container's interface, ContEnd, and notes its MAC address in NetnsID. Where there is
// none the error says so, and matches rtnl.ErrNoLink.
func (c *Call) FindInterface() error {
	if c.Cont == nil {
		if err := c.OpenContainer(); err != nil {
			return err
		}
	}
	l, err := c.Cont.Link(c.IfName)
	if errors.Is(err, rtnl.ErrNoLink) {
		return c.NoInterface(rtnl.ErrNoLink)
	}
	c.ContEnd, c.NetnsID.MAC = l, l.MAC.String()
	return err
}

// VerifyInterface is FindInterface for CHECK: that there is none is a difference.
func (c *Call) VerifyInterface() error {
	err := c.FindInterface()
	if errors.Is(err, rtnl.ErrNoLink) {
		return cni.Drift("interface %q: is gone", c.IfName)
	}
	return err
}

// FindHostEnd finds the container's interface and its other end, HostEnd. The error matches
// rtnl.ErrNoLink where one of them is not there; ContEnd tells which.
func (c *Call) FindHostEnd() error {
	err := c.FindInterface()
	if err == nil {
		c.HostEnd, err = c.Host.OtherEnd(c.ContEnd)
	}
	return err
}
