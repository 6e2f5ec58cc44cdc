package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func parse(keys ...string) (config, error) {
	return parseConfig(&skel.Request{Conf: []byte(conf("1.1.0", keys...)), Version: "1.1.0"})
}

const fromRuntime = `"runtimeConfig": {"bandWidth": {"ingressRate": 80, "ingressBurst": 800}}`

var _ = DescribeTable("limits", func(want config, keys ...string) {
	cfg, err := parse(keys...)
	Expect(err).NotTo(HaveOccurred())
	cfg.ingress.key, cfg.egress.key = "", ""
	Expect(cfg).To(Equal(want))
},
	Entry("none", config{}),
	Entry("of the entry", config{ingress: limit{rate: 8_000_000, burst: 800_000}}, in),
	Entry("of both directions", config{ingress: limit{rate: 8_000_000, burst: 800_000},
		egress: limit{rate: 16_000_000, burst: 1_600_000}}, both),
	Entry("of the runtime, in any case", config{ingress: limit{rate: 80, burst: 800}}, fromRuntime),
	Entry("the entry wins over the runtime", config{egress: limit{rate: 16_000_000, burst: 1_600_000}}, out,
		fromRuntime),
	Entry("also by one 0", config{}, `"egressRate": 0`, fromRuntime),
	Entry("but not by null", config{ingress: limit{rate: 80, burst: 800}}, `"egressRate": null`, fromRuntime),
	Entry("the largest burst", config{literal: true, ingress: limit{rate: 8, burst: 34_359_738_359}},
		`"ingressRate": 8, "ingressBurst": 34359738359, "burst": "literal"`),
)

var _ = DescribeTable("refuses", func(want string, keys ...string) {
	_, err := parse(keys...)
	Expect(err).To(MatchError(HavePrefix(want)))
	Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
},
	Entry("both directions at once", "ingressBurst: if rate is set, burst must also be set: egressBurst: if rate",
		`"ingressRate": 8, "egressRate": 8`),
)
