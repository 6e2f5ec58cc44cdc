package plugintest

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
)

// Step is one plugin of a list, with the keys of its configuration.
type Step struct {
	Plugin string
	Keys   Object
}

// List is the plugins of a network, in their order.
type List []Step

// Usual is what most nodes have, on a backend or on the usual one (""). The specs of
// whole lists run it: under load, attacked, on hostile hosts.
func Usual(backend string) List {
	masq, ports, filter := Object{}, Object{}, Object{}
	if backend != "" {
		masq, ports, filter = Object{"ipMasqBackend": backend}, Object{"backend": backend}, Object{"backend": backend}
	}
	return List{
		{"bridge", Merge(Object{"bridge": "cni0", "isDefaultGateway": true, "ipMasq": true,
			"ipam": HostLocal("10.88.0.0/24", "fd00:88::/64")}, masq)},
		{"portmap", Merge(Published(8080), ports)},
		{"firewall", Merge(Object{"ingressPolicy": "same-bridge"}, filter)},
		{"tuning", Object{"sysctl": Object{"net.ipv4.conf.IFNAME.arp_filter": "1"}}},
	}
}

// HostLocal has addresses of host-local, one from each of the subnets.
func HostLocal(subnets ...string) Object {
	var ranges []any
	for _, s := range subnets {
		ranges = append(ranges, []any{Object{"subnet": s}})
	}
	return Object{"type": "host-local", "ranges": ranges}
}

// Published are the keys of portmap that lead a host port, TCP, to the container's port 80.
func Published(port int) Object {
	return Object{"runtimeConfig": Object{"portMappings": []Object{
		{"hostPort": port, "containerPort": 80, "protocol": "tcp"}}}}
}

// Only is the part of the list with these plugins.
func (l List) Only(plugins ...string) List {
	return slices.DeleteFunc(slices.Clone(l), func(e Step) bool { return !slices.Contains(plugins, e.Plugin) })
}

// With is the list with more keys of a plugin; nil takes one away.
func (l List) With(plugin string, keys Object) List {
	out := slices.Clone(l)
	for i, e := range out {
		if e.Plugin == plugin {
			out[i].Keys = Merge(e.Keys, keys)
		}
	}
	return out
}

// Port is the list with another host port.
func (l List) Port(port int) List { return l.With("portmap", Published(port)) }

// Valid is the list as GC has it: these attachments are all that there are.
func (l List) Valid(pods ...*Pod) List {
	valid := []Object{}
	for _, p := range pods {
		valid = append(valid, p.Attachment())
	}
	out := slices.Clone(l)
	for i, e := range out {
		out[i].Keys = Merge(e.Keys, Object{"cni.dev/valid-attachments": valid})
	}
	return out
}

// Pod is a container, and what a runtime says of it in each call.
type Pod struct {
	*nstest.Host
	Call
	Network string
	Result  json.RawMessage // of the last ADD
}

// NewPod makes a container that is attached to nothing.
func NewPod(id string) *Pod {
	ginkgo.GinkgoHelper()
	c := nstest.NewNetns()
	c.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
	return &Pod{Host: c, Network: "net", Call: Call{ID: id, IfName: "eth0", Netns: c.Path}}
}

// Attachment is the pod as GC's configuration has it.
func (p *Pod) Attachment() Object { return Object{"containerID": p.ID, "ifname": p.IfName} }

// Decode is the result of the last ADD.
func (p *Pod) Decode() Result {
	ginkgo.GinkgoHelper()
	var r Result
	gomega.Expect(json.Unmarshal(p.Result, &r)).To(gomega.Succeed())
	return r
}

// Addr is the pod's IPv4 address.
func (p *Pod) Addr() string {
	ginkgo.GinkgoHelper()
	address, _, _ := strings.Cut(p.Decode().IPs[0].Address, "/")
	return address
}
