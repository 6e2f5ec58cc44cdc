package main

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// found is what the decisions depend on in the namespace.
type found struct {
	Netns  ns.Identity
	Links  []rtnl.Link
	Rules  []rtnl.Rule
	Routes []rtnl.RouteCopy // of all links and tables
}

// named is the link of that name; the zero Link when there is none.
func (f found) named(name string) rtnl.Link {
	return f.first(func(l rtnl.Link) bool { return l.Name == name })
}

func (f found) at(index int) rtnl.Link {
	return f.first(func(l rtnl.Link) bool { return l.Index == index })
}

func (f found) first(matches func(rtnl.Link) bool) rtnl.Link {
	if i := slices.IndexFunc(f.Links, matches); i >= 0 {
		return f.Links[i]
	}
	return rtnl.Link{}
}

// choose returns the VRF that the interface is to be a member of; one that is to be made
// has no index yet.
func (f found) choose(cfg config, link rtnl.Link) (rtnl.Link, error) {
	vrf := f.named(cfg.VRF)
	switch isNew := vrf.Index == 0; {
	case !isNew && vrf.Kind != "vrf":
		return vrf, cni.Errorf(cni.CodeConflict, "vrfname: %q is an interface of kind %q in the container, and no VRF",
			vrf.Name, vrf.Kind)
	case !isNew && link.Master == vrf.Index:
		return vrf, cni.Errorf(cni.CodeExists, "interface %q: is a member of vrf %q already; DEL takes it out",
			link.Name, vrf.Name)
	case link.Master != 0:
		return vrf, cni.Errorf(cni.CodeConflict, "interface %q: has already a master set: %q", link.Name,
			f.at(link.Master).Name)
	case !isNew && cfg.Table != 0 && vrf.Table != cfg.Table:
		return vrf, cni.Errorf(cni.CodeConflict, "table: %d: VRF %s already exist with different routing table %d",
			cfg.Table, vrf.Name, vrf.Table)
	case !isNew:
		return vrf, nil
	}
	vrf = rtnl.Link{Name: cfg.VRF, Table: cfg.Table}
	if vrf.Table == 0 {
		vrf.Table = f.freeTable()
	}
	if other := f.first(func(l rtnl.Link) bool { return l.Table == vrf.Table }); other.Index != 0 {
		return vrf, cni.Errorf(cni.CodeConflict, "table: %d is that of vrf %q", vrf.Table, other.Name)
	}
	return vrf, nil
}

// freeTable is the first table that no VRF, no route and no rule mentions.
func (f found) freeTable() uint32 {
	used := map[uint32]bool{unix.RT_TABLE_DEFAULT: true, unix.RT_TABLE_MAIN: true, unix.RT_TABLE_LOCAL: true}
	for _, l := range f.Links {
		used[l.Table] = true
	}
	for _, r := range f.Rules {
		used[r.Table] = true
	}
	for _, r := range f.Routes {
		used[r.Table()] = true
	}
	table := uint32(1)
	for used[table] {
		table++
	}
	return table
}

// moving are the routes of a link that ADD must make again, in an order in which the
// kernel takes them. It makes its own by itself, and routers announce theirs again.
func (f found) moving(link int) []rtnl.RouteCopy {
	fleeting := []uint8{unix.RTPROT_KERNEL, unix.RTPROT_RA, unix.RTPROT_REDIRECT}
	var near, far []rtnl.RouteCopy
	for _, r := range f.Routes {
		_, ours := r.Through(func(index int) bool { return index == link })
		inMain := r.Table() == unix.RT_TABLE_MAIN
		comesBack := slices.Contains(fleeting, r.Header.Protocol)
		switch {
		case !ours || r.Table() == unix.RT_TABLE_LOCAL || inMain && comesBack:
		case r.IsFar():
			far = append(far, r)
		default:
			near = append(near, r)
		}
	}
	return append(near, far...)
}
