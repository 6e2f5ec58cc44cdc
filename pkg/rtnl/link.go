package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/hawser-cni/plugins/pkg/netlink"
	"golang.org/x/sys/unix"
)

// Link is a network interface as the kernel reports it.
type Link struct {
	Index  int
	Name   string
	Kind   string // "veth", "bridge", ...; empty for hardware and lo
	MAC    net.HardwareAddr
	MTU    int
	TxQLen int
	Master int // index of the bridge it is a port of, 0 = none
	Peer   int // a veth's other end, in the namespace PeerNS; 0 = none
	PeerNS int // kernel's number for that namespace, -1 = none or this one
	Group  uint32
	Alias  string

	Up       bool   // administratively
	Carrier  bool   // the layer below is up
	Oper     string // RFC 2863: "up", "down", "lowerlayerdown", "unknown", ...
	Promisc  bool   // as set by an administrator
	AllMulti bool   // as set by an administrator
	// How many want promiscuous mode, packet sniffers and the bridge included.
	Promiscuity int

	// Of a bridge only.
	VLANFiltering bool
	DefaultPVID   uint16

	port *Port // of a bridge's port only
}

// Link finds a link by its name.
func (c *Conn) Link(name string) (Link, error) {
	links, err := c.LinksNamed(name)
	if err != nil {
		return Link{}, err
	}
	if len(links) == 0 {
		return Link{}, fmt.Errorf("link %q: %w", name, ErrNoLink)
	}
	return links[0], nil
}

// LinksNamed finds those of the names that there are links of, in one go.
func (c *Conn) LinksNamed(names ...string) ([]Link, error) {
	// The kernel calls a longer name out of range; it is as absent as another.
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "" || len(name) >= unix.IFNAMSIZ })
	reqs := make([]netlink.Request, len(names))
	for i, name := range names {
		reqs[i] = linkNamed(name)
	}
	var links []Link
	errs := c.ask(reqs, func(_ int, data []byte) { links = append(links, c.learn(data)) })
	for i, err := range errs {
		if err != nil && !errors.Is(err, unix.ENODEV) {
			return nil, fmt.Errorf("link %q: %w", names[i], err)
		}
	}
	return links, nil
}

// LinkByIndex finds a link by its index.
func (c *Conn) LinkByIndex(index int) (Link, error) {
	links, err := c.LinksAt(index)
	if err != nil {
		return Link{}, err
	}
	return links[0], nil
}

// LinksAt finds links by their indexes, all of them or none, in one go.
func (c *Conn) LinksAt(indexes ...int) ([]Link, error) {
	reqs := make([]netlink.Request, len(indexes))
	for i, index := range indexes {
		reqs[i] = getLink(linkHeader{index: index}.body())
	}
	links := make([]Link, len(indexes))
	errs := c.ask(reqs, func(i int, data []byte) { links[i] = c.learn(data) })
	for i, err := range errs {
		if err != nil {
			return nil, c.linkError(indexes[i], "read", err)
		}
	}
	return links, nil
}

func linkNamed(name string) netlink.Request {
	body := linkHeader{}.body()
	body.Text(unix.IFLA_IFNAME, name)
	return getLink(body)
}

func getLink(body netlink.Body) netlink.Request {
	body.Uint32(unix.IFLA_EXT_MASK, extSkipStats)
	return netlink.Request{Type: unix.RTM_GETLINK, Body: body}
}

// learn reads a link and keeps its name.
func (c *Conn) learn(data []byte) Link {
	l := parseLink(data)
	c.names[l.Index] = l.Name
	return l
}

// Links lists all links of the namespace. The cost grows with their number.
func (c *Conn) Links() ([]Link, error) { return c.links("list of links", 0) }

// Ports lists the ports of a bridge, by the bridge's index. The cost grows with
// their number.
func (c *Conn) Ports(bridge int) ([]Link, error) {
	return c.links("ports of "+c.name(bridge), bridge)
}

