package attack_test

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func ptpList() List { return List{{Plugin: "ptp", Keys: Object{"ipam": HostLocal("10.89.0.0/24")}}} }

var _ = Describe("a container that advertises itself as router (CVE-2020-10749)", Label("container-router"), func() {
	DescribeTable("gives routes and addresses to nobody", func(entries List, hostLink func(*Pod) string) {
		n := NewNode()
		n.SetSysctl("net/ipv6/conf/default/accept_ra", "1")
		rogue, victim := NewPod("rogue"), NewPod("victim")
		for _, p := range []*Pod{rogue, victim} {
			n.Up(p, entries)
		}
		LinkLocal(rogue.Host, "eth0")
		host := LinkLocal(n.Host, hostLink(rogue))
		for range 3 {
			rogue.AdvertiseRouter("eth0", "2001:db8:bad::")
		}
		// Answered after the advertisements were received.
		Expect(Ping(rogue.Host, host+"%eth0")).To(BeTrue())
		Expect(n.Snapshot("addresses", "routes") + victim.Snapshot("addresses", "routes")).
			NotTo(Or(ContainSubstring("2001:db8:bad:"), ContainSubstring("protocol=ra")))
	},
		Entry("on a bridge of IPv4 and IPv6", Usual("").Only("bridge"), func(*Pod) string { return "cni0" }),
		Entry("on a bridge of IPv4 alone",
			List{{Plugin: "bridge", Keys: Object{"bridge": "cni0", "isGateway": true,
				"ipam": Object{"type": "host-local",
					"subnet": "10.88.0.0/24"}}}}, func(*Pod) string { return "cni0" }),
		Entry("on a point to point link", ptpList(), func(p *Pod) string { return p.Decode().Interfaces[0].Name }),
	)
})

var _ = Describe("a container that takes another's MAC address", Label("kernel", "container-mac"), func() {
	It("sends nothing with it where macspoofchk is on, tagged or not, and gets none of its frames", func() {
		nstest.Need("nft-bridge")
		n := NewNode()
		checked := Usual("").Only("bridge").With("bridge", Object{"macspoofchk": true})
		rogue, victim := n.Up(NewPod("rogue"), checked), n.Up(NewPod("victim"), checked)
		third := n.Up(NewPod("third"), checked)
		from, to := rogue.Wiretap("eth0"), third.Wiretap("eth0")
		own, stolen := from.MAC, victim.Wiretap("eth0").MAC
		from.Send(own, nstest.Broadcast, "honest")
		Expect(to.Next()).To(Equal("honest"))
		from.Send(stolen, nstest.Broadcast, "stolen")
		from.SendFrame(append(append(append(net.HardwareAddr{}, nstest.Broadcast...), stolen...), 0x81, 0, 0, 0, 0x88,
			0xb5, 'x'))
		to.Nothing()
		rogue.Cmd("ip", "link", "set", "eth0", "address", stolen.String())
		from.Send(stolen, nstest.Broadcast, "taken")
		to.Nothing()
		Expect(Ping(victim.Host, "10.88.0.1")).To(BeTrue(), "the victim")
	})
})

var _ = Describe("a container that takes another's IP address", Label("kernel", "container-ip"), func() {
	It("is not taken for it by DEL, CHECK and GC, and keeps its own masquerade", func() {
		n := NewNode()
		out := nstest.NewOutside(n.Host)
		server := out.Serve("tcp", "192.0.2.2:0")
		bridge := Usual("").Only("bridge")
		rogue, victim := n.Up(NewPod("rogue"), bridge), n.Up(NewPod("victim"), bridge)
		rogue.Cmd("ip", "addr", "add", victim.Addr()+"/32", "dev", "eth0")
		n.Must("CHECK", victim, Usual("").Only("bridge"))
		n.Must("DEL", rogue, Usual("").Only("bridge"))
		seen := nstest.Must(victim.Ask("tcp", server))
		Expect(seen).To(HavePrefix("192.0.2.1:"), "masqueraded")
		n.Must("CHECK", victim, Usual("").Only("bridge"))
		Expect(n.Own()).To(ContainSubstring("/" + victim.Addr() + " "))
	})
})

var _ = Describe("a container that floods", Label("kernel", "flood"), func() {
	It("keeps nobody else from coming and going", func() {
		n := NewNode()
		flood := n.Up(NewPod("flood"), Usual("").Only("bridge"))
		from := flood.Wiretap("eth0")
		stop, stopped := make(chan struct{}), make(chan int)
		go func() {
			defer GinkgoRecover()
			sent := 0
			defer func() { stopped <- sent }()
			for payload := strings.Repeat("x", 1000); sent < 200000; sent++ {
				select {
				case <-stop:
					return
				default: // every station hears it, and the bridge learns a new one with each
					from.Send(net.HardwareAddr{2, 1, byte(sent >> 16), byte(sent >> 8), byte(sent), 1},
						nstest.Broadcast, payload)
				}
			}
		}()
		for i := range 5 {
			p := n.Up(NewPod(fmt.Sprintf("c%d", i)), Usual("").Only("bridge"))
			Expect(Ping(p.Host, "10.88.0.1")).To(BeTrue())
			n.Must("CHECK", p, Usual("").Only("bridge"))
			n.Must("DEL", p, Usual("").Only("bridge"))
		}
		close(stop)
		Expect(<-stopped).To(BeNumerically(">", 1000), "or the spec shows nothing")
		n.Must("DEL", flood, Usual("").Only("bridge"))
	})
})

