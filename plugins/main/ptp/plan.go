package main

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// containerIndex is where the container's interface stands in the result,
// after the host end.
const containerIndex = 1

// plan is what to do with what IPAM gave.
type plan struct {
	Result     *cni.Result    // addresses, routes and dns; no interfaces yet
	ContRoutes []rtnl.Route   // of the container, before the result's
	Gateways   []netip.Prefix // addresses of the host end, each on its own
	HostRoutes []rtnl.Route   // of the host
}

// makePlan decides what an attachment gets, and refuses what no point to
// point link can have, before anything is made.
func makePlan(cfg config, lease *cni.Result) (plan, error) {
	p := plan{Result: lease.Clone()}
	known := map[netip.Prefix]bool{}
	for i := range p.Result.IPs {
		ip := &p.Result.IPs[i]
		index := containerIndex
		ip.Interface = &index
		if err := checkGateway(*ip); err != nil {
			return p, err
		}
		gw, addr, subnet := single(ip.Gateway), single(ip.Address.Addr()), ip.Address.Masked()
		if !known[gw] {
			p.Gateways = append(p.Gateways, gw)
			p.ContRoutes = append(p.ContRoutes, rtnl.Route{Dst: gw, Src: ip.Address.Addr(), Scope: unix.RT_SCOPE_LINK})
		}
		if !subnet.IsSingleIP() && !known[subnet] {
			p.ContRoutes = append(p.ContRoutes, rtnl.Route{Dst: subnet, GW: ip.Gateway, Src: ip.Address.Addr()})
		}
		known[gw], known[subnet] = true, true
		p.HostRoutes = append(p.HostRoutes, rtnl.Route{Dst: addr, Scope: unix.RT_SCOPE_HOST})
	}
	if cfg.DNS.IsSet() {
		p.Result.DNS = cfg.DNS
	}
	return p, nil
}

func checkGateway(ip cni.IP) error {
	switch gw := ip.Gateway; {
	case !gw.IsValid():
		return cni.Errorf(cni.CodeIPAM, "IPAM gave address %s without a gateway, which ptp routes everything through", ip.Address)
	case gw.Is4() != ip.Address.Addr().Is4():
		return cni.Errorf(cni.CodeIPAM, "IPAM gave address %s and gateway %s of the other family", ip.Address, gw)
	case gw == ip.Address.Addr():
		return cni.Errorf(cni.CodeIPAM, "IPAM gave address %s, which is its own gateway", ip.Address)
	}
	return nil
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
