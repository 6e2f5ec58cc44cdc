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

// makeMacvlan makes the macvlan.
func makeMacvlan(ctx context.Context, s *attach.Session, name string) error {
	mode, mac := s.Child.New.Mode, s.Child.Link.MAC
	if mode != passthru && mac != nil && slices.Equal(mac, s.Master.MAC) {
		return cni.Refuse("mac", mac.String(), fmt.Sprintf("is that of master %q", s.Master.Name))
	}
	err := attach.MakeLink(ctx, s, name)
	switch {
	case errors.Is(err, unix.EINVAL):
		return cni.Errorf(cni.CodeConflict,
			"master: %q: refuses a macvlan of mode %q (nothing can be beside a passthru): %w", s.Master.Name, mode, err)
	case err != nil || mode != passthru || mac == nil:
		return err
	}
	// The kernel gives a passthru the master's MAC address, whatever it was asked for. Now both get the wished one,
	// and the master its own again when the passthru goes.
	l, err := s.Cont.Link(name)
	if err != nil {
		return err
	}
	return s.Cont.SetLink(l.Index, rtnl.LinkChange{MAC: mac})
}
