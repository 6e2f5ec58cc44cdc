package cni_test

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

func TestCNI(t *testing.T) { nstest.RunSpecs(t, "pkg/cni") }

// expectGolden compares got with a file below testdata.
func expectGolden(name string, got []byte) {
	GinkgoHelper()
	file := filepath.Join("testdata", name)
	if *update {
		Expect(os.MkdirAll(filepath.Dir(file), 0o755)).To(Succeed())
		Expect(os.WriteFile(file, append(got, '\n'), 0o644)).To(Succeed())
		return
	}
	want := nstest.Must(os.ReadFile(file))
	Expect(string(got)+"\n").To(Equal(string(want)), "%s (update with go test ./pkg/cni -update)", file)
}

func ptr[T any](v T) *T { return &v }

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// richResult has every field that a result can have.
func richResult() *cni.Result {
	return &cni.Result{
		Interfaces: []cni.Interface{
			{Name: "cni0", MAC: "0a:58:0a:f4:00:01", MTU: 1450},
			{Name: "veth1a2b3c4d", MAC: "0a:58:0a:f4:00:02", MTU: 1450},
			{Name: "eth0", MAC: "0a:58:0a:f4:00:03", MTU: 1450, Sandbox: "/run/netns/blue",
				SocketPath: "/run/vhost/<a&b>.sock", PCIID: "0000:03:00.1"},
		},
		IPs: []cni.IP{
			{Address: prefix("10.244.0.5/24"), Gateway: addr("10.244.0.1"), Interface: ptr(2)},
			{Address: prefix("fd00::5/64"), Gateway: addr("fd00::1"), Interface: ptr(2)},
			{Address: prefix("192.0.2.9/32"), Interface: ptr(0)},
			{Address: prefix("fd01::9/128")},
		},
		Routes: []cni.Route{
			{Dst: prefix("0.0.0.0/0"), GW: addr("10.244.0.1"), MTU: 1400, AdvMSS: 1360, Priority: 100,
				Table: ptr[uint32](254), Scope: ptr(0)},
			{Dst: prefix("::/0")},
			{Dst: prefix("198.51.100.0/24"), Table: ptr[uint32](0), Scope: ptr(253)},
			{Dst: prefix("fd02::/48"), GW: addr("fd00::2"), MTU: 1280},
		},
		DNS: cni.DNS{
			Nameservers: []string{"10.96.0.10", "fd00::a"}, Domain: "cluster.local",
			Search: []string{"default.svc.cluster.local", "svc.cluster.local"}, Options: []string{"ndots:5"},
		},
	}
}

// l2Result is that of an attachment without addresses.
func l2Result() *cni.Result {
	return &cni.Result{Interfaces: []cni.Interface{
		{Name: "veth1a2b3c4d", MAC: "0a:58:0a:f4:00:02"},
		{Name: "eth0", MAC: "0a:58:0a:f4:00:03", Sandbox: "/run/netns/blue"},
	}}
}
