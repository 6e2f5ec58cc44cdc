package clusterlocal

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
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
func request(ipam string) *skel.Request {
	return &skel.Request{
		Attachment: cni.Attachment{Network: "net", ContainerID: "c1", IfName: "eth0"}, Version: "1.1.0",
		Conf: fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","ipam":{%s}}`, ipam)}
}

const slash24 = `"ranges":[[{"subnet":"10.1.2.0/24"}]]`

var _ = DescribeTable("what is refused", func(want, ipam string) {
	_, err := Plugin().Parse(request(slash24 + "," + ipam))
	Expect(Problems(err)).To(ConsistOf(HavePrefix(want)))
},
	Entry("a space", `7 ipam.space: "Shop" must have 1 to 63`, `"space":"Shop"`),
	Entry("a space that is a path", `7 ipam.space: "../x" must have 1 to 63`, `"space":"../x"`),
	Entry("a space that ends in a hyphen", `7 ipam.space: "shop-" must have 1 to 63`, `"space":"shop-"`),
	Entry("a space of 64 letters", "7 ipam.space: \""+strings.Repeat("a", 64)+"\" must have 1 to 63",
		`"space":"`+strings.Repeat("a", 64)+`"`),
	Entry("a node that begins with a dot", `7 ipam.node: ".a" is not a valid node name`, `"node":".a"`),
	Entry("a node", `7 ipam.node: "a b" is not a valid node name`, `"node":"a b"`),
	Entry("a kubeconfig", `7 ipam.kubeconfig: "kubelet.conf" is not below /etc`, `"kubeconfig":"kubelet.conf"`),
	Entry("a container's kubeconfig", `7 ipam.kubeconfig: "/var/lib/kubelet/pods/1/k" is not below /etc`,
		`"kubeconfig":"/var/lib/kubelet/pods/1/k"`),
	Entry("a kubeconfig by a way out of /etc", `7 ipam.kubeconfig: "/etc/../proc/1/root/k" is not below /etc`,
		`"kubeconfig":"/etc/../proc/1/root/k"`),
	Entry("reclaim", `7 ipam.reclaim: "always" must be "deleted-nodes"`, `"reclaim":"always"`),
	Entry("statusOnStoreDown", `7 ipam.statusOnStoreDown: "no" must be "ignore"`, `"statusOnStoreDown":"no"`),
	Entry("exclude", `7 ipam.exclude[0]: "x" is not an address`, `"exclude":["x"]`),
	Entry("all excluded", `7 ipam.exclude: leaves no address of ipam.ranges[0][0]`, `"exclude":["10.1.2.0/24"]`))

var _ = It("refuses names that are too long for a lease", func() {
	req := request(slash24)
	req.Network = strings.Repeat("n", 254)
	req.Args = "K8S_POD_NAMESPACE=a;K8S_POD_NAME=" + strings.Repeat("p", 254)
	_, err := Plugin().Parse(req)
	Expect(Problems(err)).To(ConsistOf(ContainSubstring("is longer than 253 bytes, the limit of a lease"),
		"4 CNI_ARGS K8S_POD_NAME: is longer than 253 bytes"))
})

// setOf parses a set of ranges of the form "first-last[ gw gateway]".
func setOf(texts ...string) (s ranges.Set) {
	for _, t := range texts {
		words := strings.Fields(t)
		first, last, _ := strings.Cut(words[0], "-")
		r := ranges.Range{First: netip.MustParseAddr(first), Last: netip.MustParseAddr(last)}
		if len(words) > 1 {
			r.Gateway = netip.MustParseAddr(words[2])
		}
		s = append(s, r)
	}
	return s
}

var _ = DescribeTable("candidates are all addresses of a set, each once, and no gateway", func(want int,
	set ranges.Set) {
	seen := map[netip.Addr]bool{}
	for a := range candidates(set, "seed") {
		_, ok := set.RangeOf(a)
		Expect(ok).To(BeTrue(), a.String())
		Expect(set.IsGateway(a)).To(BeFalse())
		Expect(seen).NotTo(HaveKey(a))
		if seen[a] = true; len(seen) == want {
			break
		}
	}
	Expect(seen).To(HaveLen(want))
},
	Entry("one", 1, setOf("10.0.0.1-10.0.0.1")),
	Entry("a /24", 253, setOf("10.0.0.1-10.0.0.254 gw 10.0.0.1")),
	Entry("two ranges", 5, setOf("10.0.0.1-10.0.0.3 gw 10.0.1.9", "10.0.1.7-10.0.1.9")),
	Entry("only a gateway", 0, setOf("10.0.0.1-10.0.0.1 gw 10.0.0.1")),
	Entry("a /64, the first thousand", 1000, setOf("2001:db8::1-2001:db8::ffff:ffff:ffff:ffff gw 2001:db8::1")),
	Entry("all of IPv6", 1000, setOf("::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")))

var _ = It("candidates of two seeds hardly meet", func() {
	set := setOf("10.0.0.0-10.0.255.255")
	seen := map[netip.Addr]bool{}
	for i := range 256 {
		for a := range candidates(set, fmt.Sprint(i)) {
			seen[a] = true
			break
		}
	}
	Expect(len(seen)).To(BeNumerically(">", 250))
})

var _ = Describe("under the name whereabouts", Label("cluster-whereabouts"), func() {
	parse := func(ipam string) (string, error) {
		cfg, err := Whereabouts().Parse(request(ipam))
		if err != nil {
			return "", err
		}
		words := []string{cfg.space, cfg.kubeconfig}
		for _, s := range cfg.sets {
			words = append(words, s.String())
			if gw := s[0].Gateway; gw.IsValid() {
				words = append(words, "gw "+gw.String())
			}
		}
		for _, ip := range cfg.staticIPs {
			words = append(words, "static "+ip.Address.String())
		}
		return strings.Join(words, "; "), nil
	}
	const at = "default; /etc/cni/net.d/whereabouts.d/whereabouts.kubeconfig"

	DescribeTable("its keys are read", func(want, ipam string) { Expect(parse(ipam)).To(Equal(want)) },
		Entry("range, with host bits", at+"; 192.168.2.225-192.168.2.238", `"range":"192.168.2.225/28"`),
		Entry("a run", at+"; 10.0.0.5-10.0.0.9", `"range":"10.0.0.5-10.0.0.9/24"`),
		Entry("a run that begins and ends with what no host may have", at+"; 10.0.0.1-10.0.0.254",
			`"range":"10.0.0.0-10.0.0.255/24"`),
		Entry("a run beside a start and an end", at+"; 10.0.0.5-10.0.0.9",
			`"range":"10.0.0.5-10.0.0.9/24","range_start":"10.0.0.2","range_end":"10.0.0.7"`),
		Entry("start, end, gateway, exclude", at+"; 10.0.0.5-10.0.0.6,10.0.0.8-10.0.0.9; gw 10.0.0.1",
			`"range":"10.0.0.0/24","range_start":"10.0.0.5","range_end":"10.0.0.9",`+
				`"gateway":"10.0.0.1","exclude":["10.0.0.7/32"]`),
		Entry("ipRanges", at+"; 10.0.0.1-10.0.0.254; 2001:db8::1-2001:db8::ffff",
			`"ipRanges":[{"range":"10.0.0.0/24"},{"range":"2001:db8::/112"}]`),
		Entry("exclude, with host bits", at+"; 192.168.2.225-192.168.2.227,192.168.2.232-192.168.2.235,"+
			"192.168.2.237-192.168.2.238",
			`"range":"192.168.2.225/28","exclude":["192.168.2.229/30","192.168.2.236/32"]`),
		Entry("a gateway outside the range", at+"; 2001::1-2001::fff; gw 2001::f:1",
			`"range":"2001::0/116","gateway":"2001::f:1"`),
		Entry("a gateway of one range",
			at+"; 10.0.0.1-10.0.0.2; 10.0.1.1-10.0.1.2; gw 10.0.1.1; 2001:db8::1-2001:db8::ffff",
			`"ipRanges":[{"range":"10.0.0.0/30"},{"range":"10.0.1.0/30"},{"range":"2001:db8::/112"}],`+
				`"gateway":"10.0.1.1"`),
		Entry("a kubeconfig of k3s", "default; /var/lib/rancher/k3s/agent/etc/cni/net.d/k; 10.0.0.1-10.0.0.254",
			`"range":"10.0.0.0/24","kubernetes":{"kubeconfig":"/var/lib/rancher/k3s/agent/etc/cni/net.d/k"}`),
		Entry("network_name, kubeconfig", "shop; /etc/k; 10.0.0.1-10.0.0.254",
			`"range":"10.0.0.0/24","network_name":"shop","kubernetes":{"kubeconfig":"/etc/k"}`),
		Entry("addresses", at+"; static 10.9.9.9/24", `"addresses":[{"address":"10.9.9.9/24","gateway":"10.9.9.1"}]`),
		Entry("what only whereabouts needs", at+"; 10.0.0.1-10.0.0.254",
			`"range":"10.0.0.0/24","leader_lease_duration":1500,"datastore":"kubernetes","log_file":"/x",`+
				`"node_slice_size":"/26","reconciler_cron_expression":"30 4 * * *","enable_overlapping_ranges":true`))

	DescribeTable("is refused", func(want, ipam string) {
		_, err := parse(ipam)
		Expect(Problems(err)).To(ConsistOf(HavePrefix(want)))
	},
		Entry("etcd", `7 ipam.etcd_host: etcd is not supported`,
			`"range":"10.0.0.0/24","etcd_host":"10.0.0.1:2379"`),
		Entry("no range", `7 ipam.range: is missing`, `"type":"whereabouts"`),
		Entry("no network", `7 ipam.range: "x" is not an address in CIDR notation`, `"range":"x"`),
		Entry("the last address of IPv4", `7 ipam.range: "255.255.255.255/32" has no address`,
			`"range":"255.255.255.255/32"`),
		Entry("the last address of IPv6", `7 ipam.range: "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128" has no address`,
			`"range":"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128"`),
		Entry("a start outside", `7 ipam.range_start: 10.0.1.1 is not in 10.0.0.0/24`,
			`"range":"10.0.0.0/24","range_start":"10.0.1.1"`),
		Entry("exclude", `7 ipam.exclude[0]: "x" is not an address`, `"range":"10.0.0.0/24","exclude":["x"]`),
		Entry("a gateway of the other family", `7 ipam.gateway: 2001:db8::1 has another address family`,
			`"range":"10.0.0.0/24","gateway":"2001:db8::1"`),
		Entry("an invalid object name", `7 ipam.network_name: "a_b" must have`,
			`"range":"10.0.0.0/24","network_name":"a_b"`),
		Entry("a kubeconfig, by its own key", `7 ipam.kubernetes.kubeconfig: "/tmp/k" is not below /etc`,
			`"range":"10.0.0.0/24","kubernetes":{"kubeconfig":"/tmp/k"}`),
		Entry("networks that may overlap", `7 ipam.enable_overlapping_ranges: "false" is not supported`,
			`"range":"10.0.0.0/24","enable_overlapping_ranges":false`))

	It("the flat file has what the configuration does not say", func() {
		Expect(ownDirs()).To(Succeed())
		file := hostFile("/etc/ssl",
			`{"range":"10.0.0.0/24","network_name":"flat","kubernetes":{"kubeconfig":"/etc/flat"}}`)
		Expect(parse(fmt.Sprintf(`"configuration_path":%q,"network_name":"own"`, file))).To(
			Equal("own; /etc/flat; 10.0.0.1-10.0.0.254"))
	})

	It("lists of the configuration replace those of the flat file", func() {
		Expect(ownDirs()).To(Succeed())
		file := hostFile("/etc/ssl", `{"ipRanges":[{"range":"10.0.0.0/24","range_start":"10.0.0.10"},
			{"range":"10.5.0.0/24"}],"addresses":[{"address":"10.9.9.9/24","gateway":"10.9.9.1"}],
			"routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.254"}]}`)
		cfg, err := Whereabouts().Parse(request(fmt.Sprintf(`"configuration_path":%q,
			"ipRanges":[{"range":"10.1.0.0/24"}],"addresses":[{"address":"10.8.8.8/24"}],
			"routes":[{"dst":"10.7.0.0/16"}]`, file)))
		Expect(err).NotTo(HaveOccurred())
		Expect(fmt.Sprint(cfg.sets)).To(Equal("[10.1.0.1-10.1.0.254]"))
		Expect(cfg.staticIPs[0].Gateway.IsValid()).To(BeFalse())
		Expect(cfg.routes[0].GW.IsValid()).To(BeFalse())
	})

	DescribeTable("a file of its own", func(path, want string) {
		Expect(ownDirs()).To(Succeed())
		Expect(syscall.Mkfifo("/etc/ssl/fifo", 0o600)).To(Or(Succeed(), MatchError(syscall.EEXIST)))
		Expect(os.WriteFile("/etc/ssl/shadow", []byte("root:secret\n"), 0o600)).To(Succeed())
		_, err := parse(fmt.Sprintf(`"range":"10.0.0.0/24","configuration_path":%q`, path))
		Expect(Problems(err)).To(ConsistOf(And(HavePrefix("7 ipam.configuration_path: "), ContainSubstring(want),
			Not(ContainSubstring("secret")))))
	},
		Entry("that a container may have written", "/var/lib/kubelet/pods/1/x", "nor a file in /var/lib/kubelet"),
		Entry("beside that place", "/etc/../tmp/x", "is not below /etc"),
		Entry("that never ends", "/etc/ssl/fifo", "not a regular file"),
		Entry("that is a secret is not quoted", "/etc/ssl/shadow", "is not JSON with these keys"))

	It("every verb is served", func() {
		s, n := newNode()
		n.ipam = Object{"type": "whereabouts", "range": "10.30.0.0/29",
			"kubernetes": Object{"kubeconfig": n.kubeconfig}}
		run := func(command string, more ...Object) Answer {
			return n.serveAs(Whereabouts().Untyped(), command, "one", more...)
		}
		r := run("ADD").Added()
		Expect(addressesOf(r)).To(HaveLen(1))
		for _, command := range []string{"CHECK", "STATUS", "GC", "DEL"} {
			a := run(command, valid("one"), Object{"prevResult": json.RawMessage(r.Text)})
			Expect(a.Code).To(BeZero(), a.Stdout)
		}
		Expect(s.leaseNames()).To(BeEmpty())
		Expect(n.records()).To(BeEmpty())
	})
})

// FuzzCandidates searches for a set with a candidate that is outside the set, a gateway, or yielded twice.
func FuzzCandidates(f *testing.F) {
	f.Add("10.1.2.0/24", "10.1.2.1", "10.1.2.128/25", "seed")
	f.Add("2001:db8::/64", "2001:db8::1", "", "")
	f.Add("::/0", "::", "::/1", "x")
	f.Add("255.255.255.255/32", "", "", "x")
	f.Add("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128", "", "", "x")
	f.Fuzz(func(t *testing.T, subnet, gateway, exclude, seed string) {
		p, err := netip.ParsePrefix(subnet)
		if err != nil || p.Addr().Is4In6() {
			t.Skip("not a range that could be lent from")
		}
		r, err := ranges.Wire{Subnet: &subnet, GW: gateway}.Parse("ipam")
		if err != nil { // whereabouts takes more
			if r, err = (wireWhereaboutsRange{Range: subnet}).parse("ipam"); err != nil {
				t.Skip("not a range that could be lent from")
			}
		}
		set := ranges.Set{r}
		if out, err := netip.ParsePrefix(exclude); err == nil && out.Addr().BitLen() == r.First.BitLen() {
			if set = set.Subtract([]netip.Prefix{out.Masked()}); len(set) == 0 {
				t.Skip("not a range that could be lent from")
			}
		}
		seen := map[netip.Addr]bool{}
		for a := range candidates(set, seed) {
			if _, ok := set.RangeOf(a); !ok || set.IsGateway(a) || seen[a] {
				t.Fatalf("%s of %s", a, set)
			}
			if seen[a] = true; len(seen) == 300 {
				break
			}
		}
	})
}

// FuzzAnswers fuzzes the server's answer to one method. Each call's answer must keep the contract, and with a normal
// server, DEL and GC must leave nothing.
func FuzzAnswers(f *testing.F) {
	for i, text := range []string{"<html>", "null", `{"kind":"Address"}`,
		`{"kind":"Status","code":409,"reason":"AlreadyExists"}`,
		`{"kind":"Status","code":404,"reason":"NotFound","details":{"name":"default.10.30.0.2"}}`,
		`{"kind":"AddressList","metadata":{"continue":"x"},"items":[{"metadata":{"name":"default.10.30.0.2"}}]}`,
		`{"kind":"AddressList","items":[{"metadata":{"name":"a.b"},"spec":{"network":"net","node":"node-a"}}]}`} {
		for method := range uint8(3) {
			f.Add(method, uint16([]int{200, 201, 404, 409}[i%4]), text)
		}
	}
	if err := errors.Join(loopback(), ownDirs(), os.MkdirAll("/var/lib/kubelet", 0o755)); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, method uint8, code uint16, text string) {
		if code < 200 || code > 999 || code == 429 || code/100 == 5 {
			t.Skip("a code that HTTP does not have, or that is tried again")
		}
		RegisterTestingT(t)
		s := startServer()
		defer s.CloseClientConnections()
		dir := t.TempDir()
		n := node{server: s, name: "node-a", dataDir: dir, kubeconfig: "/var/lib/kubelet/fuzz", network: "net",
			ipam: Object{"ranges": json.RawMessage(ranges8)}, limit: 60 * time.Millisecond}
		if err := os.WriteFile(n.kubeconfig, []byte(s.config("node-a")), 0o600); err != nil {
			t.Fatal(err)
		}
		s.set(failFirst(1, []string{"POST", "GET", "DELETE"}[method%3], says(int(code), text)))
		for _, command := range []string{"ADD", "CHECK", "GC", "DEL"} {
			if err := n.call(command, "one", valid()).Verdict(command); err != nil {
				t.Fatalf("%s: %v", command, err)
			}
		}
		s.set(nil)
		n.limit = nstest.Patience(time.Minute)
		for _, command := range []string{"DEL", "GC"} {
			if a := n.call(command, "one", valid()); a.Code != 0 {
				t.Fatalf("%s: %s", command, a.Stdout)
			}
		}
		if left := s.leaseNames(); len(left) > 0 {
			t.Fatalf("left: %q", left)
		}
	})
}
