package main

import (
	"io"
	"net"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// carry sends this many bytes by TCP or UDP to an address, and returns how many arrived
// and in what time, from before the first byte was sent: no more may come in it, whoever was
// late to send or to read.
func carry(from, to *nstest.Host, network, address string, bytes int) (arrived int, took time.Duration) {
	GinkgoHelper()
	read := make(chan func() (int, error), 1)
	var target string
	to.Do(func() {
		if network == "udp" {
			conn, err := net.ListenPacket(network, address)
			Expect(err).NotTo(HaveOccurred())
			DeferCleanup(conn.Close)
			target = conn.LocalAddr().String()
			buf := make([]byte, 64<<10)
			read <- func() (int, error) {
				// Nobody says how many of the packets come.
				_ = conn.SetReadDeadline(time.Now().Add(nstest.Patience(500 * time.Millisecond)))
				n, _, err := conn.ReadFrom(buf)
				return n, err
			}
			return
		}
		l, err := net.Listen(network, address)
		Expect(err).NotTo(HaveOccurred())
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
	var err error
	from.Do(func() { conn, err = net.DialTimeout(network, target, nstest.Patience(nstest.Hang)) })
	Expect(err).NotTo(HaveOccurred())
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
	// 8 Mbit/s, and 50 kB at once.
	const (
		limits = `"ingressRate": 8000000, "ingressBurst": 400000, "egressRate": 8000000, "egressBurst": 400000`
		rate   = 1_000_000 // bytes a second
		bytes  = 400_000
		atOnce = 50_000 + 25_000 // the burst, and what waits
	)

	DescribeTable("is met", Label("rates"), func(network, address string, ingress bool) {
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
		Entry("of what the container receives", "tcp", "10.1.0.2:0", true),
		Entry("of what it sends", "tcp", "10.1.0.1:0", false),
		Entry("of what it receives by IPv6", "tcp", "[fd00:1::2]:0", true),
		Entry("of what it sends by IPv6", "tcp", "[fd00:1::1]:0", false),
		Entry("of datagrams that it receives", "udp", "10.1.0.2:0", true),
		Entry("of datagrams that it sends", "udp", "10.1.0.1:0", false),
	)

	DescribeTable("lets packets of full length pass, with the least burst that is taken", Label("rates"), func(
		limits string,
	) {
		w := newWorld()
		w.Add(w.call("ADD", limits))
		w.Cmd("ping", "-c1", "-w40", "-M", "do", "-s", "1472", "10.1.0.2")
	},
		Entry("to the container", `"ingressRate": 8000000, "ingressBurst": 12120`),
		Entry("from it", `"egressRate": 100000000, "egressBurst": 12200`),
	)

	DescribeTable("is met from the beginning where nobody chose the burst", Label("rates"), func(burst string) {
		w := newWorld()
		w.Add(w.call("ADD", `"ingressRate": 20000000, "ingressBurst": `+burst))
		const sane = 125_000 + 62_500 // 50 ms of 2.5 MB/s, and what waits
		arrived, took := carry(w.Host, w.cont, "tcp", "10.1.0.2:0", 1_000_000)
		Expect(float64(arrived)).To(BeNumerically("<=", (sane+2_500_000*took.Seconds())*1.02), "in %s", took)
	},
		Entry("kubelet's", "2147483647"), Entry("containerd's", "4294967295"), Entry("CRI-O's", "34359738359"))
})
