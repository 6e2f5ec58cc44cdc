package hostlocal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/ranges"
	"github.com/hawser-cni/plugins/pkg/skel"
)

// request returns a request whose configuration has these keys in ipam.
func request(ipam string, more ...string) *skel.Request {
	if ipam != "" {
		ipam = ", " + ipam
	}
	return &skel.Request{
		Attachment: cni.Attachment{Network: "net", ContainerID: "c1", IfName: "eth0"},
		Version:    "1.1.0",
		Conf: fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","ipam":{"type":"host-local"%s}%s}`,
			ipam, strings.Join(append([]string{""}, more...), ",")),
	}
}

func show(cfg *config) string {
	var words []string
	for _, s := range cfg.sets {
		word := s.String()
		for _, r := range s {
			word += " gw " + r.Gateway.String()
		}
		words = append(words, word)
	}
	return strings.Join(words, "; ")
}

var _ = DescribeTable("parses ranges:", func(want, ipam string, more ...string) {
	Expect(show(nstest.Must(Plugin().Parse(request(ipam, more...))))).To(Equal(want))
},
	Entry("one", "10.1.2.1-10.1.2.254 gw 10.1.2.1", `"ranges":[[{"subnet":"10.1.2.0/24"}]]`),
	Entry("one in the old form", "10.1.2.3-10.1.2.9 gw 10.1.2.2",
		`"subnet":"10.1.2.0/24","rangeStart":"10.1.2.3","rangeEnd":"10.1.2.9","gateway":"10.1.2.2"`),
	Entry("keys in any case", "10.1.2.1-10.1.2.254 gw 10.1.2.1", `"Ranges":[[{"SUBNET":"10.1.2.0/24"}]]`),
	Entry("those of all sources, in their order",
		"10.1.0.1-10.1.0.254 gw 10.1.0.1; 10.2.0.1-10.2.0.254 gw 10.2.0.1; 10.3.0.1-10.3.0.254 gw 10.3.0.1",
		`"subnet":"10.2.0.0/24","ranges":[[{"subnet":"10.3.0.0/24"}]]`,
		`"runtimeConfig":{"ipRanges":[[{"subnet":"10.1.0.0/24"}]]}`),
	Entry("several in a set", "10.1.0.1-10.1.0.254,10.1.9.1-10.1.9.254 gw 10.1.0.1 gw 10.1.9.1",
		`"ranges":[[{"subnet":"10.1.0.0/24"},{"subnet":"10.1.9.0/24"}]]`),
	Entry("one that includes network and broadcast address", "10.1.2.0-10.1.2.255 gw 10.1.2.1",
		`"ranges":[[{"subnet":"10.1.2.0/24","rangeStart":"10.1.2.0","rangeEnd":"10.1.2.255"}]]`),
	Entry("one with a gateway outside its subnet",
		"10.1.2.1-10.1.2.254 gw 192.0.2.1", `"ranges":[[{"subnet":"10.1.2.0/24","gateway":"192.0.2.1"}]]`),
	Entry("addresses in any spelling",
		"2001:db8::a-2001:db8::ffff:ffff:ffff:ffff gw 2001:db8::1; 10.1.2.7-10.1.2.254 gw 10.1.2.1",
		`"ranges":[[{"subnet":"2001:DB8:0::/64","rangeStart":"2001:0db8::000A"}],
			[{"subnet":"10.1.2.0/24","rangeStart":"::ffff:10.1.2.7"}]]`),
	Entry("empty texts, which stand for missing ones",
		"10.1.2.1-10.1.2.254 gw 10.1.2.1", `"ranges":[[{"subnet":"10.1.2.0/24","rangeStart":"","gateway":""}]]`),
	Entry("none, if the runtime sends them later", "", ``, `"capabilities":{"ipRanges":true}`))

