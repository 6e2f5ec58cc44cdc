package bandwidth

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestBandwidth(t *testing.T) { nstest.RunSpecs(t, "plugins/meta/bandwidth/bandwidth") }

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(Plugin()) })

// FuzzCall generates whole calls.
func FuzzCall(f *testing.F) {
	Fuzz{
		Plugin: Plugin().Untyped(), Chained: true,
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","ingressRate":8000000,"ingressBurst":800000,"egressRate":16000000,` +
				`"egressBurst":1600000,"cni.dev/valid-attachments":[],` + FuzzPrev + `}`,
			`{"cniVersion":"1.0.0","name":"net","burst":"literal","runtimeConfig":{"bandwidth":{"ingressRate":8,` +
				`"ingressBurst":34359738359,"egressRate":9000000000000000000,"egressBurst":4294967295}},` +
				FuzzPrev + `}`,
			`{"cniVersion":"0.4.0","name":"net","egressRate":1000000,"egressBurst":2147483647,` + FuzzPrev + `}`,
			`{"name":"net","ingressRate":0,"prevResult":{"ip4":{"ip":"10.1.0.2/24"}}}`,
		},
	}.Run(f)
}

// world is a host with a container whose interface is eth0.
type world struct {
	*World
	cont *nstest.Host
}

func newWorld() *world {
	GinkgoHelper()
	nstest.Need("tbf", "ifb")
	nstest.NeedProgram("tc")
	w := &world{World: NewWorld(Plugin()), cont: nstest.NewNetns()}
	w.wire("eth0", 1)
	return w
}

// wire adds an interface to the container. The host end has the addresses 10.N.0.1 and fd00:N::1, the
// container 10.N.0.2 and fd00:N::2.
func (w *world) wire(ifName string, n int) {
	GinkgoHelper()
	addrs := func(i int) []string {
		return []string{fmt.Sprintf("10.%d.0.%d/24", n, i), fmt.Sprintf("fd00:%d::%d/64", n, i)}
	}
	nstest.Wire(nstest.End{Host: w.Host, Name: "host-" + ifName, Addrs: addrs(1)},
		nstest.End{Host: w.cont, Name: ifName, Addrs: addrs(2)})
}

const (
	in      = `"ingressRate": 8000000, "ingressBurst": 800000`
	out     = `"egressRate": 16000000, "egressBurst": 1600000`
	both    = in + ", " + out
	refName = "bwp623e1c388032" // the reference's for network "net" and container "c1"
)

// call returns a call for eth0 of container c1 with these keys.
func (w *world) call(command string, keys ...string) Call {
	GinkgoHelper()
	return w.callFor("eth0", command, keys...)
}

func (w *world) callFor(ifName, command string, keys ...string) Call {
	GinkgoHelper()
	return Call{Command: command, ID: "c1", IfName: ifName, Netns: w.cont.Path, Conf: conf("1.1.0", append(keys,
		fmt.Sprintf(`"prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "host-%s", "mac": %q}, {"name": %q,
			"sandbox": %q}]}`, ifName, Show(w.Host, "host-"+ifName).Address, ifName, w.cont.Path))...)}
}

func conf(version string, keys ...string) string {
	keys = slices.DeleteFunc(append([]string{fmt.Sprintf(`"cniVersion": %q, "name": "net", "type": "bandwidth"`,
		version)}, keys...), func(s string) bool { return s == "" })
	return "{" + strings.Join(keys, ", ") + "}"
}

// state returns all limits on the host, without values that vary between reads.
func (w *world) state() string {
	GinkgoHelper()
	return w.tc("host-eth0") + w.Cmd("ip", "-br", "link", "show", "type", "ifb") + w.Snapshot("links", "sysctls")
}

// The number of queues depends on the processors of the machine.
var queues = regexp.MustCompile(` refcnt \d+`)

// tc returns the output of tc(8) for a link and for the IFBs.
func (w *world) tc(name string) string {
	GinkgoHelper()
	lines := strings.Split(w.Cmd("tc", "qdisc", "show", "dev", name), "\n")
	lines = append(lines, strings.Split(w.Cmd("tc", "filter", "show", "dev", name, "parent", "ffff:"), "\n")...)
	for _, ifb := range Names(w.Host, "ifb") {
		lines = append(lines, ifb+": "+w.Cmd("tc", "qdisc", "show", "dev", ifb))
	}
	var all strings.Builder
	for _, l := range lines {
		if words := strings.Fields(l); len(words) > 0 && words[0] != "index" { // of actions
			all.WriteString(queues.ReplaceAllString(strings.Join(words, " "), "") + "\n")
		}
	}
	return strings.ReplaceAll(all.String(), "*flowid", "flowid") // as newer releases of tc print it
}

