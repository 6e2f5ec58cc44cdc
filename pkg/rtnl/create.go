package rtnl

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
)

// NewLink is a link that AddLink creates. All fields except Name and Kind may be zero.
type NewLink struct {
	Name   string
	Kind   string           // "bridge", "veth", "netkit", "macvlan", "ipvlan", "vlan", "vrf", "ifb" or "dummy"
	Master int              // link below a macvlan, ipvlan or vlan, as an index in the Conn's namespace
	MAC    net.HardwareAddr // nil = random, or the master's; for a bridge, an address that changes with its ports
	MTU    int              // 0 = the kernel's choice, or the master's
	Group  uint32
	NS     *ns.NS // namespace of the new link; nil = the Conn's

	Peer          Peer   // the other end of a veth or netkit, with the same MTU
	Mode          string // of a macvlan or ipvlan
	QueueLen      uint32 // of a macvlan, for broadcasts; 0 = the kernel's choice
	VLAN          int    // of a vlan
	Table         uint32 // of a VRF: the table of its routes
	VLANFiltering bool   // of a bridge; no effect on a kernel that was built without it
}

// Peer is the other end of a new pair.
type Peer struct {
	Name string
	MAC  net.HardwareAddr // nil = random
	NS   *ns.NS           // nil = the Conn's
}

// AddLink creates a link or both ends of a pair. The link is down, unless it is a VRF. The error matches EEXIST if a
// name is taken in the namespace of the link or, before Linux 6.15, in the Conn's namespace. It matches EOPNOTSUPP and
// has CNI error code 2 if the kernel lacks the kind. After an error the link may exist, if the answer was lost.
func (c *Conn) AddLink(n NewLink) error {
	what := fmt.Sprintf("%s %q", n.Kind, n.Name)
	if n.Peer.Name != "" {
		what += fmt.Sprintf(" with peer %q", n.Peer.Name)
	}
	err := wrap(what+": create", c.callOnce(func(h *netlink.Handle) error { return h.LinkAdd(n.encode()) }))
	if errors.Is(err, unix.EOPNOTSUPP) && errors.Is(c.ProbeKind(n.Kind), unix.EOPNOTSUPP) {
		return cni.LacksModules(err, moduleOf(n.Kind))
	}
	return err
}

func moduleOf(kind string) string {
	if kind == "vlan" {
		return "8021q"
	}
	return kind
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
	case "veth":
		pair := netlink.NewVeth(attrs) // a plain Veth would give the peer a queue of length 0
		pair.PeerName, pair.PeerHardwareAddr = n.Peer.Name, n.Peer.MAC
		if n.Peer.NS != nil {
			pair.PeerNamespace = netlink.NsFd(n.Peer.NS.FD())
		}
		return pair
	case "netkit":
		return n.netkit(attrs)
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

// netkit returns a netkit pair in layer 2 mode, which has MAC addresses as a veth does. The link is the primary end, to
// which BPF programs for both ends are attached.
func (n NewLink) netkit(attrs netlink.LinkAttrs) *netlink.Netkit {
	pair := &netlink.Netkit{
		LinkAttrs: attrs, Mode: netlink.NETKIT_MODE_L2, Policy: netlink.NETKIT_POLICY_FORWARD,
		PeerPolicy: netlink.NETKIT_POLICY_FORWARD,
		Scrub:      netlink.NETKIT_SCRUB_DEFAULT, PeerScrub: netlink.NETKIT_SCRUB_DEFAULT,
	}
	peer := netlink.NewLinkAttrs()
	peer.Name, peer.MTU, peer.HardwareAddr = n.Peer.Name, n.MTU, n.Peer.MAC
	if n.Peer.NS != nil {
		peer.Namespace = netlink.NsFd(n.Peer.NS.FD())
	}
	pair.SetPeerAttrs(&peer)
	return pair
}

// macvlanModes returns the modes in the order of the library's numbers.
func macvlanModes() []string { return []string{"", "private", "vepa", "bridge", "passthru", "source"} }

// ipvlanModes returns the modes in the order of the kernel's numbers.
func ipvlanModes() []string { return []string{"l2", "l3", "l3s"} }

// ProbeKind returns an error that matches EOPNOTSUPP if the kernel cannot create links of a kind. It requests a link
// with an invalid MTU and an invalid address, which the kernel refuses with EINVAL if it knows the kind.
func (c *Conn) ProbeKind(kind string) error {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, []byte(kind))
	const invalidMTU = 1<<32 - 1
	attrs := []*nl.RtAttr{info, nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(invalidMTU))}
	if kind != "netkit" { // some kernels refuse any address of a netkit with EOPNOTSUPP
		attrs = append(attrs, nl.NewRtAttr(unix.IFLA_ADDRESS, make([]byte, 3)))
	}
	flags := unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_EXCL
	_, err := c.send(unix.RTM_NEWLINK, flags, header(unix.AF_UNSPEC, 0), attrs...)
	err = wrap("kind "+kind, ignore(err, unix.EINVAL))
	if errors.Is(err, unix.EOPNOTSUPP) {
		return cni.LacksModules(err, moduleOf(kind))
	}
	return err
}
