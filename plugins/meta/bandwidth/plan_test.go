package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

const mtu = 1500

var _ = DescribeTable("the reference's numbers", Label("bandwidth-numbers"), func(rate, burst uint64, want rtnl.TBF) {
	f, err := limit{rate, burst, "ingressBurst"}.plan(mtu, true)
	Expect(err).NotTo(HaveOccurred())
	Expect(f.TBF).To(Equal(want))
},
	// A tick is 64 ns.
	Entry("a usual limit", uint64(8_000_000), uint64(800_000), rtnl.TBF{Rate: 1_000_000, Buffer: 100_000_000 / 64,
		Limit: 125_000}),
	Entry("fractions of bytes are lost", uint64(8_000_007), uint64(800_007),
		rtnl.TBF{Rate: 1_000_000, Buffer: 100_000_000 / 64, Limit: 125_000}),
	Entry("the smallest that the kernel takes", uint64(8), uint64(8), rtnl.TBF{Rate: 1, Buffer: 1_000_000_000 / 64,
		Limit: 1}),
	Entry("microseconds are whole, and so are ticks", uint64(24_000_000), uint64(160_000),
		rtnl.TBF{Rate: 3_000_000, Buffer: 6666 * 1000 / 64, Limit: 95_000}),
	Entry("kubelet's burst, literally", uint64(15_000_000), uint64(1<<31-1),
		rtnl.TBF{Rate: 1_875_000, Buffer: 143_165_576 * 125 / 8, Limit: 46_875 + 268_435_455}),
	Entry("100 Gbit/s", uint64(100_000_000_000), uint64(800_000_000),
		rtnl.TBF{Rate: 12_500_000_000, Buffer: 8_000_000 / 64, Limit: 412_500_000}),
	Entry("CRI-O's burst, literally, does not wrap", uint64(20_000_000), uint64(34_359_738_359),
		rtnl.TBF{Rate: 2_500_000, Buffer: 1<<32 - 1, Limit: 1<<32 - 1}),
)

var _ = DescribeTable("a burst that nobody chose is replaced", func(rate, burst uint64, bytes int) {
	f, err := limit{rate, burst, "egressBurst"}.plan(mtu, false)
	Expect(err).NotTo(HaveOccurred())
	Expect(f.TBF).To(Equal(newTBF(rate/8, uint64(bytes))))
	Expect(f.literal).To(Equal(newTBF(rate/8, burst/8)))
	Expect(f.warning).To(HavePrefix("egressBurst: "))
},
	Entry("kubelet's, to 50 ms of the rate", uint64(20_000_000), uint64(1<<31-1), 125_000),
	Entry("containerd's, to 64 KiB", uint64(1_000_000), uint64(1<<32-1), 65_536),
	Entry("CRI-O's", uint64(1_000_000_000), uint64(1<<35-9), 6_250_000),
)

var _ = It("a burst that somebody may have chosen is taken", func() {
	f, err := limit{20_000_000, 1<<31 - 2, "egressBurst"}.plan(mtu, false)
	Expect(err).NotTo(HaveOccurred())
	Expect(f.TBF).To(Equal(f.literal))
	Expect(f.warning).To(BeEmpty())
})

var _ = Describe("a burst that is less than a packet", func() {
	It("is refused, with the least one", func() {
		_, _, err := config{ingress: limit{8_000_000, 12_104, "ingressBurst"},
			egress: limit{8_000_000, 80, "runtimeConfig.bandwidth.egressBurst"}}.plan(mtu)
		const why = " is less than a packet of 1514 bytes, in whole microseconds of the rate, " +
			"so none of that length would pass"
		Expect(err).To(MatchError("ingressBurst: 12104" + why + ": runtimeConfig.bandwidth.egressBurst: 80" + why))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
		Expect(cni.ProblemsOf(err)[0].Suggestion).To(Equal("write at least 12120 bits"))
	})

	It("is taken where the rate is less than a packet a second, too", func() {
		f, err := limit{8000, 80, "ingressBurst"}.plan(mtu, false)
		Expect(err).NotTo(HaveOccurred())
		Expect(f.TBF).To(Equal(rtnl.TBF{Rate: 1000, Buffer: 10_000_000 / 64, Limit: 35}))
		Expect(f.warning).To(ContainSubstring("only shorter ones pass"))
	})

	DescribeTable("is enough from the named one on, at any rate and MTU", func(rate, least uint64, mtu int) {
		burst := 8 * leastBurst(rate/8, uint64(mtu+frameHeader))
		Expect(burst).To(Equal(least))
		f, err := limit{rate, burst, "ingressBurst"}.plan(mtu, false)
		Expect(err).NotTo(HaveOccurred())
		Expect(f.warning).To(BeEmpty())
		_, err = limit{rate, burst - 8, "ingressBurst"}.plan(mtu, false)
		Expect(err).To(HaveOccurred())
	},
		Entry("8 Mbit/s", uint64(8_000_000), uint64(12_120), 1500),
		Entry("100 Mbit/s", uint64(100_000_000), uint64(12_200), 1500),
		Entry("just below a gigabit", uint64(999_999_999), uint64(13_000), 1500),
		Entry("100 Gbit/s", uint64(100_000_000_000), uint64(100_000), 1500),
		Entry("of long packets", uint64(8_000_000), uint64(72_120), 9000),
	)
})
