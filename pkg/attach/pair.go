package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

// CreatePair creates a pair of links, both down: the container's interface, and a host end whose name is derived from
// the attachment. Until MarkHostEnd, the group of the host end identifies its network. CreatePair returns code 100 if
// the attachment exists. The kernel decides which of two concurrent ADDs creates the pair.
func (c *Call) CreatePair(ctx context.Context, link LinkConfig) (err error) {
	pair := rtnl.NewLink{Kind: "veth", MTU: link.MTU, Group: cni.NetworkHash(c.Req.Network),
		Peer: rtnl.Peer{Name: c.Req.IfName, MAC: link.MAC, NS: c.Req.NS}}
	if link.Netkit {
		pair.Kind = "netkit"
	}
	names := iface.HostNames(c.Req.Attachment)
	c.Req.Step("make the pair")
	c.Req.CatchSignals()
	for _, name := range names {
		pair.Name = name
		if err = c.Host.AddLink(pair); err == nil {
			c.HostEnd, err = c.Host.Link(name)
		}
		if err == nil {
			c.isRestarted = name != names[0]
			c.Req.OnFail("delete the interface", func(context.Context) error {
				return c.Host.DelLink(c.HostEnd.Index)
			})
			c.ContEnd, err = c.Cont.Link(c.Req.IfName)
			return err
		}
		if !errors.Is(err, unix.EEXIST) {
			// The kernel may have created the pair although its answer was lost.
			if l, linkErr := c.Host.Link(name); linkErr == nil && netplugin.IsUnmarkedHostEnd(l, c.Req.Network) {
				err = errors.Join(err, c.Host.DelLink(l.Index))
			}
			return err
		}
		if err := c.refuseExistingPair(ctx); err != nil {
			return err
		}
	}
	return cni.Errorf(cni.CodeConflict, "host interface: all names from %q to %q are taken by other links: %w",
		names[0], names[len(names)-1], err)
}

// refuseExistingPair returns code 100 if the attachment has an interface in the container or a host end. If the
// container's namespace has ended, the kernel deletes the pair a moment later. refuseExistingPair waits for that and
// returns nil, and CreatePair uses the next name.
func (c *Call) refuseExistingPair(ctx context.Context) error {
	if err := c.RefuseExisting(); err != nil {
		return err
	}
	hostEnd, err := netplugin.MarkedHostEnd(c.Host, c.Req.Attachment)
	if err != nil {
		return netplugin.IgnoreNoLink(err) // another program's link has the name
	}
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	if err := c.Host.WaitGone(ctx, hostEnd.Index); err == nil {
		return nil
	}
	return c.Req.Exists(fmt.Sprintf("host interface %q: this attachment exists already; DEL removes it", hostEnd.Name))
}

// MarkHostEnd writes the owner's mark to the host end, makes it a port of the bridge with the index master (0 for
// none), and makes the host ignore router advertisements that the container sends.
func (c *Call) MarkHostEnd(master int) error {
	c.Req.Step("set up the host end")
	change := rtnl.LinkChange{Alias: new(c.Req.Mark()), Group: new(uint32(0))}
	if master != 0 {
		change.Master = &master
	}
	if err := c.Host.SetLink(c.HostEnd.Index, change); err != nil {
		return err
	}
	return c.Tolerate(iface.IgnoreRouterAdverts(c.HostEnd.Name))
}

// Gateway is a link of the host, with the addresses that must be usable when ADD returns.
type Gateway struct {
	Link  rtnl.Link
	Addrs []netip.Prefix
}

// WaitUp waits until the pair passes packets, and until the container and the gateway receive packets for their IPv6
// addresses. An earlier packet would be lost, and its sender would repeat it only after a second. If an address is not
// usable within addressTimeout, WaitUp only warns.
func (c *Call) WaitUp(ctx context.Context, res *cni.Result, gw Gateway) error {
	c.Req.Step("wait until packets pass")
	up, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	// The kernel sets the carrier of the two ends one after the other.
	host, hostErr := c.Host.WaitUp(up, c.HostEnd.Index)
	cont, err := c.Cont.WaitUp(up, c.ContEnd.Index)
	if err := errors.Join(hostErr, err); err != nil {
		return fmt.Errorf("host interface %q: %w", c.HostEnd.Name, err)
	}
	c.HostEnd, c.ContEnd = host, cont // udev may have changed their MAC addresses
	usable, cancel := context.WithTimeout(ctx, addressTimeout)
	defer cancel()
	return c.Tolerate(errors.Join(
		c.Cont.WaitLocal(usable, c.ContEnd.Index, ipv6Addrs(cni.Addresses(res.IPs))...),
		c.Host.WaitLocal(usable, gw.Link.Index, ipv6Addrs(gw.Addrs)...)))
}

