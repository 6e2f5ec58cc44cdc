package ipam

import (
	"context"
	"errors"
	"fmt"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// The start of a program and what the kernel does for us take a millisecond or
// two each, deleting a link many more. Where nothing speaks against it they go
// on side by side.

// NeedsNothing says of plugins that are known that they do without the
// interface, and do nothing before they have read their configuration. Others
// may not: dhcp sends its requests through the interface.
func (c Client) NeedsNothing() bool { return c.Type == "host-local" || c.Type == "static" }

// AddBeside is Add for a plugin that NeedsNothing and a caller who has work to
// do: it is done while the plugin runs. When it fails the plugin is ended, and
// may have reserved something nevertheless.
func (c Client) AddBeside(ctx context.Context, work func() error) (*cni.Result, error) {
	d, err := c.Runner.Start(ctx, c.Type, "ADD", c.Conf)
	if err != nil {
		return nil, err
	}
	waiting := false
	defer func() {
		if !waiting { // a panic must not leave it at work, either
			d.Abandon()
		}
	}()
	if err := work(); err != nil {
		return nil, err
	}
	waiting = true
	out, err := d.Wait(ctx)
	return c.lease(ctx, out, err)
}

// CheckBeside is Check for a caller who has something to compare meanwhile, and
// what that found.
func (c Client) CheckBeside(ctx context.Context, work func() []error) []error {
	d, err := c.Runner.Start(ctx, c.Type, "CHECK", c.Conf)
	if err != nil {
		return append(work(), err)
	}
	found := work()
	_, err = d.Wait(ctx)
	return append(found, err)
}

// DelAfter gives the addresses back once remove says that the interface that had
// them is gone: they must not be given to another while somebody answers to them.
// No Type means that there are none.
func (c Client) DelAfter(ctx context.Context, remove func() (gone bool, err error)) error {
	if c.NeedsNothing() {
		return c.delBeside(ctx, remove)
	}
	gone, err := remove()
	switch {
	case c.Type == "":
		return err
	case !gone:
		return errors.Join(err, c.withheld())
	}
	return errors.Join(err, c.Del(ctx))
}

// delBeside lets the plugin get ready while the kernel removes the interface.
// It is told what to release, by its configuration, only then.
func (c Client) delBeside(ctx context.Context, remove func() (gone bool, err error)) error {
	removed, done := make(chan bool, 1), make(chan error, 1)
	go func() {
		c.Runner.Hold = true
		d, err := c.Runner.Start(ctx, c.Type, "DEL", c.Conf)
		gone := <-removed
		switch {
		case err == nil && gone:
			_, err = d.Wait(ctx)
		case err == nil:
			d.Abandon()
		}
		if !gone {
			err = c.withheld()
		}
		done <- err
	}()
	gone, err := remove()
	removed <- gone
	return errors.Join(err, <-done)
}

func (c Client) withheld() error {
	return fmt.Errorf("%s: not asked to release the addresses while the interface may still be there", c)
}
