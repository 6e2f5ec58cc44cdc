package bandwidth

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// child is a container whose eth0 has no host end and the addresses 10.9.0.2 and fd09::2. Its network has 10.9.0.1 and
// fd09::1, and the exempt addresses 10.8.0.1 and fd08::1.
type child struct {
	*world
	router *nstest.Host
}

// newChild creates eth0 with this kind and these options.
func newChild(kind string) child {
	GinkgoHelper()
	nstest.Need("tbf", "ifb")
	nstest.NeedProgram("tc")
	w := child{&world{World: NewWorld(Plugin()), cont: nstest.NewNetns()}, nil}
	w.router = Cable(w.Host, "up0")
	IP(w.Host, "link add link up0 netns %s name eth0 type %s", w.cont.Name, kind)
	w.cont.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
	w.cont.SetSysctl("net/ipv6/conf/eth0/accept_dad", "0")
	w.cont.IP("link set eth0 up", "addr add 10.9.0.2/24 dev eth0", "addr add fd09::2/64 dev eth0 nodad",
		"route add 10.8.0.0/24 dev eth0", "route add fd08::/64 dev eth0")
	dev := "port"
	if strings.HasPrefix(kind, "vlan") {
		dev = "port.5"
		w.router.IP("link add link port name port.5 up type vlan id 5")
	}
	for _, a := range []string{"10.9.0.1/24", "10.8.0.1/32", "fd09::1/64", "fd08::1/128"} {
		IP(w.router, "addr add %s dev %s nodad", a, dev)
	}
	return w
}

func (w child) call(command string, keys ...string) Call {
	GinkgoHelper()
	return Call{Command: command, ID: "c1", Netns: w.cont.Path, Conf: conf("1.1.0", append(keys,
		fmt.Sprintf(`"prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": %q}]}`,
			w.cont.Path))...)}
}

// state returns all limits in the container, and the records.
func (w child) state() string {
	GinkgoHelper()
	return (&world{World: &World{Host: w.cont}}).tc("eth0") + w.cont.Cmd("ip", "-br", "link", "show", "type", "ifb") +
		fmt.Sprint(w.Records(recordDir)) + w.Snapshot("links")
}

const (
	someBytes = 250_000
	most      = 50_000 + 25_000 // the burst, and the queue
	slow      = `"ingressRate": 8000000, "ingressBurst": 400000, "egressRate": 8000000, "egressBurst": 400000`
	exempt    = `"exempt": ["10.8.0.0/24", "fd08::1"]`
)

// excess returns the number of bytes by which a transfer exceeded 1 MB/s.
func excess(from, to *nstest.Host, addr string) float64 {
	GinkgoHelper()
	arrived, took := carry(from, to, "tcp", net.JoinHostPort(addr, "0"), someBytes)
	Expect(arrived).To(Equal(someBytes))
	return float64(arrived) - most - 1_000_000*took.Seconds()
}

const isLimited, isFree = 0.02 * someBytes, 0

// expectLimits expects limits on the traffic in both directions and of both families.
func expectLimits(cont, peer *nstest.Host, contAddrs, peerAddrs []string) {
	GinkgoHelper()
	for _, addr := range contAddrs {
		Expect(excess(peer, cont, addr)).To(BeNumerically("<", isLimited), "to %s", addr)
	}
	for _, addr := range peerAddrs {
		Expect(excess(cont, peer, addr)).To(BeNumerically("<", isLimited), "to %s", addr)
	}
}

const ownMAC = "macvlan mode bridge"

