package cni_test

import (
	"net/netip"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
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
		out := nstest.Must(richResult().Encode(version))
		expectGolden("rich-"+version+".json", out)
	})...)

	DescribeTable("a result without addresses is written as each version wants it", each(func(version string) {
		out := nstest.Must(l2Result().Encode(version))
		expectGolden("l2-"+version+".json", out)
	})...)

	DescribeTable("what was written reads back the same", each(func(version string) {
		for _, r := range []*cni.Result{richResult(), l2Result(), {}} {
			want := asFar(r, version)
			out := nstest.Must(r.Encode(version))
			got := nstest.Must(cni.DecodeResult(out, "9.9.9"))
			Expect(got).To(Equal(want))
			again := nstest.Must(got.Encode(version))
			Expect(string(again)).To(Equal(string(out)))
		}
	})...)

	DescribeTable("what was read in any version is written in any other", each(func(from string) {
		for _, to := range cni.Versions() {
			old := nstest.Must(richResult().Encode(from))
			read := nstest.Must(cni.DecodeResult(old, to))
			out := nstest.Must(read.Encode(to))
			want := nstest.Must(asFar(richResult(), from).Encode(to))
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
		out := nstest.Must(r.Encode(cni.Newest))
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
