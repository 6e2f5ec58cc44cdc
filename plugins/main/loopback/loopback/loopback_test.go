package loopback

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestLoopback(t *testing.T) { nstest.RunSpecs(t, "plugins/main/loopback/loopback") }

func up(h *nstest.Host) bool {
	GinkgoHelper()
	return slices.Contains(Show(h, "lo").Flags, "UP")
}

var _ = Describe("loopback", func() {
	var w *World
	var cont *nstest.Host
	BeforeEach(func() { w, cont = NewWorld(Plugin()), nstest.NewNetns() })

	call := func(command string, keys ...Object) Call {
		conf := append([]Object{{"cniVersion": "1.1.0", "name": "lo", "type": "loopback"}}, keys...)
		return Call{Command: command, IfName: "lo", Netns: cont.Path, Conf: Merge(conf...)}
	}
	prev := func(result string) Object { return Object{"prevResult": json.RawMessage(result)} }
	add := func(keys ...Object) string { GinkgoHelper(); return w.Add(call("ADD", keys...)).Text }
	del := func(netns string) {
		GinkgoHelper()
		c := call("DEL")
		c.Netns = netns
		w.Succeeds(c)
	}

	DescribeTable("brings lo up and says so in the asked version", Label("versions"), func(version, want string) {
		v := Object{"cniVersion": version}
		Expect(up(cont)).To(BeFalse())
		out := add(v)
		Expect(up(cont)).To(BeTrue())
		Expect(out).To(MatchJSON(strings.NewReplacer("VERSION", version, "NETNS", cont.Path).Replace(want)))
		Expect(Ping(cont, "127.0.0.1")).To(BeTrue())
		if version >= "0.4.0" {
			w.Succeeds(call("CHECK", v, prev(out)))
		}
		w.Succeeds(call("DEL", v, prev(out)))
		Expect(up(cont)).To(BeFalse())
	},
		Entry("0.1.0", "0.1.0", result01), Entry("0.2.0", "0.2.0", result01),
		Entry("0.3.0", "0.3.0", result03), Entry("0.3.1", "0.3.1", result03), Entry("0.4.0", "0.4.0", result03),
		Entry("1.0.0", "1.0.0", result1), Entry("1.1.0", "1.1.0", result1),
	)

	It("serves lo whatever CNI_IFNAME says", func() {
		c := call("ADD")
		c.IfName = "eth0"
		Expect(w.Add(c).Interfaces).To(ConsistOf(HaveField("Name", "lo")))
		Expect(up(cont)).To(BeTrue())
		c.Command = "DEL"
		w.Succeeds(c)
		Expect(up(cont)).To(BeFalse())
	})

	It("takes lo as it is, with service addresses and link-local ones", func() {
		for _, addr := range []string{"10.96.0.10/32", "192.0.2.1/24", "fe80::1/64", "2001:db8::1/128"} {
			IP(cont, "addr add %s dev lo", addr)
		}
		out := add()
		Expect(out).To(ContainSubstring("127.0.0.1/8"))
		Expect(out).NotTo(Or(ContainSubstring("10.96"), ContainSubstring("2001"), ContainSubstring("fe80")))
		w.Succeeds(call("CHECK", prev(out)))
	})

	It("leaves lo up that was up before", func() {
		IP(cont, "link set lo up")
		before := cont.Snapshot()
		out := add()
		w.Succeeds(call("CHECK", prev(out)))
		w.Succeeds(call("DEL", prev(out)))
		Expect(up(cont)).To(BeTrue())
		Expect(cont.Snapshot()).To(Equal(before))
	})

	It("may be added again, and is taken down by the DEL that follows", func() {
		before := cont.Snapshot("links")
		add()
		add()
		del(cont.Path)
		Expect(cont.Snapshot("links")).To(Equal(before))
	})

	It("passes the result of the plugin before it on", func() {
		before := `{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}],
			"ips":[{"interface":0,"address":"10.1.0.2/24"}]}`
		Expect(add(prev(before))).To(MatchJSON(before))
		Expect(up(cont)).To(BeTrue())
		w.Succeeds(call("CHECK", prev(before)))
		w.Succeeds(call("DEL", prev(before)))
		Expect(up(cont)).To(BeFalse())
	})

	It("brings lo down if the result cannot be written", Label("add-fails"), func() {
		before := cont.Snapshot("links")
		c := call("ADD")
		c.Stdout = BrokenPipe{}
		Expect(w.Call(c).Code).To(Equal(1))
		Expect(cont.Snapshot("links")).To(Equal(before))
	})

	It("CHECK finds lo down, and addresses that are gone", func() {
		checked := call("CHECK", prev(add()))
		w.Succeeds(call("CHECK"))
		IP(cont, "addr del 127.0.0.1/8 dev lo")
		Expect(w.Fails(checked, cni.CodeDrift)).To(ContainSubstring("127.0.0.1/8"))
		IP(cont, "addr add 127.0.0.1/8 dev lo")
		w.Succeeds(checked)
		IP(cont, "link set lo down")
		Expect(w.Fails(checked, cni.CodeDrift)).To(ContainSubstring(`"lo"`))
	})

	It("DEL succeeds in every form, and does not bring another attachment's lo down", Label("del"), func() {
		add()
		other := nstest.NewNetns()
		IP(other, "link set lo up")
		for _, path := range []string{"", "/run/netns/gone", "/bin/sh", "/proc/thread-self/ns/net", other.Path} {
			del(path)
		}
		Expect(up(other) && up(cont) && up(w.Host)).To(BeTrue())
		w.Succeeds(call("DEL", prev(`{"ips":5}`)))
		Expect(up(cont)).To(BeFalse())
		del(cont.Path)
		del(nstest.NewNetns().Path)
	})

	It("does not leave another attachment's lo down", func() {
		add()
		c := call("DEL")
		c.IfName = "eth0"
		w.Succeeds(c)
		Expect(up(cont)).To(BeTrue())
	})

	DescribeTable("refuses a path that is not a namespace", func(path string, code uint) {
		c := call("ADD")
		c.Netns = path
		Expect(w.Fails(c, code)).To(ContainSubstring("CNI_NETNS"))
	},
		Entry("nowhere", "/run/netns/gone", cni.CodeUnknownContainer),
		Entry("a file", "/bin/sh", cni.CodeEnvironment),
		Entry("the host's", "/proc/thread-self/ns/net", cni.CodeEnvironment),
	)

	It("has nothing to collect and nothing that it could miss", func() {
		add()
		w.Succeeds(call("GC", Object{"cni.dev/valid-attachments": []Object{}}))
		w.Succeeds(call("STATUS"))
		Expect(up(cont)).To(BeTrue())
		w.Succeeds(call("GC")) // the caller gave no list
	})
})