var _ = DescribeTable("refuses", func(want, ipam string, more ...string) {
	_, err := Plugin().Parse(request(ipam, more...))
	Expect(err).To(MatchError(want))
	Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
},
	Entry("a configuration without ranges", "ipam.ranges: no ranges to assign addresses from", ``),
	Entry("a start outside", "ipam.ranges[0][1].rangeStart: 10.1.4.1 is not in the subnet 10.1.3.0/24",
		`"ranges":[[{"subnet":"10.1.2.0/24"},{"subnet":"10.1.3.0/24","rangeStart":"10.1.4.1"}]]`),
	Entry("an end before the start",
		"ipam.rangeEnd: 10.1.3.4 is before the start, 10.1.3.5",
		`"subnet":"10.1.3.0/24","rangeStart":"10.1.3.5","rangeEnd":"10.1.3.4"`),
	Entry("an overlap in a set",
		"ipam.ranges[0][1]: 10.1.2.129-10.1.2.254 overlaps with ipam.ranges[0][0], 10.1.2.1-10.1.2.254",
		`"ranges":[[{"subnet":"10.1.2.0/24"},{"subnet":"10.1.2.128/25"}]]`),
	Entry("an overlap of sets",
		"ipam.ranges[0][0]: 10.1.2.1-10.1.2.254 overlaps with "+
			"runtimeConfig.ipRanges[0][0], 10.1.0.1-10.1.255.254",
		`"ranges":[[{"subnet":"10.1.2.0/24"}]]`, `"runtimeConfig":{"ipRanges":[[{"subnet":"10.1.0.0/16"}]]}`))

var _ = DescribeTable("refuses lists that take too long to compare, but not in DEL", Label("sizes"),
	func(want string, ipam func() string, more ...string) {
		text := fmt.Sprintf(`"dataDir": %q, `, GinkgoT().TempDir()) + ipam()
		_, err := Plugin().Parse(request(text, more...))
		Expect(err).To(MatchError(want))
		Expect(Plugin().Del(context.Background(), request(text, more...))).To(Succeed())
	},
	Entry(nil, "ipam.ranges: has 257 ranges, more than 256", func() string {
		return `"ranges": [` + repeated(`[{"subnet":"10.1.0.0/24"}]`, 200) + `,[` +
			repeated(`{"subnet":"10.1.0.0/24"}`, 57) + `]]`
	}),
	Entry(nil, "ipam.ranges: has 30000 elements, more than 256", func() string {
		return `"ranges": [` + repeated(`[{"subnet":"10.1.0.0/24"}]`, 30000) + `]`
	}),
	Entry(nil, "ipam.exclude: has 30000 elements, more than 256", func() string {
		return `"subnet": "10.1.0.0/16", "exclude": [` + repeated(`"10.1.0.7"`, 30000) + `]`
	}),
	Entry(nil, "ipam.routes: has 30000 elements, more than 1024", func() string {
		return `"subnet": "10.1.0.0/16", "routes": [` + repeated(`{"dst": "10.0.0.0/8"}`, 30000) + `]`
	}),
	Entry(nil, "runtimeConfig.ips: has 65 elements, more than 64", func() string { return `"subnet": "10.1.0.0/16"` },
		`"runtimeConfig": {"ips": [`+repeated(`"10.1.0.7"`, 65)+`]}`),
)

func repeated(text string, n int) string { return strings.TrimSuffix(strings.Repeat(text+",", n), ",") }

var _ = DescribeTable("suggests a correction for", func(want, ipam string) {
	_, err := Plugin().Parse(request(ipam))
	Expect(cni.ProblemsOf(err)).To(ConsistOf(HaveField("Suggestion", want)))
},
	Entry("a subnet with host bits", `write "10.1.2.0/24"`, `"subnet":"10.1.2.1/24"`),
	Entry("a default route by name", `write "0.0.0.0/0", or "::/0" for IPv6`, slash24+`,"routes":[{"dst":"default"}]`),
	Entry("a lack of dst", `write "dst": "0.0.0.0/0" for the default route`, slash24+`,"routes":[{"gw":"10.1.2.1"}]`))

