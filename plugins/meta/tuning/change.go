package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// change is one ADD or CHECK under way: the request, its configuration and
// what the namespace has.
type change struct {
	*skel.Request
	cfg    config
	conn   *rtnl.Conn
	link   rtnl.Link // the zero Link when there is none and none is needed
	before originals
}

// make does the work of ADD. It runs on a thread in the container's namespace,
// as sysctls need, from the beginning to the end: going in and out again for
// each step takes longer than the steps.
func (c *change) make(ctx context.Context) error {
	if err := c.dial(); err != nil {
		return err
	}
	c.Step("look at the interface")
	// What is wrong is refused here, before anything is written anywhere.
	if err := c.look(); err != nil {
		return err
	}
	c.Step("keep the values from before")
	if err := c.keep(ctx); err != nil {
		return err
	}
	c.Step("change")
	if err := c.writeSysctls(); err != nil {
		return err
	}
	return c.changeLink()
}

// dial opens a socket in the calling thread's namespace.
func (c *change) dial() error {
	conn, err := rtnl.Dial(nil)
	if err != nil {
		return err
	}
	c.OnDone(func() { _ = conn.Close() })
	c.conn = conn
	return nil
}

// look reads what the configuration is going to change, and refuses what is
// not there.
func (c *change) look() error {
	link, err := c.conn.Link(c.IfName)
	switch {
	case errors.Is(err, rtnl.ErrNoLink) && c.cfg.Link.empty():
	case errors.Is(err, rtnl.ErrNoLink):
		return cni.Errorf(cni.CodeEnvironment, "CNI_IFNAME %q: no such interface in CNI_NETNS %q", c.IfName, c.Netns)
	case err != nil:
		return err
	}
	if mac := c.cfg.Link.MAC; mac != nil && len(mac) != len(link.MAC) {
		return bad("mac", mac.String(), fmt.Sprintf("an address of %q has %d bytes", c.IfName, len(link.MAC)))
	}
	if name := backupName(c.Attachment); len(name) > nameMax {
		return cni.Errorf(cni.CodeEnvironment, "CNI_CONTAINERID %q: too long for the file name %q", c.ContainerID, name)
	}
	c.link, c.before = link, c.cfg.Link.of(link)
	c.before.Sysctls, err = c.readSysctls()
	return err
}

// readSysctls reads the present values. Those that can only be written have
// none to be kept.
func (c *change) readSysctls() (pairs, error) {
	var found pairs
	for _, s := range c.cfg.Sysctls {
		value, err := s.Key.Read()
		switch {
		case err == nil:
			found = append(found, pair{s.Key.String(), value})
		case errors.Is(err, fs.ErrNotExist):
			return nil, bad(s.name(), s.Value, "no such sysctl in the container's network namespace")
		case errors.Is(err, unix.EISDIR):
			return nil, bad(s.name(), s.Value, "is a directory of sysctls")
		case cni.Transient(err):
			return nil, sysctlError(s, err)
		}
	}
	return found, nil
}

// keep writes down what there was, so that DEL finds it whatever becomes of
// us. What an earlier ADD of this attachment found stays: only that was
// there before any of them.
func (c *change) keep(ctx context.Context) error {
	s, err := openStore(ctx, c.cfg.DataDir, c.Warn)
	if err != nil {
		return err
	}
	// The lock lasts until the answer is out: what others find is then what we
	// have made of it, or what it was.
	c.OnDone(func() { _ = s.close() })
	if err := c.look(); err != nil { // again, now that nobody changes it
		return err
	}
	r := record{Network: c.Network, ContainerID: c.ContainerID, IfName: c.IfName, Before: c.before}
	if r.Place, err = findPlace(c.NS, c.link); err != nil {
		return err
	}
	if c.cfg.Link.MAC != nil {
		r.Place.MAC = c.cfg.Link.MAC.String()
	}
	if r.Since, err = bootClock(); err != nil {
		return err
	}
	was, err := s.inherit(&r)
	if err != nil {
		return err
	}
	c.OnFail("restore the backup file", func(context.Context) error { return s.putBack(r, was) })
	return s.put(r, was.alone)
}

