package main

import (
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func parse(keys, args string) (config, error) {
	return plugin().Parse(&skel.Request{Conf: []byte("{" + keys + "}"), Args: args})
}

const withIPAM = `"ipam":{"type":"x"}`

var _ = Describe("configuration", func() {
	It("is refused for everything that is wrong with it at once", func() {
		_, err := parse(`"ipMasq":true,"mtu":5,"ipMasqBackend":"nft","runtimeConfig":{"mac":"no"}`, "")
		Expect(cni.ProblemsOf(err)).To(HaveLen(4))
		Expect(err).To(MatchError(And(HavePrefix("ipam.type: missing"), ContainSubstring("; mtu: 5 "),
			ContainSubstring(`ipMasqBackend: "nft" `), ContainSubstring(`; runtimeConfig.mac: "no" `))))
	})

	const envMAC = "02:00:00:00:00:01"
	DescribeTable("CNI_ARGS are refused with code 4", func(args, want string) {
		_, err := parse(withIPAM, args)
		Expect(err).To(MatchError(ContainSubstring(want)))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeEnvironment))
	},
		Entry("MAC", "MAC=zz", `CNI_ARGS MAC: "zz"`),
		Entry("MAC beside others", "IP=10.0.0.1;MAC=zz", `CNI_ARGS MAC: "zz"`),
	)

	DescribeTable("CNI_ARGS of others are ignored", func(args string) {
		c := nstest.Must(parse(withIPAM, args+";MAC="+envMAC))
		Expect(c.Link.MAC.String()).To(Equal(envMAC))
	},
		Entry("a key", "IP=10.0.0.1"),
		Entry("although the strict would be told", "IgnoreUnknown=0;K8S_POD_NAME=a"),
		Entry("no pair", "debug"),
	)
})

var _ = It("has its schema in docs/schema", func() { ExpectPluginSchema(plugin()) })

func planOf(keys, lease string) (plan, error) {
	GinkgoHelper()
	cfg := nstest.Must(parse(strings.TrimSuffix(withIPAM+","+keys, ","), ""))
	res := nstest.Must(cni.DecodeResult([]byte(lease), "1.1.0"))
	return makePlan(cfg, res)
}

// text is a plan in lines: routes of the container, addresses of the host end, routes of the host.
func (p plan) text() []string {
	out := []string{}
	route := func(where string, r rtnl.Route) {
		s := where + " " + r.String()
		if r.Src.IsValid() {
			s += " src " + r.Src.String()
		}
		if name := map[int]string{unix.RT_SCOPE_LINK: "link", unix.RT_SCOPE_HOST: "host"}[r.Scope]; name != "" {
			s += " scope " + name
		}
		out = append(out, s)
	}
	for _, r := range p.ContRoutes {
		route("container", r)
	}
	for _, gw := range p.Gateways {
		out = append(out, "gateway "+gw.String())
	}
	for _, r := range p.HostRoutes {
		route("host", r)
	}
	return out
}

