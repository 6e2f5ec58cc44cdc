package rtnl

import (
	"encoding/binary"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/netlink"
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
	var info netlink.Body
	info.Uint8(unix.IFLA_BRPORT_MODE, flag(p.Hairpin))
	info.Uint8(unix.IFLA_BRPORT_ISOLATED, flag(p.Isolated))
	body := linkHeader{family: unix.AF_BRIDGE, index: index}.body()
	body.Nest(unix.IFLA_PROTINFO, info)
	return c.linkError(index, "set bridge port", c.change(unix.RTM_SETLINK, 0, body))
}

func flag(on bool) uint8 {
	if on {
		return 1
	}
	return 0
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
	for kind, value := range netlink.Attributes(b) {
		switch kind {
		case unix.IFLA_BRPORT_MODE:
			p.Hairpin = number(value) != 0
		case unix.IFLA_BRPORT_ISOLATED:
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

func (c *Conn) changeVLANs(kind uint16, index int, vlans []VLAN) error {
	if len(vlans) == 0 {
		return nil
	}
	var spec netlink.Body
	for _, info := range vlanRanges(vlans) {
		spec.Bytes(bridgeVLANInfo, info.encode())
	}
	body := linkHeader{family: unix.AF_BRIDGE, index: index}.body()
	body.Nest(unix.IFLA_AF_SPEC, spec)
	return c.change(kind, 0, body)
}

// vlanInfo is struct bridge_vlan_info.
type vlanInfo struct{ flags, id uint16 }

func (v vlanInfo) encode() []byte {
	return binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, v.flags), v.id)
}

// vlanRanges joins VLANs with neighbouring IDs and equal flags. The kernel
// takes no PVID in a range.
func vlanRanges(vlans []VLAN) []vlanInfo {
	vlans = slices.Clone(vlans)
	slices.SortFunc(vlans, func(a, b VLAN) int { return int(a.ID) - int(b.ID) })
	vlans = slices.Compact(vlans)
	var infos []vlanInfo
	for len(vlans) > 0 {
		first, n := vlans[0], 1
		for n < len(vlans) && continues(first, n, vlans[n]) {
			n++
		}
		last := vlans[n-1]
		begin := vlanInfo{id: first.ID, flags: first.flags()}
		if n > 1 {
			begin.flags |= vlanRangeBegin
		}
		infos = append(infos, begin)
		if n > 1 {
			infos = append(infos, vlanInfo{id: last.ID, flags: last.flags() | vlanRangeEnd})
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
		flags |= vlanPVID
	}
	if v.Untagged {
		flags |= vlanUntagged
	}
	return flags
}

// VLANs lists the VLANs of a bridge's port, ordered by ID. The kernel has no
// filter for it: the cost grows with the number of ports.
func (c *Conn) VLANs(index int) ([]VLAN, error) {
	var vlans []VLAN
	body := linkHeader{family: unix.AF_BRIDGE}.body()
	body.Uint32(unix.IFLA_EXT_MASK, extBridgeVLANs)
	err := c.dump(netlink.Request{Type: unix.RTM_GETLINK, Body: body}, func() { vlans = vlans[:0] }, func(data []byte) {
		if len(data) >= unix.SizeofIfInfomsg && linkIndex(data) == index {
			vlans = appendVLANs(vlans, data[unix.SizeofIfInfomsg:])
		}
	})
	if err != nil {
		return nil, c.linkError(index, "list VLANs", err)
	}
	return vlans, nil
}

func appendVLANs(vlans []VLAN, b []byte) []VLAN {
	for kind, spec := range netlink.Attributes(b) {
		if kind != unix.IFLA_AF_SPEC {
			continue
		}
		begin := 0
		for kind, value := range netlink.Attributes(spec) {
			if kind != bridgeVLANInfo || len(value) < sizeofBridgeVLAN {
				continue
			}
			flags, id := binary.NativeEndian.Uint16(value), int(binary.NativeEndian.Uint16(value[2:]))
			if flags&vlanRangeBegin != 0 {
				begin = id
				continue
			}
			from := id
			if flags&vlanRangeEnd != 0 && begin > 0 {
				from = begin
			}
			for n := from; n <= id; n++ {
				vlans = append(vlans, VLAN{ID: uint16(n), PVID: flags&vlanPVID != 0, Untagged: flags&vlanUntagged != 0})
			}
			begin = 0
		}
	}
	return vlans
}
