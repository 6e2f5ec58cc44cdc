package sbr

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/statefile"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestSBR(t *testing.T) { nstest.RunSpecs(t, "sbr") }

// world is a container whose interfaces eth0 and eth1 are each connected to a separate router.
type world struct {
	*World
	cont    *nstest.Host
	routers map[string]*nstest.Host
}

// newWorld assigns the addresses to eth1 and connects it to a router.
func newWorld(addrs ...string) *world {
	GinkgoHelper()
	w := &world{World: NewWorld(Plugin()), cont: nstest.NewNetns(), routers: map[string]*nstest.Host{}}
	w.link("eth0", "10.1.0.2/24")
	w.link("eth1", addrs...)
	IP(w.cont, "route add default via 10.1.0.1")
	return w
}

func (w *world) link(name string, addrs ...string) {
	GinkgoHelper()
	w.routers[name] = Cable(w.cont, name)
	for _, a := range addrs {
		IP(w.cont, "addr add %s dev %s", a, name)
		if addr, _, _ := strings.Cut(a, "/"); strings.Contains(addr, ":") { // its route appears later
			Eventually(func() string { return IP(w.cont, "-6 route show table local dev %s", name) }).
				Should(ContainSubstring("local " + addr))
			Eventually(func() string { return IP(w.cont, "-6 addr show tentative dev %s", name) }).
				Should(BeEmpty())
		}
	}
}

// call returns a call for eth1 with these addresses in prevResult ("10.2.0.2/24 10.2.0.1" is an address with its
// gateway).
func (w *world) call(command string, keys Object, addrs ...string) Call {
	GinkgoHelper()
	ips := []Object{{"address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 0}}
	for _, a := range addrs {
		address, gateway, _ := strings.Cut(a, " ")
		ip := Object{"address": address, "interface": 2}
		if gateway != "" {
			ip["gateway"] = gateway
		}
		ips = append(ips, ip)
	}
	prev := Object{"cniVersion": "1.1.0", "ips": ips, "interfaces": []Object{
		{"name": "eth0", "sandbox": w.cont.Path}, {"name": "eth1"}, {"name": "eth1", "sandbox": w.cont.Path}}}
	conf := Object{"cniVersion": "1.1.0", "name": "net", "type": "sbr", "prevResult": prev}
	return Call{Command: command, IfName: "eth1", Netns: w.cont.Path, Conf: Merge(conf, keys)}
}

// add runs an ADD that must succeed without warnings.
func (w *world) add(keys Object, addrs ...string) Result {
	GinkgoHelper()
	a := w.Call(w.call("ADD", keys, addrs...))
	Expect(a.Stderr).To(BeEmpty())
	return a.Added()
}

func (w *world) del(keys Object) {
	GinkgoHelper()
	w.Succeeds(w.call("DEL", Merge(keys, Object{"prevResult": nil})))
}

// rules returns the rules that the kernel did not create, in the form "10.2.0.2 100".
func (w *world) rules() []string {
	GinkgoHelper()
	out := []string{}
	for _, family := range []string{"-4", "-6"} {
		var rules []struct{ Src, Table string }
		w.cont.JSON(&rules, "ip", "-j", family, "rule")
		for _, r := range rules {
			if r.Src != "all" {
				out = append(out, r.Src+" "+r.Table)
			}
		}
	}
	return out
}

// routes returns the unicast routes of a table as ip(8) prints them.
func (w *world) routes(table string) []string {
	GinkgoHelper()
	var out []string
	for _, family := range []string{"-4", "-6"} {
		done := w.cont.Run(nstest.Program{Path: "ip", Args: []string{family, "route", "show", "table", table}})
		for line := range strings.Lines(done.Stdout) {
			if !strings.HasPrefix(line, "multicast") {
				out = append(out, strings.TrimSpace(strings.ReplaceAll(line, " pref medium", "")))
			}
		}
	}
	return out
}

// sends returns the link through which the container sends packets from an address.
func (w *world) sends(from, to string) string {
	GinkgoHelper()
	var way []struct{ Dev, Gateway string }
	w.cont.JSON(&way, "ip", "-j", "route", "get", to, "from", from)
	Expect(way).To(HaveLen(1))
	return strings.TrimSpace(way[0].Dev + " " + way[0].Gateway)
}

// same matches a route as ip(8) prints it, in any order of its attributes.
func same(route string) OmegaMatcher {
	words := func(s string) []string { return strings.Fields(s) }
	return WithTransform(words, ConsistOf(words(route)))
}

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(Plugin()) })

// fuzzPrev is a result without gateways, because eth0 of the container has no address from which one is reachable.
const fuzzPrev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"` + FuzzNetns +
	`"}],"ips":[{"address":"10.1.0.2/24","interface":0},{"address":"fd01::2/64"}]}`

