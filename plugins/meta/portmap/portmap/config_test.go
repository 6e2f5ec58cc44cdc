package portmap

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipt"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestPortmap(t *testing.T) { nstest.RunSpecs(t, "plugins/meta/portmap/portmap") }

// world is a host with networks 1 and 2, each a bridge with containers, and a machine outside.
type world struct {
	*World
	out *nstest.Host // 192.0.2.2 and 2001:db8::2; the host has .1 and ::1
}

func newWorld() *world {
	GinkgoHelper()
	nstest.Need("nft", "nft-inet-nat", "nft-fib")
	w := &world{World: NewWorld(Plugin())}
	w.out = w.Router()
	w.Bridge(1)
	w.Bridge(2)
	// Each refusal must be sent.
	w.SetSysctl("net/ipv4/icmp_ratelimit", "0")
	w.SetSysctl("net/ipv6/icmp/ratelimit", "0")
	return w
}

// container is an interface of a container, with the result of the plugin before portmap.
type container struct {
	*nstest.Host
	w       *world
	network string
	id      string
	ifName  string
	hostEnd string
	ips     []string // with the lengths of their prefixes
}

// container creates a container on network n, with address number i.
func (w *world) container(n, i int) *container {
	GinkgoHelper()
	c := &container{Host: nstest.NewNetns(), w: w, id: fmt.Sprintf("c%d-%d", n, i)}
	return c.second("eth0", n, i)
}

// newContainer returns a world with the first container of network 1.
func newContainer() (*world, *container) {
	GinkgoHelper()
	w := newWorld()
	return w, w.container(1, 2)
}

// newContainers returns a world with two containers of network 1.
func newContainers() (w *world, a, b *container) {
	GinkgoHelper()
	w, a = newContainer()
	return w, a, w.container(1, 3)
}

// second adds another interface to the container, on network n.
func (c *container) second(ifName string, n, i int) *container {
	GinkgoHelper()
	s := &container{w: c.w, Host: c.Host, network: fmt.Sprintf("net%d", n), id: c.id, ifName: ifName}
	s.hostEnd, s.ips = c.w.Join(c.Host, ifName, n, i)
	return s
}

// addr returns the container's address of a family.
func (c *container) addr(v6 bool) string {
	i := slices.IndexFunc(c.ips, func(ip string) bool { return strings.Contains(ip, ":") == v6 })
	return Addr(c.ips[i])
}

// vanish ends the container without DEL. Its namespace and its pair no longer exist.
func (c *container) vanish() {
	GinkgoHelper()
	c.Unpin()
	// The kernel may have deleted it already.
	c.w.Run(nstest.Program{Path: "ip", Args: []string{"link", "del", c.hostEnd}})
	Expect(c.w.Run(nstest.Program{Path: "ip", Args: []string{"link", "show", c.hostEnd}}).Exit).NotTo(BeZero())
}

// conf returns a configuration with additional keys; the value nil removes a key.
func conf(more ...Object) Object {
	return Merge(append([]Object{{"cniVersion": "1.1.0", "name": "net1", "type": "portmap"}}, more...)...)
}

// ports returns a runtimeConfig: "8080:80", "8080:80/udp", "192.0.2.1:8080:80", "[::]:8080:80".
func ports(list ...string) Object {
	var out []Object
	for _, text := range list {
		text, proto, _ := strings.Cut(text, "/")
		if proto == "" {
			proto = "tcp"
		}
		cut := strings.LastIndex(text, ":")
		m := Object{"containerPort": json.Number(text[cut+1:]), "protocol": proto}
		text = text[:cut]
		if cut = strings.LastIndex(text, ":"); cut >= 0 {
			m["hostIP"] = strings.Trim(text[:cut], "[]")
		}
		m["hostPort"] = json.Number(text[cut+1:])
		out = append(out, m)
	}
	return Object{"runtimeConfig": Object{"portMappings": out}}
}

// prevResult returns the result of the previous plugin.
func (c *container) prevResult() Object {
	var ips []Object
	for _, ip := range c.ips {
		ips = append(ips, Object{"address": ip, "interface": 1})
	}
	return Object{"cniVersion": "1.1.0", "ips": ips,
		"interfaces": []Object{{"name": c.hostEnd}, {"name": c.ifName, "sandbox": c.Path}}}
}

// outcome is the result of a call.
type outcome struct {
	exit           int
	stdout, stderr string
	Code           uint
	Msg            string
}

