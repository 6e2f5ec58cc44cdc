package vrf

import (
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// snapshot is what the decisions depend on in the namespace.
type snapshot struct {
	Links  []rtnl.Link
	Rules  []rtnl.Rule
	Routes []rtnl.RouteCopy // of all links and tables
}

// named is the link of that name; the zero Link when there is none.
func (s snapshot) named(name string) rtnl.Link {
	return s.first(func(l rtnl.Link) bool { return l.Name == name })
}

func (s snapshot) first(matches func(rtnl.Link) bool) rtnl.Link {
	if i := slices.IndexFunc(s.Links, matches); i >= 0 {
		return s.Links[i]
	}
	return rtnl.Link{}
}

// choose returns the interface's future VRF; one that is to be made has no index yet.
func (s snapshot) choose(cfg config, link rtnl.Link) (rtnl.Link, error) {
	vrf := s.named(cfg.VRF)
	switch isNew := vrf.Index == 0; {
	case !isNew && vrf.Kind != "vrf":
		return vrf, cni.Errorf(cni.CodeConflict, "vrfname: %q is an interface of kind %q in the container, and no VRF",
			vrf.Name, vrf.Kind)
	case !isNew && link.Master == vrf.Index:
		return vrf, cni.Errorf(cni.CodeExists, "interface %q: is a member of vrf %q already; DEL takes it out",
			link.Name, vrf.Name)
	case link.Master != 0:
		return vrf, cni.Errorf(cni.CodeConflict, "interface %q: has already a master set: %q", link.Name,
			s.first(func(l rtnl.Link) bool { return l.Index == link.Master }).Name)
	case !isNew && cfg.Table != 0 && vrf.Table != cfg.Table:
		return vrf, cni.Errorf(cni.CodeConflict, "table: %d: VRF %s already exist with different routing table %d",
			cfg.Table, vrf.Name, vrf.Table)
	case !isNew:
		return vrf, nil
	}
	var used []uint32 // by VRFs
	for _, l := range s.Links {
		used = append(used, l.Table)
	}
	vrf = rtnl.Link{Name: cfg.VRF, Table: cfg.Table}
	if vrf.Table == 0 {
		vrf.Table = rtnl.FreeTable(1, s.Rules, s.Routes, used...)
	}
	if other := s.first(func(l rtnl.Link) bool { return l.Table == vrf.Table }); other.Index != 0 {
		return vrf, cni.Errorf(cni.CodeConflict, "table: %d is that of vrf %q", vrf.Table, other.Name)
	}
	return vrf, nil
}

// routesToMove are the routes of a link that ADD must make again, in their order. The kernel makes its own, and routers
// announce theirs again.
func (s snapshot) routesToMove(link int) (routes []rtnl.RouteCopy) {
	remade := []uint8{unix.RTPROT_KERNEL, unix.RTPROT_RA, unix.RTPROT_REDIRECT}
	for _, r := range s.Routes {
		_, isOurs := r.HopsOf(link)
		comesBack := r.Table() == unix.RT_TABLE_MAIN && slices.Contains(remade, r.Header.Protocol)
		if isOurs && !comesBack && r.Table() != unix.RT_TABLE_LOCAL {
			routes = append(routes, r)
		}
	}
	sort.SliceStable(routes, func(i, j int) bool { return rtnl.GatewaysLast(routes[i], routes[j]) < 0 })
	return routes
}