// FuzzCall generates whole calls.
func FuzzCall(f *testing.F) {
	Fuzz{
		Plugin: Plugin().Untyped(), Chained: true,
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","type":"sbr","gateways":["10.1.0.9","fd01::9"],"addSourceHints":true,` +
				`"cni.dev/valid-attachments":[],` + fuzzPrev + `}`,
			`{"cniVersion":"1.0.0","name":"net","table":77,` + fuzzPrev + `}`,
			`{"name":"net","prevResult":{"ip4":{"ip":"10.1.0.2/24"}}}`,
			`{"cniVersion":"1.1.0","name":"net","table":255,"gateways":["x"]}`,
		},
	}.Run(f)
}

// FuzzFiles damages the records.
func FuzzFiles(f *testing.F) {
	Fuzz{
		Plugin: Plugin().Untyped(), Chained: true,
		Confs: []string{`{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":` +
			`[{"containerID":"one","ifname":"eth0"}],` + fuzzPrev + `}`},
	}.RunFiles(f, recordDir, ``, `[]`, `{"network":"net","containerID":"one","ifname":"eth0","plan":{"rules":[{"src":`+
		`"10.1.0.2/32","table":100}],"moved":[{"header":{"Family":2,"Dst_len":24,"Table":254,"Type":1},`+
		`"attrs":[{"kind":1,"value":"CgEAAA=="},{"kind":9,"value":"EAAAAAE="}]}]}}`,
		`{"network":"net","containerID":"one","ifname":"eth0","plan":{"rules":[{"src":"0.0.0.0/0","table":254},`+
			`{"table":1}],"defaults":[{"Dst":"10.1.0.0/33","GW":"x"}],`+
			`"moved":[{"attrs":[{"kind":15,"value":"/w=="}]}]}}`)
}

const (
	v4 = "10.2.0.2/24 10.2.0.1"
	v6 = "fd02::2/64 fd02::1"
)

