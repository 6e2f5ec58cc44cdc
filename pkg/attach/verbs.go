package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// RemoveRules removes the plugin's own rules in DEL or GC. DEL calls it again when the interface is gone, because rules
// may have been restored since the first call.
type RemoveRules func(ctx context.Context, nf *nft.Conn, again bool) error

// Del removes what ADD made, with whatever is known of it: the rules, the interface, the
// addresses. It goes on after a failure. bridge is the name of the configured bridge, empty
// for a plugin without one: a host end that the reference made must be a port of it.
func Del(ctx context.Context, req *skel.Request, bridge string, rules ...RemoveRules) error {
	p := findPair(req, bridge)
	defer p.close()
	nf := nft.New()
	locks, cancel := skel.WithTwoThirds(ctx) // for steps that wait for locks: the others need time, too
	defer cancel()
	var errs []error
	for _, remove := range rules {
		errs = append(errs, remove(locks, nf, false))
	}
	c := masq.Config{
		Attachment: req.Attachment, Link: cmp.Or(gatewayOf(req.PrevResult), bridge, p.link.Name),
		Addrs: cni.Addresses(req.PrevResult.ContainerIPs(req.IfName)), Warn: req.Warn,
	}
	errs = append(errs, masq.Del(locks, nf, c))
	return errors.Join(append(errs, DelInterface(ctx, req, p.flush, func() (bool, error) {
		gone, err := p.delete()
		if gone { // from now on reapply restores nothing
			for _, remove := range rules {
				err = errors.Join(err, remove(locks, nf, true))
			}
			err = errors.Join(err, masq.DelAgain(locks, nf, c))
		}
		// Closing a netfilter socket after a deletion waits for the kernel, and so
		// does deleting a link. In this order the first wait covers the second.
		return gone, errors.Join(err, nf.Close())
	}))...)
}

// gatewayOf is the VLAN's gateway in a result: bridge lists it behind the container's interface.
func gatewayOf(prev *cni.Result) string {
	if prev == nil || len(prev.Interfaces) == 0 || prev.Interfaces[len(prev.Interfaces)-1].Sandbox != "" {
		return ""
	}
	return prev.Interfaces[len(prev.Interfaces)-1].Name
}

// DelInterface deletes the container's interface by removeLink, and has the IPAM plugin release the addresses. It does
// so after removeLink, where that says that the interface is gone: nobody may be given an address to which somebody
// answers. Before removeLink it does so for an IPAM plugin that needs the interface, where flush took the addresses
// from the interface, or where that plugin does so by itself and CNI_NETNS is empty.
func DelInterface(ctx context.Context, req *skel.Request, flush func() error, removeLink func() (bool, error)) error {
	client := &ipam.Client{Req: req}
	var errs []error
	released := req.IPAM != "" && client.NeedsInterface() &&
		(flush() == nil || req.NS == nil && client.ClearsInterface())
	if released {
		most, cancel := skel.WithTwoThirds(ctx) // of what is left: the interface comes after it
		errs = append(errs, client.Run(most, "DEL"))
		cancel()
	}
	gone, err := removeLink()
	errs = append(errs, err)
	switch {
	case released || req.IPAM == "":
	case gone:
		errs = append(errs, client.Run(ctx, "DEL"))
	default:
		errs = append(errs, errInUse(client))
	}
	return errors.Join(errs...)
}

func errInUse(c *ipam.Client) error {
	return fmt.Errorf("%s: not asked to release the addresses while the interface may still be there", c)
}

// remains are what DEL found of an attachment's interface.
type remains struct {
	req  *skel.Request
	host *rtnl.Conn // nil for a child
	cont *rtnl.Conn // nil until it is needed
	conn *rtnl.Conn // one of both: it deletes the link
	link rtnl.Link  // an end of the pair, or the child
	err  error      // why nothing was found; rtnl.ErrNoLink = there is none, or it is somebody else's by now
}

// findPair finds the attachment's pair: ours by its mark, else the reference's.
func findPair(req *skel.Request, bridge string) *remains {
	p := &remains{req: req, host: rtnl.Host()}
	p.conn = p.host
	p.link, p.err = netplugin.MarkedHostEnd(p.host, req.Attachment)
	if errors.Is(p.err, rtnl.ErrNoLink) {
		p.err = p.findReference(bridge)
	}
	return p
}

