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
func Check(ctx context.Context, req *skel.Request, verify func(*Call) []error) error {
	if req.PrevResult == nil {
		return cni.Errorf(cni.CodeConfig, "prevResult: missing; CHECK compares the container with it")
	}
	if _, ok := req.PrevResult.ContainerInterface(req.IfName); !ok {
		return cni.Errorf(cni.CodeDrift, "prevResult: has no interface %q in a container", req.IfName)
	}
	a, err := Open(req)
	if err != nil {
		return err
	}
	if req.IPAM == "" {
		return errors.Join(verify(a)...)
	}
	asked, err := client(req).Start(ctx, "CHECK")
	errs := verify(a)
	if err == nil {
		err = asked.Wait(ctx)
	}
	return errors.Join(append(errs, err)...)
}

// VerifyMasquerade is code 101 when Masquerade's rules are not there.
func (a *Call) VerifyMasquerade(ctx context.Context, m Masq) error {
	if !m.On {
		return nil
	}
	err := masq.Check(ctx, a.NF, masq.Config{
		Attachment: a.Attachment, Backend: m.Backend, Addrs: cni.Addresses(a.PrevResult.ContainerIPs(a.IfName)),
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
	return client(req).Status(ctx)
}
