package main

import (
	"context"
	"errors"
	"net/netip"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/invoke"
	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// attachment is one ADD or CHECK under way: the request, its configuration
// and the sockets on both sides.
type attachment struct {
	*skel.Request
	cfg  config
	host *rtnl.Conn
	cont *rtnl.Conn
	nf   *nft.Conn

	bridge  rtnl.Link
	hostEnd rtnl.Link
	contEnd rtnl.Link

	ready []netip.Addr // IPv6 gateways without duplicate address detection
	asked bool         // IPAM was started and may have reserved something
	stays bool         // the pair could not be deleted in the roll-back
}

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	a, err := open(req, cfg)
	if err != nil {
		return nil, err
	}
	if err := a.findIPAM(); err != nil {
		return nil, err
	}
	// An attachment that exists already must fail without asking IPAM.
	release, err := a.pair().Claim(ctx, a.Warn)
	if err != nil {
		return nil, err
	}
	a.OnDone(release)
	p, err := a.createPort(ctx)
	if err != nil {
		return nil, err
	}
	req.Step("network")
	if err := a.setUpNetwork(ctx, p); err != nil {
		return nil, err
	}
	req.Step("wait for the port")
	if err := a.waitForPort(ctx); err != nil {
		return nil, err
	}
	a.waitForAddresses(ctx, p.Result)
	if a.cfg.IPAM {
		if err := iface.Announce(a.cont, a.contEnd); err != nil {
			return nil, err
		}
	}
	return p.Result, a.describeLinks(p.Result)
}

func del(ctx context.Context, req *skel.Request) error {
	nf := nft.New()
	req.Step("masquerade")
	// Closing a netfilter socket after a deletion waits for the kernel, and so
	// does deleting a link. In this order the first wait covers the second.
	locks, cancel := skel.Most(ctx)
	defer cancel()
	spoofErr := deleteSpoofCheck(locks, nf, req.Attachment)
	natErr := masq.Del(locks, nf, masq.Config{Attachment: req.Attachment,
		Addrs: cni.Addresses(req.PrevResult.ContainerIPs(req.IfName)), Warn: req.Warn})
	req.Step("link")
	return errors.Join(spoofErr, natErr, ipamClient(req).DelAfter(ctx, func() (gone bool, err error) {
		gone, err = deleteLink(req)
		err = errors.Join(err, nf.Close())
		req.Step("addresses")
		return gone, err
	}))
}

func check(ctx context.Context, req *skel.Request, cfg config) error {
	if req.PrevResult == nil {
		return cni.Errorf(cni.CodeConfig, "prevResult: missing; CHECK compares the container with it")
	}
	a, err := open(req, cfg)
	if err != nil {
		return err
	}
	compare := func() []error { return a.verify(ctx) }
	if !a.cfg.IPAM {
		return errors.Join(compare()...)
	}
	return errors.Join(ipamClient(req).CheckBeside(ctx, compare)...)
}

func gc(ctx context.Context, req *skel.Request) error {
	host, err := rtnl.Dial(nil)
	if err != nil {
		return err
	}
	defer host.Close()
	nf := nft.New()
	locks, cancel := skel.Most(ctx)
	defer cancel()
	natErr := errors.Join(collectSpoofChecks(locks, nf, req.Valid), masq.GC(locks, nf, req.Network, req.Valid))
	linkErr := iface.Collect(host, req.Valid)
	closeErr := nf.Close()
	return errors.Join(natErr, linkErr, closeErr, ipamClient(req).GCWhenGone(ctx, linkErr == nil))
}

