package ipam_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/ipam"
)

var _ = Describe("the leases of a network", func() {
	var dir string

	BeforeEach(func() {
		dir = GinkgoT().TempDir()
		Expect(os.MkdirAll(filepath.Join(dir, "net1", "10.1.0.9"), 0o755)).To(Succeed())
		for name, content := range map[string]string{
			"10.1.0.2": "one\r\neth0", "fd00::2": "one\neth0\n", "10.1.0.3": "old", "10.1.0.4": "",
			"10.1.0.5": "a ../b\r\neth0", "last_reserved_ip.0": "10.1.0.3", "lock": "",
		} {
			Expect(os.WriteFile(filepath.Join(dir, "net1", name), []byte(content), 0o600)).To(Succeed())
		}
	})

	conf := func(kind string) []byte {
		return fmt.Appendf(nil, `{"name": "net1", "ipam": {"type": %q, "dataDir": %q}}`, kind, dir)
	}

	It("are host-local's files", func() {
		lease := func(addr, id, ifName string) ipam.Lease {
			return ipam.Lease{AttachmentRef: cni.AttachmentRef{ContainerID: id, IfName: ifName},
				Addr: netip.MustParseAddr(addr)}
		}
		Expect(ipam.Leases(conf("host-local"), "net1")).To(ConsistOf(lease("10.1.0.2", "one", "eth0"),
			lease("fd00::2", "one", "eth0"), lease("10.1.0.3", "old", "")))
	})

	It("are none of another plugin's, of a network without any, and of what is no configuration", func() {
		Expect(ipam.Leases(conf("static"), "net1")).To(BeEmpty())
		Expect(ipam.Leases(conf("host-local"), "net2")).To(BeEmpty())
		Expect(ipam.Leases([]byte("{"), "net1")).To(BeEmpty())
	})

	It("say with the last one of each range set which addresses the network is known to have lent", func() {
		Expect(os.WriteFile(filepath.Join(dir, "net1", "last_reserved_ip.1"), []byte("fd00::7"), 0o600)).To(Succeed())
		known, err := ipam.Known(conf("host-local"), "net1")
		Expect(err).NotTo(HaveOccurred())
		var all []string
		for addr := range known {
			all = append(all, addr.String())
		}
		Expect(all).To(ConsistOf("10.1.0.2", "10.1.0.3", "fd00::2", "fd00::7"))
		Expect(ipam.Known(conf("static"), "net1")).To(BeEmpty())
	})

	It("that cannot be read are an error", func() {
		Expect(os.WriteFile(filepath.Join(dir, "net2"), nil, 0o600)).To(Succeed())
		Expect(ipam.Leases(conf("host-local"), "net2")).Error().To(HaveOccurred())
	})
})
