package static

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestStatic(t *testing.T) { nstest.RunSpecs(t, "plugins/ipam/static/static") }

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(Plugin()) })

// call returns a call whose configuration has these keys in ipam, and more keys of the network.
func call(command, ipam string, more ...string) Call {
	return callIn("1.1.0", command, ipam, more...)
}

func callIn(version, command, ipam string, more ...string) Call {
	if ipam != "" {
		ipam = ", " + ipam
	}
	return Call{Command: command, Netns: "/not/looked/at", Conf: fmt.Sprintf(
		`{"cniVersion": %q, "name": "net", "type": "bridge", "ipam": {"type": "static"%s}%s}`, version, ipam,
		strings.Join(append([]string{""}, more...), ", "))}
}

const (
	own   = `"addresses": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}, {"address": "fd01::5/64"}]`
	whole = own + `, "routes": ` + routesText + `, "dns": ` + dnsText
	// Two gateways for one destination make two routes, and a destination keeps its host bits.
	routesText = `[{"dst": "0.0.0.0/0", "gw": "10.1.0.254"}, {"dst": "0.0.0.0/0"}, {"dst": "10.9.0.5/16",
		"mtu": 1400, "advmss": 1300, "priority": 7, "table": 100, "scope": 253}]`
	dnsText = `{"nameservers": ["10.1.0.1"], "domain": "a.example", "search": ["b.example"], "options": ["ndots:2"]}`
	noIPAM  = `"ipam": null`
)

// shown returns the addresses of a result, each with its gateway.
func shown(r Result) string {
	var list []string
	for _, ip := range r.IPs {
		list = append(list, strings.TrimSpace(ip.Address+" "+ip.Gateway))
	}
	return strings.Join(list, ", ")
}

