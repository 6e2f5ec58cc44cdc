package main

import (
	"errors"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func parse(keys, args string) (config, error) {
	return parseConfig(&skel.Request{Conf: []byte("{" + keys + "}"), Args: args})
}

const withIPAM = `"ipam":{"type":"x"}`

func codeOf(err error) uint {
	var e *cni.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.Code
}

var _ = Describe("configuration", func() {
	DescribeTable("keys", func(keys string, want config) {
		c, err := parse(strings.TrimSuffix(withIPAM+","+keys, ","), "")
		Expect(err).NotTo(HaveOccurred())
		Expect(c).To(Equal(want))
	},
		Entry("nothing but ipam", "", config{}),
		Entry("ipMasq", `"ipMasq":true`, config{Masq: attach.Masq{On: true}}),
		Entry("ipMasqBackend nftables", `"ipMasqBackend":"nftables"`, config{Masq: attach.Masq{Backend: "nftables"}}),
		Entry("ipMasqBackend iptables", `"ipMasqBackend":"iptables"`, config{Masq: attach.Masq{Backend: "iptables"}}),
		Entry("ipMasqBackend null", `"ipMasqBackend":null`, config{}),
		Entry("deviceType veth", `"deviceType":"veth"`, config{}),
		Entry("deviceType null", `"deviceType":null`, config{}),
		Entry("deviceType netkit", `"deviceType":"netkit"`, config{Link: attach.Link{Netkit: true}}),
		Entry("mtu", `"mtu":1400`, config{Link: attach.Link{MTU: 1400}}),
		Entry("mtu, smallest", `"mtu":68`, config{Link: attach.Link{MTU: 68}}),
		Entry("mtu, largest", `"mtu":65535`, config{Link: attach.Link{MTU: 65535}}),
		Entry("dns", `"dns":{"nameservers":["192.0.2.53"],"domain":"d","search":["s"],"options":["o"]}`,
			config{Link: attach.Link{DNS: cni.DNS{Nameservers: []string{"192.0.2.53"}, Domain: "d",
				Search:  []string{"s"},
				Options: []string{"o"}}}}),
		Entry("dns, an empty list is said", `"dns":{"search":[]}`,
			config{Link: attach.Link{DNS: cni.DNS{Search: []string{}}}}),
		Entry("keys in other case", `"IPMASQ":true,"Mtu":1400`, config{Masq: attach.Masq{On: true},
			Link: attach.Link{MTU: 1400}}),
		Entry("unknown keys", `"nonsense":{"mtu":1}`, config{}),
	)

	It("is refused for everything that is wrong with it at once", func() {
		_, err := parse(`"ipMasq":true,"mtu":5,"ipMasqBackend":"nft","runtimeConfig":{"mac":"no"}`, "")
		Expect(cni.ProblemsOf(err)).To(HaveLen(4))
		Expect(err).To(MatchError(And(HavePrefix("ipam.type: missing"), ContainSubstring("; mtu: 5 "),
			ContainSubstring(`ipMasqBackend: "nft" `), ContainSubstring(`; runtimeConfig.mac: "no" `))))
	})

	const envMAC, cniMAC, rtMAC = "02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"
	DescribeTable("CNI_ARGS are refused with code 4", func(args, want string) {
		_, err := parse(withIPAM, args)
		Expect(err).To(MatchError(ContainSubstring(want)))
		Expect(codeOf(err)).To(Equal(cni.CodeEnvironment))
	},
		Entry("MAC", "MAC=zz", `CNI_ARGS MAC: "zz"`),
		Entry("MAC beside others", "IP=10.0.0.1;MAC=zz", `CNI_ARGS MAC: "zz"`),
	)

	DescribeTable("CNI_ARGS of others are ignored", func(args string) {
		c, err := parse(withIPAM, args+";MAC="+envMAC)
		Expect(err).NotTo(HaveOccurred())
		Expect(c.Link.MAC.String()).To(Equal(envMAC))
	},
		Entry("a key", "IP=10.0.0.1"),
		Entry("although the strict would be told", "IgnoreUnknown=0;K8S_POD_NAME=a"),
		Entry("no pair", "debug"),
	)

})
