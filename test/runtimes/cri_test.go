package runtimes_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/test/pods"
)

// kubelet asks a runtime for pods over CRI, as kubelet does.
type kubelet struct {
	cri.RuntimeServiceClient
	logs   string // a directory
	cgroup string // parent of the pods'
}

func newKubelet(socket string, m *machine) *kubelet {
	conn := nstest.Must(grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())))
	DeferCleanup(conn.Close)
	return &kubelet{RuntimeServiceClient: cri.NewRuntimeServiceClient(conn), logs: m.dir + "/log", cgroup: m.cgroup}
}

// ask makes a call of CRI, which has two minutes.
func ask[Q, A any](call func(context.Context, *Q, ...grpc.CallOption) (*A, error), request *Q) (*A, error) {
	ctx, cancel := context.WithTimeout(context.Background(), nstest.Patience(2*time.Minute))
	defer cancel()
	return call(ctx, request)
}

// condition is the runtime's opinion of NetworkReady or RuntimeReady.
func (k *kubelet) condition(kind string) (bool, string, error) {
	answer, err := ask(k.Status, &cri.StatusRequest{})
	if err != nil {
		return false, "", err
	}
	for _, c := range answer.Status.Conditions {
		if c.Type == kind {
			return c.Status, c.Message, nil
		}
	}
	return false, "", fmt.Errorf("no condition %s", kind)
}

// network reads NetworkReady as one text, which is "ready" when it is true.
func (k *kubelet) network() string {
	switch ready, message, err := k.condition("NetworkReady"); {
	case err != nil:
		return err.Error()
	case ready:
		return "ready"
	default:
		return "not ready: " + message
	}
}

// read are the network configurations as the runtime has read them.
func (k *kubelet) read() ([]string, error) {
	answer, err := ask(k.Status, &cri.StatusRequest{Verbose: true})
	if err != nil {
		return nil, err
	}
	var info struct {
		Networks []struct{ Config struct{ Source string } }
	}
	err = json.Unmarshal([]byte(answer.Info["cniconfig"]), &info)
	var sources []string
	for _, n := range info.Networks {
		sources = append(sources, n.Config.Source)
	}
	return sources, err
}

func (k *kubelet) sandbox(name string, ports ...*cri.PortMapping) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Uid: "uid-" + name, Namespace: "default"},
		Hostname:     name,
		LogDirectory: k.logs,
		DnsConfig:    &cri.DNSConfig{Servers: []string{"192.0.2.53"}},
		PortMappings: ports,
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: k.cgroup, SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_POD, Pid: cri.NamespaceMode_CONTAINER}}},
	}
}

func (k *kubelet) run(name string, ports ...*cri.PortMapping) (string, error) {
	answer, err := ask(k.RunPodSandbox, &cri.RunPodSandboxRequest{Config: k.sandbox(name, ports...)})
	if err != nil {
		return "", err
	}
	return answer.PodSandboxId, nil
}

func (k *kubelet) stop(id string) error {
	_, err := ask(k.StopPodSandbox, &cri.StopPodSandboxRequest{PodSandboxId: id})
	return err
}

func (k *kubelet) remove(id string) error {
	_, err := ask(k.RemovePodSandbox, &cri.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}

func (k *kubelet) all() []string {
	GinkgoHelper()
	answer := nstest.Must(ask(k.ListPodSandbox, &cri.ListPodSandboxRequest{}))
	var ids []string
	for _, s := range answer.Items {
		ids = append(ids, s.Id)
	}
	return ids
}

func (k *kubelet) start(name string, ports ...*cri.PortMapping) (string, pods.Pod) {
	GinkgoHelper()
	id := nstest.Must(k.run(name, ports...))
	return id, k.find(id)
}

func (k *kubelet) find(id string) pods.Pod {
	GinkgoHelper()
	answer := nstest.Must(ask(k.PodSandboxStatus, &cri.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true}))
	_, rest, found := strings.Cut(answer.Info["info"], `"type":"network","path":"`)
	Expect(found).To(BeTrue(), answer.Info["info"])
	path, _, _ := strings.Cut(rest, `"`)
	addrs := []string{answer.Status.Network.Ip}
	for _, ip := range answer.Status.Network.AdditionalIps {
		addrs = append(addrs, ip.Ip)
	}
	// The runtime's way to it may lead through a link.
	return pods.At(strings.Replace(path, "/var/run/", "/run/", 1), addrs...)
}

func (k *kubelet) end(ids ...string) {
	GinkgoHelper()
	for _, id := range ids {
		Expect(k.stop(id)).To(Succeed())
		Expect(k.remove(id)).To(Succeed())
	}
}

func tcp(host, container int32) *cri.PortMapping {
	return &cri.PortMapping{Protocol: cri.Protocol_TCP, HostPort: host, ContainerPort: container}
}

func udp(host, container int32) *cri.PortMapping {
	return &cri.PortMapping{Protocol: cri.Protocol_UDP, HostPort: host, ContainerPort: container}
}

func on(address string, p *cri.PortMapping) *cri.PortMapping {
	p.HostIp = address
	return p
}