func (o outcome) text() string { return fmt.Sprintf("exit %d %s %s", o.exit, o.stdout, o.stderr) }

// as returns a call for the container. A nil prevResult in the configuration removes it.
func (c *container) as(command string, more ...Object) Call {
	all := append([]Object{{"name": c.network, "prevResult": c.prevResult()}}, more...)
	return Call{Command: command, ID: c.id, IfName: c.ifName, Netns: c.Path, Conf: conf(all...)}
}

func (c *container) call(command string, more ...Object) outcome {
	GinkgoHelper()
	return c.w.run(c.as(command, more...))
}

func (w *world) run(call Call) outcome {
	GinkgoHelper()
	a := w.Call(call)
	o := outcome{exit: a.Code, stdout: a.Stdout, stderr: a.Stderr}
	_ = json.Unmarshal([]byte(a.Stdout), &o)
	return o
}

func (w *world) status(more ...Object) outcome {
	GinkgoHelper()
	return w.run(Call{Command: "STATUS", Conf: conf(more...)})
}

// succeeds runs calls that must print nothing.
func (c *container) succeeds(command string, more ...Object) {
	GinkgoHelper()
	Expect(c.call(command, more...).text()).To(Equal("exit 0  "))
}

// fails returns the message of a call that must fail with a code.
func (c *container) fails(command string, code uint, more ...Object) string {
	GinkgoHelper()
	o := c.call(command, more...)
	Expect(o.Code).To(Equal(code), o.text())
	return o.Msg
}

func (c *container) add(more ...Object) {
	GinkgoHelper()
	o := c.call("ADD", more...)
	Expect(o.exit).To(BeZero(), o.text())
}

func (c *container) del(more ...Object) {
	GinkgoHelper()
	c.succeeds("DEL", more...)
}

func (c *container) check(more ...Object) {
	GinkgoHelper()
	c.succeeds("CHECK", more...)
}

// gc runs GC of a network with these attachments valid: "c1/eth0".
func (w *world) gc(network string, valid ...string) {
	GinkgoHelper()
	refs := []Object{}
	for _, v := range valid {
		id, ifName, _ := strings.Cut(v, "/")
		refs = append(refs, Object{"containerID": id, "ifname": ifName})
	}
	w.Succeeds(Call{Command: "GC", Conf: conf(Object{"name": network, "cni.dev/valid-attachments": refs})})
}

// kind is a backend, with its configuration and the variant of iptables.
type kind struct {
	name    string
	config  Object
	variant string
}

var kinds = []kind{
	{"nftables", Object{}, "nft"},
	{"iptables-nft", Object{"backend": "iptables"}, "nft"},
	{"iptables-legacy", Object{"backend": "iptables"}, "legacy"},
}

// ruleset returns the rules of nftables and of both variants of iptables.
func (w *world) ruleset() string {
	GinkgoHelper()
	return w.Snapshot("nftables", "iptables-legacy")
}