var _ = Describe("ADD", func() {
	It("gives each address a table with its routes, and takes them out of main", func() {
		w := newWorld("10.2.0.2/24", "fd02::2/64")
		r := w.add(nil, v4, v6)
		Expect(r.Interfaces).To(HaveLen(3))
		Expect(w.rules()).To(Equal([]string{"10.2.0.2 100", "fd02::2 101"}))
		Expect(w.routes("100")).To(ConsistOf("default via 10.2.0.1 dev eth1",
			"10.2.0.0/24 dev eth1 proto kernel scope link src 10.2.0.2"))
		Expect(w.routes("101")).To(ConsistOf("default via fd02::1 dev eth1 metric 1024",
			"fd02::/64 dev eth1 proto kernel metric 256"))
		Expect(w.routes("main")).To(ConsistOf("default via 10.1.0.1 dev eth0",
			"10.1.0.0/24 dev eth0 proto kernel scope link src 10.1.0.2"))
		Expect(w.sends("10.2.0.2", "192.0.2.1")).To(Equal("eth1 10.2.0.1"))
		Expect(w.sends("10.1.0.2", "192.0.2.1")).To(Equal("eth0 10.1.0.1"))
	})

	It("uses table numbers above those in use", func() {
		w := newWorld("10.2.0.2/24", "fd02::2/64")
		w.cont.IP("rule add from 10.9.0.1 lookup 100", "route add 10.9.0.0/16 dev eth0 table 102")
		w.add(nil, v4, v6)
		Expect(w.rules()).To(ConsistOf("10.9.0.1 100", "10.2.0.2 101", "fd02::2 103"))
	})

	It("gives addresses of two subnets their own routes, and each the shared ones", Label("sbr-sources"), func() {
		w := newWorld("10.2.0.2/24", "10.3.0.2/24")
		w.cont.IP("route add 10.20.0.0/16 via 10.2.0.9", "route add 10.30.0.0/16 via 10.3.0.9 metric 7",
			"route add 192.168.5.1 dev eth1", "route add 10.99.0.0/16 via 192.168.5.1 mtu 1400")
		IP(w.cont, "route add 10.2.0.0/16 dev eth1") // also contains the second subnet
		w.add(nil, v4, "10.3.0.2/24")
		nobody := []any{"192.168.5.1 dev eth1 scope link", "10.2.0.0/16 dev eth1 scope link",
			"10.99.0.0/16 via 192.168.5.1 dev eth1 mtu 1400"}
		Expect(w.routes("100")).To(ConsistOf(append(nobody, "default via 10.2.0.1 dev eth1",
			"10.2.0.0/24 dev eth1 proto kernel scope link src 10.2.0.2", "10.20.0.0/16 via 10.2.0.9 dev eth1")...))
		Expect(w.routes("101")).To(ConsistOf(append(nobody,
			"10.3.0.0/24 dev eth1 proto kernel scope link src 10.3.0.2",
			"10.30.0.0/16 via 10.3.0.9 dev eth1 metric 7")...))
		Expect(w.routes("main")).To(HaveLen(2))
	})

	It("copies all that a route says", Label("routes-whole"), func() {
		w := newWorld("10.2.0.2/24", "fd02::2/64")
		const v4route = "10.20.0.0/16 via 10.2.0.9 dev eth1 tos 0x10 metric 5 realms 7/9 mtu lock 1300 window 4000 " +
			"initcwnd 20 initrwnd 30 quickack 1"
		const v6route = "fd09::/16 via fd02::9 dev eth1 metric 7 mtu lock 1300 hoplimit 9 pref high"
		IP(w.cont, "route add "+v4route)
		IP(w.cont, "-6 route add "+v6route)
		IP(w.cont, "-6 route add fd77::/16 dev eth1 metric 9")         // belongs to no address; not for the IPv4 table
		IP(w.cont, "route add default via 10.2.0.9 dev eth1 tos 0x10") // distinct from the one without a TOS
		before := w.routes("main")
		w.add(nil, v4, v6)
		Expect(w.routes("100")).To(ConsistOf(HavePrefix("default via 10.2.0.1"), HavePrefix("10.2.0.0/24 "),
			"default tos 0x10 via 10.2.0.9 dev eth1", same(v4route)))
		Expect(w.routes("101")).To(ContainElements(same(v6route), "fd77::/16 dev eth1 metric 9"))
		w.Succeeds(w.call("CHECK", nil, v4, v6))
		IP(w.cont, "%s", strings.Replace("route change "+v4route+" table 100", "1300", "1301", 1))
		Expect(w.Fails(w.call("CHECK", nil, v4, v6), cni.CodeDrift)).To(ContainSubstring("route 10.20.0.0/16: missing"))
		w.del(nil)
		Expect(w.routes("main")).To(Equal(before))
	})

	DescribeTable("gives the table's default route all that the main table's has", Label("routes-whole"), func(
		keys Object, gw4, gw6 string,
	) {
		w := newWorld("10.2.0.2/24", "10.3.0.2/24", "fd02::2/64")
		IP(w.cont, "route del default")
		IP(w.cont, "route add default via 10.2.0.1 dev eth1 metric 5 mtu 1400 advmss 1360 initcwnd 20")
		IP(w.cont, "-6 route add default dev eth1 metric 7 mtu 1300 hoplimit 9 nexthop via fd02::1 nexthop via fd02::8")
		before := w.cont.Snapshot()
		const second = "10.3.0.2/24 10.3.0.1"
		w.add(keys, v4, second, v6)
		Expect(w.routes("100")).To(ConsistOf(HavePrefix("10.2.0.0/24 "),
			same("default via "+gw4+" dev eth1 metric 5 mtu 1400 advmss 1360 initcwnd 20")))
		Expect(w.routes("101")).To(ConsistOf(HavePrefix("10.3.0.0/24 "),
			HavePrefix("default via 10.3.0.1 dev eth1 metric 5 mtu 1400 advmss 1360 initcwnd 20")))
		Expect(w.routes("102")).To(ContainElement(same(gw6)))
		w.Succeeds(w.call("CHECK", keys, v4, second, v6))
		w.del(keys)
		Expect(w.cont.Snapshot()).To(Equal(before))
	},
		Entry("its gateway too", nil, "10.2.0.1", "default metric 7 mtu 1300 hoplimit 9"),
		Entry("but the gateway, with gateways", Object{"gateways": []string{"fd02::9"}}, "10.2.0.1",
			"default via fd02::9 dev eth1 metric 7 mtu 1300 hoplimit 9"),
	)

	It("copies many routes, which CHECK compares without comparing each pair", func() {
		w := newWorld("10.2.0.2/24")
		w.cont.Cmd("sh", "-ec", `for i in $(seq 500); do echo "route add 10.200.$((i / 250)).$((i % 250)) dev eth1"
			done | ip -batch -`)
		var addrs []string
		for i := range 30 {
			addrs = append(addrs, fmt.Sprintf("10.2.%d.2/24", i))
		}
		w.add(nil, addrs...)
		began := time.Now()
		w.Succeeds(w.call("CHECK", nil, addrs...))
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Patience(5*time.Second)))
		w.del(nil)
	})

	It("gives no address's table the source of another one", Label("sbr-sources"), func() {
		w := newWorld("10.2.0.2/24", "10.3.0.2/24")
		IP(w.cont, "route replace default via 10.2.0.1 dev eth1 src 10.2.0.2 mtu 1400")
		const second = "10.3.0.2/24 10.3.0.1"
		w.add(nil, v4, second)
		Expect(w.routes("100")).To(ContainElement(same("default via 10.2.0.1 dev eth1 src 10.2.0.2 mtu 1400")))
		Expect(w.routes("101")).To(ContainElement(same("default via 10.3.0.1 dev eth1 mtu 1400")))
		w.Succeeds(w.call("CHECK", nil, v4, second))
	})

	It("gives the table's default route what the result says where the main table has none", func() {
		w := newWorld("10.2.0.2/24", "fd02::2/64")
		says := func(gw4, gw6 string) Object {
			return Object{"gateways": []string{gw4, gw6}, "prevResult": Object{"cniVersion": "1.1.0",
				"ips": []Object{{"address": "10.2.0.2/24", "gateway": "10.2.0.1"}, {"address": "fd02::2/64"}},
				"routes": []Object{{"dst": "0.0.0.0/0", "mtu": 1400, "advmss": 1360, "priority": 5, "table": 254},
					{"dst": "::/0", "gw": "fd02::1", "mtu": 1300},
					{"dst": "0.0.0.0/0", "gw": "10.2.0.3", "table": 50}}}}
		}
		got := w.add(says("10.2.0.9", "fd02::9"))
		Expect(w.routes("100")).To(ContainElement(same("default via 10.2.0.9 dev eth1 metric 5 mtu 1400 advmss 1360")))
		Expect(w.routes("101")).To(ContainElement(same("default via fd02::9 dev eth1 metric 1024 mtu 1300")))
		By("telling the gateways in the result")
		Expect(got.Routes).To(HaveExactElements(HaveKeyWithValue("gw", "10.2.0.9"), HaveKeyWithValue("gw", "fd02::9"),
			HaveKeyWithValue("gw", "10.2.0.3")))
		w.Succeeds(w.call("CHECK", says("10.2.0.9", "fd02::9")))
	})

	It("copies only the next hops through the interface", Label("routes-whole"), func() {
		w := newWorld("10.2.0.2/24", "fd02::2/64")
		IP(w.cont, "-6 addr add fd01::2/64 dev eth0 nodad")
		IP(w.cont, "route add 10.50.0.0/16 nexthop via 10.2.0.8 weight 3 nexthop via 10.2.0.9")
		IP(w.cont, "route add 10.51.0.0/16 nexthop via 10.2.0.8 nexthop via 10.1.0.9 nexthop via 10.1.0.8")
		IP(w.cont, "-6 route add fd51::/16 nexthop via fd02::8 nexthop via fd01::9")
		before := w.cont.Snapshot()
		w.add(nil, v4, v6)
		Expect(w.routes("100")).To(ConsistOf(HavePrefix("default "), HavePrefix("10.2.0.0/24 "),
			"10.50.0.0/16", "nexthop via 10.2.0.8 dev eth1 weight 3", "nexthop via 10.2.0.9 dev eth1 weight 1",
			"10.51.0.0/16 via 10.2.0.8 dev eth1"))
		Expect(w.routes("101")).To(ContainElement("fd51::/16 via fd02::8 dev eth1 metric 1024"))
		Expect(w.routes("main")).To(ConsistOf(HavePrefix("default "), HavePrefix("10.1.0.0/24 "), "10.51.0.0/16",
			"nexthop via 10.2.0.8 dev eth1 weight 1", "nexthop via 10.1.0.9 dev eth0 weight 1",
			"nexthop via 10.1.0.8 dev eth0 weight 1", HavePrefix("fd01::/64 "),
			"fd51::/16 via fd01::9 dev eth0 metric 1024"))
		IP(w.cont, "-6 route del fd51::/16") // as sbr does for eth0
		w.Succeeds(w.call("CHECK", nil, v4, v6))
		IP(w.cont, "-6 route add fd51::/16 via fd01::9 dev eth0")
		w.del(nil)
		Expect(strings.Fields(w.cont.Snapshot())).To(ConsistOf(strings.Fields(before)))
	})

	DescribeTable("takes the default route's gateway", func(keys Object, addr, want string) {
		w := newWorld("10.2.0.2/24")
		w.add(keys, addr)
		Expect(w.routes("100")).To(ContainElement(want))
	},
		Entry("from gateways first", Object{"gateways": []string{"10.2.0.9"}}, v4, "default via 10.2.0.9 dev eth1"),
		Entry("which may be outside the subnet", Object{"gateways": []string{"10.99.0.1"}}, v4,
			"default via 10.99.0.1 dev eth1 onlink"),
		Entry("also for a single address", nil, "10.2.0.2/32 169.254.1.1", "default via 169.254.1.1 dev eth1 onlink"),
		Entry("where 0.0.0.0 means none", nil, "10.2.0.2/24 0.0.0.0", "default dev eth1"),
		Entry("where :: means none", Object{"gateways": []string{"::"}}, "fd02::2/64", "default dev eth1 metric 1024"),
		Entry("from a default route of the result last", Object{"prevResult": Object{"cniVersion": "1.1.0",
			"ips":    []Object{{"address": "10.2.0.2/24"}},
			"routes": []Object{{"dst": "0.0.0.0/0", "gw": "10.2.0.7"}}}}, "", "default via 10.2.0.7 dev eth1"),
	)

	It("without a gateway makes no default route", func() {
		w := newWorld("10.2.0.2/24")
		w.add(nil, "10.2.0.2/24")
		Expect(w.routes("100")).To(ConsistOf("10.2.0.0/24 dev eth1 proto kernel scope link src 10.2.0.2"))
	})

	It("keeps the subnets in main with addSourceHints", func() {
		w := newWorld("10.2.0.2/24", "fd02::2/64")
		w.cont.IP("route add 10.20.0.0/16 via 10.2.0.9", "route add 192.168.5.1 dev eth1")
		before := w.cont.Snapshot()
		w.add(Object{"addSourceHints": true}, v4, v6)
		Expect(w.routes("main")).To(ConsistOf(HavePrefix("default via 10.1.0.1"), HavePrefix("10.1.0.0/24 "),
			"10.2.0.0/24 dev eth1 scope link src 10.2.0.2", "192.168.5.1 dev eth1 scope link",
			"fd02::/64 dev eth1 src fd02::2 metric 1024"))
		w.Succeeds(w.call("CHECK", Object{"addSourceHints": true}, v4, v6))
		w.del(nil)
		Expect(w.cont.Snapshot()).To(Equal(before))
	})

	It("waits with addSourceHints until an address can be a source", func() {
		w := newWorld("10.2.0.2/24")
		w.cont.SetSysctl("net/ipv6/conf/eth1/accept_dad", "1")
		IP(w.cont, "-6 addr add fd02::2/64 dev eth1") // tentative for a second
		w.add(Object{"addSourceHints": true}, v6)
		Expect(w.routes("main")).To(ContainElement("fd02::/64 dev eth1 src fd02::2 metric 1024"))
	})

	It("only makes rules with table, and moves no route", func() {
		w := newWorld("10.2.0.2/24", "fd02::2/64")
		before := w.routes("main")
		w.add(Object{"table": 5000}, v4, v6)
		Expect(w.rules()).To(Equal([]string{"10.2.0.2 5000", "fd02::2 5000"}))
		Expect(w.routes("main")).To(Equal(before))
		Expect(w.routes("5000")).To(BeEmpty())
		w.Succeeds(w.call("CHECK", Object{"table": 5000}, v4, v6))
		Expect(w.Fails(w.call("CHECK", Object{"table": 5001}, v4, v6), cni.CodeDrift)).
			To(ContainSubstring("rule from 10.2.0.2/32: missing"))
		w.del(nil)
		Expect(w.rules()).To(BeEmpty())
	})

	It("answers through the interface that was asked, with real packets on two uplinks", Label("sbr-answers"), func() {
		w := newWorld("10.2.0.2/24")
		for name, net := range map[string]string{"eth0": "10.1.0", "eth1": "10.2.0"} {
			w.routers[name].IP("link set lo up", "addr add 192.0.2.1/32 dev lo",
				"addr add "+net+".1/24 dev port")
		}
		w.cont.Serve("tcp", "10.2.0.2:80")
		IP(w.routers["eth1"], "route replace 10.2.0.0/24 dev port src 192.0.2.1")
		ask := func(limit time.Duration) error {
			_, err := w.routers["eth1"].AskWithin(nstest.Patience(limit), "tcp", "10.2.0.2:80")
			return err
		}
		Expect(ask(time.Second)).NotTo(Succeed(), "the answer leaves through eth0, and is lost there")
		w.add(nil, v4)
		Expect(ask(nstest.Hang)).To(Succeed())
	})

	It("again is refused and changes nothing; after DEL it works", Label("sbr-add-fails"), func() {
		w := newWorld("10.2.0.2/24", "fd02::2/64")
		w.add(nil, v4, v6)
		before := w.cont.Snapshot()
		Expect(w.Fails(w.call("ADD", nil, v4, v6), cni.CodeExists)).To(ContainSubstring(`"eth1"`))
		Expect(w.cont.Snapshot()).To(Equal(before))
		w.del(nil)
		w.add(nil, v4, v6)
		Expect(w.cont.Snapshot()).To(Equal(before))
	})

	It("for a recreated interface replaces the rules of the former one", func() {
		w := newWorld("10.2.0.2/24")
		w.add(nil, v4)
		IP(w.cont, "link del eth1")
		w.link("eth1", "10.2.0.2/24")
		w.add(nil, v4)
		Expect(w.rules()).To(HaveLen(1))
		w.del(nil)
		Expect(w.rules()).To(BeEmpty())
	})

	It("of eight interfaces at once gives each a table", Label("sbr-parallel"), func() {
		w := newWorld("10.2.0.2/24")
		var calls []Call
		for i := range 8 {
			name := fmt.Sprintf("net%d", i)
			w.link(name, fmt.Sprintf("10.50.%d.2/24", i))
			c := w.call("ADD", Object{"prevResult": Object{"cniVersion": "1.1.0", "ips": []Object{
				{"address": fmt.Sprintf("10.50.%d.2/24", i), "gateway": fmt.Sprintf("10.50.%d.1", i)}}}})
			c.IfName = name
			calls = append(calls, c)
		}
		answers := make([]Answer, len(calls))
		nstest.AtOnce(len(calls), func(i int) { answers[i] = w.Call(calls[i]) })
		tables := map[string]bool{}
		for _, a := range answers {
			a.Added()
		}
		for _, r := range w.rules() {
			tables[strings.Fields(r)[1]] = true
		}
		Expect(tables).To(HaveLen(8))
	})

	DescribeTable("refuses", func(keys Object, code int, message string) {
		w := newWorld("10.2.0.2/24")
		before := w.cont.Snapshot()
		Expect(w.Fails(w.call("ADD", keys, v4), uint(code))).To(ContainSubstring(message))
		w.IsAsBefore(w.cont, before, recordDir)
	},
		Entry("two gateways of a family", Object{"gateways": []string{"10.2.0.1", "fd02::1", "10.2.0.3"}}, 7,
			`gateways[2]: "10.2.0.3" is one of multiple IPv4 addresses, after 10.2.0.1`),
		Entry("a result without addresses of the interface", Object{"prevResult": Object{"cniVersion": "1.1.0",
			"interfaces": []Object{{"name": "eth1"}}, "ips": []Object{{"address": "10.2.0.2/24", "interface": 0}}}}, 7,
			`prevResult: has no address of interface "eth1"`),
	)

	It("names an interface that is down", Label("sbr-add-fails"), func() {
		w := newWorld("10.2.0.2/24")
		IP(w.cont, "link set eth1 down")
		before := w.cont.Snapshot()
		Expect(w.Fails(w.call("ADD", nil, v4), cni.CodeEnvironment)).To(HavePrefix(`CNI_IFNAME "eth1": ` +
			`the interface is down and therefore has no routes: table 100: route 0.0.0.0/0 via 10.2.0.1: `))
		w.IsAsBefore(w.cont, before, recordDir)
	})

	It("that fails restores everything", Label("sbr-add-fails"), func() {
		w := newWorld("10.2.0.2/24")
		IP(w.cont, "route add 10.20.0.0/16 via 10.2.0.9")
		before := w.cont.Snapshot()
		// The kernel refuses a route whose source is not an address of the interface.
		Expect(w.Fails(w.call("ADD", Object{"addSourceHints": true}, "10.2.0.9/24"), cni.CodeInternal)).
			To(ContainSubstring("table 254: route 10.2.0.0/24: invalid argument"))
		w.IsAsBefore(w.cont, before, recordDir)
		c := w.call("ADD", nil, v4)
		c.Stdout = BrokenPipe{}
		Expect(w.Call(c).Code).NotTo(BeZero())
		w.IsAsBefore(w.cont, before, recordDir)
	})

	It("does not wait for a container that locks its namespace's file, in ADD and DEL", Label("sbr-parallel"), func() {
		w := newWorld("10.2.0.2/24")
		file := nstest.Must(os.Open(w.cont.Path))
		defer file.Close()
		Expect(unix.Flock(int(file.Fd()), unix.LOCK_EX)).To(Succeed())
		began := time.Now()
		w.Add(w.call("ADD", nil, v4))
		w.del(nil)
		Expect(time.Since(began)).To(BeNumerically("<", nstest.Patience(15*time.Second)), "the lock's limit is 30")
	})

	It("waits for another call in the namespace", Label("sbr-parallel"), func() {
		w := newWorld("10.2.0.2/24")
		var held *statefile.Lock
		w.Do(func() {
			n := nstest.Must(ns.Open(w.cont.Path))
			defer n.Close()
			held = nstest.Must(netplugin.LockNetns(context.Background(), n))
		})
		done := make(chan Answer)
		go func() {
			defer GinkgoRecover()
			done <- w.Call(w.call("ADD", nil, v4))
		}()
		Consistently(w.rules, "50ms").Should(BeEmpty())
		Expect(held.Unlock()).To(Succeed())
		(<-done).Added()
	})
})

