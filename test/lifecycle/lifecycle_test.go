package lifecycle_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.opentelemetry.io/collector/pdata/ptrace"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestLifecycle(t *testing.T) { nstest.RunSpecs(t, "lifecycle: the plugins as runtimes drive them") }

// step returns a plugin that creates an interface, on m0 if it needs a master.
func step(plugin string) Step {
	keys := Object{"ipam": HostLocal("10.88.0.0/24")}
	switch plugin {
	case "macvlan", "ipvlan":
		keys["master"] = "m0"
	case "vlan":
		keys["master"], keys["vlanId"] = "m0", 5
	case "host-device":
		keys["device"] = "m1"
	case "bridge":
		keys["isGateway"] = true
	}
	return Step{Plugin: plugin, Keys: keys}
}

// Runtimes, operators and scripts look for these words of the reference plugins.
var _ = Describe("the reference's words", Label("kernel"), func() {
	var n *World
	var p *Pod
	BeforeEach(func() {
		n, p = NewNode(), NewPod("one")
		n.IP("link add m0 type veth peer name m1", "link set m0 up", "link set m1 up")
	})
	says := func(command string, s Step, words string) {
		GinkgoHelper()
		a := n.Chain(command, p, List{s})
		_, said := a.Error()
		Expect(said).To(ContainSubstring(words))
	}

	for _, plugin := range []string{"bridge", "ptp", "macvlan", "ipvlan", "vlan", "dummy", "tap", "host-device"} {
		const exists = `container veth name "eth0" already exists`
		need := func() {
			switch plugin {
			case "macvlan", "ipvlan", "dummy", "tap":
				nstest.Need(plugin)
			case "vlan":
				nstest.Need("8021q")
			}
		}
		It("are in "+plugin+"'s error about an interface that exists", func() {
			need()
			p.IP("link add eth0 type veth peer name x")
			says("ADD", step(plugin), exists)
		})
		It("are in "+plugin+"'s error about an attachment that exists", func() {
			need()
			n.Up(p, List{step(plugin)})
			says("ADD", step(plugin), exists)
			p.IP("link set eth0 down", "link set eth0 name other") // before Linux 6.2, only if it is down
			says("ADD", step(plugin), exists)
			p.IP("link set other name eth0")
		})
		It("are in "+plugin+"'s error about an IPAM program that is missing", func() {
			need()
			n.Dir = "/nowhere:/no where"
			s := step(plugin)
			says("ADD", s, `failed to find plugin "host-local" in path [/nowhere /no where]`)
		})
	}

	It("are in the errors about a bridge", func() {
		n.IP("link add cni0 type bridge", "addr add 10.244.0.1/24 dev cni0", "addr add fd00:88::5/60 dev cni0")
		s := step("bridge")
		says("ADD", s, `"cni0" already has an IP address different from 10.88.0.1/24`)
		s.Keys["ipam"] = HostLocal("fd00:88::/64")
		says("ADD", s, `"cni0" already has an IP address different from fd00:88::1/64`)
		s.Keys["bridge"] = "m0"
		says("ADD", s, `"m0" already exists but is not a bridge`)
	})

	It("are in the errors about a link that is missing", func() {
		nstest.Need("macvlan")
		for _, s := range []Step{{Plugin: "macvlan", Keys: Object{"master": "no"}},
			{Plugin: "host-device", Keys: Object{"device": "no"}}, {Plugin: "tap", Keys: Object{"bridge": "no"}}} {
			says("ADD", s, "Link not found")
		}
		p.Result = []byte(`{"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "` + p.Netns + `"}],
			"ips": [{"address": "10.88.0.2/24", "interface": 0}]}`)
		for _, s := range []Step{{Plugin: "tuning", Keys: Object{"mtu": 1400}}, {Plugin: "sbr"},
			{Plugin: "bandwidth", Keys: Object{"ingressRate": 8000000, "ingressBurst": 800000}},
			{Plugin: "vrf", Keys: Object{"vrfname": "red"}}} {
			says("ADD", s, "Link not found")
		}
	})

	It("are in the errors about a file that is not a namespace, and about an unknown version", func() {
		n.Spoiled = true // no runtime can send such a DEL
		p.Netns = "/etc/passwd"
		says("ADD", step("bridge"), `unknown FS magic on "/etc/passwd": `)
		n.Version = "9.9.9"
		says("ADD", step("bridge"), "incompatible CNI versions")
	})
})

