package dummy

import (
	"fmt"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestDummy(t *testing.T) { nstest.RunSpecs(t, "plugins/main/dummy/dummy") }

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(Plugin()) })

// conf is a configuration of network "net": keys are added, or taken away by nil.
func conf(more ...Object) Object {
	return Merge(append([]Object{{"cniVersion": "1.1.0", "name": "net", "type": "dummy",
		"ipam": Object{"type": "fake"}}}, more...)...)
}

var _ = Describe("configuration", func() {
	It("ignores CNI_ARGS of others", func() {
		c := nstest.Must(Plugin().Parse(&skel.Request{Conf: []byte(`{"ipam":{"type":"a"}}`),
			Args: "IP=10.0.0.1;debug;MAC=02:00:00:00:00:01"}))
		Expect(c.Link.MAC.String()).To(Equal("02:00:00:00:00:01"))
	})
})

var _ = LackOfKind(Plugin().Untyped(), "dummy", "dummy", conf())

var _ = Describe("a dummy", Label("kernel"), func() {
	var w *World
	BeforeEach(func() {
		nstest.Need("dummy")
		w = NewWorld(Plugin())
	})

	It("has its addresses at once, and is reported as it is", func() {
		w.Lend(`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"},
			{"address":"2001:db8:1::2/64"}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{"domain":"d"}}`)
		a := w.Attach("one", conf(Object{"mac": "02:00:00:00:00:07", "mtu": 1400}))
		l := Show(a.Host, "eth0")
		Expect(l.Addrs()).To(ConsistOf("10.1.0.2/24", "2001:db8:1::2/64"))
		Expect(l.Linkinfo.Kind).To(Equal("dummy"))
		Expect(l.Address).To(Equal("02:00:00:00:00:07"))
		Expect(IP(a.Host, "-6 addr show dev eth0 scope global")).NotTo(ContainSubstring("tentative"))
		Expect(a.Result.Text).To(MatchJSON(fmt.Sprintf(`{"cniVersion":"1.1.0",
			"interfaces":[{"name":"eth0","mac":"02:00:00:00:00:07","mtu":1400,"sandbox":%q}],
			"ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1","interface":0},
				{"address":"2001:db8:1::2/64","interface":0}],
			"routes":[{"dst":"0.0.0.0/0"}],"dns":{"domain":"d"}}`, a.Path)))
		w.Succeeds(a.As("CHECK"))
		IP(a.Host, "route del default")
		Expect(w.Fails(a.As("CHECK"), cni.CodeDrift)).To(ContainSubstring("0.0.0.0/0"))
		IP(a.Host, "link set eth0 down")
		Expect(w.Fails(a.As("CHECK"), cni.CodeDrift)).To(ContainSubstring("is down"))
	})

	It("is listed until DEL, and the list changes nothing", func() {
		n := 2
		w.ExpectHeld(func(id, network string) (Call, []string) {
			n++
			a := w.Attach(id, conf(Object{"name": network}), Addrs(n)...)
			return a.As("DEL"), []string{"interface: eth0 type dummy"}
		})
	})

	It("is beside another in one container, has a name of the host, and a second ADD harms nothing", func() {
		IP(w.Host, "link add eth0 type dummy")
		a := w.Attach("one", conf(), Addrs(2)...)
		w.Calls()
		w.Fails(Call{Command: "ADD", Netns: a.Path, Conf: conf()}, cni.CodeExists)
		w.Fails(Call{Command: "ADD", Netns: nstest.NewNetns().Path, Conf: conf()}, cni.CodeExists)
		Expect(w.Calls()).To(BeEmpty())
		w.LendAddrs("one", Addrs(3)...)
		b := w.AttachIn(a.Host, Call{IfName: "eth1", Conf: conf()})
		for _, one := range []Attached{a, b} {
			w.Succeeds(one.As("CHECK"))
			w.Succeeds(one.As("DEL"))
		}
		Expect(Names(a.Host, "")).To(BeEmpty())
		Expect(Names(w.Host, "")).To(Equal([]string{"eth0"}))
	})

	It("is not there after an ADD that fails", func() { w.ExpectNothingLeft(conf()) })

	It("goes with DEL and GC, whatever is known; what is another's stays", func() {
		w.ExpectEnd(conf(), Object{"mtu": "x"}, Addrs(2)...)
		cont := nstest.NewNetns()
		IP(cont, "link add eth0 type veth peer name x0")
		w.Succeeds(Call{Command: "DEL", Netns: cont.Path, Conf: conf()})
		Expect(Names(cont, "")).To(ConsistOf("eth0", "x0"))
	})
})

var _ = AutoMTU(Plugin().Untyped(), conf(), "dummy", nil)
