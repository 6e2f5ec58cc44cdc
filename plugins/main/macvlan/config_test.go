package main

import (
	"errors"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/attach"
	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func parse(keys, args string) (config, error) {
	return parseConfig(&skel.Request{Conf: []byte("{" + keys + "}"), Args: args})
}

var _ = Describe("configuration", func() {
	DescribeTable("keys", func(keys string, want config) {
		c, err := parse(keys, "")
		Expect(err).NotTo(HaveOccurred())
		if want.Mode == "" {
			want.Mode = "bridge"
		}
		Expect(c).To(Equal(want))
	},
		Entry("nothing", ``, config{DAD: true}),
		Entry("master", `"master":"up0"`, config{Master: attach.MasterKeys{Master: "up0"}, DAD: true}),
		Entry("linkInContainer", `"linkInContainer":true`,
			config{Master: attach.MasterKeys{LinkInContainer: true}, DAD: true}),
		Entry("mode", `"mode":"vepa"`, config{Mode: "vepa", DAD: true}),
		Entry("mode, empty", `"mode":""`, config{DAD: true}),
		Entry("mtu", `"mtu":1400`, config{Link: attach.Link{MTU: 1400}, DAD: true}),
		Entry("bcqueuelen", `"bcqueuelen":2000`, config{QueueLen: 2000, DAD: true}),
		Entry("enabledad false", `"enabledad":false`, config{}),
		Entry("enabledad null", `"enabledad":null`, config{DAD: true}),
		Entry("dns", `"dns":{"search":["s"]}`,
			config{Link: attach.Link{DNS: cni.DNS{Search: []string{"s"}}}, DAD: true}),
		Entry("keys in other case", `"MASTER":"up0","Mtu":1400`,
			config{Master: attach.MasterKeys{Master: "up0"}, Link: attach.Link{MTU: 1400}, DAD: true}),
	)

	DescribeTable("is refused with code 7, naming key and value", func(keys, want string) {
		_, err := parse(keys, "")
		Expect(err).To(MatchError(HavePrefix(want)))
		e := (*cni.Error)(nil)
		Expect(errors.As(err, &e)).To(BeTrue())
		Expect(e.Code).To(Equal(cni.CodeConfig))
	},
		Entry("master, no string", `"master":5`, `master: is a JSON number`),
		Entry("mode", `"mode":"source"`, `mode: "source" is none of`),
		Entry("mode in other case", `"mode":"Bridge"`, `mode: "Bridge" is none of`),
		Entry("mtu too small", `"mtu":67`, `mtu: 67 is not between 68 and 65535`),
		Entry("mtu negative", `"mtu":-1`, `mtu: -1 `),
		Entry("mac", `"mac":"zz"`, `mac: "zz" `),
		Entry("mac, multicast", `"mac":"01:00:00:00:00:01"`, `mac: "01:00:00:00:00:01" `),
		Entry("mac, zero", `"mac":"00:00:00:00:00:00"`, `mac: "00:00:00:00:00:00" `),
		Entry("mac, eight bytes", `"mac":"02:00:00:00:00:00:00:01"`, `mac: "02:00:00:00:00:00:00:01" `),
		Entry("mac, also where a stronger one wins",
			`"mac":"zz","runtimeConfig":{"mac":"02:00:00:00:00:01"}`, `mac: "zz" `),
		Entry("runtimeConfig.mac", `"runtimeConfig":{"mac":"zz"}`, `runtimeConfig.mac: "zz" `),
		Entry("bcqueuelen negative", `"bcqueuelen":-1`, `bcqueuelen: -1 `),
		Entry("bcqueuelen too big", `"bcqueuelen":4294967296`, `bcqueuelen: 4294967296 `),
		Entry("linkInContainer", `"linkInContainer":"yes"`, `linkInContainer: is a JSON string`),
		Entry("enabledad", `"enabledad":1`, `enabledad: is a JSON number`),
		Entry("ipam.type", `"ipam":{"type":"a/b"}`, `ipam.type: "a/b" is no plugin name`),
	)

	It("is refused for everything that is wrong with it at once", func() {
		_, err := parse(`"mode":"x","mtu":5,"mac":"no","ipam":{"type":"../x"}`, "MAC")
		Expect(cni.ProblemsOf(err)).To(HaveLen(5))
	})

	DescribeTable("MAC address", func(keys, args, want string) {
		c, err := parse(strings.TrimPrefix(keys, ","), args)
		Expect(err).NotTo(HaveOccurred())
		Expect(c.Link.MAC.String()).To(Equal(want))
	},
		Entry("from nowhere", ``, "", ""),
		Entry("from mac, in dashes and upper case", `"mac":"0A-00-00-00-00-0B"`, "", "0a:00:00:00:00:0b"),
		Entry("from CNI_ARGS, which wins over it", `"mac":"02:00:00:00:00:01"`,
			"IgnoreUnknown=1;K=a;MAC=02:00:00:00:00:02", "02:00:00:00:00:02"),
		Entry("from args.cni, which wins over both",
			`"mac":"02:00:00:00:00:01","args":{"cni":{"mac":"02:00:00:00:00:03"}}`,
			"MAC=02:00:00:00:00:02", "02:00:00:00:00:03"),
		Entry("from runtimeConfig, which wins over all",
			`"mac":"02:00:00:00:00:01","args":{"cni":{"mac":"02:00:00:00:00:03"}},
				"runtimeConfig":{"mac":"02:00:00:00:00:04"}`,
			"MAC=02:00:00:00:00:02", "02:00:00:00:00:04"),
	)
})
