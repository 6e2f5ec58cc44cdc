package nft_test

import (
	"fmt"
	"net/netip"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

// insert makes an entry as an administrator would.
func insert(h *nstest.Host, proto, orig, reply string) {
	GinkgoHelper()
	o, r := strings.Fields(orig), strings.Fields(reply)
	args := []string{"-I", "-p", proto, "-t", "300", "-s", o[0], "--sport", o[1], "-d", o[2], "--dport", o[3],
		"-r", r[0], "--reply-port-src", r[1], "-q", r[2], "--reply-port-dst", r[3]}
	if proto == "tcp" {
		args = append(args, "--state", "ESTABLISHED")
	}
	h.Cmd("conntrack", args...)
}

func entries(h *nstest.Host) string {
	GinkgoHelper()
	return h.Cmd("conntrack", "-L") + h.Cmd("conntrack", "-L", "-f", "ipv6")
}

var _ = Describe("DeleteFlows", Label("kernel"), func() {
	var host *nstest.Host

	BeforeEach(func() {
		nstest.Need("conntrack")
		host = nstest.NewHost()
		insert(host, "udp", "198.51.100.7 1000 192.0.2.1 53", "10.1.0.2 53 198.51.100.7 1000")
		insert(host, "udp", "198.51.100.8 1000 192.0.2.1 53", "192.0.2.1 53 198.51.100.8 1000")
		insert(host, "tcp", "198.51.100.9 1000 192.0.2.1 53", "10.1.0.2 53 198.51.100.9 1000")
		insert(host, "udp", "2001:db8::7 1000 2001:db8::1 53", "fd00::2 53 2001:db8::7 1000")
	})

	// remove calls DeleteFlows inside the host and returns what it was shown.
	remove := func(family nft.Family, proto uint8, match func(nft.Flow) bool) (seen []string, n int) {
		GinkgoHelper()
		host.Do(func() {
			var err error
			n, err = nft.DeleteFlows(family, proto, func(f nft.Flow) bool {
				seen = append(seen, fmt.Sprintf("%s %s %s %t", f.Source, f.Destination, f.ReplySource, f.Translated()))
				return match(f)
			})
			Expect(err).NotTo(HaveOccurred())
		})
		return seen, n
	}

	It("shows every entry of the family and protocol, and deletes those selected", func() {
		seen, n := remove(nft.IPv4, unix.IPPROTO_UDP, nft.Flow.Translated)
		Expect(seen).To(ConsistOf(
			"198.51.100.7:1000 192.0.2.1:53 10.1.0.2:53 true",
			"198.51.100.8:1000 192.0.2.1:53 192.0.2.1:53 false"))
		Expect(n).To(Equal(1))
		Expect(entries(host)).NotTo(ContainSubstring("198.51.100.7"))
		Expect(entries(host)).To(And(ContainSubstring("198.51.100.8"), ContainSubstring("198.51.100.9"),
			ContainSubstring("2001:db8::7")))
	})

	It("knows IPv6", func() {
		to := netip.MustParseAddrPort("[fd00::2]:53")
		seen, n := remove(nft.IPv6, unix.IPPROTO_UDP, func(f nft.Flow) bool { return f.ReplySource == to })
		Expect(seen).To(HaveLen(1))
		Expect(n).To(Equal(1))
		Expect(entries(host)).NotTo(ContainSubstring("2001:db8::7"))
	})
})
