package rtnl

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nlattr"
)

// Link is a network interface as the kernel reports it.
type Link struct {
	Index  int
	Name   string
	Kind   string // "veth", "bridge", ...; empty for hardware and lo
	MAC    net.HardwareAddr
	MTU    int
	TxQLen int
	Master int // index of the bridge or VRF to which the link belongs; 0 = none
	Peer   int // index of a pair's other end, or of the link below a macvlan, ipvlan or vlan; 0 = none
	PeerNS int // the kernel's number for the namespace of Peer; -1 = this namespace, or no Peer
	Group  uint32
	Alias  string

	PermMAC net.HardwareAddr // permanent address of hardware, even if MAC was changed; nil = none
	Parent  string           // the device of the link, for example a PCI address

	Up       bool   // administrative state
	Carrier  bool   // IFF_LOWER_UP
	Oper     string // RFC 2863: "up", "down", "lowerlayerdown", "unknown", ...
	Promisc  bool   // as set by an administrator
	AllMulti bool   // as set by an administrator

	Mode string // of a macvlan or ipvlan, as ip(8) writes it
	VLAN int    // of a vlan

	// Of a tap only.
	MultiQueue bool
	UID, GID   uint32 // user and group that may open the tap without CAP_NET_ADMIN; 0 = root, or not set

	// Of a bridge only.
	VLANFiltering bool
	DefaultPVID   uint16

	Table uint32 // of a VRF only: the table of its routes
}

// IsHardware reports whether the link is a device that outlives its namespace. The check of Kind is needed because a
// VLAN has the permanent address of its device.
func (l Link) IsHardware() bool { return l.PermMAC != nil && l.Kind == "" }

// decodeLink returns the link, and stores its name for error texts.
func (c *Conn) decodeLink(n netlink.Link) Link {
	a := n.Attrs()
	l := Link{
		Index: a.Index, Name: a.Name, MAC: a.HardwareAddr, MTU: a.MTU, TxQLen: a.TxQLen,
		Master: a.MasterIndex, Peer: a.ParentIndex, PeerNS: a.NetNsID, Group: a.Group, Alias: a.Alias,
		PermMAC: a.PermHWAddr, Parent: a.ParentDev,
		Up: a.RawFlags&unix.IFF_UP != 0, Carrier: a.RawFlags&unix.IFF_LOWER_UP != 0,
		Oper:    strings.ReplaceAll(a.OperState.String(), "-", ""), // as ip(8) writes it
		Promisc: a.RawFlags&unix.IFF_PROMISC != 0, AllMulti: a.RawFlags&unix.IFF_ALLMULTI != 0,
	}
	l.Kind = n.Type()
	switch n := n.(type) {
	case *netlink.Device:
		l.Kind = "" // the library calls it "device"
	case *netlink.Bridge:
		l.VLANFiltering = n.VlanFiltering != nil && *n.VlanFiltering
		if n.VlanDefaultPVID != nil {
			l.DefaultPVID = *n.VlanDefaultPVID
		}
	case *netlink.Macvlan:
		l.Mode = macvlanModes()[n.Mode]
	case *netlink.IPVlan:
		l.Mode = ipvlanModes()[n.Mode]
	case *netlink.Vlan:
		l.VLAN = n.VlanId
	case *netlink.Tuntap:
		l.Kind = "tun" // the library calls it "tuntap"
		l.MultiQueue, l.UID, l.GID = n.Flags&netlink.TUNTAP_MULTI_QUEUE != 0, n.Owner, n.Group
	case *netlink.Vrf:
		l.Table = n.Table
	}
	c.names.Store(l.Index, l.Name)
	return l
}

// Link returns the link with a name. The kernel also finds a link by an alternative name of at most 15 bytes.
func (c *Conn) Link(name string) (Link, error) {
	// The library would search alternative names for a longer name.
	if name == "" || len(name) >= unix.IFNAMSIZ {
		return Link{}, fmt.Errorf("link %q: %w", name, ErrNoLink)
	}
	return c.LinkByAnyName(name)
}