// delete deletes the link. gone is true when nobody answers to the addresses any more, and when the search failed for
// good: no later DEL would find the link, and the addresses would be kept for ever.
func (r *remains) delete() (gone bool, err error) {
	if errors.Is(r.err, rtnl.ErrNoLink) {
		return true, nil
	}
	if r.err != nil {
		return !cni.Transient(r.err), r.err
	}
	err = r.conn.DelLink(r.link.Index)
	return err == nil, err
}

// flush takes its addresses from the container's interface.
func (r *remains) flush() error {
	if r.err != nil {
		return r.err
	}
	if r.conn == r.cont {
		return Flush(r.cont, r.link) // and keep a child's mark
	}
	if r.req.NS == nil {
		return rtnl.ErrNoLink
	}
	var err error
	if r.cont, err = rtnl.Dial(r.req.NS); err != nil {
		return err
	}
	end, err := r.cont.LinkByIndex(r.link.Peer)
	if err == nil && end.Peer != r.link.Index {
		err = rtnl.ErrNoLink // the namespace is another container's by now
	}
	if err != nil {
		return err
	}
	// From now on nothing is restored.
	if err := r.cont.SetLink(end.Index, rtnl.LinkChange{Alias: new(netplugin.EndingAlias)}); err != nil {
		return err
	}
	return Flush(r.cont, end)
}

func (r *remains) close() { _ = errors.Join(r.host.Close(), r.cont.Close()) }

// changedMAC tells whether the result knows the container's interface by another MAC address.
func changedMAC(req *skel.Request, end rtnl.Link) bool {
	i, ok := req.PrevResult.ContainerInterface(req.IfName)
	return ok && i.MAC != "" && !strings.EqualFold(i.MAC, end.MAC.String())
}

// Flush takes its addresses from a container's interface, but the link-local ones, which the kernel made.
func Flush(cont *rtnl.Conn, end rtnl.Link) error {
	addrs, err := cont.Addrs(end.Index)
	errs := []error{err}
	for _, a := range addrs {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			errs = append(errs, cont.DelAddr(end.Index, a.Prefix))
		}
	}
	return errors.Join(errs...)
}

// Check compares what ADD made with what is there, by verify, while the IPAM plugin checks its lease.
func Check(ctx context.Context, req *skel.Request, verify func(*Call) []error) error {
	if req.PrevResult == nil {
		return cni.Errorf(cni.CodeConfig,
			"prevResult: Required prevResult missing; CHECK compares the container with it")
	}
	if _, ok := req.PrevResult.ContainerInterface(req.IfName); !ok {
		return cni.Drift("prevResult: has no interface %q in a container", req.IfName)
	}
	s, err := Open(req)
	if err != nil {
		return err
	}
	if s.Req.IPAM == "" {
		return errors.Join(verify(s)...)
	}
	checking, err := s.ipam.Start(ctx, "CHECK")
	errs := verify(s)
	if err == nil {
		_, err = checking.Wait(ctx)
	}
	return errors.Join(append(errs, err)...)
}

// FindPair finds both ends of the pair for CHECK. master is the index of the bridge; 0 where there
// is none. A host end that the reference made must be a port of it.
func (s *Call) FindPair(master int) (err error) {
	if s.ContEnd, err = s.Cont.Link(s.Req.IfName); err != nil {
		return iface.Drifted(fmt.Errorf("container: %w", err))
	}
	s.HostEnd, err = netplugin.MarkedHostEnd(s.Host, s.Req.Attachment)
	if errors.Is(err, rtnl.ErrNoLink) {
		s.HostEnd, err = referencePeer(s.Host, s.Cont, s.ContEnd, master)
	}
	switch {
	case errors.Is(err, rtnl.ErrNoLink):
		return cni.Drift("interface %q: has no host end", s.Req.IfName)
	case err != nil:
		return err
	case s.HostEnd.Peer != s.ContEnd.Index:
		return cni.Drift("interface %q: is not the other end of host interface %q", s.Req.IfName, s.HostEnd.Name)
	}
	return nil
}

// VerifyMasquerade is code 101 when Masquerade's rules are not there.
func (s *Call) VerifyMasquerade(ctx context.Context, m Masq) error {
	if !m.On {
		return nil
	}
	if err := m.from(s.Host, s.HostEnd); err != nil {
		return err
	}
	if err := masq.Check(ctx, s.NF, m.of(s.Req.Attachment, s.Req.PrevResult.ContainerIPs(s.Req.IfName))); err != nil {
		return iface.Drifted(fmt.Errorf("masquerade: %w", err))
	}
	return nil
}