var _ = Describe("ADD", func() {
	DescribeTable("returns what is configured, in the asked version", func(want string, versions ...string) {
		w := NewWorld(Plugin())
		for _, version := range versions {
			have := w.Add(callIn(version, "ADD", whole)).Text
			Expect(have).To(MatchJSON(strings.ReplaceAll(want, "VERSION", version)))
		}
	},
		Entry("0.1.0 and 0.2.0", `{"cniVersion": "VERSION", "ip4": {"ip": "10.1.0.5/24",
			"gateway": "10.1.0.1", "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.254"}, {"dst": "0.0.0.0/0"},
			{"dst": "10.9.0.5/16"}]}, "ip6": {"ip": "fd01::5/64"}, "dns": `+dnsText+`}`, "0.1.0", "0.2.0"),
		Entry("0.3.0 to 0.4.0", `{"cniVersion": "VERSION", "ips": [
			{"version": "4", "address": "10.1.0.5/24", "gateway": "10.1.0.1"},
			{"version": "6", "address": "fd01::5/64"}],
			"routes": `+routesText+`, "dns": `+dnsText+`}`, "0.3.0", "0.3.1", "0.4.0"),
		Entry("1.0.0 and 1.1.0", `{"cniVersion": "VERSION", "ips": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"},
			{"address": "fd01::5/64"}],
			"routes": `+routesText+`, "dns": `+dnsText+`}`, "1.0.0", "1.1.0"),
	)

	It("ignores the parsed address beside the text, which programs write that have the reference's type", func() {
		both := `"addresses": [{"address": "10.1.0.5/24", "Address": {"IP": "10.1.0.5", "Mask": "////AA=="}}]`
		Expect(shown(NewWorld(Plugin()).Add(callIn("1.1.0", "ADD", both)))).To(Equal("10.1.0.5/24"))
	})

	const (
		args    = "IP=10.1.0.6/24, 10.2.0.6/24;GATEWAY=10.2.0.1"
		cniArgs = `"args": {"cni": {"ips": ["10.1.0.7/24", "10.3.0.7/24"]}}`
		runtime = `"runtimeConfig": {"ips": ["fd01::8/64", "10.1.0.8/24"]}`
	)
	DescribeTable("takes addresses from all sources, in the reference's order",
		Label("static-sources"), func(want, ipam, args string, more ...string) {
			c := call("ADD", ipam, more...)
			c.Args = args
			Expect(shown(NewWorld(Plugin()).Add(c))).To(Equal(want))
		},
		Entry("addresses of CNI_ARGS follow the configured ones",
			"10.1.0.5/24 10.1.0.1, fd01::5/64, 10.1.0.6/24 10.1.0.1, 10.2.0.6/24 10.2.0.1", own, args),
		Entry("only CNI_ARGS", "10.1.0.6/24, 10.2.0.6/24 10.2.0.1", `"addresses": []`, args),
		Entry("args replace them", "10.1.0.7/24 10.1.0.1, 10.3.0.7/24", own, args, cniArgs),
		Entry("only args", "10.1.0.7/24, 10.3.0.7/24", `"routes": []`, "", cniArgs),
		Entry("the runtime's replace all", "fd01::8/64, 10.1.0.8/24 10.1.0.1", own, args, cniArgs, runtime),
		Entry("only the runtime's", "fd01::8/64, 10.1.0.8/24", `"routes": []`, "", runtime),
		Entry("without gateways where CNI_ARGS is replaced", "10.2.0.8/24", `"routes": []`, args,
			`"runtimeConfig": {"ips": ["10.2.0.8/24"]}`),
		Entry("an empty list replaces nothing", "10.1.0.5/24 10.1.0.1, fd01::5/64", own, "",
			`"runtimeConfig": {"ips": []}`),
		Entry("a gateway of CNI_ARGS for configured addresses", "10.1.0.5/24 10.1.0.9, fd01::5/64 fd01::9", own,
			"GATEWAY=10.1.0.9,fd01::9"),
		Entry("what other plugins read of CNI_ARGS", "10.1.0.5/24 10.1.0.1, fd01::5/64", own,
			"IgnoreUnknown=1;MAC=02:00:00:00:00:01;K8S_POD_NAME=x;"),
		Entry("an address without a length gets its subnet's", "10.1.0.6/24 10.1.0.1, 10.1.0.7/24 10.1.0.1", own, "",
			`"runtimeConfig": {"ips": ["10.1.0.6", "::ffff:10.1.0.7"]}`),
		Entry("the gateway of its subnet, whichever address has it", "10.1.0.7/24 10.1.0.1", `"addresses": [
			{"address": "10.1.0.5/24"}, {"address": "10.1.0.6/24", "gateway": "10.1.0.1"}]`, "",
			`"runtimeConfig": {"ips": ["10.1.0.7"]}`),
		Entry("the longest length of the subnets that hold it", "10.1.2.7/24 10.1.2.1, 10.1.3.7/16 10.1.0.1",
			`"addresses": [{"address": "10.1.0.5/16", "gateway": "10.1.0.1"},
			{"address": "10.1.2.5/24", "gateway": "10.1.2.1"}, {"address": "10.0.0.5/8"}]`, "",
			`"runtimeConfig": {"ips": ["10.1.2.7", "10.1.3.7"]}`),
		Entry("IPv4 in IPv6", "10.1.0.5/24 10.1.0.1", `"addresses": [{"address": "::ffff:10.1.0.5/120",
			"gateway": "::ffff:10.1.0.1"}]`, ""),
		Entry("a gateway outside the subnet, both addresses of a /31, a /32",
			"10.1.0.0/31 192.0.2.1, 10.1.0.3/31, 10.1.0.9/32", `"addresses": [{"address": "10.1.0.0/31",
			"gateway": "192.0.2.1"}, {"address": "10.1.0.3/31"}, {"address": "10.1.0.9/32"}]`, ""),
	)

	DescribeTable("accepts the network's own address with a warning", func(key, ipam, args string, more ...string) {
		c := call("ADD", ipam, more...)
		c.Args = args
		a := NewWorld(Plugin()).Call(c)
		Expect(a.Code).To(BeZero(), a.Stdout)
		Expect(a.Stdout).To(ContainSubstring(`"10.10.0.0/24"`))
		Expect(a.Stderr).To(Equal("static: " + key +
			": 10.10.0.0/24 is the network address, to which some hosts do not send packets\n"))
	},
		Entry("of ipam", "ipam.addresses[0].address", `"addresses": [{"address": "10.10.0.0/24"}]`, ""),
		Entry("of the runtime", "runtimeConfig.ips[0]", `"addresses": []`, "",
			`"runtimeConfig": {"ips": ["10.10.0.0/24"]}`),
		Entry("of CNI_ARGS", "CNI_ARGS IP", `"addresses": []`, "IP=10.10.0.0/24"),
	)

	DescribeTable("refuses", func(code uint, want, ipam, args string, more ...string) {
		c := call("ADD", ipam, more...)
		c.Args = args
		Expect(NewWorld(Plugin()).Fails(c, code)).To(HavePrefix(want))
	},
		Entry("no address at all", cni.CodeConfig, "ipam.addresses: no address in ipam.addresses, in IP of "+
			"CNI_ARGS, in ",
			`"routes": []`, ""),
		Entry("no ipam, also with addresses from elsewhere", cni.CodeConfig, "ipam: IPAM config missing 'ipam' key", "",
			"IP=10.1.0.5/24", noIPAM, runtime),
		Entry("a bad address that others replace", cni.CodeConfig, "ipam.addresses[0].address: ",
			`"addresses": [{"address": "x"}]`, "", runtime),
		Entry("the same of args", cni.CodeConfig, "args.cni.ips[0]: an entry in the 'ips' field is NOT", own, "",
			`"args": {"cni": {"ips": ["x"]}}`),
		Entry("the same of CNI_ARGS", cni.CodeEnvironment,
			"CNI_ARGS IP: the 'ip' field is expected to be in CIDR notation, got: '10.7.0.1'", own, "IP=10.7.0.1"),
		Entry("a gateway of CNI_ARGS for no address", cni.CodeEnvironment, "CNI_ARGS GATEWAY: 10.7.0.1 is not in",
			own, "GATEWAY=10.7.0.1"),
		Entry("an invalid gateway in CNI_ARGS", cni.CodeEnvironment, `CNI_ARGS GATEWAY: "x" is not an IP address`, own,
			"GATEWAY=x"),
		Entry("an unknown key of CNI_ARGS", cni.CodeEnvironment, "CNI_ARGS: unknown keys MAC", own, "MAC=1"),
		Entry("an address that is listed twice", cni.CodeEnvironment, "CNI_ARGS IP: 10.1.0.5/24 is listed twice", own,
			"IP=10.1.0.5"),
		Entry("more addresses than a container has", cni.CodeConfig,
			"ipam.addresses: has 30000 elements, more than 64",
			`"addresses": [`+strings.TrimSuffix(strings.Repeat(`{"address": "10.1.0.5/24"},`, 30000), ",")+`]`, ""),
		Entry("more of CNI_ARGS", cni.CodeEnvironment, "CNI_ARGS IP: makes more than 64 addresses", `"addresses": []`,
			"IP=10.1.0.5/24"+strings.Repeat(",10.1.0.5/24", 5000)),
		Entry("one more of CNI_ARGS", cni.CodeEnvironment, "CNI_ARGS IP: makes more than 64 addresses",
			`"addresses": []`, "IP=10.1.0.5/24"+strings.Repeat(",10.1.0.5/24", 64)),
		Entry("a broadcast address", cni.CodeConfig,
			"ipam.addresses[0].address: 10.10.0.255/24 is the broadcast address",
			`"addresses": [{"address": "10.10.0.255/24"}]`, ""),
		Entry("a gateway for a container", cni.CodeConfig,
			"runtimeConfig.ips[0]: 10.1.0.1/24 is its own gateway", own, "",
			`"runtimeConfig": {"ips": ["10.1.0.1"]}`),
	)

	It("refuses a second address of a family where the version has room for one", func() {
		c := callIn("0.2.0", "ADD", own)
		c.Args = "IP=10.1.0.6"
		Expect(NewWorld(Plugin()).Fails(c, cni.CodeEnvironment)).To(HavePrefix("CNI_ARGS IP: 10.1.0.6/24 " +
			"CNI version 0.2.0 does not support more than 1 address per family"))
	})
})

