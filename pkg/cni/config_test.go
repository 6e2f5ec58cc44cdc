package cni_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("Config", func() {
	decode := func(doc string) *cni.Config {
		GinkgoHelper()
		c := nstest.Must(cni.DecodeConfig([]byte(doc)))
		return c
	}

	DescribeTable("matches keys in any case", func(doc string) {
		c := decode(doc)
		Expect([]string{c.CNIVersion, c.Name, c.Type, c.IPAM.Type}).To(HaveExactElements("0.4.0", "n", "bridge",
			"host-local"))
		prev := nstest.Must(c.PrevResult())
		Expect(prev.IPs).To(HaveLen(1))
		refs, listed, err := c.ValidAttachments()
		Expect(err).NotTo(HaveOccurred())
		Expect(listed).To(BeTrue())
		Expect(refs).To(HaveExactElements(cni.Attachment{ContainerID: "c", IfName: "e"}))
	},
		Entry("as written", `{"cniVersion": "0.4.0", "name": "n", "type": "bridge", "ipam": {"type": "host-local"},
			"prevResult": {"ips": [{"address": "10.0.0.1/8"}]},
			"cni.dev/valid-attachments": [{"containerID": "c", "ifname": "e"}]}`),
		Entry("upper", `{"CNIVERSION": "0.4.0", "NAME": "n", "TYPE": "bridge", "IPAM": {"TYPE": "host-local"},
			"PREVRESULT": {"IPS": [{"ADDRESS": "10.0.0.1/8"}]},
			"CNI.DEV/VALID-ATTACHMENTS": [{"CONTAINERID": "c", "IFNAME": "e"}]}`),
		Entry("lower", `{"cniversion": "0.4.0", "name": "n", "type": "bridge", "ipam": {"type": "host-local"},
			"prevresult": {"ips": [{"address": "10.0.0.1/8"}]},
			"cni.dev/valid-attachments": [{"containerid": "c", "ifName": "e"}]}`),
	)

	It("without a version speaks the oldest", func() {
		Expect(decode(`{"name": "n"}`).CNIVersion).To(Equal("0.1.0"))
	})

	DescribeTable("refuses", func(doc string, code uint, message string) {
		_, err := cni.DecodeConfig([]byte(doc))
		Expect(err).To(MatchError(message))
		Expect(cni.AsError(err).Code).To(Equal(code))
	},
		Entry("text", "x", cni.CodeDecode,
			"network configuration: invalid JSON at byte 1: invalid character 'x' looking for beginning of value"),
		Entry("a cut", `{"name": "n"`, cni.CodeDecode,
			"network configuration: invalid JSON at byte 12: unexpected end of JSON input"),
		Entry("two documents", `{} {}`, cni.CodeDecode,
			"network configuration: invalid JSON at byte 4: invalid character '{' after top-level value"),
		Entry("too deep", strings.Repeat("[", 20000), cni.CodeDecode,
			"network configuration: invalid JSON at byte 10001: invalid character '[' exceeded max depth"),
		Entry("a list", `[]`, cni.CodeConfig, "network configuration: is a JSON array, want an object"),
		Entry("a name that is a number", `{"name": 5}`, cni.CodeConfig, "name: is a JSON number, want a string"),
		Entry("an ipam that is text", `{"ipam": "host-local"}`, cni.CodeConfig,
			"ipam: is a JSON string, want an object"),
		Entry("an ipam.type that is a list", `{"ipam": {"type": []}}`, cni.CodeConfig,
			"ipam.type: is a JSON array, want a string"),
	)

	It("does not copy a long key for each value below it to name another key", Label("sizes"), func() {
		doc := `{"` + strings.Repeat("k", 1<<20) + `":[` + strings.Repeat("0,", 1<<12) + `0],"name":5}`
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := cni.DecodeConfig([]byte(doc))
		runtime.ReadMemStats(&after)
		Expect(err).To(MatchError("name: is a JSON number, want a string"))
		Expect(after.TotalAlloc - before.TotalAlloc).To(BeNumerically("<", 256<<20))
	})

	It("tells what else it read beside a value of the wrong type", func() {
		c, err := cni.DecodeConfig([]byte(`{"name": 5, "cniVersion": "0.4.0"}`))
		Expect(err).To(HaveOccurred())
		Expect(c.CNIVersion).To(Equal("0.4.0"))
		c, err = cni.DecodeConfig([]byte(`hello`))
		Expect(err).To(HaveOccurred())
		Expect(c.CNIVersion).To(BeEmpty(), "not the oldest: nobody said so")
	})

	DescribeTable("says in JSON's words what it wants", func(doc, message string) {
		var wire struct {
			B bool           `json:"b"`
			S string         `json:"s"`
			L []string       `json:"l"`
			I int16          `json:"i"`
			U uint16         `json:"u"`
			M map[string]int `json:"m"`
			P *int           `json:"p"`
			A netip.Addr     `json:"a"`
		}
		err := cni.Unmarshal([]byte(doc), &wire)
		Expect(err).To(MatchError(message))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
	},
		Entry("bool", `{"b": "true"}`, "b: is a JSON string, want true or false"),
		Entry("string", `{"s": 1}`, "s: is a JSON number, want a string"),
		Entry("list", `{"l": "x"}`, "l: is a JSON string, want an array"),
		Entry("integer", `{"i": 1.5}`, "i: 1.5 is not a whole number"),
		Entry("unsigned", `{"u": -1}`, "u: -1 is not a whole number"),
		Entry("map", `{"m": []}`, "m: is a JSON array, want an object"),
		Entry("pointer", `{"p": "x"}`, "p: is a JSON string, want a whole number"),
		Entry("what reads itself", `{"a": "x"}`, `network configuration: ParseAddr("x"): unable to parse IP`),
	)

	DescribeTable("says what a key takes beside its words", func(raw, word, message string) {
		is := 0
		got, err := cni.ParseEither("mtu", []byte(raw), &is, "auto")
		Expect(got).To(Equal(word))
		if message == "" {
			Expect(err).NotTo(HaveOccurred())
			return
		}
		Expect(err).To(MatchError(message))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
	},
		Entry("a word", `"auto"`, "auto", ""), Entry("a number", `1400`, "", ""), Entry("null", `null`, "", ""),
		Entry("none", ``, "", ""),
		Entry("a number as text", `"1400"`, "", `mtu: "1400" is a JSON string, want a whole number or one of ["auto"]`),
		Entry("a fraction", `1.5`, "", `mtu: 1.5 is not a whole number or one of ["auto"]`),
	)

	DescribeTable("prevResult", func(doc string, there bool) {
		prev := nstest.Must(decode(doc).PrevResult())
		Expect(prev != nil).To(Equal(there))
	},
		Entry("missing", `{"cniVersion": "1.0.0"}`, false),
		Entry("null", `{"cniVersion": "1.0.0", "prevResult": null}`, false),
		Entry("empty", `{"cniVersion": "1.0.0", "prevResult": {}}`, true),
		Entry("of the configuration's version",
			`{"cniVersion": "0.2.0", "prevResult": {"ip4": {"ip": "10.0.0.1/8"}}}`, true),
		Entry("of another family",
			`{"cniVersion": "1.1.0", "prevResult": {"cniVersion": "0.3.1",
				"ips": [{"version": "4", "address": "10.0.0.1/8"}]}}`, true),
	)

	It("names what it cannot read of prevResult", func() {
		_, err := decode(`{"cniVersion": "1.0.0", "prevResult": {"ips": [{"address": "x"}]}}`).PrevResult()
		Expect(err).To(MatchError(`prevResult.ips[0].address: "x" is not an address in CIDR notation`))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
	})
})

