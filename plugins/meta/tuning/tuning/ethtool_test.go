package tuning

import (
	"unsafe"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// asked returns the answer to one of ethtool's ioctls for eth0, as 32-bit words after the command.
func asked(h *nstest.Host, command uint32) (words [9]uint32) {
	GinkgoHelper()
	h.Do(func() {
		fd := nstest.Must(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))
		defer unix.Close(fd)
		words[0] = command
		req := struct {
			name [unix.IFNAMSIZ]byte
			data *[9]uint32
			rest [16]byte
		}{data: &words}
		copy(req.name[:], "eth0")
		_, _, failed := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
		Expect(failed).To(BeZero())
	})
	return words
}

var _ = Describe("ethtool", Label("ethtool"), func() {
	var w *world
	BeforeEach(func() {
		w = newWorld()
		IP(w.cont, "link del eth0")
		IP(w.Host, "link add eth0 numrxqueues 2 numtxqueues 2 address %s netns %s type veth peer name toeth0 "+
			"numrxqueues 2 numtxqueues 2", firstMAC, w.cont.Name)
	})
	gro := func() uint32 { return asked(w.cont, unix.ETHTOOL_GGRO)[1] }
	channels := func() []uint32 { c := asked(w.cont, unix.ETHTOOL_GCHANNELS); return c[5:7] } // rx, tx
	const conf = `"ethtool":{"features":{"rx-gro":true,"tx-generic-segmentation":false},"channels":{"rx":2,"tx":2}}`

	It("changes features and channels, CHECK follows them, and DEL restores them", func() {
		before := channels()
		Expect(gro()).To(BeZero())
		gso := func() uint32 { return asked(w.cont, unix.ETHTOOL_GGSO)[1] }
		Expect(gso()).To(Equal(uint32(1)))
		for range 2 {
			w.add(conf)
			Expect(gro()).To(Equal(uint32(1)))
			Expect(gso()).To(BeZero())
			Expect(channels()).To(Equal([]uint32{2, 2}))
		}
		Expect(w.files()).To(ConsistOf(HavePrefix("record/")), "the reference knows none of it")
		w.ok("CHECK", call{keys: conf})
		changed := `"ethtool":{"features":{"rx-gro":false},"channels":{"rx":1}}`
		code, msg := w.run("CHECK", call{keys: changed}).Error()
		Expect(code).To(Equal(cni.CodeDrift))
		Expect(msg).To(And(ContainSubstring(`ethtool.features.rx-gro is true, want false`),
			ContainSubstring(`ethtool.channels.rx is 2, want 1`)))
		w.del(conf)
		Expect(gro()).To(BeZero())
		Expect(gso()).To(Equal(uint32(1)))
		Expect(channels()).To(Equal(before))
	})

	DescribeTable("is refused before anything changes", func(keys string, code uint, words string) {
		got, msg := w.run("ADD", call{keys: `"mtu":1400,"ethtool":` + keys}).Error()
		Expect(got).To(Equal(code))
		Expect(msg).To(ContainSubstring(words))
		Expect(state(w.cont, "eth0")).To(Equal(untouched))
		Expect(gro()).To(BeZero())
	},
		Entry("no feature", `{"features":{"gro":true,"rx-gro":true}}`, cni.CodeConfig, `"rx-gro"`),
		Entry("a fixed one", `{"features":{"rx-ntuple-filter":true}}`, cni.CodeUnsupportedField, "fixed"),
		Entry("too many", `{"channels":{"rx":3}}`, cni.CodeConfig, "ethtool.channels.rx: \"3\" is above 2"),
		Entry("what the driver has none of", `{"rings":{"rx":256}}`, cni.CodeUnsupportedField, "ethtool.rings.rx"),
	)

	It("is restored where ADD fails", func() {
		before := channels()
		const refused = `"ethtool":{"features":{"rx-gro":true},"channels":{"rx":2,"tx":0}}`
		code, msg := w.run("ADD", call{keys: refused}).Error()
		Expect(code).To(Equal(cni.CodeConfig))
		Expect(msg).To(ContainSubstring("ethtool.channels.tx: 0: "), "the kernel wants one")
		Expect(channels()).To(Equal(before))
		Expect(gro()).To(BeZero())
	})

	It("needs an interface", func() {
		code, _ := w.run("ADD", call{Call: Call{IfName: "eth7"}, keys: conf}).Error()
		Expect(code).To(Equal(cni.CodeEnvironment))
	})
})