var _ = Describe("an interface without host end", Label("kernel"), func() {
	DescribeTable("is limited in both directions, in its namespace", Label("bandwidth-inside"), func(
		need, link string,
	) {
		nstest.Need(need)
		w := newChild(link)
		before := w.state()
		Eventually(func() float64 { return excess(w.router, w.cont, "10.9.0.2") }).Should(BeNumerically(">", isFree))
		r := w.Add(w.call("ADD", slow))
		Expect(r.Interfaces).To(HaveLen(1), "a runtime may treat an IFB as an interface of the container")
		expectLimits(w.cont, w.router, []string{"10.9.0.2"}, []string{"fd09::1"})
		w.Succeeds(w.call("CHECK", slow))
		w.Succeeds(w.call("DEL", slow))
		Expect(w.state()).To(Equal(before))
		Expect(Ping(w.cont, "10.9.0.1")).To(BeTrue())
		w.Succeeds(w.call("DEL", slow))
	},
		Entry("macvlan", "macvlan", ownMAC),
		Entry("ipvlan", "ipvlan", "ipvlan mode l2"),
		Entry("vlan", "8021q", "vlan id 5"),
	)

	It("that is an ipvlan of mode l3s can only be limited for sent packets", func() {
		nstest.Need("ipvlan")
		w := newChild("ipvlan mode l3s")
		before := w.state()
		Expect(w.Fails(w.call("ADD", both), cni.CodeUnsupportedField)).To(HavePrefix("ingressRate: 8000000 "))
		Expect(w.state()).To(Equal(before))
		w.Add(w.call("ADD", out))
		w.Succeeds(w.call("CHECK", out))
	})

	It("that is a tap limits the program that has opened it", Label("bandwidth-inside"), func() {
		nstest.Need("tap", "tbf", "ifb")
		w := child{&world{World: NewWorld(Plugin()), cont: nstest.NewNetns()}, nil}
		w.cont.IP("tuntap add eth0 mode tap", "link set eth0 up", "addr add 10.9.0.1/24 dev eth0",
			"neigh add 10.9.0.2 lladdr 0a:00:00:00:00:02 dev eth0")
		w.Add(w.call("ADD", `"ingressRate": 8000000, "ingressBurst": 400000, "egressRate": 4000000,
			"egressBurst": 400000`))
		Expect(w.cont.Cmd("tc", "qdisc", "show", "dev", "eth0")).To(ContainSubstring("rate 8Mbit"))
		Expect(w.cont.Cmd("tc", "qdisc", "show", "dev", refName)).To(ContainSubstring("rate 4Mbit"))
		sent, took := w.write(100, 1000)
		Expect(float64(sent)).To(BeNumerically("<", 1.02*(50_000+12_500+500_000*took.Seconds())), "in %s", took)
		Expect(sent).To(BeNumerically(">", 40_000))
	})

	It("keeps its limits when an ADD fails, and has no limits when the first ADD fails", func() {
		nstest.Need("macvlan")
		w := newChild(ownMAC)
		broken := func(keys ...string) Call {
			c := w.call("ADD", keys...)
			c.Stdout = BrokenPipe{}
			return c
		}
		for _, live := range []string{"", both, both + "," + exempt} {
			if live != "" {
				w.Add(w.call("ADD", live))
				w.Succeeds(w.call("CHECK", live))
			}
			before := w.state()
			for _, keys := range []string{in, out + "," + exempt, both} {
				a := w.Call(broken(keys))
				Expect(a.Code).To(Equal(1), a.Stderr)
				Expect(a.Stderr).NotTo(ContainSubstring("roll-back"))
				Expect(w.state()).To(Equal(before))
			}
		}
	})

	DescribeTable("is without limits afterwards", Label("bandwidth-inside"), func(keys string, end func(w child)) {
		nstest.Need("macvlan")
		w := newChild(ownMAC)
		before := w.state()
		w.Add(w.call("ADD", keys))
		Expect(w.Records(recordDir)).NotTo(BeEmpty())
		end(w)
		Expect(w.state()).To(Equal(before))
	},
		Entry("after a DEL without prevResult, limits and CNI_NETNS", both, func(w child) {
			w.Succeeds(Call{Command: "DEL", ID: "c1", Conf: conf("1.1.0")})
		}),
		Entry("after DEL of an interface that was renamed", both, func(w child) {
			w.cont.IP("link set eth0 down", "link set eth0 name x")
			w.Succeeds(w.call("DEL"))
			w.cont.IP("link set x name eth0", "link set eth0 up")
		}),
		Entry("after GC, and not before", both+","+exempt, func(w child) {
			w.gc("net", "c1")
			w.gc("other")
			w.Succeeds(w.call("CHECK", both, exempt))
			w.gc("net")
		}),
	)

	It("is not changed by DEL of a container that had the path before", Label("bandwidth-inside"), func() {
		nstest.Need("macvlan")
		w := newChild(ownMAC)
		w.Add(w.call("ADD", both))
		before := w.state()
		former := w.call("DEL", both)
		former.ID = "c0"
		w.Succeeds(former)
		Expect(w.state()).To(Equal(before))
		w.Succeeds(w.call("CHECK", both))
	})

	It("has no record after DEL of a container that no longer exists", func() {
		nstest.Need("macvlan")
		w := newChild(ownMAC)
		w.Add(w.call("ADD", both))
		c := w.call("DEL", both)
		c.Netns = "/run/netns/gone"
		IP(w.Host, "netns del %s", w.cont.Name)
		w.Succeeds(c)
		Expect(w.Records(recordDir)).To(BeEmpty())
	})

	It("is listed", func() {
		nstest.Need("macvlan")
		w := newChild(ownMAC)
		w.Add(w.call("ADD", both))
		Expect(Held(w.Holdings(""))).To(ConsistOf("net c1 eth0 limit: ingress rate 8Mbit dev eth0",
			"net c1 eth0 limit: egress rate 16Mbit dev eth0"))
		w.Succeeds(w.call("DEL"))
		Expect(w.Holdings("")).To(BeEmpty())
	})

	DescribeTable("is checked", func(commands, want string) {
		nstest.Need("macvlan")
		w := newChild(ownMAC)
		w.Add(w.call("ADD", both))
		w.cont.Cmd("sh", "-ec", strings.ReplaceAll(commands, "IFB", refName))
		Expect(w.Fails(w.call("CHECK", both), cni.CodeDrift)).To(HavePrefix(want))
	},
		Entry("for sent packets", "tc qdisc del dev eth0 root", `egress limit: interface "eth0": has no filter`),
		Entry("for received packets", "ip link del IFB", `ingress limit: interface "eth0": redirects to no interface`),
	)
})

