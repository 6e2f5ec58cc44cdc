package main

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// names are those that the IFB of an attachment may have. The first is the reference
// plugin's, which knows no interface, so that the DEL of either finds it; the second is for
// another interface of the container on the network.
func names(a cni.Attachment) []string {
	return []string{"bwp" + cni.Digest(a.Network+a.ContainerID, 12), "bwp" + a.Hash()[:12]}
}

// isHalfMade tells an IFB of the network whose ADD died before it could mark it.
func isHalfMade(l rtnl.Link, network string) bool {
	return l.Kind == "ifb" && l.Alias == "" && l.Group == cni.NetworkHash(network)
}

// isMine tells the IFB of this attachment.
func (c *call) isMine(l rtnl.Link) bool {
	return l.Kind == "ifb" && c.Owns(l.Alias) || isHalfMade(l, c.Network) && l.Name == names(c.Attachment)[1]
}

// refuseOther is EEXIST where the direction that is not limited may have a limit.
func (c *call) refuseOther(end rtnl.Link, ingress, egress *filter) error {
	place := uint32(rtnl.Ingress)
	switch {
	case ingress == nil:
		place = rtnl.Root
	case egress != nil:
		return nil
	}
	q, err := c.host.Qdisc(end.Index, place)
	if q.IsTBF() || q.Kind == "ingress" {
		return unix.EEXIST
	}
	return err
}

// limit makes what the filters need, and them. The error matches EEXIST where there is
// something already.
func (c *call) limit(end rtnl.Link, ingress, egress *filter) (ifb rtnl.Link, err error) {
	if egress != nil {
		if ifb, err = c.addIFB(end.MTU); err != nil {
			return ifb, err
		}
		if err = c.host.AddTBF(ifb.Index, egress.TBF); err != nil {
			return ifb, err
		}
		mark, group, up := c.Mark(), uint32(0), true
		if err = c.host.SetLink(ifb.Index, rtnl.Change{Alias: &mark, Group: &group, Up: &up}); err != nil {
			return ifb, err
		}
		if err = c.host.AddIngress(end.Index); err != nil {
			return ifb, err
		}
		if err = c.host.Redirect(end.Index, ifb.Index); err != nil {
			return ifb, err
		}
	}
	if ingress != nil {
		err = c.host.AddTBF(end.Index, ingress.TBF)
	}
	return ifb, err
}

// addIFB makes an IFB by the first of its names that nothing else has.
func (c *call) addIFB(mtu int) (ifb rtnl.Link, err error) {
	for _, name := range names(c.Attachment) {
		// The group says whose the link is until it has its alias, which cannot be given
		// when a link is made.
		err = c.host.AddLink(rtnl.NewLink{Name: name, Kind: "ifb", MTU: mtu, Group: cni.NetworkHash(c.Network)})
		if err == nil {
			return c.host.Link(name)
		}
		if !errors.Is(err, unix.EEXIST) {
			return ifb, err
		}
		if l, lookErr := c.host.Link(name); lookErr == nil && c.isMine(l) {
			return l, err
		}
	}
	return ifb, err
}

// remove removes what the attachment has: the filters of the host end, where one is known,
// and the IFBs. One without mark, which the reference made or a killed ADD, may be another
// interface's: then another host end leads to it.
func (c *call) remove(end rtnl.Link) error {
	var errs []error
	var ours []int
	for _, name := range names(c.Attachment) {
		l, err := c.host.Link(name)
		if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
			errs = append(errs, err)
		}
		mine := c.isMine(l)
		if !mine && (l.Kind != "ifb" || l.Alias != "") {
			continue
		}
		if !mine || end.Index == 0 {
			users, err := c.users(l)
			if errs = append(errs, err); err != nil {
				continue
			}
			if mine && len(users) > 0 {
				end = users[0] // nothing else leads to it
			}
			if !mine && slices.ContainsFunc(users, func(u rtnl.Link) bool { return u.Index != end.Index }) {
				continue
			}
		}
		ours = append(ours, l.Index)
	}
	errs = append(errs, c.unlimit(end.Index, ours...))
	for _, index := range ours {
		errs = append(errs, c.host.DelLink(index))
	}
	return errors.Join(errs...)
}

// unlimit removes the filters of a host end: what redirects to these IFBs, or to one that is
// gone, so that the container can send again; and the TBF. What others have there stays.
func (c *call) unlimit(end int, ifbs ...int) error {
	if end == 0 {
		return nil
	}
	root, err := c.host.Qdisc(end, rtnl.Root)
	errs := []error{err}
	if root.IsTBF() { // first, since GC finds the host end by the redirection
		errs = append(errs, c.host.DelQdisc(end, rtnl.Root))
	}
	ingress, err := c.host.Qdisc(end, rtnl.Ingress)
	if errs = append(errs, err); ingress.Kind == "ingress" {
		list, err := c.host.Redirects(end)
		isOurs := func(r rtnl.Redirection) bool { return r.To == 0 || slices.Contains(ifbs, r.To) }
		rest := slices.DeleteFunc(slices.Clone(list), isOurs)
		switch {
		case err != nil:
			errs = append(errs, err)
		case len(rest) == 0:
			errs = append(errs, c.host.DelQdisc(end, rtnl.Ingress))
		case isOurs(list[0]):
			errs = append(errs, c.host.DelRedirect(end))
		}
	}
	if err := errors.Join(errs...); !errors.Is(err, rtnl.ErrNoLink) { // the pair may go meanwhile
		return err
	}
	return nil
}

// users finds the host ends that redirect to an IFB, and the one with its mark, which an ADD
// that was killed may have left without the redirection. It reads all links.
func (c *call) users(ifb rtnl.Link) (ends []rtnl.Link, err error) {
	links, err := c.host.Links()
	for _, l := range links {
		if !l.IsPairEnd() {
			continue
		}
		list, err := c.host.Redirects(l.Index)
		if err != nil && !errors.Is(err, rtnl.ErrNoLink) {
			return nil, err
		}
		marked := ifb.Alias != "" && l.Alias == ifb.Alias
		if marked || slices.ContainsFunc(list, func(r rtnl.Redirection) bool { return r.To == ifb.Index }) {
			ends = append(ends, l)
		}
	}
	return ends, err
}
