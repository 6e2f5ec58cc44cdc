// Package clients_test drives the plugins through libcni, which is below all runtimes, go-cni, which is what
// containerd and nerdctl call, and ocicni, which is what CRI-O calls.
package clients_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/Masterminds/semver/v3"
	gocni "github.com/containerd/go-cni"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/cri-o/ocicni/pkg/ocicni"
	"github.com/hashicorp/go-version"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
	"github.com/hawser-cni/plugins/test/pods"
)

func TestMain(m *testing.M) {
	if standIn() {
		return
	}
	if library := os.Getenv(libraryEnv); library != "" {
		os.Exit(client(library))
	}
	nstest.Main(m)
}

func TestClients(t *testing.T) { nstest.RunSpecs(t, "clients: libcni, go-cni and ocicni") }

var _ = Describe("libcni", func() {
	underLibrary("libcni")

	It("runs the network that docs/runtimes.md shows", func() {
		text := nstest.Must(os.ReadFile("../../docs/runtimes.md"))
		_, rest, _ := strings.Cut(string(text), "## One network for all of them\n\n```json\n")
		conflist, _, found := strings.Cut(rest, "```\n")
		Expect(found).To(BeTrue())
		d := newNode("libcni", pods.Network{})
		d.configure(conflist)
		p := newPod("one", port{8080, 80, "tcp", ""})
		pods.At(p.Netns).Serve()
		d.must("status add check", p)
		Eventually(func() (string, error) { return d.Ask("tcp", "127.0.0.1:8080") }).Should(HavePrefix("10.78.0.1:"))
		d.must("del", p)
	})
})

var _ = DescribeTable("libcni drives ADD, CHECK, STATUS, GC and DEL, of versions that have them", Label("libcni"), func(
	version, verbs string,
) {
	d := newNode("libcni", pods.Network{Version: version, IPv6: true})
	d.must(verbs, newPod("one"))
},
	Entry(nil, "0.3.1", "add del del"),
	Entry(nil, "0.4.0", "add check del del"),
	Entry(nil, "1.0.0", "add check del del"),
	Entry(nil, "1.1.0", "status add check status gc check del del"),
)

var _ = Describe("go-cni", func() {
	underLibrary("go-cni")

	It("ends a container whose namespace was that of a process, as nerdctl names it", func() {
		d := newNode("go-cni", pods.Network{})
		ns := nstest.NewNetns()
		init := ns.Start(nstest.Program{Path: "sleep", Args: []string{"infinity"}})
		p := pod{ID: "one", Netns: fmt.Sprintf("/proc/%d/ns/net", init.Process.Pid),
			Ports: []port{{8080, 80, "tcp", ""}}}
		addrs := d.must("add check", p).Addrs
		pods.At(ns.Path, addrs["one"]...).ExpectUp()
		Expect(init.Process.Kill()).To(Succeed())
		_ = init.Wait()
		d.must("del", p)
	})
})

var _ = Describe("ocicni", func() {
	underLibrary("ocicni")

	It("collects at its start what was left, and only that", func() {
		d := newNode("ocicni", pods.Network{Version: "1.1.0"})
		kept, lost, gone := newPod("kept"), newPod("lost", port{8080, 80, "tcp", ""}), nstest.NewNetns()
		forgotten := pod{ID: "forgotten", Netns: gone.Path}
		d.must("add", kept, lost, forgotten)
		gone.Unpin() // as after a reboot
		d.must("gc check", kept)
		Expect(pods.Leases(d.Host)).To(HaveLen(1))
		d.must("gc")
	})
})