// talks reports whether container and host reach each other. It first flushes the neighbor tables, which
// may contain failed entries.
func (w *world) talks() bool {
	GinkgoHelper()
	IP(w.Host, "neigh flush all")
	IP(w.cont, "neigh flush all")
	return Ping(w.cont, "10.1.0.1")
}

// isCutOff reports whether the host does not answer within a second.
func (w *world) isCutOff() bool {
	GinkgoHelper()
	return w.cont.Run(nstest.Program{Path: "ping", Args: []string{"-c1", "-w1", "-n", "10.1.0.1"}}).Exit != 0
}

// alias returns the alias of a link.
func (w *world) alias(name string) string {
	GinkgoHelper()
	return Show(w.Host, name).Ifalias
}

const (
	ingressTC = `qdisc tbf 1: root rate 8Mbit burst 100000b lat 25ms
`
	ingressQdisc = "qdisc ingress ffff: parent ffff:fff1 ----------------\n"
	redirectTC   = ingressQdisc + `filter protocol all pref 1 u32 chain 0
filter protocol all pref 1 u32 chain 0 fh 800: ht divisor 1
filter protocol all pref 1 u32 chain 0 fh 800::800 order 2048 key ht 800 bkt 0 flowid 1:1 not_in_hw
match 00000000/00000000 at 0
action order 1: mirred (Egress Redirect to device IFB) stolen
`
	ifbTC = `IFB: qdisc tbf 1: root rate 16Mbit burst 200000b lat 25ms
`
	noTC = "qdisc noqueue 0: root\n"
)

