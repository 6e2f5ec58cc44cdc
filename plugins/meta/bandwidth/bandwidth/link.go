package bandwidth

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// ifbNames returns the names that IFBs of an attachment may have:
//
//  1. The reference plugin's name, which does not depend on the interface. The IFB for received packets gets it when it
//     is marked. The name lets DEL of either implementation find the other's IFB.
//  2. A name of this attachment. The IFB for received packets has it until it is marked, and keeps it if an IFB of
//     another interface of the container on the network has the first name. Otherwise, the IFB for sent packets has it.
//  3. Another name of this attachment. The IFB for sent packets has it if the IFB for received packets keeps the second
//     name.
func ifbNames(a cni.Attachment) []string {
	own := a.Hash()[:12]
	return []string{"bwp" + cni.Digest(a.Network+a.ContainerID, 12), "bwp" + own, "bws" + own}
}

// isUnfinishedIFB reports whether l is an IFB of the network without a mark: its ADD is in progress or was killed.
func isUnfinishedIFB(l rtnl.Link, network string) bool {
	return l.Kind == "ifb" && l.Alias == "" && l.Group == cni.NetworkHash(network)
}

// ownsIFB reports whether l is an IFB of this attachment.
func (c *call) ownsIFB(l rtnl.Link) bool {
	if isUnfinishedIFB(l, c.Req.Network) {
		return slices.Contains(ifbNames(c.Req.Attachment)[1:], l.Name)
	}
	return l.Kind == "ifb" && c.Req.Owns(l.Alias)
}

// mayOwnIFB is like ownsIFB, but also accepts an IFB that the reference plugin may have created, which has no mark.
func (c *call) mayOwnIFB(l rtnl.Link) bool {
	isUnmarked := l.Kind == "ifb" && l.Alias == ""
	return c.ownsIFB(l) || (isUnmarked && slices.Contains(ifbNames(c.Req.Attachment), l.Name))
}

// limitsSent reports whether an IFB limits the packets that a host end sends. An IFB with the third name does, and one
// with the first name does not. An IFB with the second name does unless a link redirects received packets to it.
// limitsSent recognizes the second name by its digits, with which the IFB's alias begins. It cannot compare with
// ifbNames, because the alias may contain only parts of the attachment's names.
func (c *call) limitsSent(ifb rtnl.Link, links []rtnl.Link) bool {
	digits, isFirstOrSecond := strings.CutPrefix(ifb.Name, "bwp")
	redirects := func(l rtnl.Link) bool {
		list, _ := c.conn.Redirects(l.Index, rtnl.ClsactReceived) // an ingress qdisc lists the same
		return slices.ContainsFunc(list, func(r rtnl.Redirection) bool { return r.Target == ifb.Index })
	}
	return !isFirstOrSecond || strings.HasPrefix(ifb.Alias, digits) && !slices.ContainsFunc(links, redirects)
}

// linkFilters returns the filters for the packets that a link sends and receives. A host end sends what the container
// receives. So does a tap, because it sends to the program that has opened it. The conversion is its own inverse:
// linkFilters(end, limits{sent, received}) returns the filters for ingress and egress.
func (c *call) linkFilters(end rtnl.Link, l limits) (sent, received *filter) {
	if c.isInside && end.Kind != "tun" {
		return l.egress, l.ingress
	}
	return l.ingress, l.egress
}

// ingressHooks returns the hooks of the link's ingress or clsact qdisc, or none if it has neither.
func (c *call) ingressHooks(end int) (hooks []uint32, err error) {
	q, err := c.conn.Qdisc(end, rtnl.Ingress)
	switch q.Kind {
	case "ingress":
		hooks = []uint32{rtnl.Received}
	case "clsact":
		hooks = []uint32{rtnl.ClsactReceived, rtnl.ClsactSent}
	}
	return hooks, err
}

// readLimits reads the limits that an earlier ADD, or the reference plugin, has left. found is true if the link has a
// TBF, an ingress qdisc (even without a limit), or a clsact qdisc with a limit.
func (c *call) readLimits(end rtnl.Link) (former limits, found bool, err error) {
	var sent, received *filter
	root, err := c.conn.Qdisc(end.Index, rtnl.Root)
	if err == nil && root.IsTBF() {
		found = true
		sent, err = c.readFilter(end, root)
	}
	if err != nil {
		return former, found, err
	}
	hooks, err := c.ingressHooks(end.Index)
	if err != nil {
		return former, found, err
	}
	for _, hook := range hooks {
		f, err := c.readRedirect(end, hook)
		if err != nil {
			return former, found, err
		}
		if hook != rtnl.ClsactSent {
			received = f
		} else if f != nil {
			sent = f
		}
	}
	found = found || len(hooks) == 1 || sent != nil || received != nil
	former.ingress, former.egress = c.linkFilters(end, limits{sent, received}) // converts back
	return former, found, nil
}