// chainedLists has lists of plugins, by the feature that they need.
var chainedLists = map[string]List{
	"tbf": append(Usual(""), Step{Plugin: "bandwidth", Keys: Object{"egressRate": 8000000, "egressBurst": 800000}},
		Step{Plugin: "sbr"}),
	"tap": {{Plugin: "tap", Keys: Object{"ipam": HostLocal("10.88.0.0/24", "fd00:88::/64")}}},
	"nft": {{Plugin: "ptp", Keys: Object{"ipMasq": true, "ipam": HostLocal("10.88.0.0/24", "fd00:88::/64")}},
		{Plugin: "tuning", Keys: Object{"mac": "0a:00:00:00:00:01", "mtu": 1400}}},
	"vrf": {{Plugin: "bridge", Keys: Object{"bridge": "cni0", "ipam": HostLocal("10.88.0.0/24")}},
		{Plugin: "vrf", Keys: Object{"vrfname": "red"}}},
}

var _ = Describe("a list of plugins", Label("kernel", "versions"), func() {
	for _, version := range []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		for need, list := range chainedLists {
			It("is served in version "+version+", which the result has: "+list[0].Plugin+" and others", func() {
				nstest.Need(need)
				n, p := NewNode(), NewPod("one")
				n.Version = version
				list := list
				if version < "0.3.0" && need == "tbf" { // bandwidth refuses its results, which have no interfaces
					list = list.Only("bridge", "portmap", "firewall", "tuning", "sbr")
				}
				n.Up(p, list)
				var result struct{ CNIVersion string }
				Expect(json.Unmarshal(p.Result, &result)).To(Succeed())
				Expect(result.CNIVersion).To(Equal(version))
				Expect(string(p.Result)).To(ContainSubstring("10.88.0.2/24"))
				if version >= "0.4.0" { // which has CHECK
					n.Must("CHECK", p, list)
				}
				n.Must("DEL", p, list)
			})
		}
	}
})

// routes returns the ipam key with routes, and with an address of each family with these gateways.
func routes(gw4, gw6 string, routes ...Object) Object {
	return Object{"ipam": Object{"type": "static", "routes": routes, "addresses": []Object{
		{"address": "10.88.0.5/24", "gateway": gw4}, {"address": "fd00:88::5/64", "gateway": gw6}}}}
}

// everywhere returns default routes and others, with these keys.
func everywhere(keys Object) Object {
	var all []Object
	for _, dst := range []string{"0.0.0.0/0", "::/0", "10.99.0.0/16", "fd99::/48"} {
		all = append(all, Merge(Object{"dst": dst}, keys))
	}
	return routes("10.88.0.1", "fd00:88::1", all...)
}

// moved is a network whose routes a later plugin moves.
type moved struct {
	name     string
	main     Object // keys of the plugin that creates the interface
	sbr      Object // keys of sbr
	notOfPTP bool   // routes that ptp refuses, because its only gateway is the host
}

