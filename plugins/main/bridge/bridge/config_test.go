package bridge

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func parse(keys, args string) (config, error) {
	return Plugin().Parse(&skel.Request{Conf: []byte("{" + keys + "}"), Args: args})
}

var _ = Describe("configuration", func() {
	It("has the reference's defaults", func() {
		c := nstest.Must(parse("", ""))
		Expect(c).To(Equal(config{wireConfig: wireConfig{Bridge: "cni0"}}))
	})

	It("is refused with all of its errors together", func() {
		_, err := parse(`"bridge":"a/b","mtu":5,"vlan":5000,"isGateway":true,"hairpinMode":true,"promiscMode":true,
			"disableContainerInterface":true,"ipam":{"type":"../x"},
			"vlanTrunk":[{"id":1},{"id":5000,"minID":3},{"minID":9,"maxID":5000},{
				"minID":7,"maxID":6}],"ipMasqBackend":"nft","args":{"cni":{"mac":"no"}}`, "IP=10.0.0.1")
		Expect(Problems(err)).To(HaveExactElements(
			HavePrefix(`7 bridge: "a/b" is not an interface name`),
			HavePrefix(`7 promiscMode: cannot set hairpin mode and promiscuous mode at the same time`),
			HavePrefix(`7 ipam.type: "../x" is not a plugin name`),
			HavePrefix("7 disableContainerInterface: cannot use IPAM when DisableContainerInterface flag is set "+
				`(ipam.type "../x")`),
			`7 vlan: invalid VLAN ID 5000 (must be between 0 and 4094)`,
			`7 vlanTrunk[1]: minID and maxID should be configured simultaneously, maxID is missing`,
			`7 vlanTrunk[2].maxID: 5000 is not between 1 and 4094`,
			`7 vlanTrunk[3].minID: 7 minID is greater than maxID in trunk parameter (6)`,
			`7 ipMasqBackend: "nft" is neither "nftables" nor "iptables"`,
			`7 mtu: 5 is not between 68 and 65535`,
			HavePrefix(`4 CNI_ARGS: unknown keys IP`),
			HavePrefix(`7 args.cni.mac: "no" is not a MAC address`)))
	})

	It("accepts a bridge name with which the gateway's name has 15 bytes", func() {
		c := nstest.Must(parse(`"bridge":"abcdefghijk","vlan":100,"isGateway":true,"ipam":{"type":"x"}`, ""))
		Expect(c.gatewayName()).To(Equal("abcdefghijk.100"))
	})

	DescribeTable("is refused for an invalid MAC address, even if another key overrides it", func(args, rt string,
		want ...string) {
		_, err := parse(`"args":{"cni":{"mac":"`+args+`"}},"runtimeConfig":{"mac":"`+rt+`"}`, "")
		Expect(err).To(MatchError(HavePrefix(want[0])))
		Expect(cni.ProblemsOf(err)).To(HaveLen(len(want)))
	},
		Entry(nil, "01:00:00:00:00:00", "02:00:00:00:00:03", `args.cni.mac: "01:00:00:00:00:00" is not a MAC address`),
		Entry(nil, "bad", "worse", `runtimeConfig.mac: "worse" is not a MAC address`, "and the one in args"),
	)

})

// planned returns the plan for a lease: the result as JSON without blanks, and the gateways.
func planned(keys, ips, routes string) (result, gateways string, err error) {
	GinkgoHelper()
	cfg := nstest.Must(parse(`"ipam":{"type":"x"},`+keys, ""))
	lease, err := cni.DecodeResult([]byte(`{"cniVersion":"1.1.0","dns":{"domain":"ipam"},"ips":[`+ips+`],
		"routes":[`+routes+`]}`), "1.1.0")
	Expect(err).NotTo(HaveOccurred())
	res, have, err := makePlan(cfg, lease)
	if err != nil {
		return "", "", err
	}
	out := nstest.Must(res.Encode("1.1.0"))
	var list []string
	for _, gw := range have {
		list = append(list, gw.String())
	}
	return strings.Join(strings.Fields(string(out)), ""), strings.Join(list, " "), nil
}

const (
	v4     = `{"address":"10.1.0.2/24"}`
	v4gw   = `{"address":"10.1.0.2/24","gateway":"10.1.0.254"}`
	v4more = `{"address":"10.2.0.2/24","gateway":"10.2.0.254"}`
	v6     = `{"address":"2001:db8:1::2/64"}`
	v6gw   = `{"address":"2001:db8:1::2/64","gateway":"2001:db8:1::ff"}`
	any4   = `{"dst":"0.0.0.0/0"}`
	any6   = `{"dst":"::/0"}`
)