const (
	result01 = `{"cniVersion":"VERSION","ip4":{"ip":"127.0.0.1/8"},"ip6":{"ip":"::1/128"},"dns":{}}`
	result03 = `{"cniVersion":"VERSION","interfaces":[{"name":"lo","mac":"00:00:00:00:00:00","sandbox":"NETNS"}],
		"ips":[{"version":"4","interface":0,"address":"127.0.0.1/8"},
			{"version":"6","interface":0,"address":"::1/128"}],"dns":{}}`
	result1 = `{"cniVersion":"VERSION","interfaces":[{"name":"lo","mac":"00:00:00:00:00:00","sandbox":"NETNS"}],
		"ips":[{"interface":0,"address":"127.0.0.1/8"},{"interface":0,"address":"::1/128"}]}`
)

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(Plugin()) })

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	Fuzz{
		Plugin: Plugin().Untyped(),
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"lo","type":"loopback","cni.dev/valid-attachments":[]}`,
			`{"cniVersion":"0.3.1","name":"lo","prevResult":{"ips":[{"version":"4","address":"127.0.0.1/8"}]}}`,
			`{"cniVersion":"1.0.0","name":"lo","prevResult":{"cniVersion":"1.0.0",
				"interfaces":[{"name":"lo","mac":"00:00:00:00:00:00","sandbox":"` +
				FuzzNetns + `"}],"ips":[{"address":"127.0.0.1/8","interface":0},{"address":"::1/128","interface":0}]}}`,
			`{"name":"lo"}`,
		},
	}.Run(f)
}
