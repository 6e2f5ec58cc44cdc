package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

const kind = "macvlan"

// child says how the macvlan is to be made.
func (c config) child() attach.Child {
	return attach.Child{New: rtnl.NewLink{Kind: kind, Mode: c.Mode, QueueLen: c.QueueLen}, Link: c.Link,
		Master: &c.Master, DAD: c.DAD, Make: c.make}
}

// make makes the macvlan.
func (c config) make(ctx context.Context, s *attach.Session, name string) error {
	if c.Mode != passthru && c.Link.MAC != nil && slices.Equal(c.Link.MAC, s.Master.MAC) {
		return cni.Refuse("mac", c.Link.MAC.String(), fmt.Sprintf("is that of master %q", s.Master.Name))
	}
	err := attach.MakeLink(ctx, s, name)
	switch {
	case errors.Is(err, unix.EINVAL):
		return cni.Errorf(cni.CodeConflict,
			"master: %q: refuses a macvlan of mode %q (nothing can be beside a passthru): %w", s.Master.Name, c.Mode,
			err)
	case err != nil || c.Mode != passthru || c.Link.MAC == nil:
		return err
	}
	// The kernel gives a passthru the master's MAC address, whatever it was asked for. Now both get the wished one,
	// and the master its own again when the passthru goes.
	l, err := s.Cont.Link(name)
	if err != nil {
		return err
	}
	return s.Cont.SetLink(l.Index, rtnl.LinkChange{MAC: c.Link.MAC})
}