// LinkByAnyName returns the link with a name or an alternative name.
func (c *Conn) LinkByAnyName(name string) (Link, error) {
	l, err := c.getLink(func(h *netlink.Handle) (netlink.Link, error) { return h.LinkByName(name) })
	return l, wrap(fmt.Sprintf("link %q", name), err)
}

// LinkByIndex returns the link with an index.
func (c *Conn) LinkByIndex(index int) (Link, error) {
	l, err := c.getLink(func(h *netlink.Handle) (netlink.Link, error) { return h.LinkByIndex(index) })
	return l, c.linkError(index, "read", err)
}

func (c *Conn) getLink(get func(h *netlink.Handle) (netlink.Link, error)) (l Link, err error) {
	err = c.retry(func(h *netlink.Handle) error {
		found, err := get(h)
		if err == nil {
			l = c.decodeLink(found)
		}
		return err
	})
	return l, err
}

// IsPairEnd reports whether the link is an end of a pair.
func (l Link) IsPairEnd() bool { return l.Kind == "veth" || l.Kind == "netkit" }

// OtherEnd returns the end of a pair in c's namespace. l is the pair's end in the namespace of other. The error matches
// ErrNoLink if c's namespace has no such end. A container chooses the indexes of its links, so the peer index of l is
// not sufficient: the kernel must report that the returned end is connected to the namespace of other.
func (c *Conn) OtherEnd(l Link, other *Conn) (Link, error) {
	if !l.IsPairEnd() || l.Peer == 0 {
		return Link{}, ErrNoLink
	}
	end, err := c.LinkByIndex(l.Peer)
	if err != nil {
		return Link{}, err
	}
	isConnected, err := c.ConnectsTo(end, other)
	if err == nil && (!isConnected || end.Kind != l.Kind || end.Peer != l.Index) {
		err = ErrNoLink
	}
	if err != nil {
		return Link{}, err
	}
	return end, nil
}

// Peer returns Index, Name, Kind and MTU of the other end of a pair, which may be in another namespace. The error
// matches ErrNoLink if the kernel does not show that end.
func (c *Conn) Peer(l Link) (Link, error) {
	if !l.IsPairEnd() || l.Peer == 0 {
		return Link{}, ErrNoLink
	}
	attrs := []*nl.RtAttr{noStatistics()}
	if l.PeerNS != -1 {
		attrs = append(attrs, nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(l.PeerNS))))
	}
	answers, err := c.send(unix.RTM_GETLINK, 0, header(unix.AF_UNSPEC, l.Peer), attrs...)
	if err != nil {
		return Link{}, fmt.Errorf("peer of link %q: %w: %w", l.Name, ErrNoLink, err)
	}
	found, err := netlink.LinkDeserialize(nil, answers[0])
	// Kernels before 4.16 ignore the namespace and return a link of this one.
	if err != nil || found.Type() != l.Kind || found.Attrs().ParentIndex != l.Index {
		return Link{}, ErrNoLink
	}
	a := found.Attrs()
	return Link{Index: a.Index, Name: a.Name, Kind: found.Type(), MTU: a.MTU}, nil
}

// ConnectsTo reports whether l, a link in c's namespace, is an end of a pair whose peer is in the namespace of other.
func (c *Conn) ConnectsTo(l Link, other *Conn) (bool, error) {
	if !l.IsPairEnd() {
		return false, nil
	}
	return c.hasPeerIn(l, other)
}

// LinkBelow returns the link below l, for example the master of a macvlan, if it is in the namespace of other. l is in
// c's namespace. The error matches ErrNoLink if other has no such link.
func (c *Conn) LinkBelow(l Link, other *Conn) (Link, error) {
	hasLink := false
	var err error
	if l.Peer != 0 && !l.IsPairEnd() {
		hasLink, err = c.hasPeerIn(l, other)
	}
	if err != nil || !hasLink {
		return Link{}, cmp.Or(err, ErrNoLink)
	}
	return other.LinkByIndex(l.Peer)
}

