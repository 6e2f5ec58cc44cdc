// Package ipam borrows addresses from an IPAM plugin and gives them back
// (specification, section 4).
package ipam

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/invoke"
)

// Client speaks to the IPAM plugin that a configuration names.
type Client struct {
	Type    string // the plugin's name: ipam.type
	Conf    []byte // the configuration as we were given it
	Version string // its cniVersion
	Runner  invoke.Runner
}

// Add asks for the addresses of an attachment that has no interface yet. The
// answer has at least one address, and no interfaces. An answer that cannot be
// used is code 102; the plugin's own error comes back with its code.
//
// What the plugin has of the attachment already (code 100) is given back first:
// it is from before a reboot, or a crash. Podman starts such a container again
// without a DEL.
//
// Whatever Add returns, the plugin may have reserved something once it was
// started: the caller registers Release before it calls Add.
func (c Client) Add(ctx context.Context) (*cni.Result, error) {
	out, err := c.run(ctx, "ADD")
	return c.lease(ctx, out, err)
}

// lease reads the answer to ADD.
func (c Client) lease(ctx context.Context, out []byte, err error) (*cni.Result, error) {
	var refused *cni.Error
	if errors.As(err, &refused) && refused.Code == cni.CodeExists {
		if err := c.Del(ctx); err != nil {
			return nil, errors.Join(refused, err)
		}
		out, err = c.run(ctx, "ADD")
	}
	if err != nil {
		return nil, err
	}
	res, err := cni.DecodeResult(out, c.Version)
	if err != nil {
		return nil, cni.Errorf(cni.CodeIPAM, "IPAM plugin %q: its answer cannot be read: %w", c.Type, err)
	}
	if len(res.IPs) == 0 {
		return nil, cni.Errorf(cni.CodeIPAM, "IPAM plugin %q: its answer has no addresses", c.Type)
	}
	for i, ip := range res.IPs {
		if slices.ContainsFunc(res.IPs[:i], func(o cni.IP) bool { return o.Address.Addr() == ip.Address.Addr() }) {
			return nil, cni.Errorf(cni.CodeIPAM, "IPAM plugin %q: its answer has address %s twice", c.Type, ip.Address.Addr())
		}
	}
	// An IPAM plugin knows nothing of interfaces (specification, section 5).
	res.Interfaces = nil
	for i := range res.IPs {
		res.IPs[i].Interface = nil
	}
	return res, nil
}

// Release gives the addresses back during a roll-back, in limited time.
func (c Client) Release(ctx context.Context) error {
	c.Runner = c.Runner.ForUndo()
	return c.Del(ctx)
}

// Del gives the attachment's addresses back.
func (c Client) Del(ctx context.Context) error { return c.only(ctx, "DEL") }

// GCWhenGone hands on a garbage collection once the interfaces are gone.
func (c Client) GCWhenGone(ctx context.Context, gone bool) error {
	if c.Type == "" || !gone {
		return nil // what is still there has said why
	}
	return c.GC(ctx)
}

// Check asks whether the attachment's addresses are still reserved.
func (c Client) Check(ctx context.Context) error { return c.only(ctx, "CHECK") }

// GC hands on a garbage collection: the configuration holds the list of valid
// attachments.
func (c Client) GC(ctx context.Context) error { return c.only(ctx, "GC") }

// Status asks whether the plugin could serve an ADD. One that is not there is
// code 50: it could not.
func (c Client) Status(ctx context.Context) error {
	if cni.ValidType(c.Type) {
		if _, err := c.Runner.Find(c.Type); err != nil {
			return cni.Errorf(cni.CodeUnavailable, "%w", err)
		}
	}
	return c.only(ctx, "STATUS")
}

func (c Client) only(ctx context.Context, command string) error {
	_, err := c.run(ctx, command)
	return err
}

// CheckType refuses, with code 7, an ipam.type that can be no plugin's name.
func CheckType(name string) error {
	if cni.ValidType(name) {
		return nil
	}
	return cni.Refuse("ipam.type", name, "is no plugin name (it must be a plain file name)").
		Suggest("name a program in CNI_PATH, host-local for example")
}

func (c Client) run(ctx context.Context, command string) ([]byte, error) {
	if err := CheckType(c.Type); err != nil {
		return nil, err
	}
	out, err := c.Runner.Run(ctx, c.Type, command, c.Conf)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// String names the plugin for messages.
func (c Client) String() string { return fmt.Sprintf("IPAM plugin %q", c.Type) }
