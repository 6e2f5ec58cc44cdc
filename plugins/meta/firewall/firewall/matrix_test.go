package firewall

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestFirewall(t *testing.T) { nstest.RunSpecs(t, "plugins/meta/firewall/firewall") }

// world is a host that forwards, with bridges, containers and a machine outside.
type world struct {
	*World
	out *nstest.Host // 192.0.2.2 and 2001:db8::2; the host has .1 and ::1
}

// newWorld returns a world with these bridges.
func newWorld(bridges ...int) *world {
	GinkgoHelper()
	nstest.Need("nft")
	w := &world{World: NewWorld(Plugin())}
	w.out = w.Router()
	for _, n := range bridges {
		w.Bridge(n)
	}
	return w
}

// container is a container of network n, with the result of the previous plugin.
type container struct {
	*nstest.Host
	w       *world
	hostEnd string
	addrs   []string // of IPv4 and IPv6, without their prefixes
	call    Call
	prev    Object
}

// container returns a new one with address number i, on bridge n if there is one.
func (w *world) container(n, i int) *container {
	GinkgoHelper()
	c := &container{Host: nstest.NewNetns(), w: w}
	hostEnd, ips := w.Join(c.Host, "eth0", n, i)
	c.hostEnd, c.addrs = hostEnd, []string{Addr(ips[0]), Addr(ips[1])}
	c.call = Call{ID: fmt.Sprintf("c%d-%d", n, i), Netns: c.Path}
	bridge, network := fmt.Sprintf("br%d", n), fmt.Sprintf("net%d", n)
	c.prev = Object{"cniVersion": "1.1.0",
		"interfaces": []Object{{"name": bridge}, {"name": c.hostEnd}, {"name": "eth0", "sandbox": c.Path}},
		"ips":        []Object{{"address": ips[0], "interface": 2}, {"address": ips[1], "interface": 2}}}
	c.call.Conf = Object{"cniVersion": "1.1.0", "name": network, "type": "firewall", "prevResult": c.prev}
	return c
}

// newContainer returns a world with the first container of bridge 1.
func newContainer() (*world, *container) {
	GinkgoHelper()
	w := newWorld(1)
	return w, w.container(1, 2)
}

// dropping is newContainer where FORWARD drops.
func dropping() (*world, *container) {
	GinkgoHelper()
	w := newWorld(1)
	w.forward("DROP")
	return w, w.container(1, 2)
}

// newContainers returns a world with two containers of bridge 1.
func newContainers() (w *world, a, b *container) {
	GinkgoHelper()
	w, a = newContainer()
	return w, a, w.container(1, 3)
}

// as returns a call for the container, with more keys. A nil value removes a key.
func (c *container) as(command string, more ...Object) Call {
	call := c.call
	call.Command = command
	call.Conf = Merge(append([]Object{c.call.Conf.(Object)}, more...)...)
	return call
}

func (c *container) add(more ...Object) {
	GinkgoHelper()
	c.w.Add(c.as("ADD", more...))
}

func (c *container) del(more ...Object) {
	GinkgoHelper()
	c.w.Succeeds(c.as("DEL", more...))
}

func (c *container) check(more ...Object) {
	GinkgoHelper()
	a := c.w.Call(c.as("CHECK", more...))
	Expect(a.Code).To(BeZero(), a.Stdout)
}

// drifts returns the differences that CHECK finds.
func (c *container) drifts(more ...Object) string {
	GinkgoHelper()
	return c.w.Fails(c.as("CHECK", more...), 101)
}

// gc is a GC of network n, of which these containers are valid.
func (w *world) gc(n int, valid ...*container) {
	GinkgoHelper()
	refs := []Object{}
	for _, c := range valid {
		refs = append(refs, Object{"containerID": c.call.ID, "ifname": "eth0"})
	}
	w.Succeeds(Call{Command: "GC", Conf: Object{"cniVersion": "1.1.0", "name": fmt.Sprintf("net%d", n),
		"type": "firewall", "cni.dev/valid-attachments": refs}})
}

