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

// Port reads a bridge's port; ErrNotPort when the link is none. The library's
// LinkGetProtinfo reads the ports of all bridges.
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

// AddVLANs adds VLANs to a bridge's port, neighbours in one message. A VLAN that
// is there already gets the flags given.
func (c *Conn) AddVLANs(index int, vlans []VLAN) error {
	for _, r := range vlanRanges(vlans) {
		err := c.use(func(h *netlink.Handle) error {
			return h.BridgeVlanAddRange(at(index), r.ID, r.last, r.PVID, r.Untagged, false, false)
		})
		if err != nil {
			return c.linkError(index, "add VLANs", err)
		}
	}
	return nil
}

// DelVLANs takes VLANs from a bridge's port, neighbours in one message; absent
// ones are no error.
func (c *Conn) DelVLANs(index int, ids []uint16) error {
	vlans := make([]VLAN, len(ids))
	for i, id := range ids {
		vlans[i].ID = id
	}
	for _, r := range vlanRanges(vlans) {
		err := c.use(func(h *netlink.Handle) error {
			return h.BridgeVlanDelRange(at(index), r.ID, r.last, false, false, false, false)
		})
		if err != nil {
			return c.linkError(index, "delete VLANs", err)
		}
	}
	return nil
}

// vlanRange is one VLAN, or VLANs with neighbouring IDs and equal flags.
type vlanRange struct {
	VLAN        // the first
	last uint16 // 0 = there is only one
}

// vlanRanges joins VLANs with neighbouring IDs and equal flags. The kernel
// takes no PVID in a range.
func vlanRanges(vlans []VLAN) (ranges []vlanRange) {
	vlans = slices.Clone(vlans)
	slices.SortFunc(vlans, func(a, b VLAN) int { return int(a.ID) - int(b.ID) })
	for _, v := range slices.Compact(vlans) {
		if n := len(ranges) - 1; n >= 0 && ranges[n].continues(v) {
			ranges[n].last = v.ID
		} else {
			ranges = append(ranges, vlanRange{VLAN: v})
		}
	}
	return ranges
}

func (r vlanRange) continues(next VLAN) bool {
	return !r.PVID && !next.PVID && r.Untagged == next.Untagged && next.ID == max(r.ID, r.last)+1
}

// VLANs lists the VLANs of a bridge's port, ordered by ID. The kernel has no
// filter for it: the cost grows with the number of ports.
func (c *Conn) VLANs(index int) (vlans []VLAN, err error) {
	err = c.use(func(h *netlink.Handle) error {
		all, err := h.BridgeVlanList()
		vlans = nil
		for _, v := range all[int32(index)] {
			vlans = append(vlans, VLAN{ID: v.Vid, PVID: v.PortVID(), Untagged: v.EngressUntag()})
		}
		return err
	})
	if err != nil {
		return nil, c.linkError(index, "list VLANs", err)
	}
	return vlans, nil
}
