package clients_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	gocni "github.com/containerd/go-cni"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/cri-o/ocicni/pkg/ocicni"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/test/pods"
)

// library is what all libraries can do.
type library interface {
	add(ctx context.Context, p pod) ([]string, error)
	check(ctx context.Context, p pod) error
	del(ctx context.Context, p pod) error
	status(ctx context.Context) error
	gc(ctx context.Context, valid []pod) error
}

func open(name, netconf, plugins string) (library, error) {
	switch name {
	case "libcni":
		list, err := libcni.NetworkConfFromFile(filepath.Join(netconf, conflistName))
		return libCNI{libcni.NewCNIConfig([]string{plugins}, nil), list}, err
	case "ocicni":
		l, err := ocicni.InitCNINoInotify("", netconf, "", plugins)
		return criO{l}, err
	}
	l, err := gocni.New(gocni.WithMinNetworkCount(2), gocni.WithPluginConfDir(netconf),
		gocni.WithPluginDir([]string{plugins}))
	if err == nil {
		err = l.Load(gocni.WithLoNetwork, gocni.WithDefaultConf)
	}
	return goCNI{l}, err
}

type libCNI struct {
	*libcni.CNIConfig
	list *libcni.NetworkConfigList
}

func (l libCNI) conf(p pod) *libcni.RuntimeConf {
	args := map[string]any{"portMappings": p.Ports}
	maps.Copy(args, p.More)
	return &libcni.RuntimeConf{ContainerID: p.ID, NetNS: p.Netns, IfName: cmp.Or(p.IfName, "eth0"),
		CapabilityArgs: args}
}

// add brings up lo as well, which other runtimes do in ways of their own.
func (l libCNI) add(ctx context.Context, p pod) ([]string, error) {
	lo, err := libcni.ConfListFromBytes(
		[]byte(`{"cniVersion": "1.0.0", "name": "lo", "plugins": [{"type": "loopback"}]}`))
	if err != nil {
		return nil, err
	}
	conf := l.conf(p)
	conf.IfName = "lo"
	if _, err := l.AddNetworkList(ctx, lo, conf); err != nil {
		return nil, err
	}
	res, err := l.AddNetworkList(ctx, l.list, l.conf(p))
	if err != nil {
		return nil, err
	}
	if res.Version() != l.list.CNIVersion {
		return nil, fmt.Errorf("a result of version %s", res.Version())
	}
	return addresses(res)
}

func (l libCNI) check(ctx context.Context, p pod) error {
	return l.CheckNetworkList(ctx, l.list, l.conf(p))
}

func (l libCNI) del(ctx context.Context, p pod) error {
	return l.DelNetworkList(ctx, l.list, l.conf(p))
}

func (l libCNI) status(ctx context.Context) error { return l.GetStatusNetworkList(ctx, l.list) }

func (l libCNI) gc(ctx context.Context, valid []pod) error {
	args := &libcni.GCArgs{}
	for _, p := range valid {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: p.ID,
			IfName: cmp.Or(p.IfName, "eth0")})
	}
	return l.GCNetworkList(ctx, l.list, args)
}

func addresses(res types.Result) ([]string, error) {
	newest, err := types100.GetResult(res)
	if err != nil {
		return nil, err
	}
	var addrs []string
	for _, ip := range newest.IPs {
		addrs = append(addrs, ip.Address.IP.String())
	}
	return addrs, nil
}

type goCNI struct{ gocni.CNI }

func (l goCNI) options(p pod) []gocni.NamespaceOpts {
	var ports []gocni.PortMapping
	for _, m := range p.Ports {
		ports = append(ports, gocni.PortMapping{HostPort: m.Host, ContainerPort: m.Container, Protocol: m.Protocol,
			HostIP: m.IP})
	}
	return []gocni.NamespaceOpts{gocni.WithCapabilityPortMap(ports), gocni.WithLabels(map[string]string{
		"IgnoreUnknown": "1", "K8S_POD_NAMESPACE": "default", "K8S_POD_NAME": p.ID,
		"K8S_POD_INFRA_CONTAINER_ID": p.ID})}
}

