// Package ipam runs the IPAM plugin that a configuration names (specification, section 4), and says which of its
// answers can be used.
package ipam

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// Client speaks to the IPAM plugin that a configuration names.
type Client struct {
	Type    string // the plugin's name: ipam.type
	Conf    []byte // the configuration as we were given it
	Version string // its cniVersion

	// What the plugin is given of our own call.
	Path   string   // CNI_PATH: directories separated by colons
	Env    []string // our environment, KEY=value
	Stderr io.Writer

	file string // the plugin's, once it was found
}

// CheckType refuses, with code 7, an ipam.type that can be no plugin's name.
func CheckType(name string) error {
	if cni.ValidType(name) {
		return nil
	}
	return cni.Refuse("ipam.type", name, "is no plugin name (it must be a plain file name)").
		Suggest("name a program in CNI_PATH, host-local for example")
}

// Result waits for the answer to an ADD: at least one address, and no interfaces.
// An answer that cannot be used is code 102.
//
// When the plugin says that the attachment has addresses already (code 100), Result gives
// them back and asks again: Podman starts a container again after a reboot or a crash
// without a DEL.
func (c *Client) Result(ctx context.Context, adding *Delegate) (*cni.Result, error) {
	out, err := adding.Wait(ctx)
	if refused := (*cni.Error)(nil); errors.As(err, &refused) && refused.Code == cni.CodeExists {
		if err := c.Run(ctx, "DEL"); err != nil {
			return nil, errors.Join(refused, err)
		}
		out, err = c.answer(ctx, "ADD")
	}
	if err != nil {
		return nil, err
	}
	return c.decode(out)
}

// Release gives the addresses back during a roll-back. It ends adding first, an ADD whose
// answer nobody waited for; nil = none.
func (c *Client) Release(ctx context.Context, adding *Delegate) error {
	if adding != nil {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, _ = adding.Wait(ended)
	}
	return c.Run(ctx, "DEL")
}

func (c *Client) decode(answer []byte) (*cni.Result, error) {
	res, err := cni.DecodeResult(answer, c.Version)
	if err != nil {
		return nil, cni.Errorf(cni.CodeIPAM, "%s: its answer cannot be read: %w", c, err)
	}
	if len(res.IPs) == 0 {
		return nil, cni.Errorf(cni.CodeIPAM, "%s: its answer has no addresses", c)
	}
	res.Interfaces = nil // an IPAM plugin knows nothing of interfaces (specification, section 5)
	for i, ip := range res.IPs {
		if slices.ContainsFunc(res.IPs[:i], func(o cni.IP) bool { return o.Address.Addr() == ip.Address.Addr() }) {
			return nil, cni.Errorf(cni.CodeIPAM, "%s: its answer has address %s twice", c, ip.Address.Addr())
		}
		res.IPs[i].Interface = nil
	}
	return res, nil
}

// NeedsInterface reports whether the plugin's DEL may need the container's interface, as
// dhcp's does to reach its server. Plugins that are known to keep a store do not.
func (c *Client) NeedsInterface() bool {
	return !slices.Contains([]string{"host-local", "static", "whereabouts"}, c.Type)
}

// Status asks whether the plugin could serve an ADD. A missing plugin is code 50.
func (c *Client) Status(ctx context.Context) error {
	if err := CheckType(c.Type); err != nil {
		return err
	}
	if err := c.Find(); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	return c.Run(ctx, "STATUS")
}

// String names the plugin for messages.
func (c *Client) String() string { return fmt.Sprintf("IPAM plugin %q", c.Type) }
