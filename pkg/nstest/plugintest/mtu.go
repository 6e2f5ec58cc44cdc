package plugintest

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// autoMTU is a world for a plugin with "mtu": "auto" on a host with an uplink.
type autoMTU struct {
	*World
	far  *nstest.Host
	conf Object
}

// AutoMTU registers the specs of "mtu": "auto" on a host with the uplink of [Uplink]. reach adds to the neighbor an
// address that containers can reach; nil means that they cannot reach any. feature is the plugin's feature for
// [nstest.Need], or empty if all kernels have it.
func AutoMTU(p skel.Plugin[any], conf Object, feature string,
	reach func(w *World, far *nstest.Host) (target string)) bool {
	return Describe(`"mtu": "auto"`, Label("auto-mtu", "kernel"), func() {
		var w autoMTU
		BeforeEach(func() {
			if feature != "" {
				nstest.Need(feature)
			}
			w = autoMTU{NewWorld(p), nil, Merge(conf, Object{"mtu": "auto"})}
			w.far = Uplink(w.Host)
		})

		DescribeTable("is the uplink's MTU,", func(mtu int) {
			target := ""
			if reach != nil {
				target = reach(w.World, w.far)
			}
			w.isUplinks(mtu, target)
		}, Entry("9000", 9000), Entry("1400", 1400))

		It("is computed again in CHECK", func() {
			w.resize(1400)
			IP(w.Host, "route add default dev up0")
			a := w.Attach("one", w.conf, Addrs(2)...)
			w.Succeeds(a.As("CHECK"))
			w.resize(1450)
			if Show(a.Host, "eth0").MTU == 1450 { // an ipvlan follows its master
				w.Succeeds(a.As("CHECK"))
			} else {
				Expect(w.Fails(a.As("CHECK"), cni.CodeDrift)).To(
					And(ContainSubstring("1400"), ContainSubstring("1450")))
			}
			w.resize(1400)
			IP(w.Host, "route del default")
			w.Succeeds(a.As("CHECK"))
			IP(w.Host, "route add default dev up0")
			w.Ends(a)
		})

		It("needs a default route, or mtuFrom", func() {
			Expect(w.Refused(w.conf, cni.CodeConfig)).To(HavePrefix(`mtu: "auto" needs a default route of the host`))
			Expect(w.Fails(Call{Command: "STATUS", Conf: w.conf}, cni.CodeUnavailable)).To(
				ContainSubstring("needs a default route"))
			from := func(name string) Object { return Merge(w.conf, Object{"mtuFrom": name}) }
			Expect(w.Refused(from("nope"), cni.CodeConfig)).To(
				HavePrefix(`mtuFrom: "nope" is not an interface of the host`))
			w.resize(1400)
			a := w.Attach("one", from("up0"), Addrs(2)...)
			Expect(Show(a.Host, "eth0").MTU).To(Equal(1400))
			w.Ends(a)
		})
	})
}

// resize changes the uplink's MTU.
func (w autoMTU) resize(mtu int) {
	GinkgoHelper()
	IP(w.Host, "link set up0 mtu %d", mtu)
	IP(w.far, "link set far0 mtu %d", mtu)
}

// isUplinks expects a container to have the uplink's MTU, and packets of that size to reach the target unfragmented.
func (w autoMTU) isUplinks(mtu int, target string) {
	GinkgoHelper()
	w.resize(mtu)
	IP(w.Host, "route add default dev up0")
	w.Lend(`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}],` +
		`"routes":[{"dst":"0.0.0.0/0"}]}`)
	a := w.Attach("one", w.conf)
	for _, i := range a.Result.Interfaces {
		Expect(i.MTU).To(Equal(mtu), i.Name)
	}
	Expect(Show(a.Host, "eth0").MTU).To(Equal(mtu))
	if target != "" {
		const headers = 28
		Expect(Ping(a.Host, target)).To(BeTrue())
		Expect(Ping(a.Host, target, "-M", "do", "-s", fmt.Sprint(mtu-headers))).To(BeTrue())
	}
	w.Ends(a)
}