func (l goCNI) add(ctx context.Context, p pod) ([]string, error) {
	res, err := l.Setup(ctx, p.ID, p.Netns, l.options(p)...)
	if err != nil {
		return nil, err
	}
	var addrs []string
	for _, ip := range res.Interfaces["eth0"].IPConfigs {
		addrs = append(addrs, ip.IP.String())
	}
	return addrs, nil
}

// check leaves out loopback's own network, whose version has no CHECK, so that
// go-cni's Check never succeeds with it.
func (l goCNI) check(ctx context.Context, p pod) error {
	err := l.Check(ctx, p.ID, p.Netns, l.options(p)...)
	if err == nil || !strings.Contains(err.Error(), `"0.3.1" does not support the CHECK`) {
		return fmt.Errorf("go-cni can check loopback by now: %w", err)
	}
	eth0, err := gocni.New(gocni.WithMinNetworkCount(1), gocni.WithPluginConfDir(os.Getenv(netconfEnv)),
		gocni.WithPluginDir([]string{os.Getenv(pluginsEnv)}), gocni.WithDefaultConf)
	if err != nil {
		return err
	}
	return eth0.Check(ctx, p.ID, p.Netns, l.options(p)...)
}

func (l goCNI) del(ctx context.Context, p pod) error {
	return l.Remove(ctx, p.ID, p.Netns, l.options(p)...)
}

func (l goCNI) status(context.Context) error { return l.Status() }

func (l goCNI) gc(context.Context, []pod) error { return errors.New("go-cni has no GC") }

type criO struct{ ocicni.CNIPlugin }

func (l criO) network(p pod) ocicni.PodNetwork {
	var ports []ocicni.PortMapping
	for _, m := range p.Ports {
		ports = append(ports, ocicni.PortMapping{HostPort: m.Host, ContainerPort: m.Container, Protocol: m.Protocol,
			HostIP: m.IP})
	}
	return ocicni.PodNetwork{Name: p.ID, Namespace: "default", UID: "uid-" + p.ID, ID: p.ID, NetNS: p.Netns,
		RuntimeConfig: map[string]ocicni.RuntimeConfig{l.GetDefaultNetworkName(): {PortMappings: ports}}}
}

func (l criO) add(ctx context.Context, p pod) ([]string, error) {
	res, err := l.SetUpPodWithContext(ctx, l.network(p))
	if err != nil {
		return nil, err
	}
	return addresses(res[0].Result)
}

func (l criO) check(ctx context.Context, p pod) error {
	_, err := l.GetPodNetworkStatusWithContext(ctx, l.network(p))
	return err
}

func (l criO) del(ctx context.Context, p pod) error {
	return l.TearDownPodWithContext(ctx, l.network(p))
}

func (l criO) status(ctx context.Context) error { return l.StatusWithContext(ctx) }

func (l criO) gc(ctx context.Context, valid []pod) error {
	var list []*ocicni.PodNetwork
	for _, p := range valid {
		n := l.network(p)
		list = append(list, &n)
	}
	return l.GC(ctx, list)
}

// go-cni and ocicni call plugins from threads of their own, so they run in a process
// that is on the host as a whole: this test binary, with these in its environment.
const (
	libraryEnv = "HAWSER_CLIENT"
	pluginsEnv = "HAWSER_CLIENT_PLUGINS"
	netconfEnv = "HAWSER_CLIENT_NETCONF"
)

// order is what a client is asked for, on standard input.
type order struct {
	Verbs []string // add, check, del, status, gc; in this order
	Pods  []pod    // all at once; the valid ones for gc
}