// write sends n frames of a length to the tap of the container. It returns the number of bytes that the namespace
// received, and the time.
func (w child) write(n, length int) (received int, took time.Duration) {
	GinkgoHelper()
	var tap *os.File
	var conn net.PacketConn
	w.cont.Do(func() {
		tap = os.NewFile(uintptr(nstest.Must(unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0))), "tap")
		req := nstest.Must(unix.NewIfreq("eth0"))
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		Expect(unix.IoctlIfreq(int(tap.Fd()), unix.TUNSETIFF, req)).To(Succeed())
		conn = nstest.Must(net.ListenPacket("udp", "10.9.0.1:9"))
	})
	defer tap.Close()
	defer conn.Close()
	mac := nstest.Must(net.ParseMAC(Show(w.cont, "eth0").Address))
	frame := udp(mac, netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("10.9.0.1"), 9, length)
	began := time.Now()
	for range n {
		nstest.Must(tap.Write(frame))
	}
	buf := make([]byte, length)
	for {
		_ = conn.SetReadDeadline(time.Now().Add(nstest.Patience(300 * time.Millisecond)))
		if _, _, err := conn.ReadFrom(buf); err != nil {
			return received, took
		}
		received, took = received+length, time.Since(began)
	}
}

// udp returns a frame of this length that contains a datagram without checksum.
func udp(to net.HardwareAddr, src, dst netip.Addr, port uint16, length int) []byte {
	be := func(n int) []byte { return []byte{byte(n >> 8), byte(n)} }
	ip := slices.Concat([]byte{0x45, 0}, be(length-14), []byte{0, 0, 0, 0, 64, 17, 0, 0}, src.AsSlice(), dst.AsSlice())
	sum := 0
	for i := 0; i < len(ip); i += 2 {
		sum += int(ip[i])<<8 | int(ip[i+1])
	}
	copy(ip[10:], be(^(sum>>16 + sum&0xffff)))
	datagram := slices.Concat(be(1000), be(int(port)), be(length-34), be(0))
	all := slices.Concat(to, []byte{0x0a, 0, 0, 0, 0, 2, 8, 0}, ip, datagram)
	return append(all, make([]byte, length-len(all))...)
}