// underLibrary registers the specs of each library. In a quick run libcni, which the others call, has all of them.
func underLibrary(library string) {
	more := Label()
	if library != "libcni" {
		more = Label("slow")
	}
	DescribeTable("has pods with addresses, traffic, host ports; CHECK after ADD; DEL twice", Label("libraries"), func(
		n pods.Network,
	) {
		d := newNode(library, n)
		w := pods.Traffic{Host: d.Host, Outside: nstest.NewOutside(d.Host), Published: "8080", OnUplink: "8081",
			SeesNeighbours: n.PTP}
		first := newPod("first", port{8080, 80, "tcp", ""})
		d.must("status add del", first)
		pods.ExpectNothingLeft(d.Host)
		before := d.Snapshot()

		client := newPod("client")
		server := newPod("server", port{8080, 80, "tcp", ""}, port{8080, 80, "udp", ""},
			port{8081, 80, "tcp", pods.HostAddr}, port{8081, 80, "tcp", pods.HostAddr6})
		pods.At(server.Netns).Serve()
		for _, verbs := range []string{"add check", "del add check"} { // and again while they live
			addrs := d.must(verbs, client, server).Addrs
			a, b := pods.At(client.Netns, addrs["client"]...), pods.At(server.Netns, addrs["server"]...)
			a.ExpectUp()
			b.ExpectUp()
			w.Expect(a, b)
		}

		greedy := newPod("greedy", port{8080, 80, "tcp", ""})
		Expect(d.do("add", greedy).Error).To(
			And(ContainSubstring("8080"), ContainSubstring("server")), "the port is taken, and by whom")
		d.must("del", greedy)
		d.must("check", client, server)
		d.must("del del", client, server)
		pods.ExpectNothingLeft(d.Host)
		Expect(d.Snapshot()).To(Equal(before))
	},
		Entry("1.0.0", Label("slow"), pods.Network{Version: "1.0.0"}),
		Entry("1.1.0", Label("slow"), pods.Network{Version: "1.1.0"}),
		Entry("1.1.0, IPv4 and IPv6", pods.Network{Version: "1.1.0", IPv6: true}),
		Entry("1.1.0, iptables", Label("slow"), pods.Network{Version: "1.1.0", IPv6: true, Backend: "iptables"}),
		Entry("1.1.0, ptp", Label("slow"), pods.Network{Version: "1.1.0", IPv6: true, PTP: true}),
	)

	It("has many pods at once, up and down", Label("parallel"), more, func() {
		d := newNode(library, pods.Network{IPv6: true})
		var many []pod
		count := 100
		if nstest.Quick() {
			count = 30
		}
		for i := range count {
			many = append(many, newPod(fmt.Sprint("pod", i), port{int32(9000 + i), 80, "tcp", ""}))
		}
		up := d.must("add check", many...)
		addrs := slices.Concat(slices.Collect(maps.Values(up.Addrs))...)
		Expect(slices.Compact(slices.Sorted(slices.Values(addrs)))).To(HaveLen(2 * len(many)))
		Expect(pods.Leases(d.Host)).To(ConsistOf(addrs))
		d.must("del", many...)
	})

	It("gives a host port to one of many pods that ask for it at once", Label("slow"), func() {
		d := newNode(library, pods.Network{})
		outside := nstest.NewOutside(d.Host)
		var many, lost []pod
		for i := range 10 {
			many = append(many, newPod(fmt.Sprint("pod", i), port{8080, 80, "tcp", ""}))
			pods.At(many[i].Netns).Serve()
		}
		a := d.do("add", many...)
		Expect(strings.Count(a.Error, "8080")).To(Equal(len(many)-1), a.Error)
		for _, p := range many {
			if a.Addrs[p.ID] == nil {
				lost = append(lost, p)
			}
		}
		Expect(lost).To(HaveLen(len(many) - 1))
		d.must("del", lost...)
		ask := func() (string, error) { return outside.Ask("tcp", "192.0.2.1:8080") }
		Eventually(ask).Should(HavePrefix("192.0.2.2:"))
		Expect(pods.Leases(d.Host)).To(HaveLen(1))
		d.must("del", many...)
	})

	DescribeTable("takes over pods of the reference plugins: CHECK, GC, traffic, DEL", Label("upgrade"), more, func(
		ref nstest.Reference, ptp bool,
	) {
		nstest.Need("iptables")
		d := newNode(library, pods.Network{Version: "1.0.0", IPv6: true, PTP: ptp}) // Debian's know no newer one
		w := pods.Traffic{Host: d.Host, Outside: nstest.NewOutside(d.Host), Published: "8080"}
		d.install(ref.Dir())
		client, lost := newPod("client"), newPod("lost", port{9000, 80, "tcp", ""})
		server := newPod("server", port{8080, 80, "tcp", ""}, port{8080, 80, "udp", ""})
		addrs := map[string][]string{}
		for _, p := range []pod{client, server, lost} { // one at a time: the reference's ADDs lose rules of each other
			maps.Copy(addrs, d.must("add", p).Addrs)
		}
		a, b := pods.At(client.Netns, addrs["client"]...), pods.At(server.Netns, addrs["server"]...).Serve()
		w.Expect(a, b)

		d.install("")
		d.configure(pods.Network{Version: "1.1.0", IPv6: true, PTP: ptp}.Conflist())
		d.must("check", client, server, lost)
		if library != "go-cni" { // has no GC
			d.must("gc check", client, server)
			Expect(pods.Leases(d.Host)).To(ConsistOf(append(addrs["client"], addrs["server"]...)))
			Expect(d.Cmd("nft", "list", "ruleset")).NotTo(Or(ContainSubstring(addrs["lost"][0]),
				ContainSubstring("9000")))
		}
		w.Expect(a, b)
		d.must("del", client, server, lost)
	},
		takeovers(library),
	)

	It("is killed in the middle of ADDs, and GC or DEL collects what is there", Label("runtime-killed"), more, func() {
		d := newNode(library, pods.Network{Version: "1.1.0"})
		var many []pod
		for i := range 10 {
			many = append(many, newPod(fmt.Sprint("pod", i), port{int32(9000 + i), 80, "tcp", ""}))
		}
		killed := d.Start(d.client("add", many...))
		leases := func() []string { return pods.Leases(d.Host) }
		Eventually(leases).WithPolling(time.Millisecond).ShouldNot(HaveLen(0))
		Expect(killed.Process.Kill()).To(Succeed())
		_ = killed.Wait()
		pods.Settle(filepath.Dir(nstest.Build("bridge")))
		AddReportEntry("addresses lent", strings.Join(pods.Leases(d.Host), " "))
		if library == "go-cni" { // has no GC
			d.must("del", many...)
		} else {
			d.must("gc")
		}
		pods.ExpectNothingLeft(d.Host)
		d.must("add check del", many...)
	})

}

