// Package ipam borrows addresses from an IPAM plugin and gives them back
// (specification, section 4). It also reads the files in which host-local says
// what it has lent, for GC of what the reference plugins left.
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

// Call is a command at which the IPAM plugin works.
type Call struct {
	client   Client
	delegate *invoke.Delegate // nil once it was awaited
}

// Start starts the plugin, for a caller who has something else to do until it
// needs the answer. Lease or Wait follows, in the same goroutine. A plugin that
// was started for an ADD may have reserved something: the caller registers
// Release.
func (c Client) Start(ctx context.Context, command string) (*Call, error) {
	if err := CheckType(c.Type); err != nil {
		return nil, err
	}
	d, err := c.Runner.Start(ctx, c.Type, command, c.Conf)
	if err != nil {
		return nil, err
	}
	return &Call{client: c, delegate: d}, nil
}

// Wait waits for the end of a command that has no answer.
func (a *Call) Wait(ctx context.Context) error {
	_, err := a.output(ctx)
	return err
}

func (a *Call) output(ctx context.Context) ([]byte, error) {
	d := a.delegate
	a.delegate = nil
	return d.Wait(ctx)
}

// Lease returns what an ADD reserved: at least one address, and no interfaces.
// An answer that cannot be used is code 102; the plugin's own error comes back
// with its code.
//
// When the plugin says that the attachment has addresses already (code 100), Lease
// gives them back and asks again: they are from before a reboot, or a crash.
// Podman starts such a container again without a DEL.
func (a *Call) Lease(ctx context.Context) (*cni.Result, error) {
	c := a.client
	out, err := a.output(ctx)
	if refused := (*cni.Error)(nil); errors.As(err, &refused) && refused.Code == cni.CodeExists {
		if err := c.Del(ctx); err != nil {
			return nil, errors.Join(refused, err)
		}
		out, err = c.Runner.Run(ctx, c.Type, "ADD", c.Conf)
	}
	if err != nil {
		return nil, err
	}
	return c.decode(out)
}

// Release gives the addresses back during a roll-back, in limited time. A
// plugin that was not awaited is ended first.
func (a *Call) Release(ctx context.Context) error {
	if a.delegate != nil {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_ = a.Wait(ended)
	}
	c := a.client
	c.Runner = c.Runner.ForUndo()
	return c.Del(ctx)
}

func (c Client) decode(answer []byte) (*cni.Result, error) {
	res, err := cni.DecodeResult(answer, c.Version)
	if err != nil {
		return nil, cni.Errorf(cni.CodeIPAM, "%s: its answer cannot be read: %w", c, err)
	}
	if len(res.IPs) == 0 {
		return nil, cni.Errorf(cni.CodeIPAM, "%s: its answer has no addresses", c)
	}
	for i, ip := range res.IPs {
		if slices.ContainsFunc(res.IPs[:i], func(o cni.IP) bool { return o.Address.Addr() == ip.Address.Addr() }) {
			return nil, cni.Errorf(cni.CodeIPAM, "%s: its answer has address %s twice", c, ip.Address.Addr())
		}
	}
	// An IPAM plugin knows nothing of interfaces (specification, section 5).
	res.Interfaces = nil
	for i := range res.IPs {
		res.IPs[i].Interface = nil
	}
	return res, nil
}

// NeedsInterface tells whether the plugin's DEL needs the container's
// interface, as dhcp's does, which tells its server through it. Only plugins
// that keep their leases in a store are known to do without.
func (c Client) NeedsInterface() bool {
	return !slices.Contains([]string{"host-local", "static", "whereabouts"}, c.Type)
}

// Del gives the attachment's addresses back.
func (c Client) Del(ctx context.Context) error { return c.run(ctx, "DEL") }

// GC hands on a garbage collection: the configuration holds the list of valid
// attachments.
func (c Client) GC(ctx context.Context) error { return c.run(ctx, "GC") }

// Status asks whether the plugin could serve an ADD. One that is not there is
// code 50: it could not.
func (c Client) Status(ctx context.Context) error {
	if cni.ValidType(c.Type) {
		if _, err := c.Runner.Find(c.Type); err != nil {
			return cni.Errorf(cni.CodeUnavailable, "%w", err)
		}
	}
	return c.run(ctx, "STATUS")
}

// CheckType refuses, with code 7, an ipam.type that can be no plugin's name.
func CheckType(name string) error {
	if cni.ValidType(name) {
		return nil
	}
	return cni.Refuse("ipam.type", name, "is no plugin name (it must be a plain file name)").
		Suggest("name a program in CNI_PATH, host-local for example")
}

func (c Client) run(ctx context.Context, command string) error {
	if err := CheckType(c.Type); err != nil {
		return err
	}
	_, err := c.Runner.Run(ctx, c.Type, command, c.Conf)
	return err
}

// String names the plugin for messages.
func (c Client) String() string { return fmt.Sprintf("IPAM plugin %q", c.Type) }
