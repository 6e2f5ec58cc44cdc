// Package attach is the life of a main plugin, which makes a container's interface. ADD opens a Call and takes its
// steps in a straight line; each step that makes something registers its undo. DEL, CHECK, GC, STATUS and List are
// functions here, to which a plugin adds what is its own.
package attach

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/ipam"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

const (
	// upTimeout is how long a link may take to pass packets; the kernel needs a millisecond.
	upTimeout = 5 * time.Second
	// addressTimeout is how long an IPv6 address may take to be usable.
	addressTimeout = 2 * time.Second
	// endTimeout is how long the kernel may take to delete the host end of a container whose namespace has ended.
	endTimeout = time.Second
)

// Call is an ADD or a CHECK under way.
type Call struct {
	*netplugin.Call
	Master rtnl.Link   // the master of a child; none where it has no master
	Child  ChildConfig // of a plugin that makes one

	// again says that CreatePair found the host end of a container that started again without DEL.
	again bool

	ipam   *ipam.Client
	adding *ipam.Delegate // the IPAM plugin at work on its ADD, until somebody waits for it
}

// Open opens the sockets, for as long as the call and its roll-back last. An IPAM plugin that is not there is refused.
func Open(req *skel.Request) (*Call, error) {
	client := &ipam.Client{Req: req}
	if req.IPAM != "" {
		if err := client.Find(); err != nil {
			return nil, err
		}
	}
	c := netplugin.OpenHost(req)
	return &Call{Call: c, ipam: client}, c.OpenCont()
}

// CreatePair makes a pair of links, both ends in place and down: the container's
// interface, and a host end with a name derived from the attachment. An attachment
// that exists is code 100: the kernel decides who of two ADDs is first. Until
// MarkHostEnd the group of the host end tells whose it is.
func (s *Call) CreatePair(ctx context.Context, link LinkConfig) (err error) {
	pair := rtnl.NewLink{Kind: "veth", MTU: link.MTU, Group: cni.NetworkHash(s.Req.Network),
		Peer: rtnl.Peer{Name: s.Req.IfName, MAC: link.MAC, NS: s.Req.NS}}
	if link.Netkit {
		pair.Kind = "netkit"
	}
	names := iface.HostNames(s.Req.Attachment)
	s.Req.Step("make the pair")
	s.Req.SignalsEndContext()
	for _, name := range names {
		pair.Name = name
		if err = s.Host.AddLink(pair); err == nil {
			s.HostEnd, err = s.Host.Link(name)
		}
		if err == nil {
			s.again = name != names[0]
			s.Req.OnFail("delete the interface", func(context.Context) error { return s.Host.DelLink(s.HostEnd.Index) })
			s.ContEnd, err = s.Cont.Link(s.Req.IfName)
			return err
		}
		if !errors.Is(err, unix.EEXIST) {
			// The kernel may have made the pair although its answer was lost.
			if l, lost := s.Host.Link(name); lost == nil && netplugin.IsUnmarkedHostEnd(l, s.Req.Network) {
				err = errors.Join(err, s.Host.DelLink(l.Index))
			}
			return err
		}
		if err := s.refuseExisting(ctx); err != nil {
			return err
		}
	}
	return cni.Errorf(cni.CodeConflict, "host interface: other links have all the names from %q to %q: %w",
		names[0], names[len(names)-1], err)
}

// refuseExisting is code 100 when the attachment exists: its interface in the container, or its host end. When the
// container's namespace has ended, the kernel deletes the pair a moment later. refuseExisting waits for that, and
// CreatePair goes on with the next name.
func (s *Call) refuseExisting(ctx context.Context) error {
	if err := s.RefuseTakenName(); err != nil {
		return err
	}
	hostEnd, err := netplugin.MarkedHostEnd(s.Host, s.Req.Attachment)
	if err != nil {
		return netplugin.IgnoreNoLink(err) // the name is another link's
	}
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	if err := s.Host.WaitGone(ctx, hostEnd.Index); err == nil {
		return nil
	}
	return s.Req.Exists(fmt.Sprintf("host interface %q: this attachment exists already; DEL removes it", hostEnd.Name))
}

