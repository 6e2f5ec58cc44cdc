package bridge

import (
	"net/netip"
	"slices"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

const containerIndex = 2 // index of the container's interface in the result, after the bridge and the host end

// makePlan decides which addresses, gateways and routes an attachment gets. It returns a result without interfaces, and
// the gateway addresses that the bridge or the VLAN gateway must have.
func makePlan(cfg config, answer *cni.Result) (res *cni.Result, gateways []netip.Prefix, err error) {
	if res, err = cfg.Link.Result(answer, containerIndex); err != nil || !cfg.Gateway {
		return res, nil, err
	}
	for i := range res.IPs {
		ip := &res.IPs[i]
		if err := fillGateway(ip); err != nil {
			return nil, nil, err
		}
		gw := netip.PrefixFrom(ip.Gateway, ip.Address.Bits())
		if !slices.Contains(gateways, gw) {
			gateways = append(gateways, gw)
		}
	}
	for _, ip := range res.IPs {
		isGateway := func(gw netip.Prefix) bool { return gw.Addr() == ip.Address.Addr() }
		if slices.ContainsFunc(gateways, isGateway) {
			return nil, nil, cni.Errorf(cni.CodeIPAM, "IPAM gave address %s both to the container and as a gateway",
				ip.Address)
		}
	}
	if cfg.IsDefaultGateway {
		addDefaultRoute(res, true)
		addDefaultRoute(res, false)
	}
	return res, gateways, nil
}

// fillGateway sets the gateway of an address without one to the first address of the subnet.
func fillGateway(ip *cni.IP) error {
	gw := ip.Gateway
	if !gw.IsValid() {
		gw = ip.Address.Masked().Addr().Next()
		if !gw.IsValid() || !ip.Address.Contains(gw) || gw == ip.Address.Addr() {
			return cni.Errorf(cni.CodeIPAM,
				"IPAM gave address %s without a gateway, and the first address of the subnet is not free for one",
				ip.Address)
		}
		ip.Gateway = gw
	}
	if gw.Is4() != ip.Address.Addr().Is4() {
		return cni.Errorf(cni.CodeIPAM, "IPAM gave address %s and gateway %s of the other family", ip.Address, gw)
	}
	return nil
}

// addDefaultRoute adds a default route of a family, or sets the gateway of IPAM's default routes without a gateway.
func addDefaultRoute(res *cni.Result, v4 bool) {
	gw := res.Gateway(v4)
	if !gw.IsValid() {
		return
	}
	found := false
	for i := range res.Routes {
		r := &res.Routes[i]
		if r.Dst.Bits() != 0 || r.Dst.Addr().Is4() != v4 || !r.InMain() {
			continue
		}
		found = true
		if !r.GW.IsValid() {
			r.GW = gw
		}
	}
	if !found {
		res.Routes = append(res.Routes, cni.Route{Dst: netip.PrefixFrom(gw, 0).Masked(), GW: gw})
	}
}

// gatewayPlan lists the changes that make a link the gateway. A gateway address for which the kernel detected a
// duplicate is removed and added again, because the other host with the address may no longer exist.
type gatewayPlan struct {
	Remove    []netip.Prefix // addresses of the link that conflict with a gateway address, or are duplicates
	Add       []netip.Prefix // missing or duplicate gateway addresses, and any that the kernel may remove with Remove
	Usable    []netip.Prefix // IPv6 gateway addresses that the link has and that are not tentative
	AwaitsDAD bool           // ADD waits for the new detection, because Add has a duplicate
}

// planGateways compares the addresses of a link with the gateway addresses that it must have.
func planGateways(cfg config, link string, have []rtnl.Addr, want []netip.Prefix) (p gatewayPlan, err error) {
	var missing []netip.Prefix
	for _, gw := range want {
		i := slices.IndexFunc(have, func(h rtnl.Addr) bool { return h.Prefix == gw })
		switch {
		case i < 0:
			p.Add, missing = append(p.Add, gw), append(missing, gw)
		case have[i].DADFailed:
			p.Remove, p.Add, p.AwaitsDAD = append(p.Remove, gw), append(p.Add, gw), true
		case gw.Addr().Is6() && !have[i].Tentative:
			p.Usable = append(p.Usable, gw)
		}
	}
	for _, h := range have {
		i := slices.IndexFunc(missing, func(gw netip.Prefix) bool { return isConflict(h.Prefix, gw) })
		if i < 0 || slices.Contains(want, h.Prefix) {
			continue
		}
		if !cfg.ForceAddress {
			return p, cni.Errorf(cni.CodeConflict,
				"bridge %q: gateway %s: the interface has address %s (forceAddress replaces it): "+
					"%[1]q already has an IP address different from %[2]s", link, missing[i], h.Prefix)
		}
		p.Remove = append(p.Remove, h.Prefix)
	}
	// With the first IPv4 address of a subnet, the kernel removes the others, unless promote_secondaries is set.
	if slices.ContainsFunc(p.Remove, func(r netip.Prefix) bool { return r.Addr().Is4() }) {
		for _, gw := range want {
			if gw.Addr().Is4() && !slices.Contains(p.Add, gw) {
				p.Add = append(p.Add, gw)
			}
		}
	}
	return p, nil
}

// isConflict reports whether an address of a link conflicts with a new gateway address. Two IPv4 addresses always
// conflict. Two IPv6 addresses conflict if their subnets overlap, unless the link's address is link-local.
func isConflict(addr, gw netip.Prefix) bool {
	if addr.Addr().Is4() || gw.Addr().Is4() {
		return addr.Addr().Is4() && gw.Addr().Is4()
	}
	return !addr.Addr().IsLinkLocalUnicast() && addr.Overlaps(gw)
}