// kind is a backend: its configuration, and the variant of iptables.
type kind struct {
	name    string
	config  Object
	variant string
}

func kinds() []kind {
	return []kind{
		{"nftables", Object{}, "nft"},
		{"nftables beside iptables-legacy", Object{}, "legacy"},
		{"iptables-nft", Object{"backend": "iptables"}, "nft"},
		{"iptables-legacy", Object{"backend": "iptables"}, "legacy"},
	}
}

// eachKind defines the specs for each backend.
func eachKind(specs func(k kind)) {
	for _, k := range kinds() {
		Context("on "+k.name, nstest.Variant(k.variant), func() {
			BeforeEach(func() { nstest.UseVariant(k.variant) })
			specs(k)
		})
	}
}

// forward creates chain FORWARD of both families, with a policy.
func (w *world) forward(policy string) {
	GinkgoHelper()
	w.Cmd("iptables", "-P", "FORWARD", policy)
	w.Cmd("ip6tables", "-P", "FORWARD", policy)
}

// filter returns table filter of both families as iptables lists it.
func (w *world) filter() string {
	GinkgoHelper()
	return w.Cmd("iptables", "-S") + w.Cmd("ip6tables", "-S")
}

// untouched is all that a call which fails, or has nothing to do, must leave as it is.
func (w *world) untouched() string {
	GinkgoHelper()
	return w.Snapshot("nftables", "iptables-legacy") + w.Files("/run/hawser")
}

// reaches reports whether a TCP connection from the host is answered.
func reaches(from *nstest.Host, to string, wanted bool) bool {
	GinkgoHelper()
	limit := nstest.Patience(nstest.Hang)
	if !wanted {
		limit = nstest.Patience(100 * time.Millisecond)
	}
	var err error
	from.Do(func() {
		var conn net.Conn
		if conn, err = net.DialTimeout("tcp", to, limit); err == nil {
			_ = conn.SetDeadline(time.Now().Add(limit))
			_, err = io.ReadAll(conn)
			_ = conn.Close()
		}
	})
	return err == nil
}

// pings says whether an echo request is answered: a wanted one may be lost while
// neighbors find each other, and is sent again.
func pings(from *nstest.Host, to string, wanted bool) bool {
	GinkgoHelper()
	if wanted {
		return Ping(from, to)
	}
	limit := nstest.Patience(100 * time.Millisecond)
	return from.Run(nstest.Program{Path: "ping", Args: []string{"-c1", "-n", "-W", fmt.Sprintf("%.1f", limit.Seconds()),
		to}}).Exit == 0
}

// setting is a combination: how the host filters, and the ingress policy of bridges 1 and 2.
type setting struct {
	kind
	drop, brNetfilter bool
	policy            policy
}

// path is a path of packets: a and a2 are on bridge 1, b is on bridge 2, c on bridge 3, which is open.
type path struct{ from, to string }

func paths() []path {
	return []path{{"a", "a2"}, {"a", "b"}, {"b", "a"}, {"a", "c"}, {"c", "a"}, {"a", "out"}, {"out", "a"},
		{"a", "gateway of b"}, {"out", "a's host port"}}
}

// open reports whether the packets arrive.
func (p path) open(s setting) bool {
	switch p {
	case path{"a", "a2"}:
		return s.policy != policyIsolated
	case path{"a", "b"}, path{"b", "a"}:
		return s.policy == policyOpen
	case path{"out", "a"}:
		return !s.drop
	case path{"out", "a's host port"}:
		return !s.drop || s.config["backend"] == nil
	}
	return true
}

// topology is shared by all paths.
type topology struct {
	w     *world
	hosts map[string]*nstest.Host
	addrs map[string][]string // of IPv4 and IPv6
}

const (
	servedPort = "80"
	hostPort   = "8080"
	dnat       = `add table inet test
add chain inet test pre { type nat hook prerouting priority dstnat; }
add rule inet test pre iifname ext tcp dport 8080 dnat ip to 10.1.0.2:80
add rule inet test pre iifname ext tcp dport 8080 dnat ip6 to [fd00:1::2]:80
`
)