var _ = Describe("cni.dev/valid-attachments", func() {
	list := func(doc string) (refs []cni.Attachment, listed bool, err error) {
		GinkgoHelper()
		c := nstest.Must(cni.DecodeConfig([]byte(doc)))
		return c.ValidAttachments()
	}
	c1 := cni.Attachment{ContainerID: "c1", IfName: "eth0"}

	DescribeTable("is read", func(doc string, want ...cni.Attachment) {
		got, listed, err := list(doc)
		Expect(err).NotTo(HaveOccurred())
		Expect(listed).To(BeTrue())
		Expect(got).To(HaveExactElements(want))
	},
		Entry("null: none is valid", `{"cni.dev/valid-attachments": null}`),
		Entry("[]: none is valid", `{"cni.dev/valid-attachments": []}`),
		Entry("one", `{"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]}`, c1),
		Entry("the older spelling", `{"cni.dev/attachments": [{"containerID": "c1", "ifname": "eth0"}]}`, c1),
		Entry("the older spelling, null", `{"cni.dev/attachments": null}`),
		Entry("both, as libcni sends them",
			`{"cni.dev/attachments": [{"containerID": "c1", "ifname": "eth0"}],
				"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]}`, c1),
		Entry("both: one null, the other empty", `{"cni.dev/attachments": [], "cni.dev/valid-attachments": null}`),
		Entry("both: the specification's counts",
			`{"cni.dev/attachments": null,
				"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]}`, c1),
	)

	It("that is missing is no empty list", func() {
		refs, listed, err := list(`{}`)
		Expect(err).NotTo(HaveOccurred())
		Expect(refs).To(BeEmpty())
		Expect(listed).To(BeFalse())
	})

	DescribeTable("is refused", func(doc, message string) {
		_, _, err := list(doc)
		Expect(err).To(MatchError(ContainSubstring(message)))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
	},
		Entry("an object", `{"cni.dev/valid-attachments": {}}`,
			"cni.dev/valid-attachments: want a list of {containerID, ifname}: is a JSON object, want an array"),
		Entry("a null entry", `{"cni.dev/valid-attachments": [null]}`,
			`cni.dev/valid-attachments[0]: containerID "", ifname ""`),
		Entry("an entry without container", `{"cni.dev/valid-attachments": [{"ifname": "eth0"}]}`,
			`cni.dev/valid-attachments[0]: containerID "", ifname "eth0"`),
		Entry("an entry without interface", `{"cni.dev/valid-attachments": [{"containerID": "c1"}]}`,
			`cni.dev/valid-attachments[0]: containerID "c1", ifname ""`),
	)
})

