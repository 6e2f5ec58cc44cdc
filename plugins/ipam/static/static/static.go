package static

import (
	"context"
	"errors"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// add returns the configured addresses. It refuses a configuration without addresses. STATUS accepts it, because the
// runtime may add addresses.
func add(_ context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	if len(cfg.ips) == 0 {
		return nil, cni.Refuse("ipam.addresses", nil,
			"no address in ipam.addresses, in IP of CNI_ARGS, in args.cni.ips or in runtimeConfig.ips")
	}
	for _, w := range cfg.warnings {
		req.Warn("%s", w)
	}
	return &cni.Result{IPs: cfg.ips, Routes: cfg.routes, DNS: cfg.dns}, nil
}

// check verifies that prevResult has each configured address, with any gateway if none is configured.
func check(_ context.Context, req *skel.Request, cfg config) error {
	if req.PrevResult == nil {
		return cni.Refuse("prevResult", nil, "is missing; CHECK compares it with the configuration")
	}
	var errs []error
	for _, ip := range cfg.ips {
		i := slices.IndexFunc(req.PrevResult.IPs, func(p cni.IP) bool { return p.Address == ip.Address })
		if i < 0 {
			errs = append(errs, cni.Drift("prevResult: address %s is missing", ip.Address))
			continue
		}
		if ip.Gateway.IsValid() && req.PrevResult.IPs[i].Gateway != ip.Gateway {
			errs = append(errs, cni.Drift("prevResult: the gateway of %s is no longer %s", ip.Address, ip.Gateway))
		}
	}
	return errors.Join(errs...)
}
