package bandwidth

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// call is one call under way.
type call struct {
	*netplugin.Call
	at     *rtnl.Conn // where the limits are: Host, or Cont
	inside bool       // they are in the container, whose interface has no host end
}

func open(req *skel.Request) *call {
	c := netplugin.OpenHost(req)
	return &call{Call: c, at: c.Host}
}

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	if cfg.isEmpty() {
		return req.PrevResult, nil
	}
	c := open(req)
	end, err := c.findEnd()
	if err != nil {
		return nil, err
	}
	want, err := cfg.plan(end.MTU)
	if err == nil {
		err = c.refuse(end, want)
	}
	if err != nil {
		return nil, err
	}
	for _, f := range want.each {
		if f.warning != "" {
			req.Warn("%s", f.warning)
		}
	}
	was, found, err := c.readLimits(end)
	if err != nil {
		return nil, err
	}
	if c.inside {
		if err := c.keep(ctx, want, was != limits{}); err != nil {
			return nil, err
		}
	}
	req.Step("set the limits")
	req.OnFail("restore the limits", func(context.Context) error {
		_, err := c.replace(end, was)
		return err
	})
	ifbs, err := c.make(end, want, found)
	if err != nil {
		return nil, err
	}
	res := req.PrevResult.Clone()
	for _, ifb := range ifbs {
		if !c.inside { // where a runtime may take it for an interface of the container's
			res.Interfaces = append(res.Interfaces, iface.Describe(ifb))
		}
	}
	return res, nil
}

// make makes the limits, in place of those that were found. It returns the IFBs.
func (c *call) make(end rtnl.Link, want limits, found bool) (ifbs []rtnl.Link, err error) {
	if !found {
		ifbs, err = c.limit(end, want)
	}
	if found || errors.Is(err, unix.EEXIST) { // an IFB may be left of an ADD before this one, or of the reference
		ifbs, err = c.replace(end, want)
	}
	if errors.Is(err, unix.EEXIST) {
		err = cni.Errorf(cni.CodeConflict, "%w: something else queues there; remove it, or the limit", err)
	}
	return ifbs, err
}

// del removes whatever the attachment has. The host end may live on.
func del(ctx context.Context, req *skel.Request) error {
	c := open(req)
	end, err := c.findRemains()
	if err != nil {
		return err
	}
	if end.Index != 0 && !c.inside {
		return c.remove(end)
	}
	// The path may lead to another container by now. The record says where the limits of this one are.
	r, ok, err := records().Get(c.Req.Hash())
	if ok {
		err = removeInside(r, &ns.Finder{Also: c.Req.Netns})
	}
	if err != nil {
		return err
	}
	c.at = c.Host
	return errors.Join(c.remove(rtnl.Link{}), records().Drop(ctx, c.Req.Hash()))
}

// gc removes the IFBs of attachments that are not valid, and the filters of the host ends that lead to them. Other host
// ends go with the GC of the plugin that made them. What is in containers has records.
func gc(ctx context.Context, req *skel.Request) error {
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
	stale := func(r netplugin.NetnsRecord) bool { return req.Valid.Excludes(r.Attachment) }
	var finder ns.Finder
	err = records().Collect(ctx, stale, func(r netplugin.NetnsRecord) error { return removeInside(r, &finder) })
	return errors.Join(append(errs, err)...)
}

// check compares what is limited.
func check(_ context.Context, req *skel.Request, cfg config) error {
	if cfg.isEmpty() {
		return nil
	}
	c := open(req)
	end, err := c.findEnd()
	if isAbsent(err) {
		return cni.Drift("%w", err)
	}
	if err != nil {
		return err
	}
	want, err := cfg.plan(end.MTU)
	if err != nil {
		return err
	}
	sent, _ := c.sides(end, want)
	var errs []error
	for name, f := range want.each {
		switch {
		case f != sent:
			errs = append(errs, c.verifyRedirect(name, end, rtnl.ClsactReceived, f)) // or an ingress qdisc's, the same
		case f.exempt != nil:
			errs = append(errs, c.verifyRedirect(name, end, rtnl.ClsactSent, f))
		default:
			errs = append(errs, c.verify(name, end, f))
		}
	}
	return errors.Join(errs...)
}

