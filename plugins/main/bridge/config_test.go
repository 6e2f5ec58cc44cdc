package main

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func parse(keys, args string) (config, error) {
	return parseConfig(&skel.Request{Conf: []byte("{" + keys + "}"), Args: args})
}

// differences lists the fields of a configuration that are not as without keys.
func differences(c config) string {
	base, err := parse("", "")
	Expect(err).NotTo(HaveOccurred())
	var diffs []string
	var walk func(a, b reflect.Value, name string)
	walk = func(a, b reflect.Value, name string) {
		if a.Kind() == reflect.Struct {
			for i := range a.NumField() {
				walk(a.Field(i), b.Field(i), name+"."+a.Type().Field(i).Name)
			}
		} else if v := fmt.Sprintf("%v", a); v != fmt.Sprintf("%v",
			b) || a.Kind() == reflect.Slice && a.IsNil() != b.IsNil() {
			diffs = append(diffs, fmt.Sprintf("%s=%s", name[1:], v))
		}
	}
	walk(reflect.ValueOf(c), reflect.ValueOf(base), "")
	return strings.Join(diffs, " ")
}

var _ = Describe("configuration", func() {
	It("has the reference's defaults", func() {
		c, err := parse("", "")
		Expect(err).NotTo(HaveOccurred())
		Expect(c).To(Equal(config{Bridge: "cni0"}))
	})

	DescribeTable("keys", func(keys, want string) {
		c, err := parse(keys, "")
		Expect(err).NotTo(HaveOccurred())
		Expect(differences(c)).To(Equal(want))
	},
		Entry("bridge", `"bridge":"mybr"`, "Bridge=mybr"),
		Entry("bridge null", `"bridge":null`, ""),
		Entry("isGateway", `"isGateway":true`, "Gateway=true"),
		Entry("isDefaultGateway", `"isDefaultGateway":true`, "Gateway=true DefaultGateway=true"),
		Entry("isDefaultGateway and no isGateway", `"isDefaultGateway":true,"isGateway":false`,
			"Gateway=true DefaultGateway=true"),
		Entry("forceAddress", `"forceAddress":true`, "ForceAddress=true"),
		Entry("ipMasq without ipam", `"ipMasq":true`, ""),
		Entry("ipMasq", `"ipMasq":true,"ipam":{"type":"x"}`, "Masq.On=true IPAM=true"),
		Entry("ipMasqBackend", `"ipMasqBackend":"iptables"`, "Masq.Backend=iptables"),
		Entry("ipMasqBackend nftables", `"ipMasqBackend":"nftables"`, "Masq.Backend=nftables"),
		Entry("ipMasqBackend null", `"ipMasqBackend":null`, ""),
		Entry("mtu", `"mtu":1400`, "Link.MTU=1400"),
		Entry("mtu, smallest", `"mtu":68`, "Link.MTU=68"),
		Entry("mtu, largest", `"mtu":65535`, "Link.MTU=65535"),
		Entry("hairpinMode", `"hairpinMode":true`, "Port.Hairpin=true"),
		Entry("promiscMode", `"promiscMode":true`, "Promisc=true"),
		Entry("vlan", `"vlan":100`, "Port.Filtering=true Port.VLAN=100"),
		Entry("vlan 0", `"vlan":0`, ""),
		Entry("vlan, largest", `"vlan":4094`, "Port.Filtering=true Port.VLAN=4094"),
		Entry("vlanTrunk, no entries", `"vlanTrunk":[]`, "Port.Filtering=true"),
		Entry("vlanTrunk null", `"vlanTrunk":null`, ""),
		Entry("vlanTrunk, one", `"vlanTrunk":[{"id":7}]`, "Port.Filtering=true Port.Trunk=[7]"),
		Entry("vlanTrunk, a range of one", `"vlanTrunk":[{"minID":7,"maxID":7}]`, "Port.Filtering=true Port.Trunk=[7]"),
		Entry("vlanTrunk, one and a range in an entry", `"vlanTrunk":[{"id":9,"minID":2,"maxID":4}]`,
			"Port.Filtering=true Port.Trunk=[2 3 4 9]"),
		Entry("vlanTrunk, unordered and overlapping",
			`"vlanTrunk":[{"minID":8,"maxID":10},{"id":9},{"id":1},{"id":4094}]`,
			"Port.Filtering=true Port.Trunk=[1 8 9 10 4094]"),
		Entry("vlan and vlanTrunk", `"vlan":5,"vlanTrunk":[{"id":7}]`,
			"Port.Filtering=true Port.VLAN=5 Port.Trunk=[7]"),
		Entry("preserveDefaultVlan", `"preserveDefaultVlan":true`, "Port.KeepDefault=true"),
		Entry("macspoofchk", `"macspoofchk":true`, "SpoofCheck=true"),
		Entry("enabledad", `"enabledad":true`, "DAD=true"),
		Entry("disableContainerInterface", `"disableContainerInterface":true`, "KeepDown=true"),
		Entry("disableContainerInterface with an ipam without type", `"disableContainerInterface":true,"ipam":{}`,
			"KeepDown=true"),
		Entry("portIsolation", `"portIsolation":true`, "Port.Isolated=true"),
		Entry("ipam without type", `"ipam":{}`, ""),
		Entry("ipam", `"ipam":{"type":"host-local"}`, "IPAM=true"),
		Entry("dns", `"dns":{"nameservers":["192.0.2.53"],"domain":"d","search":["s"],"options":["o"]}`,
			"Link.DNS.Nameservers=[192.0.2.53] Link.DNS.Domain=d Link.DNS.Search=[s] Link.DNS.Options=[o]"),
		Entry("dns, an empty list is said", `"dns":{"search":[]}`, "Link.DNS.Search=[]"),
		Entry("keys in other case", `"BRIDGE":"x","isgateway":true,"MacSpoofChk":true`,
			"Bridge=x Gateway=true SpoofCheck=true"),
		Entry("unknown keys", `"nonsense":{"bridge":1}`, ""),
	)

	It("is refused for everything that is wrong with it at once", func() {
		_, err := parse(`"bridge":"a/b","mtu":5,"vlan":5000,"isGateway":true,"hairpinMode":true,"promiscMode":true,
			"disableContainerInterface":true,"ipam":{"type":"../x"},
			"vlanTrunk":[{"id":1},{"id":5000,"minID":3},{"minID":9,"maxID":5000},{
				"minID":7,"maxID":6}],"ipMasqBackend":"nft","args":{"cni":{"mac":"no"}}`, "IP=10.0.0.1")
		var got []string
		for _, p := range cni.ProblemsOf(err) {
			got = append(got, fmt.Sprintf("%d %s", p.Code, p))
		}
		Expect(got).To(HaveExactElements(
			HavePrefix(`7 bridge: "a/b" is no interface name`),
			HavePrefix(`7 promiscMode: cannot set hairpin mode and promiscuous mode at the same time`),
			HavePrefix(`7 ipam.type: "../x" is no plugin name`),
			HavePrefix("7 disableContainerInterface: cannot use IPAM when DisableContainerInterface flag is set "+
				`(ipam.type "../x")`),
			`7 vlan: invalid VLAN ID 5000 (must be between 0 and 4094)`,
			`7 vlanTrunk[1]: minID and maxID should be configured simultaneously, maxID is missing`,
			`7 vlanTrunk[2].maxID: 5000 is not between 1 and 4094`,
			`7 vlanTrunk[3].minID: 7 minID is greater than maxID in trunk parameter (6)`,
			`7 ipMasqBackend: "nft" is neither "nftables" nor "iptables"`,
			`7 mtu: 5 is not between 68 and 65535`,
			HavePrefix(`4 CNI_ARGS: unknown keys IP`),
			HavePrefix(`7 args.cni.mac: "no" is no MAC address`)))
	})

	It("reaches 15 bytes for the gateway's name", func() {
		c, err := parse(`"bridge":"abcdefghijk","vlan":100,"isGateway":true,"ipam":{"type":"x"}`, "")
		Expect(err).NotTo(HaveOccurred())
		Expect(c.gatewayName()).To(Equal("abcdefghijk.100"))
	})

	const envMAC, cniMAC, rtMAC = "02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"
	DescribeTable("MAC address", func(keys, args, want string) {
		c, err := parse(keys, args)
		Expect(err).NotTo(HaveOccurred())
		Expect(c.Link.MAC.String()).To(Equal(want))
	},
		Entry("from nowhere", ``, "", ""),
		Entry("from CNI_ARGS", ``, "IgnoreUnknown=1;K8S_POD_NAME=a;MAC="+envMAC, envMAC),
		Entry("from args.cni, which wins over CNI_ARGS", `"args":{"cni":{"mac":"`+cniMAC+`"}}`, "MAC="+envMAC, cniMAC),
		Entry("from runtimeConfig, which wins over all",
			`"args":{"cni":{"mac":"`+cniMAC+`"}},"RuntimeConfig":{"mac":"`+rtMAC+`"}`, "MAC="+envMAC, rtMAC),
		Entry("from runtimeConfig, whatever CNI_ARGS have", `"runtimeConfig":{"mac":"`+rtMAC+`"}`, "MAC=bad", rtMAC),
		Entry("an empty one is none", `"runtimeConfig":{"mac":""}`, "MAC="+envMAC, envMAC),
		Entry("in capitals", `"runtimeConfig":{"mac":"0A-00-00-00-00-0B"}`, "", "0a:00:00:00:00:0b"),
	)

	DescribeTable("a MAC address that is bad is refused, also beside a stronger one", func(args, rt string,
		want ...string) {
		_, err := parse(`"args":{"cni":{"mac":"`+args+`"}},"runtimeConfig":{"mac":"`+rt+`"}`, "")
		Expect(err).To(MatchError(HavePrefix(want[0])))
		Expect(cni.ProblemsOf(err)).To(HaveLen(len(want)))
	},
		Entry(nil, "01:00:00:00:00:00", rtMAC, `args.cni.mac: "01:00:00:00:00:00" is no MAC address`),
		Entry(nil, "bad", "worse", `runtimeConfig.mac: "worse" is no MAC address`, "and the other"),
	)

	DescribeTable("CNI_ARGS are refused with code 4", func(args, want string) {
		_, err := parse("", args)
		Expect(err).To(MatchError(ContainSubstring(want)))
		var e *cni.Error
		Expect(errors.As(err, &e)).To(BeTrue())
		Expect(e.Code).To(Equal(cni.CodeEnvironment))
	},
		Entry("MAC", "MAC=zz", `CNI_ARGS MAC: "zz"`),
		Entry("an unknown key", "IP=10.0.0.1", "IP"),
		Entry("no pair", "MAC", "KEY=value"),
	)

})
