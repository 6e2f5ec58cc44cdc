package netplugin_test

import (
	"net/netip"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/netplugin"
	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestNetplugin(t *testing.T) { nstest.RunSpecs(t, "netplugin") }

var _ = DescribeTable("an interface is attached with a link-local address that the result has", func(link string) {
	h := nstest.NewHost()
	h.IP("link add eth0 type veth peer name peer0", "addr add 10.1.0.2/24 dev eth0", "addr add "+link+" dev eth0")
	req := &skel.Request{Attachment: cni.Attachment{Network: "net", ContainerID: "one", IfName: "eth0"}, Netns: h.Path,
		PrevResult: &cni.Result{Interfaces: []cni.Interface{{Name: "eth0", Sandbox: h.Path}}}}
	for _, address := range []string{"10.1.0.2/24", link} {
		ip := cni.IP{Address: netip.MustParsePrefix(address), Interface: new(0)}
		req.PrevResult.IPs = append(req.PrevResult.IPs, ip)
	}
	Expect(netplugin.VerifyAttached(req)).To(Succeed())
	h.IP("addr del " + link + " dev eth0")
	Expect(netplugin.VerifyAttached(req)).To(MatchError(ContainSubstring("does not have the address")))
},
	Entry("of IPv4", "169.254.7.2/16"),
	Entry("of IPv6", "fe80::7/64"),
)

var _ = It("a namespace whose reading takes long delays no other one", func() {
	var all []*skel.Request
	var marks []string
	for _, id := range []string{"slow", "ended", "lives"} {
		all = append(all, &skel.Request{Attachment: cni.Attachment{Network: "net", ContainerID: id, IfName: "eth0"}})
		marks = append(marks, all[len(all)-1].Mark())
	}
	never := make(chan bool)
	DeferCleanup(func() { close(never) })
	Expect(netplugin.AttachedBy(all, marks, func(req *skel.Request) error {
		switch req.ContainerID {
		case "slow":
			<-never
		case "ended":
			return netplugin.ErrEnding
		}
		return nil
	})).To(Equal(map[string]bool{marks[1]: false, marks[2]: true}))
})