var _ = Describe("ParseArgs", func() {
	type values = map[string]string
	const containerd = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;" +
		"K8S_POD_INFRA_CONTAINER_ID=abc;K8S_POD_UID=1-2-3"

	DescribeTable("reads", func(args string, want values) {
		Expect(cni.ParseArgs(args, "IP", "MAC", "GATEWAY")).To(Equal(want))
	},
		Entry("nothing", "", values{}),
		Entry("one pair", "IP=10.0.0.5", values{"IP": "10.0.0.5"}),
		Entry("podman's", "MAC=0a:58:0a:f4:00:03;IP=10.0.0.5", values{"IP": "10.0.0.5", "MAC": "0a:58:0a:f4:00:03"}),
		Entry("containerd's", containerd, values{}),
		Entry("containerd's with one of ours", containerd+";IP=10.0.0.5", values{"IP": "10.0.0.5"}),
		Entry("IgnoreUnknown in any case", "ignoreunknown=TRUE;FOO=BAR", values{}),
		Entry("IgnoreUnknown off, and nothing unknown", "IgnoreUnknown=0;IP=x", values{"IP": "x"}),
		Entry("keys in lower case", "ip=10.0.0.5;mac=m", values{"IP": "10.0.0.5", "MAC": "m"}),
		Entry("a semicolon at the end", "IP=10.0.0.5;", values{"IP": "10.0.0.5"}),
		Entry("a value with =", "IP=a=b=", values{"IP": "a=b="}),
		Entry("an empty value", "IP=", values{"IP": ""}),
		Entry("a value with blanks, as it is", " IP = x ", values{"IP": " x "}),
		Entry("the last of two", "IP=a;ip=b", values{"IP": "b"}),
	)

	DescribeTable("refuses", func(args, message string) {
		_, err := cni.ParseArgs(args, "IP", "MAC")
		Expect(err).To(MatchError(message))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeEnvironment))
		Expect(err.Error()).NotTo(ContainSubstring("hunter2"))
	},
		Entry("an unknown key", "FOO=hunter2",
			"CNI_ARGS: unknown keys FOO (known: IP, MAC; IgnoreUnknown=1 accepts any)"),
		Entry("one that would do something to a terminal", "\x1b[31mX=hunter2",
			`CNI_ARGS: unknown keys "\x1b[31mX" (known: IP, MAC; IgnoreUnknown=1 accepts any)`),
		Entry("several, in order", "Z=hunter2;A=hunter2;IP=x;IgnoreUnknown=false",
			"CNI_ARGS: unknown keys A, Z (known: IP, MAC; IgnoreUnknown=1 accepts any)"),
		Entry("a pair without =", "IP=x;hunter2", "CNI_ARGS: pair 2 is not KEY=value"),
		Entry("a pair without key", "=hunter2", "CNI_ARGS: pair 1 is not KEY=value"),
		Entry("another IgnoreUnknown", "IgnoreUnknown=1,PASSWORD=hunter2",
			"CNI_ARGS: IgnoreUnknown is not 0, 1, true or false"),
	)

	DescribeTable("of one key alone", func(args, want string) {
		Expect(cni.PairsOf(args, "MAC")).To(Equal(want))
	},
		Entry("nothing", "", ""),
		Entry("beside others, whatever their form", "IgnoreUnknown=no;K8S_POD_NAME=a;debug; mac =m=;=", " mac =m="),
		Entry("twice", "MAC=a;IP=b;MAC=c", "MAC=a;MAC=c"),
	)
})

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

