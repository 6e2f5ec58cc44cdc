package main

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

var _ = Describe("a configuration", func() {
	parse := func(ipam string) (*config, error) {
		return parseConfig([]byte(`{"ipam": {"type": "dhcp", `+ipam+`}}`), "A=b=c;;D;E=f")
	}

	It("asks for subnet mask, routers and resolver settings", func() {
		cfg := nstest.Must(parse(`"dns": null`))
		Expect(cfg.Request).To(Equal([]byte{1, 3, 6, 15, 119}))
		Expect(cfg.socket).To(Equal("/run/cni/dhcp.sock"))
	})

	It("may ask for less", func() {
		cfg := nstest.Must(parse(`"dns": false,
			"request": [{"option": "12", "skipDefault": true}, {"option": "routers"}]`))
		Expect(cfg.Request).To(Equal([]byte{3, 12}))
	})

	DescribeTable("passes over an entry without an option, but for skipDefault", func(request string, want ...byte) {
		Expect(nstest.Must(parse(`"dns": false, "request": [` + request + `]`)).Request).To(Equal(want))
	},
		Entry("that asks for less", `{"skipDefault": true}, {"option": "12"}`, byte(12)),
		Entry("that does not, as in the reference's manual", `{"skipDefault": false}`, byte(1), byte(3)),
		Entry("that is empty", `{"option": ""}, {"option": null}`, byte(1), byte(3)),
	)

	It("provides values of its own and of CNI_ARGS", func() {
		cfg := nstest.Must(parse(`"provide": [{"option": "12", "value": "x", "fromArg": "A"},
			{"option": "13", "value": "y", "fromArg": "D"}, {"option": "14", "fromArg": "G"},
			{"option": "dhcp-client-identifier", "value": "z"}]`))
		Expect(cfg.Provide).To(Equal(map[uint8][]byte{12: []byte("b=c"), 13: []byte("y"), 61: []byte("z")}))
	})

	It("is refused", func() {
		_, err := parse(`"provide": [{"option": "12", "value": "` + strings.Repeat("x", 256) + `"}]`)
		Expect(err).To(MatchError(HavePrefix(`ipam.provide[0].value: value too long for option "12": "xxx`)))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
		_, err = parseConfig([]byte("{}"), "")
		Expect(err).To(MatchError("ipam: is missing"))
	})

	DescribeTable("of the daemon has the usual socket", func(args ...string) {
		f := nstest.Must(parseFlags(skel.Env{Args: append([]string{"daemon"}, args...), Stderr: GinkgoWriter}))
		Expect(f.socket).To(Equal(defaultSocket))
	},
		Entry("without a flag"),
		Entry("where the flag is empty", "-socketpath", ""),
	)

	It("has a client ID that no server chokes on", func() {
		id := clientID(cni.Attachment{Network: "dn", ContainerID: "c1", IfName: "eth0"})
		Expect(fmt.Sprintf("%q", id)).To(Equal(`"\x00c1/dn/eth0"`))
		Expect(clientID(cni.Attachment{ContainerID: strings.Repeat("x", 300)})).To(HaveLen(255))
	})
})
