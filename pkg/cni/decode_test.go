package cni_test

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

// The specification's own examples, and what the reference plugins print.
const (
	specIPAM = `{"ips": [{"address": "10.1.0.5/16", "gateway": "10.1.0.1"}],
		"routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["10.1.0.1"]}}`
	specBridge = `{"ips": [{"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 2}],
		"routes": [{"dst": "0.0.0.0/0"}],
		"interfaces": [{"name": "cni0", "mac": "00:11:22:33:44:55"}, {"name": "veth3243", "mac": "55:44:33:22:11:11"},
			{"name": "eth0", "mac": "99:88:77:66:55:44", "sandbox": "/var/run/netns/blue"}],
		"dns": {"nameservers": ["10.1.0.1"]}}`
	schemaExample = `{"cniVersion": "1.0.0", 
		"interfaces": [{"name": "cni0", "mac": "0a:58:0a:f4:00:01", "sandbox": ""}],
		"ips": [{"address": "10.244.0.5/24", "gateway": "10.244.0.1", "interface": 0}],
		"routes": [{"dst": "0.0.0.0/0", "gw": "10.244.0.1"}], "dns": {"options": ["ndots:5"]}}`
	reference03 = `{"cniVersion": "0.3.1",
		"interfaces": [{"name": "eth0", "mac": "0a:58:0a:f4:00:03", "sandbox": "/x"}],
		"ips": [{"version": "4", "interface": 0, "address": "10.1.2.3/24", "gateway": "10.1.2.1"},
			{"version": "6", "address": "fd00::3/64"}],
		"routes": [{"dst": "0.0.0.0/0", "mtu": 1400, "table": 0, "scope": 253}], "dns": {}}`
	reference02 = `{"cniVersion": "0.2.0",
		"ip4": {"ip": "10.1.2.3/24", "gateway": "10.1.2.1", "routes": [{"dst": "0.0.0.0/0"}]},
		"ip6": {"ip": "fd00::3/64", "routes": [{"dst": "::/0", "gw": "fd00::1"}]}, "dns": {"domain": "x.org"}}`
)