func TestCNI(t *testing.T) { nstest.RunSpecs(t, "pkg/cni") }

// expectGolden compares got with a file below testdata.
func expectGolden(name string, got []byte) {
	GinkgoHelper()
	file := filepath.Join("testdata", name)
	if *update {
		Expect(os.MkdirAll(filepath.Dir(file), 0o755)).To(Succeed())
		Expect(os.WriteFile(file, append(got, '\n'), 0o644)).To(Succeed())
		return
	}
	want := nstest.Must(os.ReadFile(file))
	Expect(string(got)+"\n").To(Equal(string(want)), "%s (update with go test ./pkg/cni -update)", file)
}

func ptr[T any](v T) *T { return &v }

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// richResult returns a result with all fields.
func richResult() *cni.Result {
	return &cni.Result{
		Interfaces: []cni.Interface{
			{Name: "cni0", MAC: "0a:58:0a:f4:00:01", MTU: 1450},
			{Name: "veth1a2b3c4d", MAC: "0a:58:0a:f4:00:02", MTU: 1450},
			{Name: "eth0", MAC: "0a:58:0a:f4:00:03", MTU: 1450, Sandbox: "/run/netns/blue",
				SocketPath: "/run/vhost/<a&b>.sock", PCIID: "0000:03:00.1"},
		},
		IPs: []cni.IP{
			{Address: prefix("10.244.0.5/24"), Gateway: addr("10.244.0.1"), Interface: ptr(2)},
			{Address: prefix("fd00::5/64"), Gateway: addr("fd00::1"), Interface: ptr(2)},
			{Address: prefix("192.0.2.9/32"), Interface: ptr(0)},
			{Address: prefix("fd01::9/128")},
		},
		Routes: []cni.Route{
			{Dst: prefix("0.0.0.0/0"), GW: addr("10.244.0.1"), MTU: 1400, AdvMSS: 1360, Priority: 100,
				Table: ptr[uint32](254), Scope: ptr(0)},
			{Dst: prefix("::/0")},
			{Dst: prefix("198.51.100.0/24"), Table: ptr[uint32](0), Scope: ptr(253)},
			{Dst: prefix("fd02::/48"), GW: addr("fd00::2"), MTU: 1280},
		},
		DNS: cni.DNS{
			Nameservers: []string{"10.96.0.10", "fd00::a"}, Domain: "cluster.local",
			Search: []string{"default.svc.cluster.local", "svc.cluster.local"}, Options: []string{"ndots:5"},
		},
	}
}

