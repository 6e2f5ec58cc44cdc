package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// removeRules removes the plugin's own rules in DEL or GC. DEL calls it a second time, with again set, when the
// interface no longer exists, because rules may have been restored since the first call.
type removeRules = func(ctx context.Context, nf *nft.Conn, again bool) error

// Del deletes whatever exists of an attachment with a pair: the rules, the interface, the addresses. It continues after
// an error. bridge is the name of the configured bridge, or empty for a plugin without one. A host end that the
// reference plugin created must be a port of that bridge.
func Del(ctx context.Context, req *skel.Request, bridge string, rules ...removeRules) error {
	pair := findPair(req, bridge)
	defer pair.close()
	nf := nft.New()
	lockCtx, cancel := skel.WithTwoThirds(ctx) // steps that wait for locks must leave time for the other steps
	defer cancel()
	var errs []error
	for _, remove := range rules {
		errs = append(errs, remove(lockCtx, nf, false))
	}
	// ADD probably used this Link and these Addrs. masq.Del reads only their elements, or all if one is missing.
	masquerade := masq.Config{
		Attachment: req.Attachment, Link: cmp.Or(vlanGateway(req.PrevResult, bridge), bridge, pair.link.Name),
		Addrs: cni.Addresses(req.PrevResult.ContainerIPs(req.IfName)), Warn: req.Warn,
	}
	errs = append(errs, masq.Del(lockCtx, nf, masquerade))
	return errors.Join(append(errs, DelInterface(ctx, req, pair.flush, func() (bool, error) {
		isDeleted, err := pair.delete()
		if isDeleted { // from now on, Reapply restores nothing
			for _, remove := range rules {
				err = errors.Join(err, remove(lockCtx, nf, true))
			}
			err = errors.Join(err, masq.DelElements(lockCtx, nf, masquerade))
		}
		// The deletion of a link, and the close of a netfilter socket after a deletion, each wait for an RCU grace
		// period in the kernel. In this order, the first wait covers the second.
		return isDeleted, errors.Join(err, nf.Close())
	}))...)
}

// vlanGateway returns the name of the bridge's VLAN gateway in a result, or the empty string if there is none. Other
// interfaces of the host, such as an IFB of the plugin bandwidth, may follow it.
func vlanGateway(prev *cni.Result, bridge string) string {
	if prev == nil || bridge == "" {
		return ""
	}
	for _, i := range prev.Interfaces {
		if i.Sandbox == "" && strings.HasPrefix(i.Name, bridge+".") {
			return i.Name
		}
	}
	return ""
}

// DelInterface calls removeLink, which deletes the interface, and has the IPAM plugin release the addresses.
//
// The addresses are released after removeLink, and only if it reports that the interface no longer exists, because no
// container may get an address to which another interface answers. An IPAM plugin that needs the interface is an
// exception: it runs before removeLink if flush has removed the addresses from the interface. If flush fails and there
// is no CNI_NETNS, the IPAM plugin runs before removeLink only if it removes the addresses itself.
func DelInterface(ctx context.Context, req *skel.Request, flush func() error, removeLink func() (bool, error)) error {
	client := &ipam.Client{Req: req}
	var errs []error
	isReleased := req.IPAM != "" && client.NeedsInterface() &&
		(flush() == nil || req.NS == nil && client.ClearsInterface())
	if isReleased {
		ipamCtx, cancel := skel.WithTwoThirds(ctx) // leaves time for removeLink
		errs = append(errs, client.Run(ipamCtx, "DEL"))
		cancel()
	}
	isDeleted, err := removeLink()
	errs = append(errs, err)
	switch {
	case isReleased || req.IPAM == "":
	case isDeleted:
		errs = append(errs, client.Run(ctx, "DEL"))
	default:
		errs = append(errs, notReleased(client))
	}
	return errors.Join(errs...)
}

func notReleased(client *ipam.Client) error {
	return fmt.Errorf("%s: not asked to release the addresses, because the interface may still exist", client)
}

// foundLink is the link that DEL or GC found for an attachment, or the reason why it found none. The caller must call
// close, even after an error.
type foundLink struct {
	req  *skel.Request
	host *rtnl.Conn // nil for a child
	cont *rtnl.Conn // nil until it is needed
	conn *rtnl.Conn // host or cont: the socket in the namespace of link
	link rtnl.Link  // an end of the pair, or the child
	err  error      // rtnl.ErrNoLink if no link belongs to the attachment; another error if the search failed
}

// findPair finds an end of the attachment's pair: Hawser's by the mark, or the reference plugin's.
func findPair(req *skel.Request, bridge string) *foundLink {
	f := &foundLink{req: req, host: rtnl.Host()}
	f.conn = f.host
	f.link, f.err = netplugin.MarkedHostEnd(f.host, req.Attachment)
	if errors.Is(f.err, rtnl.ErrNoLink) {
		f.err = f.findReference(bridge)
	}
	return f
}