var _ = Describe("plan", func() {
	DescribeTable("has, as gateways of the bridge,", func(keys, ips, gateways string) {
		_, got, err := planned(keys, ips, "")
		Expect(err).NotTo(HaveOccurred())
		Expect(got).To(Equal(gateways))
	},
		Entry("none if it is not a gateway", `"isGateway":false`, v4gw, ""),
		Entry("IPAM's", `"isGateway":true`, v4gw, "10.1.0.254/24"),
		Entry("the first address of the subnet if IPAM returns none", `"isGateway":true`, v4, "10.1.0.1/24"),
		Entry("one of IPv6", `"isGateway":true`, v6, "2001:db8:1::1/64"),
		Entry("one of each family", `"isGateway":true`, v4+","+v6gw, "10.1.0.1/24 2001:db8:1::ff/64"),
		Entry("one of each subnet", `"isGateway":true`, v4gw+","+v4more, "10.1.0.254/24 10.2.0.254/24"),
		Entry("one for two addresses of a subnet", `"isGateway":true`, v4+`,{"address":"10.1.0.3/24"}`, "10.1.0.1/24"),
		Entry("the other address of a /31", `"isGateway":true`, `{"address":"10.1.0.0/31"}`, "10.1.0.1/31"),
		Entry("IPAM's outside a /32", `"isGateway":true`, `{"address":"10.1.0.2/32","gateway":"10.9.9.9"}`,
			"10.9.9.9/32"),
		Entry("a link-local one", `"isGateway":true`, `{"address":"2001:db8:1::2/64","gateway":"fe80::1"}`,
			"fe80::1/64"),
	)

	It("has the configuration's resolver settings instead of IPAM's, even an empty list", func() {
		got, _, err := planned(`"dns":{"search":[]}`, v4, "")
		Expect(err).NotTo(HaveOccurred())
		Expect(got).NotTo(ContainSubstring("ipam"))
	})

	It("refuses an mtu that is too small for an address", func() {
		_, _, err := planned(`"mtu":1279`, `{"address":"2001:db8::2/64"}`, "")
		Expect(err).To(MatchError(ContainSubstring("mtu: 1279 is too small for IPv6 (1280)")))
		_, _, err = planned(`"mtu":1279`, `{"address":"10.1.0.2/24"}`, "")
		Expect(err).NotTo(HaveOccurred())
	})

	DescribeTable("refuses, with code 102, an address without a possible gateway:", func(ips, want string) {
		_, _, err := planned(`"isGateway":true`, ips, "")
		Expect(err).To(MatchError(ContainSubstring(want)))
		var e *cni.Error
		Expect(errors.As(err, &e)).To(BeTrue())
		Expect(e.Code).To(Equal(cni.CodeIPAM))
	},
		Entry("/32", `{"address":"10.1.0.2/32"}`, "10.1.0.2/32"),
		Entry("/128", `{"address":"2001:db8::2/128"}`, "2001:db8::2/128"),
		Entry("the last address of all", `{"address":"255.255.255.255/32"}`, "255.255.255.255/32"),
		Entry("the first of the subnet", `{"address":"10.1.0.1/24"}`, "10.1.0.1/24"),
		Entry("a gateway of the other family", `{"address":"10.1.0.2/24","gateway":"2001:db8::1"}`, "2001:db8::1"),
		Entry("a gateway that is the address itself", `{"address":"10.1.0.2/24","gateway":"10.1.0.2"}`, "10.1.0.2"),
	)

	DescribeTable("has, with isDefaultGateway, as routes", func(ips, routes, want string) {
		got, _, err := planned(`"isDefaultGateway":true`, ips, routes)
		Expect(err).NotTo(HaveOccurred())
		_, got, _ = strings.Cut(got, `"routes":[`)
		got, _, _ = strings.Cut(got, `],"dns"`)
		Expect(got).To(Equal(want))
	},
		Entry("a default route if IPAM returns none", v4, "", `{"dst":"0.0.0.0/0","gw":"10.1.0.1"}`),
		Entry("a default route of each family", v4gw+","+v6, "",
			`{"dst":"0.0.0.0/0","gw":"10.1.0.254"},{"dst":"::/0","gw":"2001:db8:1::1"}`),
		Entry("one per family, not per address", v4gw+","+v4more, "", `{"dst":"0.0.0.0/0","gw":"10.1.0.254"}`),
		Entry("IPAM's, with the gateway that it lacks", v4, any4, `{"dst":"0.0.0.0/0","gw":"10.1.0.1"}`),
		Entry("IPAM's, with its own gateway", v4, `{"dst":"0.0.0.0/0","gw":"10.1.0.9"}`,
			`{"dst":"0.0.0.0/0","gw":"10.1.0.9"}`),
		Entry("IPAM's in table 0, which means the main one", v4, `{"dst":"0.0.0.0/0","table":0}`,
			`{"dst":"0.0.0.0/0","gw":"10.1.0.1","table":0}`),
		Entry("IPAM's in the main table by number", v4, `{"dst":"0.0.0.0/0","table":254}`,
			`{"dst":"0.0.0.0/0","gw":"10.1.0.1","table":254}`),
		Entry("IPAM's in another table, and a default route", v4, `{"dst":"0.0.0.0/0","table":7}`,
			`{"dst":"0.0.0.0/0","table":7},{"dst":"0.0.0.0/0","gw":"10.1.0.1"}`),
		Entry("IPAM's others, and a default route", v6, `{"dst":"10.0.0.0/8"}`,
			`{"dst":"10.0.0.0/8"},{"dst":"::/0","gw":"2001:db8:1::1"}`),
		Entry("IPAM's of one family, and a default route of the other", v4+","+v6, any6,
			`{"dst":"::/0","gw":"2001:db8:1::1"},{"dst":"0.0.0.0/0","gw":"10.1.0.1"}`),
	)

	It("has no default route without isDefaultGateway", func() {
		got, _, err := planned(`"isGateway":true`, v4, "")
		Expect(err).NotTo(HaveOccurred())
		Expect(got).NotTo(ContainSubstring("routes"))
		Expect(got).To(ContainSubstring(`"ips":[{"interface":2,"address":"10.1.0.2/24","gateway":"10.1.0.1"}]`))
	})

	It("has no gateway if IPAM returns none and the bridge is not one", func() {
		got, _, err := planned(`"isGateway":false`, v4, "")
		Expect(err).NotTo(HaveOccurred())
		Expect(got).To(ContainSubstring(`"ips":[{"interface":2,"address":"10.1.0.2/24"}]`))
	})
})

