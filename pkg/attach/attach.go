// Package attach is the life of a main plugin, which makes a container's
// interface. ADD opens a Call and takes its steps in a straight line;
// each step that makes something registers its undo. DEL, CHECK, GC and STATUS
// are functions here, to which a plugin adds what is its own.
package attach

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/invoke"
	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const (
	// upTimeout is how long a link may take to pass packets; the kernel needs a
	// millisecond.
	upTimeout = 5 * time.Second
	// addressTimeout is how long an IPv6 address may take to be usable.
	addressTimeout = 2 * time.Second
)

// Call is an ADD or a CHECK under way: the request, a socket on either
// side, and the links that were made or found.
type Call struct {
	*skel.Request
	Host *rtnl.Conn // in the host's namespace
	Cont *rtnl.Conn // in the container's
	NF   *nft.Conn

	HostEnd rtnl.Link // of the veth pair
	ContEnd rtnl.Link // the container's interface

	asked *ipam.Call // the ADD at which the IPAM plugin works; nil: no IPAM
}

// Open opens the sockets, for as long as the call and its roll-back last. An
// IPAM plugin that is not there is refused before anything is made.
func Open(req *skel.Request) (*Call, error) {
	if req.IPAM != "" {
		if _, err := client(req).Runner.Find(req.IPAM); err != nil {
			return nil, err
		}
	}
	host, cont, err := rtnl.DialBoth(req.NS)
	if err != nil {
		return nil, err
	}
	a := &Call{Request: req, Host: host, Cont: cont, NF: nft.New()}
	req.OnDone(func() { _ = errors.Join(a.Host.Close(), a.Cont.Close(), a.NF.Close()) })
	return a, nil
}

// Veth makes the container's interface and its host end, both down, the host
// end marked as this attachment's and a port of the bridge with the index
// master (0: of none). An attachment that exists is code 100: the kernel
// decides who of two ADDs is first.
func (a *Call) Veth(ctx context.Context, link Link, master int) error {
	pair := iface.Pair{Attachment: a.Attachment, Host: a.Host, Cont: a.Cont, NS: a.NS, MTU: link.MTU, MAC: link.MAC}
	var err error
	if a.HostEnd, a.ContEnd, err = pair.Create(ctx); err != nil {
		return err
	}
	a.OnFail("delete the interface", func(context.Context) error { return a.Host.DelLink(a.HostEnd.Index) })
	mark := iface.MarkChange(a.Attachment)
	if master != 0 {
		mark.Master = &master
	}
	if err := a.Host.SetLink(a.HostEnd.Index, mark); err != nil {
		return err
	}
	return a.Tolerate(iface.IgnoreRouterAdverts(a.HostEnd.Name))
}

// StartIPAM starts the IPAM plugin, if the configuration names one. The plugin
// works while ADD goes on, until Lease.
func (a *Call) StartIPAM(ctx context.Context) error {
	if a.IPAM == "" {
		return nil
	}
	client := client(a.Request)
	var err error
	if a.asked, err = client.Start(ctx, "ADD"); err != nil {
		return err
	}
	a.OnFail("release the addresses", func(ctx context.Context) error {
		if err := a.vacate(client); err != nil {
			return fmt.Errorf("%w: %w", withheld(client), err)
		}
		return a.asked.Release(ctx)
	})
	return nil
}

// vacate sees to it that nobody answers to the addresses any more before they
// are released: it deletes the interface, or the addresses of one that the
// IPAM plugin needs.
func (a *Call) vacate(client ipam.Client) error {
	if client.NeedsInterface() {
		return flush(a.Cont, a.ContEnd)
	}
	return a.Host.DelLink(a.HostEnd.Index)
}

// Lease waits for what IPAM reserved; without IPAM it is an empty result.
func (a *Call) Lease(ctx context.Context) (*cni.Result, error) {
	if a.asked == nil {
		return &cni.Result{}, nil
	}
	return a.asked.Lease(ctx)
}

// Target is the container's interface for iface.Configure and iface.Verify.
func (a *Call) Target() iface.Target {
	return iface.Target{NS: a.NS, Conn: a.Cont, Name: a.IfName, Index: a.ContEnd.Index}
}

// Masquerade gives what leaves the container's subnets an address of the host.
func (a *Call) Masquerade(ctx context.Context, m Masq, res *cni.Result) error {
	if !m.On {
		return nil
	}
	c := masq.Config{Attachment: a.Attachment, Backend: m.Backend, Addrs: cni.Addresses(res.IPs), Warn: a.Warn}
	a.OnFail("remove the masquerade", func(ctx context.Context) error { return masq.Del(ctx, a.NF, c) })
	return masq.Add(ctx, a.NF, c)
}

// Gateway is a link of the host, and those of its IPv6 addresses that are to be
// usable when ADD returns.
type Gateway struct {
	Link  rtnl.Link
	Addrs []netip.Addr
}

// WaitUp waits until packets pass through the pair, and until container and
// gateway take packets for their IPv6 addresses: what is sent before is lost,
// and repeated a second later. Addresses take milliseconds; ADD does not fail
// for one that takes longer.
func (a *Call) WaitUp(ctx context.Context, res *cni.Result, gw Gateway) error {
	up, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	// The kernel tells the two ends of a change of carrier one after the other.
	err := errors.Join(a.Host.WaitUp(up, a.HostEnd.Index), a.Cont.WaitUp(up, a.ContEnd.Index))
	if err != nil {
		return fmt.Errorf("host interface %q: %w", a.HostEnd.Name, err)
	}
	var inside []netip.Addr
	for _, ip := range res.IPs {
		if ip.Address.Addr().Is6() {
			inside = append(inside, ip.Address.Addr())
		}
	}
	usable, cancel := context.WithTimeout(ctx, addressTimeout)
	defer cancel()
	return a.Tolerate(errors.Join(
		a.Cont.WaitLocal(usable, a.ContEnd.Index, inside...), a.Host.WaitLocal(usable, gw.Link.Index, gw.Addrs...)))
}

// Interfaces lists the links as results do: the host end and the container's
// interface.
func (a *Call) Interfaces() []cni.Interface {
	cont := iface.Describe(a.ContEnd)
	cont.Sandbox = a.Netns
	return []cni.Interface{iface.Describe(a.HostEnd), cont}
}

// Tolerate warns of a failed step that the network can do without, where
// /proc/sys is read-only for instance. It returns a transient error: the step may
// succeed a moment later.
func (a *Call) Tolerate(err error) error {
	if err == nil || cni.Transient(err) {
		return err
	}
	a.Warn("%v", err)
	return nil
}

func client(req *skel.Request) ipam.Client {
	return ipam.Client{
		Type: req.IPAM, Conf: req.Conf, Version: req.Version,
		Runner: invoke.Runner{Path: req.Path, Env: req.Env, Stderr: req.Stderr},
	}
}
