package rtnl

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ProbeKind returns nil when the kernel can make links of a kind; else the error matches
// EOPNOTSUPP. It makes nothing: it asks for a link that cannot be, with an MTU and an
// address that none has.
func (c *Conn) ProbeKind(kind string) error {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, []byte(kind))
	const none = 1<<32 - 1
	attrs := []*nl.RtAttr{info, nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(none))}
	if kind != "netkit" { // of which some kernels refuse any address with EOPNOTSUPP
		attrs = append(attrs, nl.NewRtAttr(unix.IFLA_ADDRESS, make([]byte, 3)))
	}
	flags := unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_EXCL
	_, err := c.send(unix.RTM_NEWLINK, flags, header(unix.AF_UNSPEC, 0), attrs...)
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return fmt.Errorf("kind %s: %w", kind, err)
}