// RefuseTakenName is code 100 where the container has an interface of this name already.
func (s *Call) RefuseTakenName() error {
	_, err := s.Cont.Link(s.Req.IfName)
	if err == nil {
		return s.Req.Exists(fmt.Sprintf("interface %q: exists already in the container", s.Req.IfName))
	}
	return netplugin.IgnoreNoLink(err)
}

// MarkHostEnd names the owner of the host end, makes it a port of the bridge with the
// index master (0: of none), and has the host ignore the container's advertisements.
func (s *Call) MarkHostEnd(master int) error {
	s.Req.Step("set up the host end")
	change := rtnl.LinkChange{Alias: new(s.Req.Mark()), Group: new(uint32(0))}
	if master != 0 {
		change.Master = &master
	}
	if err := s.Host.SetLink(s.HostEnd.Index, change); err != nil {
		return err
	}
	return s.Tolerate(iface.IgnoreRouterAdverts(s.HostEnd.Name))
}

// StartIPAM starts the IPAM plugin, if the configuration names one. It works while ADD
// goes on, until IPAMResult. Only the ADD that made the interface may call it.
func (s *Call) StartIPAM(ctx context.Context) error {
	if s.Req.IPAM == "" {
		return nil
	}
	var err error
	if s.adding, err = s.ipam.Start(ctx, "ADD"); err != nil {
		return err
	}
	s.Req.OnFail("release the addresses", func(ctx context.Context) error {
		if err := s.removeAddresses(); err != nil {
			return fmt.Errorf("%w: %w", errInUse(s.ipam), err)
		}
		return s.ipam.Release(ctx, s.adding)
	})
	return nil
}

// removeAddresses takes the addresses from the container before they are released, with the interface. The interface
// stays if IPAM's DEL needs it, and if it is no pair.
func (s *Call) removeAddresses() error {
	switch {
	case s.ContEnd.Index == 0: // a device that a program of the container drives
		return nil
	case s.ipam.NeedsInterface() || s.HostEnd.Index == 0:
		return Flush(s.Cont, s.ContEnd)
	}
	return s.Host.DelLink(s.HostEnd.Index)
}

// IPAMResult waits for the answer of the IPAM plugin; without one it is empty.
func (s *Call) IPAMResult(ctx context.Context) (*cni.Result, error) {
	if s.adding == nil {
		return &cni.Result{}, nil
	}
	s.Req.Step("wait for IPAM")
	adding := s.adding
	s.adding = nil
	answer, err := s.ipam.Result(ctx, adding)
	if err != nil {
		return nil, err
	}
	return answer, requireIPv6(answer)
}

// requireIPv6 refuses IPv6 addresses on a kernel that was started without IPv6.
func requireIPv6(answer *cni.Result) error {
	i := slices.IndexFunc(answer.IPs, func(ip cni.IP) bool { return ip.Address.Addr().Is6() })
	if i < 0 || !errors.Is(unix.Access("/proc/sys/net/ipv6", unix.F_OK), unix.ENOENT) { // else the kernel tells
		return nil
	}
	return cni.Errorf(cni.CodeUnsupportedField,
		"address %s: IPv6 is not supported by this kernel, which may have been started with ipv6.disable=1",
		answer.IPs[i].Address)
}

