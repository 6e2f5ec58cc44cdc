package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

const (
	kind    = "tun" // as the kernel calls taps, too
	control = "/dev/net/tun"
)

// child says how the tap is to be made.
func (c config) child() attach.Child {
	return attach.Child{New: rtnl.NewLink{Kind: kind}, Link: c.Link, Make: c.make, Ready: c.ready, Verify: c.verify}
}

// ready is why this host can make no tap, or none with the label.
func (c config) ready() error {
	f, err := os.OpenFile(control, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), c.checkLabel())
}

// make makes the tap. Until it is persistent it goes with our descriptor, so that nothing
// is left of one whose ADD was killed.
func (c config) make(ctx context.Context, s *attach.Session, name string) error {
	bridge, err := c.findBridge(s)
	if err != nil {
		return err
	}
	if err := c.checkLabel(); err != nil {
		return err
	}
	f, err := openIn(s.NS)
	if err != nil {
		return cni.Errorf(cni.CodeUnsupportedField, "tap: this host has none: %w", err)
	}
	defer f.Close()
	if err := c.create(ctx, f, name); err != nil {
		return err
	}
	fd := int(f.Fd())
	if err := c.allow(fd); err != nil {
		return err
	}
	l, err := s.Cont.Link(name)
	if err != nil {
		return err
	}
	change := rtnl.LinkChange{MAC: c.Link.MAC, MTU: c.Link.MTU, Group: new(s.Group()), Master: bridge}
	if err := s.Cont.SetLink(l.Index, change); err != nil {
		return err
	}
	return os.NewSyscallError("TUNSETPERSIST", unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1))
}

// findBridge returns the index of the bridge that the tap is to be a port of; nil = none.
func (c config) findBridge(s *attach.Session) (*int, error) {
	if c.Bridge == "" {
		return nil, nil
	}
	l, err := s.Cont.Link(c.Bridge)
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return nil, cni.Refuse("bridge", c.Bridge,
			fmt.Sprintf("no such interface in the container: %v", rtnl.ErrNoLink))
	case err == nil && l.Kind != "bridge":
		return nil, cni.Refuse("bridge", c.Bridge, "is no bridge")
	}
	return &l.Index, err
}

// openIn opens the control device in the namespace: what is made through it is there. It is not os.OpenFile, which
// would poll the device before it has an interface and remember the error.
func openIn(n *ns.NS) (f *os.File, err error) {
	err = n.Do(func() error {
		fd, err := unix.Open(control, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: control, Err: err}
		}
		f = os.NewFile(uintptr(fd), control)
		return nil
	})
	return f, err
}

// create makes the tap of the control device. The error matches EEXIST when the name is taken.
func (c config) create(ctx context.Context, f *os.File, name string) error {
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_TUN_EXCL)
	if c.MultiQueue {
		flags |= unix.IFF_MULTI_QUEUE
	}
	var err error
	if c.Label == "" {
		err = createTap(f, name, flags)
	} else {
		err = c.createLabelled(ctx, f, name, flags)
	}
	if errors.Is(err, unix.EBUSY) {
		err = unix.EEXIST
	}
	return os.NewSyscallError("TUNSETIFF", err)
}

func createTap(f *os.File, name string, flags uint16) error {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	req.SetUint16(flags)
	return unix.IoctlIfreq(int(f.Fd()), unix.TUNSETIFF, req)
}

// allow lets the owner and the group open the tap.
func (c config) allow(fd int) error {
	if c.Owner != nil {
		if err := unix.IoctlSetInt(fd, unix.TUNSETOWNER, int(*c.Owner)); err != nil {
			return cni.Refuse("owner", *c.Owner, err.Error())
		}
	}
	if c.Group != nil {
		if err := unix.IoctlSetInt(fd, unix.TUNSETGROUP, int(*c.Group)); err != nil {
			return cni.Refuse("group", *c.Group, err.Error())
		}
	}
	return nil
}

// verify says what differs of the tap itself.
func (c config) verify(s *attach.Session, l rtnl.Link) (differences []string) {
	compare := func(what string, is, want any) {
		if is != want {
			differences = append(differences, fmt.Sprintf("%s is %v instead of %v", what, is, want))
		}
	}
	var owner, group uint32 // 0 where nobody was named
	if c.Owner != nil {
		owner = *c.Owner
	}
	if c.Group != nil {
		group = *c.Group
	}
	compare("multiQueue", l.MultiQueue, c.MultiQueue)
	compare("owner", l.UID, owner)
	compare("group", l.GID, group)
	bridge, err := c.findBridge(s)
	if err != nil {
		return append(differences, err.Error())
	}
	if bridge != nil {
		compare("the index of its bridge", l.Master, *bridge)
	}
	return differences
}
