package main

import (
	"errors"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// verify says how the filter of a link differs from the one that ADD makes, or the
// reference plugin.
func (c *call) verify(limit string, l rtnl.Link, want *filter) error {
	if want == nil {
		return nil
	}
	q, err := c.host.Qdisc(l.Index, rtnl.Root)
	drift := func(format string, args ...any) error {
		return cni.Errorf(cni.CodeDrift, "%s limit: interface %q: "+format, append([]any{limit, l.Name}, args...)...)
	}
	switch {
	case err != nil:
		return err
	case q.Kind == "":
		return drift("has no filter")
	case !q.IsTBF():
		return drift("has the qdisc %q instead of the filter", q.Kind)
	case q.TBF != want.TBF && q.TBF != want.literal:
		return drift("the filter is %+v, want %+v", q.TBF, want.TBF)
	}
	return nil
}

// verifyEgress follows what the container sends: to the IFB of this attachment, and
// through its filter.
func (c *call) verifyEgress(end rtnl.Link, want *filter) error {
	if want == nil {
		return nil
	}
	drift := func(what string) error {
		return cni.Errorf(cni.CodeDrift, "egress limit: host interface %q: %s", end.Name, what)
	}
	list, err := c.host.Redirects(end.Index)
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
	ifb, err := c.host.LinkByIndex(list[0].To)
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
