package docs_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// specCase is one key of the JSON Schemas that go about for the specification
// (www.cni.dev/schemas/network-config.json and result.json): with each of the
// good values they take a document that is otherwise minimal, with each of the
// bad ones they do not. They are compared key by key, since their text comes
// without a licence.
type specCase struct{ key, good, bad string }

const (
	versionGood = `["1.0.0", "0.4.0", "0.3.1"]`
	versionBad  = `["1.0", "text", 5, []]`
	dnsBad      = `["text", [], {"nameservers": "text"}, {"nameservers": [5]}, {"domain": 5}, {"search": {}},
		{"search": [true]}, {"options": [5]}]`
	dnsGood = `[{}, {"nameservers": ["10.96.0.10"], "domain": "cluster.local", "search": ["example.com"],
		"options": ["ndots:5"]}]`
	routesGood = `[[], [{"dst": "0.0.0.0/0"}], [{"dst": "::/0", "gw": "fd00::1"}], [{"dst": "10.0.0.0/8",
		"gw": "10.0.0.1", "mtu": 68, "advmss": 1}], [{"dst": "10.0.0.0/8", "mtu": 65535, "advmss": 1460}]]`
	routesBad = `["text", {}, [{}], ["text"], [{"gw": "10.0.0.1"}], [{"dst": 5}], [{"dst": "0.0.0.0/0", "gw": 5}],
		[{"dst": "0.0.0.0/0", "mtu": "x"}], [{"dst": "0.0.0.0/0", "mtu": 1.5}], [{"dst": "0.0.0.0/0",
		"advmss": {}}]]`
)

// resultCases are of results, and of prevResult.
var resultCases = []specCase{
	{"cniVersion", versionGood, versionBad},
	{"interfaces", `[[], [{"name": "eth0"}], [{"name": "eth0", "mac": "0a:58:0a:f4:00:01", "mtu": 68,
		"sandbox": "/proc/12345/ns/net"}],
		[{"name": "net1", "mtu": 65535, "sandbox": "", "socketPath": "/run/x", "pciID": "0000:03:00.1"}]]`,
		`["text", {}, ["eth0"], [{}], [{"mac": "0a:58:0a:f4:00:01"}], [{"name": 5}], [{"name": "eth0", "mtu": "x"}],
			[{"name": "eth0", "mtu": 1.5}],
		[{"name": "eth0", "sandbox": 5}], [{"name": "eth0", "socketPath": []}], [{"name": "eth0", "pciID": true}]]`},
	{"ips", `[[], [{"address": "10.244.0.5/24"}], [{"address": "fd00::1/64", "gateway": "fd00::2", "interface": 0}]]`,
		`["text", {}, [{}], ["10.244.0.5/24"], [{"gateway": "10.0.0.1"}], [{"address": 5}], [{"address": "10.0.0.2/8",
			"gateway": 5}], [{"address": "10.0.0.2/8", "interface": "x"}],
		[{"address": "10.0.0.2/8", "interface": -1}]]`},
	{"routes", routesGood, routesBad},
	{"dns", dnsGood, dnsBad},
}

// networkCases are of configurations, tried in one of bridge. The keys of other plugins, those of host-local's
// ranges and portmap's mappings, are in the tables of values.
var networkCases = []specCase{
	{"cniVersion", versionGood, versionBad},
	{"cniVersions", `[["1.0.0", "0.4.0"], []]`, `["1.0.0", {}, [5]]`},
	{"name", `["mynet", "k8s-pod-network", "bridge-net"]`, `["", "-a", "a b", 5]`},
	{"type", `["bridge", "antrea", "calico", "weave-net"]`, `["", 5, []]`},
	{"args", `[{}, {"cni": {}}, {"cni": {"disable-check": true, "aliases": {"a": ["b"]}}}, {"other": 1}]`,
		`["text", [], {"cni": "text"}, {"cni": []}]`},
	{"ipMasq", `[true, false]`, `["x", 1]`},
	{"ipam", `[{"type": "dhcp"}, {"type": "whereabouts", "range": "10.0.0.0/8"}]`, `["text", [], {"type": 5}]`},
	{"dns", dnsGood, dnsBad},
	{"capabilities", `[{}, {"portMappings": true, "ipRanges": false, "bandwidth": true, "dns": true, "mac": true,
			"aliases": true, "infinibandGUID": true, "deviceID": true, "other": false}]`,
		`["text", [], {"mac": "x"}, {"other": 1}]`},
	{"runtimeConfig", `[{}, {"mac": "0a:58:0a:f4:00:01"}, {"bandwidth": {"ingressRate": 0, "egressBurst": 8},
			"dns": {}, "other": 1}]`,
		`["text", [], {"mac": "x"}, {"mac": 5}]`},
	{"prevResult", `[{"cniVersion": "1.0.0"}]`, `["text", [], {}]`},
}

