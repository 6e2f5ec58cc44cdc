package bandwidth

import (
	"cmp"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// names are those that the IFBs of an attachment may have. The first is the reference's, so that the DEL of either
// finds the IFB of what a link receives; it has no interface in it. The second is the attachment's own, until that IFB
// is marked, and after that where the container's other interface on the network has the first. The IFB of what a link
// sends has the second, or where that is taken the third.
func names(a cni.Attachment) []string {
	own := a.Hash()[:12]
	return []string{"bwp" + cni.Digest(a.Network+a.ContainerID, 12), "bwp" + own, "bws" + own}
}

// isHalfMade tells an IFB of the network whose ADD died before it could mark it.
func isHalfMade(l rtnl.Link, network string) bool {
	return l.Kind == "ifb" && l.Alias == "" && l.Group == cni.NetworkHash(network)
}

// isMine tells the IFB of this attachment.
func (c *call) isMine(l rtnl.Link) bool {
	if isHalfMade(l, c.Req.Network) {
		return slices.Contains(names(c.Req.Attachment)[1:], l.Name)
	}
	return l.Kind == "ifb" && c.Req.Owns(l.Alias)
}

// canBeMine also tells one that has no mark: the reference's.
func (c *call) canBeMine(l rtnl.Link) bool {
	isUnmarked := l.Kind == "ifb" && l.Alias == ""
	return c.isMine(l) || (isUnmarked && slices.Contains(names(c.Req.Attachment), l.Name))
}

// isForSent tells the IFB of what a link of the host sends. Only the second name does not say it.
func (c *call) isForSent(ifb rtnl.Link, links []rtnl.Link) bool {
	a, _ := cni.ParseMark(ifb.Alias)
	own := names(a)
	leads := func(l rtnl.Link) bool {
		list, _ := c.at.Redirects(l.Index, rtnl.ClsactReceived) // an ingress qdisc lists the same
		return slices.ContainsFunc(list, func(r rtnl.Redirection) bool { return r.To == ifb.Index })
	}
	return ifb.Name == own[2] || ifb.Name == own[1] && !slices.ContainsFunc(links, leads)
}

// hooks are those of the qdisc that a link has at Ingress.
func (c *call) hooks(end int) (hooks []uint32, err error) {
	q, err := c.at.Qdisc(end, rtnl.Ingress)
	switch q.Kind {
	case "ingress":
		hooks = []uint32{rtnl.Received}
	case "clsact":
		hooks = []uint32{rtnl.ClsactReceived, rtnl.ClsactSent}
	}
	return hooks, err
}

// readLimits reads what an ADD before this one has made, or the reference's. found says that the link has a TBF or
// an ingress qdisc, which may limit nothing, or a clsact with a limit.
func (c *call) readLimits(end rtnl.Link) (was limits, found bool, err error) {
	var sent, received *filter
	root, err := c.at.Qdisc(end.Index, rtnl.Root)
	if err == nil && root.IsTBF() {
		found = true
		sent, err = c.readFilter(end, root)
	}
	if err != nil {
		return was, found, err
	}
	hooks, err := c.hooks(end.Index)
	if err != nil {
		return was, found, err
	}
	for _, hook := range hooks {
		f, err := c.readRedirect(end, hook)
		if err != nil {
			return was, found, err
		}
		if hook != rtnl.ClsactSent {
			received = f
		} else if f != nil {
			sent = f
		}
	}
	found = found || len(hooks) == 1 || sent != nil || received != nil
	was.ingress, was.egress = c.sides(end, limits{sent, received}) // to swap twice is not to swap
	return was, found, nil
}

// readRedirect reads the filter of the IFB to which a hook leads; nil where it leads to none of this attachment's.
func (c *call) readRedirect(end rtnl.Link, hook uint32) (*filter, error) {
	list, err := c.at.Redirects(end.Index, hook)
	exempt, list := splitExempt(list)
	if err != nil || len(list) == 0 || list[0].To <= 0 {
		return nil, err
	}
	ifb, err := c.at.LinkByIndex(list[0].To)
	if err != nil || !c.canBeMine(ifb) {
		return nil, err
	}
	q, err := c.at.Qdisc(ifb.Index, rtnl.Root)
	if err != nil || !q.IsTBF() {
		return nil, err
	}
	f, err := c.readFilter(ifb, q)
	if err == nil {
		f.exempt, f.mac = exempt, ifb.MAC
	}
	return f, err
}

func (c *call) readFilter(l rtnl.Link, q rtnl.Qdisc) (*filter, error) {
	leaf, err := c.at.Qdisc(l.Index, rtnl.Leaf)
	f := &filter{TBF: q.TBF, codel: leaf.Kind == codel}
	if q.TBF.Peak != 0 {
		f.TBF = cut(f.TBF, l.MTU)
	}
	return f, err
}

// replace removes what limits the link, and makes these limits.
func (c *call) replace(end rtnl.Link, l limits) ([]rtnl.Link, error) {
	if err := c.remove(end); err != nil {
		return nil, err
	}
	return c.limit(end, l)
}

// limit makes the filters, and the IFBs for what the link receives and for what it sends where some of that is exempt.
// The error matches EEXIST where there is something already.
func (c *call) limit(end rtnl.Link, l limits) (ifbs []rtnl.Link, err error) {
	ways, sent, addQdisc := c.ways(end, l)
	own := names(c.Req.Attachment)
	for _, w := range ways {
		name := own[1]
		if len(ifbs) > 0 && ifbs[0].Name == name {
			name = own[2]
		}
		ifb, err := c.addIFB(name, end.MTU, w.filter)
		if err == nil {
			ifb, err = c.markIFB(ifb, w.marked)
		}
		if err != nil {
			return ifbs, err
		}
		ifbs = append(ifbs, ifb)
	}
	if len(ifbs) > 0 {
		err = addQdisc(end.Index)
	}
	if errors.Is(err, unix.EEXIST) { // somebody's, which remove would take for ours beside our IFB
		errs := []error{err}
		for _, ifb := range ifbs {
			errs = append(errs, c.at.DelLink(ifb.Index))
		}
		return ifbs, errors.Join(errs...)
	}
	for i, ifb := range ifbs {
		if err == nil {
			err = c.at.Redirect(end.Index, ways[i].hook, ifb.Index, ways[i].exempt...)
		}
	}
	if err == nil && sent != nil {
		err = c.queue(end.Index, sent)
	}
	return ifbs, err
}

// way leads through an IFB.
type way struct {
	*filter
	hook   uint32
	marked string // the name of the IFB from its mark on; empty: as before
}

// ways returns the ways of limits, the filter of the link itself, if any, and what adds the qdisc for the hooks.
func (c *call) ways(end rtnl.Link, l limits) (ways []way, sent *filter, addQdisc func(int) error) {
	sent, received := c.sides(end, l)
	addQdisc, hook := c.at.AddIngress, uint32(rtnl.Received)
	hasExempt := sent != nil && sent.exempt != nil
	if hasExempt {
		addQdisc, hook = c.at.AddClsact, rtnl.ClsactReceived
	}
	if received != nil {
		ways = append(ways, way{received, hook, names(c.Req.Attachment)[0]})
	}
	if hasExempt {
		ways, sent = append(ways, way{sent, rtnl.ClsactSent, ""}), nil
	}
	return ways, sent, addQdisc
}

// ifbs returns the attachment's IFBs in the order of its ways, which is that of their names.
func (c *call) ifbs() (ifbs []rtnl.Link, err error) {
	for _, name := range names(c.Req.Attachment) {
		l, err := c.at.Link(name)
		if netplugin.IgnoreNoLink(err) != nil {
			return nil, err
		}
		if c.isMine(l) {
			ifbs = append(ifbs, l)
		}
	}
	return ifbs, nil
}

// lead restores a way to an IFB that is there. A filter of another program stays, and is an error.
func (c *call) lead(end rtnl.Link, w way, ifb rtnl.Link, addQdisc func(int) error) error {
	if err := c.at.SetLink(ifb.Index, rtnl.LinkChange{Up: new(true)}); err != nil {
		return err
	}
	list, err := c.at.Redirects(end.Index, w.hook)
	_, rest := splitExempt(list)
	if err == nil && len(list) > 0 {
		if len(rest) == 0 || rest[0].To != 0 && rest[0].To != ifb.Index {
			return cni.Errorf(cni.CodeConflict, "interface %q: has a filter of another program; remove it", end.Name)
		}
		err = c.at.DelRedirect(end.Index, w.hook, w.exempt != nil)
	}
	if err != nil {
		return err
	}
	hooks, err := c.hooks(end.Index)
	if err == nil && !slices.Contains(hooks, w.hook) {
		err = addQdisc(end.Index)
	}
	if err == nil {
		err = c.at.Redirect(end.Index, w.hook, ifb.Index, w.exempt...)
	}
	if _, gone := c.at.LinkByIndex(ifb.Index); errors.Is(gone, rtnl.ErrNoLink) { // its DEL came in between
		return errors.Join(gone, c.unlimit(end.Index))
	}
	return err
}

// queue makes the filter of a link.
func (c *call) queue(link int, f *filter) error {
	err := c.at.AddTBF(link, f.TBF)
	if err != nil || !f.codel {
		return err
	}
	err = c.at.AddLeaf(link, codel)
	if errors.Is(err, unix.ENOENT) {
		return cni.Refuse("queue", codel, "is not supported by this kernel").
			Suggest("load sch_fq_codel, or leave it out").WithCode(cni.CodeUnsupportedField)
	}
	return err
}

// addIFB makes an IFB with its filter, by a name that no other attachment's can have. The group names the network until
// the link has its alias, which cannot be given when a link is made. It stays: a message that renames can fail after it
// changed the group, and without giving the alias.
func (c *call) addIFB(name string, mtu int, f *filter) (ifb rtnl.Link, err error) {
	err = c.at.AddLink(rtnl.NewLink{Name: name, Kind: "ifb", MTU: mtu, MAC: f.mac,
		Group: cni.NetworkHash(c.Req.Network)})
	if err != nil {
		return ifb, err
	}
	if ifb, err = c.at.Link(name); err != nil {
		return ifb, err
	}
	return ifb, c.queue(ifb.Index, f)
}

// markIFB gives an IFB its alias and brings it up. It gives it another name, too, the reference's, unless an IFB of the
// container's other interface has that. The error matches EEXIST where one of this attachment has it.
func (c *call) markIFB(ifb rtnl.Link, name string) (rtnl.Link, error) {
	change := rtnl.LinkChange{Name: name, Alias: new(c.Req.Mark()), Up: new(true)}
	err := c.at.SetLink(ifb.Index, change)
	if !errors.Is(err, unix.EEXIST) {
		ifb.Name = cmp.Or(name, ifb.Name)
		return ifb, err
	}
	if other, lookErr := c.at.Link(name); lookErr == nil && c.isMine(other) {
		return ifb, err
	}
	change.Name = ""
	return ifb, c.at.SetLink(ifb.Index, change)
}

// remove removes what the attachment has: the filters of the link, where one is known, and the IFBs. An IFB without
// mark, which the reference made or a killed ADD, may be another interface's: then another host end leads to it.
func (c *call) remove(end rtnl.Link) error {
	var errs []error
	var ours []int
	hasSecond := false
	for i, name := range names(c.Req.Attachment) {
		if i == 2 && !hasSecond { // without it nobody takes the third
			break
		}
		l, err := c.at.Link(name)
		errs = append(errs, netplugin.IgnoreNoLink(err))
		if !c.canBeMine(l) {
			continue
		}
		mine := c.isMine(l)
		if !mine || end.Index == 0 {
			users, err := c.users(l)
			if err == nil && end.Index == 0 && len(users) > 0 { // nothing else leads to it
				end, err = c.ownEnd(users[0], mine)
			}
			if errs = append(errs, err); err != nil {
				continue
			}
			if !mine && slices.ContainsFunc(users, func(u rtnl.Link) bool { return u.Index != end.Index }) {
				continue
			}
		}
		ours, hasSecond = append(ours, l.Index), i == 1
	}
	errs = append(errs, c.unlimit(end.Index, ours...))
	for _, index := range slices.Backward(ours) { // so that the third name goes before the second
		errs = append(errs, c.at.DelLink(index))
	}
	return errors.Join(errs...)
}

// ownEnd returns the host end that redirects to an IFB if the IFB is this attachment's, otherwise the zero Link. mine
// is true if the IFB has the attachment's mark. The name of an unmarked IFB contains the container's ID, but the IFB
// may belong to another interface of the container. Without a namespace the IFB is treated as the attachment's, unless
// there is a prevResult that does not name the host end. With a namespace and a prevResult the caller already knows the
// host end. Before cniVersion 0.4.0 DEL has no prevResult; then the container's interface decides.
func (c *call) ownEnd(end rtnl.Link, mine bool) (rtnl.Link, error) {
	if mine {
		return end, nil
	}
	if c.Req.NS == nil && (c.Req.PrevResult == nil || c.names(end)) {
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

// unlimit removes from a link the TBF and what redirects to these IFBs, or to one that is gone, so that the
// container can send again. What others have there stays.
func (c *call) unlimit(end int, ifbs ...int) error {
	if end == 0 {
		return nil
	}
	root, err := c.at.Qdisc(end, rtnl.Root)
	errs := []error{err}
	if root.IsTBF() { // first, since GC finds the host end by the redirection
		errs = append(errs, c.at.DelQdisc(end, rtnl.Root))
	}
	hooks, err := c.hooks(end)
	errs = append(errs, err)
	isOurs := func(r rtnl.Redirection) bool { return r.To == 0 || slices.Contains(ifbs, r.To) }
	var ours []uint32 // hooks where ours come first
	all, others, hasExempt := 0, 0, false
	for _, hook := range hooks {
		list, err := c.at.Redirects(end, hook)
		if err != nil {
			return netplugin.IgnoreNoLink(errors.Join(append(errs, err)...))
		}
		exempt, rest := splitExempt(list)
		if len(rest) > 0 && !isOurs(rest[0]) {
			others += len(exempt)
		} else if len(list) > 0 {
			ours, hasExempt = append(ours, hook), hasExempt || len(exempt) > 0
		}
		all, others = all+len(list), others+len(slices.DeleteFunc(rest, isOurs))
	}
	switch {
	case len(hooks) == 0 || all == 0 && len(ifbs) == 0: // no redirection and no IFB of ours: the qdisc is somebody's
	case others == 0:
		errs = append(errs, c.at.DelQdisc(end, rtnl.Ingress))
	default:
		for _, hook := range ours {
			errs = append(errs, c.at.DelRedirect(end, hook, hasExempt))
		}
	}
	return netplugin.IgnoreNoLink(errors.Join(errs...)) // the pair may go meanwhile
}

// users finds the host ends, or the interfaces of the container, that redirect to an IFB, and the one with its mark: a
// killed ADD may have left that without the redirection. It reads all links.
func (c *call) users(ifb rtnl.Link) (ends []rtnl.Link, err error) {
	links, err := c.at.Links()
	for _, l := range links {
		if l.Kind == "ifb" || !c.inside && !l.IsPairEnd() {
			continue
		}
		leads := ifb.Alias != "" && l.Alias == ifb.Alias
		for _, hook := range []uint32{rtnl.ClsactReceived, rtnl.ClsactSent} { // an ingress qdisc lists the same at both
			list, err := c.at.Redirects(l.Index, hook)
			if netplugin.IgnoreNoLink(err) != nil {
				return nil, err
			}
			leads = leads || slices.ContainsFunc(list, func(r rtnl.Redirection) bool { return r.To == ifb.Index })
		}
		if leads {
			ends = append(ends, l)
		}
	}
	return ends, err
}
