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

type call struct {
	*netplugin.Call
	conn     *rtnl.Conn // namespace of the limits: Host or Cont
	isInside bool       // the limits are in the container, because its interface has no host end
}

func openCall(req *skel.Request) *call {
	c := netplugin.OpenHost(req)
	return &call{Call: c, conn: c.Host}
}

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	if cfg.isEmpty() {
		return req.PrevResult, nil
	}
	c := openCall(req)
	end, err := c.findLink()
	if err != nil {
		return nil, err
	}
	if c.isInside && !req.Owns(end.Alias) { // only in ADD, because the container can change the alias later
		if err := netplugin.RefuseOwned("CNI_IFNAME", end); err != nil {
			return nil, err
		}
	}
	want, err := cfg.limits(c.mtu(end))
	if err == nil {
		err = checkSupported(end, want)
	}
	if err != nil {
		return nil, err
	}
	for _, f := range want.each {
		if f.warning != "" {
			req.Warn("%s", f.warning)
		}
	}
	former, found, err := c.readLimits(end)
	if err != nil {
		return nil, err
	}
	if c.isInside {
		if err := c.putRecord(ctx, want, former != limits{}); err != nil {
			return nil, err
		}
	}
	req.Step("set the limits")
	req.OnFail("restore the limits", func(context.Context) error {
		_, err := c.replaceLimits(end, former)
		return err
	})
	ifbs, err := c.install(end, want, found)
	if err != nil {
		return nil, err
	}
	res := req.PrevResult.Clone()
	for _, ifb := range ifbs {
		if !c.isInside { // a runtime may treat an IFB in the container as one of its interfaces
			res.Interfaces = append(res.Interfaces, iface.Describe(ifb))
		}
	}
	return res, nil
}

// install adds the limits and returns the IFBs. It replaces limits that were found, and IFBs of an earlier ADD.
func (c *call) install(end rtnl.Link, want limits, found bool) (ifbs []rtnl.Link, err error) {
	if !found {
		ifbs, err = c.addLimits(end, want)
	}
	if found || errors.Is(err, unix.EEXIST) { // the reference plugin may also have left an IFB
		ifbs, err = c.replaceLimits(end, want)
	}
	if errors.Is(err, unix.EEXIST) {
		err = cni.Errorf(cni.CodeConflict, "%w: another program has a qdisc there; remove it, or the limit", err)
	}
	return ifbs, err
}

// del removes all limits of the attachment. The host end itself may remain.
func del(ctx context.Context, req *skel.Request) error {
	c := openCall(req)
	end, err := c.findLimited()
	if err != nil {
		return err
	}
	if end.Index != 0 && !c.isInside {
		return c.removeLimits(end)
	}
	// CNI_NETNS may now be the namespace of another container. The record has the namespace of this one.
	r, ok, err := records().Get(c.Req.Hash())
	if ok {
		err = removeInside(r, &ns.Finder{Alternative: c.Req.Netns})
	}
	if err != nil {
		return err
	}
	c.conn = c.Host // IFBs and redirections to them may be left on the host
	return errors.Join(c.removeLimits(rtnl.Link{}), records().Drop(ctx, c.Req.Hash()))
}

// gc removes the IFBs of attachments that are not valid, the limits of the host ends that redirect to these IFBs, and
// the limits in containers, which have records. A host end without an IFB is left to the GC of its main plugin.
func gc(ctx context.Context, req *skel.Request) error {
	c := openCall(req)
	links, err := c.Host.Links()
	errs := []error{err}
	var keep []string // possible names of unfinished IFBs of valid attachments
	for _, a := range req.Valid.All {
		keep = append(keep, ifbNames(a)...)
	}
	for _, l := range links {
		isOrphaned := isUnfinishedIFB(l, req.Network) && !slices.Contains(keep, l.Name)
		if l.Kind != "ifb" || !(isOrphaned || req.Valid.IsGarbage(l.Alias)) {
			continue
		}
		users, err := c.findUsers(l)
		errs = append(errs, err)
		for _, end := range users {
			errs = append(errs, c.removeFromLink(end.Index, l.Index))
		}
		errs = append(errs, c.Host.DelLink(l.Index))
	}
	isStale := func(r netplugin.NetnsRecord) bool { return req.Valid.Excludes(r.Attachment) }
	var finder ns.Finder
	err = records().Collect(ctx, isStale, func(r netplugin.NetnsRecord) error { return removeInside(r, &finder) })
	return errors.Join(append(errs, err)...)
}

