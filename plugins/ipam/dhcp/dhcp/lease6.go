package dhcp

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// lease6 is an IPv6 lease: the router's configuration and the addresses. Times are since boot.
type lease6 struct {
	raState
	Addrs  []addr6       `json:"addrs"`
	Server []byte        `json:"server,omitempty"` // DUID of the DHCPv6 server; none: the addresses are from SLAAC
	Renew  time.Duration `json:"renew,omitempty"`
	Rebind time.Duration `json:"rebind,omitempty"`
	DNS    cni.DNS       `json:"dns"`
}

// raState is the configuration from the last router advertisement, and the link-local address that received it.
type raState struct {
	LinkLocal netip.Addr     `json:"own"` // SLAAC addresses have its interface identifier
	Router    netip.Addr     `json:"router"`
	IsDefault bool           `json:"default"`
	OnLink    []netip.Prefix `json:"onLink,omitempty"`
	Refresh   time.Duration  `json:"refresh"` // time of the next router solicitation
}

// addr6 is an address and the end of its valid lifetime.
type addr6 struct {
	Prefix netip.Prefix  `json:"prefix"`
	Until  time.Duration `json:"until"`
}

// newLease6 returns the lease, which expires when its last address does. It returns nil if l is incomplete or has an
// address that a container cannot have.
func newLease6(l lease6, since time.Duration) *lease {
	if len(l.Addrs) == 0 || !l.Router.IsValid() || !l.LinkLocal.IsLinkLocalUnicast() {
		return nil
	}
	lease := &lease{v6: &l, since: since, renew: l.Refresh}
	for _, a := range l.Addrs {
		if !isHostAddr6(a.Prefix.Addr()) {
			return nil
		}
		lease.expiry = max(lease.expiry, a.Until)
		lease.renew = min(lease.renew, a.Until)
	}
	lease.rebind = lease.expiry
	if l.Server != nil {
		lease.renew, lease.rebind = min(lease.renew, l.Renew), l.Rebind
	}
	return lease
}

// result returns the lease as the plugin's result.
func (l *lease6) result(o options) *cni.Result {
	res := &cni.Result{}
	subnets := []netip.Prefix{}
	for _, a := range l.Addrs {
		ip := cni.IP{Address: a.Prefix}
		if l.IsDefault {
			ip.Gateway = l.Router
		}
		res.IPs, subnets = append(res.IPs, ip), append(subnets, a.Prefix.Masked())
	}
	for _, p := range l.OnLink {
		if !slices.Contains(subnets, p) { // the kernel adds routes to the addresses' subnets
			res.Routes = append(res.Routes, cni.Route{Dst: p, Scope: new(unix.RT_SCOPE_LINK), Priority: o.Priority})
		}
	}
	if l.IsDefault {
		all := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		res.Routes = append(res.Routes, cni.Route{Dst: all, GW: l.Router, Priority: o.Priority})
	}
	if o.DNS {
		res.DNS = l.DNS
	}
	return res
}

// mergeDNS returns the settings of a, followed by the settings of b that a lacks.
func mergeDNS(a, b cni.DNS) cni.DNS {
	add := func(to, from []string) []string {
		for _, s := range from {
			if !slices.Contains(to, s) {
				to = append(to, s)
			}
		}
		return to
	}
	a.Nameservers, a.Search = add(a.Nameservers, b.Nameservers), add(a.Search, b.Search)
	a.Domain = cmp.Or(a.Domain, b.Domain)
	return a
}