var _ = Describe("CHECK", func() {
	DescribeTable("compares the result", Label("static-check"), func(result, want string) {
		c := call("CHECK", own, `"prevResult": `+result)
		if want == "" {
			NewWorld(Plugin()).Succeeds(c)
			return
		}
		Expect(NewWorld(Plugin()).Fails(c, cni.CodeDrift)).To(HavePrefix("prevResult: " + want))
	},
		Entry("as it was", Lease("10.1.0.5/24 10.1.0.1", "fd01::5/64"), ""),
		Entry("in another order, with more, and a gateway from elsewhere",
			Lease("fd01::5/64 fd01::1", "10.7.0.1/24", "10.1.0.5/24 10.1.0.1"), ""),
		Entry("an address is gone", Lease("fd01::5/64"), "address 10.1.0.5/24 is missing"),
		Entry("another length", Lease("10.1.0.5/16 10.1.0.1", "fd01::5/64"), "address 10.1.0.5/24 is missing"),
		Entry("another gateway", Lease("10.1.0.5/24 10.1.0.2", "fd01::5/64"),
			"the gateway of 10.1.0.5/24 is no longer 10.1.0.1"),
		Entry("no gateway", Lease("10.1.0.5/24", "fd01::5/64"), "the gateway of 10.1.0.5/24 is no longer 10.1.0.1"),
	)

	It("needs a result", func() {
		Expect(NewWorld(Plugin()).Fails(call("CHECK", own), cni.CodeConfig)).To(HavePrefix("prevResult: is missing"))
	})
})