// RefuseHostAddresses returns code 103 if the host itself has one of the result's addresses. The container's packets
// arrive through link, which may be in a VRF. On a network where the host has no address of the family and is not a
// router, such an address is harmless, and RefuseHostAddresses only warns. IPv6 link-local addresses are not checked,
// because each link has its own.
func (s *Call) RefuseHostAddresses(res *cni.Result, link rtnl.Link, isRouter bool) error {
	var vrf rtnl.Link
	if link.Master != 0 {
		master, err := s.Host.LinkByIndex(link.Master)
		if err != nil {
			return err
		}
		if master.Kind == "vrf" {
			vrf = master
		}
	}
	for _, ip := range res.IPs {
		addr := ip.Address.Addr()
		if addr.Is6() && addr.IsLinkLocalUnicast() {
			continue
		}
		local, err := s.Host.IsLocal(addr, vrf)
		if err != nil {
			return err
		}
		if !local {
			continue
		}
		isShared := isRouter || addr.IsLoopback()
		if !isShared {
			if isShared, err = s.hostIsOn(link, addr.Is4()); err != nil {
				return err
			}
		}
		if isShared {
			return cni.Errorf(cni.CodeConflict,
				"address %s: the host has it; exclude it from the addresses that IPAM gives", addr)
		}
		s.Req.Warn("address %s: the host also has it, on another network", addr)
	}
	return nil
}

// hostIsOn reports whether the host has an address of a family on the link.
func (s *Call) hostIsOn(link rtnl.Link, is4 bool) (bool, error) {
	if link.Index == 0 {
		return false, nil
	}
	addrs, err := s.Host.Addrs(link.Index)
	return slices.ContainsFunc(addrs, func(a rtnl.Addr) bool {
		return a.Prefix.Addr().Is4() == is4 && !a.Prefix.Addr().IsLinkLocalUnicast()
	}), err
}

// RefuseRouter returns code 103 for a gateway address that would make the host look for the router of its own default
// route on the gateway's link. Such a gateway address is the router's address, or its subnet contains the router and
// the prefix of the host's route to the router is not longer. A gateway is not refused if the host reaches the router
// through one of links. Link-local addresses are not checked, because each link has its own.
func (s *Call) RefuseRouter(gateway netip.Prefix, links ...rtnl.Link) error {
	router, via, err := s.Host.DefaultRouter(gateway.Addr().Is4())
	isOwn := slices.ContainsFunc(links, func(l rtnl.Link) bool { return l.Index == via })
	if err != nil || isOwn || !router.IsValid() || router.IsLinkLocalUnicast() || !gateway.Contains(router) {
		return err
	}
	bits, err := s.Host.RouteBits(router)
	if err != nil || router != gateway.Addr() && bits > gateway.Bits() {
		return err
	}
	return cni.Errorf(cni.CodeConflict, "gateway %s: the host's own router %s is in this subnet, and the host would "+
		"not reach it any more; choose a subnet that the node does not use", gateway, router)
}

// AssignAddresses gives the container's interface, which is up, the addresses and routes of the IPAM
// plugin, if there is one, and returns the result. Without an interface (Target.Index is 0) it
// returns the result alone.
func (s *Call) AssignAddresses(ctx context.Context, link LinkConfig, t iface.Target) (*cni.Result, error) {
	if err := s.StartIPAM(ctx); err != nil { // some need the interface, up
		return nil, err
	}
	answer, err := s.IPAMResult(ctx)
	if err != nil {
		return nil, err
	}
	if s.Req.IPAM == "" && link.Given != nil {
		answer = link.Given
	}
	res, err := link.Result(answer, 0)
	if err != nil {
		return nil, err
	}
	for _, ip := range res.IPs {
		if gw := ip.Gateway; gw.IsValid() && gw.Is4() != ip.Address.Addr().Is4() {
			return nil, cni.Errorf(cni.CodeIPAM, "IPAM gave address %s and gateway %s of the other family", ip.Address,
				gw)
		}
	}
	if s.Child.New.Kind == "" || s.Child.Master != nil { // others lead nowhere
		uplink := s.Master
		if s.Child.masterInside() {
			uplink.Master = 0
		}
		if err := s.RefuseHostAddresses(res, uplink, false); err != nil {
			return nil, err
		}
	}
	res.Interfaces = s.Interfaces()
	if t.Index == 0 {
		return res, nil
	}
	s.Req.Step("configure the interface")
	return res, iface.Configure(ctx, t, res)
}