// check compares both limits with the limits that ADD sets.
func check(_ context.Context, req *skel.Request, cfg config) error {
	if cfg.isEmpty() {
		return nil
	}
	c := openCall(req)
	end, err := c.findLink()
	if isAbsent(err) {
		return cni.Drift("%w", err)
	}
	if err != nil {
		return err
	}
	want, err := c.limitsSinceADD(cfg, end)
	if err != nil {
		return err
	}
	sent, _ := c.linkFilters(end, want)
	var errs []error
	for direction, f := range want.each {
		switch {
		case f != sent:
			// The kernel lists the filters of an ingress qdisc also under this hook.
			errs = append(errs, c.verifyRedirect(direction, end, rtnl.ClsactReceived, f))
		case f.exempt != nil:
			errs = append(errs, c.verifyRedirect(direction, end, rtnl.ClsactSent, f))
		default:
			errs = append(errs, c.verify(direction, end, f))
		}
	}
	return errors.Join(errs...)
}

// reapply restores the filters, and the redirections to existing IFBs. It does not restore an IFB, because the IFB
// would outlive the container if DEL of this plugin has already run. Filters cannot outlive the interface.
func reapply(_ context.Context, req *skel.Request, cfg config) error {
	c := openCall(req)
	end, err := c.findLink()
	if err != nil {
		return err
	}
	want, err := c.limitsSinceADD(cfg, end)
	if err != nil {
		return err
	}
	redirects, _, addQdisc := c.redirectsFor(end, want)
	ifbs, err := c.ifbs()
	errs := []error{err}
	for direction, f := range want.each {
		link := end
		i := slices.IndexFunc(redirects, func(r redirect) bool { return r.filter == f })
		switch {
		case i < 0: // the link itself has the filter
		case c.verifyRedirect(direction, end, redirects[i].hook, f) == nil:
			continue
		case len(ifbs) != len(redirects):
			errs = append(errs, fmt.Errorf("%s limit: not restored: an IFB is missing; restart the container",
				direction))
			continue
		default:
			link = ifbs[i]
			if err := c.restoreRedirect(end, redirects[i], link, addQdisc); err != nil {
				errs = append(errs, fmt.Errorf("%s limit: not restored: %w", direction, err))
				continue
			}
		}
		if c.verify(direction, link, f) != nil {
			errs = append(errs, c.replaceFilter(link, f))
		}
	}
	return errors.Join(errs...)
}

func (c *call) replaceFilter(end rtnl.Link, f *filter) error {
	q, err := c.conn.Qdisc(end.Index, rtnl.Root)
	if err == nil && q.IsTBF() {
		err = c.conn.DelQdisc(end.Index, rtnl.Root)
	}
	if err == nil {
		err = c.addFilter(end.Index, f)
	}
	return err
}

// verify returns an error if the TBF of a link is neither the TBF that ADD creates nor the reference plugin's.
func (c *call) verify(direction string, l rtnl.Link, want *filter) error {
	q, err := c.conn.Qdisc(l.Index, rtnl.Root)
	difference := ""
	switch {
	case err != nil:
		return err
	case q.Kind == "":
		difference = "has no filter"
	case !q.IsTBF():
		difference = fmt.Sprintf("has the qdisc %q instead of the filter", q.Kind)
	case !equalTBF(q.TBF, want.TBF) && !equalTBF(q.TBF, want.literal) && !equalTBF(q.TBF, want.ofHostEnd):
		difference = fmt.Sprintf("the filter is %+v, want %+v", q.TBF, want.TBF)
	case want.codel:
		leaf, err := c.conn.Qdisc(l.Index, rtnl.Leaf)
		if err != nil || leaf.Kind == codel {
			return err
		}
		difference = fmt.Sprintf("has the qdisc %q below the filter instead of %s", leaf.Kind, codel)
	default:
		return nil
	}
	return cni.Drift("%s limit: interface %q: %s", direction, l.Name, difference)
}

