package main

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// generation is the number of the kernel's nftables ruleset: each batch that is
// committed adds one.
func generation(h *nstest.Host) uint32 {
	GinkgoHelper()
	var id uint32
	h.Do(func() {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		Expect(err).NotTo(HaveOccurred())
		defer unix.Close(fd)
		// struct nlmsghdr and struct nfgenmsg
		ask := binary.NativeEndian.AppendUint32(nil, 20)
		ask = binary.NativeEndian.AppendUint16(ask, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN)
		ask = append(binary.NativeEndian.AppendUint16(ask, unix.NLM_F_REQUEST), make([]byte, 12)...)
		Expect(unix.Sendto(fd, ask, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})).To(Succeed())
		answer := make([]byte, 4096)
		n, _, err := unix.Recvfrom(fd, answer, 0)
		Expect(err).NotTo(HaveOccurred())
		for rest := answer[20:n]; len(rest) >= 8; rest = rest[(binary.NativeEndian.Uint16(rest)+3)&^3:] {
			if binary.NativeEndian.Uint16(rest[2:]) == unix.NFTA_GEN_ID {
				id = binary.BigEndian.Uint32(rest[4:])
			}
		}
	})
	Expect(id).NotTo(BeZero())
	return id
}

// many are n mappings from the port on.
func many(first, n int, proto string) Object {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("%d:%d/%s", first+i, first+i, proto))
	}
	return ports(list...)
}

var _ = Describe("many mappings", Label("kernel"), func() {
	It("go in one batch, and cost others nothing", Label("one-batch"), func() {
		w := newWorld()
		w.settle(kinds[0])
		a, b, c := w.container(1, 2), w.container(1, 3), w.container(1, 4)
		before := generation(w.Host)
		began := time.Now()
		a.add(many(1000, 1000, "tcp"))
		AddReportEntry("1,000 mappings of two families", time.Since(began))
		Expect(generation(w.Host)).To(Equal(before + 1))
		a.check(many(1000, 1000, "tcp"))
		b.ips, c.ips = b.ips[:1], c.ips[:1]
		b.add(many(10000, 10000, "tcp"))
		c.serve(80)
		before = generation(w.Host)
		began = time.Now()
		c.add(ports("8080:80"))
		AddReportEntry("1 mapping with 11,000 present", time.Since(began))
		Expect(generation(w.Host)).To(Equal(before + 1))
		Expect(w.reach(8080)).To(Equal("192.0.2.2"))
		c.check(ports("8080:80"))
		Expect(c.call("ADD", ports("8080:80", "15000:80")).exit).To(Equal(1))
		before = generation(w.Host)
		began = time.Now()
		c.del()
		AddReportEntry("DEL of 1 mapping with 11,000 present", time.Since(began))
		Expect(generation(w.Host)).To(Equal(before + 1))
		before = generation(w.Host)
		b.del()
		Expect(generation(w.Host)).To(Equal(before + 1))
		a.del()
		Expect(parts(w.Cmd("nft", "list", "ruleset"))).To(Equal("\n"))
	})

	It("go in one batch when they are the first, and when they replace a former owner's", func() {
		w := newWorld()
		a, b := w.container(1, 2), w.container(1, 3)
		before := generation(w.Host)
		a.add(many(1000, 300, "udp"))
		Expect(generation(w.Host)).To(Equal(before + 1))
		a.vanish()
		before = generation(w.Host)
		b.add(many(1000, 300, "udp"))
		Expect(generation(w.Host)).To(Equal(before + 1))
		b.check(many(1000, 300, "udp"))
	})

	It("of other containers on the bridge cost an ADD no look at their records", func() {
		w := newWorld()
		for i := range 8 {
			w.container(1, 2+i).add(ports(fmt.Sprintf("%d:80", 8080+i)))
		}
		w.Cmd("sh", "-ec", "touch -a -d '2 days ago' /run/hawser/portmap/*.json")
		w.container(1, 20).add(ports("9000:80"))
		read := w.Cmd("sh", "-ec", "find /run/hawser/portmap -name '*.json' -amin -60")
		Expect(strings.Fields(read)).To(HaveLen(1), "its own, which is new: %s", read)
	})

	It("need no netfilter socket when there are none", Label("one-batch"), func() {
		w := newWorld()
		c := w.container(1, 2)
		o := c.call("ADD")
		Expect(o.exit).To(BeZero(), o.text())
		Expect(o.stdout).To(ContainSubstring(`"10.1.0.2/24"`))
		Expect(w.Files("/run/hawser")).To(BeEmpty())
		Expect(w.Cmd("nft", "list", "ruleset")).To(BeEmpty())
		Expect(c.call("ADD", Object{"prevResult": nil}).Msg).To(ContainSubstring("prevResult: missing"))
	})
})
