package rtnl

import (
	"errors"
	"slices"

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
	header := nl.NewIfInfomsg(unix.AF_BRIDGE)
	header.Index = int32(index)
	info := attrNested(unix.IFLA_PROTINFO)
	info.AddRtAttr(nl.IFLA_BRPORT_MODE, flag(p.Hairpin))
	info.AddRtAttr(nl.IFLA_BRPORT_ISOLATED, flag(p.Isolated))
	return c.linkError(index, "set bridge port", c.change(unix.RTM_SETLINK, 0, header, info))
}

func flag(on bool) []byte {
	if on {
		return nl.Uint8Attr(1)
	}
	return nl.Uint8Attr(0)
}

// Port reads a bridge's port; ErrNotPort when the link is none.
func (c *Conn) Port(index int) (Port, error) {
	l, err := c.LinkByIndex(index)
	if err != nil {
		return Port{}, err
	}
	if l.port == nil {
		return Port{}, c.linkError(index, "read bridge port", ErrNotPort)
	}
	return *l.port, nil
}

func parsePort(b []byte) *Port {
	var p Port
	for kind, value := range attributes(b) {
		switch kind {
		case nl.IFLA_BRPORT_MODE:
			p.Hairpin = number(value) != 0
		case nl.IFLA_BRPORT_ISOLATED:
			p.Isolated = number(value) != 0
		}
	}
	return &p
}

// VLAN is one VLAN of a bridge's port.
type VLAN struct {
	ID       uint16
	PVID     bool // frames that arrive untagged belong to it
	Untagged bool // frames leave without its tag
}

// AddVLANs adds VLANs to a bridge's port in one message. A VLAN that is there
// already gets the flags given.
func (c *Conn) AddVLANs(index int, vlans []VLAN) error {
	return c.linkError(index, "add VLANs", c.changeVLANs(unix.RTM_SETLINK, index, vlans))
}

// DelVLANs takes VLANs from a bridge's port in one message; absent ones are no
// error.
func (c *Conn) DelVLANs(index int, ids []uint16) error {
	vlans := make([]VLAN, len(ids))
	for i, id := range ids {
		vlans[i].ID = id
	}
	return c.linkError(index, "delete VLANs", c.changeVLANs(unix.RTM_DELLINK, index, vlans))
}

func (c *Conn) changeVLANs(kind, index int, vlans []VLAN) error {
	if len(vlans) == 0 {
		return nil
	}
	header := nl.NewIfInfomsg(unix.AF_BRIDGE)
	header.Index = int32(index)
	spec := attrNested(unix.IFLA_AF_SPEC)
	for _, info := range vlanRanges(vlans) {
		spec.AddRtAttr(nl.IFLA_BRIDGE_VLAN_INFO, info.Serialize())
	}
	return c.change(kind, 0, header, spec)
}

// vlanRanges joins VLANs with neighbouring IDs and equal flags. The kernel
// takes no PVID in a range.
func vlanRanges(vlans []VLAN) []nl.BridgeVlanInfo {
	vlans = slices.Clone(vlans)
	slices.SortFunc(vlans, func(a, b VLAN) int { return int(a.ID) - int(b.ID) })
	vlans = slices.Compact(vlans)
	var infos []nl.BridgeVlanInfo
	for len(vlans) > 0 {
		first, n := vlans[0], 1
		for n < len(vlans) && continues(first, n, vlans[n]) {
			n++
		}
		last := vlans[n-1]
		begin := nl.BridgeVlanInfo{Vid: first.ID, Flags: first.flags()}
		if n > 1 {
			begin.Flags |= nl.BRIDGE_VLAN_INFO_RANGE_BEGIN
		}
		infos = append(infos, begin)
		if n > 1 {
			infos = append(infos, nl.BridgeVlanInfo{Vid: last.ID, Flags: last.flags() | nl.BRIDGE_VLAN_INFO_RANGE_END})
		}
		vlans = vlans[n:]
	}
	return infos
}

func continues(first VLAN, n int, next VLAN) bool {
	return !first.PVID && !next.PVID && next.Untagged == first.Untagged && int(next.ID) == int(first.ID)+n
}

func (v VLAN) flags() uint16 {
	var flags uint16
	if v.PVID {
		flags |= nl.BRIDGE_VLAN_INFO_PVID
	}
	if v.Untagged {
		flags |= nl.BRIDGE_VLAN_INFO_UNTAGGED
	}
	return flags
}

// VLANs lists the VLANs of a bridge's port, ordered by ID. The kernel has no
// filter for it: the cost grows with the number of ports.
func (c *Conn) VLANs(index int) ([]VLAN, error) {
	var vlans []VLAN
	body := []nl.NetlinkRequestData{
		nl.NewIfInfomsg(unix.AF_BRIDGE),
		attrUint32(unix.IFLA_EXT_MASK, nl.RTEXT_FILTER_BRVLAN_COMPRESSED),
	}
	err := c.dump(unix.RTM_GETLINK, body, func() { vlans = vlans[:0] }, func(m message) {
		if len(m.data) >= unix.SizeofIfInfomsg && int(nl.DeserializeIfInfomsg(m.data).Index) == index {
			vlans = appendVLANs(vlans, m.data[unix.SizeofIfInfomsg:])
		}
	})
	if err != nil {
		return nil, c.linkError(index, "list VLANs", err)
	}
	return vlans, nil
}

func appendVLANs(vlans []VLAN, b []byte) []VLAN {
	for kind, spec := range attributes(b) {
		if kind != unix.IFLA_AF_SPEC {
			continue
		}
		begin := 0
		for kind, value := range attributes(spec) {
			if kind != nl.IFLA_BRIDGE_VLAN_INFO || len(value) < nl.SizeofBridgeVlanInfo {
				continue
			}
			info := nl.DeserializeBridgeVlanInfo(value)
			if info.Flags&nl.BRIDGE_VLAN_INFO_RANGE_BEGIN != 0 {
				begin = int(info.Vid)
				continue
			}
			from := int(info.Vid)
			if info.Flags&nl.BRIDGE_VLAN_INFO_RANGE_END != 0 && begin > 0 {
				from = begin
			}
			for id := from; id <= int(info.Vid); id++ {
				vlans = append(vlans, VLAN{ID: uint16(id), PVID: info.PortVID(), Untagged: info.EngressUntag()})
			}
			begin = 0
		}
	}
	return vlans
}