// Reapply restores the masquerade of a pair, and forwarding on the host if the host is the gateway. master is as in
// FindPair.
func (s *Call) Reapply(ctx context.Context, m Masq, master int, forwards bool) error {
	if err := s.FindPair(master); err != nil {
		return err
	}
	if err := netplugin.NotRestored("masquerade", netplugin.VerifyAttached(s.Req)); err != nil {
		return err
	}
	own := &cni.Result{IPs: s.Req.PrevResult.ContainerIPs(s.Req.IfName)}
	for _, ip := range own.IPs {
		if forwards && ip.Gateway.IsValid() {
			if err := iface.EnableForwarding(ip.Address.Addr().Is4()); err != nil {
				return err
			}
		}
	}
	if !m.On {
		return nil
	}
	if err := m.from(s.Host, s.HostEnd); err != nil {
		return err
	}
	c := m.of(s.Req.Attachment, own.IPs)
	c.Warn, c.Restores = s.Req.Warn, true
	err := masq.Add(ctx, s.NF, c)
	if errors.Is(err, masq.ErrNoRecord) {
		return netplugin.NotRestored("masquerade", netplugin.ErrNoRecord)
	}
	// A DEL may have run before masq.Add.
	if gone := netplugin.NotRestored("masquerade", netplugin.VerifyAttached(s.Req)); gone != nil {
		return errors.Join(gone, masq.Del(ctx, s.NF, c))
	}
	return err
}

// Restore restores the masquerades of live pairs on nftables. It returns what was missing, by the attachment's mark. It
// does not restore a masquerade whose host end is missing.
func Restore(ctx context.Context, all []*skel.Request,
	masqOf func(host *rtnl.Conn, req *skel.Request) (Masq, error)) map[string]error {
	nf, host := nft.New(), rtnl.Host()
	defer func() { _ = errors.Join(nf.Close(), host.Close()) }()
	var wanted []masq.Config
	for _, req := range all {
		m, err := masqOf(host, req)
		if err != nil || !m.On || m.Backend == ipt.IPTables {
			continue
		}
		var end rtnl.Link
		if m.Link == "" {
			end, err = netplugin.MarkedHostEnd(host, req.Attachment)
		}
		if err == nil && m.from(host, end) == nil {
			wanted = append(wanted, m.of(req.Attachment, req.PrevResult.ContainerIPs(req.IfName)))
		}
	}
	missing, _ := masq.Restore(ctx, nf, wanted, netplugin.AttachedFunc(all)) // CHECK finds what Restore did not restore
	return missing
}

// GC removes what attachments of the network left that are not valid.
func GC(ctx context.Context, req *skel.Request, rules ...RemoveRules) error {
	c := netplugin.OpenHost(req)
	locks, cancel := skel.WithTwoThirds(ctx)
	defer cancel()
	var errs []error
	for _, remove := range rules {
		errs = append(errs, remove(locks, c.NF, false))
	}
	errs = append(errs, masq.GC(locks, c.NF, req.Valid))
	err := GCInterfaces(ctx, req, func() error {
		err := deleteStalePairs(c.Host, req.Valid)
		errs = append(errs, c.NF.Close())
		return err
	})
	return errors.Join(append(errs, err)...)
}

// GCInterfaces deletes the interfaces of attachments that are not valid by removeLinks, and then has the IPAM plugin
// release their addresses, unless removeLinks fails: an interface may still answer to one. dhcp is asked before: it
// takes the addresses off and tells its server, both through the interfaces.
func GCInterfaces(ctx context.Context, req *skel.Request, removeLinks func() error) error {
	client := &ipam.Client{Req: req}
	if client.ClearsInterface() {
		most, cancel := skel.WithTwoThirds(ctx)
		defer cancel()
		return errors.Join(client.Run(most, "GC"), removeLinks())
	}
	if err := removeLinks(); err != nil || req.IPAM == "" {
		return err
	}
	return client.Run(ctx, "GC")
}

// Status is code 50 where ready, which may be nil, says why ADD would fail on this host, or where
// ADD could not masquerade. Else it is IPAM's answer.
func Status(ctx context.Context, req *skel.Request, m Masq, ready func(host *rtnl.Conn) error) error {
	if ready != nil {
		if err := netplugin.Status("", ready); err != nil {
			return err
		}
	}
	if m.On {
		nf := nft.New()
		defer nf.Close()
		if err := masq.Status(ctx, nf, m.Backend); err != nil {
			return cni.Errorf(cni.CodeUnavailable, "ipMasq: %w", err)
		}
	}
	if req.IPAM == "" {
		return nil
	}
	return (&ipam.Client{Req: req}).Status(ctx)
}
