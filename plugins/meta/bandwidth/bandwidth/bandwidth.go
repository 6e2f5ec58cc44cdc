package bandwidth

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/frame"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// call is one call under way.
type call struct{ *frame.Call }

func open(req *skel.Request) call { return call{frame.OpenHost(req)} }

func add(_ context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	if cfg.isEmpty() {
		return req.PrevResult, nil
	}
	c := open(req)
	if err := c.findHostEnd(); err != nil {
		return nil, err
	}
	end := c.HostEnd
	want, err := cfg.plan(end.MTU)
	if err != nil {
		return nil, err
	}
	for _, f := range []*filter{want.ingress, want.egress} {
		if f != nil && f.warning != "" {
			req.Warn("%s", f.warning)
		}
	}
	was, found, err := c.readLimits(end)
	if err != nil {
		return nil, err
	}
	req.OnFail("restore the limits", func(context.Context) error {
		_, err := c.replace(end, was)
		return err
	})
	var ifb rtnl.Link
	if !found {
		ifb, err = c.limit(end, want)
	}
	if found || errors.Is(err, unix.EEXIST) { // an IFB may be left of an ADD before this one, or of the reference
		ifb, err = c.replace(end, want)
	}
	if errors.Is(err, unix.EEXIST) {
		return nil, cni.Errorf(cni.CodeConflict, "%w: something else queues there; remove it, or the limit", err)
	}
	if err != nil {
		return nil, err
	}
	res := req.PrevResult.Clone()
	if want.egress != nil {
		res.Interfaces = append(res.Interfaces, iface.Describe(ifb))
	}
	return res, nil
}

// del removes whatever the attachment has. The host end may live on.
func del(_ context.Context, req *skel.Request) error {
	c := open(req)
	end, err := c.findRemains()
	if err != nil {
		return err
	}
	return c.remove(end)
}

// gc removes the IFBs of attachments that are not valid, and the filters of the host ends that lead to them. Other host
// ends go with the GC of the plugin that made them.
func gc(_ context.Context, req *skel.Request) error {
	c := open(req)
	links, err := c.Host.Links()
	errs := []error{err}
	var keep []string // names that IFBs of valid attachments may have without a mark
	for _, a := range req.Valid.All() {
		keep = append(keep, names(a)...)
	}
	for _, l := range links {
		isLeft := isHalfMade(l, req.Network) && !slices.Contains(keep, l.Name)
		if l.Kind != "ifb" || !(isLeft || req.Valid.Garbage(l.Alias)) {
			continue
		}
		users, err := c.users(l)
		errs = append(errs, err)
		for _, end := range users {
			errs = append(errs, c.unlimit(end.Index, l.Index))
		}
		errs = append(errs, c.Host.DelLink(l.Index))
	}
	return errors.Join(errs...)
}

// check compares what is limited.
func check(_ context.Context, req *skel.Request, cfg config) error {
	if cfg.isEmpty() {
		return nil
	}
	c := open(req)
	err := c.findHostEnd()
	if isAbsent(err) {
		return cni.Drift("%w", err)
	}
	if err != nil {
		return err
	}
	want, err := cfg.plan(c.HostEnd.MTU)
	if err != nil {
		return err
	}
	return errors.Join(c.verify("ingress", c.HostEnd, want.ingress), c.verifyEgress(c.HostEnd, want.egress))
}

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

// list lists the limits of marked host ends, and the IFBs. A host end without a mark does not say whose it is.
func list(_ context.Context, req *skel.Request) (all []cni.Holding, err error) {
	c := open(req)
	links, err := c.Host.Briefly()
	filters, filterErr := c.Host.TBFs()
	for _, l := range links {
		a, ok := cni.ParseMark(l.Alias)
		t, limited := filters[l.Index]
		direction := "ingress"
		if l.Kind == "ifb" {
			direction = "egress"
		}
		if ok && (l.Kind == "ifb" || l.IsPairEnd() && limited) {
			all = append(all, cni.Holding{Attachment: a, Kind: cni.HeldLimit, Kept: "alias of " + l.Name,
				Value: fmt.Sprintf("%s rate %s dev %s", direction, rateText(t.Rate), l.Name)})
		}
	}
	return all, errors.Join(err, filterErr)
}

// rateText writes bytes a second as tc(8) does.
func rateText(rate uint64) string {
	units := []string{"", "K", "M", "G", "T"}
	for rate *= 8; len(units) > 1 && rate >= 1000 && (rate%1000 == 0 || rate >= 1000*1000); units = units[1:] {
		rate /= 1000
	}
	return fmt.Sprintf("%d%sbit", rate, units[0])
}

// status says whether the kernel can limit anything.
func status(_ context.Context, _ *skel.Request, cfg config) error {
	return frame.Status("", func(host *rtnl.Conn) error {
		err := host.ProbeQdisc("tbf")
		if cfg.egress.rate != 0 {
			err = errors.Join(err, host.ProbeKind("ifb"))
		}
		return err
	})
}

// findHostEnd finds the host end of the container's interface. The container can choose indexes, and so point at
// another's host end: the result must name it, too.
func (c call) findHostEnd() error {
	err := c.FindHostEnd()
	switch {
	case c.ContEnd.Index == 0:
		return err
	case !c.ContEnd.IsPairEnd():
		return cni.Errorf(cni.CodeUnsupportedField,
			"CNI_IFNAME %q: is of kind %q, and bandwidth limits the host end of a veth or netkit pair", c.IfName,
			c.ContEnd.Kind)
	case err != nil && !errors.Is(err, rtnl.ErrNoLink):
		return err
	}
	isNamed := slices.ContainsFunc(c.PrevResult.Interfaces, func(i cni.Interface) bool {
		return i.Name == c.HostEnd.Name && i.Sandbox == ""
	})
	if err != nil || !isNamed {
		return cni.Refuse("prevResult.interfaces", nil, fmt.Sprintf(
			"has no interface of the host that is the other end of %q", c.IfName))
	}
	return nil
}

// isAbsent tells the errors of findHostEnd that say that there is none.
func isAbsent(err error) bool { return err != nil && cni.AsError(err).Code != cni.CodeInternal }

// findRemains finds the host end for DEL: ours by its mark, that of other software by the namespace and the result, or
// without the namespace by the result alone. Where there is none its index is 0.
func (c call) findRemains() (rtnl.Link, error) {
	end, err := frame.MarkedHostEnd(c.Host, c.Attachment)
	if !errors.Is(err, rtnl.ErrNoLink) || c.PrevResult == nil {
		return end, frame.IgnoreNoLink(err)
	}
	if c.NS == nil {
		end, err = frame.HostEndOfResult(c.Host, c.PrevResult, rtnl.Link.IsPairEnd)
		return end, frame.IgnoreNoLink(err)
	}
	err = c.findHostEnd()
	if isAbsent(err) {
		return rtnl.Link{}, nil // the pair is gone
	}
	return c.HostEnd, err
}