var _ = Describe("ADD", Label("kernel"), func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	DescribeTable("adds the requested limits", Label("bandwidth-numbers"), func(keys, want string) {
		r := w.Add(w.call("ADD", keys))
		Expect(w.tc("host-eth0")).To(Equal(strings.ReplaceAll(want, "IFB", refName)))
		Expect(Ping(w.Host, "10.1.0.2")).To(BeTrue())
		if !strings.Contains(want, "IFB") {
			Expect(r.Interfaces).To(HaveLen(2))
			Expect(Names(w.Host, "ifb")).To(BeEmpty())
			return
		}
		ifb := Show(w.Host, refName)
		Expect(r.Interfaces).To(HaveLen(3))
		Expect(r.Interfaces[2].Name + r.Interfaces[2].MAC + r.Interfaces[2].Sandbox).To(Equal(refName + ifb.Address))
		Expect(ifb.MTU).To(Equal(Show(w.Host, "host-eth0").MTU))
		Expect(ifb.Flags).To(ContainElements("UP", "NOARP"))
		Expect(ifb.Ifalias).To(Equal(cni.Attachment{Network: "net", ContainerID: "c1", IfName: "eth0"}.Mark()))
	},
		Entry("for received packets", in, ingressTC),
		Entry("for sent packets", out, "qdisc noqueue 0: root\n"+redirectTC+ifbTC),
		Entry("for both", both, ingressTC+redirectTC+ifbTC),
		Entry("of the runtime", `"runtimeConfig": {"bandwidth": {`+both+`}}`, ingressTC+redirectTC+ifbTC),
		Entry("none", ``, noTC), Entry("none, by 0",
			`"ingressRate": 0, "runtimeConfig": {"bandwidth": {`+both+`}}`, noTC),
		Entry("with a burst that passes few packets, as the reference does",
			`"ingressRate": 50000000, "ingressBurst": 500000`,
			"qdisc tbf 1: root rate 50Mbit burst 62500b lat 25ms\n"),
	)

	It("has the reference's numbers with a warning if they pass no full packet", func() {
		a := w.Call(w.call("ADD", `"ingressRate": 8, "ingressBurst": 8, "egressRate": 16, "egressBurst": 8`))
		a.Added()
		Expect(a.Stderr).To(And(ContainSubstring("ingressBurst: 8 is less than"),
			ContainSubstring("egressBurst: 8 is less than")))
		Expect(w.tc("host-eth0")).To(And(HavePrefix("qdisc tbf 1: root rate 8bit burst 1b lat 0us\n"),
			HaveSuffix("rate 16bit burst 1b lat 0us\n")))
		w.Succeeds(w.call("CHECK", `"ingressRate": 8, "ingressBurst": 8, "egressRate": 16, "egressBurst": 8`))
	})

	It("works again, with other limits, and after a DEL that left the pair", Label("bandwidth-del"), func() {
		w.Add(w.call("ADD", both))
		w.Add(w.call("ADD", `"ingressRate": 16000000, "ingressBurst": 800000`))
		Expect(w.tc("host-eth0")).To(Equal("qdisc tbf 1: root rate 16Mbit burst 100000b lat 25ms\n"))
		w.Add(w.call("ADD", out))
		Expect(w.tc("host-eth0")).To(Equal(noTC + strings.ReplaceAll(redirectTC+ifbTC, "IFB", refName)))
		w.Add(w.call("ADD", in))
		Expect(w.tc("host-eth0")).To(Equal(ingressTC))
		w.Add(w.call("ADD", both))
		Expect(w.tc("host-eth0")).To(Equal(strings.ReplaceAll(ingressTC+redirectTC+ifbTC, "IFB", refName)))
		w.Succeeds(w.call("DEL", both))
		Expect(w.tc("host-eth0")).To(Equal(noTC))
		w.Add(w.call("ADD", both))
		Expect(Ping(w.Host, "10.1.0.2")).To(BeTrue())
	})

	DescribeTable("fails, and changes nothing", func(prepare, keys string, code uint, want string) {
		if prepare != "" {
			w.Cmd("sh", "-ec", prepare)
		}
		before := w.state()
		Expect(w.Fails(w.call("ADD", keys), code)).To(HavePrefix(want))
		Expect(w.state()).To(Equal(before))
	},
		Entry("with another qdisc", "tc qdisc add dev host-eth0 root handle 1: pfifo", both, cni.CodeConflict,
			`link "host-eth0": add tbf: file exists: `),
		Entry("with another program's TBF",
			"tc qdisc add dev host-eth0 root handle 5: tbf rate 1mbit burst 9kb latency 1s",
			in, cni.CodeConflict, `link "host-eth0": add tbf: file exists: `),
		Entry("with a clsact qdisc", "tc qdisc add dev host-eth0 clsact", both,
			cni.CodeConflict, `link "host-eth0": add ingress qdisc: `),
		Entry("with another program's filter",
			"tc qdisc add dev host-eth0 ingress; tc filter add dev host-eth0 ingress protocol ip "+
				"u32 match u32 0 0 flowid 1:5", out, cni.CodeConflict, `link "host-eth0": add ingress qdisc: `),
		Entry("with another program's ingress qdisc without a filter", "tc qdisc add dev host-eth0 ingress", both,
			cni.CodeConflict, `link "host-eth0": add ingress qdisc: `),
		Entry("with other links that have the names",
			"ip link add "+refName+" type ifb; ip link set "+refName+" alias x; ip link add bwp"+
				hash("eth0")+" type bridge", out, cni.CodeConflict, `ifb "bwp`+hash("eth0")+`": create: file exists: `),
		Entry("with a burst that no packet passes", "", `"ingressRate": 8000000, "ingressBurst": 80, `+out,
			cni.CodeConfig, "ingressBurst: 80 is less than a packet of 1514 bytes"),
		Entry("with a burst that rounding makes too small", "", `"egressRate": 100000000, "egressBurst": 12192`,
			cni.CodeConfig, "egressBurst: 12192 is less than a packet of 1514 bytes"),
		Entry("with a bad limit", "", `"ingressRate": 5`, cni.CodeConfig, "ingressRate: 5 is neither"),
	)

	It("fits the container's packets, also on a host end with the MTU of other containers", func() {
		IP(w.Host, "link set host-eth0 mtu 9000")
		small := `"ingressRate": 8000000, "ingressBurst": 50000`
		w.Add(w.call("ADD", small))
		w.Succeeds(w.call("CHECK", small))

		By("whose MTU changes")
		huge := `"ingressRate": 8000000, "ingressBurst": 2147483647`
		w.Add(w.call("ADD", huge))
		IP(w.Host, "link set host-eth0 mtu 1500")
		w.Succeeds(w.call("CHECK", huge))
	})

	It("is still correct after the container's MTU is lowered", func() {
		const defaults = `"ingressRate": 8000000, "ingressBurst": 2147483647, ` +
			`"egressRate": 8000000, "egressBurst": 2147483647`
		IP(w.Host, "link set host-eth0 mtu 9000")
		IP(w.cont, "link set eth0 mtu 9000")
		w.Add(w.call("ADD", defaults))
		IP(w.cont, "link set eth0 mtu 1450")
		was := w.state()
		c := w.call("CHECK", defaults)
		w.Succeeds(c)
		Expect(w.Reapply(c)).To(BeEmpty())
		Expect(w.state()).To(Equal(was))
	})

	It("needs no ingress qdisc to limit received packets, and leaves another program's", func() {
		w.Cmd("tc", "qdisc", "add", "dev", "host-eth0", "ingress")
		w.Add(w.call("ADD", in))
		Expect(w.tc("host-eth0")).To(Equal(ingressTC + ingressQdisc))
		w.Succeeds(w.call("DEL", in))
		Expect(w.tc("host-eth0")).To(Equal(noTC + ingressQdisc))
		w.Succeeds(w.call("DEL", in))
		Expect(w.tc("host-eth0")).To(Equal(noTC + ingressQdisc))
	})

	DescribeTable("that fails does not change the limits of a live attachment", Label("bandwidth-add-fails"), func(
		live, again, interference string,
	) {
		w.Add(w.call("ADD", live))
		c := w.call("ADD", again)
		c.Stdout = BrokenPipe{}
		if interference != "" {
			w.Cmd("sh", "-ec", interference)
			c.Stdout = nil
		}
		before := w.state()
		a := w.Call(c)
		Expect(a.Code).To(Equal(1), a.Stderr)
		Expect(a.Stderr).NotTo(ContainSubstring("roll-back"))
		Expect(w.state()).To(Equal(before))
		Expect(w.talks()).To(BeTrue())
		w.Succeeds(w.call("DEL"))
		Expect(Names(w.Host, "ifb")).To(BeEmpty())
	},
		Entry("with the same limits", both, both, ""),
		Entry("with other limits", both, `"ingressRate": 16000000, "ingressBurst": 800000`, ""),
		Entry("with the other direction", in, out, ""),
		Entry("with both directions", out, both, ""),
		Entry("with another direction and another program's qdisc", out, both, "tc qdisc add dev host-eth0 root pfifo"),
		Entry("with another direction and another program's filter", in, both,
			"tc qdisc add dev host-eth0 ingress; tc filter add dev host-eth0 ingress protocol ip "+
				"u32 match u32 0 0 flowid 1:5"),
	)

	DescribeTable("refuses a chain that it cannot serve", func(prepare, ifName, prev string, code uint, want string) {
		if prepare != "" {
			w.cont.Cmd("sh", "-ec", prepare)
		}
		if prev != "" {
			prev = `"prevResult": ` + prev
		}
		c := Call{Command: "ADD", ID: "c1", IfName: ifName, Netns: w.cont.Path, Conf: conf("1.1.0", both, prev)}
		Expect(w.Fails(c, code)).To(HavePrefix(want))
		Expect(w.tc("host-eth0")).To(Equal(noTC))
	},
		Entry("without the interface", "", "eth7", prevOf("host-eth0"), cni.CodeEnvironment,
			`CNI_IFNAME "eth7": no such`),
		Entry("without host interfaces", "", "eth0", `{"cniVersion": "1.1.0"}`, cni.CodeConfig,
			`prevResult.interfaces: has no interface of the host that is the other end of "eth0"`),
		Entry("another host end", "", "eth0", prevOf("host-eth1"), cni.CodeConfig, "prevResult.interfaces: has no"),
		Entry("with both ends in the container", "ip link add a0 type veth peer b0", "a0", prevOf("host-eth0"),
			cni.CodeConfig, "prevResult.interfaces: has no"),
	)
})