// rules returns the state of the host that portmap may change, sorted, because rules of other programs may move.
func (w *world) rules() string {
	GinkgoHelper()
	lines := strings.Split(w.ruleset(), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n") + w.Cmd("sh", "-c", "grep . /proc/sys/net/ipv4/conf/br*/route_localnet || true")
}

// localnet returns route_localnet of bridges 1 and 2.
func (w *world) localnet() string {
	GinkgoHelper()
	return w.Sysctl("net/ipv4/conf/br1/route_localnet") + w.Sysctl("net/ipv4/conf/br2/route_localnet")
}

// natRules returns table nat of both families as iptables lists it.
func (w *world) natRules() string {
	GinkgoHelper()
	return w.Cmd("iptables", "-t", "nat", "-S") + w.Cmd("ip6tables", "-t", "nat", "-S")
}

// soon is the time to wait for packets that must not arrive.
func soon(ms int) time.Duration {
	return nstest.Patience(time.Duration(ms) * time.Millisecond)
}

// parse reads a configuration given as JSON without its braces.
func parse(text string) (config, error) {
	return Plugin().Parse(&skel.Request{Conf: []byte(`{"cniVersion":"1.1.0","name":"n","type":"portmap",` + text + `}`),
		Stderr: io.Discard})
}

func mappingsOf(entries string) string {
	return `"runtimeConfig":{"portMappings":[` + entries + `]}`
}

var _ = Describe("the configuration", func() {
	DescribeTable("accepts each spelling of a mapping", func(entry string, want mapping) {
		c := nstest.Must(parse(mappingsOf(entry)))
		Expect(c.mappings).To(Equal([]mapping{want}))
	},
		Entry("in the CNI conventions", `{"hostPort":8080,"containerPort":80,"protocol":"tcp"}`,
			mapping{6, netip.Addr{}, 8080, 80}),
		Entry("containerd's capitals and empty address",
			`{"HostPort":8080,"ContainerPort":80,"Protocol":"tcp","HostIP":""}`, mapping{6, netip.Addr{}, 8080, 80}),
		Entry("upper case protocol", `{"hostPort":53,"containerPort":5353,"protocol":"UDP"}`,
			mapping{17, netip.Addr{}, 53, 5353}),
		Entry("sctp", `{"hostPort":1,"containerPort":65535,"protocol":"Sctp"}`, mapping{132, netip.Addr{}, 1, 65535}),
		Entry("null address", `{"hostPort":65535,"containerPort":1,"protocol":"tcp","hostIP":null}`,
			mapping{6, netip.Addr{}, 65535, 1}),
		Entry("unknown additional keys", `{"hostPort":1,"containerPort":1,"protocol":"tcp","name":"http"}`,
			mapping{6, netip.Addr{}, 1, 1}),
	)

	DescribeTable("accepts each address of the host", func(hostIP, want string) {
		entry := `{"hostPort":1,"containerPort":1,"protocol":"tcp","hostIP":"` + hostIP + `"}`
		c := nstest.Must(parse(mappingsOf(entry)))
		Expect(c.mappings).To(Equal([]mapping{{6, netip.MustParseAddr(want), 1, 1}}))
	},
		Entry("IPv4", "192.0.2.1", "192.0.2.1"), Entry("IPv6", "2001:DB8::1", "2001:db8::1"),
		Entry("all of IPv4", "0.0.0.0", "0.0.0.0"), Entry("all of IPv6", "::", "::"),
		Entry("IPv4 mapped into IPv6", "::ffff:192.0.2.1", "192.0.2.1"),
		Entry("all of IPv4 mapped into IPv6", "::ffff:0.0.0.0", "0.0.0.0"),
		Entry("loopback", "127.0.0.1", "127.0.0.1"),
	)

	DescribeTable("refuses, naming entry and field,", func(entry, message string) {
		_, err := parse(mappingsOf(`{"hostPort":9,"containerPort":9,"protocol":"tcp"},` + entry))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
		Expect(err).To(MatchError("runtimeConfig.portMappings" + message))
	},
		Entry("two targets of a port", `{"hostPort":9,"containerPort":10,"protocol":"tcp"}`,
			`[1]: host port 0.0.0.0:9/tcp is already forwarded to container port 9, not to 10`),
		Entry("two targets of a port of one family", `{"hostPort":9,"containerPort":10,"protocol":"tcp","hostIP":"::"}`,
			`[1]: host port [::]:9/tcp is already forwarded to container port 9, not to 10`),
		Entry("a number as mapping", `5`, `[1]: is a JSON number, want an object`),
	)

	It("suggests a value for a missing protocol", func() {
		_, err := parse(mappingsOf(`{"hostPort":80,"containerPort":80,"protocol":null}`))
		Expect(cni.ProblemsOf(err)).To(ConsistOf(
			HaveField("Suggestion", `write "protocol": "tcp", "udp" or "sctp"`)))
	})

	It("merges equal mappings, and accepts an address in addition to all addresses", func() {
		c, err := parse(mappingsOf(`{"hostPort":9,"containerPort":9,"protocol":"tcp"},
			{"hostPort":9,"containerPort":9,"protocol":"TCP"},
			{"hostPort":9,"containerPort":9,"protocol":"tcp","hostIP":"0.0.0.0"},
			{"hostPort":9,"containerPort":9,"protocol":"udp"},
			{"hostPort":9,"containerPort":10,"protocol":"tcp","hostIP":"127.0.0.1"}`))
		Expect(err).NotTo(HaveOccurred())
		Expect(c.mappings).To(Equal([]mapping{{6, netip.Addr{}, 9, 9}, {17, netip.Addr{}, 9, 9},
			{6, netip.MustParseAddr("127.0.0.1"), 9, 10}}))
	})

	It("has defaults, and accepts null for each key", func() {
		for _, text := range []string{`"type":"portmap"`,
			`"backend":null,"snat":null,"masqAll":null,"markMasqBit":null,` +
				`"externalSetMarkChain":null,"conditionsV4":null,"conditionsV6":null,"runtimeConfig":null`,
			`"runtimeConfig":{"portMappings":null},"conditionsV4":[]`} {
			c := nstest.Must(parse(text))
			Expect(c.options).To(Equal(options{SNAT: true, MarkBit: 13}))
			Expect([]any{c.backend, c.mappings}).To(Equal([]any{auto, []mapping(nil)}))
		}
	})

	It("counts addresses of a condition as rules, but not ports", func() {
		nstest.Must(parse(`"conditionsV4":["-s","` + strings.Repeat("10.0.0.1,", 19) + `10.0.0.1","-m","multiport",` +
			`"--dports","` + strings.Repeat("80:81,", 14) + `80"]`))
	})

	DescribeTable("finds the backend that other keys need", func(text string, want ipt.Backend) {
		c := nstest.Must(parse(text))
		Expect(c.backend).To(Equal(want))
	},
		Entry("a chain that marks", `"externalSetMarkChain":"KUBE-MARK-MASQ"`, iptables),
		Entry("conditions of iptables", `"conditionsV4":["!","-s","10.0.0.0/8"]`, iptables),
		Entry("conditions of iptables", `"conditionsV6":["-s","fd00::/8"]`, iptables),
		Entry("conditions of nft", `"conditionsV4":["ip","saddr","!=","10.0.0.0/8"],"backend":"nftables"`, nftables),
		Entry("conditions of nft", `"conditionsV6":["iifname \"eth0\""]`, nftables),
		Entry("a mark bit", `"markMasqBit":0`, auto),
	)

	DescribeTable("refuses, naming key and value,", func(text, message string) {
		_, err := parse(text)
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
		Expect(err).To(MatchError(message))
	},
		Entry("a bit and a chain", `"markMasqBit":5,"externalSetMarkChain":"X"`,
			`markMasqBit: 5 cannot be set together with externalSetMarkChain, which decides the mark`),
		Entry("a chain on nftables", `"externalSetMarkChain":"A","backend":"nftables"`,
			"backend: nftables backend was requested but configuration contains iptables-specific options "+
				"[externalSetMarkChain]"),
		Entry("conditions of iptables on nftables",
			`"conditionsV4":["-s","10.0.0.0/8"],"externalSetMarkChain":"A","backend":"nftables"`,
			"backend: nftables backend was requested but configuration contains iptables-specific options "+
				"[externalSetMarkChain conditionsV4]"),
		Entry("conditions of nft on iptables", `"conditionsV6":["ip6","saddr","fd00::/8"],"backend":"iptables"`,
			"backend: iptables backend was requested but configuration contains nftables-specific options "+
				"[conditionsV6]"),
		Entry("conditions of both", `"conditionsV4":["-s","10.0.0.0/8"],"conditionsV6":["ip6","saddr","fd00::/8"]`,
			`conditionsV6: in the syntax of nftables, but conditionsV4 is for iptables`),
		Entry("conditions of nft and a chain", `"conditionsV4":["ip","saddr","10.0.0.0/8"],"externalSetMarkChain":"A"`,
			`conditionsV4: in the syntax of nftables, but externalSetMarkChain is for iptables`),
		Entry("a program that iptables runs", `"conditionsV4":["-s","10.0.0.0/8","--modprobe=/tmp/x"]`,
			`conditionsV4[2]: "--modprobe=/tmp/x" `+noMatch),
		Entry("its short option", `"conditionsV4":["-M","/tmp/x"]`,
			`conditionsV4[0]: "-M" `+noMatch),
		Entry("its option in a bundle", `"conditionsV4":["-fM/tmp/x"]`,
			`conditionsV4[0]: "-fM/tmp/x" `+noMatch),
		Entry("its option, abbreviated", `"conditionsV6":["--mod","/tmp/x"]`,
			`conditionsV6[0]: "--mod" `+noMatch),
		Entry("too much text", `"conditionsV4":["ip saddr"`+strings.Repeat(`,"`+strings.Repeat("1", 1<<10)+`"`, 16)+`]`,
			`conditionsV4: has more than 16384 bytes`),
		Entry("too many words", `"conditionsV6":["-mtime"`+strings.Repeat(`,"-mtime"`, 48)+`]`,
			`conditionsV6: has more than 48 words, the maximum in iptables' syntax`),
		Entry("a long expression", `"conditionsV4":["-mu32","--u32=`+strings.Repeat("0", 501)+`"]`,
			`conditionsV4[1]: has more than 500 bytes, the maximum in iptables' syntax`),
		Entry("a long string", `"conditionsV4":["-mstring","--algo=bm","--string","`+strings.Repeat("é", 64)+`"]`,
			`conditionsV4[3]: has more than 127 bytes, the maximum in iptables' syntax`),
		Entry("an interface that is listed as two words", `"conditionsV4":["-i","x -jACCEPT"]`,
			`conditionsV4[1]: "x -jACCEPT" `+unquotedReason),
		Entry("an interface that opens a quotation", `"conditionsV4":["-s","10.0.0.1","-ix\""]`,
			`conditionsV4[2]: "-ix\"" `+unquotedReason),
		Entry("lists that make too many rules", `"conditionsV4":["-s","`+strings.Repeat("10.0.0.1,", 19)+
			`10.0.0.1","-d","`+strings.Repeat("10.0.0.1,", 19)+`10.0.0.1"]`,
			`conditionsV4: has lists of addresses that make more than 256 rules`),
		Entry("lists of short addresses that make too many rules", `"conditionsV4":["-s","`+strings.Repeat("10,", 19)+
			`10","--dst=`+strings.Repeat("10,", 19)+`10"]`,
			`conditionsV4: has lists of addresses that make more than 256 rules`),
		Entry("a second statement", `"conditionsV4":["ip saddr 10.0.0.1 accept; drop"]`,
			`conditionsV4[0]: "ip saddr 10.0.0.1 accept; drop" would end the condition`),
	)

	It("allows at most 4,096 rules of iptables for all ports", func() {
		addrs := strings.Repeat("10.0.0.1,", 15) + "10.0.0.1"
		with := func(count int) string {
			entries := make([]string, count)
			for i := range entries {
				entries[i] = fmt.Sprintf(`{"hostPort":%d,"containerPort":80,"protocol":"tcp"}`, i+1)
			}
			return fmt.Sprintf(`"conditionsV4":["-s",%q,"-d",%[1]q],`, addrs) + mappingsOf(strings.Join(entries, ","))
		}
		Expect(parse(with(240))).NotTo(BeZero())
		_, err := parse(with(241))
		Expect(err).To(MatchError("conditionsV4: has lists of addresses that make more than 4096 rules for 241 " +
			"port mappings"))
	})

	It("is refused with all of its errors together", func() {
		_, err := parse(`"backend":"ipvs","markMasqBit":40,"conditionsV4":["-s","","a\nb"],"conditionsV6":["ip6;"],` +
			mappingsOf(`{"hostPort":70000,"containerPort":0,"protocol":"icmp","hostIP":"y"},`+
				`{"hostPort":1,"containerPort":1,"protocol":"tcp"},{}`))
		var got []string
		for _, p := range cni.ProblemsOf(err) {
			got = append(got, p.String())
		}
		Expect(got).To(HaveExactElements(
			`backend: "ipvs" is neither "nftables" nor "iptables"`,
			`markMasqBit: 40 is not between 0 and 31`,
			`conditionsV4[1]: "" is empty`,
			`conditionsV4[2]: "a\nb" has a control character`,
			`conditionsV6[0]: "ip6;" would end the condition`,
			`conditionsV6: in the syntax of nftables, but conditionsV4 is for iptables`,
			`runtimeConfig.portMappings[0].hostPort: 70000 is not between 1 and 65535`,
			`runtimeConfig.portMappings[0].containerPort: 0 is not between 1 and 65535`,
			`runtimeConfig.portMappings[0].protocol: "icmp" is not tcp, udp or sctp`,
			`runtimeConfig.portMappings[0].hostIP: "y" is not an IP address`,
			`runtimeConfig.portMappings[2].hostPort: missing`,
			`runtimeConfig.portMappings[2].containerPort: missing`,
			`runtimeConfig.portMappings[2].protocol: missing`))
	})
})

var _ = It("has its schema in docs/schema", func() {
	ExpectPluginSchema(Plugin(),
		NotBoth(HasKey("markMasqBit", Object{"type": "integer"}),
			HasKey("externalSetMarkChain", Object{"type": "string"})),
		NotBoth(HasKey("backend", Object{"const": "nftables"}),
			HasKey("externalSetMarkChain", Object{"type": "string"})))
})

// FuzzCall runs generated calls.
func FuzzCall(f *testing.F) {
	Fuzz{
		Plugin: Plugin().Untyped(), Chained: true,
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","type":"portmap","snat":true,"masqAll":false,` +
				`"markMasqBit":5,"cni.dev/valid-attachments":[],` +
				`"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},` +
				`{"hostPort":53,"containerPort":53,"protocol":"udp","hostIP":"127.0.0.1"},` +
				`{"hostPort":9,"containerPort":9,"protocol":"sctp","hostIP":"::"}]},` + FuzzPrev + `}`,
			`{"cniVersion":"1.0.0","name":"net","backend":"nftables","snat":false,"masqAll":true,` +
				`"runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":65535,"protocol":"TCP",` +
				`"hostIP":"0.0.0.0"}]},` + FuzzPrev + `}`,
			`{"cniVersion":"0.4.0","name":"net","externalSetMarkChain":"KUBE-MARK-MASQ",` +
				`"conditionsV4":["!","-s","10.0.0.0/8"],"runtimeConfig":{"portMappings":[]},` + FuzzPrev + `}`,
			`{"name":"net","prevResult":{"ip4":{"ip":"10.1.0.2/24"}},` +
				`"runtimeConfig":{"portMappings":[{"hostPort":"x"}]}}`,
			`{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[{"containerID":"one",` +
				`"ifname":"eth0"}]}`,
		},
	}.Run(f)
}