var _ = Describe("packets to 127.0.0.0/8 (CVE-2020-8558)", Label("kernel", "loopback-packets"), func() {
	for _, backend := range []string{"nftables", "iptables"} {
		It("reach the host's loopback neither from outside nor from a container, with host ports by "+backend, func() {
			nstest.Need("nft-inet-nat")
			nstest.NeedBackend(backend)
			n := NewNode()
			// A machine on the bridge itself, where an uplink may be.
			outside := nstest.NewHost()
			p := n.Up(NewPod("one"), Usual(backend))
			rogue := n.Up(NewPod("rogue"), Usual(backend).Only("bridge"))
			nstest.Wire(nstest.End{Host: n.Host, Name: "uplink"},
				nstest.End{Host: outside, Name: "eth0", Addrs: []string{"10.88.0.200/24"}})
			n.Cmd("ip", "link", "set", "uplink", "master", "cni0")
			n.Serve("tcp4", "127.0.0.1:9999")
			n.Serve("tcp4", "0.0.0.0:9998")
			for _, h := range []*nstest.Host{outside, rogue.Host, p.Host} {
				// It sends 127.0.0.1 to the host, if it can.
				h.SetSysctl("net/ipv4/conf/all/route_localnet", "1")
				for _, words := range []string{"addr flush dev lo", "rule add pref 1 to 127.0.0.1 lookup 100",
					"rule del pref 0 lookup local",
					"rule add pref 2 lookup local", "route add 127.0.0.1/32 via 10.88.0.1 dev eth0 table 100"} {
					IP(h, "%s", words)
				}
			}
			refusedAll := func() bool {
				GinkgoHelper()
				var reached atomic.Bool
				from := []*nstest.Host{outside, rogue.Host, p.Host}
				nstest.AtOnce(2*len(from), func(i int) {
					args := []string{"-z", "-w1", "127.0.0.1", []string{"9999", "9998"}[i%2]}
					if from[i/2].Run(nstest.Program{Path: "nc", Args: args}).Exit == 0 {
						reached.Store(true)
					}
				})
				return !reached.Load()
			}
			Expect(n.Sysctl("net/ipv4/conf/cni0/route_localnet")).To(Equal("1"))
			Expect(refusedAll()).To(BeTrue())
			n.Cmd("nft", "flush", "chain", "inet", "hawser", "portmap_guard_v1")
			Eventually(refusedAll).Should(BeFalse(), "or the spec shows nothing")
		})
	}
})

var _ = Describe("a host port 53 (CVE-2025-67499)", Label("kernel", "port-53"), func() {
	for _, backend := range []string{"nftables", "iptables"} {
		for _, hostIP := range []string{"", "192.0.2.1"} {
			with := fmt.Sprintf("with %s and hostIP %q", backend, hostIP)
			It("takes no question to other name servers, of anybody, "+with, func() {
				nstest.Need("nft-inet-nat")
				nstest.NeedBackend(backend)
				n := NewNode()
				out := nstest.NewOutside(n.Host)
				out.Cmd("ip", "route", "add", "10.88.0.0/24", "via", "192.0.2.1")
				entries := Usual(backend)
				plain := entries.Only("bridge")
				var mappings []Object
				for _, proto := range []string{"tcp", "udp"} {
					mappings = append(mappings, Object{"hostIP": hostIP, "hostPort": 53, "containerPort": 53,
						"protocol": proto})
				}
				entries = entries.With("portmap", Object{"runtimeConfig": Object{"portMappings": mappings}})
				dns := n.Up(NewPod("dns"), entries)
				client, other := n.Up(NewPod("client"), plain), n.Up(NewPod("other"), plain)
				for _, network := range []string{"tcp", "udp"} {
					for _, s := range []struct {
						h  *nstest.Host
						at string
					}{{dns.Host, dns.Addr()}, {other.Host, other.Addr()}, {out, "192.0.2.2"}, {n.Host, "127.0.0.53"}} {
						s.h.Serve(network, s.at+":53")
					}
					for _, ask := range []question{
						{client.Host, "192.0.2.2", "192.0.2.1"},          // masqueraded, and that is all
						{client.Host, other.Addr(), client.Addr()},       // a name server in a container
						{dns.Host, "192.0.2.2", "192.0.2.1"},             // what the server itself asks
						{n.Host, "192.0.2.2", "192.0.2.1"},               // what the host asks
						{n.Host, "127.0.0.53", resolverOf[hostIP != ""]}, // the host's own resolver
						{out, other.Addr(), "192.0.2.2"},                 // through the host
						{out, "192.0.2.1", "192.0.2.2"},                  // and this is the port
					} {
						seen, err := ask.from.Ask(network, ask.to+":53")
						Expect(err).NotTo(HaveOccurred(), "%s %s", network, ask.to)
						Expect(seen).To(HavePrefix(ask.seen+":"), "%s %s", network, ask.to)
					}
				}
			})
		}
	}
})

// question is asked of a server, who then sees an address.
type question struct {
	from     *nstest.Host
	to, seen string
}

// resolverOf says whom a resolver at another address of the host's loopback sees,
// if it sees anybody: all local addresses are taken where no hostIP says which.
var resolverOf = map[bool]string{true: "127.0.0.1", false: "10.88.0.1"}
