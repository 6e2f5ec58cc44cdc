package masq_test

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/masq"
	"github.com/hawser-cni/plugins/pkg/nft"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestMasq(t *testing.T) { nstest.RunSpecs(t, "masq") }

// world is a host that routes between two containers of one subnet (a, b), one of another (c) and a
// machine outside, which knows no way back to the containers.
type world struct {
	host, a, b, c, out *nstest.Host
}

func newWorld() world {
	GinkgoHelper()
	w := world{host: nstest.NewHost()}
	w.out = nstest.NewOutside(w.host)
	w.host.SetSysctl("net/ipv4/ip_forward", "1")
	w.host.SetSysctl("net/ipv6/conf/all/forwarding", "1")
	w.a = w.container("va", "10.1.0.2", "fd01::2")
	w.b = w.container("vb", "10.1.0.3", "fd01::3")
	w.c = w.container("vc", "10.2.0.2", "fd02::2")
	return w
}

// container has a link of its own to the host, so that the host routes within a subnet, too.
func (w world) container(hostEnd string, addrs ...string) *nstest.Host {
	GinkgoHelper()
	c := nstest.NewHost()
	nstest.Wire(nstest.End{Host: w.host, Name: hostEnd, Addrs: []string{"169.254.0.1/32", "fe80::1/64"}},
		nstest.End{Host: c, Name: "eth0", Addrs: addrs})
	c.Cmd("ip", "route", "add", "169.254.0.1", "dev", "eth0")
	c.Cmd("ip", "route", "add", "default", "via", "169.254.0.1")
	c.Cmd("ip", "-6", "route", "add", "default", "via", "fe80::1", "dev", "eth0")
	for _, a := range addrs {
		w.host.Cmd("ip", "route", "add", a, "dev", hostEnd)
	}
	return c
}

// seen is the address that a server on one machine sees when the other one asks it.
func seen(from *nstest.Host, network string, at *nstest.Host, address string) string {
	GinkgoHelper()
	server := at.Serve(network, net.JoinHostPort(address, "0"))
	answer, err := from.Ask(network, server)
	Expect(err).NotTo(HaveOccurred(), "%s to %s", network, server)
	host, _, err := net.SplitHostPort(answer)
	Expect(err).NotTo(HaveOccurred())
	return host
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func config(b ipt.Backend, id, ifName string, addrs ...string) masq.Config {
	return masq.Config{Attachment: cni.Attachment{Network: "net1", ContainerID: id, IfName: ifName},
		Backend: b, Addrs: prefixes(addrs...)}
}

// with runs fn inside the host with a connection of its own.
func with(h *nstest.Host, fn func(context.Context, *nft.Conn)) {
	GinkgoHelper()
	h.Do(func() {
		nf := nft.New()
		defer func() { Expect(nf.Close()).To(Succeed()) }()
		fn(context.Background(), nf)
	})
}

// in is a call of the package, made inside a host.
func in[T any](call func(context.Context, *nft.Conn, T) error) func(*nstest.Host, T) error {
	return func(h *nstest.Host, arg T) (err error) {
		GinkgoHelper()
		with(h, func(ctx context.Context, nf *nft.Conn) { err = call(ctx, nf, arg) })
		return err
	}
}

var add, del, check, status = in(masq.Add), in(masq.Del), in(masq.Check), in(masq.Status)

func checkAll(h *nstest.Host, configs ...masq.Config) {
	GinkgoHelper()
	for _, c := range configs {
		Expect(check(h, c)).To(Succeed())
	}
}

func delBlind(h *nstest.Host, c masq.Config) error {
	GinkgoHelper()
	c.Addrs = nil
	return del(h, c)
}

func gc(h *nstest.Host, network string, valid ...cni.Attachment) (err error) {
	GinkgoHelper()
	with(h, func(ctx context.Context, nf *nft.Conn) { err = masq.GC(ctx, nf, cni.NewSet(network, valid)) })
	return err
}

// rulesOf is everything that either iptables and nftables have, without counters.
func rulesOf(h *nstest.Host) string {
	GinkgoHelper()
	text := h.Cmd("nft", "-s", "list", "ruleset")
	for _, f := range []string{"iptables", "ip6tables"} {
		// The file is there once the module is.
		if h.Run(nstest.Program{Path: "grep", Args: []string{"-q", "nat",
			"/proc/thread-self/net/" + strings.TrimSuffix(f, "tables") + "_tables_names"}}).Exit == 0 {
			text += h.Cmd(f+"-legacy", "-t", "nat", "-S")
		}
	}
	return text
}

var _ = DescribeTable("a packet's source", Label("kernel"),
	func(backend ipt.Backend, variant string) {
		if variant != "" {
			nstest.UseVariant(variant)
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
	var in *net.UDPConn
	w.out.Do(func() {
		in = nstest.Must(net.ListenMulticastUDP("udp4", nstest.Must(net.InterfaceByName("eth0")), group))
	})
	defer func() { _ = in.Close() }()
	w.host.Cmd("ip", "route", "add", "239.0.0.0/8", "dev", "ext")
	w.out.Cmd("ip", "route", "add", "10.3.0.0/24", "via", "192.0.2.1") // for its reverse path filter
	w.host.Do(func() {
		out := nstest.Must(net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(from)}, group))
		nstest.Must(out.Write([]byte("?")))
		_ = out.Close()
	})
	Expect(in.SetDeadline(time.Now().Add(nstest.Patience(nstest.Hang)))).To(Succeed())
	_, source, err := in.ReadFromUDP(make([]byte, 16))
	Expect(err).NotTo(HaveOccurred())
	return source.IP.String()
}
