package ptp

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

const containerIndex = 1 // index of the container's interface in the result, after the host end

// plan lists what ADD configures.
type plan struct {
	Result     *cni.Result    // addresses, routes and DNS, without interfaces
	ContRoutes []rtnl.Route   // routes of the container that precede the result's
	Gateways   []netip.Prefix // addresses of the host end, as single-address prefixes
	HostRoutes []rtnl.Route   // routes of the host to the container
}

// makePlan derives the plan from IPAM's answer. It returns an error if a point-to-point link cannot use the answer.
func makePlan(cfg config, answer *cni.Result) (p plan, err error) {
	if p.Result, err = cfg.Link.Result(answer, containerIndex); err != nil {
		return p, err
	}
	known := map[netip.Prefix]bool{}
	for _, ip := range p.Result.IPs {
		if err := checkGateway(ip, answer.IPs); err != nil {
			return p, cni.Errorf(cni.CodeIPAM, "address %s: %w", ip.Address, err)
		}
		gw, addr, subnet := hostPrefix(ip.Gateway), hostPrefix(ip.Address.Addr()), ip.Address.Masked()
		if !known[gw] {
			p.Gateways = append(p.Gateways, gw)
			p.ContRoutes = append(p.ContRoutes, rtnl.Route{Dst: gw, Src: ip.Address.Addr(), Scope: unix.RT_SCOPE_LINK})
		}
		if !subnet.IsSingleIP() && !known[subnet] {
			p.ContRoutes = append(p.ContRoutes, rtnl.Route{Dst: subnet, GW: ip.Gateway, Src: ip.Address.Addr()})
		}
		if !known[addr] { // IPAM may give an address twice, with different prefix lengths
			p.HostRoutes = append(p.HostRoutes, rtnl.Route{Dst: addr, Scope: unix.RT_SCOPE_HOST})
		}
		known[gw], known[subnet], known[addr] = true, true, true
	}
	return p, nil
}

// checkGateway returns an error if an address cannot use its gateway. all has the container's addresses.
func checkGateway(ip cni.IP, all []cni.IP) error {
	switch gw := ip.Gateway; {
	case !gw.IsValid():
		return fmt.Errorf("has no gateway, and ptp routes everything through it")
	case gw.Is4() != ip.Address.Addr().Is4():
		return fmt.Errorf("its gateway %s is of the other family", gw)
	case gw.IsUnspecified() || gw.IsMulticast() || gw.IsLoopback():
		return fmt.Errorf("its gateway %s is not an address that the host end can have", gw)
	case gw == ip.Address.Addr():
		return fmt.Errorf("is its own gateway")
	case slices.ContainsFunc(all, func(other cni.IP) bool { return other.Address.Addr() == gw }):
		return fmt.Errorf("its gateway %s is another address of the container", gw)
	}
	return nil
}

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