// expectAs checks that documents are taken, or refused.
func expectAs(name string, base any, c specCase) {
	GinkgoHelper()
	for _, value := range parsed(c.good).([]any) {
		Expect(validate(schema(name), put(base, c.key, value))).To(Succeed(), "%s: %v", c.key, value)
	}
	for _, value := range parsed(c.bad).([]any) {
		Expect(validate(schema(name), put(base, c.key, value))).NotTo(Succeed(), "%s: %v", c.key, value)
	}
}

var _ = Describe("beside the schemas of the specification, ours", func() {
	It("takes and wants the same of results", func() {
		for _, version := range []string{"1.0.0", "0.4.0"} {
			base := object{"cniVersion": version}
			for _, c := range resultCases {
				expectAs("result", base, c)
			}
			whole := put(subjectOf("bridge").base, "prevResult", base)
			for _, c := range resultCases {
				c.key = "prevResult." + c.key
				expectAs("network", whole, c)
			}
		}
		for _, doc := range []any{parsed(`{}`), parsed(`{"ips": []}`), parsed(`[]`), "text"} {
			Expect(validate(schema("result"), doc)).NotTo(Succeed())
		}
	})

	It("takes and wants the same of configurations", Label("spec-schemas"), func() {
		for _, c := range networkCases {
			expectAs("network", subjectOf("bridge").base, c)
		}
		for _, key := range []string{"cniVersion", "name", "type"} {
			Expect(validate(schema("network"), merge(subjectOf("bridge").base, object{key: nil}))).NotTo(Succeed(), key)
		}
	})

	// docs/schema/README.md lists what the plugins refuse and the specification's
	// schemas do not; an empty ipam, the other way round, is how layer 2 is asked
	// for.
	It("differs where the plugins do", func() {
		Expect(validate(schema("network"), put(subjectOf("bridge").base, "ipam", object{}))).To(Succeed())
		for _, mapping := range []string{`{"containerPort": 80}`,
			`{"containerPort": 80, "hostPort": 0, "protocol": "tcp"}`} {
			doc := put(subjectOf("portmap").base, "runtimeConfig.portMappings[]", parsed(mapping))
			Expect(validate(schema("network"), doc)).NotTo(Succeed())
			_, code := checkConfig("portmap", plugintest.Text(doc))
			Expect(code).To(Equal(1))
		}
	})

	DescribeTable("have stricter values, as the plugins do:", func(plugin, keys string) {
		doc := merge(subjectOf(plugin).base, parsed(keys))
		Expect(validate(schema("network"), doc)).NotTo(Succeed())
		_, code := checkConfig(plugin, plugintest.Text(doc))
		Expect(code).To(Equal(1))
	},
		Entry(nil, "bridge", `{"cniVersion": "1.2.3"}`),
		Entry(nil, "bridge", `{"ipam": {"type": "a/b"}}`),
		Entry(nil, "bridge", `{"runtimeConfig": {"mac": "01:00:00:00:00:01"}}`),
		Entry(nil, "bridge", `{"args": {"cni": {"mac": "00:00:00:00:00:00"}},
			"runtimeConfig": {"mac": "02:00:00:00:00:01"}}`),
		Entry(nil, "bridge", `{"prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "x"}]}}`),
		Entry(nil, "ptp", `{"ipam": null}`),
		Entry(nil, "host-local", `{"ipam": {"subnet": null}}`),
		Entry(nil, "host-local", `{"ipam": {"subnet": null, "ranges": [[{}]]}}`),
		Entry(nil, "host-local", `{"ipam": {"subnet": null, "ranges": []}}`),
	)
})