func prevOf(host string) string {
	return `{"cniVersion": "1.1.0", "interfaces": [{"name": "` + host + `"}]}`
}

// hash returns the part of an IFB's second name that depends on the attachment.
func hash(ifName string) string {
	return cni.Attachment{Network: "net", ContainerID: "c1", IfName: ifName}.Hash()[:12]
}

var _ = Describe("two interfaces of one container on one network", Label("kernel"), func() {
	It("each have their own limits", Label("bandwidth-two"), func() {
		w := newWorld()
		w.wire("eth1", 2)
		before := w.tc("host-eth1")
		w.Add(w.callFor("eth0", "ADD", both))
		w.Add(w.callFor("eth1", "ADD", both))
		Expect(Names(w.Host, "ifb")).To(ConsistOf(refName, "bwp"+hash("eth1")))
		w.Succeeds(w.callFor("eth0", "CHECK", both))
		w.Succeeds(w.callFor("eth1", "CHECK", both))
		w.Succeeds(w.callFor("eth0", "DEL"))
		Expect(Names(w.Host, "ifb")).To(ConsistOf("bwp" + hash("eth1")))
		w.Succeeds(w.callFor("eth1", "CHECK", both))
		Expect(Ping(w.Host, "10.2.0.2") && Ping(w.Host, "10.1.0.2")).To(BeTrue())
		w.Succeeds(w.callFor("eth1", "DEL"))
		Expect(w.tc("host-eth1")).To(Equal(before))
	})
})

