package lifecycle_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// runtime is what a container runtime is to the plugins: a host, libcni with
// a cache, and a network.
type runtime struct {
	host *nstest.Host
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

// newRuntime reads a conflist and finds the plugins that it names.
func newRuntime(host *nstest.Host, conflist string) *runtime {
	GinkgoHelper()
	list, err := libcni.ConfListFromBytes([]byte(conflist))
	Expect(err).NotTo(HaveOccurred())
	return &runtime{host: host, list: list, cni: libcni.NewCNIConfigWithCacheDir([]string{pluginDir()}, GinkgoT().TempDir(), nil)}
}

// pluginDir is a directory with every plugin that the specs use.
func pluginDir() string {
	GinkgoHelper()
	dir := GinkgoT().TempDir()
	for _, name := range []string{"bridge", "host-local", "loopback"} {
		Expect(os.Symlink(nstest.Build(name), filepath.Join(dir, name))).To(Succeed())
	}
	return dir
}

// container is an attachment as the runtime knows it.
type container struct {
	*libcni.RuntimeConf
	netns *nstest.Host
}

func newContainer(id string) container {
	n := nstest.NewNetns()
	return container{netns: n, RuntimeConf: &libcni.RuntimeConf{ContainerID: id, NetNS: n.Path, IfName: "eth0"}}
}

func (r *runtime) do(fn func(context.Context) error) error {
	var err error
	r.host.Do(func() { err = fn(context.Background()) })
	return err
}

func (r *runtime) add(c container) (types.Result, error) {
	var res types.Result
	err := r.do(func(ctx context.Context) (err error) {
		res, err = r.cni.AddNetworkList(ctx, r.list, c.RuntimeConf)
		return err
	})
	return res, err
}

func (r *runtime) check(c container) error {
	return r.do(func(ctx context.Context) error { return r.cni.CheckNetworkList(ctx, r.list, c.RuntimeConf) })
}

func (r *runtime) del(c container) error {
	return r.do(func(ctx context.Context) error { return r.cni.DelNetworkList(ctx, r.list, c.RuntimeConf) })
}

func (r *runtime) status() error {
	return r.do(func(ctx context.Context) error { return r.cni.GetStatusNetworkList(ctx, r.list) })
}

// gc tells the plugins that these containers, and no others, are there.
func (r *runtime) gc(valid ...container) error {
	args := &libcni.GCArgs{}
	for _, c := range valid {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: c.ContainerID, IfName: c.IfName})
	}
	return r.do(func(ctx context.Context) error { return r.cni.GCNetworkList(ctx, r.list, args) })
}

// addresses are those of a result, whatever its version.
func addresses(res types.Result) []string {
	GinkgoHelper()
	newest, err := types100.NewResultFromResult(res)
	Expect(err).NotTo(HaveOccurred())
	var out []string
	for _, ip := range newest.IPs {
		out = append(out, ip.Address.IP.String())
	}
	return out
}

// dualStack is a network with everything that a node usually asks for.
func dualStack(version string) string {
	return fmt.Sprintf(`{
  "cniVersion": %q, "name": "dual",
  "plugins": [{
    "type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
    "ipam": {
      "type": "host-local", "dataDir": "/var/lib/cni/networks",
      "ranges": [[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd00:88::/64"}]]
    }
  }]
}`, version)
}