var _ = Describe("DEL", func() {
	DescribeTable("restores what the interface had", Label("sbr-del"), func(keys Object) {
		w := newWorld("10.2.0.2/24", "fd02::2/64")
		IP(w.cont, "rule add from 10.2.0.2 lookup 200") // an administrator's
		IP(w.cont, "route add 10.20.0.0/16 via 10.2.0.9 metric 5 mtu 1300 proto static")
		IP(w.cont, "route add 10.21.0.0/16 via 172.30.0.1 dev eth1 onlink")
		IP(w.cont, "-6 route add fd09::/16 nexthop via fd02::8 nexthop via fd02::9")
		IP(w.cont, "route add 10.50.0.0/16 nexthop via 10.2.0.8 nexthop via 10.1.0.9")
		before := w.cont.Snapshot()
		w.add(keys, v4, v6)
		Expect(w.cont.Snapshot()).NotTo(Equal(before))
		w.del(nil)
		w.IsAsBefore(w.cont, before, recordDir)
		w.del(nil)
	},
		Entry("without keys", nil),
		Entry("with hints", Object{"addSourceHints": true}),
		Entry("with table", Object{"table": 77}),
	)

	DescribeTable("of a missing container succeeds and creates no file", func(path func(w *world) string) {
		w := newWorld("10.2.0.2/24")
		w.add(nil, v4)
		c := w.call("DEL", Object{"prevResult": nil})
		c.Netns = path(w)
		w.Succeeds(c)
		Expect(w.Records(recordDir)).To(BeEmpty())
		if c.Netns != "" {
			Expect(c.Netns).NotTo(BeAnExistingFile())
		}
	},
		Entry("with CNI_NETNS empty", func(*world) string { return "" }),
		Entry("with a path that no longer exists", func(w *world) string { w.cont.Unpin(); return w.cont.Path }),
	)

	DescribeTable("succeeds where a route cannot come back", func(change string) {
		w := newWorld("10.2.0.2/24", "fd02::2/64")
		IP(w.cont, "route add 10.20.0.0/16 via 10.2.0.9")
		w.add(nil, v4, v6)
		IP(w.cont, "%s", change)
		w.del(nil)
		Expect(w.rules()).To(BeEmpty())
		Expect(w.routes("100")).To(BeEmpty())
		Expect(w.Records(recordDir)).To(BeEmpty())
	},
		Entry("with the interface down", "link set eth1 down"),
		Entry("without its address", "addr del 10.2.0.2/24 dev eth1"),
	)

	It("of another network leaves the interface alone", func() {
		w := newWorld("10.2.0.2/24", "fd02::2/64")
		w.add(nil, v4, v6)
		before := w.cont.Snapshot()
		w.del(Object{"name": "other"})
		Expect(w.cont.Snapshot()).To(Equal(before))
		Expect(w.Records(recordDir)).To(HaveLen(1))
	})

	It("leaves an equal rule of another owner, also of an ADD that was killed", Label("sbr-del"), func() {
		w := newWorld("10.2.0.2/24")
		IP(w.cont, "rule add from 10.2.0.2 lookup 77")
		before := w.cont.Snapshot()
		w.add(Object{"table": 77}, v4)
		IP(w.cont, "rule del from 10.2.0.2 lookup 77 pref 32764") // as if the kill had come before it
		Expect(w.cont.Snapshot()).To(Equal(before))
		w.del(Object{"table": 77})
		Expect(w.cont.Snapshot()).To(Equal(before))
	})

	It("without the interface removes the rules", func() {
		w := newWorld("10.2.0.2/24")
		w.add(nil, v4)
		IP(w.cont, "link del eth1")
		w.del(nil)
		Expect(w.rules()).To(BeEmpty())
		Expect(w.Records(recordDir)).To(BeEmpty())
	})

	It("does not change another container that the path now refers to", Label("sbr-del"), func() {
		w := newWorld("10.2.0.2/24")
		w.add(nil, v4)
		other := newWorld("10.2.0.2/24")
		w.cont = other.cont
		c := w.call("ADD", nil, v4)
		c.ID = "two"
		w.Call(c).Added()
		before := w.cont.Snapshot()
		w.del(nil) // of the first attachment
		Expect(w.cont.Snapshot()).To(Equal(before))
		Expect(w.Records(recordDir)).To(HaveLen(1))
	})

	It("does not need the configuration", Label("sbr-del"), func() {
		w := newWorld("10.2.0.2/24")
		before := w.cont.Snapshot()
		w.add(nil, v4)
		w.del(Object{"table": "x", "gateways": 7})
		Expect(w.cont.Snapshot()).To(Equal(before))
	})
})

