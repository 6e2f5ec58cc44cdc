package rtnl

import (
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/hawser-cni/plugins/pkg/ns"
)

// Bridge is what AddBridge creates.
type Bridge struct {
	Name string
	// 0 = the kernel's choice. The kernel lowers it to the smallest MTU of the
	// ports, until somebody sets it on the existing bridge.
	MTU int
	// nil = a random one that changes with the ports.
	MAC net.HardwareAddr
	// Without effect on a kernel that was built without it: see the result.
	VLANFiltering bool
}

// AddBridge creates a bridge, down, and returns it as it then is. The error
// matches EEXIST when the name is taken.
func (c *Conn) AddBridge(b Bridge) (Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = b.Name, b.MTU, b.MAC
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if b.VLANFiltering {
		bridge.VlanFiltering = &b.VLANFiltering
	}
	l, err := c.create(bridge)
	if err != nil {
		return l, fmt.Errorf("bridge %q: create: %w", b.Name, err)
	}
	return l, nil
}

// Veth is a pair that AddVeth creates; the end in the Conn's own namespace.
type Veth struct {
	// Netkit makes the pair of the kind netkit, on which BPF programs run, and this end
	// its primary one. It has MAC addresses as a veth has.
	Netkit bool

	Name  string
	MAC   net.HardwareAddr // nil = random
	MTU   int              // of both ends; 0 = the kernel's choice
	Group uint32
	Peer  Peer
}

// Peer is the other end of a Veth.
type Peer struct {
	Name string
	MAC  net.HardwareAddr // nil = random
	NS   *ns.NS           // nil = the namespace of the Conn
}

// AddVeth creates both ends of a pair, down, each where it belongs: nothing is
// moved or renamed afterwards. It returns the end called Name. The error matches
// EEXIST when either name is taken in its namespace.
func (c *Conn) AddVeth(v Veth) (Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr, attrs.Group = v.Name, v.MTU, v.MAC, v.Group
	var l Link
	var err error
	if v.Netkit {
		l, err = c.create(v.netkit(attrs))
	} else {
		veth := netlink.NewVeth(attrs) // a bare Veth gives the peer a queue of length 0
		veth.PeerName, veth.PeerHardwareAddr = v.Peer.Name, v.Peer.MAC
		if v.Peer.NS != nil {
			veth.PeerNamespace = netlink.NsFd(v.Peer.NS.FD())
		}
		l, err = c.create(veth)
	}
	if err != nil {
		return l, fmt.Errorf("veth %q with peer %q: create: %w", v.Name, v.Peer.Name, err)
	}
	return l, nil
}

func (v Veth) netkit(attrs netlink.LinkAttrs) *netlink.Netkit {
	pair := &netlink.Netkit{
		LinkAttrs: attrs, Mode: netlink.NETKIT_MODE_L2, Policy: netlink.NETKIT_POLICY_FORWARD,
		PeerPolicy: netlink.NETKIT_POLICY_FORWARD,
		Scrub:      netlink.NETKIT_SCRUB_DEFAULT, PeerScrub: netlink.NETKIT_SCRUB_DEFAULT,
	}
	peer := netlink.NewLinkAttrs()
	peer.Name, peer.MTU, peer.HardwareAddr = v.Peer.Name, v.MTU, v.Peer.MAC
	if v.Peer.NS != nil {
		peer.Namespace = netlink.NsFd(v.Peer.NS.FD())
	}
	pair.SetPeerAttrs(&peer)
	return pair
}

// create makes a link and looks at it. The library looks, too, keeps the index
// alone, and says nothing when it cannot. A creation whose answer was lost is an
// error: the link may be there.
func (c *Conn) create(l netlink.Link) (Link, error) {
	if err := c.once(func(h *netlink.Handle) error { return h.LinkAdd(l) }); err != nil {
		return Link{}, noLink(err)
	}
	return c.Link(l.Attrs().Name)
}

// Child is what AddChild creates: a link without another end, on a master or
// (dummy) on none.
type Child struct {
	Name   string
	Kind   string           // "macvlan", "ipvlan", "vlan" or "dummy"
	Master int              // index in the Conn's namespace
	MAC    net.HardwareAddr // nil = random, or the master's
	MTU    int              // 0 = the master's
	Group  uint32
	NS     *ns.NS // where it is to be; nil = the namespace of the Conn

	Mode     string // of a macvlan or ipvlan
	QueueLen uint32 // of a macvlan, for broadcasts; 0 = the kernel's choice
	VLAN     int    // of a vlan
}

// AddChild creates a link, down, where it belongs. The error matches EEXIST when
// the name is taken there, before Linux 6.15 also when it is in the Conn's namespace,
// and EOPNOTSUPP when the kernel does not have the kind.
func (c *Conn) AddChild(ch Child) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex, attrs.MTU, attrs.HardwareAddr = ch.Name, ch.Master, ch.MTU, ch.MAC
	attrs.Group = ch.Group
	if ch.NS != nil {
		attrs.Namespace = netlink.NsFd(ch.NS.FD())
	}
	var l netlink.Link
	switch ch.Kind {
	case "macvlan":
		mode := netlink.MacvlanMode(slices.Index(macvlanModes(), ch.Mode))
		l = &netlink.Macvlan{LinkAttrs: attrs, Mode: mode, BCQueueLen: ch.QueueLen}
	case "ipvlan":
		l = &netlink.IPVlan{LinkAttrs: attrs, Mode: netlink.IPVlanMode(slices.Index(ipvlanModes(), ch.Mode))}
	case "vlan":
		l = &netlink.Vlan{LinkAttrs: attrs, VlanId: ch.VLAN}
	default:
		l = &netlink.GenericLink{LinkAttrs: attrs, LinkType: ch.Kind}
	}
	if err := c.once(func(h *netlink.Handle) error { return h.LinkAdd(l) }); err != nil {
		return fmt.Errorf("%s %q: create: %w", ch.Kind, ch.Name, noLink(err))
	}
	return nil
}

// macvlanModes are the modes in the order of the library's numbers.
func macvlanModes() []string { return []string{"", "private", "vepa", "bridge", "passthru", "source"} }

// ipvlanModes are the modes in the order of the kernel's numbers.
func ipvlanModes() []string { return []string{"l2", "l3", "l3s"} }
