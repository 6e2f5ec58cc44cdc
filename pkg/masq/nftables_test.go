package masq_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
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
	"github.com/hawser-cni/plugins/pkg/statefile"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestMasq(t *testing.T) { nstest.RunSpecs(t, "masq") }

// world has a host that routes between two containers of one subnet (a, b), one of another (c) and a
// machine outside, which has no route to the containers.
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

// container has its own link to the host, so that the host also routes within a subnet.
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

// seen returns the client address that a server on one machine sees for a request of the other one.
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
		Backend: b, Link: "v" + id, Addrs: prefixes(addrs...)}
}

// with runs fn in the host with a new connection.
func with(h *nstest.Host, fn func(context.Context, *nft.Conn)) {
	GinkgoHelper()
	h.Do(func() {
		nf := nft.New()
		defer func() { Expect(nf.Close()).To(Succeed()) }()
		fn(context.Background(), nf)
	})
}

// in is a call of the package in a host.
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
	c.Addrs, c.Link = nil, ""
	return del(h, c)
}

func gc(h *nstest.Host, network string, valid ...cni.Attachment) (err error) {
	GinkgoHelper()
	with(h, func(ctx context.Context, nf *nft.Conn) { err = masq.GC(ctx, nf, cni.NewSet(network, valid)) })
	return err
}