var _ = Describe("DecodeResult", func() {
	DescribeTable("reads other people's results", func(doc, version string, want *cni.Result) {
		got := nstest.Must(cni.DecodeResult([]byte(doc), version))
		Expect(got).To(Equal(want))
	},
		Entry("the specification's IPAM answer", specIPAM, "1.0.0", &cni.Result{
			IPs:    []cni.IP{{Address: prefix("10.1.0.5/16"), Gateway: addr("10.1.0.1")}},
			Routes: []cni.Route{{Dst: prefix("0.0.0.0/0")}}, DNS: cni.DNS{Nameservers: []string{"10.1.0.1"}}}),
		Entry("the specification's bridge answer", specBridge, "1.0.0", &cni.Result{
			Interfaces: []cni.Interface{{Name: "cni0", MAC: "00:11:22:33:44:55"},
				{Name: "veth3243", MAC: "55:44:33:22:11:11"},
				{Name: "eth0", MAC: "99:88:77:66:55:44", Sandbox: "/var/run/netns/blue"}},
			IPs:    []cni.IP{{Address: prefix("10.1.0.5/16"), Gateway: addr("10.1.0.1"), Interface: ptr(2)}},
			Routes: []cni.Route{{Dst: prefix("0.0.0.0/0")}}, DNS: cni.DNS{Nameservers: []string{"10.1.0.1"}}}),
		Entry("the schema's example", schemaExample, "0.1.0", &cni.Result{
			Interfaces: []cni.Interface{{Name: "cni0", MAC: "0a:58:0a:f4:00:01"}},
			IPs:        []cni.IP{{Address: prefix("10.244.0.5/24"), Gateway: addr("10.244.0.1"), Interface: ptr(0)}},
			Routes: []cni.Route{{Dst: prefix("0.0.0.0/0"),
				GW: addr("10.244.0.1")}}, DNS: cni.DNS{Options: []string{"ndots:5"}}}),
		Entry("a reference plugin at 0.3.1", reference03, "1.1.0", &cni.Result{
			Interfaces: []cni.Interface{{Name: "eth0", MAC: "0a:58:0a:f4:00:03", Sandbox: "/x"}},
			IPs: []cni.IP{{Address: prefix("10.1.2.3/24"), Gateway: addr("10.1.2.1"), Interface: ptr(0)},
				{Address: prefix("fd00::3/64")}},
			Routes: []cni.Route{{Dst: prefix("0.0.0.0/0"), MTU: 1400, Table: ptr[uint32](0), Scope: ptr(253)}}}),
		Entry("a reference plugin at 0.2.0", reference02, "1.1.0", &cni.Result{
			IPs: []cni.IP{{Address: prefix("10.1.2.3/24"), Gateway: addr("10.1.2.1")},
				{Address: prefix("fd00::3/64")}},
			Routes: []cni.Route{{Dst: prefix("0.0.0.0/0")}, {Dst: prefix("::/0"), GW: addr("fd00::1")}},
			DNS:    cni.DNS{Domain: "x.org"}}),
		Entry("the shape of the given version when it names none",
			`{"ip4": {"ip": "10.1.2.3/24"}}`, "0.2.0", &cni.Result{IPs: []cni.IP{{Address: prefix("10.1.2.3/24")}}}),
		Entry("the oldest version when there is none at all",
			`{"ip4": {"ip": "10.1.2.3/24"}}`, "", &cni.Result{IPs: []cni.IP{{Address: prefix("10.1.2.3/24")}}}),
		Entry("numbers of 32 bits",
			`{"routes": [{"dst": "10.0.0.0/8", "priority": 4294967295, "table": 4294967295}]}`, "1.0.0",
			&cni.Result{Routes: []cni.Route{{Dst: prefix("10.0.0.0/8"), Priority: 4294967295,
				Table: ptr[uint32](4294967295)}}}),
		Entry("keys in any case",
			`{"CNIVERSION": "1.0.0", "IPs": [{"Address": "10.1.2.3/24", "GateWay": "10.1.2.1"}]}`, "0.1.0",
			&cni.Result{IPs: []cni.IP{{Address: prefix("10.1.2.3/24"), Gateway: addr("10.1.2.1")}}}),
		Entry("null", `null`, "1.0.0", &cni.Result{}),
		Entry("an empty object", `{}`, "1.0.0", &cni.Result{}),
		Entry("nulls and empty texts",
			`{"ips": [{"address": "10.1.2.3/24", "gateway": "", "interface": null}],
				"routes": null, "dns": null}`, "1.0.0",
			&cni.Result{IPs: []cni.IP{{Address: prefix("10.1.2.3/24")}}}),
		Entry("an index of -1, which is none", `{"ips": [{"address": "10.1.2.3/24", "interface": -1}]}`, "1.0.0",
			&cni.Result{IPs: []cni.IP{{Address: prefix("10.1.2.3/24")}}}),
		Entry("IPv4 in IPv6 as the IPv4 it is",
			`{"ips": [{"address": "::ffff:10.1.2.3/120", "gateway": "::ffff:10.1.2.1"}]}`, "1.0.0",
			&cni.Result{IPs: []cni.IP{{Address: prefix("10.1.2.3/24"), Gateway: addr("10.1.2.1")}}}),
		Entry("unknown keys are nothing",
			`{"cniVersion": "1.1.0", "x": [1], "ips": [{"address": "10.1.2.3/24", "y": {}}]}`, "1.0.0",
			&cni.Result{IPs: []cni.IP{{Address: prefix("10.1.2.3/24")}}}),
	)

	DescribeTable("names the key and the value that it cannot read",
		func(doc, version string, code uint, message string) {
			_, err := cni.DecodeResult([]byte(doc), version)
			Expect(err).To(MatchError(message))
			Expect(cni.AsError(err).Code).To(Equal(code))
		},
		Entry("nothing", ``, "1.0.0", cni.CodeDecode, "result: no valid JSON at byte 0: unexpected end of JSON input"),
		Entry("text", `hello`, "1.0.0", cni.CodeDecode,
			"result: no valid JSON at byte 1: invalid character 'h' looking for beginning of value"),
		Entry("two documents", `{}{}`, "1.0.0", cni.CodeDecode,
			"result: no valid JSON at byte 3: invalid character '{' after top-level value"),
		Entry("a list", `[]`, "1.0.0", cni.CodeDecode, "result: is a JSON array, want an object"),
		Entry("ips of another type", `{"ips": 5}`, "1.0.0", cni.CodeDecode,
			"result: ips: is a JSON number, want an array"),
		Entry("a version of another type", `{"cniVersion": 1.0}`, "1.0.0", cni.CodeDecode,
			"result: cniVersion: is a JSON number, want a string"),
		Entry("an unknown version", `{"cniVersion": "2.0.0"}`, "1.0.0", cni.CodeIncompatibleVersion,
			`result: cniVersion: "2.0.0" is none of 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0`),
		Entry("an unknown version asked for", `{}`, "1.0", cni.CodeIncompatibleVersion,
			`result: cniVersion: "1.0" is none of 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0`),
		Entry("no address", `{"ips": [{"address": "10.0.0.1/8"}, {}]}`, "0.4.0", cni.CodeDecode,
			`result: ips[1].address: "" is no address in CIDR notation`),
		Entry("an address without length", `{"ips": [{"address": "10.0.0.1"}]}`, "1.0.0", cni.CodeDecode,
			`result: ips[0].address: "10.0.0.1" is no address in CIDR notation`),
		Entry("a length too long", `{"ips": [{"address": "10.0.0.1/33"}]}`, "1.0.0", cni.CodeDecode,
			`result: ips[0].address: "10.0.0.1/33" is no address in CIDR notation`),
		Entry("an address with a zone", `{"ips": [{"address": "fe80::1%eth0/64"}]}`, "1.0.0", cni.CodeDecode,
			`result: ips[0].address: "fe80::1%eth0/64" is no address in CIDR notation`),
		Entry("two families in one", `{"ips": [{"address": "::ffff:10.0.0.1/64"}]}`, "1.0.0", cni.CodeDecode,
			`result: ips[0].address: "::ffff:10.0.0.1/64" is no address in CIDR notation`),
		Entry("a bad gateway", `{"ips": [{"address": "10.0.0.1/8", "gateway": "10.0.0.1/8"}]}`, "1.0.0",
			cni.CodeDecode, `result: ips[0].gateway: "10.0.0.1/8" is no IP address`),
		Entry("a gateway with a zone", `{"ips": [{"address": "fd00::1/8", "gateway": "fe80::1%e"}]}`, "1.0.0",
			cni.CodeDecode, `result: ips[0].gateway: "fe80::1%e" is no IP address`),
		Entry("a negative index", `{"ips": [{"address": "10.0.0.1/8", "interface": -2}]}`, "1.0.0", cni.CodeDecode,
			`result: ips[0].interface: -2 is no index`),
		Entry("a bad ip4", `{"ip4": {"ip": "x"}}`, "0.1.0", cni.CodeDecode,
			`result: ip4.ip: "x" is no address in CIDR notation`),
		Entry("a bad ip6 gateway", `{"ip6": {"ip": "fd00::1/64", "gateway": "x"}}`, "0.1.0", cni.CodeDecode,
			`result: ip6.gateway: "x" is no IP address`),
		Entry("a bad ip6 route", `{"ip6": {"ip": "fd00::1/64", "routes": [{"dst": "x"}]}}`, "0.1.0", cni.CodeDecode,
			`result: ip6.routes[0].dst: "x" is no address in CIDR notation`),
		Entry("a route without destination", `{"routes": [{"gw": "10.0.0.1"}]}`, "1.0.0", cni.CodeDecode,
			`result: routes[0].dst: missing`),
		Entry("a bad gw", `{"routes": [{"dst": "10.0.0.0/8", "gw": "me"}]}`, "1.0.0", cni.CodeDecode,
			`result: routes[0].gw: "me" is no IP address`),
		Entry("a negative mtu", `{"routes": [{"dst": "10.0.0.0/8", "mtu": -1}]}`, "1.0.0", cni.CodeDecode,
			`result: routes[0].mtu: -1 is not between 0 and 2147483647`),
		Entry("a negative advmss", `{"routes": [{"dst": "10.0.0.0/8", "advmss": -1}]}`, "1.0.0", cni.CodeDecode,
			`result: routes[0].advmss: -1 is not between 0 and 2147483647`),
		Entry("a priority of 33 bits", `{"routes": [{"dst": "10.0.0.0/8", "priority": 4294967296}]}`, "1.0.0",
			cni.CodeDecode, `result: routes[0].priority: 4294967296 is no whole number between 0 and 4294967295`),
		Entry("a negative table", `{"routes": [{"dst": "10.0.0.0/8", "table": -1}]}`, "1.0.0", cni.CodeDecode,
			`result: routes[0].table: -1 is no whole number between 0 and 4294967295`),
		Entry("a scope of 9 bits", `{"routes": [{"dst": "10.0.0.0/8", "scope": 256}]}`, "1.0.0", cni.CodeDecode,
			`result: routes[0].scope: 256 is not between 0 and 255`),
	)
})