var _ = Describe("DEL", Label("kernel"), func() {
	var w *world
	var before string
	BeforeEach(func() {
		w = newWorld()
		before = w.state()
		w.Add(w.call("ADD", both))
	})

	DescribeTable("leaves nothing, and a pair that works", Label("bandwidth-del"), func(change func(c *Call)) {
		c := w.call("DEL", both)
		change(&c)
		w.Succeeds(c)
		Expect(w.state()).To(Equal(before))
		Expect(w.talks()).To(BeTrue())
		w.Succeeds(c)
	},
		Entry("with everything", func(*Call) {}),
		Entry("without limits", func(c *Call) { c.Conf = w.call("DEL").Conf }),
		Entry("with bad limits", func(c *Call) { c.Conf = w.call("DEL", `"ingressRate": -1, "burst": 5`).Conf }),
		Entry("without the namespace", func(c *Call) { c.Netns = "" }),
		Entry("with a namespace that is gone", func(c *Call) { c.Netns = "/run/netns/gone" }),
	)

	DescribeTable("leaves nothing where", Label("bandwidth-del"), func(loses func(*nstest.Host), path string) {
		c := w.call("DEL")
		c.Netns = path
		loses(w.cont)
		w.Succeeds(c)
		Expect(w.state()).To(Equal(before))
		Expect(w.talks()).To(BeTrue())
	}, PathsElsewhere())

	It("finds the host end by the redirection to the IFB, without prevResult and namespace", func() {
		w.Succeeds(Call{Command: "DEL", ID: "c1", Conf: conf("1.1.0")})
		Expect(w.state()).To(Equal(before))
	})

	It("finds a host end without an IFB by Hawser's mark", func() {
		w.Succeeds(w.call("DEL"))
		w.Add(w.call("ADD", in))
		a := cni.Attachment{Network: "net", ContainerID: "c1", IfName: "eth0"}
		IP(w.Host, "link set host-eth0 down")
		IP(w.Host, "link set host-eth0 name veth%s", a.Hash()[:8])
		w.Cmd("ip", "link", "set", "veth"+a.Hash()[:8], "alias", a.Mark(), "up")
		w.Succeeds(Call{Command: "DEL", ID: "c1", Conf: conf("1.1.0")})
		Expect(w.Cmd("tc", "qdisc", "show", "dev", "veth"+a.Hash()[:8])).To(HavePrefix("qdisc noqueue"))
	})

	It("removes the IFB of a pair that no longer exists", func() {
		IP(w.Host, "link del host-eth0")
		w.Succeeds(Call{Command: "DEL", ID: "c1", Netns: w.cont.Path, // prevResult has only names
			Conf: conf("1.1.0", `"prevResult": `+prevOf("host-eth0"))})
		Expect(Names(w.Host, "ifb")).To(BeEmpty())
	})

	It("removes the redirection to an IFB that no longer exists, so that the container can send", func() {
		IP(w.Host, "link del "+refName)
		Expect(w.isCutOff()).To(BeTrue())
		w.Succeeds(w.call("DEL"))
		Expect(w.state()).To(Equal(before))
		Expect(w.talks()).To(BeTrue())
	})

	It("leaves other programs' qdiscs and filters", func() {
		w.Cmd("sh", "-ec", "tc qdisc del dev host-eth0 root; tc qdisc add dev host-eth0 root handle 1: pfifo; "+
			"tc filter add dev host-eth0 ingress protocol ip pref 9 u32 match u32 0 0 "+
			"action mirred egress mirror dev lo")
		w.Succeeds(w.call("DEL"))
		Expect(w.tc("host-eth0")).To(And(ContainSubstring("pfifo 1:"), ContainSubstring("pref 9"),
			Not(ContainSubstring("pref 1 "))))
		Expect(w.talks()).To(BeTrue())
	})

	It("leaves other attachments' IFBs", func() {
		for _, id := range []string{"c2", "c", "c11"} {
			w.Succeeds(Call{Command: "DEL", ID: id, Conf: conf("1.1.0")})
		}
		w.Succeeds(Call{Command: "DEL", ID: "1", Conf: strings.ReplaceAll(conf("1.1.0"), `"net"`, `"netc"`)})
		Expect(Names(w.Host, "ifb")).To(ConsistOf(refName))
		w.Succeeds(w.call("CHECK", both))
	})
})