func newTopology(k kind, p policy) topology {
	GinkgoHelper()
	nstest.Need("br_netfilter", "nft-inet-nat")
	w := newWorld(1, 2, 3)
	w.forward("ACCEPT")
	t := topology{w, map[string]*nstest.Host{"out": w.out}, map[string][]string{
		"out": {"192.0.2.2", "2001:db8::2"}, "gateway of b": {"10.2.0.1", "fd00:2::1"},
		"a's host port": {"192.0.2.1", "2001:db8::1"}}}
	for name, at := range map[string][2]int{"a": {1, 2}, "a2": {1, 3}, "b": {2, 2}, "c": {3, 2}} {
		c := w.container(at[0], at[1])
		keys := Object{"ingressPolicy": string(p)}
		if name == "c" {
			keys = nil
		}
		c.add(k.config, keys)
		c.check(k.config, keys)
		t.hosts[name], t.addrs[name] = c.Host, c.addrs
		c.Serve("tcp", "[::]:"+servedPort)
	}
	w.Serve("tcp", "[::]:"+servedPort)
	w.out.Serve("tcp", "[::]:"+servedPort)
	w.nft("%s", dnat)
	return t
}

var _ = Describe("packets", Label("kernel"), func() {
	for _, k := range kinds() {
		for _, p := range policies() {
			labels := nstest.Variant(k.variant)
			if p == policyIsolated {
				labels = nil
			}
			Context(fmt.Sprintf("on %s, ingressPolicy %s,", k.name, p), labels, Ordered, func() {
				var t topology
				BeforeAll(func() {
					nstest.UseVariant(k.variant)
					t = newTopology(k, p)
				})
				DescribeTable("pass as the table says", Label("policy"), func(target string, brNetfilter bool) {
					t.w.forward(target)
					t.w.SetBridgeNF(brNetfilter)
					t.walk(setting{k, target == "DROP", brNetfilter, p})
				},
					Entry("FORWARD accepts", "ACCEPT", false),
					Entry("FORWARD accepts, with br_netfilter", Label("slow"), "ACCEPT", true),
					Entry("FORWARD drops", Label("slow"), "DROP", false),
					Entry("FORWARD drops, with br_netfilter", "DROP", true),
				)
			})
		}
	}
})

// probe is one try of a path.
type probe struct {
	name   string
	wanted bool
	arrive func() bool
}

// walk tries all paths at once, over IPv4 and IPv6, by TCP and by ping.
func (t topology) walk(s setting) {
	GinkgoHelper()
	probes := t.probes(s)
	arrived := make([]bool, len(probes))
	nstest.AtOnce(len(probes), func(i int) { arrived[i] = probes[i].arrive() })
	found, want := map[string]bool{}, map[string]bool{}
	for i, p := range probes {
		found[p.name], want[p.name] = arrived[i], p.wanted
	}
	Expect(found).To(Equal(want))
}

func (t topology) probes(s setting) (out []probe) {
	for _, p := range paths() {
		from, open := t.hosts[p.from], p.open(s)
		for i, family := range []string{"IPv4", "IPv6"} {
			name, addr, port := fmt.Sprintf("%s > %s over %s", p.from, p.to, family), t.addrs[p.to][i], servedPort
			if p.to == "a's host port" {
				port = hostPort
			} else {
				out = append(out, probe{"ping " + name, open, func() bool { return pings(from, addr, open) }})
			}
			to := net.JoinHostPort(addr, port)
			out = append(out, probe{"tcp " + name, open, func() bool { return reaches(from, to, open) }})
		}
	}
	return out
}

