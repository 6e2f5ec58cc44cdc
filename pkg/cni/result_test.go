package cni_test

import (
	"encoding/json"
	"net/netip"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
)

// each makes one table entry for each version of the specification.
func each(body any) []any {
	args := []any{body}
	for _, v := range cni.Versions() {
		args = append(args, Entry(v, v))
	}
	return args
}

var _ = Describe("Result", func() {
	It("knows the seven versions", func() {
		Expect(cni.Versions()).To(Equal([]string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}))
	})

	DescribeTable("a rich result is written as each version wants it", each(func(version string) {
		out, err := richResult().Encode(version)
		Expect(err).NotTo(HaveOccurred())
		expectGolden("rich-"+version+".json", out)
		expectSchema(out, version)
	})...)

	DescribeTable("a result without addresses is written as each version wants it", each(func(version string) {
		out, err := l2Result().Encode(version)
		Expect(err).NotTo(HaveOccurred())
		expectGolden("l2-"+version+".json", out)
		expectSchema(out, version)
	})...)

	DescribeTable("what was written reads back the same", each(func(version string) {
		for _, r := range []*cni.Result{richResult(), l2Result(), {}} {
			want := asFar(r, version)
			out, err := r.Encode(version)
			Expect(err).NotTo(HaveOccurred())
			got, err := cni.DecodeResult(out, "9.9.9")
			Expect(err).NotTo(HaveOccurred())
			Expect(got).To(Equal(want))
			again, err := got.Encode(version)
			Expect(err).NotTo(HaveOccurred())
			Expect(string(again)).To(Equal(string(out)))
		}
	})...)

	DescribeTable("what was read in any version is written in any other", each(func(from string) {
		for _, to := range cni.Versions() {
			old, err := richResult().Encode(from)
			Expect(err).NotTo(HaveOccurred())
			read, err := cni.DecodeResult(old, to)
			Expect(err).NotTo(HaveOccurred())
			out, err := read.Encode(to)
			Expect(err).NotTo(HaveOccurred())
			expectSchema(out, to)
			want, err := asFar(richResult(), from).Encode(to)
			Expect(err).NotTo(HaveOccurred())
			Expect(string(out)).To(Equal(string(want)), "%s to %s", from, to)
		}
	})...)

	It("refuses to write a version that nobody released", func() {
		for _, v := range []string{"", "0.3", "0.5.0", "1.2.0", "v1.0.0", "1.0.0 "} {
			_, err := richResult().Encode(v)
			Expect(err).To(MatchError(ContainSubstring("%q", v)))
			Expect(cni.AsError(err).Code).To(Equal(cni.CodeIncompatibleVersion))
		}
	})

	It("writes a gateway that is IPv4 in IPv6 as IPv4", func() {
		r := cni.Result{IPs: []cni.IP{{Address: prefix("10.0.0.5/8"), Gateway: addr("::ffff:10.0.0.1")}}}
		out, err := r.Encode(cni.Newest)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(out)).To(ContainSubstring(`"gateway": "10.0.0.1"`))
	})

	It("clones with interfaces, addresses and routes of its own", func() {
		c := richResult()
		d := c.Clone()
		d.Interfaces[0].Name, d.IPs[1].Gateway, d.IPs[0].Interface, d.Routes[1].MTU = "x", netip.Addr{}, nil, 9
		Expect(c).To(Equal(richResult()))
	})

	It("tells prefixes and gateways", func() {
		r := richResult()
		Expect(cni.Addresses(r.IPs)).To(HaveExactElements(prefix("10.244.0.5/24"), prefix("fd00::5/64"),
			prefix("192.0.2.9/32"), prefix("fd01::9/128")))
		Expect(r.Gateway(true)).To(Equal(addr("10.244.0.1")))
		Expect(r.Gateway(false)).To(Equal(addr("fd00::1")))
		Expect(l2Result().Gateway(true).IsValid()).To(BeFalse())
		late := cni.Result{IPs: []cni.IP{{Address: prefix("fd00::5/64")},
			{Address: prefix("fd01::5/64"), Gateway: addr("fd01::1")}}}
		Expect(late.Gateway(false)).To(Equal(addr("fd01::1")))
	})

	It("tells what belongs to the container's interface", func() {
		r := richResult()
		eth0, ok := r.ContainerInterface("eth0")
		Expect(ok).To(BeTrue())
		Expect(eth0).To(Equal(r.Interfaces[2]))
		_, ok = r.ContainerInterface("cni0")
		Expect(ok).To(BeFalse(), "it is on the host")
		Expect(cni.Addresses(r.ContainerIPs("eth0"))).To(HaveExactElements(prefix("10.244.0.5/24"),
			prefix("fd00::5/64"), prefix("fd01::9/128")))
		r.Interfaces[2].Sandbox = ""
		Expect(cni.Addresses(r.ContainerIPs("eth0"))).To(HaveExactElements(prefix("fd01::9/128")))
		Expect((*cni.Result)(nil).ContainerIPs("eth0")).To(BeEmpty())
	})
})

