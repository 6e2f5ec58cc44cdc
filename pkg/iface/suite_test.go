package iface_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/iface"
	"github.com/hawser-cni/plugins/pkg/ns"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/rtnl"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestIface(t *testing.T) { nstest.RunSpecs(t, "iface") }

// container is a namespace with eth0, down, whose other end veth0 on the host
// is up.
type container struct {
	*nstest.Host
	host   *nstest.Host
	target iface.Target
}

func newContainer() container {
	GinkgoHelper()
	c := container{Host: nstest.NewNetns(), host: nstest.NewHost()}
	c.host.Cmd("ip", "link", "add", "veth0", "type", "veth", "peer", "name", "eth0", "netns", c.Name)
	c.host.SetSysctl("net/ipv6/conf/veth0/accept_dad", "0")
	c.host.Cmd("ip", "link", "set", "veth0", "up")
	n, err := ns.Open(c.Path)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(n.Close)
	conn, err := rtnl.Dial(n)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(conn.Close)
	link, err := conn.Link("eth0")
	Expect(err).NotTo(HaveOccurred())
	c.target = iface.Target{NS: n, Conn: conn, Name: "eth0", Index: link.Index}
	return c
}

// ip runs ip(8) in the container with words separated by blanks.
func (c container) ip(words string) string {
	GinkgoHelper()
	return c.Cmd("ip", strings.Fields(words)...)
}

func (c container) configure(res *cni.Result) error {
	GinkgoHelper()
	ctx, cancel := context.WithTimeout(context.Background(), nstest.Patience(nstest.Hang))
	defer cancel()
	if err := iface.Raise(c.target); err != nil {
		return err
	}
	return iface.Configure(ctx, c.target, res)
}

// result is what a plugin returns: addresses and gateways in pairs ("" =
// none), all of the container's interface, which comes after the host's.
func result(addrsAndGateways ...string) *cni.Result {
	GinkgoHelper()
	res := &cni.Result{Interfaces: []cni.Interface{{Name: "veth0"}, {Name: "eth0", Sandbox: "/run/netns/x"}}}
	for i := 0; i < len(addrsAndGateways); i += 2 {
		ip := cni.IP{Address: netip.MustParsePrefix(addrsAndGateways[i]), Interface: ptr(1)}
		if gw := addrsAndGateways[i+1]; gw != "" {
			ip.Gateway = netip.MustParseAddr(gw)
		}
		res.IPs = append(res.IPs, ip)
	}
	return res
}

func withRoutes(res *cni.Result, routes ...cni.Route) *cni.Result {
	res.Routes = append(res.Routes, routes...)
	return res
}

// to is a route without a gateway of its own.
func to(dst string) cni.Route { return cni.Route{Dst: netip.MustParsePrefix(dst)} }

func via(dst, gw string) cni.Route {
	return cni.Route{Dst: netip.MustParsePrefix(dst), GW: netip.MustParseAddr(gw)}
}

func ptr[T any](v T) *T { return &v }