// hasPeerIn reports whether l's Peer is a link in the namespace of other.
func (c *Conn) hasPeerIn(l Link, other *Conn) (bool, error) {
	if other == c {
		return l.PeerNS == -1, nil
	}
	n, err := other.netns()
	if err != nil {
		return false, err
	}
	defer n.Close()
	id := -1
	err = c.retry(func(h *netlink.Handle) (err error) {
		id, err = h.GetNetNsIdByFd(n.FD())
		return err
	})
	return id != -1 && id == l.PeerNS, wrap("read number of a network namespace", err)
}

// Links lists all links of the namespace. The cost grows with their number.
func (c *Conn) Links() ([]Link, error) { return c.links("list links") }

// Ports lists the ports of a bridge or the members of a VRF, by its index. The cost grows with their number.
func (c *Conn) Ports(bridge int) ([]Link, error) {
	return c.links("list ports of "+c.name(bridge), nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(bridge))))
}

// links lists links. The library's LinkList has no filter and requests statistics and virtual functions.
func (c *Conn) links(what string, filter ...*nl.RtAttr) ([]Link, error) {
	filter = append(filter, noStatistics())
	answers, err := c.send(unix.RTM_GETLINK, unix.NLM_F_DUMP, header(unix.AF_UNSPEC, 0), filter...)
	if err != nil {
		return nil, wrap(what, err)
	}
	links := make([]Link, len(answers))
	for i, answer := range answers {
		found, err := netlink.LinkDeserialize(nil, answer)
		if err != nil {
			return nil, wrap(what, err)
		}
		links[i] = c.decodeLink(found)
	}
	return links, nil
}

// LinkSummaries lists all links with only Index, Name, Kind, Master and Alias, which costs less than Links.
func (c *Conn) LinkSummaries() ([]Link, error) {
	answers, err := c.send(unix.RTM_GETLINK, unix.NLM_F_DUMP, header(unix.AF_UNSPEC, 0), noStatistics())
	links := make([]Link, len(answers))
	for i, answer := range answers {
		links[i] = readSummary(answer)
	}
	return wholeList(links, wrap("list links", err))
}

func readSummary(answer []byte) (l Link) {
	msg := nl.DeserializeIfInfomsg(answer)
	attrs, _ := nl.ParseRouteAttr(answer[msg.Len():]) // the kernel's are well-formed
	l.Index = int(msg.Index)
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.IFLA_IFNAME:
			l.Name = unix.ByteSliceToString(a.Value)
		case unix.IFLA_IFALIAS:
			l.Alias = unix.ByteSliceToString(a.Value)
		case unix.IFLA_MASTER:
			l.Master = int(number(a.Value))
		case unix.IFLA_LINKINFO: // without a kind for hardware that is a port of a bridge or bond
			l.Kind = unix.ByteSliceToString(attributes(a.Value)[unix.IFLA_INFO_KIND])
		}
	}
	return l
}

// noStatistics returns the attribute by which a request omits the statistics of links.
func noStatistics() *nl.RtAttr {
	const skipStats = 1 << 3 // RTEXT_FILTER_SKIP_STATS
	return nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats))
}

// LinkChange has the values that SetLink sets. Zero fields are not changed.
type LinkChange struct {
	Up       *bool
	Master   *int // index of a bridge or VRF; 0 removes the link from it
	Alias    *string
	MAC      net.HardwareAddr
	MTU      int
	Group    *uint32
	TxQLen   *int
	Promisc  *bool
	AllMulti *bool
	Name     string
	// Netns is a socket in the namespace to which the link moves before all other changes. If the link's present name
	// is taken there, the link moves under Name. The error matches EEXIST if both names are taken, or if the present
	// one is and Name is empty; the link stays. If only Name is taken, the link has moved in spite of that error.
	Netns *Conn
}