// asFar is what version has room for.
func asFar(r *cni.Result, version string) *cni.Result {
	r = r.Clone()
	old := strings.HasPrefix(version, "0.")
	for i := range r.Interfaces {
		if old {
			r.Interfaces[i].MTU, r.Interfaces[i].SocketPath, r.Interfaces[i].PCIID = 0, "", ""
		}
	}
	if version != "0.1.0" && version != "0.2.0" {
		return r
	}
	out := &cni.Result{DNS: r.DNS}
	for _, v4 := range []bool{true, false} {
		for _, ip := range r.IPs {
			if ip.Address.Addr().Is4() != v4 {
				continue
			}
			ip.Interface = nil
			out.IPs = append(out.IPs, ip)
			for _, route := range r.Routes {
				if route.Dst.Addr().Is4() == v4 {
					out.Routes = append(out.Routes, cni.Route{Dst: route.Dst, GW: route.GW})
				}
			}
			break
		}
	}
	return out
}

// expectSchema holds a document against what the published schema of results
// and the text of the specification require of its version.
func expectSchema(doc []byte, version string) {
	GinkgoHelper()
	var top map[string]any
	Expect(json.Unmarshal(doc, &top)).To(Succeed())
	Expect(top).To(HaveKeyWithValue("cniVersion", version))
	early := version == "0.1.0" || version == "0.2.0"
	keys := []string{"cniVersion", "interfaces", "ips", "routes", "dns"}
	if early {
		keys = []string{"cniVersion", "ip4", "ip6", "dns"}
	}
	onlyKeys(top, keys...)
	if dns, ok := top["dns"].(map[string]any); ok {
		onlyKeys(dns, "nameservers", "domain", "search", "options")
	}
	interfaces := objects(top["interfaces"])
	for _, i := range interfaces {
		Expect(i).To(HaveKeyWithValue("name", Not(BeEmpty())))
		if mac, ok := i["mac"]; ok {
			Expect(mac).To(MatchRegexp(`^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$`))
		}
		if strings.HasPrefix(version, "0.") {
			onlyKeys(i, "name", "mac", "sandbox")
		} else {
			onlyKeys(i, "name", "mac", "mtu", "sandbox", "socketPath", "pciID")
			numberIn(i, "mtu", 68, 65535)
		}
	}
	for _, ip := range objects(top["ips"]) {
		a := netip.MustParsePrefix(ip["address"].(string))
		numberIn(ip, "interface", 0, len(interfaces)-1)
		if strings.HasPrefix(version, "0.") {
			Expect(ip).To(HaveKeyWithValue("version", map[bool]string{true: "4", false: "6"}[a.Addr().Is4()]))
			onlyKeys(ip, "version", "interface", "address", "gateway")
		} else {
			onlyKeys(ip, "interface", "address", "gateway")
		}
	}
	expectRoutes(objects(top["routes"]), "dst", "gw", "mtu", "advmss", "priority", "table", "scope")
	for _, key := range []string{"ip4", "ip6"} {
		if ip, ok := top[key].(map[string]any); ok {
			onlyKeys(ip, "ip", "gateway", "routes")
			Expect(netip.MustParsePrefix(ip["ip"].(string)).Addr().Is4()).To(Equal(key == "ip4"))
			expectRoutes(objects(ip["routes"]), "dst", "gw")
		}
	}
}

func expectRoutes(routes []map[string]any, keys ...string) {
	GinkgoHelper()
	for _, r := range routes {
		netip.MustParsePrefix(r["dst"].(string))
		onlyKeys(r, keys...)
		numberIn(r, "mtu", 68, 65535)
		numberIn(r, "advmss", 1, 65535)
	}
}

func objects(list any) []map[string]any {
	var out []map[string]any
	for _, o := range asList(list) {
		out = append(out, o.(map[string]any))
	}
	return out
}

func asList(v any) []any {
	list, _ := v.([]any)
	return list
}

func onlyKeys(object map[string]any, keys ...string) {
	GinkgoHelper()
	for k := range object {
		Expect(keys).To(ContainElement(k))
	}
}

func numberIn(object map[string]any, key string, least, most int) {
	GinkgoHelper()
	if n, ok := object[key]; ok {
		Expect(n).To(And(BeNumerically(">=", least), BeNumerically("<=", most)), key)
	}
}