var _ = It("reports all errors together, in the order of the sources", func() {
	req := request(`"ranges":[[{"subnet":"10.1.2.1/24"},{"subnet":"10.1.3.0/24","rangeStart":"x",
		"rangeEnd":"10.1.4.1","gateway":"::1"}],[],[{"subnet":"5"}]],
		"routes":[{"gw":"y"},{"dst":"::/0","advmss":-5}],"statusOnExhaustion":"no"`,
		`"runtimeConfig":{"ipRanges":[[{}]],"ips":["10.1.2.3","z"]}`, `"args":{"cni":{"ips":["w"]}}`)
	req.Args = "IP=v"
	_, err := Plugin().Parse(req)
	Expect(Problems(err)).To(HaveExactElements(
		`7 ipam.statusOnExhaustion: "no" must be "warn" or "fail"`,
		`7 runtimeConfig.ipRanges[0][0].subnet: is missing`,
		`7 ipam.ranges[0][0].subnet: 10.1.2.1/24 has host bits set, the network is 10.1.2.0/24`,
		`7 ipam.ranges[0][1].rangeStart: "x" is not an IP address`,
		`7 ipam.ranges[0][1].rangeEnd: 10.1.4.1 is not in the subnet 10.1.3.0/24`,
		`7 ipam.ranges[0][1].gateway: ::1 is not of the address family of 10.1.3.0/24`,
		`7 ipam.ranges[1]: is an empty set`,
		`7 ipam.ranges[2][0].subnet: "5" is not an address in CIDR notation`,
		`7 ipam.routes[0].dst: missing`,
		`7 ipam.routes[0].gw: "y" is not an IP address`,
		`7 ipam.routes[1].advmss: -5 is not between 0 and 2147483647`,
		`4 CNI_ARGS IP: "v" is not an IP address`,
		`7 args.cni.ips[0]: "w" is not an IP address`,
		`7 runtimeConfig.ips[1]: "z" is not an IP address`))
})

var _ = DescribeTable("limits old versions to one address of each family:", func(version, ranges string, ok bool) {
	req := request(ranges)
	req.Version = version
	_, err := Plugin().Parse(req)
	if ok {
		Expect(err).NotTo(HaveOccurred())
		return
	}
	Expect(err).To(MatchError(ContainSubstring(
		"CNI version " + version + " does not support more than 1 address per family")))
	Expect(cni.AsError(err).Code).To(Equal(cni.CodeConfig))
},
	Entry("0.2.0, two of IPv4", "0.2.0", `"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.2.0.0/24"}]]`, false),
	Entry("0.1.0, two of IPv6",
		"0.1.0", `"ranges":[[{"subnet":"2001:db8::/64"}],[{"subnet":"2001:db9::/64"}]]`, false),
	Entry("0.2.0, one of each", "0.2.0", `"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"2001:db8::/64"}]]`, true),
	Entry("0.3.0, two of IPv4", "0.3.0", `"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"10.2.0.0/24"}]]`, true))

