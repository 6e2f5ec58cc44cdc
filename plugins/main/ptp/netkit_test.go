package main

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("deviceType netkit", Label("kernel"), func() {
	var w *World
	netkit := Object{"deviceType": "netkit"}
	status := Call{Command: "STATUS", Conf: conf(netkit)}
	BeforeEach(func() { w = newWorld() })

	It("is refused before IPAM is asked where the kernel lacks it, and STATUS fails", Label("netkit-pair"), func() {
		nstest.NeedLack("netkit")
		cont := nstest.NewNetns()
		add := Call{Command: "ADD", Netns: cont.Path, Conf: everything(netkit)}
		Expect(w.Fails(add, cni.CodeUnsupportedField)).To(HavePrefix(
			"deviceType: netkit: not supported by this kernel"))
		Expect(w.Calls()).To(BeEmpty())
		Expect(Names(w.Host, "")).To(BeEmpty())
		Expect(w.Fails(status, cni.CodeUnavailable)).To(HavePrefix("deviceType: kind netkit: "))
	})

	It("makes a pair of the kind", Label("netkit", "netkit-pair"), func() {
		nstest.Need("netkit")
		w.Succeeds(status)
		c := everything(netkit, Object{"runtimeConfig": Object{"mac": "02:00:00:00:00:03"}})
		a := w.Attach("one", c, nth(2)...)
		for _, l := range []Link{Show(w.Host, hostEnd(a.Result)), Show(a.Host, "eth0")} {
			Expect(l.Linkinfo.Kind).To(Equal("netkit"))
			Expect(l.MTU).To(Equal(1400))
			Expect(l.Flags).To(ContainElement("UP"))
		}
		Expect(Show(a.Host, "eth0").Address).To(Equal("02:00:00:00:00:03"))
		Expect(Show(w.Host, hostEnd(a.Result)).Ifalias).To(HaveSuffix(" net one eth0"))
		Expect(alive(a)).To(BeTrue())
		w.Succeeds(a.As("CHECK"))
		Expect(w.Fails(a.As("ADD"), cni.CodeExists)).To(ContainSubstring(`"eth0"`))
		other := w.Attach("two", everything(netkit), nth(3)...)
		w.Succeeds(Call{Command: "GC", Conf: everything(netkit, Object{"cni.dev/valid-attachments": []Object{
			{"containerID": "one", "ifname": "eth0"}}})})
		Expect(Names(w.Host, "")).To(ConsistOf(hostEnd(a.Result)))
		Expect(alive(a)).To(BeTrue())
		for range 2 {
			w.Succeeds(other.As("DEL"))
			w.Succeeds(a.As("DEL"))
		}
		Expect(Names(a.Host, "")).To(BeEmpty())
		Expect(Names(w.Host, "")).To(BeEmpty())
	})
})
