package main

import (
	"errors"
	"fmt"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// verify says how the filter of a link differs from the one that ADD makes, or the
// reference plugin.
func (c call) verify(limit string, l rtnl.Link, want *filter) error {
	if want == nil {
		return nil
	}
	q, err := c.Host.Qdisc(l.Index, rtnl.Root)
	difference := ""
	switch {
	case err != nil:
		return err
	case q.Kind == "":
		difference = "has no filter"
	case !q.IsTBF():
		difference = fmt.Sprintf("has the qdisc %q instead of the filter", q.Kind)
	case q.TBF != want.TBF && q.TBF != want.literal:
		difference = fmt.Sprintf("the filter is %+v, want %+v", q.TBF, want.TBF)
	default:
		return nil
	}
	return cni.Drift("%s limit: interface %q: %s", limit, l.Name, difference)
}

// verifyEgress follows what the container sends: to the IFB of this attachment, and
// through its filter.
func (c call) verifyEgress(end rtnl.Link, want *filter) error {
	if want == nil {
		return nil
	}
	drift := func(what string) error {
		return cni.Drift("egress limit: host interface %q: %s", end.Name, what)
	}
	list, err := c.Host.Redirects(end.Index)
	switch {
	case err != nil:
		return err
	case len(list) == 0:
		return drift("redirects nothing")
	case list[0].To <= 0: // nothing that comes after it sees a packet
		return drift("redirects to no interface that exists")
	case !list[0].All:
		return drift("redirects only some packets")
	}
	ifb, err := c.Host.LinkByIndex(list[0].To)
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return drift("redirects to an interface that is gone")
	case err != nil:
		return err
	case !c.canBeMine(ifb):
		return drift("redirects to " + ifb.Name + ", which is not this attachment's")
	case !ifb.Up:
		return drift("redirects to " + ifb.Name + ", which is down")
	}
	return c.verify("egress", ifb, want)
}