func ipv6Addrs(prefixes []netip.Prefix) (addrs []netip.Addr) {
	for _, p := range prefixes {
		if p.Addr().Is6() {
			addrs = append(addrs, p.Addr())
		}
	}
	return addrs
}

// FindPair finds both ends of the pair for CHECK. master is the index of the bridge, or 0 for a plugin without one. A
// host end that the reference plugin created must be a port of that bridge.
func (c *Call) FindPair(master int) (err error) {
	if c.ContEnd, err = c.Cont.Link(c.Req.IfName); err != nil {
		return iface.AsDrift(fmt.Errorf("container: %w", err))
	}
	c.HostEnd, err = netplugin.MarkedHostEnd(c.Host, c.Req.Attachment)
	if errors.Is(err, rtnl.ErrNoLink) {
		c.HostEnd, err = referencePeer(c.Host, c.Cont, c.ContEnd, master)
	}
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return cni.Drift("interface %q: has no host end", c.Req.IfName)
	case err != nil:
		return err
	case c.HostEnd.Peer != c.ContEnd.Index:
		return cni.Drift("interface %q: is not the other end of host interface %q", c.Req.IfName, c.HostEnd.Name)
	}
	return nil
}

// deleteStalePairs deletes the host ends on the network whose attachment is not valid. It lists all links of the host.
func deleteStalePairs(host *rtnl.Conn, valid cni.Set) error {
	links, err := host.Links()
	if err != nil {
		return err
	}
	var keep []string // names that unmarked host ends of valid attachments can have
	for _, a := range valid.All {
		keep = append(keep, iface.HostNames(a)...)
	}
	var errs []error
	for _, l := range links {
		isUnmarked := netplugin.IsUnmarkedHostEnd(l, valid.Network) && !slices.Contains(keep, l.Name)
		isGarbage := l.IsPairEnd() && valid.IsGarbage(l.Alias)
		if isUnmarked || isGarbage {
			errs = append(errs, host.DelLink(l.Index))
		}
	}
	return errors.Join(errs...)
}

// ListPairs lists host ends and the masquerades of their attachments. If ports is true, it lists the host ends that are
// ports of a bridge, otherwise the other host ends. A masquerade without a host end, or of the reference plugins, does
// not show which plugin created it. It is listed only if ports is true, so that no two plugins list it.
func ListPairs(ctx context.Context, ports bool) ([]cni.Holding, error) {
	host, nf := rtnl.Host(), nft.New()
	defer func() { _ = errors.Join(host.Close(), nf.Close()) }()
	links, err := host.LinkSummaries()
	bridges := map[int]string{}
	for _, l := range links {
		if l.Kind == "bridge" {
			bridges[l.Index] = l.Name
		}
	}
	var all []cni.Holding
	isListed := map[string]bool{} // by the hash of the mark; false for attachments of the other plugin
	for _, l := range links {
		h, ok := cni.HoldingOf(l.Alias)
		if !ok || !l.IsPairEnd() {
			continue
		}
		bridge, isPort := bridges[l.Master]
		isListed[h.MarkHash] = isPort == ports
		if !isListed[h.MarkHash] {
			continue
		}
		h.Kind, h.Value, h.Kept = cni.HeldHostEnd, l.Name, "alias of "+l.Name
		if isPort {
			h.Value += " master " + bridge
		}
		all = append(all, h)
	}
	if !ports && len(all) == 0 {
		return nil, err
	}
	masquerades, masqErr := masq.List(ctx, nf)
	for _, h := range masquerades {
		if isOwn, hasEnd := isListed[cmp.Or(h.MarkHash, h.Hash())]; isOwn || !hasEnd && ports {
			all = append(all, h)
		}
	}
	return all, errors.Join(err, masqErr)
}
