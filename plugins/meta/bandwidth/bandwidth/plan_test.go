package bandwidth

import (
	"io"
	"net"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func parse(keys ...string) (config, error) {
	return Plugin().Parse(&skel.Request{Conf: []byte(conf("1.1.0", keys...)), Version: "1.1.0"})
}

const fromRuntime = `"runtimeConfig": {"bandWidth": {"ingressRate": 80, "ingressBurst": 800}}`

var _ = DescribeTable("limits", func(want config, keys ...string) {
	cfg := nstest.Must(parse(keys...))
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

var _ = It("refuses both directions at once", func() {
	_, err := parse(`"ingressRate": 8, "egressRate": 8`)
	Expect(err).To(MatchError(HavePrefix("ingressBurst: if rate is set, burst must also be set: egressBurst: if rate")))
	Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
})

const mtu = 1500

var _ = DescribeTable("the reference's numbers", Label("bandwidth-numbers"), func(rate, burst uint64, want rtnl.TBF) {
	f := nstest.Must(limit{rate, burst, "ingressBurst"}.filter(mtu, true))
	Expect(f.TBF).To(Equal(want))
},
	// A tick is 64 ns.
	Entry("a usual limit", uint64(8_000_000), uint64(800_000), rtnl.TBF{Rate: 1_000_000, Buffer: 100_000_000 / 64,
		Limit: 125_000}),
	Entry("fractions of bytes are dropped", uint64(8_000_007), uint64(800_007),
		rtnl.TBF{Rate: 1_000_000, Buffer: 100_000_000 / 64, Limit: 125_000}),
	Entry("the smallest that the kernel accepts", uint64(8), uint64(8), rtnl.TBF{Rate: 1, Buffer: 1_000_000_000 / 64,
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

var _ = DescribeTable("a runtime's default burst is replaced", func(rate, burst uint64, bytes int) {
	f := nstest.Must(limit{rate, burst, "egressBurst"}.filter(mtu, false))
	Expect(f.TBF).To(Equal(newTBF(rate/8, uint64(bytes))))
	Expect(f.literal).To(Equal(newTBF(rate/8, burst/8)))
	Expect(f.warning).To(HavePrefix("egressBurst: "))
},
	Entry("kubelet's, to 50 ms of the rate", uint64(20_000_000), uint64(1<<31-1), 125_000),
	Entry("containerd's, to 64 KiB", uint64(1_000_000), uint64(1<<32-1), 65_536),
	Entry("CRI-O's", uint64(1_000_000_000), uint64(1<<35-9), 6_250_000),
)

var _ = It("a burst that a user may have chosen is not replaced", func() {
	f := nstest.Must(limit{20_000_000, 1<<31 - 2, "egressBurst"}.filter(mtu, false))
	Expect(f.TBF).To(Equal(f.literal))
	Expect(f.warning).To(BeEmpty())
})

var _ = Describe("a burst that is less than a packet", func() {
	It("is refused, and the error names the smallest one", func() {
		_, err := config{ingress: limit{8_000_000, 12_104, "ingressBurst"},
			egress: limit{8_000_000, 80, "runtimeConfig.bandwidth.egressBurst"}}.limits(mtu)
		const why = " is less than a packet of 1514 bytes after the kernel rounds it to whole microseconds of " +
			"the rate; no such packet would pass"
		Expect(err).To(MatchError("ingressBurst: 12104" + why + ": runtimeConfig.bandwidth.egressBurst: 80" + why))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
		Expect(cni.ProblemsOf(err)[0].Suggestion).To(Equal("use at least 12120 bits"))
	})

	It("is accepted if the rate is less than a packet per second", func() {
		f := nstest.Must(limit{8000, 80, "ingressBurst"}.filter(mtu, false))
		Expect(f.TBF).To(Equal(rtnl.TBF{Rate: 1000, Buffer: 10_000_000 / 64, Limit: 35}))
		Expect(f.warning).To(ContainSubstring("only shorter packets pass"))
	})

	DescribeTable("is large enough if it is the suggested one, at any rate and MTU", func(rate, least uint64, mtu int) {
		burst := 8 * minBurst(rate/8, uint64(mtu+frameHeader))
		Expect(burst).To(Equal(least))
		f := nstest.Must(limit{rate, burst, "ingressBurst"}.filter(mtu, false))
		Expect(f.warning).To(BeEmpty())
		Expect(limit{rate, burst - 8, "ingressBurst"}.filter(mtu, false)).Error().To(HaveOccurred())
	},
		Entry("8 Mbit/s", uint64(8_000_000), uint64(12_120), 1500),
		Entry("100 Mbit/s", uint64(100_000_000), uint64(12_200), 1500),
		Entry("just below a gigabit", uint64(999_999_999), uint64(13_000), 1500),
		Entry("100 Gbit/s", uint64(100_000_000_000), uint64(100_000), 1500),
		Entry("of long packets", uint64(8_000_000), uint64(72_120), 9000),
	)
})

// carry sends this many bytes by TCP or UDP to an address. It returns the number of bytes that arrived and
// the time since before the first byte was sent, so that delays of either side cannot fail the spec.
func carry(from, to *nstest.Host, network, address string, bytes int) (arrived int, took time.Duration) {
	GinkgoHelper()
	read := make(chan func() (int, error), 1)
	var target string
	to.Do(func() {
		if network == "udp" {
			conn := nstest.Must(net.ListenPacket(network, address))
			DeferCleanup(conn.Close)
			target = conn.LocalAddr().String()
			buf := make([]byte, 64<<10)
			read <- func() (int, error) {
				// The number of packets that arrive is unknown.
				_ = conn.SetReadDeadline(time.Now().Add(nstest.Patience(500 * time.Millisecond)))
				n, _, err := conn.ReadFrom(buf)
				return n, err
			}
			return
		}
		l := nstest.Must(net.Listen(network, address))
		DeferCleanup(l.Close)
		target = l.Addr().String()
		go func() {
			conn, err := l.Accept()
			if err != nil {
				close(read)
				return
			}
			buf := make([]byte, 64<<10)
			read <- func() (int, error) { return conn.Read(buf) }
		}()
	})
	var conn net.Conn
	from.Do(func() { conn = nstest.Must(net.DialTimeout(network, target, nstest.Patience(nstest.Hang))) })
	began := time.Now()
	sent := make(chan error, 1)
	go func() {
		var err error
		for left, chunk := bytes, make([]byte, 1000); left > 0 && err == nil; left -= len(chunk) {
			_, err = conn.Write(chunk)
		}
		if network == "tcp" {
			err = conn.Close()
		}
		sent <- err
	}()
	next := <-read
	for {
		n, err := next()
		if arrived += n; n > 0 {
			took = time.Since(began)
		}
		if err != nil {
			Expect(<-sent).To(Succeed())
			if network == "tcp" {
				Expect(err).To(Equal(io.EOF))
			}
			return arrived, took
		}
	}
}

var _ = Describe("the rate", Label("kernel"), func() {
	// 8 Mbit/s with a burst of 50 kB.
	const (
		limits = `"ingressRate": 8000000, "ingressBurst": 400000, "egressRate": 8000000, "egressBurst": 400000`
		rate   = 1_000_000 // bytes a second
		bytes  = 400_000
		atOnce = 50_000 + 25_000 // the burst, and the queue
	)

	DescribeTable("is limited", Label("rates"), func(network, address string, ingress bool) {
		w := newWorld()
		server, client := w.Host, w.cont
		if ingress {
			server, client = client, server
		}
		excess := func() float64 {
			GinkgoHelper()
			arrived, took := carry(client, server, network, address, bytes)
			if network == "tcp" { // of datagrams the rest is dropped
				Expect(arrived).To(Equal(bytes))
			}
			return float64(arrived) - atOnce - rate*took.Seconds()
		}
		if network == "tcp" {
			Eventually(excess).Should(BeNumerically(">", 0), "without a limit")
		}
		w.Add(w.call("ADD", limits))
		start := time.Now()
		Expect(excess()).To(BeNumerically("<", 0.02*bytes))
		Expect(time.Since(start)).To(BeNumerically("<", nstest.Patience(nstest.Hang)))
	},
		Entry("of packets that the container receives", "tcp", "10.1.0.2:0", true),
		Entry("of packets that it sends", "tcp", "10.1.0.1:0", false),
		Entry("of what it receives by IPv6", Label("slow"), "tcp", "[fd00:1::2]:0", true),
		Entry("of what it sends by IPv6", Label("slow"), "tcp", "[fd00:1::1]:0", false),
		Entry("of datagrams that it receives", "udp", "10.1.0.2:0", true),
		Entry("of datagrams that it sends", "udp", "10.1.0.1:0", false),
	)

	DescribeTable("lets packets of full length pass with the smallest accepted burst", Label("rates"), func(
		limits string,
	) {
		w := newWorld()
		w.Add(w.call("ADD", limits))
		w.Cmd("ping", "-c1", "-w40", "-M", "do", "-s", "1472", "10.1.0.2")
	},
		Entry("to the container", `"ingressRate": 8000000, "ingressBurst": 12120`),
		Entry("from it", `"egressRate": 100000000, "egressBurst": 12200`),
	)

	DescribeTable("is limited from the beginning with a runtime's default burst", Label("rates"), func(burst string) {
		w := newWorld()
		w.Add(w.call("ADD", `"ingressRate": 20000000, "ingressBurst": `+burst))
		const sane = 125_000 + 62_500 // 50 ms of 2.5 MB/s, and the queue
		arrived, took := carry(w.Host, w.cont, "tcp", "10.1.0.2:0", 1_000_000)
		Expect(float64(arrived)).To(BeNumerically("<=", (sane+2_500_000*took.Seconds())*1.02), "in %s", took)
	},
		Entry("kubelet's", "2147483647"), Entry("containerd's", "4294967295"), Entry("CRI-O's", "34359738359"))
})
