package rtnl

import (
	"errors"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrNotPort means that a link is not a port of a bridge.
var ErrNotPort = errors.New("not a port of a bridge")

// Port contains the flags of a bridge's port.
type Port struct {
	Hairpin  bool // a frame may leave through the port on which it arrived
	Isolated bool // the port exchanges no frames with other isolated ports
}

// SetPort sets the flags of a bridge's port in one message.
func (c *Conn) SetPort(index int, p Port) error {
	info := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	info.AddRtAttr(unix.IFLA_BRPORT_MODE, flag(p.Hairpin))
	info.AddRtAttr(unix.IFLA_BRPORT_ISOLATED, flag(p.Isolated))
	_, err := c.send(unix.RTM_SETLINK, unix.NLM_F_ACK, header(unix.AF_BRIDGE, index), info)
	return c.linkError(index, "set bridge port", err)
}

func flag(on bool) []byte {
	if on {
		return nl.Uint8Attr(1)
	}
	return nl.Uint8Attr(0)
}

// Port returns the flags of a bridge's port, or an error that matches ErrNotPort. It does not use the library, which
// reads the ports of all bridges.
func (c *Conn) Port(index int) (Port, error) {
	answers, err := c.send(unix.RTM_GETLINK, 0, header(unix.AF_UNSPEC, index), noStatistics())
	if err != nil {
		return Port{}, c.linkError(index, "read bridge port", err)
	}
	info := attributes(attributes(answers[0][unix.SizeofIfInfomsg:])[unix.IFLA_LINKINFO])
	if string(info[unix.IFLA_INFO_SLAVE_KIND]) != "bridge\x00" {
		return Port{}, c.linkError(index, "read bridge port", ErrNotPort)
	}
	port := attributes(info[unix.IFLA_INFO_SLAVE_DATA])
	return Port{
		Hairpin:  slices.Equal(port[unix.IFLA_BRPORT_MODE], flag(true)),
		Isolated: slices.Equal(port[unix.IFLA_BRPORT_ISOLATED], flag(true)),
	}, nil
}

// attributes returns the values of netlink attributes by kind.
func attributes(b []byte) map[uint16][]byte {
	values := map[uint16][]byte{}
	attrs, _ := nl.ParseRouteAttr(b) // the kernel's are well-formed
	for _, a := range attrs {
		values[a.Attr.Type&^unix.NLA_F_NESTED] = a.Value
	}
	return values
}

// VLAN is one VLAN of a bridge's port.
type VLAN struct {
	ID       uint16
	PVID     bool // untagged frames that arrive belong to this VLAN
	Untagged bool // frames of this VLAN leave without a tag
}

// AddVLANs adds VLANs to a bridge's port in one message. It replaces the flags of VLANs that the port already has.
func (c *Conn) AddVLANs(index int, vlans []VLAN) error {
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	for _, v := range vlans {
		info := nl.BridgeVlanInfo{Vid: v.ID}
		if v.PVID {
			info.Flags |= nl.BRIDGE_VLAN_INFO_PVID
		}
		if v.Untagged {
			info.Flags |= nl.BRIDGE_VLAN_INFO_UNTAGGED
		}
		spec.AddRtAttr(nl.IFLA_BRIDGE_VLAN_INFO, info.Serialize())
	}
	_, err := c.send(unix.RTM_SETLINK, unix.NLM_F_ACK, header(unix.AF_BRIDGE, index), spec)
	return c.linkError(index, "add VLANs", err)
}

// DelVLAN removes a VLAN from a bridge's port.
func (c *Conn) DelVLAN(index int, id uint16) error {
	err := c.retry(func(h *netlink.Handle) error {
		return h.BridgeVlanDel(byIndex(index), id, false, false, false, false)
	})
	return c.linkError(index, "delete VLAN", err)
}

// VLANs lists the VLANs of a bridge's port, ordered by ID. The cost grows with the number of all ports, because the
// kernel cannot filter by port.
func (c *Conn) VLANs(index int) (vlans []VLAN, err error) {
	err = c.retry(func(h *netlink.Handle) error {
		all, err := h.BridgeVlanList()
		vlans = nil
		for _, v := range all[int32(index)] {
			vlans = append(vlans, VLAN{ID: v.Vid, PVID: v.PortVID(), Untagged: v.EngressUntag()})
		}
		return err
	})
	return wholeList(vlans, c.linkError(index, "list VLANs", err))
}