var _ = Describe("an IFB without mark", Label("kernel"), func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("of the reference is replaced by ADD, passes CHECK and is removed by DEL", func() {
		before := w.state()
		w.Reference(nstest.Newest(), w.call("ADD", both)).Added()
		w.Succeeds(w.call("CHECK", both))
		w.Add(w.call("ADD", both))
		Expect(w.alias(refName)).NotTo(BeEmpty())
		w.Succeeds(w.call("DEL"))
		w.Reference(nstest.Newest(), w.call("ADD", both)).Added()
		w.Succeeds(w.call("DEL"))
		Expect(w.state()).To(Equal(before))
	})

	It("was removed by the reference's DEL, which leaves the redirection, and ADD works", func() {
		w.Reference(nstest.Newest(), w.call("ADD", both)).Added()
		Expect(w.Reference(nstest.Newest(), w.call("DEL", both)).Code).To(BeZero())
		Expect(w.isCutOff()).To(BeTrue(), "by the reference")
		w.Add(w.call("ADD", both))
		Expect(w.talks()).To(BeTrue())
	})

	DescribeTable("of the reference is removed by the first DEL of an old list, which has no prevResult",
		func(change func(c *Call)) {
			before := w.state()
			w.Reference(nstest.Newest(), w.call("ADD", both)).Added()
			c := Call{Command: "DEL", ID: "c1", IfName: "eth0", Netns: w.cont.Path, Conf: conf("0.3.1", both)}
			change(&c)
			w.Succeeds(c)
			Expect(w.state()).To(Equal(before))
			Expect(w.talks()).To(BeTrue())
		},
		Entry("with the namespace", func(*Call) {}),
		Entry("without the namespace", func(c *Call) { c.Netns = "" }),
		Entry("with a namespace that is gone", func(c *Call) { c.Netns = "/run/netns/gone" }),
	)

	It("of another interface is not removed by the DEL of an old list", func() {
		w.wire("eth1", 2)
		w.Reference(nstest.Newest(), w.callFor("eth1", "ADD", both)).Added()
		for _, ifName := range []string{"eth0", "eth7"} { // eth7 no longer exists
			w.Succeeds(Call{Command: "DEL", ID: "c1", IfName: ifName, Netns: w.cont.Path, Conf: conf("0.3.1", both)})
			Expect(Names(w.Host, "ifb")).To(ConsistOf(refName))
			w.Succeeds(w.callFor("eth1", "CHECK", both))
		}
	})

	It("of a killed ADD is removed by DEL and by GC", func() {
		group := fmt.Sprint(cni.NetworkHash("net"))
		IP(w.Host, "link add %s group %s type ifb", refName, group)
		w.Succeeds(w.call("DEL"))
		IP(w.Host, "link add %s group %s type ifb", refName, group)
		IP(w.Host, "link add bwp%s group %s type ifb", hash("eth0"), group)
		w.gc("net", "c1")
		Expect(Names(w.Host, "ifb")).To(ConsistOf(refName, "bwp"+hash("eth0")), "an ADD may be about to mark them")
		w.gc("net")
		Expect(Names(w.Host, "ifb")).To(BeEmpty())
	})

	DescribeTable("of a killed ADD, whose first name another IFB has, is removed", func(clean func()) {
		a := cni.Attachment{Network: "net", ContainerID: "c1", IfName: "eth0"}
		IP(w.Host, "link add %s type ifb", refName)
		w.Cmd("ip", "link", "set", refName, "alias", a.Mark()) // so that markIFB ends with its first message
		w.Host.Do(func() {
			c := call{Call: &netplugin.Call{Req: &skel.Request{Attachment: a}}, conn: nstest.Must(rtnl.Dial(nil))}
			defer c.conn.Close()
			ifb := nstest.Must(c.addIFB(ifbNames(a)[1], 1500, &filter{TBF: newTBF(1e6, 1e5)}))
			_, err := c.markIFB(ifb, refName)
			Expect(err).To(MatchError(unix.EEXIST))
		})
		IP(w.Host, "link del "+refName)
		Expect(Names(w.Host, "ifb")).To(ConsistOf("bwp" + hash("eth0")))
		clean()
		Expect(Names(w.Host, "ifb")).To(BeEmpty())
	},
		Entry("by DEL", func() { w.Succeeds(w.call("DEL")) }),
		Entry("by DEL without prevResult and namespace", func() {
			w.Succeeds(Call{Command: "DEL", ID: "c1", Conf: conf("1.1.0")})
		}),
		Entry("by GC", func() { w.gc("net", "c2") }),
	)

	It("of a killed ADD is removed by GC with the host end's qdisc, which has no redirection yet", func() {
		a := cni.Attachment{Network: "net", ContainerID: "c1", IfName: "eth0"}
		w.Cmd("ip", "link", "set", "host-eth0", "alias", a.Mark())
		before := w.state()
		w.Add(w.call("ADD", out))
		w.Cmd("tc", "filter", "del", "dev", "host-eth0", "ingress")
		w.gc("net")
		Expect(w.state()).To(Equal(before))
	})
})

// gc runs a GC for which eth0 of these containers is valid.
func (w *world) gc(network string, ids ...string) {
	GinkgoHelper()
	valid := []Object{}
	for _, id := range ids {
		valid = append(valid, Object{"containerID": id, "ifname": "eth0"})
	}
	w.Succeeds(Call{Command: "GC", Conf: Object{"cniVersion": "1.1.0", "name": network, "type": "bandwidth",
		"cni.dev/valid-attachments": valid}})
}