var _ = Describe("the configuration", Ordered, func() {
	var w *world
	var c *container
	BeforeAll(func() {
		w, c = dropping()
	})

	DescribeTable("is refused with key and value before anything is done", func(keys Object, want ...string) {
		before := w.untouched()
		said := w.Fails(c.as("ADD", keys), 7)
		for _, text := range want {
			Expect(said).To(ContainSubstring(text))
		}
		Expect(w.untouched()).To(Equal(before))
		w.Fails(c.as("CHECK", keys), 7)
		c.del(keys)
		Expect(w.untouched()).To(Equal(before))
	},
		Entry("a chain with a line", Object{"iptablesAdminChainName": "A\n-F"}, "iptablesAdminChainName"),
		Entry("a target of iptables as a chain", Object{"iptablesAdminChainName": "ACCEPT"}, "iptablesAdminChainName",
			`"ACCEPT"`),
		Entry("a target that is loaded when a rule names it", Object{"iptablesAdminChainName": "MARK"}, `"MARK"`),
		Entry("all at once", Object{"backend": "x", "ingressPolicy": "y", "iptablesAdminChainName": " "}, "backend",
			"ingressPolicy", "iptablesAdminChainName"),
		Entry("no prevResult", Object{"prevResult": nil}, "prevResult"),
	)

	It("can have empty values for defaults", func() {
		keys := Object{"backend": "", "ingressPolicy": "", "iptablesAdminChainName": "", "acceptPublished": nil,
			"markAcceptBit": nil}
		c.add(keys)
		c.check()
	})

	DescribeTable("of a policy needs a bridge", func(prepare func(c *container)) {
		w := newWorld()
		c := w.container(1, 2)
		prepare(c)
		before := w.untouched()
		Expect(w.Fails(c.as("ADD", Object{"ingressPolicy": "same-bridge"}), 7)).To(ContainSubstring("ingressPolicy"))
		Expect(w.untouched()).To(Equal(before))
		c.add()
	},
		Entry("not only a host end, as of ptp", func(*container) {}),
		Entry("not no host end, as of macvlan", Label("kernel"), func(c *container) {
			nstest.Need("dummy")
			c.Cmd("ip", "link", "del", "eth0")
			c.Cmd("ip", "link", "add", "eth0", "type", "dummy")
		}),
		Entry("not no interface", func(c *container) { c.Cmd("ip", "link", "set", "eth0", "down", "name", "eth9") }),
		Entry("not a master of another kind", Label("kernel"), func(c *container) {
			nstest.Need("vrf")
			c.w.Cmd("ip", "link", "add", "vrf1", "type", "vrf", "table", "10")
			c.w.Cmd("ip", "link", "set", c.hostEnd, "master", "vrf1")
		}),
	)
})

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(Plugin()) })

// FuzzCall runs generated calls.
func FuzzCall(f *testing.F) {
	Fuzz{Plugin: Plugin().Untyped(), Chained: true, Confs: []string{
		`{"cniVersion":"1.1.0","name":"net","type":"firewall","backend":"nftables","cni.dev/valid-attachments":[],` +
			FuzzPrev + `}`,
		`{"cniVersion":"1.0.0","name":"net","ingressPolicy":"isolated","acceptPublished":false,` + FuzzPrev + `}`,
		`{"cniVersion":"0.4.0","name":"net","backend":"","iptablesAdminChainName":"MINE","markAcceptBit":5,` +
			FuzzPrev + `}`,
		`{"name":"net","prevResult":{"ip4":{"ip":"10.1.0.2/24"}},"ingressPolicy":"same-bridge"}`,
		`{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"}]}`,
	}}.Run(f)
}

// FuzzFiles damages the records.
func FuzzFiles(f *testing.F) {
	conf := `{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"}],` +
		FuzzPrev + `}`
	Fuzz{Plugin: Plugin().Untyped(), Chained: true, Confs: []string{conf}}.RunFiles(f, recordDir, ``, `{}`, `null`,
		`{"network":"net","containerID":"one","ifname":"eth0","backend":"nftables","addrs":["10.1.0.2"],`+
			`"adminChain":"CNI-ADMIN","policy":"isolated","bridge":"peer0","port":2,"setFlag":true}`,
		`{"network":"net","containerID":"one","ifname":"eth0","backend":"x","addrs":["fe80::1%a",""],`+
			`"adminChain":"-X","markAcceptBit":40,"policy":"closed","bridge":"../x","port":-1}`)
}