// SetLink changes a link in one message. It does not use the library, which sends a message for each change.
func (c *Conn) SetLink(index int, ch LinkChange) error {
	msg := header(unix.AF_UNSPEC, index)
	flags := map[uint32]*bool{unix.IFF_UP: ch.Up, unix.IFF_PROMISC: ch.Promisc, unix.IFF_ALLMULTI: ch.AllMulti}
	for flag, on := range flags {
		if on != nil {
			msg.Change |= flag
		}
		if on != nil && *on {
			msg.Flags |= flag
		}
	}
	attrs := ch.attrs()
	if ch.Netns != nil {
		n, err := ch.Netns.netns()
		if err != nil {
			return c.linkError(index, "move", err)
		}
		defer n.Close()
		attrs = append(attrs, nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(n.FD()))))
	}
	if msg.Change == 0 && len(attrs) == 0 {
		return nil
	}
	_, err := c.send(unix.RTM_NEWLINK, unix.NLM_F_ACK, msg, attrs...)
	return c.linkError(index, "change", err)
}

func (ch LinkChange) attrs() (attrs []*nl.RtAttr) {
	add := func(kind int, value []byte) { attrs = append(attrs, nl.NewRtAttr(kind, value)) }
	if ch.MAC != nil {
		add(unix.IFLA_ADDRESS, ch.MAC)
	}
	if ch.MTU != 0 {
		add(unix.IFLA_MTU, nl.Uint32Attr(uint32(ch.MTU)))
	}
	if ch.Group != nil {
		add(unix.IFLA_GROUP, nl.Uint32Attr(*ch.Group))
	}
	if ch.TxQLen != nil {
		add(unix.IFLA_TXQLEN, nl.Uint32Attr(uint32(*ch.TxQLen)))
	}
	if ch.Alias != nil {
		add(unix.IFLA_IFALIAS, []byte(*ch.Alias))
	}
	if ch.Name != "" {
		add(unix.IFLA_IFNAME, nl.ZeroTerminated(ch.Name))
	}
	if ch.Master != nil {
		add(unix.IFLA_MASTER, nl.Uint32Attr(uint32(*ch.Master)))
	}
	return attrs
}

// DelLink deletes a link. If the link is an end of a pair, the kernel also deletes the other end.
func (c *Conn) DelLink(index int) error {
	err := c.retry(func(h *netlink.Handle) error { return h.LinkDel(byIndex(index)) })
	return c.linkError(index, "delete", ignore(err, unix.ENODEV))
}

// byIndex returns a link for functions of the library that use only its index.
func byIndex(index int) netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}}
}

// Addr is an address of a link.
type Addr struct {
	Prefix        netip.Prefix // the address with its prefix length
	NoDAD         bool         // skip duplicate address detection (IPv6)
	NoPrefixRoute bool         // keeps the kernel from adding a route to Prefix

	// AddAddr ignores the fields below.
	Permanent bool // the address does not expire
	Tentative bool // duplicate address detection is in progress
	DADFailed bool // duplicate address detection found a duplicate
}

// Addrs lists the addresses of both families of a link.
func (c *Conn) Addrs(index int) (addrs []Addr, err error) {
	copies, err := c.AddrCopies(index)
	for _, a := range copies {
		addrs = append(addrs, Addr{
			Prefix: a.Prefix(), NoDAD: a.Has(unix.IFA_F_NODAD), NoPrefixRoute: a.Has(unix.IFA_F_NOPREFIXROUTE),
			Permanent: a.Has(unix.IFA_F_PERMANENT), Tentative: a.Has(unix.IFA_F_TENTATIVE),
			DADFailed: a.Has(unix.IFA_F_DADFAILED),
		})
	}
	return addrs, err
}