var _ = Describe("CHECK", func() {
	DescribeTable("finds", func(change, message string) {
		w := newWorld("10.2.0.2/24", "fd02::2/64")
		w.add(Object{"addSourceHints": true}, v4, v6)
		check := w.call("CHECK", Object{"addSourceHints": true}, v4, v6)
		w.Succeeds(check)
		IP(w.cont, "%s", change)
		Expect(w.Fails(check, cni.CodeDrift)).To(ContainSubstring(message))
	},
		Entry("a missing rule", "rule del from 10.2.0.2", "rule from 10.2.0.2/32: missing"),
		Entry("a missing default route", "route del default table 100",
			"table 100: route 0.0.0.0/0 via 10.2.0.1: missing"),
		Entry("a default route with another gateway", "route replace default via 10.2.0.7 table 100", "missing"),
		Entry("a missing copied route", "-6 route del fd02::/64 table 101", "table 101: route fd02::/64: missing"),
		Entry("a missing hint", "route del 10.2.0.0/24 table main", "table 254: route 10.2.0.0/24: missing"),
		Entry("a missing interface", "link del eth1", `interface "eth1": is missing`),
	)
})

var _ = Describe("GC", func() {
	It("removes only the records of invalid attachments of its network", func() {
		w := newWorld("10.2.0.2/24")
		for _, name := range []string{"net", "other"} {
			w.link(name, "10.4.0.2/24")
			c := w.call("ADD", Object{"name": name, "prevResult": Object{"cniVersion": "1.1.0",
				"ips": []Object{{"address": "10.4.0.2/24"}}}})
			c.IfName = name
			w.Call(c).Added()
		}
		gc := func(valid ...Object) {
			w.Succeeds(Call{Command: "GC", Conf: Object{"cniVersion": "1.1.0", "name": "net", "type": "sbr",
				"cni.dev/valid-attachments": append([]Object{}, valid...)}})
		}
		gc(Object{"containerID": "one", "ifname": "net"})
		Expect(w.Records(recordDir)).To(HaveLen(2))
		gc()
		Expect(w.Records(recordDir)).To(HaveLen(1))
	})
})