var _ = Describe("the VLANs of a port", func() {
	DescribeTable("are", func(keys, want string) {
		c := nstest.Must(parse(keys, ""))
		Expect(vlansText(c)).To(Equal(want))
	},
		Entry("none", ``, ""),
		Entry("none with an empty trunk", `"vlanTrunk":[]`, ""),
		Entry("an untagged one", `"vlan":5`, "5u"),
		Entry("tagged ones, and VLAN 1 untagged", `"vlanTrunk":[{"id":7}]`, "1u 7"),
		Entry("tagged ones and VLAN 1 untagged, though it is in the trunk", `"vlanTrunk":[{"minID":1,"maxID":2}]`,
			"1u 2"),
		Entry("an untagged one and tagged ones", `"vlan":5,"vlanTrunk":[{"minID":4,"maxID":6}]`, "5u 4 6"),
	)
})

// vlansText writes an untagged VLAN with a "u".
func vlansText(c config) string {
	var words []string
	for _, v := range portVLANs(c.VLAN, c.Trunk) {
		word := strconv.Itoa(int(v.ID))
		if v.PVID && v.Untagged {
			word += "u"
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}

var _ = DescribeTable("a link becomes a gateway by a plan that", func(force bool, have, add, remove, refused string) {
	var addrs []rtnl.Addr
	for _, a := range strings.Fields(have) {
		text, failed := strings.CutSuffix(a, "!") // a duplicate
		addrs = append(addrs, rtnl.Addr{Prefix: netip.MustParsePrefix(text), DADFailed: failed})
	}
	want := []netip.Prefix{netip.MustParsePrefix("10.1.0.1/24"), netip.MustParsePrefix("2001:db8:1::1/64")}
	p, err := planGateways(config{wireConfig: wireConfig{ForceAddress: force}}, "br", addrs, want)
	if refused != "" {
		Expect(err).To(MatchError(ContainSubstring(refused)))
		return
	}
	Expect(err).NotTo(HaveOccurred())
	Expect(strings.Trim(fmt.Sprint(p.Add), "[]")).To(Equal(add))
	Expect(strings.Trim(fmt.Sprint(p.Remove), "[]")).To(Equal(remove))
},
	Entry("adds both addresses to a new bridge", false, "fe80::5/64", "10.1.0.1/24 2001:db8:1::1/64", "", ""),
	Entry("changes nothing if the link has both", false, "10.1.0.1/24 2001:db8:1::1/64", "", "", ""),
	Entry("adds the missing one", false, "10.1.0.1/24", "2001:db8:1::1/64", "", ""),
	Entry("ignores another IPv4 address next to both", false, "10.1.0.1/24 10.2.0.1/24 2001:db8:1::1/64", "", "", ""),
	Entry("refuses another IPv4 address", false, "10.2.0.1/24", "", "", "has address 10.2.0.1/24"),
	Entry("replaces another IPv4 address", true, "10.2.0.1/24 2001:db8:1::1/64", "10.1.0.1/24", "10.2.0.1/24", ""),
	Entry("ignores an IPv6 address in another subnet", false, "10.1.0.1/24 2001:db8:2::1/64",
		"2001:db8:1::1/64", "", ""),
	Entry("adds a duplicate again, although another address overlaps", false,
		"10.1.0.1/24 2001:db8:1::1/64! 2001:db8:1::5/64", "2001:db8:1::1/64", "2001:db8:1::1/64", ""),
	Entry("refuses an overlap", false, "10.1.0.1/24 2001:db8:1::2/60", "", "", "has address 2001:db8:1::2/60"),
)

var _ = It("has its schema in docs/schema", func() {
	integer := Object{"type": "integer"}
	id, first, last := HasKey("id", integer), HasKey("minID", integer), HasKey("maxID",
		integer)
	trunkRule := Object{"properties": Object{"vlanTrunk": Object{
		"items": Object{"anyOf": []any{
			Object{"allOf": []any{first, last}},
			Object{"allOf": []any{id, Object{"not": Object{"anyOf": []any{first,
				last}}}}},
		}}}}}
	ExpectPluginSchema(Plugin(),
		NotBoth(HasKey("hairpinMode", Object{"const": true}),
			HasKey("promiscMode", Object{"const": true})),
		NotBoth(HasKey("disableContainerInterface", Object{"const": true}),
			HasKey("ipam.type", Object{"type": "string", "minLength": 1})),
		trunkRule)
})

// FuzzCall serves fuzzed calls.
func FuzzCall(f *testing.F) {
	const prev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"br","mac":"02:00:00:00:00:09"},
		{"name":"veth1"},` +
		`{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"` + FuzzNetns + `"}],"ips":[{"address":"10.1.0.2/24",
			"gateway":"10.1.0.1","interface":2}]}`
	Fuzz{
		Plugin: Plugin().Untyped(),
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","type":"bridge","bridge":"br","isDefaultGateway":true,"ipMasq":true,
				"mtu":1400,"hairpinMode":true,` +
				`"ipam":{"type":"fake"},"dns":{"nameservers":["10.1.0.1"]},
					"cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"}],` + prev + `}`,
			`{"cniVersion":"1.0.0","name":"net","bridge":"br","vlan":5,"vlanTrunk":[{"minID":7,"maxID":9},{"id":12}],
				"macspoofchk":true,` +
				`"portIsolation":true,"args":{"cni":{"mac":"02:00:00:00:00:03"}},"runtimeConfig":{}}`,
			`{"cniVersion":"0.3.1","name":"net","isGateway":true,"forceAddress":true,"promiscMode":true,
				"enabledad":false,"ipam":{"type":"fake"},` + prev + `}`,
			`{"cniVersion":"0.2.0","name":"net","disableContainerInterface":true,
				"prevResult":{"ip4":{"ip":"10.1.0.2/24","routes":[{"dst":"0.0.0.0/0"}]}}}`,
			`{"name":"net","ipam":{"type":"../fake"},"ipMasqBackend":"x"}`,
		},
		Leases: []string{
			`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"address":"fd00:1::2/64"}],
				"routes":[{"dst":"0.0.0.0/0","mtu":1300,"advmss":1000,"priority":5,"table":100,"scope":0}]}`,
			`{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.0.2/16","interface":0}],
				"routes":[{"dst":"10.9.0.0/16","gw":"10.1.0.9"}],"dns":{"search":["x"]}}`,
			`{"ip4":{"ip":"10.1.0.2/24","gateway":"10.1.0.1"},"ip6":{"ip":"fd00::2/64"}}`,
			`!{"cniVersion":"1.1.0","code":11,"msg":"full"}`,
			`!no JSON`,
		},
	}.Run(f)
}
