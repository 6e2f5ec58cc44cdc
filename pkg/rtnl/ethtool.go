package rtnl

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Setting is an offload, the size of a ring or the number of channels. Values are text: "true", "false" or the number.
type Setting struct {
	Current string
	Wanted  string // requested value; differs from Current only for an offload
	Max     uint32 // largest number that the driver accepts
	Fixed   bool   // the offload cannot be changed
}

// ethtoolGroup has the message types of a group of settings.
type ethtoolGroup struct {
	get, set uint8
	// numbers has ethtool's names of numeric settings; nil = the group is features. The attributes of a message are the
	// header as attribute 1, the maximum of each setting and then the value of each setting, in the order of numbers.
	numbers []string
}

func groupOf(name string) ethtoolGroup {
	switch name {
	case "rings":
		return ethtoolGroup{unix.ETHTOOL_MSG_RINGS_GET, unix.ETHTOOL_MSG_RINGS_SET,
			[]string{"rx", "rx-mini", "rx-jumbo", "tx"}}
	case "channels":
		return ethtoolGroup{unix.ETHTOOL_MSG_CHANNELS_GET, unix.ETHTOOL_MSG_CHANNELS_SET,
			[]string{"rx", "tx", "other", "combined"}}
	}
	return ethtoolGroup{unix.ETHTOOL_MSG_FEATURES_GET, unix.ETHTOOL_MSG_FEATURES_SET, nil}
}

// Ethtool returns a group of settings of a link in the calling thread's namespace, by ethtool's names. The group is
// "rings", "channels" or "features", which has all features that the kernel knows.
func Ethtool(index int, group string) (map[string]Setting, error) {
	g := groupOf(group)
	answers, err := ethtool(g.get, index)
	all := map[string]Setting{}
	for _, a := range answers {
		attrs := attributes(a)
		for i, key := range g.numbers {
			current := strconv.FormatUint(uint64(number(attrs[uint16(2+len(g.numbers)+i)])), 10)
			all[key] = Setting{Current: current, Wanted: current, Max: number(attrs[uint16(2+i)])}
		}
		if g.numbers == nil {
			readFeatures(attrs, all)
		}
	}
	return all, err
}

// readFeatures decodes three bit sets into all. The first has all features, and a value for each feature that can be
// changed. The second has the wanted features, and the third the active ones.
func readFeatures(sets map[uint16][]byte, all map[string]Setting) {
	for _, kind := range []uint16{unix.ETHTOOL_A_FEATURES_HW, unix.ETHTOOL_A_FEATURES_WANTED,
		unix.ETHTOOL_A_FEATURES_ACTIVE} {
		bits, _ := nl.ParseRouteAttr(attributes(sets[kind])[unix.ETHTOOL_A_BITSET_BITS])
		for _, b := range bits {
			bit := attributes(b.Value)
			name := unix.ByteSliceToString(bit[unix.ETHTOOL_A_BITSET_BIT_NAME])
			f := all[name]
			switch _, isChangeable := bit[unix.ETHTOOL_A_BITSET_BIT_VALUE]; kind {
			case unix.ETHTOOL_A_FEATURES_HW:
				f = Setting{Current: "false", Wanted: "false", Fixed: !isChangeable}
			case unix.ETHTOOL_A_FEATURES_WANTED:
				f.Wanted = "true"
			default:
				f.Current = "true"
			}
			all[name] = f
		}
	}
}

// SetEthtool requests a value of one setting. The kernel may ignore it for a feature that depends on others.
func SetEthtool(index int, group, key, value string) error {
	g := groupOf(group)
	n, _ := strconv.ParseUint(value, 10, 32)
	attr := nl.NewRtAttr(2+len(g.numbers)+slices.Index(g.numbers, key), nl.Uint32Attr(uint32(n)))
	if g.numbers == nil {
		attr = nl.NewRtAttr(unix.ETHTOOL_A_FEATURES_WANTED|unix.NLA_F_NESTED, nil)
		bit := attr.AddRtAttr(unix.ETHTOOL_A_BITSET_BITS|unix.NLA_F_NESTED, nil).
			AddRtAttr(unix.ETHTOOL_A_BITSET_BITS_BIT|unix.NLA_F_NESTED, nil)
		bit.AddRtAttr(unix.ETHTOOL_A_BITSET_BIT_NAME, nl.ZeroTerminated(key))
		if value == "true" {
			bit.AddRtAttr(unix.ETHTOOL_A_BITSET_BIT_VALUE, nil)
		}
	}
	_, err := ethtool(g.set, index, attr)
	return err
}

// ethtool sends a message of ethtool netlink about a link in the calling thread's namespace. The error matches
// unix.EOPNOTSUPP if the kernel does not know the message.
func ethtool(command uint8, index int, attrs ...*nl.RtAttr) ([][]byte, error) {
	enableExtAck()
	family, err := netlink.GenlFamilyGet(unix.ETHTOOL_GENL_NAME)
	if errors.Is(err, unix.ENOENT) {
		err = fmt.Errorf("this kernel has no ethtool netlink (%w): %w", err, unix.EOPNOTSUPP)
	}
	if err != nil {
		return nil, fmt.Errorf("ethtool: %w", err)
	}
	req := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	req.AddData(&nl.Genlmsg{Command: command, Version: 1})
	header := nl.NewRtAttr(1|unix.NLA_F_NESTED, nil) // each message begins with it
	header.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_INDEX, nl.Uint32Attr(uint32(index)))
	for _, a := range append([]*nl.RtAttr{header}, attrs...) {
		req.AddData(a)
	}
	answers, err := req.Execute(unix.NETLINK_GENERIC, 0)
	for i := range answers {
		answers[i] = answers[i][nl.SizeofGenlmsg:]
	}
	return answers, wrap("ethtool", err)
}