// writeSysctls writes the sysctls in their order.
func (c *change) writeSysctls() error {
	for _, s := range c.cfg.Sysctls {
		// Before it is written: an error need not mean that it was not.
		if old, ok := c.before.Sysctls.get(s.Key.String()); ok {
			c.OnFail("restore "+s.name(), func(context.Context) error {
				return c.NS.Do(func() error { return s.Key.Write(old) })
			})
		}
		if err := s.Key.Write(s.Value); err != nil {
			return sysctlError(s, err)
		}
	}
	return nil
}

func sysctlError(s setting, err error) error {
	code := cni.CodeIO
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ERANGE) || errors.Is(err, fs.ErrNotExist) {
		code = cni.CodeConfig
	}
	return cni.Errorf(code, "%s: %w", s.name(), err)
}

// changeLink sets the interface's attributes, each by itself, so that an error
// says which one the kernel refused.
func (c *change) changeLink() error {
	for _, s := range c.cfg.Link.steps(c.link) {
		// Before it is set: the answer may be lost.
		c.OnFail("restore "+s.key, func(context.Context) error { return c.conn.SetLink(c.link.Index, s.undo) })
		if err := c.conn.SetLink(c.link.Index, s.set); err != nil {
			return linkError(s, err)
		}
	}
	return nil
}

func linkError(s step, err error) error {
	code := cni.CodeInternal
	switch {
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ERANGE) || errors.Is(err, unix.EADDRNOTAVAIL):
		code = cni.CodeConfig
	case errors.Is(err, unix.EOPNOTSUPP):
		code = cni.CodeUnsupportedField
	}
	return cni.Errorf(code, "%s: %s: %w", s.key, s.value, err)
}

// step sets one attribute of the interface.
type step struct {
	key, value string
	set, undo  rtnl.Change
}

// steps lists what must change of link, in the order of the reference plugin.
func (l linkConfig) steps(link rtnl.Link) []step {
	var all []step
	if l.MAC != nil && l.MAC.String() != link.MAC.String() {
		all = append(all, step{"mac", l.MAC.String(), rtnl.Change{MAC: l.MAC}, rtnl.Change{MAC: link.MAC}})
	}
	if l.Promisc && !link.Promisc {
		all = append(all, step{"promisc", "true", rtnl.Change{Promisc: &l.Promisc}, rtnl.Change{Promisc: &link.Promisc}})
	}
	if l.MTU != 0 && l.MTU != link.MTU {
		all = append(all, step{"mtu", fmt.Sprint(l.MTU), rtnl.Change{MTU: l.MTU}, rtnl.Change{MTU: link.MTU}})
	}
	if l.AllMulti != nil && *l.AllMulti != link.AllMulti {
		all = append(all, step{"allmulti", fmt.Sprint(*l.AllMulti), rtnl.Change{AllMulti: l.AllMulti}, rtnl.Change{AllMulti: &link.AllMulti}})
	}
	if l.TxQLen != nil && *l.TxQLen != link.TxQLen {
		all = append(all, step{"txQLen", fmt.Sprint(*l.TxQLen), rtnl.Change{TxQLen: l.TxQLen}, rtnl.Change{TxQLen: &link.TxQLen}})
	}
	return all
}

// of returns link's values of what l changes, for the backup file.
func (l linkConfig) of(link rtnl.Link) originals {
	var o originals
	if l.MAC != nil {
		o.MAC = link.MAC.String()
	}
	if l.Promisc {
		o.Promisc = &link.Promisc
	}
	if l.MTU != 0 {
		o.MTU = link.MTU
	}
	if l.AllMulti != nil {
		o.AllMulti = &link.AllMulti
	}
	if l.TxQLen != nil {
		o.TxQLen = &link.TxQLen
	}
	return o
}
