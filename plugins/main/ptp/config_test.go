package main

import (
	"errors"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

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
	It("is refused for everything that is wrong with it at once", func() {
		_, err := parse(`"ipMasq":true,"mtu":5,"ipMasqBackend":"nft","runtimeConfig":{"mac":"no"}`, "")
		Expect(cni.ProblemsOf(err)).To(HaveLen(4))
		Expect(err).To(MatchError(And(HavePrefix("ipam.type: missing"), ContainSubstring("; mtu: 5 "),
			ContainSubstring(`ipMasqBackend: "nft" `), ContainSubstring(`; runtimeConfig.mac: "no" `))))
	})

	const envMAC = "02:00:00:00:00:01"
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