var _ = Describe("STATUS", func() {
	status := Call{Command: "STATUS", Conf: Object{"cniVersion": "1.1.0", "name": "net", "type": "sbr"}}

	It("succeeds where an ADD would", func() {
		w := newWorld()
		w.Succeeds(status)
	})

	It("names records that cannot be kept", func() {
		w := newWorld()
		w.Cmd("sh", "-c", "rm -rf /run/hawser && touch /run/hawser")
		Expect(w.Fails(status, cni.CodeUnavailable)).To(ContainSubstring("/run/hawser"))
	})
})

var _ = Describe("beside the reference plugin", func() {
	for _, ref := range nstest.QuickReferences() {
		const what = " makes the same for an address, and each removes the other's rules"
		DescribeTable("of "+ref.Name+what, func(addr string) {
			var made []string
			for _, by := range []string{"ours", "theirs"} {
				w := newWorld("10.2.0.2/24")
				IP(w.cont, "route add 10.20.0.0/16 via 10.2.0.9")
				// An administrator's rule, whose table number and routes differ from sbr's.
				for table, link := range map[string]string{"50": "eth1", "200": "eth0"} {
					IP(w.cont, "route add 192.0.2.0/24 dev %s table %s", link, table)
					IP(w.cont, "rule add from 10.2.0.2 lookup %s pref %s", table, table)
				}
				before := w.cont.Snapshot()
				call := w.call("ADD", Object{"cniVersion": "1.0.0"}, addr)
				call.Conf.(Object)["prevResult"].(Object)["cniVersion"] = "1.0.0"
				del := w.call("DEL", Object{"cniVersion": "1.0.0", "prevResult": nil})
				check := call
				check.Command = "CHECK"
				if by == "ours" {
					w.Exec(call).Added()
					made = append(made, fmt.Sprint(w.rules(), w.routes("100"), w.routes("main")))
					Expect(w.Reference(ref, del).Code).To(BeZero())
					Expect(w.rules()).To(BeEmpty())
					continue
				}
				w.Reference(ref, call).Added()
				made = append(made, fmt.Sprint(w.rules(), w.routes("100"), w.routes("main")))
				Expect(w.Exec(check)).To(Equal(Answer{}))
				Expect(w.Exec(del)).To(Equal(Answer{}))
				Expect(w.cont.Snapshot()).To(Equal(before))
			}
			Expect(made[1]).To(Equal(made[0]))
		},
			Entry("with a gateway", v4),
			Entry("where everything is on the link", "10.2.0.2/24 0.0.0.0"),
		)
	}
})

var _ = It("is listed until DEL, and the list changes nothing", Label("kernel"), func() {
	w := NewWorld(Plugin())
	n := 1
	w.ExpectHeld(func(id, network string) (Call, []string) {
		n++
		a := w.AttachBehind(id, network, nil, Addrs(n)...)
		for _, h := range w.Holdings(a.As("DEL").Stdin()) {
			Expect(h.NetnsPath).To(Equal(a.As("DEL").Netns))
		}
		return a.As("DEL"), []string{
			fmt.Sprintf("routing: from 10.1.0.%d/32 lookup 100", n),
			fmt.Sprintf("routing: from 2001:db8:1::%d/128 lookup 101", n)}
	})
})