var _ = Describe("requested addresses", func() {
	It("come from all sources, each once, in this order", func() {
		wire := &wireConfig{}
		wire.RuntimeConfig.IPs = []string{"10.1.2.9", "::ffff:10.1.2.7", "10.1.2.6"}
		wire.Args.CNI.IPs = []string{"10.1.2.8/16", "10.1.2.9"}
		asked := nstest.Must(wire.Requested("10.1.2.7"))
		var got []string
		for _, a := range asked {
			got = append(got, fmt.Sprintf("%s %d %s", a.Addr, a.Code, a.Key))
		}
		Expect(got).To(Equal([]string{"10.1.2.7 4 CNI_ARGS IP", "10.1.2.8 7 args.cni.ips[0]",
			"10.1.2.9 7 args.cni.ips[1]", "10.1.2.6 7 runtimeConfig.ips[2]"}))
	})

	DescribeTable("are refused with code 4 if CNI_ARGS has", func(args, want string) {
		req := request(slash24)
		req.Args = args
		_, err := Plugin().Parse(req)
		Expect(err).To(MatchError(ContainSubstring(want)))
		Expect(cni.AsError(err).Code).To(Equal(cni.CodeEnvironment))
	},
		Entry("an invalid address", "IP=x", `CNI_ARGS IP: "x" is not an IP address`),
		Entry("an unknown key", "IPP=10.1.2.3", "IPP"))

	DescribeTable("are assigned to the sets:", func(want string, list ...string) {
		sets := []ranges.Set{set("10.0.0.0/24"), set("10.0.1.0/24"), set("2001:db8::/64"),
			set("10.0.3.0/29", "10.0.4.0/29 gw 10.0.3.3")}
		var asked []ranges.Requested
		for i, a := range addrs(list...) {
			asked = append(asked, ranges.Requested{Addr: a, Key: fmt.Sprintf("ips[%d]", i), Code: cni.CodeConfig})
		}
		got, err := ranges.Assign(sets, asked)
		if err != nil {
			Expect(err.Error()).To(Equal(want))
			return
		}
		var words []string
		for _, a := range got {
			words = append(words, a.Addr.String())
		}
		Expect(strings.Join(words, " ")).To(Equal(want))
	},
		Entry("one", "invalid IP 10.0.1.5 invalid IP invalid IP", "10.0.1.5"),
		Entry("all, in any order", "10.0.0.7 10.0.1.5 2001:db8::9 invalid IP", "2001:db8::9", "10.0.1.5", "10.0.0.7"),
		Entry("one outside all sets",
			"ips[1]: 10.9.9.9 is in none of the ranges "+
				"(10.0.0.1-10.0.0.254, 10.0.1.1-10.0.1.254, 2001:db8::1-2001:db8::ffff:ffff:ffff:ffff, "+
				"10.0.3.1-10.0.3.6,10.0.4.1-10.0.4.6): failed to allocate all requested IPs: 10.9.9.9",
			"10.0.0.7", "10.9.9.9"),
		Entry("the gateway", "ips[0]: 10.0.1.1 is a gateway of range set 1 (10.0.1.1-10.0.1.254)", "10.0.1.1"),
		Entry("the gateway of another range of its set",
			"ips[0]: 10.0.3.3 is a gateway of range set 3 (10.0.3.1-10.0.3.6,10.0.4.1-10.0.4.6)", "10.0.3.3"),
		Entry("two of one set",
			"ips[1]: 10.0.0.8 is in range set 0 (10.0.0.1-10.0.0.254), which provides one address, "+
				"and 10.0.0.7 is also requested: failed to allocate all requested IPs: 10.0.0.8",
			"10.0.0.7", "10.0.0.8"))
})

var _ = It("reads resolv.conf", func() {
	file := filepath.Join(GinkgoT().TempDir(), "resolv.conf")
	text := "# comment\n; another\n\n  nameserver 192.0.2.1 ignored\nnameserver 2001:db8::1\r\nnameserver\n" +
		"domain a.example\ndomain b.example\nsearch x y\nsearch z\n" +
		"options ndots:5\n\toptions timeout:1 rotate\nsortlist 1.2.3.4\n"
	Expect(os.WriteFile(file, []byte(text), 0o600)).To(Succeed())
	Expect(ranges.ReadDNS(file)).To(Equal(cni.DNS{
		Nameservers: []string{"192.0.2.1", "2001:db8::1"}, Domain: "b.example",
		Search: []string{"x", "y", "z"}, Options: []string{"ndots:5", "timeout:1", "rotate"},
	}))
})

