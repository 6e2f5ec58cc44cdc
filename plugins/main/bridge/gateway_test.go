package main

import (
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("a gateway that another machine behind the uplink has", func() {
	const gateway = "2001:db8:1::1/64"

	It("is refused by the next ADD, and works once that machine is gone", func() {
		nstest.Need("tap")
		w := newWorld()
		IP(w.Host, "link add name br up type bridge")
		IP(w.Host, "tuntap add uplink mode tap")
		IP(w.Host, "link set uplink up master br")
		other := nstest.NewNetns()
		nstest.Wire(nstest.End{Host: w.Host, Name: "wire"}, nstest.End{Host: other, Name: "eth0"})
		IP(w.Host, "link set wire master br")
		IP(other, "addr add %s dev eth0 nodad", gateway)
		LinkLocal(other, "eth0")
		w.SetSysctl("net/ipv6/conf/br/accept_dad", "1")
		w.SetSysctl("net/ipv6/conf/br/dad_transmits", "5") // the first may be lost

		routed := l3(Object{"isGateway": true})
		w.Attach("one", routed, "2001:db8:1::2/64")
		Eventually(func() string { return IP(w.Host, "addr show dev br") }).Should(ContainSubstring("dadfailed"))

		cont := nstest.NewNetns()
		w.LendAddrs("two", "2001:db8:1::3/64")
		two := Call{Command: "ADD", ID: "two", Netns: cont.Path, Conf: routed}
		Expect(w.Fails(two, cni.CodeConflict)).To(And(ContainSubstring(gateway), ContainSubstring("duplicate")))
		Expect(Names(cont, "")).To(BeEmpty())

		IP(other, "link set eth0 down")
		r := w.Add(two)
		Expect(strings.Fields(IP(w.Host, "addr show dev br"))).To(And(ContainElement(gateway),
			Not(ContainElement("dadfailed"))))
		w.Succeeds(Call{Command: "CHECK", ID: "two", Netns: cont.Path, Conf: With(routed, r)})
		Expect(Ping(cont, "2001:db8:1::1")).To(BeTrue())
	})
})
