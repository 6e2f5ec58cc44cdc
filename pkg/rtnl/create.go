package rtnl

import (
	"fmt"
	"net"

	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const createNew = unix.NLM_F_CREATE | unix.NLM_F_EXCL

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
	body := end{name: b.Name, mac: b.MAC, mtu: b.MTU}.body()
	info := attrNested(unix.IFLA_LINKINFO)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	if b.VLANFiltering {
		data := attrNested(nl.IFLA_INFO_DATA)
		data.AddRtAttr(nl.IFLA_BR_VLAN_FILTERING, nl.Uint8Attr(1))
		info.AddChild(data)
	}
	if err := c.change(unix.RTM_NEWLINK, createNew, append(body, info)...); err != nil {
		return Link{}, fmt.Errorf("bridge %q: create: %w", b.Name, err)
	}
	return c.Link(b.Name)
}

// Veth is a pair that AddVeth creates; the end in the Conn's own namespace.
type Veth struct {
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
// moved or renamed afterwards. The error matches EEXIST when either name is
// taken in its namespace.
func (c *Conn) AddVeth(v Veth) error {
	body := end{name: v.Name, mac: v.MAC, mtu: v.MTU, group: v.Group}.body()
	peer := nl.NewRtAttr(nl.VETH_INFO_PEER|unix.NLA_F_NESTED, nil)
	for _, attr := range (end{name: v.Peer.Name, mac: v.Peer.MAC, mtu: v.MTU}).body() {
		peer.AddChild(attr)
	}
	if v.Peer.NS != nil {
		peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(v.Peer.NS.FD())))
	}
	data := attrNested(nl.IFLA_INFO_DATA)
	data.AddChild(peer)
	info := attrNested(unix.IFLA_LINKINFO)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	info.AddChild(data)
	if err := c.change(unix.RTM_NEWLINK, createNew, append(body, info)...); err != nil {
		return fmt.Errorf("veth %q with peer %q: create: %w", v.Name, v.Peer.Name, err)
	}
	return nil
}

// end is what a message says about a link to be created.
type end struct {
	name  string
	mac   net.HardwareAddr
	mtu   int
	group uint32
}

func (e end) body() []nl.NetlinkRequestData {
	body := []nl.NetlinkRequestData{nl.NewIfInfomsg(unix.AF_UNSPEC), attrString(unix.IFLA_IFNAME, e.name)}
	if e.mac != nil {
		body = append(body, nl.NewRtAttr(unix.IFLA_ADDRESS, e.mac))
	}
	if e.mtu != 0 {
		body = append(body, attrUint32(unix.IFLA_MTU, uint32(e.mtu)))
	}
	if e.group != 0 {
		body = append(body, attrUint32(unix.IFLA_GROUP, e.group))
	}
	return body
}
