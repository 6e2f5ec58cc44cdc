package rtnl

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Feature is an offload of a link, by ethtool's words.
type Feature struct {
	Active, Wanted bool
	Fixed          bool // cannot be changed
}

// Number is a size or a count that a driver has, and the largest one that it can have.
type Number struct{ Is, Most uint32 }

// EthtoolGroup is a kind of numbers.
type EthtoolGroup struct {
	get, set uint8
	// Keys are ethtool's names, in the order of their attributes: after the header the most of each, then each.
	Keys []string
}

// EthtoolGroups are the numbers of ethtool that are known here.
func EthtoolGroups() map[string]EthtoolGroup {
	return map[string]EthtoolGroup{
		"rings": {unix.ETHTOOL_MSG_RINGS_GET, unix.ETHTOOL_MSG_RINGS_SET,
			[]string{"rx", "rx-mini", "rx-jumbo", "tx"}},
		"channels": {unix.ETHTOOL_MSG_CHANNELS_GET, unix.ETHTOOL_MSG_CHANNELS_SET,
			[]string{"rx", "tx", "other", "combined"}},
	}
}

// Numbers reads the numbers that a link of the calling thread's namespace has.
func (g EthtoolGroup) Numbers(index int) (map[string]Number, error) {
	answers, err := ethtool(g.get, index)
	all := map[string]Number{}
	for _, a := range answers {
		has := attributes(a)
		for i, key := range g.Keys {
			if is, most := has[uint16(2+len(g.Keys)+i)], has[uint16(2+i)]; len(is) == 4 && len(most) == 4 {
				all[key] = Number{binary.NativeEndian.Uint32(is), binary.NativeEndian.Uint32(most)}
			}
		}
	}
	return all, err
}

// Set sets one of the numbers.
func (g EthtoolGroup) Set(index int, key string, number uint32) error {
	at := 2 + len(g.Keys) + slices.Index(g.Keys, key)
	_, err := ethtool(g.set, index, nl.NewRtAttr(at, nl.Uint32Attr(number)))
	return err
}

// Features reads all features that the kernel knows, as a link of the calling thread's namespace has them.
func Features(index int) (map[string]Feature, error) {
	answers, err := ethtool(unix.ETHTOOL_MSG_FEATURES_GET, index)
	all := map[string]Feature{}
	each := func(kind uint16, do func(f *Feature, bit map[uint16][]byte)) {
		for _, a := range answers {
			bits, _ := nl.ParseRouteAttr(attributes(attributes(a)[kind])[unix.ETHTOOL_A_BITSET_BITS])
			for _, b := range bits {
				bit := attributes(b.Value)
				name := unix.ByteSliceToString(bit[unix.ETHTOOL_A_BITSET_BIT_NAME])
				f := all[name]
				do(&f, bit)
				all[name] = f
			}
		}
	}
	// The first set has all features, with a value where they can be changed; the others have those that are in them.
	each(unix.ETHTOOL_A_FEATURES_HW, func(f *Feature, bit map[uint16][]byte) {
		_, changes := bit[unix.ETHTOOL_A_BITSET_BIT_VALUE]
		f.Fixed = !changes
	})
	each(unix.ETHTOOL_A_FEATURES_WANTED, func(f *Feature, _ map[uint16][]byte) { f.Wanted = true })
	each(unix.ETHTOOL_A_FEATURES_ACTIVE, func(f *Feature, _ map[uint16][]byte) { f.Active = true })
	return all, err
}

// SetFeature asks for a feature, or for none. The kernel may leave it as it is, where others are needed for it.
func SetFeature(index int, name string, on bool) error {
	wanted := nl.NewRtAttr(unix.ETHTOOL_A_FEATURES_WANTED|unix.NLA_F_NESTED, nil)
	bit := wanted.AddRtAttr(unix.ETHTOOL_A_BITSET_BITS|unix.NLA_F_NESTED, nil).
		AddRtAttr(unix.ETHTOOL_A_BITSET_BITS_BIT|unix.NLA_F_NESTED, nil)
	bit.AddRtAttr(unix.ETHTOOL_A_BITSET_BIT_NAME, nl.ZeroTerminated(name))
	if on {
		bit.AddRtAttr(unix.ETHTOOL_A_BITSET_BIT_VALUE, nil)
	}
	_, err := ethtool(unix.ETHTOOL_MSG_FEATURES_SET, index, wanted)
	return err
}

// ethtool sends a message of ethtool netlink about a link of the calling thread's namespace. Where the kernel does not
// know it, the error matches unix.EOPNOTSUPP.
func ethtool(command uint8, index int, attrs ...*nl.RtAttr) ([][]byte, error) {
	socket, err := nl.Subscribe(unix.NETLINK_GENERIC) // to nothing
	if err != nil {
		return nil, fmt.Errorf("ethtool: %w", err)
	}
	defer socket.Close()
	_ = socket.SetExtAck(true)
	limit := unix.NsecToTimeval(answerTimeout.Nanoseconds())
	_ = socket.SetReceiveTimeout(&limit)
	handle := &nl.SocketHandle{Socket: socket} // it counts: an acknowledgement may be left of the message before
	send := func(family int, msg *nl.Genlmsg, attrs ...*nl.RtAttr) ([][]byte, error) {
		req := nl.NewNetlinkRequest(family, unix.NLM_F_ACK)
		req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_GENERIC: handle}
		req.AddData(msg)
		for _, a := range attrs {
			req.AddData(a)
		}
		answers, err := req.Execute(unix.NETLINK_GENERIC, 0)
		for i := range answers {
			answers[i] = answers[i][nl.SizeofGenlmsg:]
		}
		return answers, err
	}
	families, err := send(nl.GENL_ID_CTRL, &nl.Genlmsg{Command: nl.GENL_CTRL_CMD_GETFAMILY, Version: 1},
		nl.NewRtAttr(nl.GENL_CTRL_ATTR_FAMILY_NAME, nl.ZeroTerminated(unix.ETHTOOL_GENL_NAME)))
	if err != nil || len(families) != 1 {
		return nil, fmt.Errorf("ethtool: this kernel has no ethtool netlink (%v): %w", err, unix.EOPNOTSUPP)
	}
	id := attributes(families[0])[nl.GENL_CTRL_ATTR_FAMILY_ID]
	if len(id) < 2 {
		return nil, fmt.Errorf("ethtool: %w", unix.EBADMSG)
	}
	header := nl.NewRtAttr(1|unix.NLA_F_NESTED, nil) // first in every message
	header.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_INDEX, nl.Uint32Attr(uint32(index)))
	answers, err := send(int(binary.NativeEndian.Uint16(id)), &nl.Genlmsg{Command: command, Version: 1},
		append([]*nl.RtAttr{header}, attrs...)...)
	return answers, wrap("ethtool", err)
}