// links lists the ports of a master, all links for 0.
func (c *Conn) links(what string, master int) ([]Link, error) {
	body := linkHeader{}.body()
	body.Uint32(unix.IFLA_EXT_MASK, extSkipStats)
	if master != 0 {
		body.Uint32(unix.IFLA_MASTER, uint32(master))
	}
	var links []Link
	err := c.dump(netlink.Request{Type: unix.RTM_GETLINK, Body: body}, func() { links = links[:0] }, func(data []byte) {
		links = append(links, c.learn(data))
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return links, nil
}

// Change is what SetLink changes; fields left zero stay as they are.
type Change struct {
	Up       *bool
	Master   *int // index of a bridge; 0 takes the link out of its bridge
	Alias    *string
	MAC      net.HardwareAddr
	MTU      int
	Group    *uint32
	TxQLen   *int
	Promisc  *bool
	AllMulti *bool
}

// SetLink changes a link in one message. A link that gets a master and comes
// up does so in this order on kernels since 6.0.
func (c *Conn) SetLink(index int, ch Change) error {
	header := linkHeader{index: index}
	header.set(unix.IFF_UP, ch.Up)
	header.set(unix.IFF_PROMISC, ch.Promisc)
	header.set(unix.IFF_ALLMULTI, ch.AllMulti)
	body := header.body()
	empty := len(body)
	ch.append(&body)
	if len(body) == empty && header.change == 0 {
		return nil
	}
	return c.linkError(index, "change", c.change(unix.RTM_NEWLINK, 0, body))
}

func (h *linkHeader) set(flag uint32, on *bool) {
	if on == nil {
		return
	}
	h.change |= flag
	if *on {
		h.flags |= flag
	}
}

func (ch Change) append(b *netlink.Body) {
	if ch.MAC != nil {
		b.Bytes(unix.IFLA_ADDRESS, ch.MAC)
	}
	if ch.MTU != 0 {
		b.Uint32(unix.IFLA_MTU, uint32(ch.MTU))
	}
	if ch.Group != nil {
		b.Uint32(unix.IFLA_GROUP, *ch.Group)
	}
	if ch.TxQLen != nil {
		b.Uint32(unix.IFLA_TXQLEN, uint32(*ch.TxQLen))
	}
	if ch.Alias != nil {
		b.Bytes(unix.IFLA_IFALIAS, []byte(*ch.Alias))
	}
	if ch.Master != nil {
		b.Uint32(unix.IFLA_MASTER, uint32(*ch.Master))
	}
}

// DelLink deletes a link, and a veth's other end with it. That the link is
// gone already is no error.
func (c *Conn) DelLink(index int) error {
	err := c.change(unix.RTM_DELLINK, 0, linkHeader{index: index}.body())
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return c.linkError(index, "delete", err)
}

// linkIndex is the index in a message's header, which must be whole: a link's or
// an address's.
func linkIndex(b []byte) int { return int(int32(binary.NativeEndian.Uint32(b[4:]))) }

func parseLink(b []byte) Link {
	if len(b) < unix.SizeofIfInfomsg {
		return Link{}
	}
	flags := binary.NativeEndian.Uint32(b[8:])
	l := Link{
		Index:    linkIndex(b),
		PeerNS:   -1,
		Up:       flags&unix.IFF_UP != 0,
		Carrier:  flags&unix.IFF_LOWER_UP != 0,
		Promisc:  flags&unix.IFF_PROMISC != 0,
		AllMulti: flags&unix.IFF_ALLMULTI != 0,
	}
	for kind, value := range netlink.Attributes(b[unix.SizeofIfInfomsg:]) {
		l.set(kind, value)
	}
	return l
}

func (l *Link) set(kind uint16, value []byte) {
	switch kind {
	case unix.IFLA_IFNAME:
		l.Name = netlink.Text(value)
	case unix.IFLA_ADDRESS:
		l.MAC = slices.Clone(value)
	case unix.IFLA_MTU:
		l.MTU = int(number(value))
	case unix.IFLA_TXQLEN:
		l.TxQLen = int(number(value))
	case unix.IFLA_MASTER:
		l.Master = int(number(value))
	case unix.IFLA_LINK:
		l.Peer = int(number(value))
	case unix.IFLA_LINK_NETNSID:
		l.PeerNS = int(int32(number(value)))
	case unix.IFLA_GROUP:
		l.Group = number(value)
	case unix.IFLA_IFALIAS:
		l.Alias = netlink.Text(value)
	case unix.IFLA_OPERSTATE:
		l.Oper = operName(number(value))
	case unix.IFLA_PROMISCUITY:
		l.Promiscuity = int(number(value))
	case unix.IFLA_LINKINFO:
		l.setInfo(value)
	}
}

func operName(state uint32) string {
	names := [...]string{"unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up"}
	if int(state) < len(names) {
		return names[state]
	}
	return fmt.Sprintf("state %d", state)
}

func (l *Link) setInfo(b []byte) {
	for kind, value := range netlink.Attributes(b) {
		switch kind {
		case unix.IFLA_INFO_KIND:
			l.Kind = netlink.Text(value)
		case unix.IFLA_INFO_DATA:
			l.setBridge(value)
		case unix.IFLA_INFO_SLAVE_DATA:
			l.port = parsePort(value)
		}
	}
	if l.Kind != "bridge" {
		l.VLANFiltering, l.DefaultPVID = false, 0
	}
}

func (l *Link) setBridge(b []byte) {
	for kind, value := range netlink.Attributes(b) {
		switch kind {
		case unix.IFLA_BR_VLAN_FILTERING:
			l.VLANFiltering = number(value) != 0
		case unix.IFLA_BR_VLAN_DEFAULT_PVID:
			l.DefaultPVID = uint16(number(value))
		}
	}
}