func movedNetworks() []moved {
	full := everywhere(Object{"mtu": 1400, "advmss": 1300, "priority": 5})
	asked := Object{"gateways": []string{"10.88.0.9", "fd00:88::9"}}
	return []moved{
		{name: "without other keys", main: everywhere(nil)},
		{name: "with all keys of a route", main: everywhere(Object{"mtu": 1400, "advmss": 1300, "priority": 5,
			"table": 254, "scope": 0})},
		{name: "of table 0", main: everywhere(Object{"table": 0})},
		{name: "of scope link", main: routes("10.88.0.1", "fd00:88::1", Object{"dst": "0.0.0.0/0", "scope": 253})},
		{name: "through their own gateways", main: routes("10.88.0.1", "fd00:88::1",
			Object{"dst": "0.0.0.0/0", "gw": "10.88.0.7"}, Object{"dst": "::/0", "gw": "fd00:88::7"}), notOfPTP: true},
		{name: "of which all are on the link", main: routes("0.0.0.0", "fd00:88::1", Object{"dst": "0.0.0.0/0"}),
			notOfPTP: true},
		{name: "to other gateways", main: everywhere(nil), sbr: asked},
		{name: "to no gateways", main: everywhere(nil), sbr: Object{"gateways": []string{"0.0.0.0", "::"}}},
		{name: "with source hints", main: full, sbr: Merge(asked, Object{"addSourceHints": true})},
		{name: "that stay", main: full, sbr: Merge(asked, Object{"table": 100})},
	}
}

var _ = Describe("CHECK passes after a later plugin moved the routes", Label("kernel", "check-before"), func() {
	passes := func(m moved, mover Step) {
		GinkgoHelper()
		w := NewNode()
		Uplink(w.Host)
		for _, main := range []Step{{Plugin: "bridge", Keys: Object{"bridge": "cni0"}}, {Plugin: "ptp"},
			{Plugin: "macvlan", Keys: Object{"master": "up0"}}} {
			if main.Plugin == "ptp" && m.notOfPTP {
				continue
			}
			list := List{{Plugin: main.Plugin, Keys: Merge(main.Keys, m.main)}, mover}
			w.Must("CHECK", w.Up(NewPod(main.Plugin), list), list)
		}
	}
	for _, m := range movedNetworks() {
		It(m.name+", by sbr", func() {
			nstest.Need("macvlan")
			passes(m, Step{Plugin: "sbr", Keys: m.sbr})
		})
		if m.sbr == nil {
			It(m.name+", by vrf", func() {
				nstest.Need("macvlan", "vrf")
				passes(m, Step{Plugin: "vrf", Keys: Object{"vrfname": "red"}})
			})
		}
	}
})

func logLines(file string) (list []Object) {
	GinkgoHelper()
	data := nstest.Must(os.ReadFile(file))
	for text := range strings.Lines(string(data)) {
		var l Object
		Expect(json.Unmarshal([]byte(text), &l)).To(Succeed(), text)
		list = append(list, l)
	}
	return list
}

