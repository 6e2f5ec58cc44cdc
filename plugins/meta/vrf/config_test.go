package main

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// These need no VRF in the kernel.
var _ = Describe("a call", func() {
	DescribeTable("is refused, and changes nothing", func(keys Object, code int, message string) {
		w := newWorld()
		before := w.cont.Snapshot()
		Expect(w.Fails(w.call("ADD", keys), uint(code))).To(ContainSubstring(message))
		Expect(w.cont.Snapshot()).To(Equal(before))
		Expect(w.Records(recordDir)).To(BeEmpty())
	},
		Entry("with the interface's own name", Object{"vrfname": "net1"}, 7,
			`vrfname: "net1" is the container's interface itself`),
		Entry("without prevResult", Object{"prevResult": nil}, 7, "prevResult: missing"),
	)

	It("names an interface that is not there", func() {
		w := newWorld()
		IP(w.cont, "link del net1")
		Expect(w.Fails(w.call("ADD", nil), cni.CodeEnvironment)).To(ContainSubstring(`"net1": no such interface`))
	})

	It("on a kernel without VRFs is refused, and STATUS says so", Label("no-vrf"), func() {
		w := newWorld()
		if w.Call(w.call("STATUS", nil)).Code == 0 {
			w.add(nil) // this kernel has them
			return
		}
		IP(w.cont, "route add 10.51.0.0/16 via 10.2.0.1")
		before := w.cont.Snapshot()
		Expect(w.Fails(w.call("ADD", nil), cni.CodeUnsupportedField)).To(
			HavePrefix(`vrfname: "red": links of kind vrf are not supported by this kernel`))
		Expect(w.cont.Snapshot()).To(Equal(before))
		Expect(w.Records(recordDir)).To(BeEmpty())
		Expect(w.Fails(w.call("STATUS", nil), cni.CodeUnavailable)).To(ContainSubstring("kind vrf: "))
	})

	DescribeTable("DEL of what is not there succeeds and changes nothing", func(change func(w *world, c *Call)) {
		w := newWorld()
		c := w.call("DEL", Object{"prevResult": nil})
		change(w, &c)
		before := w.cont.Snapshot()
		answer := w.Call(c)
		Expect(answer.Code).To(BeZero(), answer.Stdout)
		Expect(w.cont.Snapshot()).To(Equal(before))
		Expect(w.Records(recordDir)).To(BeEmpty())
	},
		Entry("before ADD", func(*world, *Call) {}),
		Entry("with CNI_NETNS empty", func(_ *world, c *Call) { c.Netns = "" }),
		Entry("with a path that is gone", func(_ *world, c *Call) { c.Netns += "x" }),
		Entry("with a path that is no namespace", func(_ *world, c *Call) { c.Netns = "/proc/version" }),
		Entry("without the interface", func(w *world, _ *Call) { IP(w.cont, "link del net1") }),
		Entry("with a name that is no VRF", func(w *world, c *Call) { c.Conf.(Object)["vrfname"] = "eth0" }),
		Entry("without a name", func(w *world, c *Call) { delete(c.Conf.(Object), "vrfname") }),
	)

	It("GC and STATUS of nothing", func() {
		w := newWorld()
		w.Succeeds(w.call("GC", Object{"cni.dev/valid-attachments": []Object{}}))
		w.Cmd("sh", "-c", "rm -rf /run/hawser && touch /run/hawser")
		w.Fails(w.call("STATUS", nil), cni.CodeUnavailable)
	})
})

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(plugin()) })

const fuzzPrev = `"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"` + FuzzNetns +
	`"}],"ips":[{"address":"10.1.0.2/24","interface":0}],"routes":[{"dst":"10.9.0.0/16","table":7}]}`

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	Fuzz{
		Plugin: Any(plugin()), Chained: true,
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","type":"vrf","vrfname":"red","table":7,` +
				`"cni.dev/valid-attachments":[],` + fuzzPrev + `}`,
			`{"cniVersion":"1.0.0","name":"net","vrfname":"eth0",` + fuzzPrev + `}`,
			`{"name":"net","vrfname":"red","prevResult":{"ip4":{"ip":"10.1.0.2/24"}}}`,
			`{"cniVersion":"1.1.0","name":"net","table":255,"vrfname":"a/b"}`,
		},
	}.Run(f)
}

// FuzzRecord makes up the record of a container.
func FuzzRecord(f *testing.F) {
	Fuzz{
		Plugin: Any(plugin()), Chained: true,
		Confs: []string{`{"cniVersion":"1.1.0","name":"net","type":"vrf","vrfname":"red","table":7,` +
			`"cni.dev/valid-attachments":[],` + fuzzPrev + `}`},
	}.RunRecord(f, recordDir, `{"network":"net","containerID":"one","ifname":"eth0","path":"`+FuzzNetns+`",`+
		`"netns":IDENTITY,"vrf":"red","made":true,"link":LINK,"routes":[{"header":{"Family":2,"Dst_len":24,`+
		`"Table":254,"Type":1},"attrs":[{"kind":1,"value":"CgEAAA=="},`+
		`{"kind":4,"value":"AgAAAA=="}]},{"header":{"Family":10},`+
		`"attrs":[{"kind":9,"value":"EAAAAAIAAAA="},{"kind":15,"value":"/w=="}]}]}`)
}
