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

// Setting is what ethtool says of an offload, of the size of a ring or of the number of channels, as text: "true",
// "false" or the number.
type Setting struct {
	Is     string
	Wanted string // what was asked for; it may differ from Is for an offload alone
	Most   uint32 // the largest number that the driver takes
	Fixed  bool   // the offload cannot be changed
}

// ethtoolGroup has the messages of a group of settings.
type ethtoolGroup struct {
	get, set uint8
	// numbers are ethtool's names, in the order of their attributes: after the header the most of each, then each.
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

// Ethtool reads a group of settings of a link of the calling thread's namespace: "rings", "channels", or "features",
// which are all that the kernel knows.
func Ethtool(index int, group string) (map[string]Setting, error) {
	g := groupOf(group)
	answers, err := ethtool(g.get, index)
	all := map[string]Setting{}
	for _, a := range answers {
		has := attributes(a)
		for i, key := range g.numbers {
			is := strconv.FormatUint(uint64(number(has[uint16(2+len(g.numbers)+i)])), 10)
			all[key] = Setting{Is: is, Wanted: is, Most: number(has[uint16(2+i)])}
		}
		if g.numbers == nil {
			readFeatures(has, all)
		}
	}
	return all, err
}

// readFeatures reads three sets of bits: the first has all features, with a value where they can be changed; the others
// have those that are in them.
func readFeatures(sets map[uint16][]byte, all map[string]Setting) {
	for _, kind := range []uint16{unix.ETHTOOL_A_FEATURES_HW, unix.ETHTOOL_A_FEATURES_WANTED,
		unix.ETHTOOL_A_FEATURES_ACTIVE} {
		bits, _ := nl.ParseRouteAttr(attributes(sets[kind])[unix.ETHTOOL_A_BITSET_BITS])
		for _, b := range bits {
			bit := attributes(b.Value)
			name := unix.ByteSliceToString(bit[unix.ETHTOOL_A_BITSET_BIT_NAME])
			f := all[name]
			switch _, changes := bit[unix.ETHTOOL_A_BITSET_BIT_VALUE]; kind {
			case unix.ETHTOOL_A_FEATURES_HW:
				f = Setting{Is: "false", Wanted: "false", Fixed: !changes}
			case unix.ETHTOOL_A_FEATURES_WANTED:
				f.Wanted = "true"
			default:
				f.Is = "true"
			}
			all[name] = f
		}
	}
}

// SetEthtool asks for a value of one setting. The kernel may leave a feature as it is, where others are needed for it.
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

// ethtool sends a message of ethtool netlink about a link of the calling thread's namespace. Where the kernel does not
// know it, the error matches unix.EOPNOTSUPP.
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
	header := nl.NewRtAttr(1|unix.NLA_F_NESTED, nil) // first in every message
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