// Target is the container's interface for iface.Configure and iface.Verify.
func (s *Call) Target() iface.Target {
	return iface.Target{NS: s.Req.NS, Conn: s.Cont, Name: s.Req.IfName, Index: s.ContEnd.Index, EnableDAD: s.Child.DAD}
}

// Masquerade gives what leaves the container's subnets an address of the host.
func (s *Call) Masquerade(ctx context.Context, m Masq, res *cni.Result) error {
	if !m.On {
		return nil
	}
	if err := m.from(s.Host, s.HostEnd); err != nil {
		return err
	}
	c := m.of(s.Req.Attachment, res.IPs)
	c.Warn, c.Again = s.Req.Warn, s.again
	s.Req.Step("masquerade")
	s.Req.OnFail("remove the masquerade", func(ctx context.Context) error { return masq.Del(ctx, s.NF, c) })
	return masq.Add(ctx, s.NF, c)
}

// Gateway is a link of the host, and those of its addresses that are to be usable when ADD returns.
type Gateway struct {
	Link  rtnl.Link
	Addrs []netip.Prefix
}

// WaitUp waits until packets pass through the pair, and until container and
// gateway take packets for their IPv6 addresses: what is sent before is lost,
// and repeated a second later. An address that takes longer than usual is a warning.
func (s *Call) WaitUp(ctx context.Context, res *cni.Result, gw Gateway) error {
	s.Req.Step("wait until packets pass")
	up, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	// The kernel tells the two ends of a change of carrier one after the other.
	host, hostErr := s.Host.WaitUp(up, s.HostEnd.Index)
	cont, err := s.Cont.WaitUp(up, s.ContEnd.Index)
	if err := errors.Join(hostErr, err); err != nil {
		return fmt.Errorf("host interface %q: %w", s.HostEnd.Name, err)
	}
	s.HostEnd, s.ContEnd = host, cont // udev may have given them other MAC addresses
	usable, cancel := context.WithTimeout(ctx, addressTimeout)
	defer cancel()
	return s.Tolerate(errors.Join(
		s.Cont.WaitLocal(usable, s.ContEnd.Index, ofIPv6(cni.Addresses(res.IPs))...),
		s.Host.WaitLocal(usable, gw.Link.Index, ofIPv6(gw.Addrs)...)))
}

func ofIPv6(all []netip.Prefix) (addrs []netip.Addr) {
	for _, p := range all {
		if p.Addr().Is6() {
			addrs = append(addrs, p.Addr())
		}
	}
	return addrs
}

// Interfaces lists the links as results do: the host end, if there is one, and the container's interface.
func (s *Call) Interfaces() []cni.Interface {
	cont := iface.Describe(s.ContEnd)
	cont.Sandbox = s.Req.Netns
	if s.HostEnd.Index == 0 {
		return []cni.Interface{cont}
	}
	return []cni.Interface{iface.Describe(s.HostEnd), cont}
}

// Tolerate makes a warning of the error of a step that the network can do without, unless the
// error is transient: then the step may succeed a moment later.
func (s *Call) Tolerate(err error) error {
	if err == nil || cni.Transient(err) {
		return err
	}
	s.Req.Warn("%v", err)
	return nil
}

// deleteStalePairs deletes the host ends of attachments of the network that are not valid. It reads all links.
func deleteStalePairs(host *rtnl.Conn, valid cni.Set) error {
	links, err := host.Links()
	if err != nil {
		return err
	}
	var keep []string // names that host ends of valid attachments may have without a mark
	for _, a := range valid.All() {
		keep = append(keep, iface.HostNames(a)...)
	}
	var errs []error
	for _, l := range links {
		unmarked := netplugin.IsUnmarkedHostEnd(l, valid.Network()) && !slices.Contains(keep, l.Name)
		garbage := l.IsPairEnd() && valid.Garbage(l.Alias)
		if unmarked || garbage {
			errs = append(errs, host.DelLink(l.Index))
		}
	}
	return errors.Join(errs...)
}