var _ = Describe("GC and STATUS", Label("kernel"), func() {
	It("removes limits of attachments that are not valid, only of this network, and the pair still works", func() {
		w := newWorld()
		before := w.state()
		w.Add(w.call("ADD", both))
		limited := w.state()
		w.gc("net", "c1")
		w.gc("other")
		Expect(w.state()).To(Equal(limited))
		w.gc("net", "c2")
		Expect(w.state()).To(Equal(before))
		Expect(w.talks()).To(BeTrue())
	})

	It("queries the kernel, and changes nothing, even if lo has a qdisc", func() {
		w := newWorld()
		w.Cmd("tc", "qdisc", "add", "dev", "lo", "root", "handle", "1:", "pfifo")
		before := w.state() + w.Cmd("tc", "qdisc")
		w.Succeeds(Call{Command: "STATUS", Conf: conf("1.1.0", both)})
		Expect(w.Fails(Call{Command: "STATUS", Conf: conf("1.1.0", `"ingressRate": 5`)},
			cni.CodeConfig)).NotTo(BeEmpty())
		Expect(w.state() + w.Cmd("tc", "qdisc")).To(Equal(before))
	})
})

var _ = Describe("CHECK", Label("kernel"), func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	DescribeTable("finds changes since ADD", Label("bandwidth-check"), func(commands, want string) {
		w.Add(w.call("ADD", both))
		w.Succeeds(w.call("CHECK", both))
		c := w.call("CHECK", both)
		w.Cmd("sh", "-ec", strings.ReplaceAll(commands, "IFB", refName))
		Expect(w.Fails(c, cni.CodeDrift)).To(MatchRegexp(want))
	},
		Entry("no filter", "tc qdisc del dev host-eth0 root",
			`^ingress limit: interface "host-eth0": has no filter\n`),
		Entry("another rate", "tc qdisc change dev host-eth0 root handle 1: tbf rate 9mbit burst 100000 limit 125000",
			`^ingress limit: interface "host-eth0": the filter is `),
		Entry("another burst", "tc qdisc change dev host-eth0 root handle 1: tbf rate 8mbit burst 100008 limit 125000",
			`^ingress limit: interface "host-eth0": the filter is `),
		Entry("an additional peak rate", "tc qdisc change dev host-eth0 root handle 1: tbf rate 8mbit burst 100000 "+
			"limit 125000 peakrate 9mbit mtu 1540", `^ingress limit: interface "host-eth0": the filter is `),
		Entry("another limit", "tc qdisc change dev host-eth0 root handle 1: tbf rate 8mbit burst 100000 limit 125001",
			`^ingress limit: interface "host-eth0": the filter is `),
		Entry("another qdisc in its place",
			"tc qdisc del dev host-eth0 root; tc qdisc add dev host-eth0 root handle 1: pfifo",
			`^ingress limit: interface "host-eth0": has the qdisc "pfifo" `),
		Entry("the redirection is gone", "tc filter del dev host-eth0 ingress",
			`^egress limit: .* redirects nothing\n`),
		Entry("no ingress qdisc", "tc qdisc del dev host-eth0 ingress", `^egress limit: .* redirects nothing\n`),
		Entry("another filter comes first", "tc filter del dev host-eth0 ingress; tc filter add dev host-eth0 ingress "+
			"protocol all pref 1 u32 match u32 0 0 flowid 1:5", `^egress limit: .* redirects to no interface`),
		Entry("a redirection to another link",
			"ip link add x type ifb; tc filter del dev host-eth0 ingress; tc filter add dev host-eth0 "+
				"ingress protocol all pref 1 u32 match u32 0 0 action mirred egress redirect dev x",
			`^egress limit: .* redirects to x, which is not this attachment's`),
		Entry("a redirection of only some packets", "tc filter del dev host-eth0 ingress; tc filter add dev host-eth0 "+
			"ingress protocol all pref 1 u32 match ip dst 10.9.0.0/16 action mirred egress redirect dev IFB",
			`^egress limit: .* redirects only some packets`),
		Entry("a redirection of only IPv4", "tc filter del dev host-eth0 ingress; tc filter add dev host-eth0 "+
			"ingress protocol ip pref 1 u32 match u32 0 0 action mirred egress redirect dev IFB",
			`^egress limit: .* redirects only some packets`),
		Entry("no IFB", "ip link del IFB", `^egress limit: .* redirects to no interface`),
		Entry("the IFB is down", "ip link set IFB down", `^egress limit: .* redirects to bwp.*, which is down`),
		Entry("the IFB's filter is gone", "tc qdisc del dev IFB root", `^egress limit: interface "bwp.*": has `),
		Entry("another filter of the IFB",
			"tc qdisc change dev IFB root handle 1: tbf rate 17mbit burst 200000 limit 250000",
			`^egress limit: interface "bwp.*": the filter is `),
		Entry("no filter and no IFB", "tc qdisc del dev host-eth0 root; ip link del IFB",
			`^ingress limit: .*has no filter\n(.|\n)*egress limit: .* redirects to no`),
		Entry("another name of the host end", "ip link set host-eth0 down; ip link set host-eth0 name other",
			`^prevResult.interfaces: has no interface`),
	)

	DescribeTable("finds what reapply restores if the IFB still exists", Label("bandwidth-reapply"), func(
		damage, keys string,
	) {
		w.Add(w.call("ADD", both, keys))
		c := w.call("CHECK", both, keys)
		state := func() string {
			return w.state() + w.Cmd("sh", "-c",
				"for h in ingress egress; do tc filter show dev host-eth0 $h; done | wc -l")
		}
		whole := state()
		w.Cmd("sh", "-ec", strings.ReplaceAll(damage, "IFB", refName))
		w.Fails(c, cni.CodeDrift)
		Expect(w.Reapply(c)).To(BeEmpty())
		w.Succeeds(c)
		Expect(state()).To(Equal(whole))
	},
		Entry("the redirection is gone", "tc filter del dev host-eth0 ingress", ""),
		Entry("its qdisc is missing", "tc qdisc del dev host-eth0 ingress", ""),
		Entry("both redirections are missing", "tc qdisc del dev host-eth0 clsact", `"exempt": ["10.9.0.0/16"]`),
		Entry("a filter for exempt packets is missing", "tc filter del dev host-eth0 egress pref 11 protocol ip",
			`"exempt": ["10.9.0.0/16"]`),
		Entry("the IFB is down", "ip link set IFB down", ""),
		Entry("the IFB's filter is gone", "tc qdisc del dev IFB root", ""),
	)

	It("finds that an IFB is missing, which reapply does not restore", Label("bandwidth-reapply"), func() {
		w.Add(w.call("ADD", both))
		c := w.call("CHECK", both)
		w.Cmd("ip", "link", "del", refName)
		was := w.state()
		Expect(w.Reapply(c)).To(ContainSubstring("egress limit: not restored: an IFB is missing; restart the"))
		Expect(w.state()).To(Equal(was))
	})

	It("succeeds without limits", func() { w.Succeeds(w.call("CHECK")) })

	It("also accepts a runtime's default burst as the reference's ADD uses it", func() {
		const sentinel = `"ingressRate": 20000000, "ingressBurst": 4294967295, ` +
			`"egressRate": 20000000, "egressBurst": 2147483647`
		w.Reference(nstest.Newest(), w.call("ADD", sentinel)).Added()
		w.Succeeds(w.call("CHECK", sentinel))
		w.Add(w.call("ADD", sentinel))
		Expect(w.tc("host-eth0")).To(ContainSubstring("rate 20Mbit burst 125000b lat 25ms"))
		w.Succeeds(w.call("CHECK", sentinel))
		w.Add(w.call("ADD", sentinel, `"burst": "literal"`))
		Expect(w.tc("host-eth0")).To(ContainSubstring("rate 20Mbit burst 512Mb lat 25ms"))
	})
})