// takeovers are one under each library, which calls whatever it finds, and all under libcni.
func takeovers(library string) []TableEntry {
	list := []TableEntry{Entry("the newest bridge", nstest.Newest(), false)}
	if library == "libcni" {
		list = append(list, Entry("the newest ptp", Label("slow"), nstest.Newest(), true),
			Entry("Debian's bridge", Label("slow"), nstest.Debian(), false),
			Entry("Debian's ptp", Label("slow"), nstest.Debian(), true))
	}
	return list
}

// about is what a program of the plugin directory says when it is run without arguments.
func about(name string) (stdout, stderr string) {
	GinkgoHelper()
	var out, errs strings.Builder
	cmd := exec.Command(nstest.Build(name))
	cmd.Env, cmd.Stdout, cmd.Stderr = []string{}, &out, &errs
	Expect(cmd.Run()).To(Succeed(), "%s: %s", name, &errs)
	return out.String(), errs.String()
}

var _ = Describe("what clients read of a program that is run without arguments:", func() {
	It("Nomad, the first word that is a version; it wants 0.4.0 of five plugins", Label("version-line"), func() {
		versions := map[string]string{} // Nomad's attributes plugins.cni.version.NAME
		for _, name := range nstest.Plugins() {
			stdout, stderr := about(name)
			for _, word := range strings.Fields(stdout + stderr) {
				if _, err := version.NewSemver(word); err == nil {
					versions[name] = word
					break
				}
			}
			Expect(versions[name]).To(HavePrefix(skel.Reference+"+hawser."), "%s: the reference's, then ours", name)
		}
		wanted := nstest.Must(version.NewConstraint(">= 0.4.0"))
		for _, name := range []string{"bridge", "firewall", "host-local", "loopback", "portmap"} {
			v := nstest.Must(version.NewSemver(versions[name]))
			Expect(wanted.Check(v)).To(BeTrue(), "%s %s", name, v)
		}
	})

	It("nerdctl, firewall's line on standard error; it wants 1.7.1 for policies", Label("version-line"), func() {
		const prefix = "CNI firewall plugin "
		_, stderr := about("firewall")
		for line := range strings.Lines(stderr) {
			rest, found := strings.CutPrefix(strings.TrimSuffix(line, "\n"), prefix)
			if !found {
				continue
			}
			v, err := semver.NewVersion(rest)
			Expect(err).NotTo(HaveOccurred(), rest)
			Expect(v.Compare(semver.MustParse("1.7.1"))).To(BeNumerically(">=", 0), rest)
			return
		}
		Fail("no line begins with " + prefix)
	})
})

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
