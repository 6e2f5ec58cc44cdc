package rtnl

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// A container with CAP_NET_ADMIN may send to our socket in its namespace.
var _ = Describe("an answer that a process of the container makes up", func() {
	It("is passed over", func() {
		nstest.NewNetns().Do(func() {
			c, err := Dial(nil)
			Expect(err).NotTo(HaveOccurred())
			defer c.Close()
			own, err := unix.Getsockname(c.fd)
			Expect(err).NotTo(HaveOccurred())
			forger, err := openSocket(0)
			Expect(err).NotTo(HaveOccurred())
			defer unix.Close(forger)
			header := nl.NewIfInfomsg(unix.AF_UNSPEC)
			header.Index = 77
			answer := packet(unix.RTM_NEWLINK, 0, header.Serialize(), attrString(unix.IFLA_IFNAME, "lo").Serialize())
			Expect(unix.Sendto(forger, answer, 0, own)).To(Succeed())
			l, err := c.Link("lo")
			Expect(err).NotTo(HaveOccurred())
			Expect(l.Index).To(Equal(1))
		})
	})
})