// l2Result returns the result of an attachment without addresses.
func l2Result() *cni.Result {
	return &cni.Result{Interfaces: []cni.Interface{
		{Name: "veth1a2b3c4d", MAC: "0a:58:0a:f4:00:02"},
		{Name: "eth0", MAC: "0a:58:0a:f4:00:03", Sandbox: "/run/netns/blue"},
	}}
}

type object = map[string]any

var _ = Describe("docs/schema", func() {
	It("has result.json with all versions", func() {
		old := object{"properties": object{"cniVersion": object{"enum": []string{"0.1.0", "0.2.0"}}}}
		plugintest.ExpectSchema("result", "what ADD prints, and what prevResult is (specification, section 5)", object{
			"required": []string{"cniVersion"}, "if": old, "then": object{"$ref": "#/$defs/0.1.0"},
			"else":  object{"$ref": "#/$defs/0.3.0"},
			"$defs": object{"0.1.0": plugintest.SchemaOf(cni.Wire01{}), "0.3.0": plugintest.SchemaOf(cni.Wire1{})}})
	})

	It("has error.json", func() {
		plugintest.ExpectSchema("error", "what a plugin prints that fails (specification, section 5)",
			plugintest.SchemaOf(cni.WireError{}))
	})
})

var long = strings.Repeat("n", 300)

// networkOwns reports whether a mark belongs to a network without valid attachments.
func networkOwns(network, mark string) bool { return cni.NewSet(network, nil).IsGarbage(mark) }

