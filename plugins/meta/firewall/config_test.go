package main

import (
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

var _ = Describe("the configuration", Ordered, func() {
	var w *world
	var c *container
	BeforeAll(func() {
		w, c = dropping()
	})

	DescribeTable("is refused with key and value before anything is done", func(keys Object, want ...string) {
		before := w.untouched()
		said := w.Fails(c.as("ADD", keys), 7)
		for _, text := range want {
			Expect(said).To(ContainSubstring(text))
		}
		Expect(w.untouched()).To(Equal(before))
		w.Fails(c.as("CHECK", keys), 7)
		c.del(keys)
		Expect(w.untouched()).To(Equal(before))
	},
		Entry("a chain with a line", Object{"iptablesAdminChainName": "A\n-F"}, "iptablesAdminChainName"),
		Entry("a target of iptables as a chain", Object{"iptablesAdminChainName": "ACCEPT"}, "iptablesAdminChainName",
			`"ACCEPT"`),
		Entry("a target that is loaded when a rule names it", Object{"iptablesAdminChainName": "MARK"}, `"MARK"`),
		Entry("all at once", Object{"backend": "x", "ingressPolicy": "y", "iptablesAdminChainName": " "}, "backend",
			"ingressPolicy", "iptablesAdminChainName"),
		Entry("no prevResult", Object{"prevResult": nil}, "prevResult"),
	)

	It("may have empty values for what is by default", func() {
		keys := Object{"backend": "", "ingressPolicy": "", "iptablesAdminChainName": "", "acceptPublished": nil,
			"markAcceptBit": nil}
		c.add(keys)
		c.check()
	})

	DescribeTable("of a policy needs a bridge", func(prepare func(c *container)) {
		w := newWorld()
		c := w.container(1, 2)
		prepare(c)
		before := w.untouched()
		Expect(w.Fails(c.as("ADD", Object{"ingressPolicy": "same-bridge"}), 7)).To(ContainSubstring("ingressPolicy"))
		Expect(w.untouched()).To(Equal(before))
		c.add()
	},
		Entry("not a host end alone, as of ptp", func(*container) {}),
		Entry("not no host end, as of macvlan", Label("kernel"), func(c *container) {
			nstest.Need("dummy")
			c.Cmd("ip", "link", "del", "eth0")
			c.Cmd("ip", "link", "add", "eth0", "type", "dummy")
		}),
		Entry("not no interface", func(c *container) { c.Cmd("ip", "link", "set", "eth0", "down", "name", "eth9") }),
		Entry("not a master of another kind", Label("kernel"), func(c *container) {
			nstest.Need("vrf")
			c.w.Cmd("ip", "link", "add", "vrf1", "type", "vrf", "table", "10")
			c.w.Cmd("ip", "link", "set", c.hostEnd, "master", "vrf1")
		}),
	)
})

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(plugin()) })

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	Fuzz{Plugin: Any(plugin()), Chained: true, Confs: []string{
		`{"cniVersion":"1.1.0","name":"net","type":"firewall","backend":"nftables","cni.dev/valid-attachments":[],` +
			FuzzPrev + `}`,
		`{"cniVersion":"1.0.0","name":"net","ingressPolicy":"isolated","acceptPublished":false,` + FuzzPrev + `}`,
		`{"cniVersion":"0.4.0","name":"net","backend":"","iptablesAdminChainName":"MINE","markAcceptBit":5,` +
			FuzzPrev + `}`,
		`{"name":"net","prevResult":{"ip4":{"ip":"10.1.0.2/24"}},"ingressPolicy":"same-bridge"}`,
		`{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"}]}`,
	}}.Run(f)
}

// FuzzFiles damages the records.
func FuzzFiles(f *testing.F) {
	conf := `{"cniVersion":"1.1.0","name":"net","cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"}],` +
		FuzzPrev + `}`
	Fuzz{Plugin: Any(plugin()), Chained: true, Confs: []string{conf}}.RunFiles(f, recordDir, ``, `{}`, `null`,
		`{"network":"net","containerID":"one","ifname":"eth0","backend":"nftables","addrs":["10.1.0.2"],`+
			`"adminChain":"CNI-ADMIN","policy":"isolated","bridge":"peer0","port":2,"setFlag":true}`,
		`{"network":"net","containerID":"one","ifname":"eth0","backend":"x","addrs":["fe80::1%a",""],`+
			`"adminChain":"-X","markAcceptBit":40,"policy":"closed","bridge":"../x","port":-1}`)
}
