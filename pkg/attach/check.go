package attach

import (
	"context"
	"errors"
	"fmt"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/nft"
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
	if s.ipam == nil {
		return errors.Join(verify(s)...)
	}
	checking, err := s.ipam.Start(ctx, "CHECK")
	errs := verify(s)
	if err == nil {
		_, err = checking.Wait(ctx)
	}
	return errors.Join(append(errs, err)...)
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

// Status is code 50 where ADD could not masquerade, and else IPAM's answer.
func Status(ctx context.Context, req *skel.Request, m Masq) error {
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
	return ipamOf(req).Status(ctx)
}