// verifyRedirect verifies that a hook of a link redirects all packets that are not exempt to an IFB of this attachment,
// and that the IFB has the filter.
func (c *call) verifyRedirect(direction string, end rtnl.Link, hook uint32, want *filter) error {
	drift := func(difference string) error {
		side := "host "
		if c.isInside {
			side = ""
		}
		return cni.Drift("%s limit: %sinterface %q: %s", direction, side, end.Name, difference)
	}
	list, err := c.conn.Redirects(end.Index, hook)
	exempt, list := splitExempt(list)
	switch {
	case err != nil:
		return err
	case !slices.Equal(exempt, want.exempt):
		return drift(fmt.Sprintf("exempts %v, want %v", exempt, want.exempt))
	case len(list) == 0:
		return drift("redirects nothing")
	case list[0].Target <= 0: // only the first filter is compared, because it gets the packets before the others
		return drift("redirects to no interface that exists")
	case !list[0].All:
		return drift("redirects only some packets")
	}
	ifb, err := c.conn.LinkByIndex(list[0].Target)
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return drift("redirects to an interface that no longer exists")
	case err != nil:
		return err
	case !c.mayOwnIFB(ifb):
		return drift("redirects to " + ifb.Name + ", which is not this attachment's")
	case !ifb.Up:
		return drift("redirects to " + ifb.Name + ", which is down")
	}
	return c.verify(direction, ifb, want)
}

// splitExempt splits the leading exempt entries from the rest.
func splitExempt(list []rtnl.Redirection) (exempt []rtnl.Exempt, rest []rtnl.Redirection) {
	for len(list) > 0 && list[0].Exempt.Net.IsValid() {
		exempt, list = append(exempt, list[0].Exempt), list[1:]
	}
	return exempt, list
}

// list returns the limits of marked host ends, of IFBs and in containers. Unmarked host ends have no known owner.
func list(_ context.Context, req *skel.Request) (all []cni.Holding, err error) {
	c := openCall(req)
	links, err := c.Host.LinkSummaries()
	filters, filterErr := c.Host.TBFs()
	for _, l := range links {
		h, ok := cni.HoldingOf(l.Alias)
		t, hasTBF := filters[l.Index]
		direction := "ingress"
		if l.Kind == "ifb" && !c.limitsSent(l, links) {
			direction = "egress"
		}
		if ok && (l.Kind == "ifb" || l.IsPairEnd() && hasTBF) {
			h.Kind, h.Kept, h.Value = cni.HeldLimit, "alias of "+l.Name, limitText(direction, t.Rate, l.Name)
			all = append(all, h)
		}
	}
	inside, insideErr := listInside()
	return append(all, inside...), errors.Join(err, filterErr, insideErr)
}

// limitText describes a limit in the form of tc(8). The rate is in bytes per second. The loop goes to the next unit
// if the division is exact or leaves at least four digits.
func limitText(direction string, rate uint64, name string) string {
	units := []string{"", "K", "M", "G", "T"}
	for rate *= 8; len(units) > 1 && rate >= 1000 && (rate%1000 == 0 || rate >= 1000*1000); units = units[1:] {
		rate /= 1000
	}
	return fmt.Sprintf("%s rate %d%sbit dev %s", direction, rate, units[0], name)
}

// status returns an error if the kernel lacks a qdisc or a kind of link that the configured limits need at a host end.
func status(_ context.Context, _ *skel.Request, cfg config) error {
	return netplugin.Status("", func(host *rtnl.Conn) error {
		err := host.ProbeQdisc("tbf")
		if cfg.egress.rate != 0 || cfg.ingress.rate != 0 && cfg.exempt != nil {
			err = errors.Join(err, host.ProbeKind("ifb"))
		}
		if cfg.codel {
			if codelErr := host.ProbeQdisc(codel); codelErr != nil {
				err = errors.Join(err, fmt.Errorf("queue: %w", codelErr))
			}
		}
		return err
	})
}