// reapply restores the filters, and redirections to an IFB that exists. The filters end with the interface. reapply
// does not restore an IFB, because an IFB would outlive the container if DEL of this plugin has already run.
func reapply(_ context.Context, req *skel.Request, cfg config) error {
	c := open(req)
	end, err := c.findEnd()
	if err != nil {
		return err
	}
	want, err := cfg.plan(end.MTU)
	if err != nil {
		return err
	}
	ways, _, addQdisc := c.ways(end, want)
	ifbs, err := c.ifbs()
	errs := []error{err}
	for name, f := range want.each {
		link := end
		i := slices.IndexFunc(ways, func(w way) bool { return w.filter == f })
		switch {
		case i < 0:
		case c.verifyRedirect(name, end, ways[i].hook, f) == nil:
			continue
		case len(ifbs) != len(ways):
			errs = append(errs, fmt.Errorf("%s limit: not restored: an IFB is missing; restart the container", name))
			continue
		default:
			link = ifbs[i]
			if err := c.lead(end, ways[i], link, addQdisc); err != nil {
				errs = append(errs, fmt.Errorf("%s limit: not restored: %w", name, err))
				continue
			}
		}
		if c.verify(name, link, f) != nil {
			errs = append(errs, c.requeue(link, f))
		}
	}
	return errors.Join(errs...)
}

// requeue replaces a link's filter.
func (c *call) requeue(end rtnl.Link, f *filter) error {
	q, err := c.at.Qdisc(end.Index, rtnl.Root)
	if err == nil && q.IsTBF() {
		err = c.at.DelQdisc(end.Index, rtnl.Root)
	}
	if err == nil {
		err = c.queue(end.Index, f)
	}
	return err
}

// verify says how the filter of a link differs from the one that ADD makes, or the
// reference plugin.
func (c *call) verify(limit string, l rtnl.Link, want *filter) error {
	q, err := c.at.Qdisc(l.Index, rtnl.Root)
	difference := ""
	switch {
	case err != nil:
		return err
	case q.Kind == "":
		difference = "has no filter"
	case !q.IsTBF():
		difference = fmt.Sprintf("has the qdisc %q instead of the filter", q.Kind)
	case !is(q.TBF, want.TBF) && !is(q.TBF, want.literal):
		difference = fmt.Sprintf("the filter is %+v, want %+v", q.TBF, want.TBF)
	case want.codel:
		leaf, err := c.at.Qdisc(l.Index, rtnl.Leaf)
		if err != nil || leaf.Kind == codel {
			return err
		}
		difference = fmt.Sprintf("has the qdisc %q below the filter instead of %s", leaf.Kind, codel)
	default:
		return nil
	}
	return cni.Drift("%s limit: interface %q: %s", limit, l.Name, difference)
}

// verifyRedirect follows what passes a hook of a link, and is not exempt: to an IFB of this attachment, and through its
// filter.
func (c *call) verifyRedirect(limit string, end rtnl.Link, hook uint32, want *filter) error {
	drift := func(what string) error {
		side := "host "
		if c.inside {
			side = ""
		}
		return cni.Drift("%s limit: %sinterface %q: %s", limit, side, end.Name, what)
	}
	list, err := c.at.Redirects(end.Index, hook)
	exempt, list := splitExempt(list)
	switch {
	case err != nil:
		return err
	case !slices.Equal(exempt, want.exempt):
		return drift(fmt.Sprintf("exempts %v, want %v", exempt, want.exempt))
	case len(list) == 0:
		return drift("redirects nothing")
	case list[0].To <= 0: // nothing that comes after it sees a packet
		return drift("redirects to no interface that exists")
	case !list[0].All:
		return drift("redirects only some packets")
	}
	ifb, err := c.at.LinkByIndex(list[0].To)
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
	return c.verify(limit, ifb, want)
}

