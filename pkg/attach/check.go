package attach

import (
	"context"
	"errors"
	"fmt"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/frame"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// Check compares what ADD made with what is there, by verify, while the IPAM
// plugin checks its lease.
func Check(ctx context.Context, req *skel.Request, verify func(*Session) []error) error {
	if req.PrevResult == nil {
		return cni.Errorf(cni.CodeConfig,
			"prevResult: Required prevResult missing; CHECK compares the container with it")
	}
	if _, ok := req.PrevResult.ContainerInterface(req.IfName); !ok {
		return cni.Drift("prevResult: has no interface %q in a container", req.IfName)
	}
	s, err := Open(req)
	if err != nil {
		return err
	}
	if s.IPAM == "" {
		return errors.Join(verify(s)...)
	}
	checking, err := s.ipam.Start(ctx, "CHECK")
	errs := verify(s)
	if err == nil {
		_, err = checking.Wait(ctx)
	}
	return errors.Join(append(errs, err)...)
}

// FindPair finds both ends of the pair for CHECK. master is the index of the bridge; 0 where there
// is none. A host end that the reference made must be a port of it.
func (s *Session) FindPair(master int) error {
	var err error
	if s.ContEnd, err = s.Cont.Link(s.IfName); err != nil {
		return iface.Drifted(fmt.Errorf("container: %w", err))
	}
	s.HostEnd, err = frame.MarkedHostEnd(s.Host, s.Attachment)
	if errors.Is(err, rtnl.ErrNoLink) {
		s.HostEnd, err = referencePeer(s.Host, s.ContEnd, master)
	}
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return cni.Drift("interface %q: has no host end", s.IfName)
	case err != nil:
		return err
	case s.HostEnd.Peer != s.ContEnd.Index:
		return cni.Drift("interface %q: is not the other end of host interface %q", s.IfName, s.HostEnd.Name)
	}
	return nil
}

// VerifyMasquerade is code 101 when Masquerade's rules are not there.
func (s *Session) VerifyMasquerade(ctx context.Context, m Masq) error {
	if !m.On {
		return nil
	}
	err := masq.Check(ctx, s.NF, masq.Config{
		Attachment: s.Attachment, Backend: m.Backend, Addrs: cni.Addresses(s.PrevResult.ContainerIPs(s.IfName)),
	})
	if err != nil {
		err = fmt.Errorf("masquerade: %w", err)
	}
	return iface.Drifted(err)
}

// Status is code 50 where ready, which may be nil, says why ADD would fail on this host, or where
// ADD could not masquerade. Else it is IPAM's answer.
func Status(ctx context.Context, req *skel.Request, m Masq, ready func(host *rtnl.Conn) error) error {
	if ready != nil {
		if err := frame.Status("", ready); err != nil {
			return err
		}
	}
	if m.On {
		nf := nft.New()
		defer nf.Close()
		if err := masq.Status(ctx, nf, m.Backend); err != nil {
			return cni.Errorf(cni.CodeUnavailable, "ipMasq: %w", err)
		}
	}
	if req.IPAM == "" {
		return nil
	}
	return (&ipam.Client{Request: req}).Status(ctx)
}

// verifyChild compares what AddChild made with what is there.
func (s *Session) verifyChild() []error {
	c := s.Child
	l, err := s.Cont.Link(s.IfName)
	if err != nil {
		return []error{iface.Drifted(fmt.Errorf("container: %w", err))}
	}
	drift := func(format string, args ...any) error {
		return cni.Drift("interface %q: %s", s.IfName, fmt.Sprintf(format, args...))
	}
	if l.Kind != c.New.Kind {
		return []error{drift("is of kind %q instead of %q", l.Kind, c.New.Kind)}
	}
	r, recorded, err := childRecords().Get(s.Hash())
	if err != nil {
		return []error{err}
	}
	var errs []error
	if !s.isOwn(l, r, recorded) {
		errs = append(errs, drift("is not the one that ADD made"))
	}
	if err := s.verifyMaster(r, l); err != nil {
		errs = append(errs, iface.Drifted(err))
	}
	if l.Mode != c.New.Mode {
		errs = append(errs, drift("mode is %q instead of %q", l.Mode, c.New.Mode))
	}
	if l.VLAN != c.New.VLAN {
		errs = append(errs, drift("VLAN is %d instead of %d", l.VLAN, c.New.VLAN))
	}
	if c.Verify != nil {
		for _, text := range c.Verify(s, l) {
			errs = append(errs, drift("%s", text))
		}
	}
	return append(errs, iface.Verify(s.Target(), s.expected()))
}

// isOwn tells whether a link is the attachment's, also where the container took its alias away.
// Without a record it may be the reference's, which has no alias.
func (s *Session) isOwn(l rtnl.Link, r childRecord, recorded bool) bool {
	if s.Owns(l.Alias) {
		return true
	}
	if recorded {
		return r.Link == l.Index
	}
	return l.Alias == ""
}

// expected is prevResult with the MTU that CHECK compares. Without a configured MTU it compares none, since
// the master's may change.
func (s *Session) expected() *cni.Result {
	res := s.PrevResult.Clone()
	for i := range res.Interfaces {
		if s.Child.Link.MTU == 0 {
			res.Interfaces[i].MTU = 0
		}
	}
	return res
}

// verifyMaster compares what the link is on with the configured master, or with the one
// that ADD found.
func (s *Session) verifyMaster(r childRecord, l rtnl.Link) (err error) {
	c, conn := s.Child, s.MasterSide()
	if c.Master == nil {
		return nil
	}
	switch {
	case c.Master.Master != "":
		s.Master, err = conn.Link(c.Master.Master)
	case r.Master != 0:
		s.Master, err = conn.LinkByIndex(r.Master)
	default:
		return nil
	}
	if err != nil {
		return fmt.Errorf("master: %w", err)
	}
	want := c.lowerIndex(s.Master)
	wrongSide := s.Master.Kind != c.New.Kind && (l.PeerNS >= 0) == c.masterInside()
	if l.Peer != want || wrongSide {
		return fmt.Errorf("interface %q: is not on master %q (#%d) but on #%d", s.IfName, s.Master.Name, want, l.Peer)
	}
	return nil
}
