package tool

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

var _ = DescribeTable("the endpoints of a traced packet", Label("tool-trace"), func(proto byte, from, to string) {
	network := []byte{0: 0x45, 9: proto, 12: 10, 1, 0, 2, 192, 0, 2, 1}
	var s traceStep
	s.decodeHeaders(network, []byte{8, 0, 0, 80})
	Expect([]string{s.Source, s.Destination}).To(Equal([]string{from, to}))
},
	Entry("have ports of TCP", byte(unix.IPPROTO_TCP), "10.1.0.2:2048", "192.0.2.1:80"),
	Entry("have ports of SCTP", byte(unix.IPPROTO_SCTP), "10.1.0.2:2048", "192.0.2.1:80"),
	Entry("have no ports of ICMP", byte(unix.IPPROTO_ICMP), "10.1.0.2", "192.0.2.1"))
