package static

import (
	"context"
	"errors"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// add returns what the configuration says. STATUS misses no address: it is not told those that the runtime names.
func add(_ context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	if len(cfg.ips) == 0 {
		return nil, cni.Refuse("ipam.addresses", nil,
			"no address is here, in IP of CNI_ARGS, in args.cni.ips or in runtimeConfig.ips")
	}
	for _, w := range cfg.warnings {
		req.Warn("%s", w)
	}
	return &cni.Result{IPs: cfg.ips, Routes: cfg.routes, DNS: cfg.dns}, nil
}

// check verifies that the result has each address as the configuration has it. A
// gateway that the network plugin found for an address without one is no difference.
func check(_ context.Context, req *skel.Request, cfg config) error {
	if req.PrevResult == nil {
		return cni.Refuse("prevResult", nil, "is missing; CHECK compares it with the configuration")
	}
	var errs []error
	for _, ip := range cfg.ips {
		at := slices.IndexFunc(req.PrevResult.IPs, func(has cni.IP) bool { return has.Address == ip.Address })
		if at < 0 {
			errs = append(errs, cni.Drift("prevResult: address %s is missing", ip.Address))
			continue
		}
		if ip.Gateway.IsValid() && req.PrevResult.IPs[at].Gateway != ip.Gateway {
			errs = append(errs, cni.Drift("prevResult: the gateway of %s is no longer %s", ip.Address, ip.Gateway))
		}
	}
	return errors.Join(errs...)
}