// newRange parses a range of the form "subnet[ start-end][ gw gateway]".
func newRange(text string) ranges.Range {
	f := strings.Fields(text)
	r := ranges.New("", netip.MustParsePrefix(f[0]))
	for i := 1; i < len(f); i++ {
		if f[i] == "gw" {
			r.Gateway = netip.MustParseAddr(f[i+1])
			break
		}
		start, end, _ := strings.Cut(f[i], "-")
		r.First, r.Last = netip.MustParseAddr(start), netip.MustParseAddr(end)
	}
	return r
}

func set(texts ...string) ranges.Set {
	var s ranges.Set
	for _, t := range texts {
		s = append(s, newRange(t))
	}
	return s
}

var _ = DescribeTable("derives the range of", func(subnet, want string) {
	r, err := ranges.Wire{Subnet: &subnet}.Parse("ipam")
	if err != nil {
		Expect(err).To(MatchError("ipam.subnet: " + subnet + " " + want))
		return
	}
	Expect(fmt.Sprintf("%s gw %s", r, r.Gateway)).To(Equal(want))
},
	Entry("an IPv4 subnet without network and broadcast", "10.1.2.0/24", "10.1.2.1-10.1.2.254 gw 10.1.2.1"),
	Entry("the smallest IPv4 subnet", "10.1.2.4/30", "10.1.2.5-10.1.2.6 gw 10.1.2.5"),
	Entry("a point-to-point subnet",
		"10.1.2.4/31", "is too small: the network, its gateway and one address need a /30"),
	Entry("a host", "10.1.2.4/32", "is too small: the network, its gateway and one address need a /30"),
	Entry("a subnet with host bits", "10.1.2.4/24", "has host bits set, the network is 10.1.2.0/24"),
	Entry("all of IPv4", "0.0.0.0/0", "0.0.0.1-255.255.255.254 gw 0.0.0.1"),
	Entry("an IPv6 subnet up to its last address",
		"2001:db8::/64", "2001:db8::1-2001:db8::ffff:ffff:ffff:ffff gw 2001:db8::1"),
	Entry("a tiny IPv6 subnet", "2001:db8::/127", "is too small: the network, its gateway and one address need a /126"),
	Entry("an IPv6 subnet whose numbers fit in four bytes", "::100:0/112", "::100:1-::100:ffff gw ::100:1"),
	Entry("the end of IPv6", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0/124",
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"+
			" gw ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff1"))

