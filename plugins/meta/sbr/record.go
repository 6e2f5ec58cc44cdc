package main

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

const recordDir = "/run/hawser/sbr"

func records() statefile.Records[record] { return statefile.Records[record]{Path: recordDir} }

// record says what an ADD does, and where. It is written before the first effect; DEL undoes it, and CHECK compares it.
type record struct {
	cni.Attachment
	Netns ns.Identity `json:"netns"`
	Link  int         `json:"link"` // index of the interface
	Plan  plan        `json:"plan"`
}

// Valid says whether an ADD can have written the record: DEL deletes what it names.
func (r record) Valid() bool {
	tables := map[uint32]bool{}
	for _, rule := range r.Plan.Rules {
		if !rule.Src.IsSingleIP() || rtnl.IsKernelTable(rule.Table) {
			return false
		}
		tables[rule.Table] = true
	}
	strange := func(c rtnl.RouteCopy) bool { return !tables[c.Table()] }
	own := func(route rtnl.Route) bool { return route.Dst.IsValid() && route.OutIndex == r.Link }
	outside := func(c rtnl.RouteCopy) bool { return c.Table() != unix.RT_TABLE_MAIN }
	return !slices.ContainsFunc(r.Plan.Copies, strange) &&
		!slices.ContainsFunc(r.Plan.Moved, outside) &&
		!slices.ContainsFunc(r.Plan.Defaults, func(d rtnl.Route) bool { return !own(d) || !tables[d.Table] }) &&
		!slices.ContainsFunc(r.Plan.Hints, func(h rtnl.Route) bool { return !own(h) || h.Table != unix.RT_TABLE_MAIN })
}
