package clients_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	gocni "github.com/containerd/go-cni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/cri-o/ocicni/pkg/ocicni"
)

// The libraries call plugins from threads of their own, so they run in a process
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
}

type port struct {
	Host, Container int32
	Protocol, IP    string
}

// answer is what it says, on standard output.
type answer struct {
	Addrs map[string]string // of pods by ID
	Error string            // empty when all went well
}

// library is what both libraries can do.
type library interface {
	add(ctx context.Context, p pod) (string, error)
	check(ctx context.Context, p pod) error
	del(ctx context.Context, p pod) error
	status(ctx context.Context) error
	gc(ctx context.Context, valid []pod) error
}

// client is the process's main function.
func client(name string) int {
	var o order
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	a := answer{Addrs: map[string]string{}}
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

func open(name, netconf, plugins string) (library, error) {
	if name == "ocicni" {
		l, err := ocicni.InitCNINoInotify("", netconf, "", plugins)
		return criO{l}, err
	}
	l, err := gocni.New(gocni.WithMinNetworkCount(2), gocni.WithPluginConfDir(netconf), gocni.WithPluginDir([]string{plugins}))
	if err == nil {
		err = l.Load(gocni.WithLoNetwork, gocni.WithDefaultConf)
	}
	return goCNI{l}, err
}

func obey(l library, verb string, pods []pod, addrs map[string]string) error {
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

type goCNI struct{ gocni.CNI }

func (l goCNI) options(p pod) []gocni.NamespaceOpts {
	var ports []gocni.PortMapping
	for _, m := range p.Ports {
		ports = append(ports, gocni.PortMapping{HostPort: m.Host, ContainerPort: m.Container, Protocol: m.Protocol, HostIP: m.IP})
	}
	return []gocni.NamespaceOpts{gocni.WithCapabilityPortMap(ports), gocni.WithLabels(map[string]string{
		"IgnoreUnknown": "1", "K8S_POD_NAMESPACE": "default", "K8S_POD_NAME": p.ID, "K8S_POD_INFRA_CONTAINER_ID": p.ID})}
}

func (l goCNI) add(ctx context.Context, p pod) (string, error) {
	res, err := l.Setup(ctx, p.ID, p.Netns, l.options(p)...)
	if err != nil {
		return "", err
	}
	return res.Interfaces["eth0"].IPConfigs[0].IP.String(), nil
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
		ports = append(ports, ocicni.PortMapping{HostPort: m.Host, ContainerPort: m.Container, Protocol: m.Protocol, HostIP: m.IP})
	}
	return ocicni.PodNetwork{Name: p.ID, Namespace: "default", UID: "uid-" + p.ID, ID: p.ID, NetNS: p.Netns,
		RuntimeConfig: map[string]ocicni.RuntimeConfig{l.GetDefaultNetworkName(): {PortMappings: ports}}}
}

func (l criO) add(ctx context.Context, p pod) (string, error) {
	res, err := l.SetUpPodWithContext(ctx, l.network(p))
	if err != nil {
		return "", err
	}
	newest, err := types100.GetResult(res[0].Result)
	if err != nil {
		return "", err
	}
	return newest.IPs[0].Address.IP.String(), nil
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