// rulesOf returns all rules of both variants of iptables and of nftables, without counters.
func rulesOf(h *nstest.Host) string {
	GinkgoHelper()
	text := h.Cmd("nft", "-s", "list", "ruleset")
	for _, f := range []string{"iptables", "ip6tables"} {
		// The file exists if the module is loaded.
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

const table = `table inet hawser {
	comment "Hawser CNI plugins"
	set masq_exempt4 {
		type ipv4_addr
		flags interval
		comment "yours: destinations that are not masqueraded"
	}

	set masq_exempt6 {
		type ipv6_addr
		flags interval
		comment "yours: destinations that are not masqueraded"
	}

	map masq4_v2 {
		type ifname . ipv4_addr : verdict
		comment "interface and container address : chain of its network"
		elements = { "vc1" . 10.1.0.2 comment "MARK1" : goto masq_v1_10.1.0.0/24 }
	}

	map masq6_v2 {
		type ifname . ipv6_addr : verdict
		comment "interface and container address : chain of its network"
		elements = { "vc1" . fd01::2 comment "MARK1" : goto masq_v1_fd01--/64 }
	}

	chain masq_v2 {
		comment "source NAT of containers"
		type nat hook postrouting priority srcnat; policy accept;
		ip daddr @masq_exempt4 return
		ip6 daddr @masq_exempt6 return
		iifname . ip saddr vmap @masq4_v2
		iifname . ip6 saddr vmap @masq6_v2
	}

	chain masq_v1_10.1.0.0/24 {
		ip daddr 10.1.0.0/24 return
		ip daddr 224.0.0.0/4 return
		masquerade
	}

	chain masq_v1_fd01--/64 {
		ip6 daddr fd01::/64 return
		ip6 daddr ff00::/8 return
		masquerade
	}
}
`

const single = `	chain masq_v1_single4 {
		ip daddr 224.0.0.0/4 return
		masquerade
	}
`

var _ = Describe("masquerade with nftables", Label("kernel"), func() {
	var host *nstest.Host
	one := config(ipt.Auto, "c1", "eth0", "10.1.0.2/24", "fd01::2/64")
	two := config(ipt.Auto, "c1", "net1", "10.9.0.7/32")

	BeforeEach(func() {
		nstest.Need("nft", "nft-inet-nat")
		host = nstest.NewHost()
	})

	It("prints as an administrator would write it, with owners, and reloads", Label("readable"), func() {
		nstest.WithoutPrograms(func() { Expect(add(host, one)).To(Succeed()) })
		want := strings.ReplaceAll(table, "MARK1", one.Attachment.Mark())
		Expect(host.Cmd("nft", "list", "ruleset")).To(Equal(want))
		file := GinkgoT().TempDir() + "/saved"
		host.Cmd("sh", "-c", "nft list ruleset >"+file+" && nft flush ruleset && nft -f "+file)
		Expect(host.Cmd("nft", "list", "ruleset")).To(Equal(want))
		Expect(check(host, one)).To(Succeed())
		Expect(add(host, one)).To(Succeed())
		Expect(host.Cmd("nft", "list", "ruleset")).To(Equal(want))
	})

	It("has one chain for all prefixes of a single address", func() {
		Expect(add(host, two)).To(Succeed())
		Expect(add(host, config(ipt.Auto, "c2", "eth0", "10.9.0.8/32", "fd01::8/128"))).To(Succeed())
		Expect(rulesOf(host)).To(ContainSubstring(single))
		Expect(rules(host)).To(Equal(4 + 2 + 2))
	})

	It("removes an attachment with the chains that become unused, and no others", func() {
		Expect(add(host, one)).To(Succeed())
		before := rulesOf(host)
		other := config(ipt.Auto, "c2", "eth0", "10.1.0.3/24", "fd02::3/64")
		for _, remove := range []func(*nstest.Host, masq.Config) error{del, delBlind} {
			Expect(add(host, other)).To(Succeed())
			Expect(rulesOf(host)).To(ContainSubstring("fd02"))
			nstest.WithoutPrograms(func() { Expect(remove(host, other)).To(Succeed()) })
			Expect(rulesOf(host)).To(Equal(before))
			Expect(remove(host, other)).To(Succeed())
		}
		Expect(del(host, one)).To(Succeed())
		Expect(rulesOf(host)).NotTo(Or(ContainSubstring("masq_v1_"), ContainSubstring("elements")))
	})

	It("runs no program and takes no lock if there is nothing to delete", Label("no-leftovers"), func() {
		nstest.WithoutPrograms(func() {
			Expect(del(host, one)).To(Succeed())
			Expect(delBlind(host, one)).To(Succeed())
			Expect(gc(host, "net1")).To(Succeed())
			Expect(status(host, ipt.Auto)).To(Succeed())
			Expect(status(host, ipt.NFTables)).To(Succeed())
		})
		Expect(host.Cmd("nft", "list", "ruleset")).To(BeEmpty())
		Expect(host.Cmd("ls", "/run")).NotTo(ContainSubstring("hawser"))
		Expect(status(host, ipt.IPTables)).To(Succeed())
		nstest.WithoutPrograms(func() {
			Expect(status(host, ipt.IPTables)).To(MatchError(ContainSubstring("iptables-restore")))
		})
	})

	It("keeps an address for its first owner, then for the next", Label("live-owners", "others-by-now"), func() {
		old := config(ipt.Auto, "old", "eth0", "10.1.0.2/24", "fd07::2/64")
		third := config(ipt.Auto, "c3", "eth0", "10.1.0.2/16")
		old.Link, third.Link = one.Link, one.Link
		element := func() string {
			return regexp.MustCompile(`"vc1" . 10.1.0.2 comment .*`).FindString(
				host.Cmd("nft", "list", "map", "inet", "hawser", "masq4_v2"))
		}
		Expect(add(host, old)).To(Succeed())
		first := element()
		for range 2 {
			Expect(add(host, one)).To(Succeed())
			Expect(add(host, third)).To(Succeed())
			Expect(element()).To(Equal(first))
			checkAll(host, one, old, third)
		}
		Expect(delBlind(host, third)).To(Succeed())
		Expect(check(host, third)).To(MatchError(ContainSubstring("belongs to")))
		Expect(rulesOf(host)).NotTo(ContainSubstring("10.1.0.0/16"))
		Expect(add(host, third)).To(Succeed())
		Expect(element()).To(Equal(first))
		stale := old
		stale.Addrs = prefixes("10.1.0.2/24", "fd08::2/64")
		Expect(del(host, stale)).To(Succeed())
		Expect(element()).To(Or(ContainSubstring(" c1 eth0"), ContainSubstring(" c3 eth0")))
		checkAll(host, one, third)
		Expect(rulesOf(host)).NotTo(ContainSubstring("fd07"))
		file := GinkgoT().TempDir() + "/saved"
		before := rulesOf(host)
		host.Cmd("sh", "-c", "nft list ruleset >"+file+" && nft flush ruleset && nft -f "+file)
		Expect(rulesOf(host)).To(Equal(before))
		checkAll(host, one, third)
		Expect(gc(host, "net1", third.Attachment)).To(Succeed())
		Expect(element()).To(ContainSubstring(" c3 eth0"))
		Expect(del(host, third)).To(Succeed())
		Expect(rulesOf(host)).NotTo(Or(ContainSubstring("masq_v1_"), ContainSubstring("elements")))
	})

	It("restores the elements of all owners of an address", Label("live-owners"), func() {
		two := config(ipt.Auto, "c2", "eth0", "10.1.0.2/24")
		two.Link = one.Link
		restored := func() (missing map[string]error) {
			with(host, func(ctx context.Context, nf *nft.Conn) {
				missing = nstest.Must(masq.Restore(ctx, nf, []masq.Config{one, two}, allExist))
			})
			return missing
		}
		Expect(add(host, one)).To(Succeed())
		Expect(add(host, two)).To(Succeed())
		Expect(restored()).To(BeEmpty())
		host.Cmd("nft", "flush", "ruleset")
		Expect(restored()).To(HaveLen(2))
		Expect(restored()).To(BeEmpty())
		Expect(del(host, one)).To(Succeed())
		checkAll(host, two)
	})

	It("compares the owner under the lock, not only before", func() {
		old, one := config(ipt.Auto, "old", "eth0", "10.1.0.2/24"), config(ipt.Auto, "c1", "eth0", "10.1.0.2/24")
		old.Link = one.Link
		Expect(add(host, old)).To(Succeed())
		host.Do(func() {
			held := nstest.Must(statefile.LockFile(context.Background(), nft.LockPath, 0o600))
			deleted := make(chan error)
			go func() { deleted <- del(host, old) }()
			Eventually(func() string {
				locks := nstest.Must(os.ReadFile("/proc/locks"))
				return string(locks)
			}).Should(MatchRegexp(`-> FLOCK .* %d `, os.Getpid()))
			host.Cmd("nft",
				`delete element inet hawser masq4_v2 { "vc1" . 10.1.0.2 }; `+
					`add element inet hawser masq4_v2 { "vc1" . 10.1.0.2`+
					` comment "`+one.Attachment.Mark()+`" : goto masq_v1_10.1.0.0/24 }`)
			Expect(held.Unlock()).To(Succeed())
			Expect(<-deleted).To(Succeed())
		})
		Expect(check(host, one)).To(Succeed())
	})

	It("moves an address whose prefix has changed, and removes the old chain", func() {
		Expect(add(host, one)).To(Succeed())
		moved := config(ipt.Auto, "c1", "eth0", "10.1.0.2/16")
		Expect(add(host, moved)).To(Succeed())
		Expect(check(host, moved)).To(Succeed())
		Expect(rulesOf(host)).NotTo(ContainSubstring("10.1.0.0/24"))
		Expect(check(host, one)).To(MatchError(ContainSubstring(`goes to chain "masq_v1_10.1.0.0/16"`)))
	})

	It("needs the same rules and about as many messages with 200 attachments", Label("rules-constant"), func() {
		errs := make([]error, 200)
		configs := make([]masq.Config, len(errs))
		for i := range errs {
			configs[i] = config(ipt.Auto, fmt.Sprintf("c%d", i), "eth0", fmt.Sprintf("10.1.0.%d/24", i+2),
				fmt.Sprintf("fd01::%x/64", i+2))
		}
		nstest.AtOnce(len(errs), func(i int) { errs[i] = add(host, configs[i]) })
		Expect(errors.Join(errs...)).To(Succeed())
		Expect(rules(host)).To(Equal(4 + 3 + 3))
		Eventually(elements).WithArguments(host).Should(Equal(400)) // some twice while the map grows
		Expect(check(host, configs[7])).To(Succeed())
		nstest.AtOnce(len(errs), func(i int) { errs[i] = del(host, configs[i]) })
		Expect(errors.Join(errs...)).To(Succeed())
		Expect(elements(host)).To(BeZero())
		Expect(rules(host)).To(Equal(4))
		Expect(rulesOf(host)).NotTo(ContainSubstring("masq_v1_"))
	})

	DescribeTable("detects changes, and the next attachment repairs the shared part",
		func(change string, repaired bool) {
			other := config(ipt.Auto, "c2", "eth0", "10.5.0.2/24")
			Expect(add(host, one)).To(Succeed())
			Expect(add(host, other)).To(Succeed())
			host.Cmd("sh", "-c", change)
			Expect(check(host, one)).To(MatchError(nft.ErrDrift))
			Expect(add(host, config(ipt.Auto, "c3", "eth0", "10.1.0.9/24", "fd01::9/64"))).To(Succeed())
			if repaired {
				checkAll(host, one, other)
				Expect(rules(host)).To(Equal(4 + 3 + 3 + 3))
			} else {
				Expect(check(host, one)).To(MatchError(nft.ErrDrift))
			}
		},
		Entry("the table's rules flushed", "nft flush table inet hawser", true),
		Entry("the shared chain flushed", "nft flush chain inet hawser masq_v2", true),
		Entry("the network's chain flushed", "nft flush chain inet hawser masq_v1_10.1.0.0/24", true),
		Entry("the shared chain deleted",
			"nft flush chain inet hawser masq_v2; nft delete chain inet hawser masq_v2", true),
		Entry("the element deleted", `nft delete element inet hawser masq4_v2 '{ "vc1" . 10.1.0.2 }'`, false),
		Entry("the ruleset flushed", "nft flush ruleset", false),
	)

	It("distinguishes networks and interfaces of the same container", Label("two-interfaces"), func() {
		elsewhere := config(ipt.Auto, "c1", "eth0", "10.6.0.2/24")
		elsewhere.Attachment.Network = "net2"
		for _, c := range []masq.Config{one, two, elsewhere} {
			Expect(add(host, c)).To(Succeed())
		}
		Expect(delBlind(host, one)).To(Succeed())
		checkAll(host, two, elsewhere)
		Expect(add(host, one)).To(Succeed())
		Expect(gc(host, "net1", cni.Attachment{ContainerID: "c1", IfName: "net1"})).To(Succeed())
		Expect(check(host, one)).To(MatchError(nft.ErrDrift))
		checkAll(host, two, elsewhere)
		Expect(gc(host, "net1")).To(Succeed())
		Expect(elements(host)).To(Equal(1))
	})

	It("respects and keeps the administrator's exemptions", func() {
		w := newWorld()
		c := config(ipt.Auto, "a", "eth0", "10.1.0.2/24")
		Expect(add(w.host, c)).To(Succeed())
		w.host.Cmd("nft", "add", "element", "inet", "hawser", "masq_exempt4", "{ 192.0.2.0/24 }")
		w.out.Cmd("ip", "route", "add", "10.1.0.0/24", "via", "192.0.2.1")
		Expect(seen(w.a, "tcp", w.out, "192.0.2.2")).To(Equal("10.1.0.2"))
		Expect(add(w.host, config(ipt.Auto, "b", "eth0", "10.1.0.3/24"))).To(Succeed())
		Expect(del(w.host, c)).To(Succeed())
		Expect(gc(w.host, "net1")).To(Succeed())
		Expect(rulesOf(w.host)).To(ContainSubstring("192.0.2.0/24"))
	})

	It("falls back to iptables on a kernel without nftables, unless told nftables", Label("fallback"), func() {
		nstest.UseVariant("legacy")
		without := func(fn func(context.Context, *nft.Conn) error) error {
			var err error
			host.Do(func() {
				// The thread ends with Do, and the filter with it.
				nstest.RefuseNetfilterSockets()
				err = fn(context.Background(), nft.New())
			})
			return err
		}
		asked := one
		asked.Backend = ipt.NFTables
		Expect(without(func(ctx context.Context, nf *nft.Conn) error { return masq.Add(ctx, nf, asked) })).
			To(MatchError(nft.ErrUnsupported))
		status := func(b ipt.Backend) error {
			return without(func(ctx context.Context, nf *nft.Conn) error { return masq.Status(ctx, nf, b) })
		}
		Expect(status(ipt.NFTables)).To(MatchError(nft.ErrUnsupported))
		Expect(status(ipt.IPTables)).To(Succeed())
		Expect(without(func(ctx context.Context, nf *nft.Conn) error {
			return errors.Join(masq.Status(ctx, nf, ipt.Auto), masq.Add(ctx, nf, one), masq.Check(ctx, nf, one))
		})).To(Succeed())
		Expect(host.Cmd("iptables-legacy", "-t", "nat", "-S")).To(ContainSubstring("-s 10.1.0.2/32"))
		Expect(without(func(ctx context.Context, nf *nft.Conn) error {
			return masq.Del(ctx, nf, masq.Config{Attachment: one.Attachment})
		})).To(Succeed())
		Expect(host.Cmd("iptables-legacy", "-t", "nat", "-S")).NotTo(ContainSubstring("CNI-"))
		Expect(records(host)).To(BeEmpty())
		nstest.UseVariant("nft")
		for _, b := range []ipt.Backend{ipt.Auto, ipt.IPTables} {
			Expect(status(b)).To(MatchError(ContainSubstring("xtables-nft-multi needs nf_tables")))
		}
	})
})

func rules(h *nstest.Host) int {
	GinkgoHelper()
	return strings.Count(h.Cmd("nft", "-j", "list", "ruleset"), `{"rule"`)
}

var element = regexp.MustCompile(`comment "[0-9a-f]{16} net[12] `)

func elements(h *nstest.Host) int {
	GinkgoHelper()
	return len(element.FindAllString(h.Cmd("nft", "list", "ruleset"), -1))
}

// seenPort returns the client port that a server sees for a request from the port.
func seenPort(from *nstest.Host, port int, server string) int {
	GinkgoHelper()
	answer := make([]byte, 64)
	from.Do(func() {
		to := nstest.Must(net.ResolveUDPAddr("udp", server))
		conn := nstest.Must(net.DialUDP("udp", &net.UDPAddr{Port: port}, to))
		defer func() { _ = conn.Close() }()
		Expect(conn.SetDeadline(time.Now().Add(nstest.Patience(nstest.Hang)))).To(Succeed())
		nstest.Must(conn.Write([]byte("?")))
		answer = answer[:nstest.Must(conn.Read(answer))]
	})
	return int(netip.MustParseAddrPort(string(answer)).Port())
}

var _ = DescribeTable("an attachment that excludes destinations and chooses ports at random",
	Label("special", "kernel"),
	func(backend ipt.Backend, variant string) {
		if variant != "" {
			nstest.UseVariant(variant)
		} else {
			nstest.Need("nft", "nft-inet-nat")
		}
		w := newWorld()
		plain := config(backend, "b", "eth0", "10.1.0.3/24", "fd01::3/64")
		Expect(add(w.host, plain)).To(Succeed())
		before := rulesOf(w.host)
		c := config(backend, "a", "eth0", "10.1.0.2/24", "fd01::2/64")
		c.Exclude = prefixes("10.2.0.2/32", "2001:db8::/32", "10.2.0.128/25")
		c.RandomFully, c.Ports = true, [2]uint16{50000, 50999}

		Expect(add(w.host, c)).To(Succeed())
		checkAll(w.host, c, plain)
		By("the source of other containers does not change")
		w.out.Cmd("ip", "route", "add", "fd01::/64", "via", "2001:db8::1")
		Expect(seen(w.a, "tcp", w.c, "10.2.0.2")).To(Equal("10.1.0.2"))
		Expect(seen(w.b, "tcp", w.c, "10.2.0.2")).NotTo(Equal("10.1.0.3"))
		Expect(seen(w.a, "tcp", w.out, "2001:db8::2")).To(Equal("fd01::2"))
		Expect(seen(w.b, "tcp", w.out, "2001:db8::2")).To(Equal("2001:db8::1"))
		Expect(seen(w.a, "tcp", w.out, "192.0.2.2")).To(Equal("192.0.2.1"))
		Expect(seen(w.a, "tcp", w.b, "10.1.0.3")).To(Equal("10.1.0.2"))
		By("its ports do not")
		server := w.out.Serve("udp", "192.0.2.2:0")
		Expect(seenPort(w.b, 40001, server)).To(Equal(40001))
		ports := []int{seenPort(w.a, 40002, server), seenPort(w.a, 40003, server)}
		Expect(ports).To(HaveEach(And(BeNumerically(">=", 50000), BeNumerically("<=", 50999))))
		c.Ports = [2]uint16{51007, 51007} // outside the range before, whose ports are still in use
		Expect(add(w.host, c)).To(Succeed())
		checkAll(w.host, c, plain)
		Expect(seenPort(w.a, 40004, server)).To(Equal(51007))
		c.Ports = [2]uint16{}
		Expect(add(w.host, c)).To(Succeed())
		ports = []int{seenPort(w.a, 40002, server), seenPort(w.a, 40003, server)}
		Expect(ports).NotTo(Equal([]int{40002, 40003}))

		By("CHECK detects another configuration, and ADD applies it")
		other := c
		other.Exclude = other.Exclude[:1]
		missing := c
		missing.Exclude = prefixes("10.2.0.2/32", "198.51.100.0/24")
		Expect(check(w.host, missing)).To(MatchError(nft.ErrDrift))
		Expect(add(w.host, other)).To(Succeed())
		Expect(check(w.host, c)).To(MatchError(nft.ErrDrift))
		Expect(seen(w.a, "tcp", w.out, "2001:db8::2")).To(Equal("2001:db8::1"))
		By("DEL does not need the options")
		for _, remove := range []func(*nstest.Host, masq.Config) error{del, delBlind} {
			Expect(add(w.host, c)).To(Succeed())
			Expect(remove(w.host, config(backend, "a", "eth0", "10.1.0.2/24", "fd01::2/64"))).To(Succeed())
			Expect(rulesOf(w.host)).To(Equal(before))
		}
		By("an attachment without options changes to them and back")
		simple := config(backend, "a", "eth0", "10.1.0.2/24", "fd01::2/64")
		for _, next := range []masq.Config{simple, c, simple} {
			Expect(add(w.host, next)).To(Succeed())
			checkAll(w.host, next, plain)
		}
		Expect(check(w.host, c)).To(MatchError(nft.ErrDrift))
		Expect(add(w.host, c)).To(Succeed())
		Expect(gc(w.host, "net1", plain.Attachment)).To(Succeed())
		Expect(rulesOf(w.host)).To(Equal(before))
	},
	Entry("with nftables", ipt.NFTables, ""),
	Entry("with iptables for nf_tables", ipt.IPTables, "nft"),
	Entry("with iptables for x_tables", ipt.IPTables, "legacy"),
)

var _ = It("an attachment with options has its own chain, which reloads, and which other ADDs do not change",
	Label("special", "kernel"), func() {
		nstest.Need("nft", "nft-inet-nat")
		host := nstest.NewHost()
		c := config(ipt.NFTables, "c1", "eth0", "10.1.0.2/24")
		c.Exclude, c.RandomFully, c.Ports = prefixes("10.8.0.0/16", "192.0.2.7/32"), true, [2]uint16{1024, 4999}
		Expect(add(host, c)).To(Succeed())
		chain := regexp.MustCompile(`chain masq_v1_10\.1\.0\.0/24_[0-9a-f]{16} {
		ip daddr 10\.1\.0\.0/24 return
		ip daddr 224\.0\.0\.0/4 return
		ip daddr 10\.8\.0\.0/16 return
		ip daddr 192\.0\.2\.7 return
		meta l4proto tcp masquerade to :1024-4999 fully-random
		meta l4proto udp masquerade to :1024-4999 fully-random
		masquerade fully-random
	}`)
		Expect(rulesOf(host)).To(MatchRegexp(chain.String()))
		file := GinkgoT().TempDir() + "/saved"
		host.Cmd("sh", "-c", "nft list ruleset >"+file+" && nft flush ruleset && nft -f "+file)
		Expect(check(host, c)).To(Succeed())
		other := config(ipt.NFTables, "c2", "eth0", "10.1.0.3/24")
		host.Cmd("nft", "flush", "chain", "inet", "hawser", "masq_v2")
		Expect(add(host, other)).To(Succeed())
		checkAll(host, c, other)
		Expect(del(host, other)).To(Succeed())
		Expect(check(host, c)).To(Succeed())
		host.Cmd("sh", "-c", "nft flush table inet hawser")
		Expect(check(host, c)).To(MatchError(nft.ErrDrift))
		Expect(add(host, c)).To(Succeed())
		Expect(check(host, c)).To(Succeed())
	})