var _ = It("is listed until DEL, and the list changes nothing", Label("kernel"), func() {
	nstest.Need("tbf", "ifb")
	w := NewWorld(Plugin())
	n := 1
	w.ExpectHeld(func(id, network string) (Call, []string) {
		n++
		a := w.AttachBehind(id, network, Object{"ingressRate": 8000000, "ingressBurst": 800000,
			"egressRate": 16500000, "egressBurst": 1600000}, Addrs(n)...)
		return a.As("DEL"), []string{
			"limit: ingress rate 8Mbit dev " + a.Result.Interfaces[1].Name,
			"limit: egress rate 16500Kbit dev " + a.Result.Interfaces[3].Name}
	})
})

var _ = It("leaves a host end with the mark of another attachment as it is", Label("kernel", "others-by-now"), func() {
	nstest.Need("tbf", "ifb")
	w := NewWorld(Plugin())
	a := w.AttachBehind("one", "net", Object{"ingressRate": 8000000, "ingressBurst": 800000,
		"egressRate": 16500000, "egressBurst": 1600000}, Addrs(2)...)
	other := a.As("DEL")
	other.ID = "two"
	w.Succeeds(other)
	w.Succeeds(a.As("CHECK"))
	other.Command = "ADD"
	Expect(w.Fails(other, cni.CodeConflict)).To(ContainSubstring(
		`belongs to network "net", container "one", interface "eth0"`))
	w.Succeeds(a.As("CHECK"))
})

var _ = It("is listed with its direction if the container's ID is too long for a mark", Label("kernel"), func() {
	w := newWorld()
	c := w.call("ADD", both, exempt)
	c.ID = strings.Repeat("c", 150)
	w.Add(c)
	Expect(Held(w.Holdings(""))).To(ConsistOf(ContainSubstring("egress rate 16Mbit"),
		ContainSubstring("ingress rate 8Mbit")))
})

var _ = DescribeTable("reads records of earlier versions, and writes current ones",
	ExpectFormerRecord[netplugin.NetnsRecord],
	Entry("before 0.2.0",
		`"path": "/run/netns/c1", "netns": ID, "link": 2, "made": ["ifb0"]`,
		`"netnsPath": "/run/netns/c1", "netns": ID, "link": 2, "made": ["ifb0"]`))