// splitExempt returns what is exempt before all else, and the rest.
func splitExempt(list []rtnl.Redirection) (exempt []rtnl.Exempt, rest []rtnl.Redirection) {
	for len(list) > 0 && list[0].Exempt.Net.IsValid() {
		exempt, list = append(exempt, list[0].Exempt), list[1:]
	}
	return exempt, list
}

// list lists the limits of marked host ends, the IFBs, and those in containers. A host end without a mark does not say
// whose it is.
func list(_ context.Context, req *skel.Request) (all []cni.Holding, err error) {
	c := open(req)
	links, err := c.Host.Briefly()
	filters, filterErr := c.Host.TBFs()
	for _, l := range links {
		a, ok := cni.ParseMark(l.Alias)
		t, limited := filters[l.Index]
		direction := "ingress"
		if l.Kind == "ifb" && !c.isForSent(l, links) {
			direction = "egress"
		}
		if ok && (l.Kind == "ifb" || l.IsPairEnd() && limited) {
			all = append(all, cni.Holding{Attachment: a, Kind: cni.HeldLimit, Kept: "alias of " + l.Name,
				Value: limitText(direction, t.Rate, l.Name)})
		}
	}
	inside, insideErr := listInside()
	return append(all, inside...), errors.Join(err, filterErr, insideErr)
}

func limitText(direction string, rate uint64, name string) string {
	return fmt.Sprintf("%s rate %s dev %s", direction, rateText(rate), name)
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
	return netplugin.Status("", func(host *rtnl.Conn) error {
		err := host.ProbeQdisc("tbf")
		if cfg.egress.rate != 0 || cfg.ingress.rate != 0 && cfg.exempt != nil {
			err = errors.Join(err, host.ProbeKind("ifb"))
		}
		if cfg.codel {
			if lack := host.ProbeQdisc(codel); lack != nil {
				err = errors.Join(err, fmt.Errorf("queue: %w", lack))
			}
		}
		return err
	})
}

// findEnd finds the link that has the limits: the host end of the container's interface, or else that itself. The
// container can choose indexes, and so point at another's host end: the result must name it, too.
func (c *call) findEnd() (rtnl.Link, error) {
	err := c.FindHostEnd()
	switch {
	case c.ContEnd.Index == 0:
		return rtnl.Link{}, err
	case !c.ContEnd.IsPairEnd():
		c.at, c.inside = c.Cont, true
		return c.ContEnd, nil
	case err != nil && !errors.Is(err, rtnl.ErrNoLink):
		return rtnl.Link{}, err
	}
	if err != nil || !c.names(c.HostEnd) {
		return rtnl.Link{}, cni.Refuse("prevResult.interfaces", nil, fmt.Sprintf(
			"has no interface of the host that is the other end of %q", c.Req.IfName))
	}
	return c.HostEnd, nil
}

// names reports whether prevResult names a link as an interface of the host.
func (c *call) names(l rtnl.Link) bool {
	return slices.ContainsFunc(c.Req.PrevResult.Interfaces, func(i cni.Interface) bool {
		return i.Name == l.Name && i.Sandbox == ""
	})
}

// isAbsent tells the errors of findEnd that say that there is none: these have a code, and the kernel's have none.
func isAbsent(err error) bool { return err != nil && cni.AsError(err).Code != cni.CodeInternal }

// findRemains returns, for DEL, the link that has the limits: Hawser's host end by its mark, or another program's host
// end by the container's interface. The zero Link means that there is none. Without CNI_NETNS it does not search for
// another program's host end, because prevResult may name any link.
func (c *call) findRemains() (rtnl.Link, error) {
	end, err := netplugin.MarkedHostEnd(c.Host, c.Req.Attachment)
	if !errors.Is(err, rtnl.ErrNoLink) || c.Req.PrevResult == nil {
		return end, netplugin.IgnoreNoLink(err)
	}
	if c.Req.NS == nil {
		return rtnl.Link{}, nil
	}
	end, err = c.findEnd()
	if isAbsent(err) {
		return rtnl.Link{}, nil // the pair is gone
	}
	return end, err
}