var _ = Describe("the log of a node", func() {
	var n *World
	var file string
	BeforeEach(func() {
		n, file = NewNode(), filepath.Join(GinkgoT().TempDir(), "hawser.log")
	})

	It("has a line for each call of the runtime, and for each call of IPAM in them", func() {
		n.Env = []string{"HAWSER_LOG=" + file}
		p := n.Up(NewPod("one"), Usual(""))
		for _, command := range []string{"CHECK", "STATUS", "DEL"} {
			n.Must(command, p, Usual(""))
		}
		var have, want []string
		for _, l := range logLines(file) {
			have = append(have, l["plugin"].(string)+" "+l["verb"].(string))
			Expect(l).To(And(HaveKeyWithValue("network", "net"), Not(HaveKey("error"))))
		}
		for _, verb := range []string{"ADD", "CHECK", "STATUS", "DEL"} {
			list := Usual("")
			if verb == "DEL" {
				slices.Reverse(list)
			}
			for _, e := range list {
				if e.Keys["ipam"] != nil {
					want = append(want, "host-local "+verb)
				}
				want = append(want, e.Plugin+" "+verb)
			}
		}
		Expect(have).To(Equal(want))
		added := logLines(file)[1]["result"].(Object)
		Expect(added["interfaces"]).To(ContainElements("cni0", "eth0"))
		Expect(added["ips"]).To(HaveExactElements("10.88.0.2/24", "fd00:88::2/64"))
	})

	It("is enabled by the configuration's key, also for IPAM", func() {
		n.Cmd("mount", "-t", "tmpfs", "tmpfs", "/var/log")
		n.Up(NewPod("one"), Usual("").Only("bridge").With("bridge", Object{"log": "bridge.log"}))
		Expect(n.Cmd("jq", "-r", ".plugin", "/var/log/hawser/bridge.log")).To(Equal("host-local\nbridge\n"))
	})

	It("has spans that the collector's file receiver can read if its name ends in .otlp", Label("traces"), func() {
		const id, callers = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
		file += ".otlp"
		n.Env = []string{"HAWSER_LOG=" + file, "TRACEPARENT=00-" + id + "-" + callers + "-01", "BAGGAGE=token=s3cr3t"}
		p := n.Up(NewPod("one"), Usual(""))
		n.Must("CHECK", p, Usual(""))
		n.Must("DEL", p, Usual(""))
		full := List{{Plugin: "ptp", Keys: Object{"ipam": HostLocal("10.99.0.0/30")}}}
		n.Up(NewPod("two"), full)
		Expect(n.Chain("ADD", NewPod("three"), full).Code).To(Equal(1))
		known, below := map[string]string{callers: "the runtime"}, map[string][]string{}
		var all []ptrace.Span
		for _, line := range bytes.Split(bytes.TrimSpace(nstest.Must(os.ReadFile(file))), []byte("\n")) {
			Expect(string(line)).NotTo(ContainSubstring("s3cr3t"))
			of := nstest.Must((&ptrace.JSONUnmarshaler{}).UnmarshalTraces(line)).ResourceSpans().At(0)
			Expect(of.Resource().Attributes().AsRaw()).To(HaveKeyWithValue("service.name", "hawser"))
			for _, s := range of.ScopeSpans().At(0).Spans().All() {
				Expect(s.TraceID().String()).To(Equal(id))
				Expect(s.EndTimestamp()).To(BeNumerically(">=", s.StartTimestamp()))
				all, known[s.SpanID().String()] = append(all, s), s.Name()
			}
		}
		for _, s := range all {
			parent := known[s.ParentSpanID().String()]
			Expect(parent).NotTo(BeEmpty(), s.Name())
			if !slices.Contains(below[parent], s.Name()) {
				below[parent] = append(below[parent], s.Name())
			}
		}
		Expect(below["bridge ADD"]).To(Equal([]string{"decode", "prepare the bridge", "make the pair",
			"delegate host-local ADD", "set up the host end", "raise the interface", "wait for IPAM",
			"prepare the gateway", "configure the interface", "masquerade", "wait until packets pass"}))
		Expect(below["delegate host-local ADD"]).To(Equal([]string{"host-local ADD"}))
		Expect(below["host-local ADD"]).To(Equal([]string{"decode", "reserve the addresses", "roll-back"}))
		Expect(below["roll-back"]).To(ContainElements("release the addresses", "delete the interface"))
		Expect(below["release the addresses"]).To(Equal([]string{"delegate host-local DEL"}))
		for _, e := range Usual("") {
			Expect(len(below[e.Plugin+" ADD"])).To(BeNumerically(">", 1), e.Plugin)
			Expect(below["the runtime"]).To(ContainElements(e.Plugin+" ADD", e.Plugin+" CHECK", e.Plugin+" DEL"))
		}
		failed := all[slices.IndexFunc(all, func(s ptrace.Span) bool {
			return s.Name() == "ptp ADD" && s.Status().Code() == ptrace.StatusCodeError
		})]
		Expect(failed.Status().Message()).To(ContainSubstring("no IP addresses available"))
		Expect(failed.Attributes().AsRaw()).To(And(HaveKeyWithValue("cni.code", int64(11)),
			HaveKeyWithValue("container.id", "three"), HaveKeyWithValue("cni.network", "net")))
	})

	It("makes no call fail if the disk is full", func() {
		dir := GinkgoT().TempDir()
		n.Cmd("mount", "-t", "tmpfs", "-o", "size=4096", "none", dir)
		n.Cmd("sh", "-c", "head -c 4096 /dev/zero >"+dir+"/rest")
		n.Env = []string{"HAWSER_LOG=" + filepath.Join(dir, "log")}
		a := n.Chain("ADD", NewPod("one"), Usual("").Only("bridge"))
		Expect(a.Code).To(BeZero(), a.Stdout)
		Expect(a.Stderr).To(ContainSubstring("no space left on device"))
	})
})

