package vrf

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// snapshot is the state of the container's namespace on which ADD bases its decisions.
type snapshot struct {
	Links  []rtnl.Link
	Rules  []rtnl.Rule
	Routes []rtnl.RouteCopy // of all links and tables
	Addrs  []rtnl.AddrCopy  // of the interface
}

// linkByName returns the link of that name, or the zero Link.
func (s snapshot) linkByName(name string) rtnl.Link {
	return s.firstLink(func(l rtnl.Link) bool { return l.Name == name })
}

// firstLink returns the first matching link, or the zero Link.
func (s snapshot) firstLink(matches func(rtnl.Link) bool) rtnl.Link {
	if i := slices.IndexFunc(s.Links, matches); i >= 0 {
		return s.Links[i]
	}
	return rtnl.Link{}
}

// chooseVRF returns the VRF that the interface will join. A VRF that ADD must create has no index yet.
func (s snapshot) chooseVRF(cfg config, link rtnl.Link) (rtnl.Link, error) {
	vrf := s.linkByName(cfg.VRF)
	switch isNew := vrf.Index == 0; {
	case !isNew && vrf.Kind != "vrf":
		return vrf, cni.Errorf(cni.CodeConflict, "vrfname: %q is an interface of kind %q in the container, not a VRF",
			vrf.Name, vrf.Kind)
	case !isNew && link.Master == vrf.Index:
		return vrf, cni.Errorf(cni.CodeExists, "interface %q: is already a member of vrf %q; call DEL first",
			link.Name, vrf.Name)
	case link.Master != 0:
		return vrf, cni.Errorf(cni.CodeConflict, "interface %q: has already a master set: %q", link.Name,
			s.firstLink(func(l rtnl.Link) bool { return l.Index == link.Master }).Name)
	case !isNew && cfg.Table != 0 && vrf.Table != cfg.Table:
		return vrf, cni.Errorf(cni.CodeConflict, "table: %d: VRF %s already exist with different routing table %d",
			cfg.Table, vrf.Name, vrf.Table)
	case !isNew:
		return vrf, nil
	}
	var used []uint32 // tables of VRFs
	for _, l := range s.Links {
		used = append(used, l.Table)
	}
	vrf = rtnl.Link{Name: cfg.VRF, Table: cfg.Table}
	if vrf.Table == 0 {
		vrf.Table = rtnl.FreeTable(1, s.Rules, s.Routes, used...)
	}
	if other := s.firstLink(func(l rtnl.Link) bool { return l.Table == vrf.Table }); other.Index != 0 {
		return vrf, cni.Errorf(cni.CodeConflict, "table: %d is in use by vrf %q", vrf.Table, other.Name)
	}
	return vrf, nil
}

// routesToMove returns the routes of a link that ADD must recreate, in the order in which the kernel accepts them.
func (s snapshot) routesToMove(link int) (routes []rtnl.RouteCopy) {
	for _, r := range s.Routes {
		_, usesLink := r.HopsThrough(link)
		isAutomatic := r.Table() == unix.RT_TABLE_MAIN && r.IsAutomatic(s.Addrs)
		if usesLink && !isAutomatic && r.Table() != unix.RT_TABLE_LOCAL {
			routes = append(routes, r)
		}
	}
	return rtnl.GatewaysLast(routes)
}