var _ = Describe("static", func() {
	It("needs nothing for DEL, and has nothing to collect", func() {
		w := NewWorld(Plugin())
		w.Succeeds(call("DEL", own))
		w.Succeeds(call("DEL", `"addresses": [{"address": 5}], "routes": "x"`))
		w.Succeeds(call("DEL", "", noIPAM))
		w.Succeeds(call("GC", own, `"cni.dev/valid-attachments": []`))
	})

	It("STATUS does not miss the addresses that ADD is told, and refuses what ADD refuses", func() {
		w := NewWorld(Plugin())
		w.Succeeds(call("STATUS", own))
		w.Succeeds(call("STATUS", `"routes": []`, `"capabilities": {"ips": true}`))
		said := w.Fails(call("STATUS", `"addresses": [{"address": "x"}]`), cni.CodeConfig)
		Expect(said).To(HavePrefix("ipam.addresses"))
	})

	It("touches nothing, and looks at no namespace", func() {
		w := NewWorld(Plugin())
		before := w.Snapshot() + w.Files("/run", "/var/lib")
		a := w.Exec(call("ADD", whole))
		Expect(json.Valid([]byte(a.Added().Text))).To(BeTrue())
		Expect(w.Snapshot() + w.Files("/run", "/var/lib")).To(Equal(before))
	})
})

// FuzzCall serves fuzzed calls.
func FuzzCall(f *testing.F) {
	Fuzz{
		Plugin: Plugin().Untyped(),
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","ipam":{"type":"static","addresses":[{"address":"10.1.0.5/24",
				"gateway":"10.1.0.1"},{"address":"fd00::5/64"}],"routes":[{"dst":"0.0.0.0/0"}],
				"dns":{"nameservers":["10.1.0.1"]}},"cni.dev/valid-attachments":[]}`,
			`{"cniVersion":"0.2.0","name":"net","ipam":{"addresses":[{"address":"10.1.0.5/24"}]},
				"args":{"cni":{"ips":["10.1.0.6"]}}}`,
			`{"cniVersion":"0.4.0","name":"net","ipam":{"addresses":[{"address":"10.1.0.5/24"}]},
				"runtimeConfig":{"ips":["10.1.0.6/24","fd00::/127"]},
				"prevResult":{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.0.6/24"}]}}`,
			`{"name":"net","ipam":{}}`,
		},
	}.Run(f)
}