var _ = Describe("exempt traffic", Label("kernel"), func() {
	It("is not limited at a host end, and other traffic is", Label("bandwidth-exempt"), func() {
		w := newWorld()
		w.Host.IP("addr add 10.8.0.1/32 dev host-eth0", "addr add fd08::1/128 dev host-eth0 nodad",
			"route add 10.8.0.9 via 10.1.0.2", "route add fd08::9 via fd00:1::2")
		w.cont.IP("route add 10.8.0.1 dev eth0", "route add fd08::1 dev eth0")
		before := w.state()
		r := w.Add(w.call("ADD", slow, exempt))
		Expect(r.Interfaces).To(HaveLen(4), "two IFBs")
		w.Succeeds(w.call("CHECK", slow, exempt))
		for _, addr := range []string{"10.8.0.1", "fd08::1"} {
			Eventually(func() float64 { return excess(w.cont, w.Host, addr) }).Should(BeNumerically(">", isFree), addr)
		}
		expectLimits(w.cont, w.Host, []string{"10.1.0.2", "fd00:1::2"}, []string{"10.1.0.1", "fd00:1::1"})
		// The server answers from an exempt address.
		Expect(w.talksFrom("10.8.0.1")).To(BeTrue())
		w.Succeeds(w.call("DEL", slow))
		Expect(w.state()).To(Equal(before))
	})

	It("is not limited without a host end, and other traffic is", Label("bandwidth-exempt"), func() {
		nstest.Need("macvlan")
		w := newChild(ownMAC)
		w.Add(w.call("ADD", slow, exempt))
		w.Succeeds(w.call("CHECK", slow, exempt))
		for _, addr := range []string{"10.8.0.1", "fd08::1"} {
			Eventually(func() float64 { return excess(w.cont, w.router, addr) }).
				Should(BeNumerically(">", isFree), addr)
		}
		expectLimits(w.cont, w.router, []string{"10.9.0.2", "fd09::2"}, []string{"10.9.0.1", "fd09::1"})
	})

	DescribeTable("is compared by CHECK", func(commands, want string) {
		w := newWorld()
		w.Add(w.call("ADD", both, exempt))
		w.Cmd("sh", "-ec", commands)
		Expect(w.Fails(w.call("CHECK", both, exempt), cni.CodeDrift)).To(HavePrefix(want))
	},
		Entry("one network less", "tc filter del dev host-eth0 egress pref 12 protocol ipv6",
			`ingress limit: host interface "host-eth0": exempts [`),
		Entry("none", "tc filter del dev host-eth0 ingress pref 1; tc filter del dev host-eth0 ingress pref 2",
			`egress limit: host interface "host-eth0": exempts [], want [`),
		Entry("no limit", "tc filter del dev host-eth0 egress pref 13",
			`ingress limit: host interface "host-eth0": redirects nothing`),
		Entry("one that is not configured", "tc filter add dev host-eth0 ingress pref 1 protocol ip u32 "+
			"match ip dst 10.7.0.0/16 flowid 1:9", `egress limit: host interface "host-eth0": exempts [`),
	)

	It("is refused for an interface with the mark of another attachment", Label("others-by-now"), func() {
		nstest.Need("macvlan")
		w := newChild("macvlan")
		other := cni.Attachment{Network: "net", ContainerID: "c2", IfName: "eth0"}
		w.cont.Cmd("ip", "link", "set", "eth0", "alias", other.Mark())
		before := w.state()
		Expect(w.Fails(w.call("ADD", both), cni.CodeConflict)).To(ContainSubstring("belongs to " + other.String()))
		w.Succeeds(w.call("DEL"))
		Expect(w.state()).To(Equal(before))
	})

	It("is separate for each interface of a container on one network", Label("bandwidth-two"), func() {
		w := newWorld()
		w.wire("eth1", 2)
		eth0, eth1 := w.tc("host-eth0"), w.tc("host-eth1")
		w.Add(w.callFor("eth0", "ADD", both, exempt))
		w.Add(w.callFor("eth1", "ADD", both, exempt))
		Expect(Names(w.Host, "ifb")).To(ConsistOf(refName, "bwp"+hash("eth0"), "bwp"+hash("eth1"), "bws"+hash("eth1")))
		Expect(Held(w.Holdings(""))).To(ConsistOf(ContainSubstring("egress rate 16Mbit dev "+refName),
			ContainSubstring("ingress rate 8Mbit dev bwp"+hash("eth0")),
			ContainSubstring("egress rate 16Mbit dev bwp"+hash("eth1")),
			ContainSubstring("ingress rate 8Mbit dev bws"+hash("eth1"))))
		w.Succeeds(w.callFor("eth0", "DEL"))
		w.Succeeds(w.callFor("eth1", "CHECK", both, exempt))
		w.Succeeds(Call{Command: "DEL", ID: "c1", IfName: "eth1", Conf: conf("1.1.0")})
		Expect(w.tc("host-eth0") + w.tc("host-eth1")).To(Equal(eth0 + eth1))
		Expect(Names(w.Host, "ifb")).To(BeEmpty())
		w.Add(w.callFor("eth0", "ADD", in, exempt))
		w.Add(w.callFor("eth0", "ADD", both))
		w.Add(w.callFor("eth0", "ADD", out, exempt))
		w.Succeeds(w.callFor("eth0", "CHECK", out, exempt))
		w.gc("net")
		Expect(w.tc("host-eth0")).To(Equal(eth0))
	})

	It("leaves other programs' filters at the hooks", func() {
		w := newWorld()
		w.Add(w.call("ADD", both, exempt))
		w.Cmd("tc", "filter", "add", "dev", "host-eth0", "egress", "pref", "99", "protocol", "ip", "u32", "match", "ip",
			"tos", "0x10", "0xff", "flowid", "1:5")
		w.Succeeds(w.call("DEL"))
		Expect(w.Cmd("tc", "filter", "show", "dev", "host-eth0", "ingress")).To(BeEmpty())
		Expect(w.Cmd("tc", "filter", "show", "dev", "host-eth0", "egress")).To(ContainSubstring("pref 99"))
		Expect(w.talks()).To(BeTrue())
	})

	DescribeTable("is refused if another program has the qdisc", func(prepare string) {
		w := newWorld()
		w.Cmd("sh", "-ec", prepare)
		before := w.state()
		Expect(w.Fails(w.call("ADD", both, exempt), cni.CodeConflict)).To(ContainSubstring("clsact"))
		Expect(w.state()).To(Equal(before))
	},
		Entry("clsact", "tc qdisc add dev host-eth0 clsact"),
		Entry("ingress", "tc qdisc add dev host-eth0 ingress; tc filter add dev host-eth0 ingress protocol ip "+
			"u32 match u32 0 0 flowid 1:5"))
})

