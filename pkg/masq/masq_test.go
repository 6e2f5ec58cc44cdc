package masq_test

import (
	"net"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

var _ = DescribeTable("a packet's source", Label("kernel"),
	func(backend ipt.Backend, variant string) {
		if variant != "" {
			useVariant(variant)
		} else {
			nstest.Need("nft", "nft-inet-nat")
		}
		w := newWorld()
		for _, c := range []masq.Config{
			config(backend, "a", "eth0", "10.1.0.2/24", "fd01::2/64"),
			config(backend, "b", "eth0", "10.1.0.3/24", "fd01::3/64"),
			config(backend, "c", "eth0", "10.2.0.2/24", "fd02::2/64"),
		} {
			Expect(add(w.host, c)).To(Succeed())
			Expect(check(w.host, c)).To(Succeed())
		}
		for _, network := range []string{"tcp", "udp"} {
			By(network + ": to the outside it is the host's")
			Expect(seen(w.a, network, w.out, "192.0.2.2")).To(Equal("192.0.2.1"))
			Expect(seen(w.a, network, w.out, "2001:db8::2")).To(Equal("2001:db8::1"))
			By(network + ": within the subnet it stays")
			Expect(seen(w.a, network, w.b, "10.1.0.3")).To(Equal("10.1.0.2"))
			Expect(seen(w.a, network, w.b, "fd01::3")).To(Equal("fd01::2"))
			By(network + ": to the other network it does not")
			Expect(seen(w.a, network, w.c, "10.2.0.2")).NotTo(Equal("10.1.0.2"))
			Expect(seen(w.c, network, w.b, "fd01::3")).NotTo(Equal("fd02::2"))
			By(network + ": a packet that comes from outside stays as it is")
			w.out.Cmd("ip", "route", "replace", "10.1.0.0/24", "via", "192.0.2.1")
			Expect(seen(w.out, network, w.a, "10.1.0.2")).To(Equal("192.0.2.2"))
			w.out.Cmd("ip", "route", "del", "10.1.0.0/24")
		}
		By("to a multicast group it stays")
		w.host.Cmd("ip", "addr", "add", "10.3.0.1/24", "dev", "ext")
		Expect(add(w.host, config(backend, "d", "eth0", "10.3.0.1/24"))).To(Succeed())
		Expect(multicastSource(w, "10.3.0.1")).To(Equal("10.3.0.1"))
		By("without its rules it stays")
		Expect(del(w.host, config(backend, "a", "eth0", "10.1.0.2/24", "fd01::2/64"))).To(Succeed())
		w.out.Cmd("ip", "route", "add", "10.1.0.0/24", "via", "192.0.2.1")
		Expect(seen(w.a, "tcp", w.out, "192.0.2.2")).To(Equal("10.1.0.2"))
		w.out.Cmd("ip", "route", "del", "10.1.0.0/24")
		Expect(seen(w.c, "tcp", w.out, "192.0.2.2")).To(Equal("192.0.2.1"))
	},
	Entry("nftables", ipt.NFTables, ""),
	Entry("iptables for nf_tables", ipt.IPTables, "nft"),
	Entry("iptables for x_tables", ipt.IPTables, "legacy"),
)

// multicastSource is the source that the machine outside sees in a datagram to a group that an address
// of the host sends.
func multicastSource(w world, from string) string {
	GinkgoHelper()
	group := &net.UDPAddr{IP: net.IPv4(239, 1, 2, 3), Port: 5000}
	var err error
	var in *net.UDPConn
	w.out.Do(func() {
		var eth0 *net.Interface
		eth0, err = net.InterfaceByName("eth0")
		if err == nil {
			in, err = net.ListenMulticastUDP("udp4", eth0, group)
		}
	})
	Expect(err).NotTo(HaveOccurred())
	defer func() { _ = in.Close() }()
	w.host.Cmd("ip", "route", "add", "239.0.0.0/8", "dev", "ext")
	w.out.Cmd("ip", "route", "add", "10.3.0.0/24", "via", "192.0.2.1") // for its reverse path filter
	w.host.Do(func() {
		var out *net.UDPConn
		if out, err = net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(from)}, group); err == nil {
			_, err = out.Write([]byte("?"))
			_ = out.Close()
		}
	})
	Expect(err).NotTo(HaveOccurred())
	Expect(in.SetDeadline(time.Now().Add(nstest.Patience(nstest.Hang)))).To(Succeed())
	_, source, err := in.ReadFromUDP(make([]byte, 16))
	Expect(err).NotTo(HaveOccurred())
	return source.IP.String()
}