// FuzzFiles damages the records.
func FuzzFiles(f *testing.F) {
	conf := `{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[{"containerID":"one",` +
		`"ifname":"eth0"}],` +
		`"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},` +
		FuzzPrev + `}`
	Fuzz{Plugin: Plugin().Untyped(), Chained: true, Confs: []string{conf}}.RunFiles(f, "/run/hawser/portmap", ``, `{}`,
		`null`,
		`{"network":"net","containerID":"one","ifname":"eth0","owner":{"netns":"/nowhere"},`+
			`"backend":"nftables",`+
			`"options":{"snat":true,"markBit":13},"mappings":[{"proto":6,"hostIP":"","hostPort":8080,`+
			`"port":80}],"addrs":[{"addr":"10.1.0.2/24","near":"10.1.0.0/24"}]}`,
		`{"network":"net","containerID":"one","ifname":"eth0","backend":"x","options":{"markBit":-1,`+
			`"conditionsV4":["a","b"]},"mappings":[{"proto":0,"hostIP":"fe80::1%a"}],`+
			`"addrs":[{"addr":"","near":""},{"addr":"::1/0","near":"0.0.0.0/0"}],"localnet":"../x",`+
			`"yielded":[{"proto":6}]}`)
}

// FuzzRecord decodes any bytes as a record, and derives the input of the backends: each line must be a single line.
func FuzzRecord(f *testing.F) {
	for _, part := range []string{`"options":{"snat":true,"markBit":13}`,
		`"options":{"snat":true,"masqAll":true,"markChain":"KUBE-MARK-MASQ","conditionsV4":["!","-s",` +
			`"10.0.0.0/8"]}`,
		`"options":{"markBit":31,"conditionsV4":["ip","saddr","10.0.0.0/8"],"conditionsV6":["a\nb"]},` +
			`"localnet":"eth0"`} {
		f.Add([]byte(`{"network":"net","containerID":"one","ifname":"eth0","backend":"iptables",` + part +
			`,"mappings":[{"proto":6,"hostIP":"","hostPort":8080,"port":80},` +
			`{"proto":17,"hostIP":"127.0.0.1","hostPort":53,"port":53},{"proto":132,"hostIP":"::",` +
			`"hostPort":9,"port":9}],` +
			`"addrs":[{"addr":"10.1.0.2/24","near":"10.1.0.0/24"},{"addr":"fd00::2/64",` +
			`"near":"fd00::2/128"}],"yielded":[{"proto":6,"host":"::","port":8080}]}`))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		st := &record{}
		if json.Unmarshal(data, st) != nil || !st.Plausible() {
			return
		}
		for _, it := range st.items() {
			if elementPort(it).String() != it.Name {
				t.Fatalf("%v", it)
			}
		}
		for _, a := range st.Addrs {
			e := &ipt.Edit{}
			st.edit(e, a)
			for _, line := range e.Lines {
				if strings.ContainsAny(line, "\n\r\x00") {
					t.Fatalf("%q", line)
				}
			}
			if st.conditionChain(a.family()) != "" && strings.Count(st.conditionScript(a), "\n") != 2 {
				t.Fatalf("%q", st.conditionScript(a))
			}
		}
		for _, it := range st.items() {
			if _, ok := chainByName(it.Goto); !ok && it.Goto != "" {
				t.Fatalf("%q", it.Goto)
			}
		}
	})
}