// readRedirect returns the filter of this attachment's IFB to which a hook redirects, or nil.
func (c *call) readRedirect(end rtnl.Link, hook uint32) (*filter, error) {
	list, err := c.conn.Redirects(end.Index, hook)
	exempt, list := splitExempt(list)
	if err != nil || len(list) == 0 || list[0].Target <= 0 {
		return nil, err
	}
	ifb, err := c.conn.LinkByIndex(list[0].Target)
	if err != nil || !c.mayOwnIFB(ifb) {
		return nil, err
	}
	q, err := c.conn.Qdisc(ifb.Index, rtnl.Root)
	if err != nil || !q.IsTBF() {
		return nil, err
	}
	f, err := c.readFilter(ifb, q)
	if err == nil {
		f.exempt, f.mac = exempt, ifb.MAC
	}
	return f, err
}

// readFilter returns the filter whose TBF is q.
func (c *call) readFilter(l rtnl.Link, q rtnl.Qdisc) (*filter, error) {
	leaf, err := c.conn.Qdisc(l.Index, rtnl.Leaf)
	f := &filter{TBF: q.TBF, codel: leaf.Kind == codel}
	if q.TBF.Peak != 0 {
		f.TBF = withPeak(f.TBF, l.MTU)
	}
	return f, err
}

func (c *call) replaceLimits(end rtnl.Link, l limits) ([]rtnl.Link, error) {
	if err := c.removeLimits(end); err != nil {
		return nil, err
	}
	return c.addLimits(end, l)
}

// addLimits adds the TBFs, an IFB for received packets, and another IFB for sent packets if some are exempt. The error
// matches EEXIST if the link already has a qdisc or an IFB exists.
func (c *call) addLimits(end rtnl.Link, l limits) (ifbs []rtnl.Link, err error) {
	redirects, sent, addQdisc := c.redirectsFor(end, l)
	own := ifbNames(c.Req.Attachment)
	for _, r := range redirects {
		name := own[1]
		if len(ifbs) > 0 && ifbs[0].Name == name {
			name = own[2]
		}
		ifb, err := c.addIFB(name, end.MTU, r.filter)
		if err == nil {
			ifb, err = c.markIFB(ifb, r.finalName)
		}
		if err != nil {
			return ifbs, err
		}
		ifbs = append(ifbs, ifb)
	}
	if len(ifbs) > 0 {
		err = addQdisc(end.Index)
	}
	if errors.Is(err, unix.EEXIST) { // another program's qdisc, which removeLimits would delete if the IFBs stayed
		errs := []error{err}
		for _, ifb := range ifbs {
			errs = append(errs, c.conn.DelLink(ifb.Index))
		}
		return ifbs, errors.Join(errs...)
	}
	for i, ifb := range ifbs {
		if err == nil {
			err = c.conn.Redirect(end.Index, redirects[i].hook, ifb.Index, redirects[i].filter.exempt...)
		}
	}
	if err == nil && sent != nil {
		err = c.addFilter(end.Index, sent)
	}
	return ifbs, err
}

// redirect is a redirection to an IFB that has the filter.
type redirect struct {
	filter    *filter
	hook      uint32
	finalName string // name of the IFB once it is marked; "": unchanged
}

// redirectsFor returns the redirections of the limits, the filter of the link itself (or nil), and the function that
// adds the qdisc with the hooks.
func (c *call) redirectsFor(end rtnl.Link, l limits) (redirects []redirect, sent *filter, addQdisc func(int) error) {
	sent, received := c.linkFilters(end, l)
	addQdisc, hook := c.conn.AddIngress, uint32(rtnl.Received)
	hasExempt := sent != nil && sent.exempt != nil
	if hasExempt {
		addQdisc, hook = c.conn.AddClsact, rtnl.ClsactReceived
	}
	if received != nil {
		redirects = append(redirects, redirect{received, hook, ifbNames(c.Req.Attachment)[0]})
	}
	if hasExempt {
		redirects, sent = append(redirects, redirect{sent, rtnl.ClsactSent, ""}), nil
	}
	return redirects, sent, addQdisc
}

// ifbs returns the attachment's IFBs in the order of redirectsFor, which is the order of ifbNames.
func (c *call) ifbs() (ifbs []rtnl.Link, err error) {
	for _, name := range ifbNames(c.Req.Attachment) {
		l, err := c.conn.Link(name)
		if netplugin.IgnoreNoLink(err) != nil {
			return nil, err
		}
		if c.ownsIFB(l) {
			ifbs = append(ifbs, l)
		}
	}
	return ifbs, nil
}