// status looks for what would make ADD fail: a configuration that is refused,
// a bridge name that something else has, a missing backend, IPAM's answer.
func status(ctx context.Context, req *skel.Request, cfg config) error {
	host, err := rtnl.Dial(nil)
	if err != nil {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	defer host.Close()
	nf := nft.New()
	defer nf.Close()
	if _, err := findBridge(host, cfg.Bridge); err != nil && !errors.Is(err, rtnl.ErrNoLink) {
		return cni.Errorf(cni.CodeUnavailable, "%w", err)
	}
	if cfg.SpoofCheck {
		if err := spoofStatus(nf); err != nil {
			return cni.Errorf(cni.CodeUnavailable, "macspoofchk: %w", err)
		}
	}
	if cfg.Masq {
		if err := masq.Status(ctx, nf, cfg.MasqBackend); err != nil {
			return cni.Errorf(cni.CodeUnavailable, "ipMasq: %w", err)
		}
	}
	if cfg.IPAM {
		return ipamClient(req).Status(ctx)
	}
	return nil
}

// deleteLink deletes the attachment's pair, see iface.Search.
func deleteLink(req *skel.Request) (gone bool, err error) {
	host, err := rtnl.Dial(nil)
	if err != nil {
		return iface.Gone(err), err
	}
	defer host.Close()
	s := iface.Search{Attachment: req.Attachment, Host: host, NS: req.NS, Prev: req.PrevResult, Master: iface.UnknownMaster}
	br, err := findBridge(host, bridgeName(req))
	if cni.Transient(err) {
		return false, err
	}
	if err == nil {
		s.Master = br.Index
	}
	return s.Delete()
}

// open opens a socket on either side, for as long as the call and its roll-back
// last.
func open(req *skel.Request, cfg config) (*attachment, error) {
	a := &attachment{Request: req, cfg: cfg, nf: nft.New()}
	req.OnDone(a.close)
	var err error
	if a.host, a.cont, err = rtnl.DialBoth(req.NS); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *attachment) close() {
	_ = errors.Join(a.host.Close(), a.cont.Close(), a.nf.Close())
}

func ipamClient(req *skel.Request) ipam.Client {
	return ipam.Client{
		Type: req.IPAM, Conf: req.Conf, Version: req.Version,
		Runner: invoke.Runner{Path: req.Path, Env: req.Env, Stderr: req.Stderr},
	}
}

// findIPAM refuses an IPAM plugin that is not there before anything is made.
func (a *attachment) findIPAM() error {
	if !a.cfg.IPAM {
		return nil
	}
	client := ipamClient(a.Request)
	_, err := client.Runner.Find(client.Type)
	return err
}

// createPort makes the container's interface and its host end a port of the
// bridge, and asks IPAM for addresses, at the same time where IPAM does without
// the interface.
func (a *attachment) createPort(ctx context.Context) (plan, error) {
	create := func() error {
		a.Step("bridge")
		if err := a.ensureBridge(); err != nil {
			return err
		}
		a.Step("interfaces")
		if err := a.createPair(ctx); err != nil {
			return err
		}
		err := a.attachPort(ctx)
		a.Step("addresses")
		return err
	}
	if !a.cfg.IPAM {
		return plan{Result: &cni.Result{}}, create()
	}
	client := ipamClient(a.Request)
	// Undone in reverse: the addresses are free when nobody answers to them.
	a.OnFail("release the addresses", a.release)
	lease, err := a.createAndAsk(ctx, client, create)
	if err != nil {
		return plan{}, err
	}
	p, err := makePlan(a.cfg, lease)
	if err == nil {
		p.Result.Interfaces = a.interfaces()
	}
	return p, err
}

func (a *attachment) createAndAsk(ctx context.Context, client ipam.Client, create func() error) (*cni.Result, error) {
	if client.NeedsNothing() {
		a.asked = true
		return client.AddBeside(ctx, create)
	}
	if err := create(); err != nil {
		return nil, err
	}
	a.asked = true
	return client.Add(ctx)
}

func (a *attachment) pair() iface.Pair {
	return iface.Pair{Attachment: a.Attachment, Host: a.host, Cont: a.cont, NS: a.NS, MTU: a.cfg.MTU, MAC: a.cfg.MAC}
}

// createPair makes the container's interface and its host end, marked as this
// attachment's, and makes the host end a port of the bridge.
func (a *attachment) createPair(ctx context.Context) error {
	var err error
	if a.hostEnd, a.contEnd, err = a.pair().Create(ctx); err != nil {
		return err
	}
	a.OnFail("delete the interface", a.deletePair)
	ch := iface.MarkChange(a.Attachment)
	ch.Master = &a.bridge.Index
	return a.host.SetLink(a.hostEnd.Index, ch)
}

func (a *attachment) deletePair(context.Context) error {
	err := a.host.DelLink(a.hostEnd.Index)
	a.stays = err != nil
	return err
}

// release gives back what IPAM reserved, for DEL to do once it is safe where
// the pair is there still.
func (a *attachment) release(ctx context.Context) error {
	if !a.asked || a.stays {
		return nil
	}
	return ipamClient(a.Request).Release(ctx)
}

// setUpNetwork configures the container's interface, the gateways and the
// masquerade; in a layer 2 network it only brings the interface up.
func (a *attachment) setUpNetwork(ctx context.Context, p plan) error {
	if !a.cfg.IPAM {
		if a.cfg.KeepDown {
			return nil
		}
		return a.cont.SetLink(a.contEnd.Index, rtnl.Change{Up: ptr(true)})
	}
	if err := a.ensureGateways(ctx, p.Gateways); err != nil {
		return err
	}
	if err := iface.Configure(ctx, a.target(), p.Result); err != nil {
		return err
	}
	if !a.cfg.Masq {
		return nil
	}
	a.OnFail("remove the masquerade", func(ctx context.Context) error {
		return masq.Del(ctx, a.nf, a.masq(p.Result))
	})
	return masq.Add(ctx, a.nf, a.masq(p.Result))
}

func (a *attachment) target() iface.Target {
	return iface.Target{NS: a.NS, Conn: a.cont, Name: a.IfName, Index: a.contEnd.Index, EnableDAD: a.cfg.DAD, NoRouterAdverts: a.cfg.Gateway}
}

func (a *attachment) masq(res *cni.Result) masq.Config {
	return masq.Config{Attachment: a.Attachment, Backend: a.cfg.MasqBackend, Addrs: cni.Addresses(res.IPs)}
}

// interfaces lists the links as results do: the bridge, the host end and the
// container's interface.
func (a *attachment) interfaces() []cni.Interface {
	cont := iface.Describe(a.contEnd)
	cont.Sandbox = a.Netns
	return []cni.Interface{iface.Describe(a.bridge), iface.Describe(a.hostEnd), cont}
}

// describeLinks fills in the links as they are at the end.
func (a *attachment) describeLinks(res *cni.Result) error {
	host, err := a.host.LinksAt(a.bridge.Index, a.hostEnd.Index)
	if err != nil {
		return err
	}
	a.bridge, a.hostEnd = host[0], host[1]
	if a.contEnd, err = a.cont.LinkByIndex(a.contEnd.Index); err != nil {
		return err
	}
	res.Interfaces = a.interfaces()
	if name := a.cfg.gatewayName(); a.cfg.Gateway && a.cfg.IPAM && name != a.cfg.Bridge {
		gw, err := a.host.Link(name)
		if err != nil {
			return err
		}
		res.Interfaces = append(res.Interfaces, iface.Describe(gw))
	}
	return nil
}

func ptr[T any](v T) *T { return &v }