// EachAddr calls do for each address of the namespace, with the index of its link. If the list changes while it is
// read, do may be called more than once for an address. It keeps no list, which a container can make long.
func (c *Conn) EachAddr(do func(link int, addr netip.Addr)) error {
	req := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	msg := nl.NewIfAddrmsg(unix.AF_UNSPEC)
	req.AddData(msg)
	err := c.retry(func(*netlink.Handle) error {
		req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: c.raw}
		return req.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWADDR, func(answer []byte) bool {
			if addr := localAddr(answer[msg.Len():]); addr.IsValid() {
				do(int(nl.DeserializeIfAddrmsg(answer).Index), addr)
			}
			return true
		})
	})
	return wrap("list addresses", err)
}

// PeerAddrs returns the addresses of a family, unix.AF_INET or unix.AF_INET6, that the other end of a pair has. l is an
// end in c's namespace. The other end may be in another namespace, which need not have a path.
func (c *Conn) PeerAddrs(l Link, family int) (addrs []netip.Addr, err error) {
	msg := nl.NewIfAddrmsg(family)
	msg.Index = uint32(l.Peer)
	var attrs []*nl.RtAttr
	if l.PeerNS != -1 {
		attrs = append(attrs, nl.NewRtAttr(unix.IFA_TARGET_NETNSID, nl.Uint32Attr(uint32(l.PeerNS))))
	}
	answers, err := c.send(unix.RTM_GETADDR, unix.NLM_F_DUMP, msg, attrs...)
	for _, answer := range answers {
		addr, link := localAddr(answer[msg.Len():]), int(nl.DeserializeIfAddrmsg(answer).Index)
		if link == l.Peer && addr.IsValid() {
			addrs = append(addrs, addr)
		}
	}
	return addrs, wrap(fmt.Sprintf("addresses of the peer of link %q", l.Name), err)
}

// localAddr returns the address in the attributes of a message: IFA_LOCAL or, if that is missing, IFA_ADDRESS.
func localAddr(attrs []byte) netip.Addr {
	return cmp.Or(addrOf(nlattr.Get(attrs, unix.IFA_LOCAL)), addrOf(nlattr.Get(attrs, unix.IFA_ADDRESS)))
}

// HasNeighbor reports whether the kernel knows the link-layer address of a neighbor on a link, because the neighbor
// recently answered ARP or neighbor discovery. It returns false on kernels before 5.0.
func (c *Conn) HasNeighbor(index int, addr netip.Addr) bool {
	const known = unix.NUD_REACHABLE | unix.NUD_STALE | unix.NUD_DELAY | unix.NUD_PROBE | unix.NUD_PERMANENT
	header := &netlink.Ndmsg{Family: uint8(FamilyOf(addr)), Index: uint32(index)}
	answers, err := c.send(unix.RTM_GETNEIGH, 0, header, nl.NewRtAttr(netlink.NDA_DST, addr.AsSlice()))
	return err == nil && len(answers) > 0 && binary.NativeEndian.Uint16(answers[0][8:])&known != 0
}

// AddAddr adds an address to a link. The broadcast address is the last address of the subnet. The error matches EEXIST
// if the link has the address.
func (c *Conn) AddAddr(index int, a Addr) error {
	n := &netlink.Addr{IPNet: ipNet(a.Prefix)}
	if a.NoDAD {
		n.Flags |= unix.IFA_F_NODAD
	}
	if a.NoPrefixRoute {
		n.Flags |= unix.IFA_F_NOPREFIXROUTE
	}
	err := c.retryCreate(func(h *netlink.Handle) error { return h.AddrAdd(byIndex(index), n) })
	return c.linkError(index, fmt.Sprintf("add address %s", a.Prefix), err)
}

// DelAddr removes an address from a link. It returns nil if the link does not have the address, or does not exist.
func (c *Conn) DelAddr(index int, p netip.Prefix) error {
	err := c.retry(func(h *netlink.Handle) error {
		return h.AddrDel(byIndex(index), &netlink.Addr{IPNet: ipNet(p), Broadcast: net.IPv4zero})
	})
	return c.linkError(index, fmt.Sprintf("delete address %s", p), ignore(err, unix.EADDRNOTAVAIL, unix.ENODEV))
}

func addrOf(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
