package main

import (
	"context"
	"errors"

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

	hostEnd rtnl.Link
	contEnd rtnl.Link

	stays bool // the pair could not be deleted in the roll-back
}

func add(ctx context.Context, req *skel.Request, cfg config) (*cni.Result, error) {
	a, err := open(req, cfg)
	if err != nil {
		return nil, err
	}
	// An attachment that exists already must fail without asking IPAM.
	if err := a.claim(ctx); err != nil {
		return nil, err
	}
	p, err := a.createPair(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.connectHostEnd(p); err != nil {
		return nil, err
	}
	req.Step("container")
	if err := iface.Configure(ctx, a.target(p.ContRoutes), p.Result); err != nil {
		return nil, err
	}
	req.Step("host")
	if err := a.setUpHost(p); err != nil {
		return nil, err
	}
	if err := a.masquerade(ctx, p.Result); err != nil {
		return nil, err
	}
	req.Step("wait for the link")
	return p.Result, a.waitUp(ctx, p)
}

func del(ctx context.Context, req *skel.Request) error {
	nf := nft.New()
	req.Step("masquerade")
	// Closing a netfilter socket after a deletion waits for the kernel, and so
	// does deleting a link. In this order the first wait covers the second.
	locks, cancel := skel.Most(ctx)
	defer cancel()
	natErr := masq.Del(locks, nf, masq.Config{Attachment: req.Attachment,
		Addrs: cni.Addresses(req.PrevResult.ContainerIPs(req.IfName)), Warn: req.Warn})
	req.Step("link")
	return errors.Join(natErr, ipamClient(req).DelAfter(ctx, func() (gone bool, err error) {
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
	return errors.Join(ipamClient(req).CheckBeside(ctx, func() []error { return a.verify(ctx) })...)
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
	natErr := masq.GC(locks, nf, req.Network, req.Valid)
	linkErr := iface.Collect(host, req.Valid)
	closeErr := nf.Close()
	return errors.Join(natErr, linkErr, closeErr, ipamClient(req).GCWhenGone(ctx, linkErr == nil))
}

func status(ctx context.Context, req *skel.Request, cfg config) error {
	if cfg.Masq {
		nf := nft.New()
		defer nf.Close()
		if err := masq.Status(ctx, nf, cfg.MasqBackend); err != nil {
			return cni.Errorf(cni.CodeUnavailable, "ipMasq: %w", err)
		}
	}
	return ipamClient(req).Status(ctx)
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

func (a *attachment) pair() iface.Pair {
	return iface.Pair{Attachment: a.Attachment, Host: a.host, Cont: a.cont, NS: a.NS, MTU: a.cfg.MTU, MAC: a.cfg.MAC}
}

// release gives back what IPAM reserved; DEL does once it is safe where the
// pair is there still.
func (a *attachment) release(ctx context.Context) error {
	if a.stays {
		return nil
	}
	return ipamClient(a.Request).Release(ctx)
}

// createPair makes the container's interface and its host end, marked as this
// attachment's, and asks IPAM for addresses, at the same time where IPAM does without the interface.
func (a *attachment) createPair(ctx context.Context) (plan, error) {
	client := ipamClient(a.Request)
	// One that is not there was never asked and has nothing to release.
	if _, err := client.Runner.Find(client.Type); err != nil {
		return plan{}, err
	}
	// Undone in reverse: the addresses are free when nobody answers to them.
	a.OnFail("release the addresses", a.release)
	lease, err := a.askAndCreate(ctx, client)
	if err != nil {
		return plan{}, err
	}
	p, err := makePlan(a.cfg, lease)
	if err != nil {
		return plan{}, cni.Errorf(cni.CodeIPAM, "IPAM plugin %q: %w", client.Type, err)
	}
	return p, nil
}

func (a *attachment) askAndCreate(ctx context.Context, client ipam.Client) (*cni.Result, error) {
	create := func() (err error) {
		if a.hostEnd, a.contEnd, err = a.pair().Create(ctx); err != nil {
			return err
		}
		a.OnFail("delete the interface", a.deletePair)
		err = a.host.SetLink(a.hostEnd.Index, iface.MarkChange(a.Attachment))
		a.Step("addresses")
		return err
	}
	if client.NeedsNothing() {
		a.Step("interfaces")
		return client.AddBeside(ctx, create)
	}
	a.Step("addresses")
	lease, err := client.Add(ctx)
	if err != nil {
		return nil, err
	}
	return lease, create()
}

// connectHostEnd brings the host end up.
func (a *attachment) connectHostEnd(p plan) error {
	if err := a.prepareHostEnd(a.hostEnd.Name, p); err != nil {
		return err
	}
	host, cont := iface.Describe(a.hostEnd), iface.Describe(a.contEnd)
	cont.Sandbox = a.Netns
	p.Result.Interfaces = []cni.Interface{host, cont}
	up := true
	return a.host.SetLink(a.hostEnd.Index, rtnl.Change{Up: &up})
}

func (a *attachment) deletePair(context.Context) error {
	err := a.host.DelLink(a.hostEnd.Index)
	a.stays = err != nil
	return err
}

func (a *attachment) target(routes []rtnl.Route) iface.Target {
	return iface.Target{NS: a.NS, Conn: a.cont, Name: a.IfName, Index: a.contEnd.Index, NoSubnetRoutes: true, Routes: routes}
}

func (a *attachment) masquerade(ctx context.Context, res *cni.Result) error {
	if !a.cfg.Masq {
		return nil
	}
	c := masq.Config{Attachment: a.Attachment, Backend: a.cfg.MasqBackend, Addrs: cni.Addresses(res.IPs)}
	a.OnFail("remove the masquerade", func(ctx context.Context) error { return masq.Del(ctx, a.nf, c) })
	return masq.Add(ctx, a.nf, c)
}

// deleteLink deletes the attachment's pair, see iface.Search.
func deleteLink(req *skel.Request) (gone bool, err error) {
	host, err := rtnl.Dial(nil)
	if err != nil {
		return iface.Gone(err), err
	}
	defer host.Close()
	return iface.Search{Attachment: req.Attachment, Host: host, NS: req.NS, Prev: req.PrevResult, Master: iface.NoMaster}.Delete()
}