// talksFrom reports whether the container answers to an address of the host.
func (w *world) talksFrom(addr string) bool {
	return w.Run(nstest.Program{Path: "ping", Args: []string{"-c1", "-w40", "-n", "-I", addr, "10.1.0.2"}}).Exit == 0
}

const short = `"queue": "fq_codel"`

var _ = Describe("fq_codel", Label("kernel"), func() {
	It("is code 2 on a kernel without it, and nothing is left", Label("bandwidth-queue"), func() {
		nstest.NeedLack("fq_codel")
		w := newWorld()
		before := w.state()
		for _, keys := range []string{in, out, both} {
			Expect(w.Fails(w.call("ADD", keys, short), cni.CodeUnsupportedField)).To(
				HavePrefix(`queue: "fq_codel" is not supported by this kernel`))
			Expect(w.state()).To(Equal(before))
		}
		Expect(w.Fails(Call{Command: "STATUS", Conf: conf("1.1.0", both, short)}, cni.CodeUnavailable)).To(
			HavePrefix("queue: kind fq_codel: "))
		w.Add(w.call("ADD", short)) // without a limit, there is no queue
	})

	DescribeTable("is below the filter, passes traffic, and is verified by CHECK", Label("bandwidth-queue"), func(
		from, to string, keys ...string,
	) {
		nstest.Need("fq_codel")
		w := newWorld()
		limits := append([]string{short, both}, keys...)
		w.Add(w.call("ADD", limits...))
		w.Succeeds(w.call("CHECK", limits...))
		Expect(w.Cmd("tc", "qdisc")).To(ContainSubstring("fq_codel 2:"))
		hosts := map[string]*nstest.Host{"container": w.cont, "host": w.Host}
		addrs := map[string]string{"container": "10.1.0.2:0", "host": "10.1.0.1:0"}
		arrived, _ := carry(hosts[from], hosts[to], "tcp", addrs[to], someBytes)
		Expect(arrived).To(Equal(someBytes))
		w.Cmd("sh", "-ec", `for d in $(ls /sys/class/net); do
			tc qdisc replace dev $d parent 1:1 pfifo limit 1000 || :; done`)
		Expect(w.Fails(w.call("CHECK", limits...), cni.CodeDrift)).To(ContainSubstring(`has the qdisc "pfifo" below`))
	},
		Entry("for received packets", "host", "container"),
		Entry("for sent packets", "container", "host"),
		Entry("with an exempt network", "container", "host", exempt),
	)
})
