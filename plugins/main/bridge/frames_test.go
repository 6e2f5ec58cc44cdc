package main

import (
	"encoding/binary"
	"net"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// etherType of the frames that specs send: for experiments (IEEE 802).
const etherType = 0x88b5

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// wiretap sends and receives frames of etherType on an interface.
type wiretap struct {
	fd    int
	index int
	mac   net.HardwareAddr
}

func tap(h *nstest.Host, name string) wiretap {
	GinkgoHelper()
	var t wiretap
	var err error
	h.Do(func() {
		var dev *net.Interface
		if dev, err = net.InterfaceByName(name); err != nil {
			return
		}
		t.index, t.mac = dev.Index, dev.HardwareAddr
		if t.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(bigEndian(etherType))); err != nil {
			return
		}
		err = unix.Bind(t.fd, &unix.SockaddrLinklayer{Protocol: bigEndian(etherType), Ifindex: t.index})
	})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { _ = unix.Close(t.fd) })
	return t
}

func bigEndian(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// send sends a frame with a text from any address to any.
func (t wiretap) send(src, dst net.HardwareAddr, text string) {
	GinkgoHelper()
	frame := append(append([]byte{}, dst...), src...)
	frame = binary.BigEndian.AppendUint16(frame, etherType)
	frame = append(frame, text...)
	Expect(unix.Sendto(t.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: t.index})).To(Succeed())
}

// next returns the text of the next frame that came in, "" when none came.
func (t wiretap) next() string {
	GinkgoHelper()
	for buf := make([]byte, 2048); ; {
		wait := unix.NsecToTimeval(nstest.Patience(300 * time.Millisecond).Nanoseconds())
		Expect(unix.SetsockoptTimeval(t.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait)).To(Succeed())
		n, from, err := unix.Recvfrom(t.fd, buf, 0)
		if err == unix.EAGAIN {
			return ""
		}
		Expect(err).NotTo(HaveOccurred())
		if from.(*unix.SockaddrLinklayer).Pkttype != unix.PACKET_OUTGOING && n > 14 {
			return string(buf[14:n])
		}
	}
}