var _ = Describe("plan", func() {
	DescribeTable("makes of the addresses", func(addrs []string, want ...string) {
		p := nstest.Must(planOf("", Lease(addrs...)))
		Expect(p.text()).To(Equal(want))
		for _, ip := range p.Result.IPs {
			Expect(*ip.Interface).To(Equal(1))
		}
	},
		Entry("IPv6 with a link-local gateway", []string{"2001:db8::2/64 fe80::1"},
			"container fe80::1/128 src 2001:db8::2 scope link", "container 2001:db8::/64 via fe80::1 src 2001:db8::2",
			"gateway fe80::1/128", "host 2001:db8::2/128 scope host"),
		Entry("a /128", []string{"2001:db8::2/128 2001:db8::1"},
			"container 2001:db8::1/128 src 2001:db8::2 scope link", "gateway 2001:db8::1/128",
			"host 2001:db8::2/128 scope host"),
		Entry("two of a subnet", []string{"10.1.0.2/24 10.1.0.1", "10.1.0.3/24 10.1.0.1"},
			"container 10.1.0.1/32 src 10.1.0.2 scope link", "container 10.1.0.0/24 via 10.1.0.1 src 10.1.0.2",
			"gateway 10.1.0.1/32", "host 10.1.0.2/32 scope host", "host 10.1.0.3/32 scope host"),
		Entry("two of a subnet with different gateways", []string{"10.1.0.2/24 10.1.0.1", "10.1.0.3/24 10.1.0.254"},
			"container 10.1.0.1/32 src 10.1.0.2 scope link", "container 10.1.0.0/24 via 10.1.0.1 src 10.1.0.2",
			"container 10.1.0.254/32 src 10.1.0.3 scope link",
			"gateway 10.1.0.1/32", "gateway 10.1.0.254/32", "host 10.1.0.2/32 scope host",
			"host 10.1.0.3/32 scope host"),
		Entry("two subnets with one gateway", []string{"10.1.0.2/24 169.254.1.1", "10.2.0.2/24 169.254.1.1"},
			"container 169.254.1.1/32 src 10.1.0.2 scope link", "container 10.1.0.0/24 via 169.254.1.1 src 10.1.0.2",
			"container 10.2.0.0/24 via 169.254.1.1 src 10.2.0.2",
			"gateway 169.254.1.1/32", "host 10.1.0.2/32 scope host", "host 10.2.0.2/32 scope host"),
		Entry("one in two lengths", []string{"10.1.0.2/24 10.1.0.1", "10.1.0.2/16 10.1.0.1"},
			"container 10.1.0.1/32 src 10.1.0.2 scope link", "container 10.1.0.0/24 via 10.1.0.1 src 10.1.0.2",
			"container 10.1.0.0/16 via 10.1.0.1 src 10.1.0.2",
			"gateway 10.1.0.1/32", "host 10.1.0.2/32 scope host"),
	)

	It("refuses an mtu that is too small for an address", func() {
		_, err := planOf(`"mtu":1279`, Lease("2001:db8::2/64 2001:db8::1"))
		Expect(err).To(MatchError(ContainSubstring("mtu: 1279 is too small for IPv6 (1280)")))
		_, err = planOf(`"mtu":1279`, Lease("10.1.0.2/24 10.1.0.1"))
		Expect(err).NotTo(HaveOccurred())
	})

	DescribeTable("refuses", func(want string, addrs ...string) {
		_, err := planOf("", Lease(addrs...))
		Expect(err).To(MatchError(ContainSubstring(want)))
	},
		Entry("no gateway", "address 10.1.0.2/24: has no gateway", "10.1.0.2/24"),
		Entry("no gateway of the second", "address 2001:db8::2/64: has no gateway", "10.1.0.2/24 10.1.0.1",
			"2001:db8::2/64"),
		Entry("a gateway of the other family", "address 10.1.0.2/24: its gateway 2001:db8::1 ",
			"10.1.0.2/24 2001:db8::1"),
		Entry("an IPv4 gateway of IPv6", "address 2001:db8::2/64: its gateway 10.1.0.1 ", "2001:db8::2/64 10.1.0.1"),
		Entry("the address itself", "address 10.1.0.2/24: is its own gateway", "10.1.0.2/24 10.1.0.2"),
		Entry("another address of the container", "address 10.1.0.2/24: its gateway 10.1.0.3 ", "10.1.0.2/24 10.1.0.3",
			"10.1.0.3/24 10.1.0.1"),
		Entry("the unspecified address", "its gateway 0.0.0.0 ", "10.1.0.2/24 0.0.0.0"),
		Entry("a multicast address", "its gateway ff02::1 ", "2001:db8::2/64 ff02::1"),
		Entry("the loopback address", "its gateway 127.0.0.1 ", "10.1.0.2/24 127.0.0.1"),
	)

	It("leaves IPAM's routes as they are, and the lease alone", func() {
		lease, err := cni.DecodeResult([]byte(`{"ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}],
			"routes":[{"dst":"0.0.0.0/0"}]}`), "1.1.0")
		Expect(err).NotTo(HaveOccurred())
		p := nstest.Must(makePlan(config{}, lease))
		Expect(p.Result.Routes).To(Equal(lease.Routes))
		Expect(lease.IPs[0].Interface).To(BeNil())
	})
})

// FuzzCall makes up whole calls.
func FuzzCall(f *testing.F) {
	const prev = `"prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"veth1","mac":"02:00:00:00:00:09"},` +
		`{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"` + FuzzNetns + `"}],"ips":[{"address":"10.1.0.2/24",
			"gateway":"10.1.0.1","interface":1}]}`
	Fuzz{
		Plugin: Any(plugin()),
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","type":"ptp","ipMasq":true,"mtu":1400,"ipam":{"type":"fake"},
				"dns":{"nameservers":["10.1.0.1"]},` +
				`"cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"}],` + prev + `}`,
			`{"cniVersion":"0.4.0","name":"net","ipMasqBackend":"nftables","ipam":{"type":"fake"},
				"args":{"cni":{"mac":"02:00:00:00:00:03"}},"runtimeConfig":{},` + prev + `}`,
			`{"name":"net","ipam":{"type":"fake"},"prevResult":{"ip4":{"ip":"10.1.0.2/24",
				"routes":[{"dst":"0.0.0.0/0"}]}}}`,
			`{"cniVersion":"1.0.0","name":"net","ipam":{"type":""}}`,
		},
		Leases: []string{
			`{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"},{"address":"fd00:1::2/64",
				"gateway":"fd00:1::1"}],"routes":[{"dst":"0.0.0.0/0","mtu":1300},{"dst":"::/0","priority":5}]}`,
			`{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.0.2/32","gateway":"169.254.1.1"}],
				"routes":[{"dst":"0.0.0.0/0","gw":"169.254.1.1"}]}`,
			`{"ip4":{"ip":"10.1.0.2/24","gateway":"10.1.0.1"},"ip6":{"ip":"fd00::2/64"}}`,
			`!{"cniVersion":"1.1.0","code":11,"msg":"full"}`,
		},
	}.Run(f)
}