var _ = DescribeTable("tries the addresses of a set", func(s ranges.Set, last, want string) {
	addr, _ := netip.ParseAddr(last)
	var runs []string
	var begin, end netip.Addr
	for a := range s.Candidates(addr) {
		if begin.IsValid() && a == end.Next() {
			runs = runs[:len(runs)-1]
		} else {
			begin = a
		}
		runs, end = append(runs, begin.String()+"-"+a.String()), a
	}
	Expect(strings.Join(runs, " ")).To(Equal(want))
},
	Entry("from the start", set("10.0.0.0/29"), "", "10.0.0.2-10.0.0.6"),
	Entry("after the last one, around to it", set("10.0.0.0/29"), "10.0.0.4", "10.0.0.5-10.0.0.6 10.0.0.2-10.0.0.4"),
	Entry("after the start", set("10.0.0.0/29 gw 10.0.0.6"), "10.0.0.1", "10.0.0.2-10.0.0.5 10.0.0.1-10.0.0.1"),
	Entry("from the start, if the last one is in no range now", set("10.0.0.0/29"), "10.0.9.4", "10.0.0.2-10.0.0.6"),
	Entry("after an address that is the gateway now", set("10.0.0.0/29 gw 10.0.0.4"), "10.0.0.4",
		"10.0.0.5-10.0.0.6 10.0.0.1-10.0.0.3"),
	Entry("except a gateway in the middle", set("10.0.0.0/29 gw 10.0.0.4"), "", "10.0.0.1-10.0.0.3 10.0.0.5-10.0.0.6"),
	Entry("without a gateway in it", set("10.0.0.0/29 gw 192.0.2.1"), "", "10.0.0.1-10.0.0.6"),
	Entry("except gateways of other ranges",
		set("10.0.0.0/29", "10.0.1.0/29 gw 10.0.0.4", "10.0.2.0/29 10.0.2.6-10.0.2.6 gw 10.0.0.3"), "10.0.0.4",
		"10.0.0.5-10.0.0.6 10.0.1.1-10.0.1.6 10.0.2.6-10.0.2.6 10.0.0.2-10.0.0.2"),
	Entry("which is only the gateway", set("10.0.0.0/29 10.0.0.1-10.0.0.1"), "", ""),
	Entry("which has one address, the last one",
		set("10.0.0.0/29 10.0.0.3-10.0.0.3"), "10.0.0.3", "10.0.0.3-10.0.0.3"),
	Entry("in all of its ranges",
		set("10.0.0.0/29 10.0.0.2-10.0.0.4", "10.0.1.0/29", "10.0.2.0/29 10.0.2.3-10.0.2.3"), "10.0.1.3",
		"10.0.1.4-10.0.1.6 10.0.2.3-10.0.2.3 10.0.0.2-10.0.0.4 10.0.1.2-10.0.1.3"),
	Entry("at the top of IPv4", set("255.255.255.252/30 255.255.255.252-255.255.255.255"), "255.255.255.255",
		"255.255.255.252-255.255.255.252 255.255.255.254-255.255.255.255"),
	Entry("at the top of IPv6", set("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc/126"),
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"))

// FuzzConfig searches for accepted configurations with a range that yields an address outside itself or its gateway.
func FuzzConfig(f *testing.F) {
	for _, conf := range []string{
		`{"ipam":{"ranges":[[{"subnet":"10.1.2.0/24"}],[{"subnet":"2001:db8::/64","rangeStart":"2001:db8::ffff"}]]}}`,
		`{"ipam":{"subnet":"255.255.255.252/30","rangeEnd":"255.255.255.255","gateway":"255.255.255.255"}}`,
		`{"ipam":{"subnet":"::/0","rangeStart":"::"},` +
			`"runtimeConfig":{"ips":["::1"],"ipRanges":[[{"subnet":"0.0.0.0/0"}]]}}`,
		`{"ipam":{"subnet":"::100:0/112"},"args":{"cni":{"ips":["::100:5/3"]}}}`,
		`{"ipam":{"ranges":[[]],"routes":[{"dst":"x"}]}}`,
	} {
		f.Add([]byte(conf), "IP=10.1.2.3", "10.1.2.3")
	}
	f.Fuzz(func(t *testing.T, conf []byte, args, lastText string) {
		cfg, err := Plugin().Parse(&skel.Request{Conf: conf, Args: args, Version: "1.1.0"})
		if err != nil {
			if code := cni.AsError(err).Code; code != cni.CodeConfig && code != cni.CodeDecode &&
				code != cni.CodeEnvironment {
				t.Fatalf("code %d: %v", code, err)
			}
			return
		}
		last, _ := netip.ParseAddr(lastText)
		for _, set := range cfg.sets {
			seen := map[netip.Addr]bool{}
			for a := range set.Candidates(last) {
				if _, ok := set.RangeOf(a); !ok || set.IsGateway(a) || seen[a] {
					t.Fatalf("%s after %s: %s", set, last, a)
				}
				if seen[a] = true; len(seen) == 1000 {
					break
				}
			}
		}
	})
}

// FuzzCall serves fuzzed calls.
func FuzzCall(f *testing.F) {
	Fuzz{
		Plugin: Plugin().Untyped(),
		Confs: []string{
			`{"cniVersion":"1.1.0","name":"net","ipam":{"type":"host-local","dataDir":"/run/leases",
				"ranges":[[{"subnet":"10.1.0.0/29"}],[{"subnet":"fd00::/64"}]],
				"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0","mtu":1400,"table":5}],
				"resolvConf":"/etc/resolv.conf","statusOnExhaustion":"fail"},"cni.dev/valid-attachments":[]}`,
			`{"cniVersion":"0.3.1","name":"net","ipam":{"dataDir":"/run/leases","subnet":"10.2.0.0/24",
				"rangeStart":"10.2.0.5","rangeEnd":"10.2.0.9","gateway":"10.2.0.1"},
				"args":{"cni":{"ips":["10.2.0.7"]}},
				"cni.dev/valid-attachments":[{"containerID":"one","ifname":"eth0"}]}`,
			`{"name":"net","ipam":{"dataDir":"/run/leases","ranges":[]},
				"capabilities":{"ipRanges":true},
				"runtimeConfig":{"ipRanges":[[{"subnet":"10.3.0.0/30"}]],"ips":["10.3.0.2/30"]}}`,
			`{"cniVersion":"1.1.0","name":"net","ipam":{"dataDir":"/run/leases","subnet":"10.1.0.0/29"},
				"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/29"}]}}`,
			`{"cniVersion":"1.1.0","name":"net","ipam":{"dataDir":"/proc/self/fd","subnet":"10.1.0.0/29"},
				"cni.dev/valid-attachments":null}`,
		},
	}.Run(f)
}

// FuzzFiles adds a fuzzed entry of any type to the lease directory. If the entry has an owner, it must not change and
// its address must not be assigned.
func FuzzFiles(f *testing.F) {
	f.Add(uint8(0), "10.1.0.2", []byte("other\r\neth0"), []byte("10.1.0.3"), []byte(indexMagic),
		[]byte("nameserver 10.1.0.1\n"))
	f.Add(uint8(0), "10.1.0.2", []byte("one\r\neth0"), []byte("10.1.0.99\n"), []byte(indexMagic),
		[]byte("search\noptions a b"))
	f.Add(uint8(0), "10.1.0.2", []byte(" \x00\r\n"), []byte("::"), bytes.Repeat([]byte{0xff}, 128), []byte("domain"))
	f.Add(uint8(0), "010.1.0.2", []byte("one"), []byte("x"), []byte{0}, []byte("#"))
	for kind := range uint8(4) {
		f.Add(kind, "10.1.0.2", []byte("10.1.0.3"), []byte(""), []byte(""), []byte("; nameserver"))
		f.Add(kind, "lock", []byte("/etc/passwd"), []byte(""), []byte(""), []byte(""))
		f.Add(kind, "last_reserved_ip.0", []byte("10.1.0.3"), []byte(""), []byte(""), []byte(""))
	}
	f.Fuzz(func(t *testing.T, kind uint8, name string, content, last, index, resolv []byte) {
		base := t.TempDir()
		write(t, base+"/net/last_reserved_ip.0", last)
		write(t, base+"/.hawser/net", index)
		write(t, base+"/resolv.conf", resolv)
		if strings.Contains(name, "/") || !plantEntry(kind, base+"/net/"+name, string(content)) {
			t.Skip("a name that no file can have")
		}
		before := foreignLeases(readLeases(t, base))
		for _, command := range []string{"ADD", "CHECK", "STATUS", "ADD", "DEL", "GC", "DEL"} {
			if owner, taken := before[fuzzCall(t, base, command, "one")]; taken {
				t.Fatalf("assigned an address of %q", owner)
			}
		}
		if after := foreignLeases(readLeases(t, base)); !maps.Equal(before, after) {
			t.Fatalf("leases of other owners were\n%q and are\n%q", before, after)
		}
	})
}

func write(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, content, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// plantEntry creates a file, a symbolic link, a directory or a FIFO.
func plantEntry(kind uint8, path, content string) bool {
	_ = os.Remove(path)
	switch kind {
	case 0:
		return os.WriteFile(path, []byte(content), 0o600) == nil
	case 1:
		return os.Symlink(content, path) == nil
	case 2:
		return os.Mkdir(path, 0o755) == nil
	case 3:
		return syscall.Mkfifo(path, 0o600) == nil
	}
	return false
}

// FuzzIndex damages a current index.
func FuzzIndex(f *testing.F) {
	header := len(indexMagic) + 37 + 34 // without stamp and count
	f.Add(uint16(header), []byte{0xff})
	f.Add(uint16(header+8), []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Add(uint16(header+8), []byte{0})
	f.Add(uint16(header+16), make([]byte, entrySize))
	f.Add(uint16(header+16), bytes.Repeat([]byte{1}, 2*entrySize))
	f.Fuzz(func(t *testing.T, at uint16, damage []byte) {
		base := t.TempDir()
		fuzzCall(t, base, "ADD", "a")
		fuzzCall(t, base, "ADD", "b")
		file := base + "/.hawser/net"
		index, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if int(at) < len(index) {
			copy(index[at:], damage)
		}
		given := readLeases(t, base)
		write(t, file, index)
		for _, id := range []string{"c", "d", "e", "f"} { // one more than the free addresses
			if owner, taken := given[fuzzCall(t, base, "ADD", id)]; taken {
				t.Fatalf("assigned an address of %q", owner)
			}
			given = readLeases(t, base)
		}
		for _, command := range []string{"CHECK", "STATUS", "DEL", "GC"} {
			fuzzCall(t, base, command, "b")
		}
	})
}

// fuzzCall serves a call, checks that the answer keeps the contract, and returns the assigned address.
func fuzzCall(t *testing.T, base, command, id string) string {
	t.Helper()
	conf := `{"cniVersion":"1.1.0","name":"net","ipam":{"subnet":"10.1.0.0/29","dataDir":"` + base +
		`","resolvConf":"` + base + `/resolv.conf"},` +
		`"cni.dev/valid-attachments":[{"containerID":"other","ifname":"eth0"}]}`
	if _, err := os.Stat(base + "/resolv.conf"); err != nil {
		conf = strings.Replace(conf, `"resolvConf"`, `"-"`, 1)
	}
	var out, errs bytes.Buffer
	hang := time.AfterFunc(nstest.Patience(time.Minute), func() { panic("hangs") })
	defer hang.Stop()
	code := skel.Run(context.Background(), Plugin(), skel.Env{
		Stdin: strings.NewReader(conf), Stdout: &out, Stderr: &errs,
		Vars: []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_NETNS=/x", "CNI_IFNAME=eth0"}})
	a := Answer{Code: code, Stdout: out.String(), Stderr: errs.String()}
	if err := a.Verdict(command); err != nil {
		t.Fatalf("%s: %v\n%s\n%s", command, err, a.Stdout, a.Stderr)
	}
	if command != "ADD" || code != 0 {
		return ""
	}
	var r Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || len(r.IPs) != 1 {
		t.Fatal(err, a.Stdout)
	}
	return r.IPs[0].Address
}

// readLeases returns the addresses that have an owner, spelled as in results.
func readLeases(t *testing.T, base string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(base, "net"))
	if err != nil {
		t.Fatal(err)
	}
	held := map[string]string{}
	for _, e := range entries {
		owner := e.Type().String() // other kinds of entries must not be assigned either
		if e.Type().IsRegular() {
			data, err := os.ReadFile(filepath.Join(base, "net", e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			owner = ownerOf(data)
		}
		if addr, err := netip.ParseAddr(e.Name()); err == nil && addr.String() == e.Name() && owner != "" {
			held[addr.String()+"/29"] = owner
		}
	}
	return held
}

// foreignLeases returns the leases that neither DEL of "one" nor GC may change.
func foreignLeases(leases map[string]string) map[string]string {
	maps.DeleteFunc(leases, func(_, owner string) bool {
		id, ifName, exact := parseOwner(owner)
		return owner == "one" || exact && cni.ValidName(id) && cni.ValidIfName(ifName) &&
			(id != "other" || ifName != "eth0")
	})
	return leases
}
