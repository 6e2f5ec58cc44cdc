package attach

import (
	"context"
	"errors"
	"fmt"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

// statusChild is code 50 where an ADD could not make the Child, and else IPAM's answer.
func statusChild(ctx context.Context, req *skel.Request, c Child) error {
	if err := c.ready(); err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	return Status(ctx, req, Masq{})
}

func (c Child) ready() error {
	if err := statefile.Writable(childDir); err != nil {
		return err
	}
	if c.Ready != nil {
		return c.Ready()
	}
	host, err := rtnl.Dial(nil)
	if err != nil {
		return err
	}
	defer host.Close()
	if c.Master != nil && c.Master.Master != "" && !c.Master.LinkInContainer {
		l, err := host.Link(c.Master.Master)
		if errors.Is(err, rtnl.ErrNoLink) {
			return fmt.Errorf("master: %q: no such interface: %w", c.Master.Master, rtnl.ErrNoLink)
		}
		if err == nil {
			err = refuseLoopback(l)
		}
		if err != nil {
			return err
		}
		if name := holder(host, l); name != "" && c.Kind != "vlan" {
			return fmt.Errorf("master: %q: is held by %s", l.Name, name)
		}
	}
	if err := host.ProbeKind(c.Kind); err != nil {
		return fmt.Errorf("%s: not supported by this kernel: %w", c.Kind, err)
	}
	return nil
}

// verifyChild compares what AddChild made with what is there.
func (s *Session) verifyChild(ctx context.Context, c Child) []error {
	l, err := s.Cont.Link(s.IfName)
	if err != nil {
		return []error{iface.Drifted(fmt.Errorf("container: %w", err))}
	}
	drift := func(text string) error { return cni.Drift("interface %q: %s", s.IfName, text) }
	if l.Kind != c.Kind {
		return []error{drift(fmt.Sprintf("is of kind %q instead of %q", l.Kind, c.Kind))}
	}
	r, recorded, err := childRecords().Get(s.Hash())
	if err != nil {
		return []error{err}
	}
	var errs []error
	if !s.Owns(l.Alias) && (recorded && r.Link != l.Index || !recorded && l.Alias != "") {
		errs = append(errs, drift("is not the one that ADD made"))
	}
	if err := s.verifyMaster(c, r, l); err != nil {
		errs = append(errs, iface.Drifted(err))
	}
	if l.Mode != c.Mode {
		errs = append(errs, drift(fmt.Sprintf("mode is %q instead of %q", l.Mode, c.Mode)))
	}
	if c.Verify != nil {
		for _, text := range c.Verify(s, l) {
			errs = append(errs, drift(text))
		}
	}
	return append(errs, iface.Verify(s.child(c), s.expected(c)))
}

// expected is the result without an MTU that nobody configured: that follows the master's.
func (s *Session) expected(c Child) *cni.Result {
	res := s.PrevResult.Clone()
	for i := range res.Interfaces {
		if c.Link.MTU == 0 {
			res.Interfaces[i].MTU = 0
		}
	}
	return res
}

// verifyMaster compares what the link is on with the configured master, or with the one
// that ADD found.
func (s *Session) verifyMaster(c Child, r childRecord, l rtnl.Link) (err error) {
	if c.Master == nil || c.Master.Master == "" && r.Master == 0 {
		return nil
	}
	s.masterInside = c.Master.LinkInContainer
	conn := s.MasterSide()
	if c.Master.Master != "" {
		s.Master, err = conn.Link(c.Master.Master)
	} else {
		s.Master, err = conn.LinkByIndex(r.Master)
	}
	if err != nil {
		return fmt.Errorf("master: %w", err)
	}
	want := c.masterIndex(s.Master)
	if elsewhere := l.PeerNS >= 0; l.Peer != want || s.Master.Kind != c.Kind && elsewhere == c.Master.LinkInContainer {
		return fmt.Errorf("interface %q: is not on master %q (#%d) but on #%d", s.IfName, s.Master.Name, want, l.Peer)
	}
	return nil
}
