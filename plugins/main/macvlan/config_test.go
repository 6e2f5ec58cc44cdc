package main

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func parse(keys, args string) (config, error) {
	return parseConfig(&skel.Request{Conf: []byte("{" + keys + "}"), Args: args})
}

var _ = Describe("configuration", func() {
	It("is refused for everything that is wrong with it at once", func() {
		_, err := parse(`"mode":"x","mtu":5,"mac":"no","ipam":{"type":"../x"}`, "MAC")
		Expect(cni.ProblemsOf(err)).To(HaveLen(5))
	})

	DescribeTable("MAC address", func(keys, args, want string) {
		c, err := parse(strings.TrimPrefix(keys, ","), args)
		Expect(err).NotTo(HaveOccurred())
		Expect(c.Link.MAC.String()).To(Equal(want))
	},
		Entry("from nowhere", ``, "", ""),
		Entry("from mac, in dashes and upper case", `"mac":"0A-00-00-00-00-0B"`, "", "0a:00:00:00:00:0b"),
		Entry("from CNI_ARGS, which wins over it", `"mac":"02:00:00:00:00:01"`,
			"IgnoreUnknown=1;K=a;MAC=02:00:00:00:00:02", "02:00:00:00:00:02"),
		Entry("from args.cni, which wins over both",
			`"mac":"02:00:00:00:00:01","args":{"cni":{"mac":"02:00:00:00:00:03"}}`,
			"MAC=02:00:00:00:00:02", "02:00:00:00:00:03"),
		Entry("from runtimeConfig, which wins over all",
			`"mac":"02:00:00:00:00:01","args":{"cni":{"mac":"02:00:00:00:00:03"}},
				"runtimeConfig":{"mac":"02:00:00:00:00:04"}`,
			"MAC=02:00:00:00:00:02", "02:00:00:00:00:04"),
	)
})
