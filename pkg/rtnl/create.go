package rtnl

import (
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/hawser-cni/plugins/pkg/ns"
)

// NewLink is a link that AddLink creates, without another end. Each field but the
// first two may be zero.
type NewLink struct {
	Name   string
	Kind   string           // "bridge", "macvlan", "ipvlan", "vlan", "vrf", "ifb" or "dummy"
	Master int              // what it is on: an index in the Conn's namespace
	MAC    net.HardwareAddr // nil = random, or the master's; a bridge's then changes with its ports
	// 0 = the kernel's choice, or the master's. The kernel lowers that of a bridge to the
	// smallest of its ports', until somebody sets it on the existing bridge.
	MTU   int
	Group uint32
	NS    *ns.NS // where it is to be; nil = the namespace of the Conn

	Mode     string // of a macvlan or ipvlan
	QueueLen uint32 // of a macvlan, for broadcasts; 0 = the kernel's choice
	VLAN     int    // of a vlan
	Table    uint32 // of a VRF: where its routes are
	// Of a bridge. Without effect on a kernel that was built without it.
	VLANFiltering bool
}

// AddLink creates a link where it belongs, down but for a VRF. The error matches EEXIST
// when the name is taken there, before Linux 6.15 also when it is in the Conn's namespace,
// and EOPNOTSUPP when the kernel does not have the kind.
func (c *Conn) AddLink(n NewLink) error {
	if err := c.once(func(h *netlink.Handle) error { return h.LinkAdd(n.encode()) }); err != nil {
		return fmt.Errorf("%s %q: create: %w", n.Kind, n.Name, noLink(err))
	}
	return nil
}

func (n NewLink) encode() netlink.Link {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex, attrs.MTU, attrs.HardwareAddr = n.Name, n.Master, n.MTU, n.MAC
	attrs.Group = n.Group
	if n.NS != nil {
		attrs.Namespace = netlink.NsFd(n.NS.FD())
	}
	switch n.Kind {
	case "bridge":
		bridge := &netlink.Bridge{LinkAttrs: attrs}
		if n.VLANFiltering {
			bridge.VlanFiltering = &n.VLANFiltering
		}
		return bridge
	case "macvlan":
		mode := netlink.MacvlanMode(slices.Index(macvlanModes(), n.Mode))
		return &netlink.Macvlan{LinkAttrs: attrs, Mode: mode, BCQueueLen: n.QueueLen}
	case "ipvlan":
		return &netlink.IPVlan{LinkAttrs: attrs, Mode: netlink.IPVlanMode(slices.Index(ipvlanModes(), n.Mode))}
	case "vlan":
		return &netlink.Vlan{LinkAttrs: attrs, VlanId: n.VLAN}
	case "vrf":
		attrs.Flags = net.FlagUp
		return &netlink.Vrf{LinkAttrs: attrs, Table: n.Table}
	case "ifb":
		attrs.TxQLen = 0
	}
	return &netlink.GenericLink{LinkAttrs: attrs, LinkType: n.Kind}
}

// macvlanModes are the modes in the order of the library's numbers.
func macvlanModes() []string { return []string{"", "private", "vepa", "bridge", "passthru", "source"} }

// ipvlanModes are the modes in the order of the kernel's numbers.
func ipvlanModes() []string { return []string{"l2", "l3", "l3s"} }

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
// EEXIST when either name is taken in its namespace. A creation whose answer was lost
// is an error: the pair may be there.
func (c *Conn) AddVeth(v Veth) (Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr, attrs.Group = v.Name, v.MTU, v.MAC, v.Group
	var pair netlink.Link
	if v.Netkit {
		pair = v.netkit(attrs)
	} else {
		veth := netlink.NewVeth(attrs) // a bare Veth gives the peer a queue of length 0
		veth.PeerName, veth.PeerHardwareAddr = v.Peer.Name, v.Peer.MAC
		if v.Peer.NS != nil {
			veth.PeerNamespace = netlink.NsFd(v.Peer.NS.FD())
		}
		pair = veth
	}
	if err := c.once(func(h *netlink.Handle) error { return h.LinkAdd(pair) }); err != nil {
		return Link{}, fmt.Errorf("veth %q with peer %q: create: %w", v.Name, v.Peer.Name, noLink(err))
	}
	return c.Link(v.Name)
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