type pod struct {
	ID, Netns string
	Ports     []port
	IfName    string         // "eth0" when empty; only libcni knows another
	More      map[string]any // of libcni's CapabilityArgs
}

// port is written as the convention for portMappings wants it.
type port struct {
	Host      int32  `json:"hostPort"`
	Container int32  `json:"containerPort"`
	Protocol  string `json:"protocol"`
	IP        string `json:"hostIP,omitempty"`
}

// answer is what it says, on standard output.
type answer struct {
	Addrs map[string][]string // of pods by ID
	Error string              // empty when all went well
}

func client(name string) int {
	var o order
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	a := answer{Addrs: map[string][]string{}}
	l, err := open(name, os.Getenv(netconfEnv), os.Getenv(pluginsEnv))
	for _, verb := range o.Verbs {
		if err != nil {
			break
		}
		err = obey(l, verb, o.Pods, a.Addrs)
	}
	if err != nil {
		a.Error = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
		return 2
	}
	return 0
}

func obey(l library, verb string, pods []pod, addrs map[string][]string) error {
	ctx := context.Background()
	switch verb {
	case "status":
		return l.status(ctx)
	case "gc":
		return l.gc(ctx, pods)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	errs := make([]error, len(pods))
	for i, p := range pods {
		wg.Go(func() {
			switch verb {
			case "add":
				addr, err := l.add(ctx, p)
				mu.Lock()
				defer mu.Unlock()
				addrs[p.ID], errs[i] = addr, err
			case "check":
				errs[i] = l.check(ctx, p)
			case "del":
				errs[i] = l.del(ctx, p)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

const conflistName = "10-pods.conflist"

// node is a host where a runtime with one of the libraries lives.
type node struct {
	*plugintest.World
	library, netconf string
}

func newNode(library string, n pods.Network) *node {
	GinkgoHelper()
	d := &node{World: plugintest.NewNode(), library: library, netconf: GinkgoT().TempDir()}
	d.configure(n.Conflist())
	return d
}

func (d *node) configure(conflist string) {
	GinkgoHelper()
	Expect(os.WriteFile(filepath.Join(d.netconf, conflistName), []byte(conflist), 0o644)).To(Succeed())
}

// install replaces the plugins by those of a directory, or by ours.
func (d *node) install(from string) {
	GinkgoHelper()
	for _, name := range nstest.Plugins() {
		path := filepath.Join(from, name)
		if from == "" {
			path = nstest.Build(name)
		}
		Expect(os.Symlink(path, filepath.Join(d.Dir, ".new"))).To(Succeed())
		Expect(os.Rename(filepath.Join(d.Dir, ".new"), filepath.Join(d.Dir, name))).To(Succeed())
	}
}

// client is a process with the library, which is asked for verbs ("add check") of all pods at once.
func (d *node) client(verbs string, pods ...pod) nstest.Program {
	GinkgoHelper()
	in := plugintest.Text(order{strings.Fields(verbs), pods})
	return nstest.Program{Path: "/proc/self/exe", Stdin: in, Env: []string{
		libraryEnv + "=" + d.library, pluginsEnv + "=" + d.Dir, netconfEnv + "=" + d.netconf}}
}

func (d *node) do(verbs string, pods ...pod) answer {
	GinkgoHelper()
	out := d.Run(d.client(verbs, pods...))
	GinkgoWriter.Print(out.Stderr)
	Expect(out.Exit).To(BeZero(), out.Stdout+out.Stderr)
	var a answer
	Expect(json.Unmarshal([]byte(out.Stdout), &a)).To(Succeed(), out.Stdout)
	return a
}

func (d *node) must(verbs string, pods ...pod) answer {
	GinkgoHelper()
	a := d.do(verbs, pods...)
	Expect(a.Error).To(BeEmpty())
	return a
}

func newPod(id string, ports ...port) pod {
	GinkgoHelper()
	return pod{ID: id, Netns: nstest.NewNetns().Path, Ports: ports}
}