// restoreRedirect restores the redirection to an existing IFB. Another program's filter at the hook is an error, and so
// are exempt entries without a redirection.
func (c *call) restoreRedirect(end rtnl.Link, want redirect, ifb rtnl.Link, addQdisc func(int) error) error {
	if err := c.conn.SetLink(ifb.Index, rtnl.LinkChange{Up: new(true)}); err != nil {
		return err
	}
	list, err := c.conn.Redirects(end.Index, want.hook)
	_, rest := splitExempt(list)
	if err == nil && len(list) > 0 {
		// Target 0 means that the link no longer exists.
		if len(rest) == 0 || rest[0].Target != 0 && rest[0].Target != ifb.Index {
			return cni.Errorf(cni.CodeConflict, "interface %q: has a filter of another program; remove it", end.Name)
		}
		err = c.conn.DelRedirect(end.Index, want.hook, want.filter.exempt != nil)
	}
	if err != nil {
		return err
	}
	hooks, err := c.ingressHooks(end.Index)
	if err == nil && !slices.Contains(hooks, want.hook) {
		err = addQdisc(end.Index)
	}
	if err == nil {
		err = c.conn.Redirect(end.Index, want.hook, ifb.Index, want.filter.exempt...)
	}
	if _, linkErr := c.conn.LinkByIndex(ifb.Index); errors.Is(linkErr, rtnl.ErrNoLink) { // a concurrent DEL removed it
		return errors.Join(linkErr, c.removeFromLink(end.Index))
	}
	return err
}

// addFilter adds the TBF, and fq_codel below it if configured, to a link.
func (c *call) addFilter(link int, f *filter) error {
	err := c.conn.AddTBF(link, f.TBF)
	if err != nil || !f.codel {
		return err
	}
	err = c.conn.AddLeaf(link, codel)
	if errors.Is(err, unix.ENOENT) {
		return cni.Refuse("queue", codel, "is not supported by this kernel").
			Suggest("load sch_fq_codel, or remove the key").WithCode(cni.CodeUnsupportedField)
	}
	return err
}

// addIFB creates an IFB with its filter. No other attachment may use the name. The kernel ignores an alias in the
// request that creates a link, so the group identifies the network until markIFB sets the alias. markIFB does not reset
// the group: if it then failed to rename the link, nothing would identify the IFB.
func (c *call) addIFB(name string, mtu int, f *filter) (ifb rtnl.Link, err error) {
	err = c.conn.AddLink(rtnl.NewLink{Name: name, Kind: "ifb", MTU: mtu, MAC: f.mac,
		Group: cni.NetworkHash(c.Req.Network)})
	if err != nil {
		return ifb, err
	}
	if ifb, err = c.conn.Link(name); err != nil {
		return ifb, err
	}
	return ifb, c.addFilter(ifb.Index, f)
}

// markIFB sets the alias of an IFB, brings it up and, if name is not empty, renames it. The IFB keeps its old name if
// an IFB of another interface of the container has the new name. The error matches EEXIST if another IFB of this
// attachment has the new name.
func (c *call) markIFB(ifb rtnl.Link, name string) (rtnl.Link, error) {
	change := rtnl.LinkChange{Name: name, Alias: new(c.Req.Mark()), Up: new(true)}
	err := c.conn.SetLink(ifb.Index, change)
	if !errors.Is(err, unix.EEXIST) {
		ifb.Name = cmp.Or(name, ifb.Name)
		return ifb, err
	}
	if other, linkErr := c.conn.Link(name); linkErr == nil && c.ownsIFB(other) {
		return ifb, err
	}
	change.Name = ""
	return ifb, c.conn.SetLink(ifb.Index, change)
}

// removeLimits removes the limits of the link and the IFBs of the attachment. If the link is the zero Link, the link
// that redirects to an IFB of the attachment takes its place. An unmarked IFB, left by the reference plugin or by a
// killed ADD, may belong to another interface of the container. In that case, another host end redirects to the IFB,
// and removeLimits does not delete it.
func (c *call) removeLimits(end rtnl.Link) error {
	var errs []error
	var ours []int
	hasSecond := false
	for i, name := range ifbNames(c.Req.Attachment) {
		if i == 2 && !hasSecond { // the third name is used only together with the second
			break
		}
		l, err := c.conn.Link(name)
		errs = append(errs, netplugin.IgnoreNoLink(err))
		if !c.mayOwnIFB(l) {
			continue
		}
		isOwn := c.ownsIFB(l)
		if !isOwn || end.Index == 0 { // the links that redirect to the IFB show its owner, or replace the zero Link
			users, err := c.findUsers(l)
			if err == nil && end.Index == 0 && len(users) > 0 { // an attachment's IFB has only one user
				if end = users[0]; !isOwn {
					end, err = c.ownEnd(end)
				}
			}
			if errs = append(errs, err); err != nil {
				continue
			}
			if !isOwn && slices.ContainsFunc(users, func(u rtnl.Link) bool { return u.Index != end.Index }) {
				continue
			}
		}
		ours, hasSecond = append(ours, l.Index), i == 1
	}
	errs = append(errs, c.removeFromLink(end.Index, ours...))
	for _, index := range slices.Backward(ours) { // the third name first, because a call ignores it without the second
		errs = append(errs, c.conn.DelLink(index))
	}
	return errors.Join(errs...)
}

