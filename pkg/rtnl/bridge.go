package rtnl

import (
	"errors"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrNotPort says that a link is no port of a bridge.
var ErrNotPort = errors.New("not a port of a bridge")

// Port is how a bridge treats one of its ports.
type Port struct {
	Hairpin  bool // a frame may leave through the port it came in by
	Isolated bool // no traffic with other isolated ports
}

// SetPort sets all of Port on a bridge's port in one message.
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

// Port reads a bridge's port; ErrNotPort when the link is none. The library reads the ports of all bridges.
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

func attributes(b []byte) map[uint16][]byte {
	values := map[uint16][]byte{}
	attrs, _ := nl.ParseRouteAttr(b) // the kernel's are whole
	for _, a := range attrs {
		values[a.Attr.Type&^unix.NLA_F_NESTED] = a.Value
	}
	return values
}

// VLAN is one VLAN of a bridge's port.
type VLAN struct {
	ID       uint16
	PVID     bool // frames that arrive untagged belong to it
	Untagged bool // frames leave without its tag
}

// AddVLANs adds VLANs to a bridge's port. The library sends a message for each.
// A VLAN that is there already gets the flags given.
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

// DelVLAN takes a VLAN from a bridge's port. That it is absent is no error.
func (c *Conn) DelVLAN(index int, id uint16) error {
	err := c.use(func(h *netlink.Handle) error {
		return h.BridgeVlanDel(byIndex(index), id, false, false, false, false)
	})
	return c.linkError(index, "delete VLAN", err)
}

// VLANs lists the VLANs of a bridge's port, ordered by ID. The kernel has no filter: the cost grows with all ports.
func (c *Conn) VLANs(index int) (vlans []VLAN, err error) {
	err = c.use(func(h *netlink.Handle) error {
		all, err := h.BridgeVlanList()
		vlans = nil
		for _, v := range all[int32(index)] {
			vlans = append(vlans, VLAN{ID: v.Vid, PVID: v.PortVID(), Untagged: v.EngressUntag()})
		}
		return err
	})
	return complete(vlans, c.linkError(index, "list VLANs", err))
}