// entries returns a list with this plugin, after bridge if it needs an interface.
func entries(plugin string, keys Object) List {
	ipam := Object{"ipam": HostLocal("10.88.0.0/24", "fd00:88::/64")}
	bridge := Merge(Object{"bridge": "cni0", "isDefaultGateway": true}, ipam)
	switch plugin {
	case "bridge":
		return List{{Plugin: plugin, Keys: Merge(bridge, keys)}}
	case "macvlan", "ipvlan", "vlan": // only IPv4, because the reference waits for IPv6
		return List{{Plugin: plugin, Keys: Merge(Object{"master": "up0", "ipam": HostLocal("10.88.0.0/24")}, keys)}}
	case "ptp", "host-device", "tap", "dummy":
		return List{{Plugin: plugin, Keys: Merge(ipam, keys)}}
	case "loopback":
		return List{{Plugin: plugin, Keys: keys}}
	}
	return List{{Plugin: "bridge", Keys: bridge}, {Plugin: plugin, Keys: keys}}
}

// upgrade is a list whose attachments must survive a change of plugins.
type upgrade struct {
	name      string
	list      List
	forward   bool               // the reference does not know Hawser's objects
	newest    bool               // Debian's release lacks the feature
	latest    bool               // only the newest release has the feature
	again     bool               // another upgrade has the plugin and the backend; make test omits this one
	drifts    bool               // CHECK finds that the reference's ADD ignored a key
	checkless []nstest.Reference // releases that fail CHECK of their own attachments
	nameless  bool               // the reference's objects have no owner, so that only DEL removes them
	needs     []string
	daemon    string // whose daemon serves dhcp: "ours", "theirs", or empty
}