// findLink returns the link of the limits: the host end of the container's interface or, if it has no host end, the
// interface itself. In the latter case, it sets c.isInside. prevResult must name the host end, because a container can
// choose the indexes of its links and so refer to the host end of another container.
func (c *call) findLink() (rtnl.Link, error) {
	err := c.FindHostEnd()
	switch {
	case c.ContEnd.Index == 0:
		return rtnl.Link{}, err
	case !c.ContEnd.IsPairEnd():
		c.conn, c.isInside = c.Cont, true
		return c.ContEnd, nil
	case err != nil && !errors.Is(err, rtnl.ErrNoLink):
		return rtnl.Link{}, err
	}
	if err != nil || !c.isInResult(c.HostEnd) {
		return rtnl.Link{}, cni.Refuse("prevResult.interfaces", nil, fmt.Sprintf(
			"has no interface of the host that is the other end of %q", c.Req.IfName))
	}
	if !c.Req.Owns(c.HostEnd.Alias) { // prevResult can be of another attachment
		if err := netplugin.RefuseOwned("prevResult.interfaces", c.HostEnd); err != nil {
			return rtnl.Link{}, err
		}
	}
	return c.HostEnd, nil
}

// mtu returns the MTU of the packets that a limit must pass: the smaller one of the two ends. The plugin bridge raises
// and lowers the MTU of a host end for other containers on the bridge.
func (c *call) mtu(end rtnl.Link) int { return min(end.MTU, c.ContEnd.MTU) }

// limitsSinceADD returns the limits of an existing attachment. Since ADD, the container or a later plugin, such as
// tuning, may have lowered the MTU of the container's interface. CHECK therefore also accepts the TBF for the MTU of
// end. A container cannot change the MTU of a host end.
func (c *call) limitsSinceADD(cfg config, end rtnl.Link) (limits, error) {
	want, err := cfg.limits(c.mtu(end))
	ofHostEnd, _ := cfg.limits(end.MTU) // a limit whose burst is too small for this MTU is left out
	for _, pair := range [][2]*filter{{want.ingress, ofHostEnd.ingress}, {want.egress, ofHostEnd.egress}} {
		if pair[0] != nil && pair[1] != nil {
			pair[0].ofHostEnd = pair[1].TBF
		}
	}
	return want, err
}

// isInResult reports whether prevResult names a link as an interface of the host.
func (c *call) isInResult(l rtnl.Link) bool {
	return slices.ContainsFunc(c.Req.PrevResult.Interfaces, func(i cni.Interface) bool {
		return i.Name == l.Name && i.Sandbox == ""
	})
}

// isAbsent reports whether an error of findLink means that the attachment has no such link: the link does not exist, is
// not in prevResult, or belongs to another attachment. Such errors have a code, unlike errors of the kernel.
func isAbsent(err error) bool { return err != nil && cni.AsError(err).Code != cni.CodeInternal }

// findLimited returns the link whose limits DEL removes: Hawser's host end by its mark, or another program's host end
// by the container's interface. It returns the zero Link if there is no such link. Without CNI_NETNS it does not search
// for another program's host end, because prevResult may name any link.
func (c *call) findLimited() (rtnl.Link, error) {
	end, err := netplugin.MarkedHostEnd(c.Host, c.Req.Attachment)
	if !errors.Is(err, rtnl.ErrNoLink) || c.Req.PrevResult == nil {
		return end, netplugin.IgnoreNoLink(err)
	}
	if c.Req.NS == nil {
		return rtnl.Link{}, nil
	}
	end, err = c.findLink()
	if isAbsent(err) {
		return rtnl.Link{}, nil
	}
	return end, err
}

// checkSupported returns an error if the link cannot be limited.
func checkSupported(end rtnl.Link, want limits) error {
	if end.Kind == "ipvlan" && end.Mode == "l3s" && want.ingress != nil {
		return cni.Refuse("ingressRate", 8*want.ingress.Rate,
			"is not possible: packets to an ipvlan of mode l3s do not pass its qdiscs").
			Suggest("use mode l2 or l3").WithCode(cni.CodeUnsupportedField)
	}
	return nil
}
