package dhcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/pkg/sysctl"
)

// count returns a function that returns the number of messages of a type that a server received.
func count(s *server, kind dhcpv4.MessageType) func() int {
	return func() int { return len(s.messages(kind)) }
}

const (
	discover = dhcpv4.MessageTypeDiscover
	request  = dhcpv4.MessageTypeRequest
	release  = dhcpv4.MessageTypeRelease
)

// silent makes a server send no answer.
func silent(*server, *dhcpv4.DHCPv4, *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 { return nil }

// addrs returns a function that returns the IPv4 addresses of a container's eth0.
func addrs(c *nstest.Host) func() []string {
	return func() []string {
		var v4 []string
		for _, a := range Show(c, "eth0").Addrs() {
			if !strings.Contains(a, ":") {
				v4 = append(v4, a)
			}
		}
		return v4
	}
}

// linkOf opens a container's eth0, as the daemon does.
func linkOf(c *nstest.Host) *link {
	GinkgoHelper()
	n := nstest.Must(ns.Open(c.Path))
	DeferCleanup(n.Close)
	link := nstest.Must(openLink(n, &record{Attachment: cni.Attachment{IfName: "eth0"}}))
	DeferCleanup(link.close)
	return link
}

var _ = Describe("a lease", func() {
	var l *lan
	var c *nstest.Host
	BeforeEach(func() { l, c = newClient() })

	It("is acquired, checked and released, each once", Label("lease"), func() {
		s, d := l.begin()
		r := l.Add(l.call("ADD", c))
		Expect(r.Text).To(MatchJSON(`{"cniVersion": "1.1.0", "ips": [{"address": "10.9.0.50/24",
			"gateway": "10.9.0.1"}], "routes": [{"dst": "0.0.0.0/0", "gw": "10.9.0.1"}]}`))
		Expect(s.messages(discover)[0].Options).To(HaveKeyWithValue(uint8(61), []byte("\x00"+c.Name+"/net/eth0")))
		Expect(l.records()).To(HaveLen(1))
		l.Succeeds(l.withPrevResult("CHECK", c, r))
		By("a second ADD is refused")
		Expect(l.Fails(l.call("ADD", c), cni.CodeExists)).To(ContainSubstring("has a lease already"))
		Expect(s.messages(request)).To(HaveLen(1))
		l.Succeeds(l.withPrevResult("DEL", c, r))
		Eventually(count(s, release)).Should(Equal(1))
		Expect(s.messages(release)[0].src.String()).To(Equal("10.9.0.50"))
		Expect(l.records()).To(BeEmpty())
		l.Succeeds(l.withPrevResult("DEL", c, r))
		Expect(d.end(syscall.SIGTERM)).To(BeZero())
		Expect(l.socket).NotTo(BeAnExistingFile())
		Expect(s.messages(release)).To(HaveLen(1))
		Expect(string(d.log.Contents())).To(And(ContainSubstring("msg=released"), Not(ContainSubstring("error="))))
	})

	It("is requested with the options of the configuration", func() {
		s, _ := l.begin(dhcpv4.WithDNS(net.IPv4(10, 9, 0, 3)))
		l.keys = `"provide": [{"option": "host-name", "fromArg": "K8S_POD_NAME", "value": "fallback"},
			{"option": "60", "value": "vendor"}, {"option": "user-class", "fromArg": "NONE"}],
			"request": [{"option": "121"}, {"option": "dhcp-client-identifier"}], "priority": 9`
		call := l.call("ADD", c)
		call.Args = "IgnoreUnknown=1;odd;K8S_POD_NAME=pod=1"
		r := l.Add(call)
		Expect(r.Routes[0]).To(HaveKeyWithValue("priority", BeEquivalentTo(9)))
		Expect(r.DNS).To(HaveKeyWithValue("nameservers", ConsistOf("10.9.0.3")))
		for _, m := range append(s.messages(discover), s.messages(request)...) {
			Expect(m.Options).To(HaveKeyWithValue(uint8(12), []byte("pod=1")))
			Expect(m.Options).To(HaveKeyWithValue(uint8(60), []byte("vendor")))
			Expect(m.Options).NotTo(HaveKey(uint8(77)))
			Expect(m.Options).To(HaveKeyWithValue(uint8(55), []byte{1, 3, 6, 15, 61, 119, 121}))
			Expect(m.IsBroadcast()).To(BeFalse())
		}
	})

	It("fails in time if no server answers, and leaves nothing", Label("lease-add-fails"), func() {
		d := l.start("-resendtimeout", "3s") // in which the interface comes up on a busy machine, too
		Expect(l.Fails(l.call("ADD", c), cni.CodeTryAgain)).To(Equal("error calling DHCP.Allocate: no more tries\n" +
			`interface "eth0": no DHCP server answered within 3s`))
		Expect(l.records()).To(BeEmpty())
		Eventually(func() int { return OpenFiles(d.Process.Pid, "socket:") }).Should(Equal(1), "of the daemon's own")
		l.Fails(l.call("CHECK", c), cni.CodeDrift)
	})

	It("is acquired from a server that answers late, while the client waits with -timeout", Label("slow"), func() {
		s := l.serve()
		isFirst := true
		s.set(func(s *server) {
			s.script = func(s *server, req, answer *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
				if req.MessageType() == request {
					return []*dhcpv4.DHCPv4{answer}
				}
				if isFirst {
					isFirst = false
					time.AfterFunc(5*time.Second, func() { // the packets are sent after 3.5 and 7.5 seconds
						_, _ = s.conn.WriteTo(answer.ToBytes(), &net.UDPAddr{IP: net.IPv4(10, 9, 0, 255), Port: 68})
					})
				}
				return nil
			}
		})
		l.start("-timeout", "30s", "-resendtimeout", "6500ms")
		l.Add(l.call("ADD", c))
	})

	It("is renewed by a server that answers late", Label("slow"), func() {
		s, d := l.begin(shortLease(600)...)
		l.configure(c)
		Eventually(d.log).Should(gbytes.Say("leased"))
		s.set(func(s *server) {
			s.script = func(s *server, _, answer *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
				time.AfterFunc(5*time.Second, func() {
					_, _ = s.conn.WriteTo(answer.ToBytes(), &net.UDPAddr{IP: net.IPv4(10, 9, 0, 255), Port: 68})
				})
				return nil
			}
		})
		// The next request is sent 14 seconds after the first one.
		Eventually(d.log).WithTimeout(12 * time.Second).Should(gbytes.Say("leased"))
	})

	DescribeTable("is not acquired, and the error has the reason", func(port, want string) {
		l.serve(dhcpv4.WithoutOption(dhcpv4.OptionSubnetMask))
		l.start("-resendtimeout", "1s")
		l.server.Cmd("ip", "link", "set", "port1", port)
		Eventually(func() string { return l.Fails(l.call("ADD", c), cni.CodeTryAgain) }).Should(MatchRegexp(want))
	},
		Entry("unusable answers", "up", "Subnet Mask not found in DHCPACK"),
		Entry("an interface that does not come up", "down",
			`no more tries\ninterface "eth0" does not come up; its state is (lowerlayer)?down`),
	)

	DescribeTable("is not acquired", func(ifName, netns, want string) {
		l.begin()
		call := l.withPath(cmp.Or(netns, c.Path), "ADD", c)
		call.IfName = ifName
		Expect(l.Fails(call, cni.CodeTryAgain)).To(ContainSubstring(want))
		Expect(l.records()).To(BeEmpty())
	},
		Entry("for a missing interface", "eth7", "", "Link not found"),
		Entry("in a missing namespace", "eth0", "/run/netns/absent", "no such network namespace"),
		Entry("in a file that is not a namespace", "eth0", "/proc/version", "not a network namespace"),
	)

	It("is not acquired if the plugin ends before it has the answer", Label("lease-add-fails"), func() {
		s := l.serve()
		s.set(func(s *server) { s.script = silent })
		l.start()
		plugin := l.exec(l.call("ADD", c))
		Eventually(count(s, discover)).Should(BeNumerically(">", 0))
		Expect(plugin.Process.Kill()).To(Succeed())
		By("the client no longer sends requests")
		Eventually(func() string { return l.Fails(l.call("CHECK", c), cni.CodeDrift) }).
			Should(ContainSubstring("has no lease"))
		s.set(func(s *server) { s.script = nil })
		By("a new ADD can begin immediately")
		Eventually(func() int { return l.Call(l.call("ADD", c)).Code }).Should(BeZero())
		l.Succeeds(l.call("DEL", c))
	})

	It("is released once by the roll-back of an ADD", Label("lease-add-fails"), func(ctx SpecContext) {
		s, d := l.begin()
		call := rpcCall{ContainerID: c.Name, Netns: c.Path, IfName: "eth0", Exclusive: true,
			StdinData: []byte(l.call("ADD", c).Conf.(string))}
		for _, method := range []string{methodAllocate, methodRelease} {
			nstest.Must(callDaemon(ctx, l.socket, method, call))
		}
		Eventually(count(s, release)).Should(Equal(1))
		Expect(d.end(syscall.SIGTERM)).To(BeZero())
		Expect(string(d.log.Contents())).NotTo(ContainSubstring("did not receive the answer"))
		Expect(l.records()).To(BeEmpty())
	})

	It("is no longer requested after DEL", func() {
		s := l.serve()
		s.set(func(s *server) { s.script = silent })
		l.start()
		added := make(chan Answer, 1)
		go func() {
			defer GinkgoRecover()
			added <- l.Call(l.call("ADD", c))
		}()
		Eventually(count(s, discover)).Should(BeNumerically(">", 0))
		l.Fails(l.call("ADD", c), cni.CodeTryAgain)
		l.Succeeds(l.call("DEL", c))
		var a Answer
		Eventually(added).Should(Receive(&a))
		a.Failed(cni.CodeTryAgain)
	})

	It("is renewed by unicast, and its changes are applied to the interface", Label("lease-changes"), func() {
		s, d := l.begin(shortLease(60)...)
		r := l.configure(c)
		s.set(func(s *server) {
			s.more = append(s.more, dhcpv4.WithRouter(net.IPv4(10, 9, 0, 9)), dhcpv4.WithYourIP(net.IPv4(10, 9, 0, 60)))
		})
		Eventually(addrs(c)).Should(Equal([]string{"10.9.0.60/24"}))
		Eventually(func() string { return c.Cmd("ip", "route") }).
			Should(And(ContainSubstring("default via 10.9.0.9 "), Not(ContainSubstring("via 10.9.0.1 "))))
		Expect(s.messages(request)[1].src.String()).To(Equal("10.9.0.50"))
		Eventually(d.log).Should(gbytes.Say("msg=leased .*address=10.9.0.60/24")) // then CHECK knows it
		Expect(l.Fails(l.withPrevResult("CHECK", c, r), cni.CodeDrift)).To(ContainSubstring("10.9.0.60/24"))
		Expect(count(s, discover)()).To(Equal(1))
	})

	It("is renewed and released at the current MAC address of the server", func() {
		s, d := l.begin(shortLease(60)...)
		r := l.configure(c)
		l.server.Cmd("ip", "link", "set", "br0", "address", "02:00:00:00:00:09")
		before := count(s, request)()
		Eventually(count(s, request)).Should(BeNumerically(">", before+1))
		Expect(s.messages(discover)).To(HaveLen(1))
		l.server.Cmd("ip", "link", "set", "br0", "address", "02:00:00:00:00:08")
		By("also after the main plugin has removed the address")
		c.Cmd("ip", "addr", "flush", "dev", "eth0")
		l.Succeeds(l.withPrevResult("DEL", c, r))
		Eventually(count(s, release)).Should(Equal(1))
		Eventually(d.log).Should(gbytes.Say("released.*at=02:00:00:00:00:08"))
	})

	It("is kept when its interface gets another name and MAC address and becomes a bridge port, as in KubeVirt",
		Label("kubevirt"), func() {
			l = newLAN6()
			c = l.container6()
			l.kea("2001:db8::50-2001:db8::50")
			l.radvd("")
			l.keys = `"ipv6": "dhcp"`
			s, d := l.begin(shortLease(60)...)
			s.set(func(s *server) { s.unicastOnly = true })
			r := l.Add(l.call("ADD", c))
			own := LinkLocal(c, "eth0")
			vm := nstest.NewNetns()
			mac := Show(c, "eth0").Address
			c.IP("link set eth0 down", "addr flush dev eth0", "link set eth0 name eth0-nic address 02:00:00:00:00:07",
				"link add k6t-eth0 type bridge", "link set eth0-nic up master k6t-eth0", "link set k6t-eth0 up",
				"link add tap0 type veth peer name eth0 address "+mac+" netns "+vm.Name,
				"link set tap0 up master k6t-eth0")
			vm.IP("addr add "+r.IPs[0].Address+" dev eth0", "link set eth0 addrgenmode none", "link set eth0 up")
			l.server.IP("neigh flush dev far0")
			before := len(s.messages(request))
			Eventually(func() int { return len(s.messages(request)) }).Should(BeNumerically(">", before+10))
			for _, renewal := range s.messages(request)[before:] {
				Expect(renewal.src.String()).To(Equal("10.9.0.50"))
			}
			Expect(s.messages(discover)).To(HaveLen(1))
			Eventually(func() int {
				return strings.Count(string(d.log.Contents()), "address=2001:db8::50/128")
			}).Should(BeNumerically(">", 20), "two lines per renewal: after the router's answer and the server's")
			By("the guest keeps its addresses: others send to it, not to the port")
			Expect(l.server.Cmd("ip", "neigh", "show", "10.9.0.50")).To(ContainSubstring(mac))
			Expect(l.server.Cmd("ip", "neigh", "show", own)).To(ContainSubstring(mac))
			Expect(c.Cmd("ip", "-o", "-4", "addr", "show", "dev", "eth0-nic")).To(BeEmpty())
			l.Succeeds(l.withPrevResult("DEL", c, r))
			Eventually(d.log).Should(gbytes.Say("msg=released"))
		})

	It("is not reported as released if the server does not answer ARP, although the server may receive the "+
		"broadcast", func() {
		s, d := l.begin()
		l.Add(l.call("ADD", c))
		l.server.Cmd("ip", "link", "set", "br0", "arp", "off")
		l.Succeeds(l.call("DEL", c))
		Eventually(d.log).Should(gbytes.Say("may not have received the release.*no MAC address known for 10.9.0.1"))
		Expect(string(d.log.Contents())).NotTo(ContainSubstring("msg=released"))
		Eventually(count(s, release)).Should(Equal(1))
	})

	It("expires: the address is removed, the link stays up, a new lease is acquired", Label("lease-changes"), func() {
		s, d := l.begin(shortLease(3600)...)
		r := l.configure(c)
		By("the next renewal is for two seconds, and the last one")
		s.set(func(s *server) {
			s.more = shortLease(2)
			s.script = func(s *server, req, answer *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
				if !req.ClientIPAddr.IsUnspecified() { // no repetition of what ADD asked
					s.script = silent
				}
				return []*dhcpv4.DHCPv4{answer}
			}
		})
		Eventually(addrs(c)).Should(BeEmpty())
		Eventually(d.log).Should(gbytes.Say(`msg=lost .*reason="the lease has expired"`))
		Expect(Show(c, "eth0").Flags).To(ContainElement("UP"))
		Expect(l.Fails(l.withPrevResult("CHECK", c, r), cni.CodeDrift)).To(ContainSubstring("expired"))
		s.set(func(s *server) { s.script, s.more = nil, []dhcpv4.Modifier{dhcpv4.WithLeaseTime(3600)} })
		Eventually(addrs(c)).Should(Equal([]string{"10.9.0.50/24"}))
		Eventually(func() string { return c.Cmd("ip", "route") }).
			Should(ContainSubstring("default via 10.9.0.1 "))
		Eventually(d.log).Should(gbytes.Say("msg=leased")) // then CHECK knows it
		l.Succeeds(l.withPrevResult("CHECK", c, r))
	})

	// refuse makes the server refuse the next renewal and then lease another address.
	refuse := func(s *server) {
		s.set(func(s *server) {
			s.given = map[string]netip.Addr{}
			s.script = func(s *server, req, answer *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
				if req.MessageType() == request && req.ServerIdentifier() == nil {
					s.script = nil
					answer.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeNak))
				}
				return []*dhcpv4.DHCPv4{answer}
			}
		})
	}
	routes := func(table string) func() []string {
		return func() []string {
			GinkgoHelper()
			show := []string{"-4", "route", "show", "table", table, "dev", "eth0"}
			out := c.Run(nstest.Program{Path: "ip", Args: show}).Stdout
			return strings.FieldsFunc(strings.ReplaceAll(out, " \n", "\n"), func(r rune) bool { return r == '\n' })
		}
	}

	DescribeTable("that is lost and acquired again has its routes in their former tables", Label("lease-routes"), func(
		move func(r Result),
	) {
		s, _ := l.begin(shortLease(600)...)
		r := l.configure(c)
		move(r)
		Expect(routes("main")()).To(BeEmpty())
		before := routes("100")()
		Expect(before).To(HaveLen(2))
		refuse(s)
		Eventually(addrs(c)).Should(Equal([]string{"10.9.0.51/24"}))
		for i := range before {
			before[i] = strings.Replace(before[i], "src 10.9.0.50", "src 10.9.0.51", 1)
		}
		Eventually(routes("100")).Should(Equal(before))
		Eventually(routes("main")).Should(BeEmpty())
	},
		Entry("in the table of sbr", func(r Result) {
			call := l.call("ADD", c)
			call.Conf = fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "net", "type": "sbr", "prevResult": {
				"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": %q}],
				"ips": [{"address": %q, "gateway": "10.9.0.1", "interface": 0}],
				"routes": [{"dst": "0.0.0.0/0", "gw": "10.9.0.1"}]}}`, c.Path, r.IPs[0].Address)
			Expect(Ran(l.Run(call.Program(l.World, nstest.Build("sbr")))).Code).To(BeZero())
		}),
		Entry("in another table, such as a VRF's", Label("slow"), func(Result) {
			c.IP("route add 10.9.0.0/24 dev eth0 proto kernel scope link src 10.9.0.50 table 100",
				"route add default via 10.9.0.1 dev eth0 table 100",
				"route del default dev eth0", "route del 10.9.0.0/24 dev eth0")
		}),
	)

	It("that is lost and acquired again has no route that an administrator removed, even with a new daemon", func() {
		s, d := l.begin(shortLease(600)...)
		l.configure(c)
		c.IP("route add default via 10.9.0.1 dev eth0 table 7", "route del default dev eth0 table main")
		refuse(s)
		s.set(func(s *server) {
			nak := s.script
			s.script = func(s *server, req, answer *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 {
				answers := nak(s, req, answer)
				s.script = silent
				return answers
			}
		})
		Eventually(addrs(c)).Should(BeEmpty())
		Eventually(d.log).Should(gbytes.Say("msg=lost"))
		d.end(syscall.SIGKILL)
		s.set(func(s *server) { s.script = nil })
		l.start()
		Eventually(routes("7")).Should(Equal([]string{"default via 10.9.0.1"}))
		Expect(routes("main")()).To(ConsistOf(HavePrefix("10.9.0.0/24 ")))
	})

	It("replaces routes in their tables: it adds new ones, then removes former ones, until that succeeds", func() {
		s, d := l.begin(shortLease(600)...)
		l.configure(c)
		c.IP("route add default via 10.9.0.1 dev eth0 table 100", "route del default dev eth0 table main")
		s.set(func(s *server) { s.more = append(s.more, dhcpv4.WithRouter(net.IPv4(10, 9, 1, 9))) })
		Eventually(d.log).Should(gbytes.Say("msg=failed.*route 0.0.0.0/0 via 10.9.1.9.*unreachable"))
		Expect(routes("100")()).To(Equal([]string{"default via 10.9.0.1"}))
		By("the new router becomes reachable")
		c.IP("route add 10.9.1.9 dev eth0")
		Eventually(routes("100")).Should(Equal([]string{"default via 10.9.1.9"}))
		Expect(routes("main")()).NotTo(ContainElement(ContainSubstring("default")))
	})

	It("is dropped with the namespace, whose deletion the daemon does not prevent", Label("namespace-let-go"), func() {
		s, d := l.begin() // for an hour: no renewal is needed to see it
		l.Add(l.call("ADD", c))
		c.Unpin()
		By("the kernel deletes the pair")
		Eventually(l.serverPorts).ShouldNot(ContainSubstring("port1"))
		Eventually(d.log).Should(gbytes.Say("dropped"))
		Eventually(l.records).Should(BeEmpty())
		Eventually(count(s, release)).Should(Equal(1))
		l.Succeeds(l.call("DEL", c))
		By("a new container of the same name has a lease of its own")
		l.Add(l.withPath(l.container().Path, "ADD", c))
		Expect(count(s, discover)()).To(Equal(2))
	})

	It("stays in its namespace when the path refers to another one", func() {
		s, d := l.begin(shortLease(60)...)
		call := l.withPath(filepath.Join(GinkgoT().TempDir(), "ns"), "ADD", c)
		Expect(os.Symlink(c.Path, call.Netns)).To(Succeed())
		l.Add(call)
		other := l.container()
		Expect(os.Remove(call.Netns)).To(Succeed())
		Expect(os.Symlink(other.Path, call.Netns)).To(Succeed())
		Eventually(d.log).Should(gbytes.Say("no longer at its path"))
		before := count(s, request)()
		Eventually(count(s, request)).Should(BeNumerically(">", before))
		Expect(l.records()).To(HaveLen(1))
		call.Command = "CHECK"
		Expect(l.Fails(call, cni.CodeDrift)).To(ContainSubstring("in another namespace than"))
	})

	DescribeTable("is kept while a process uses the namespace without a path, and released afterwards",
		Label("lease-namespace"), func(again bool) {
			s, d := l.begin(shortLease(600)...)
			l.configure(c)
			inside := c.Start(nstest.Program{Path: "sleep", Args: []string{"1000"}})
			descriptor := nstest.Must(os.Open(c.Path))
			DeferCleanup(func() { _ = descriptor.Close() })
			if again {
				d.end(syscall.SIGKILL)
			}
			c.Unpin()
			if again {
				l.start()
			}
			before := count(s, request)()
			Eventually(count(s, request)).Should(BeNumerically(">", before+1))
			Expect(l.records()).To(HaveLen(1))
			Expect(count(s, release)()).To(BeZero())
			By("the interface loses the address before the server can lease it again")
			Expect(inside.Process.Kill()).To(Succeed())
			Eventually(count(s, release)).Should(Equal(1))
			Eventually(l.records).Should(BeEmpty())
			fd := fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), descriptor.Fd())
			Expect(l.Cmd("nsenter", fd, "ip", "-4", "-o", "addr", "show", "eth0")).To(BeEmpty())
			By("the daemon does not keep the namespace")
			Expect(descriptor.Close()).To(Succeed())
			Eventually(l.serverPorts).ShouldNot(ContainSubstring("port1"))
		},
		Entry("by one daemon", false),
		Entry("by the next daemon, which finds it again", Label("slow"), true),
	)

	It("is released when the last process in a namespace without a path ends", func() {
		s, d := l.begin() // for an hour: no renewal is needed to see it
		inside := c.Start(nstest.Program{Path: "sleep", Args: []string{"1000"}})
		l.Add(l.call("ADD", c))
		c.Unpin()
		Eventually(d.log).Should(gbytes.Say(fmt.Sprintf("now=/proc/%d/task/", inside.Process.Pid)))
		killed := sysctl.Uptime()
		Expect(inside.Process.Kill()).To(Succeed())
		Eventually(count(s, release)).Should(Equal(1))
		Eventually(l.serverPorts).ShouldNot(ContainSubstring("port1"))
		Expect(sysctl.Uptime() - killed).To(BeNumerically("<", useInterval/2))
	})

	Describe("in a namespace whose processes the daemon cannot read", Label("lease-unseen"), func() {
		// startBlind starts a daemon that cannot read other processes, as under some security modules.
		startBlind := func() *daemonRun {
			GinkgoHelper()
			d := l.launch(`exec setpriv --bounding-set -sys_ptrace --inh-caps -sys_ptrace "$0" "$@";`, "-socketpath",
				l.socket)
			Eventually(d.log).Should(gbytes.Say("serving"))
			return d
		}
		warnings := func(d *daemonRun) int { return strings.Count(string(d.log.Contents()), "permission denied") }

		It("is renewed when its namespace has lost its path, with one warning", func() {
			s := l.serve(shortLease(600)...)
			d := startBlind()
			l.configure(c)
			c.Start(nstest.Program{Path: "sleep", Args: []string{"1000"}})
			c.Unpin()
			Eventually(d.log).Should(gbytes.Say("a process that cannot be read.*permission denied"))
			before := count(s, request)()
			Eventually(count(s, request)).Should(BeNumerically(">", before+2))
			Expect(l.records()).To(HaveLen(1))
			Expect(warnings(d)).To(Equal(1))
		})

		DescribeTable("ends when it expires: the address is removed, and the namespace is not kept", func(again bool) {
			s := l.serve(shortLease(4)...)
			d := startBlind()
			l.configure(c)
			descriptor := nstest.Must(os.Open(c.Path))
			DeferCleanup(func() { _ = descriptor.Close() })
			s.set(func(s *server) {
				s.script = func(*server, *dhcpv4.DHCPv4, *dhcpv4.DHCPv4) []*dhcpv4.DHCPv4 { return nil }
			})
			if again {
				d.end(syscall.SIGKILL)
			}
			c.Unpin()
			if again {
				d = startBlind()
			}
			Eventually(l.records).Should(BeEmpty())
			if fd := fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), descriptor.Fd()); !again {
				Expect(l.Cmd("nsenter", fd, "ip", "-4", "-o", "addr", "show", "eth0")).To(BeEmpty())
				Eventually(warnings).WithArguments(d).Should(Equal(1)) // which come through a pipe
			}
			Expect(count(s, release)()).To(BeZero())
			Expect(descriptor.Close()).To(Succeed())
			Eventually(l.serverPorts).ShouldNot(ContainSubstring("port1"))
		},
			Entry("of one daemon", false),
			Entry("of the next daemon, which cannot find the namespace", Label("slow"), true),
		)
	})

	It("is a new one in a new namespace", func() {
		s, _ := l.begin()
		l.Add(l.call("ADD", c))
		l.Add(l.withPath(l.container().Path, "ADD", c))
		Expect(count(s, discover)()).To(Equal(2))
		Expect(l.records()).To(HaveLen(1))
	})

	It("is separate for each interface and network", func() {
		l.begin()
		l.plug(c, "eth1")
		one, two := l.Add(l.call("ADD", c)), l.call("ADD", c)
		two.IfName = "eth1"
		Expect(l.Add(two).IPs[0].Address).NotTo(Equal(one.IPs[0].Address))
		two.Command = "DEL"
		l.Succeeds(two)
		l.Succeeds(l.withPrevResult("CHECK", c, one))
	})

	It("is collected in time with sixty others even if the server does not answer ARP", Label("slow"), func(
		ctx SpecContext,
	) {
		_, d := l.begin()
		var commands []string
		for i := range 60 {
			commands = append(commands,
				fmt.Sprintf("link add many%d type veth peer name many%d netns %s", i, i, c.Name),
				fmt.Sprintf("link set many%d up master br0", i))
		}
		l.server.IP(commands...)
		conf := []byte(l.call("ADD", c).Conf.(string))
		nstest.AtOnce(60, func(i int) {
			Eventually(func() error {
				_, err := callDaemon(ctx, l.socket, methodAllocate, rpcCall{ContainerID: "one", Netns: c.Path,
					IfName: fmt.Sprintf("many%d", i), StdinData: conf})
				return err
			}).WithTimeout(nstest.Patience(2 * time.Minute)).Should(Succeed())
		})
		l.server.Cmd("ip", "link", "set", "br0", "arp", "off")
		l.Succeeds(l.gc("[]"))
		Expect(l.records()).To(BeEmpty())
		Eventually(func() int { // what the daemon wrote comes through a pipe
			return bytes.Count(d.log.Contents(), []byte("no MAC address known for 10.9.0.1"))
		}).Should(Equal(60))
	})

	It("is collected if its attachment is not valid", func() {
		s, _ := l.begin()
		l.Add(l.call("ADD", c))
		other := l.container()
		r := l.Add(l.call("ADD", other))
		l.Succeeds(l.gc(fmt.Sprintf(`[{"containerID": %q, "ifname": "eth0"}]`, other.Name)))
		Eventually(count(s, release)).Should(Equal(1))
		l.Fails(l.call("CHECK", c), cni.CodeDrift)
		l.Succeeds(l.withPrevResult("CHECK", other, r))
	})
})

var _ = Describe("a packet", func() {
	It("that is too short for a UDP header, by the length in its IP header, is ignored", Label("hostile-server"),
		func() {
			l := newLAN()
			c := l.container()
			link := linkOf(c)
			Expect(link.bringUp(context.Background())).To(Succeed())
			offer := nstest.Must(dhcpv4.New(dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer))).ToBytes()
			port := l.server.Wiretap("port1")
			frame := func(length int) []byte {
				b := slices.Concat(nclient4.BroadcastMac, port.MAC, []byte{8, 0, 0x45, 0}) // Ethernet, then IPv4
				b = binary.BigEndian.AppendUint16(b, uint16(length))
				b = append(b, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0, 10, 9, 0, 1, 255, 255, 255, 255)
				b = append(b, 0, serverPort, 0, clientPort)
				b = binary.BigEndian.AppendUint16(b, uint16(8+len(offer)))
				return slices.Concat(b, []byte{0, 0}, offer)
			}
			Eventually(func() (*dhcpv4.DHCPv4, error) {
				port.SendFrame(frame(20))
				port.SendFrame(frame(20 + 8 + len(offer)))
				return link.receive(context.Background(), 100*time.Millisecond)
			}).Should(HaveField("MessageType()", dhcpv4.MessageTypeOffer))
		})
})

var _ = Describe("a change", func() {
	It("keeps unchanged addresses and routes", func() {
		c := nstest.NewNetns()
		c.IP("link add eth0 type veth peer name other", "link set other up", "addr add 10.9.0.50/24 dev eth0",
			"link set eth0 up", "route add 192.0.2.0/24 via 10.9.0.1", "route add 198.51.100.0/24 via 10.9.0.1",
			"route add 203.0.113.0/24 via 10.9.0.1")
		with := func(nets ...string) *cni.Result {
			var routes dhcpv4.Routes
			for _, dst := range nets {
				_, to, err := net.ParseCIDR(dst)
				Expect(err).NotTo(HaveOccurred())
				routes = append(routes, &dhcpv4.Route{Dest: to, Router: net.IPv4(10, 9, 0, 1)})
			}
			l := boundLife(dhcpv4.WithOption(dhcpv4.OptClasslessStaticRoute(routes...))).lease
			return l.result(options{})
		}
		link := linkOf(c)
		c.Cmd("ip", "route", "del", "192.0.2.0/24") // as an administrator may
		was, is := with("192.0.2.0/24", "198.51.100.0/24"), with("192.0.2.0/24", "100.64.0.0/10")
		Expect(link.apply(nstest.Must(link.findRoutes(was)), was, is)).To(Succeed())
		var routes []struct{ Dst string }
		c.JSON(&routes, "ip", "-j", "route")
		Expect(routes).To(ConsistOf(HaveField("Dst", "10.9.0.0/24"), HaveField("Dst", "100.64.0.0/10"),
			HaveField("Dst", "203.0.113.0/24")))
		Expect(addrs(c)()).To(Equal([]string{"10.9.0.50/24"}))
	})

	It("of an IPv6 prefix leaves the same routes as the kernel", func() {
		c := nstest.NewNetns()
		c.IP("link add eth0 type veth peer name other", "link set other up", "link set eth0 up")
		on := func(prefix string) *cni.Result {
			return &cni.Result{IPs: []cni.IP{{Address: netip.MustParsePrefix(prefix)}}}
		}
		link, none, was, is := linkOf(c), &cni.Result{}, on("2001:db8:1::2/64"), on("2001:db8:2::2/64")
		Expect(link.apply(nil, none, was)).To(Succeed())
		Expect(link.apply(nstest.Must(link.findRoutes(was)), was, is)).To(Succeed())
		c.IP("addr add 2001:db8:3::2/64 dev eth0") // whose routes the kernel adds
		routes := strings.Split(strings.TrimSpace(c.Cmd("ip", "-6", "route", "show", "root", "2001:db8::/32")), "\n")
		Expect(routes).To(HaveLen(2))
		Expect(routes[0]).To(Equal(strings.Replace(routes[1], "2001:db8:3::", "2001:db8:2::", 1)))
	})
})

var _ = Describe("without a daemon", func() {
	var l *lan
	var c *nstest.Host
	BeforeEach(func() { l, c = newClient() })

	It("ADD, CHECK, STATUS fail; DEL and GC succeed, and no later daemon has the leases", Label("no-daemon"), func() {
		s, other := l.serve(), l.container()
		absent := "error dialing DHCP daemon: dial unix " + l.socket + ": connect: "
		Expect(l.Fails(l.call("ADD", c), cni.CodeTryAgain)).To(HavePrefix(absent +
			"no such file or directory\nstart the daemon with: systemctl"))
		Expect(l.Fails(l.call("STATUS", c), cni.CodeUnavailable)).To(ContainSubstring(absent))
		d := l.start()
		l.Succeeds(l.call("STATUS", c))
		r := l.Add(l.call("ADD", c))
		l.Add(l.call("ADD", other))
		d.end(syscall.SIGKILL)
		Expect(l.Fails(l.withPrevResult("CHECK", c, r), cni.CodeTryAgain)).To(ContainSubstring(absent +
			"connection refused"))
		a := l.Call(l.withPrevResult("DEL", c, r))
		Expect(a.Code).To(BeZero())
		Expect(a.Stderr).To(ContainSubstring("not released with its server"))
		Expect(l.records()).To(HaveLen(1))
		l.Succeeds(l.gc("[]"))
		Expect(l.records()).To(BeEmpty())
		l.start()
		l.Fails(l.withPrevResult("CHECK", c, r), cni.CodeDrift)
		Expect(count(s, release)()).To(BeZero())
	})

	It("DEL removes an unreadable record, with a daemon and without", Label("lease-record"), func() {
		_, d := l.begin()
		damage := func() {
			l.Add(l.call("ADD", c))
			d.end(syscall.SIGKILL)
			l.Do(func() { Expect(os.WriteFile(l.records()[0], []byte("{"), 0o600)).To(Succeed()) })
		}
		damage()
		l.Succeeds(l.call("DEL", c))
		Expect(l.records()).To(BeEmpty())
		d = l.start()
		damage()
		l.start()
		l.Succeeds(l.call("DEL", c))
		Expect(l.records()).To(BeEmpty())
	})

	It("DEL of an attachment without a lease needs no lock", func() {
		l.start()
		l.Do(func() {
			s := nstest.Must(recordsFor(leaseRoot, l.socket).Open(context.Background()))
			DeferCleanup(s.Close)
		})
		l.Succeeds(l.call("DEL", c))
	})

	It("no call waits for a daemon that hangs", Label("slow"), func() {
		d := l.start()
		Expect(d.Process.Signal(syscall.SIGSTOP)).To(Succeed())
		Eventually(func() (string, error) {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.Process.Pid))
			return string(status), err
		}).Should(ContainSubstring("(stopped)"))
		for command, code := range map[string]uint{"STATUS": cni.CodeUnavailable, "CHECK": cni.CodeTryAgain} {
			call := l.call(command, c)
			var cancel context.CancelFunc
			call.Ctx, cancel = context.WithTimeout(context.Background(), 100*time.Millisecond) // instead of seconds
			l.Fails(call, code)
			cancel()
		}
		Expect(l.Fails(l.call("ADD", c), cni.CodeTryAgain)).To(ContainSubstring("i/o timeout"))
	})
})

var _ = Describe("a configuration", func() {
	parse := func(ipam string) (*config, error) {
		return parseConfig([]byte(`{"ipam": {"type": "dhcp", `+ipam+`}}`), "A=b=c;;D;E=f")
	}

	It("requests subnet mask, routers and resolver settings", func() {
		cfg := nstest.Must(parse(`"dns": null`))
		Expect(cfg.Request).To(Equal([]byte{1, 3, 6, 15, 119}))
		Expect(cfg.socket).To(Equal("/run/cni/dhcp.sock"))
	})

	It("can request fewer options", func() {
		cfg := nstest.Must(parse(`"dns": false,
			"request": [{"option": "12", "skipDefault": true}, {"option": "routers"}]`))
		Expect(cfg.Request).To(Equal([]byte{3, 12}))
	})

	DescribeTable("ignores an entry without an option, except for skipDefault", func(request string, want ...byte) {
		Expect(nstest.Must(parse(`"dns": false, "request": [` + request + `]`)).Request).To(Equal(want))
	},
		Entry("that requests less", `{"skipDefault": true}, {"option": "12"}`, byte(12)),
		Entry("that requests nothing, as in the reference", `{"skipDefault": true}`, byte(1), byte(3)),
		Entry("without effect, as in the reference's manual", `{"skipDefault": false}`, byte(1), byte(3)),
		Entry("that is empty", `{"option": ""}, {"option": null}`, byte(1), byte(3)),
	)

	It("is refused", func() {
		_, err := parse(`"provide": [{"option": "12", "value": "` + strings.Repeat("x", 256) + `"}]`)
		Expect(err).To(MatchError(HavePrefix(`ipam.provide[0].value: value too long for option "12": "xxx`)))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
		_, err = parseConfig([]byte("{}"), "")
		Expect(err).To(MatchError("ipam: is missing"))
	})

	DescribeTable("of the daemon has a default socket", func(args ...string) {
		f := nstest.Must(parseFlags(skel.Env{Args: append([]string{"daemon"}, args...), Stderr: GinkgoWriter}))
		Expect(f.socket).To(Equal(defaultSocket))
	},
		Entry("without a flag"),
		Entry("with an empty flag", "-socketpath", ""),
	)

	It("has a client ID of at most 255 bytes", func() {
		id := clientID(cni.Attachment{Network: "dn", ContainerID: "c1", IfName: "eth0"})
		Expect(fmt.Sprintf("%q", id)).To(Equal(`"\x00c1/dn/eth0"`))
		Expect(clientID(cni.Attachment{ContainerID: strings.Repeat("x", 300)})).To(HaveLen(255))
	})
})

var _ = It("is listed until DEL, also without the daemon, and the list changes nothing", func() {
	l := newLAN()
	_, d := l.begin()
	i := -1
	l.ExpectHeld(func(id, network string) (Call, []string) {
		i++
		c := l.call("ADD", l.container())
		c.ID, c.Conf = id, strings.Replace(c.Conf.(string), `"net"`, `"`+network+`"`, 1)
		l.Add(c)
		if i == 1 {
			Expect(d.end(syscall.SIGTERM)).To(BeZero())
		}
		return c, []string{fmt.Sprintf("address: 10.9.0.%d server 10.9.0.1 expires TIME", 50+i)}
	})
})

var _ = DescribeTable("reads records of earlier versions, and writes current ones",
	ExpectFormerRecord[record],
	Entry("before 0.2.0",
		`"netns": "/run/netns/c1", "ns": ID, "index": 2, "client": {}`,
		`"netnsPath": "/run/netns/c1", "netns": ID, "index": 2, "client": {}`))