// ownEnd decides whether the IFB to which end redirects packets is this attachment's. If it is, ownEnd returns end,
// otherwise the zero Link. The IFB has a name of this attachment, but no mark, so it may belong to another interface of
// the container. These facts decide:
//
//   - No namespace and no prevResult: the IFB is treated as the attachment's.
//   - No namespace, but a prevResult: the IFB is the attachment's if prevResult names end.
//   - A namespace and a prevResult: the caller has found no host end of this attachment, so end belongs to another one.
//   - A namespace, but no prevResult, as before cniVersion 0.4.0: the container's interface decides.
func (c *call) ownEnd(end rtnl.Link) (rtnl.Link, error) {
	if c.Req.NS == nil && (c.Req.PrevResult == nil || c.isInResult(end)) {
		return end, nil
	}
	if c.Req.PrevResult != nil {
		return rtnl.Link{}, nil
	}
	if err := c.FindHostEnd(); err != nil || c.HostEnd.Index != end.Index {
		return rtnl.Link{}, netplugin.IgnoreNoLink(err)
	}
	return end, nil
}

// removeFromLink removes the TBF of a link and the link's redirections to these IFBs or to a deleted link, so that the
// container can send again. Filters of other programs stay.
func (c *call) removeFromLink(end int, ifbs ...int) error {
	if end == 0 {
		return nil
	}
	root, err := c.conn.Qdisc(end, rtnl.Root)
	errs := []error{err}
	if root.IsTBF() { // first, because GC finds the host end by the redirection
		errs = append(errs, c.conn.DelQdisc(end, rtnl.Root))
	}
	hooks, err := c.ingressHooks(end)
	errs = append(errs, err)
	isOurs := func(r rtnl.Redirection) bool { return r.Target == 0 || slices.Contains(ifbs, r.Target) }
	var ours []uint32   // hooks whose first redirection belongs to the attachment
	var all, others int // numbers of all filters, and of other programs' filters
	hasExempt := false  // the attachment's hooks exempt networks
	for _, hook := range hooks {
		list, err := c.conn.Redirects(end, hook)
		if err != nil {
			return netplugin.IgnoreNoLink(errors.Join(append(errs, err)...))
		}
		exempt, rest := splitExempt(list)
		if len(rest) > 0 && !isOurs(rest[0]) { // exempt entries belong to the program of the redirection after them
			others += len(exempt)
		} else if len(list) > 0 {
			ours, hasExempt = append(ours, hook), hasExempt || len(exempt) > 0
		}
		all, others = all+len(list), others+len(slices.DeleteFunc(rest, isOurs))
	}
	switch {
	case len(hooks) == 0 || all == 0 && len(ifbs) == 0: // there is no qdisc, or it belongs to another program
	case others == 0:
		errs = append(errs, c.conn.DelQdisc(end, rtnl.Ingress))
	default:
		for _, hook := range ours {
			errs = append(errs, c.conn.DelRedirect(end, hook, hasExempt))
		}
	}
	return netplugin.IgnoreNoLink(errors.Join(errs...)) // the pair may be deleted concurrently
}

// findUsers returns the host ends, or the interfaces of the container, that redirect to an IFB. It also returns a host
// end with the IFB's mark, because a killed ADD may not have added the redirection. It reads all links.
func (c *call) findUsers(ifb rtnl.Link) (ends []rtnl.Link, err error) {
	links, err := c.conn.Links()
	for _, l := range links {
		if l.Kind == "ifb" || !c.isInside && !l.IsPairEnd() {
			continue
		}
		found := ifb.Alias != "" && l.Alias == ifb.Alias
		// An ingress qdisc returns the same list for both hooks.
		for _, hook := range []uint32{rtnl.ClsactReceived, rtnl.ClsactSent} {
			list, err := c.conn.Redirects(l.Index, hook)
			if netplugin.IgnoreNoLink(err) != nil {
				return nil, err
			}
			found = found || slices.ContainsFunc(list, func(r rtnl.Redirection) bool { return r.Target == ifb.Index })
		}
		if found {
			ends = append(ends, l)
		}
	}
	return ends, err
}
