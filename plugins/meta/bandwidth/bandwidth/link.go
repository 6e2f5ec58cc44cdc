package bandwidth

import (
	"errors"
	"net"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/frame"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// names are those that the IFB of an attachment may have. The first is the reference's, so that the DEL of either finds
// the IFB; it has no interface in it. The second is the attachment's own, until the IFB is marked, and after that where
// the container's other interface on the network has the first.
func names(a cni.Attachment) []string {
	return []string{"bwp" + cni.Digest(a.Network+a.ContainerID, 12), "bwp" + a.Hash()[:12]}
}

// isHalfMade tells an IFB of the network whose ADD died before it could mark it.
func isHalfMade(l rtnl.Link, network string) bool {
	return l.Kind == "ifb" && l.Alias == "" && l.Group == cni.NetworkHash(network)
}

// isMine tells the IFB of this attachment.
func (c call) isMine(l rtnl.Link) bool {
	if isHalfMade(l, c.Network) {
		return l.Name == names(c.Attachment)[1]
	}
	return l.Kind == "ifb" && c.Owns(l.Alias)
}

// canBeMine also tells one that has no mark: the reference's.
func (c call) canBeMine(l rtnl.Link) bool {
	isUnmarked := l.Kind == "ifb" && l.Alias == ""
	return c.isMine(l) || (isUnmarked && slices.Contains(names(c.Attachment), l.Name))
}

// readLimits reads what an ADD before this one has made, or the reference's. found says that the host end has a TBF or
// an ingress qdisc, which may limit nothing.
func (c call) readLimits(end rtnl.Link) (was limits, found bool, err error) {
	root, err := c.Host.Qdisc(end.Index, rtnl.Root)
	if err != nil {
		return was, false, err
	}
	if root.IsTBF() {
		was.ingress = &filter{TBF: root.TBF}
	}
	q, err := c.Host.Qdisc(end.Index, rtnl.Ingress)
	if err != nil || q.Kind != "ingress" {
		return was, root.IsTBF(), err
	}
	list, err := c.Host.Redirects(end.Index)
	if err != nil || len(list) == 0 || list[0].To <= 0 {
		return was, true, err
	}
	ifb, err := c.Host.LinkByIndex(list[0].To)
	if err != nil || !c.canBeMine(ifb) {
		return was, true, err
	}
	q, err = c.Host.Qdisc(ifb.Index, rtnl.Root)
	if q.IsTBF() {
		was.egress, was.mac = &filter{TBF: q.TBF}, ifb.MAC
	}
	return was, true, err
}

// replace removes what limits the host end, and makes these limits.
func (c call) replace(end rtnl.Link, l limits) (ifb rtnl.Link, err error) {
	if err := c.remove(end); err != nil {
		return ifb, err
	}
	return c.limit(end, l)
}

// limit makes the filters, and the IFB for egress. The error matches EEXIST where there is something already.
func (c call) limit(end rtnl.Link, l limits) (ifb rtnl.Link, err error) {
	if l.egress != nil {
		if ifb, err = c.addIFB(end.MTU, l.mac); err != nil {
			return ifb, err
		}
		if err = c.Host.AddTBF(ifb.Index, l.egress.TBF); err != nil {
			return ifb, err
		}
		if ifb, err = c.markIFB(ifb); err != nil {
			return ifb, err
		}
		err = c.Host.AddIngress(end.Index)
		if errors.Is(err, unix.EEXIST) { // somebody's, which remove would take for ours beside our IFB
			return ifb, errors.Join(err, c.Host.DelLink(ifb.Index))
		}
		if err != nil {
			return ifb, err
		}
		if err = c.Host.Redirect(end.Index, ifb.Index); err != nil {
			return ifb, err
		}
	}
	if l.ingress != nil {
		err = c.Host.AddTBF(end.Index, l.ingress.TBF)
	}
	return ifb, err
}

// addIFB makes the IFB, by the name that no other attachment's can have. The group names the network until the link has
// its alias, which cannot be given when a link is made. It stays: a message that renames can fail after it changed the
// group, and without giving the alias.
func (c call) addIFB(mtu int, mac net.HardwareAddr) (ifb rtnl.Link, err error) {
	name := names(c.Attachment)[1]
	err = c.Host.AddLink(rtnl.NewLink{Name: name, Kind: "ifb", MTU: mtu, MAC: mac, Group: cni.NetworkHash(c.Network)})
	if err != nil {
		return ifb, err
	}
	return c.Host.Link(name)
}

// markIFB gives the IFB its alias and brings it up. It gives it the reference's name, too, unless an IFB of the
// container's other interface has that. The error matches EEXIST where one of this attachment has it.
func (c call) markIFB(ifb rtnl.Link) (rtnl.Link, error) {
	name := names(c.Attachment)[0]
	change := rtnl.LinkChange{Name: name, Alias: new(c.Mark()), Up: new(true)}
	err := c.Host.SetLink(ifb.Index, change)
	if !errors.Is(err, unix.EEXIST) {
		ifb.Name = name
		return ifb, err
	}
	if other, lookErr := c.Host.Link(name); lookErr == nil && c.isMine(other) {
		return ifb, err
	}
	change.Name = ""
	return ifb, c.Host.SetLink(ifb.Index, change)
}

// remove removes what the attachment has: the filters of the host end, where one is known, and the IFBs. An IFB without
// mark, which the reference made or a killed ADD, may be another interface's: then another host end leads to it.
func (c call) remove(end rtnl.Link) error {
	var errs []error
	var ours []int
	for _, name := range names(c.Attachment) {
		l, err := c.Host.Link(name)
		errs = append(errs, frame.IgnoreNoLink(err))
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
		ours = append(ours, l.Index)
	}
	errs = append(errs, c.unlimit(end.Index, ours...))
	for _, index := range ours {
		errs = append(errs, c.Host.DelLink(index))
	}
	return errors.Join(errs...)
}

// ownEnd returns the host end that redirects to an IFB if the IFB is this attachment's, else the zero Link. A
// mark decides. The name of an IFB without one may be that of the container's other interface. With a prevResult
// the caller would know the host end already. Before cniVersion 0.4.0 DEL has none: then the container's interface
// decides, and without a namespace the IFB counts as ours.
func (c call) ownEnd(end rtnl.Link, mine bool) (rtnl.Link, error) {
	if mine {
		return end, nil
	}
	if c.PrevResult != nil {
		return rtnl.Link{}, nil
	}
	if c.NS == nil {
		return end, nil
	}
	if err := c.FindHostEnd(); err != nil || c.HostEnd.Index != end.Index {
		return rtnl.Link{}, frame.IgnoreNoLink(err)
	}
	return end, nil
}

// unlimit removes from a host end the TBF and what redirects to these IFBs, or to one that is gone, so that the
// container can send again. What others have there stays.
func (c call) unlimit(end int, ifbs ...int) error {
	if end == 0 {
		return nil
	}
	root, err := c.Host.Qdisc(end, rtnl.Root)
	errs := []error{err}
	if root.IsTBF() { // first, since GC finds the host end by the redirection
		errs = append(errs, c.Host.DelQdisc(end, rtnl.Root))
	}
	ingress, err := c.Host.Qdisc(end, rtnl.Ingress)
	if errs = append(errs, err); ingress.Kind == "ingress" {
		list, err := c.Host.Redirects(end)
		isOurs := func(r rtnl.Redirection) bool { return r.To == 0 || slices.Contains(ifbs, r.To) }
		rest := slices.DeleteFunc(slices.Clone(list), isOurs)
		switch {
		case err != nil:
			errs = append(errs, err)
		case len(list) == 0 && len(ifbs) == 0: // no redirection and no IFB of ours: the qdisc is somebody's
		case len(rest) == 0:
			errs = append(errs, c.Host.DelQdisc(end, rtnl.Ingress))
		case isOurs(list[0]):
			errs = append(errs, c.Host.DelRedirect(end))
		}
	}
	return frame.IgnoreNoLink(errors.Join(errs...)) // the pair may go meanwhile
}

// users finds the host ends that redirect to an IFB, and the one with its mark: a killed ADD may have left that without
// the redirection. It reads all links.
func (c call) users(ifb rtnl.Link) (ends []rtnl.Link, err error) {
	links, err := c.Host.Links()
	for _, l := range links {
		if !l.IsPairEnd() {
			continue
		}
		list, err := c.Host.Redirects(l.Index)
		if frame.IgnoreNoLink(err) != nil {
			return nil, err
		}
		marked := ifb.Alias != "" && l.Alias == ifb.Alias
		if marked || slices.ContainsFunc(list, func(r rtnl.Redirection) bool { return r.To == ifb.Index }) {
			ends = append(ends, l)
		}
	}
	return ends, err
}