// delete deletes the link. isDeleted is true if no interface answers to the addresses any more. It is also true if the
// search failed with an error that is not transient, because no later DEL would find the link either, and the addresses
// would never be released.
func (f *foundLink) delete() (isDeleted bool, err error) {
	if errors.Is(f.err, rtnl.ErrNoLink) {
		return true, nil
	}
	if f.err != nil {
		return !cni.Transient(f.err), f.err
	}
	err = f.conn.DelLink(f.link.Index)
	return err == nil, err
}

// flush removes the addresses from the container's interface. If the link is a host end, flush first gives the
// container's interface netplugin.EndingAlias, so that nothing is restored any more. If the link is the container's
// interface (of a child or of the reference plugin's pair), its alias stays.
func (f *foundLink) flush() error {
	if f.err != nil {
		return f.err
	}
	if f.conn == f.cont {
		return Flush(f.cont, f.link)
	}
	if f.req.NS == nil {
		return rtnl.ErrNoLink
	}
	var err error
	if f.cont, err = rtnl.Dial(f.req.NS); err != nil {
		return err
	}
	end, err := f.cont.LinkByIndex(f.link.Peer)
	if err == nil && end.Peer != f.link.Index {
		err = rtnl.ErrNoLink // CNI_NETNS is another container's namespace now
	}
	if err != nil {
		return err
	}
	if err := f.cont.SetLink(end.Index, rtnl.LinkChange{Alias: new(netplugin.EndingAlias)}); err != nil {
		return err
	}
	return Flush(f.cont, end)
}

func (f *foundLink) close() { _ = errors.Join(f.host.Close(), f.cont.Close()) }

// hasOtherMAC reports whether prevResult has another MAC address for the container's interface.
func hasOtherMAC(req *skel.Request, end rtnl.Link) bool {
	i, ok := req.PrevResult.ContainerInterface(req.IfName)
	return ok && i.MAC != "" && !strings.EqualFold(i.MAC, end.MAC.String())
}

// Check calls verify, which compares what ADD created with the kernel's state, while the IPAM plugin checks its lease.
func Check(ctx context.Context, req *skel.Request, verify func(*Call) []error) error {
	if req.PrevResult == nil {
		return cni.Errorf(cni.CodeConfig,
			"prevResult: Required prevResult missing; CHECK compares the container with it")
	}
	if _, ok := req.PrevResult.ContainerInterface(req.IfName); !ok {
		return cni.Drift("prevResult: has no interface %q in a container", req.IfName)
	}
	c, err := Open(req)
	if err != nil {
		return err
	}
	if req.IPAM == "" {
		return errors.Join(verify(c)...)
	}
	ipamCheck, err := c.ipam.Start(ctx, "CHECK")
	errs := verify(c)
	if err == nil {
		_, err = ipamCheck.Wait(ctx)
	}
	return errors.Join(append(errs, err)...)
}

// GC deletes whatever exists of attachments with a pair that are on the network and not valid.
func GC(ctx context.Context, req *skel.Request, rules ...removeRules) error {
	c := netplugin.OpenHost(req)
	lockCtx, cancel := skel.WithTwoThirds(ctx)
	defer cancel()
	var errs []error
	for _, remove := range rules {
		errs = append(errs, remove(lockCtx, c.NF, false))
	}
	errs = append(errs, masq.GC(lockCtx, c.NF, req.Valid))
	err := GCInterfaces(ctx, req, func() error {
		err := deleteStalePairs(c.Host, req.Valid)
		errs = append(errs, c.NF.Close())
		return err
	})
	return errors.Join(append(errs, err)...)
}

// GCInterfaces calls removeLinks, which deletes the interfaces of attachments that are not valid, and then has the IPAM
// plugin release their addresses. If removeLinks fails, the addresses are kept, because an interface may still answer
// to one. dhcp runs before removeLinks: it removes the addresses, and informs its server through the interfaces.
func GCInterfaces(ctx context.Context, req *skel.Request, removeLinks func() error) error {
	client := &ipam.Client{Req: req}
	if client.ClearsInterface() {
		ipamCtx, cancel := skel.WithTwoThirds(ctx)
		defer cancel()
		return errors.Join(client.Run(ipamCtx, "GC"), removeLinks())
	}
	if err := removeLinks(); err != nil || req.IPAM == "" {
		return err
	}
	return client.Run(ctx, "GC")
}

// Status returns code 50 if probe returns an error, because ADD would fail on this host, or if ADD could not
// masquerade. Otherwise it returns the STATUS of the IPAM plugin. probe may be nil.
func Status(ctx context.Context, req *skel.Request, m Masq, probe func(host *rtnl.Conn) error) error {
	if probe != nil {
		if err := netplugin.Status("", probe); err != nil {
			return err
		}
	}
	if m.Enabled {
		nf := nft.New()
		defer nf.Close()
		if err := netplugin.Unavailable("ipMasq: ", masq.Status(ctx, nf, m.Backend)); err != nil {
			return err
		}
	}
	if req.IPAM == "" {
		return nil
	}
	return (&ipam.Client{Req: req}).Status(ctx)
}
