package main

import (
	"errors"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func parse(keys, args string) (config, error) {
	return parseConfig(&skel.Request{Conf: []byte("{" + keys + "}"), Args: args})
}

var _ = Describe("configuration", func() {
	It("has the reference's defaults", func() {
		c, err := parse("", "")
		Expect(err).NotTo(HaveOccurred())
		Expect(c).To(Equal(config{Bridge: "cni0"}))
	})

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
