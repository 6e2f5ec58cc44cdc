package nstest

import (
	"encoding/binary"
	"net"
	"net/netip"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

// etherType is the type for experiments (IEEE 802).
const etherType = 0x88b5

// Broadcast is every station's address.
var Broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// Wiretap sends and receives frames on an interface. Those that it receives have the type for experiments.
type Wiretap struct {
	MAC net.HardwareAddr // of the interface

	fd    int
	index int
}

// Wiretap opens an interface until the end of the spec.
func (h *Host) Wiretap(name string) Wiretap {
	ginkgo.GinkgoHelper()
	var t Wiretap
	h.Do(func() {
		dev := Must(net.InterfaceByName(name))
		t.index, t.MAC = dev.Index, dev.HardwareAddr
		t.fd = Must(unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(bigEndian(etherType))))
		at := unix.SockaddrLinklayer{Protocol: bigEndian(etherType), Ifindex: t.index}
		gomega.Expect(unix.Bind(t.fd, &at)).To(gomega.Succeed())
	})
	ginkgo.DeferCleanup(func() { _ = unix.Close(t.fd) })
	return t
}

func bigEndian(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// Send sends a frame with a text from any address to any.
func (t Wiretap) Send(src, dst net.HardwareAddr, text string) {
	ginkgo.GinkgoHelper()
	frame := append(append([]byte{}, dst...), src...)
	frame = binary.BigEndian.AppendUint16(frame, etherType)
	t.SendFrame(append(frame, text...))
}

// SendFrame sends a frame as it is, with its header.
func (t Wiretap) SendFrame(frame []byte) {
	ginkgo.GinkgoHelper()
	gomega.Expect(unix.Sendto(t.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: t.index})).To(gomega.Succeed())
}

// Next returns the text of the next frame that comes in.
func (t Wiretap) Next() string {
	ginkgo.GinkgoHelper()
	return t.within(Hang)
}

// Nothing checks that no frame comes in for a while.
func (t Wiretap) Nothing() {
	ginkgo.GinkgoHelper()
	gomega.Expect(t.within(300 * time.Millisecond)).To(gomega.BeEmpty())
}

// within is the text of the next frame that comes in, "" when none comes.
func (t Wiretap) within(limit time.Duration) string {
	ginkgo.GinkgoHelper()
	for buf := make([]byte, 2048); ; {
		wait := unix.NsecToTimeval(Patience(limit).Nanoseconds())
		gomega.Expect(unix.SetsockoptTimeval(t.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait)).To(gomega.Succeed())
		n, from, err := unix.Recvfrom(t.fd, buf, 0)
		if err == unix.EAGAIN {
			return ""
		}
		gomega.Expect(err).NotTo(gomega.HaveOccurred())
		if from.(*unix.SockaddrLinklayer).Pkttype != unix.PACKET_OUTGOING && n > 14 {
			return string(buf[14:n])
		}
	}
}

// AdvertiseRouter sends a router advertisement (RFC 4861, section 4.2) with a
// prefix from an interface to all nodes.
func (h *Host) AdvertiseRouter(ifName, prefix string) {
	ginkgo.GinkgoHelper()
	ra := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, // a router for 1800 s
		3, 4, 64, 0xc0, 0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff, 0, 0, 0, 0} // on link, autonomous
	ra = append(ra, netip.MustParseAddr(prefix).AsSlice()...)
	h.Do(func() {
		all := unix.SockaddrInet6{ZoneId: uint32(Must(net.InterfaceByName(ifName)).Index),
			Addr: netip.MustParseAddr("ff02::1").As16()}
		fd := Must(unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6))
		defer unix.Close(fd)
		gomega.Expect(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255)).To(gomega.Succeed())
		gomega.Expect(unix.Sendto(fd, ra, 0, &all)).To(gomega.Succeed())
	})
}
