package hostile_test

import (
	"os"
	"os/exec"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// lxc runs portmap (descriptor 3, for its directory may be closed to others) as root of a user namespace that was made
// by the same call as
// the network namespace, as LXC makes its containers: nobody owns the files below
// /proc/net.
const lxc = `
mount -t tmpfs tmpfs /run
mkdir -p /run/netns
! cat /proc/net/ip_tables_names 2>/dev/null || { echo can be read; exit 1; }
ip netns add pod
export CNI_CONTAINERID=one CNI_NETNS=/run/netns/pod CNI_IFNAME=eth0
net='{"cniVersion":"1.0.0","name":"net","type":"portmap",
"runtimeConfig":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},
"prevResult":{"interfaces":[{"name":"eth0","sandbox":"/run/netns/pod"}],
"ips":[{"address":"10.1.0.2/24","interface":0}]}}'
each() { for verb in ADD CHECK DEL; do CNI_COMMAND=$verb /proc/self/fd/3 <<<"$net"; done; }
each
# A kernel without x_tables, or one that does not give them to this namespace.
for program in iptables-legacy-save ip6tables-legacy-save; do
	printf '#!/bin/sh\nexit 1\n' >/run/$program
	chmod +x /run/$program
done
PATH=/run:$PATH each`

var _ = Describe("a container of LXC as host", Label("kernel"), func() {
	It("has its ports published, though its root may not read which x_tables there are", Label("lxc"), func() {
		nstest.Need("nft-inet-nat", "iptables-legacy")
		portmap, err := os.Open(nstest.Build("portmap"))
		Expect(err).NotTo(HaveOccurred())
		defer portmap.Close()
		as := []string{"--reuid=65534", "--regid=65534", "--clear-groups",
			"unshare", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--mount-proc"}
		nstest.NeedOK("user namespaces for others than root", exec.Command("setpriv", append(as, "true")...).Run())
		cmd := exec.Command("setpriv", append(as, "bash", "-euc", lxc)...)
		cmd.Dir, cmd.ExtraFiles = "/", []*os.File{portmap}
		out, err := cmd.CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(out))
	})
})
