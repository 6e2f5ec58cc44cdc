package rtnl

import (
	"fmt"
	"net"

	"github.com/hawser-cni/plugins/pkg/netlink"
	"github.com/hawser-cni/plugins/pkg/ns"
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
	var data netlink.Body
	if b.VLANFiltering {
		data.Uint8(unix.IFLA_BR_VLAN_FILTERING, 1)
	}
	addInfo(&body, "bridge", data)
	l, err := c.create(b.Name, body)
	if err != nil {
		return l, fmt.Errorf("bridge %q: create: %w", b.Name, err)
	}
	return l, nil
}

// create makes a link and looks at it, in one go. Without NLM_F_ECHO, which the
// kernel knows here since 6.2.
func (c *Conn) create(name string, body netlink.Body) (l Link, err error) {
	add := netlink.Request{Type: unix.RTM_NEWLINK, Flags: createNew | unix.NLM_F_ACK, Body: body}
	errs := c.ask([]netlink.Request{add, linkNamed(name)}, func(_ int, data []byte) { l = c.learn(data) })
	if errs[0] != nil {
		return Link{}, errs[0] // what was looked at is somebody else's
	}
	return l, errs[1]
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
// moved or renamed afterwards. It returns the end called Name. The error matches EEXIST when either name is
// taken in its namespace.
func (c *Conn) AddVeth(v Veth) (Link, error) {
	body := end{name: v.Name, mac: v.MAC, mtu: v.MTU, group: v.Group}.body()
	peer := end{name: v.Peer.Name, mac: v.Peer.MAC, mtu: v.MTU}.body()
	if v.Peer.NS != nil {
		peer.Uint32(unix.IFLA_NET_NS_FD, uint32(v.Peer.NS.FD()))
	}
	var data netlink.Body
	data.Nest(vethInfoPeer, peer)
	addInfo(&body, "veth", data)
	l, err := c.create(v.Name, body)
	if err != nil {
		return l, fmt.Errorf("veth %q with peer %q: create: %w", v.Name, v.Peer.Name, err)
	}
	return l, nil
}

// end is what a message says about a link to be created.
type end struct {
	name  string
	mac   net.HardwareAddr
	mtu   int
	group uint32
}

func (e end) body() netlink.Body {
	body := linkHeader{}.body()
	body.Text(unix.IFLA_IFNAME, e.name)
	if e.mac != nil {
		body.Bytes(unix.IFLA_ADDRESS, e.mac)
	}
	if e.mtu != 0 {
		body.Uint32(unix.IFLA_MTU, uint32(e.mtu))
	}
	if e.group != 0 {
		body.Uint32(unix.IFLA_GROUP, e.group)
	}
	return body
}

// addInfo says what kind of link it is.
func addInfo(body *netlink.Body, kind string, data netlink.Body) {
	var info netlink.Body
	info.Bytes(unix.IFLA_INFO_KIND, []byte(kind))
	if data != nil {
		info.Nest(unix.IFLA_INFO_DATA, data)
	}
	body.Nest(unix.IFLA_LINKINFO, info)
}