var _ = Describe("Attachment", func() {
	a := cni.Attachment{Network: "net1", ContainerID: "c1", IfName: "eth0"}

	It("has a hash that never changes, because it is on disks and in the kernel", func() {
		Expect(a.Hash()).To(Equal("5f3c29da973ec808"))
		Expect(a.Mark()).To(Equal("5f3c29da973ec808 net1 c1 eth0"))
		Expect(a.String()).To(Equal(`network "net1", container "c1", interface "eth0"`))
	})

	It("has a unique hash", func() {
		seen := map[string]cni.Attachment{}
		for _, b := range []cni.Attachment{
			a, {"net1", "c1", "eth1"}, {"net1", "c2", "eth0"}, {"net2", "c1", "eth0"}, {"c1", "net1", "eth0"},
			{"ab", "c", "d"}, {"a", "bc", "d"}, {"a", "b", "cd"}, {"abc", "", "d"}, {"", "abcd", ""}, {"1:a", "b",
				"c"}, {"1", ":ab", "c"},
			{long, "c", "d"}, {long + "n", "c", "d"}, {"a", long, "d"}, {"a", long + "n", "d"},
		} {
			Expect(b.Hash()).To(MatchRegexp("^[0-9a-f]{16}$"))
			Expect(seen).NotTo(HaveKey(b.Hash()))
			seen[b.Hash()] = b
			for _, other := range seen {
				Expect(b.Owns(other.Mark())).To(Equal(b == other))
			}
		}
	})

	DescribeTable("has a mark that fits into a comment and identifies owner and network", func(b cni.Attachment) {
		mark := b.Mark()
		Expect(len(mark)).To(BeNumerically("<=", 128))
		Expect(mark).To(MatchRegexp(`^[!-~]+( [!-~]*)*$`))
		Expect(strings.ContainsAny(mark, `"\`)).To(BeFalse(), mark)
		Expect(b.Owns(mark)).To(BeTrue())
		Expect(a.Owns(mark)).To(BeFalse())
		Expect(networkOwns(b.Network, mark)).To(BeTrue())
		for _, other := range []string{b.Network + "x", b.Network[1:], a.Network} {
			Expect(networkOwns(other, mark)).To(BeFalse(), other)
		}
	},
		Entry("short", cni.Attachment{Network: "pod-net", ContainerID: "c1", IfName: "eth1"}),
		Entry("a container ID of 64", cni.Attachment{Network: "pod-net", ContainerID: strings.Repeat("c", 64),
			IfName: "eth1"}),
		Entry("a network of 64", cni.Attachment{Network: long[:64], ContainerID: strings.Repeat("c", 64),
			IfName: "eth1"}),
		Entry("a network of 65", cni.Attachment{Network: long[:65], ContainerID: "c1", IfName: "eth1"}),
		Entry("parts that are all too long",
			cni.Attachment{Network: long, ContainerID: long, IfName: "eth1234567890ab"}),
		Entry("an interface that a comment cannot hold",
			cni.Attachment{Network: "pod-net", ContainerID: "c1", IfName: "a\"\\\x01é\xff"}),
	)

	DescribeTable("does not own comments of other programs", func(mark string) {
		Expect(a.Owns(mark)).To(BeFalse())
		Expect(networkOwns("net1", mark)).To(BeFalse())
	},
		Entry("nothing", ""), Entry("a text", "my comment"), Entry("only the network", "net1"),
		Entry("no hash", "0123 net1 c1 eth0"), Entry("a hash in upper case", "5EC66F3B7C1F354C net1 c1 eth0"),
		Entry("a longer hash", "5f3c29da973ec8080 net1 c1 eth0"), Entry("not hexadecimal",
			"gf3c29da973ec808 net1 c1 eth0"),
		Entry("another network", "0123456789abcdef net10 c1 eth0"), Entry("no network", "0123456789abcdef"),
		Entry("a comment of the reference plugin", `name: "net1" id: "c1"`),
		Entry("a comment of the reference plugin in nftables",
			"6fd94d501e58f0aa-287fc69eff0574a2, net: net1, if: eth0, id: c1"),
	)

	It("has a network number that is never 0", func() {
		Expect(cni.NetworkHash("net1")).To(Equal(cni.NetworkHash("net1")))
		Expect(cni.NetworkHash("net1")).NotTo(Equal(cni.NetworkHash("net2")))
		for _, n := range []string{"", "a", "b", "c", long} {
			Expect(cni.NetworkHash(n)).NotTo(BeZero())
		}
	})
})

var _ = Describe("Set", func() {
	ref := func(id, ifname string) cni.Attachment { return cni.Attachment{ContainerID: id, IfName: ifname} }
	at := func(network, id, ifname string) cni.Attachment {
		return cni.Attachment{Network: network, ContainerID: id, IfName: ifname}
	}

	It("contains the valid attachments, and only other attachments of the network are garbage", func() {
		s := cni.NewSet("net1", []cni.Attachment{ref("c1", "eth0"), ref("c2", "eth1"), ref("c2", "eth1")})
		Expect(s.Network).To(Equal("net1"))
		Expect(s.Has(at("net1", "c1", "eth0"))).To(BeTrue())
		Expect(s.IsGarbage(at("net1", "c1", "eth0").Mark())).To(BeFalse())
		for _, gone := range []cni.Attachment{at("net1", "c1", "eth1"), at("net1", "c2", "eth0"),
			at("net1", "c3", "eth0"), at("net1", long, "eth0")} {
			Expect(s.Has(gone)).To(BeFalse())
			Expect(s.IsGarbage(gone.Mark())).To(BeTrue())
		}
		foreign := at("net2", "c3", "eth0")
		Expect(s.Has(foreign)).To(BeFalse())
		Expect(s.IsGarbage(foreign.Mark())).To(BeFalse())
		Expect(s.HasContainer("c2")).To(BeTrue())
		Expect(s.HasContainer("c3")).To(BeFalse())
	})

	It("lists the valid attachments", func() {
		s := cni.NewSet("net1", []cni.Attachment{ref("c1", "eth0"), ref("c2", "eth1")})
		Expect(s.All).To(HaveExactElements(at("net1", "c1", "eth0"), at("net1", "c2", "eth1")))
	})

	It("that is empty owns nothing", func() {
		var s cni.Set
		Expect(s.IsGarbage(at("net1", "c1", "eth0").Mark())).To(BeFalse())
		Expect(s.Has(at("net1", "c1", "eth0"))).To(BeFalse())
	})
})

var _ = Describe("names", func() {
	check := func(valid func(string) bool, good, bad []string) {
		GinkgoHelper()
		for _, s := range good {
			Expect(valid(s)).To(BeTrue(), "%q", s)
		}
		for _, s := range bad {
			Expect(valid(s)).To(BeFalse(), "%q", s)
		}
	}

	It("of networks and containers", func() {
		check(cni.ValidName, []string{"a", "0", "k8s.io-x", "a_b.c-d", "A9", "a..", long},
			[]string{"", ".", "..", "-a", "_a", ".a", "a/b", "a b", "a\n", "a;b", "ä", "aä", "a\x00", "a\\b", "../x",
				"a$b", `a"b`})
	})

	It("of interfaces", func() {
		check(cni.ValidIfName,
			[]string{"e", "eth0", "lo", "eth0.100", "a-very-long-nam", "-", "é", "a\"b", "...", "allx"},
			[]string{"", ".", "..", "a-very-long-name", "a/b", "a:b", "a b", "a\tb", "a\n", "a\u2028b", "a\u0085b",
				"a\x00", "éééééééé", "à", "eth%d", "100%", "a\xffb", "all", "default"})
	})

	It("of plugins", func() {
		check(cni.ValidType, []string{"bridge", "host-local", "a b", "x.y", "...", "-"},
			[]string{"", ".", "..", "/bin/sh", "../bridge", "a/b", "a/", `a\b`, "a\x00b", "a\x1b[31m"})
	})
})

var _ = DescribeTable("refuses a MAC address with the reason", func(text, why string) {
	_, err := cni.ParseMAC(cni.CodeConfig, "mac", text)
	Expect(err).To(MatchError(fmt.Sprintf("mac: %q is not a MAC address of an interface: %s", text, why)))
},
	Entry(nil, "f1:00:00:00:00:01", "f1 is odd: multicast"),
	Entry(nil, "01-00-5E-00-00-01", "01 is odd: multicast"),
	Entry(nil, "ff:ff:ff:ff:ff:ff", "ff is odd: multicast"),
	Entry(nil, "0000.0000.0000", "all bytes are zero"),
	Entry(nil, "x", "it is not six bytes like 02:00:00:00:00:01"),
	Entry(nil, "02:00:00:00:01", "it is not six bytes like 02:00:00:00:00:01"),
)

var _ = DescribeTable("refuses names that cannot be printed", Label("printable-names"), func(name string) {
	Expect(cni.CheckIfName(cni.CodeConfig, "bridge", name)).To(MatchError(HavePrefix("bridge: " + strconv.Quote(name))))
	Expect(cni.CheckName("master", name)).To(MatchError(HavePrefix("master: " + strconv.Quote(name))))
},
	Entry(nil, "br\x1b[31mX"), Entry(nil, "br\a"), Entry(nil, "br\x7f"), Entry(nil, "br\u009b"),
	Entry(nil, "br\u202ex"), Entry(nil, "br\u200b"), Entry(nil, "br\xff"), Entry(nil, "br\n"),
)

var _ = It("accepts names of interfaces that the kernel accepts and that are printable", func() {
	for _, name := range []string{"eth0", "é", "a\"b", "eth0.100", "a-very-long-nam"} {
		Expect(cni.CheckIfName(cni.CodeConfig, "bridge", name)).To(Succeed())
		Expect(cni.CheckName("master", name)).To(Succeed())
	}
	for _, name := range []string{"", "a/b", "a:b", "a b", "sixteen-letters-", "all"} {
		Expect(cni.CheckIfName(cni.CodeConfig, "bridge", name)).NotTo(Succeed(), name)
	}
	Expect(cni.CheckName("device", "an alternative name")).To(Succeed())
	Expect(cni.CheckName("device", strings.Repeat("x", 256))).To(MatchError(
		`device: "` + strings.Repeat("x", 64) + `..." has 256 bytes, more than 255`))
})

var _ = It("refuses a result with an unprintable interface name", Label("printable-names"), func() {
	const text = `{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0"}, {"name": "a\u001b"}]}`
	_, err := cni.DecodeResult([]byte(text), "")
	Expect(err).To(MatchError(`result: interfaces[1].name: "a\x1b" has characters that cannot be printed`))
})

type inSized struct {
	Short []string `json:"short" most:"2"`
}

type sized struct {
	inSized
	List   []string          `json:"list"`
	Nested [][]inSized       `json:"nested"`
	Text   string            `json:"text"`
	Map    map[string]string `json:"map"`
	Raw    json.RawMessage   `json:"raw"`
	Inner  *inSized          `json:"inner"`
	Other  []string          `json:"-"`
}

var _ = Describe("the sizes of a configuration", Label("sizes"), func() {
	long := strings.Repeat("ab", 2048)
	many := func(n int) (m map[string]string) {
		m = map[string]string{}
		for i := range n {
			m[fmt.Sprint(i)] = ""
		}
		return m
	}
	DescribeTable("are limited", func(wire any, want string) {
		err := cni.CheckSizes(wire)
		if want == "" {
			Expect(err).NotTo(HaveOccurred())
			return
		}
		Expect(err).To(MatchError(want))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
	},
		Entry("all at the limit", sized{List: make([]string, 256), Nested: [][]inSized{make([]inSized, 256)},
			Text: long, Map: many(256), Raw: make([]byte, 64<<10), inSized: inSized{make([]string, 2)}}, ""),
		Entry("a list", &sized{List: make([]string, 257)}, "list: has 257 elements, more than 256"),
		Entry("by the tag", sized{inSized: inSized{make([]string, 3)}}, "short: has 3 elements, more than 2"),
		Entry("in a list in a list", sized{Nested: [][]inSized{{}, {{}, {make([]string, 3)}}}},
			"nested[1][1].short: has 3 elements, more than 2"),
		Entry("behind a pointer", sized{Inner: &inSized{make([]string, 3)}},
			"inner.short: has 3 elements, more than 2"),
		Entry("a text", sized{Text: long + "c"}, `text: "`+long[:64]+`..." has 4097 bytes, more than 4096`),
		Entry("an object", sized{Map: many(257)}, "map: has 257 keys, more than 256"),
		Entry("a part that is not decoded", sized{Raw: make([]byte, 64<<10+1)},
			"raw: has 65537 bytes, more than 65536"),
		Entry("a field that is not a key", sized{Other: make([]string, 1000)}, ""),
	)

	It("also apply to a result", func() {
		list := strings.TrimSuffix(strings.Repeat(`{"dst": "10.0.0.0/8"},`, 1025), ",")
		_, err := cni.DecodeResult([]byte(`{"cniVersion": "1.0.0", "routes": [`+list+`]}`), "")
		Expect(err).To(MatchError("result: routes: has 1025 elements, more than 1024"))
	})

	It("also apply to the problems in an error", func() {
		var problems cni.Problems
		for i := range 100 {
			problems.Add(cni.Refuse(fmt.Sprintf("key%d", i), i, "is bad"))
		}
		Expect(cni.ProblemsOf(problems.Err())).To(HaveLen(64))
	})
})
