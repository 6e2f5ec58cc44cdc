package rtnl

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink/nl"
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
	// The kernel calls a longer name out of range; it is as absent as another.
	if name == "" || len(name) >= unix.IFNAMSIZ {
		return Link{}, fmt.Errorf("link %q: %w", name, ErrNoLink)
	}
	l, err := c.getLink(nl.NewIfInfomsg(unix.AF_UNSPEC), attrString(unix.IFLA_IFNAME, name))
	if errors.Is(err, unix.ENODEV) {
		err = ErrNoLink
	}
	if err != nil {
		return Link{}, fmt.Errorf("link %q: %w", name, err)
	}
	return l, nil
}

// LinkByIndex finds a link by its index.
func (c *Conn) LinkByIndex(index int) (Link, error) {
	l, err := c.getLink(linkHeader(index))
	if err != nil {
		return Link{}, c.linkError(index, "read", err)
	}
	return l, nil
}

func (c *Conn) getLink(body ...nl.NetlinkRequestData) (Link, error) {
	body = append(body, attrUint32(unix.IFLA_EXT_MASK, extSkipStats))
	var l Link
	err := c.get(unix.RTM_GETLINK, body, func(m message) {
		l = parseLink(m.data)
		c.names[l.Index] = l.Name
	})
	return l, err
}

const extSkipStats = 1 << 3 // RTEXT_FILTER_SKIP_STATS

// Links lists all links of the namespace. The cost grows with their number.
func (c *Conn) Links() ([]Link, error) { return c.links("list of links") }

// Ports lists the ports of a bridge, by the bridge's index. The cost grows with
// their number.
func (c *Conn) Ports(bridge int) ([]Link, error) {
	return c.links("ports of "+c.name(bridge), attrUint32(unix.IFLA_MASTER, uint32(bridge)))
}

func (c *Conn) links(what string, filter ...nl.NetlinkRequestData) ([]Link, error) {
	var links []Link
	body := append([]nl.NetlinkRequestData{nl.NewIfInfomsg(unix.AF_UNSPEC), attrUint32(unix.IFLA_EXT_MASK, extSkipStats)}, filter...)
	err := c.dump(unix.RTM_GETLINK, body, func() { links = links[:0] }, func(m message) {
		l := parseLink(m.data)
		c.names[l.Index] = l.Name
		links = append(links, l)
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
	header := linkHeader(index)
	setFlag(header, unix.IFF_UP, ch.Up)
	setFlag(header, unix.IFF_PROMISC, ch.Promisc)
	setFlag(header, unix.IFF_ALLMULTI, ch.AllMulti)
	body := append([]nl.NetlinkRequestData{header}, ch.attributes()...)
	if len(body) == 1 && header.Change == 0 {
		return nil
	}
	return c.linkError(index, "change", c.change(unix.RTM_NEWLINK, 0, body...))
}

func (ch Change) attributes() []nl.NetlinkRequestData {
	var attrs []nl.NetlinkRequestData
	if ch.MAC != nil {
		attrs = append(attrs, nl.NewRtAttr(unix.IFLA_ADDRESS, ch.MAC))
	}
	if ch.MTU != 0 {
		attrs = append(attrs, attrUint32(unix.IFLA_MTU, uint32(ch.MTU)))
	}
	if ch.Group != nil {
		attrs = append(attrs, attrUint32(unix.IFLA_GROUP, *ch.Group))
	}
	if ch.TxQLen != nil {
		attrs = append(attrs, attrUint32(unix.IFLA_TXQLEN, uint32(*ch.TxQLen)))
	}
	if ch.Alias != nil {
		attrs = append(attrs, nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(*ch.Alias)))
	}
	if ch.Master != nil {
		attrs = append(attrs, attrUint32(unix.IFLA_MASTER, uint32(*ch.Master)))
	}
	return attrs
}

func setFlag(header *nl.IfInfomsg, flag uint32, on *bool) {
	if on == nil {
		return
	}
	header.Change |= flag
	if *on {
		header.Flags |= flag
	}
}

// DelLink deletes a link, and a veth's other end with it. That the link is
// gone already is no error.
func (c *Conn) DelLink(index int) error {
	err := c.change(unix.RTM_DELLINK, 0, linkHeader(index))
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return c.linkError(index, "delete", err)
}

func linkHeader(index int) *nl.IfInfomsg {
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index = int32(index)
	return header
}

func parseLink(b []byte) Link {
	if len(b) < unix.SizeofIfInfomsg {
		return Link{}
	}
	header := nl.DeserializeIfInfomsg(b)
	l := Link{
		Index:    int(header.Index),
		PeerNS:   -1,
		Up:       header.Flags&unix.IFF_UP != 0,
		Carrier:  header.Flags&unix.IFF_LOWER_UP != 0,
		Promisc:  header.Flags&unix.IFF_PROMISC != 0,
		AllMulti: header.Flags&unix.IFF_ALLMULTI != 0,
	}
	for kind, value := range attributes(b[unix.SizeofIfInfomsg:]) {
		l.set(kind, value)
	}
	return l
}

func (l *Link) set(kind uint16, value []byte) {
	switch kind {
	case unix.IFLA_IFNAME:
		l.Name = text(value)
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
		l.Alias = text(value)
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
	for kind, value := range attributes(b) {
		switch kind {
		case nl.IFLA_INFO_KIND:
			l.Kind = text(value)
		case nl.IFLA_INFO_DATA:
			l.setBridge(value)
		case nl.IFLA_INFO_SLAVE_DATA:
			l.port = parsePort(value)
		}
	}
	if l.Kind != "bridge" {
		l.VLANFiltering, l.DefaultPVID = false, 0
	}
}

func (l *Link) setBridge(b []byte) {
	for kind, value := range attributes(b) {
		switch kind {
		case nl.IFLA_BR_VLAN_FILTERING:
			l.VLANFiltering = number(value) != 0
		case nl.IFLA_BR_VLAN_DEFAULT_PVID:
			l.DefaultPVID = uint16(number(value))
		}
	}
}