func upgrades() []upgrade {
	masq := func(backend string) Object { return Object{"ipMasq": true, "ipMasqBackend": backend} }
	published := func(backend string) Object {
		return Object{"backend": backend, "runtimeConfig": Object{"portMappings": []Object{
			{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
			{"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "192.0.2.1"}}}}
	}
	tuned := Object{"sysctl": Object{"net.ipv4.conf.eth0.arp_filter": "1"}, "mac": "0a:00:00:00:00:07", "promisc": true}
	limited := Object{"ingressRate": 8000000, "ingressBurst": 800000,
		"egressRate": 16000000, "egressBurst": 1600000}
	lent := Object{"isDefaultGateway": nil, "ipam": Object{"type": "dhcp"}}
	return []upgrade{
		{name: "bridge and host-local", list: entries("bridge", nil)},
		{name: "bridge, layer 2", again: true, list: entries("bridge", Object{"isDefaultGateway": nil, "ipam": nil}),
			checkless: []nstest.Reference{nstest.Debian(), nstest.Before()}},
		{name: "bridge and static", list: entries("bridge", Object{"ipam": Object{"type": "static",
			"addresses": []Object{{"address": "10.88.0.5/24", "gateway": "10.88.0.1"},
				{"address": "fd00:88::5/64"}}}})},
		{name: "bridge and dhcp, Hawser's daemon", list: entries("bridge", lent), daemon: "ours", newest: true},
		{name: "bridge and dhcp, their daemon", list: entries("bridge", lent), daemon: "theirs", newest: true},
		{name: "bridge, ipMasq on iptables", again: true, list: entries("bridge", masq("iptables"))},
		{name: "bridge, ipMasq on nftables", list: entries("bridge", masq("nftables")), forward: true, newest: true},
		{name: "bridge, macspoofchk", again: true, list: entries("bridge", Object{"macspoofchk": true}), forward: true,
			nameless: true},
		// Debian's release does not know the key, and always keeps VLAN 1.
		{name: "bridge, vlan", again: true, needs: []string{"vlan_filtering"},
			list: entries("bridge", Object{"isDefaultGateway": nil, "vlan": 7, "preserveDefaultVlan": true})},
		{name: "tap", list: entries("tap", Object{"owner": 107, "group": 108}), newest: true},
		{name: "ptp, ipMasq on iptables", list: entries("ptp", masq("iptables"))},
		{name: "ptp, ipMasq on nftables", list: entries("ptp", masq("nftables")), forward: true, newest: true,
			again: true},
		// Debian's release does not remove the alias from the device.
		{name: "host-device", list: entries("host-device", Object{"device": "d0"}), newest: true},
		{name: "portmap on iptables", list: entries("portmap", published("iptables")),
			checkless: []nstest.Reference{nstest.Debian()}},
		{name: "portmap on nftables", list: entries("portmap", published("nftables")), forward: true, newest: true,
			nameless: true},
		{name: "portmap on nftables, masqAll", again: true, list: entries("portmap", Merge(published("nftables"),
			Object{"masqAll": true})), forward: true, newest: true, nameless: true},
		{name: "firewall on iptables", list: entries("firewall", Object{"backend": "iptables"}), nameless: true},
		{name: "firewall on nftables", list: entries("firewall", nil), forward: true, nameless: true},
		{name: "sbr", list: entries("sbr", nil), checkless: nstest.References()},
		{name: "sbr, addSourceHints", again: true, list: entries("sbr", Object{"addSourceHints": true}), latest: true,
			checkless: nstest.References()},
		{name: "sbr, gateways", list: entries("sbr", Object{"gateways": []string{"10.88.0.9"}}), latest: true,
			drifts: true, again: true, checkless: nstest.References()},
		// The ADD of Debian's release loses routes, which Hawser's CHECK finds.
		{name: "vrf", list: entries("vrf", Object{"vrfname": "red"}), needs: []string{"vrf"}, newest: true,
			checkless: nstest.References()},
		{name: "bandwidth", list: entries("bandwidth", limited)},
		{name: "tuning", list: entries("tuning", tuned)},
		{name: "macvlan", list: entries("macvlan", Object{"mode": "private", "mtu": 1400}), nameless: true,
			needs: []string{"macvlan"}},
		{name: "ipvlan", list: entries("ipvlan", nil), nameless: true, needs: []string{"ipvlan"}},
		{name: "vlan", list: entries("vlan", Object{"vlanId": 5}), nameless: true, needs: []string{"8021q"}},
		{name: "vlan, layer 2", list: entries("vlan", Object{"vlanId": 5, "ipam": nil}), nameless: true, latest: true,
			again: true, needs: []string{"8021q"}},
		{name: "dummy", list: entries("dummy", nil), nameless: true, needs: []string{"dummy"}, newest: true},
		{name: "loopback", list: entries("loopback", Object{})},
	}
}

var _ = It("an upgrade exists for each plugin that the reference has", func() {
	var have []string
	for _, u := range upgrades() {
		for _, e := range u.list {
			ipam, _ := e.Keys["ipam"].(Object)
			have = append(have, e.Plugin, fmt.Sprint(ipam["type"]))
		}
	}
	Expect(have).To(ContainElements(nstest.Replaced()))
})

// shared matches objects that stay: locks, the index of leases, last reserved addresses, and the guard of 127.0.0.0/8,
// which the reference's DEL does not know.
var shared = regexp.MustCompile(`(?m)^.*(/lock |/\.hawser|last_reserved_ip).*\n|(?s:^table inet hawser \{.*?^\}\n)`)

// others returns the list for another container, with its own host port, device and VLAN.
func others(list List) List {
	return list.Port(9090).With("host-device", Object{"device": "d1"}).With("vlan", Object{"vlanId": 6})
}

// checks expects Hawser's CHECK of a container of the reference to pass, or to find the key that its ADD ignored.
func (u upgrade) checks(ours *World, p *Pod, list List) {
	GinkgoHelper()
	if !u.drifts {
		ours.Must("CHECK", p, list)
		return
	}
	code, _ := ours.Chain("CHECK", p, list).Error()
	Expect(code).To(Equal(cni.CodeDrift))
}

func (u upgrade) lend(ours, theirs *World) {
	if u.daemon == "" {
		return
	}
	ours.IP("link add cni0 type bridge", "addr add 10.88.0.1/24 dev cni0", "link set cni0 up")
	ServeDHCP(ours.Host, "cni0", "10.88.0.50,10.88.0.60")
	of := map[string]*World{"ours": ours, "theirs": theirs}[u.daemon]
	DHCPDaemon(ours.Host, of.Dir, "-timeout", "1s") // the reference repeats its first DISCOVER, which is lost
}

func newPod(id string, list List) *Pod {
	GinkgoHelper()
	p := NewPod(id)
	if list[0].Plugin == "loopback" {
		p.IfName = "lo"
	}
	return p
}

var _ = Describe("a live attachment on a node that changes its plugins", Label("kernel"), func() {
	for _, ref := range nstest.References() {
		for _, u := range upgrades() {
			if u.newest && ref == nstest.Debian() || u.latest && ref != nstest.Newest() {
				continue
			}
			var labels Labels
			if u.again {
				labels = Label("slow")
			}
			Context(fmt.Sprintf("from and to %s: %s", ref.Name, u.name), labels, func() {
				var ours, theirs *World
				var pod, other *Pod
				var before []string
				state := func(more ...string) []string {
					GinkgoHelper()
					return strings.Split(shared.ReplaceAllString(ours.Snapshot(append(more, "nftables",
						"iptables-legacy")...)+
						ours.Files("/var/lib/cni"), ""), "\n")
				}

				BeforeEach(func() {
					nstest.Need(append(u.needs, "iptables", "nft")...)
					ours = NewNode()
					ours.Version = "1.0.0"
					if u.list[0].Keys["master"] != nil {
						Uplink(ours.Host)
					}
					theirs = ours.With(ref)
					u.lend(ours, theirs)
					for _, device := range []string{"d0", "d1"} {
						IP(ours.Host, "link add %s type veth peer name %sp", device, device)
					}
					other = theirs.Up(newPod("other", u.list), others(u.list))
					first := theirs.Up(newPod("one", u.list), u.list)
					theirs.Must("DEL", first, u.list)
					before = state("links", "routes")
					pod = newPod("one", u.list)
				})
				AfterEach(func() {
					u.checks(ours, other, others(u.list))
					ours.Must("DEL", other, others(u.list)) // removes the reference's rules while the namespace exists
				})

				It("passes CHECK, and is removed by DEL", Label("reference"), func() {
					theirs.Up(pod, u.list)
					u.checks(ours, pod, u.list)
					ours.Must("DEL", pod, u.list)
					Expect(state("links", "routes")).To(Equal(before))
				})

				if !u.nameless { // GC leaves its links, which do not name an owner
					It("loses its rules and leases by GC", Label("reference", "slow"), func() {
						before = state()
						theirs.Up(pod, u.list)
						ours.Must("GC", pod, u.list.Valid(other))
						Expect(state()).To(Equal(before))
						ours.Must("DEL", pod, u.list) // removes its links and tuning's file
					})
				}

				if u.forward {
					return
				}
				It("passes the reference's CHECK, and is removed by the reference's DEL", Label("reference"), func() {
					ours.Up(pod, u.list)
					if !slices.Contains(u.checkless, ref) {
						theirs.Must("CHECK", pod, u.list)
					}
					theirs.Must("DEL", pod, u.list)
					Expect(state("links", "routes")).To(Equal(before))
					ours.Must("GC", pod, u.list.Valid(other)) // Hawser's records, which the reference does not know
				})
			})
		}
	}
})
