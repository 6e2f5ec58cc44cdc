package dhcp

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"

	linklayer "github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// enable6 enables IPv6 and stops the kernel from using router advertisements.
func (l *link) enable6() error {
	return l.ns.Do(func() error {
		for name, value := range map[string]string{"accept_ra": "0", "disable_ipv6": "0"} {
			err := sysctl.Net("ipv6", "conf", l.Name, name).Write(value)
			if errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("the kernel has no IPv6 support: %w", err)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// removeKernelConfig removes the addresses and routes that the kernel has taken from router advertisements.
func (l *link) removeKernelConfig() error {
	addrs, err := l.conn.Addrs(l.Index)
	errs := []error{err}
	staticPrefixes := map[netip.Prefix]bool{}
	for _, a := range addrs {
		if a.Prefix.Addr().Is6() && !a.Permanent {
			errs = append(errs, l.conn.DelAddr(l.Index, a.Prefix))
		} else {
			staticPrefixes[a.Prefix.Masked()] = true
		}
	}
	routes, err := l.conn.Routes(l.Index, unix.AF_INET6)
	errs = append(errs, err)
	for _, r := range routes {
		isPrefix := r.Protocol == unix.RTPROT_KERNEL && r.Table == unix.RT_TABLE_MAIN
		if r.Protocol == unix.RTPROT_RA || isPrefix && !staticPrefixes[r.Dst] {
			errs = append(errs, l.conn.DelRoute(r))
		}
	}
	return errors.Join(errs...)
}

// macFor returns the MAC address that belongs to a link-local address. Behind a bridge port, a virtual machine has
// the MAC address from which the link-local address was formed (RFC 4291, appendix A).
func (l *link) macFor(linkLocal netip.Addr) net.HardwareAddr {
	if id := linkLocal.AsSlice()[8:]; l.Master != 0 && id[3] == 0xff && id[4] == 0xfe {
		return net.HardwareAddr{id[0] ^ 2, id[1], id[2], id[5], id[6], id[7]}
	}
	return l.MAC
}

// send6 sends a message to a multicast group.
func (l *link) send6(protocol byte, src netip.Addr, group string, message []byte) error {
	dst := netip.MustParseAddr(group)
	mac := append(net.HardwareAddr{0x33, 0x33}, dst.AsSlice()[12:]...) // RFC 2464, section 7
	_, err := l.sock.WriteTo(buildPacket6(protocol, src, dst, message), &linklayer.Addr{HardwareAddr: mac})
	if err != nil {
		return fmt.Errorf("send to %s: %w", group, err)
	}
	return nil
}
