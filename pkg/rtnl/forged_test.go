package rtnl

import (
	"encoding/binary"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/netlink"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

// A container with CAP_NET_ADMIN may send to our socket in its namespace.
var _ = Describe("an answer that a process of the container makes up", func() {
	It("is passed over", func() {
		nstest.NewNetns().Do(func() {
			c, err := Dial(nil)
			Expect(err).NotTo(HaveOccurred())
			defer c.Close()
			// The socket has its address once it is used.
			_, err = c.Link("lo")
			Expect(err).NotTo(HaveOccurred())
			own, err := unix.Getsockname(c.sock.FD())
			Expect(err).NotTo(HaveOccurred())
			forger, err := netlink.Open(unix.NETLINK_ROUTE)
			Expect(err).NotTo(HaveOccurred())
			defer forger.Close()
			link := linkHeader{index: 77}.body()
			link.Text(unix.IFLA_IFNAME, "lo")
			answer := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(link)))
			answer = binary.NativeEndian.AppendUint16(answer, unix.RTM_NEWLINK)
			answer = append(binary.NativeEndian.AppendUint32(append(answer, 0, 0), 2), 0, 0, 0, 0) // to the second request
			Expect(unix.Sendto(forger.FD(), append(answer, link...), 0, own)).To(Succeed())
			l, err := c.Link("lo")
			Expect(err).NotTo(HaveOccurred())
			Expect(l.Index).To(Equal(1))
		})
	})
})
