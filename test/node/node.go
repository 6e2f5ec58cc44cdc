// Package node is what specs of whole lists of plugins have in common: a host with
// the plugins as programs, and the pods that a runtime attaches to it.
package node

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

type object = plugintest.Object

// Plugins are all that there are.
func Plugins() []string {
	return []string{"bridge", "host-local", "loopback", "portmap", "ptp", "static", "tuning"}
}

// Node is a host with the plugins.
type Node struct {
	*nstest.Host
	Dir string   // CNI_PATH
	Env []string // of the programs, beside that of the protocol
	// Before are commands of bash that run before each plugin, in its process:
	// "umask 0".
	Before string

	// Version is that of configurations; the newest when empty.
	Version string

	programs string // directory of the plugins; ours when empty
}

// With is the same host with a release of the reference plugins, IPAM's too.
func (n *Node) With(ref nstest.Reference) *Node {
	ginkgo.GinkgoHelper()
	return &Node{Host: n.Host, Dir: ref.Dir(), Version: "1.0.0", programs: ref.Dir()}
}

// New makes a host on which nothing has run yet.
func New() *Node {
	ginkgo.GinkgoHelper()
	n := &Node{Host: nstest.NewHost(), Dir: ginkgo.GinkgoT().TempDir()}
	for _, name := range Plugins() {
		gomega.Expect(os.Symlink(nstest.Build(name), filepath.Join(n.Dir, name))).To(gomega.Succeed())
	}
	n.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
	return n
}

// Try runs one plugin as a program.
func (n *Node) Try(plugin string, c plugintest.Call) plugintest.Answer {
	ginkgo.GinkgoHelper()
	w := &plugintest.World{Host: n.Host, Dir: n.Dir, Plugin: skel.Plugin[any]{Name: plugin}}
	program := filepath.Join(n.programs, plugin)
	if n.programs == "" {
		program = nstest.Build(plugin)
	}
	p := c.Program(w, program)
	p.Env = append(p.Env, n.Env...)
	if n.Before != "" {
		p.Args, p.Path = []string{"-c", n.Before + "\nexec " + p.Path}, "/bin/bash"
	}
	return plugintest.Ran(n.Host.Run(p))
}

// Call is Try with an answer as the contract has them.
func (n *Node) Call(plugin string, c plugintest.Call) plugintest.Answer {
	ginkgo.GinkgoHelper()
	a := n.Try(plugin, c)
	gomega.Expect(a.Verdict(c.Command)).To(gomega.Succeed(), "%s %s: %s%s", plugin, c.Command, a.Stdout, a.Stderr)
	return a
}

// Entry is a plugin in a list, with the keys of its configuration.
type Entry struct {
	Plugin string
	Keys   object
}

// List is what most nodes have, on a backend or on the usual one ("").
func List(backend string) []Entry {
	masq, ports := object{}, object{}
	if backend != "" {
		masq, ports = object{"ipMasqBackend": backend}, object{"backend": backend}
	}
	return []Entry{
		{"bridge", plugintest.Merge(object{"bridge": "cni0", "isDefaultGateway": true, "ipMasq": true,
			"ipam": object{"type": "host-local",
				"ranges": []any{[]any{object{"subnet": "10.88.0.0/24"}}, []any{object{"subnet": "fd00:88::/64"}}}}}, masq)},
		{"portmap", plugintest.Merge(object{"runtimeConfig": object{"portMappings": []object{{"hostPort": 8080,
			"containerPort": 80, "protocol": "tcp"}}}}, ports)},
		{"tuning", object{"sysctl": object{"net.ipv4.conf.IFNAME.arp_filter": "1"}}},
	}
}

// Port is the list with another host port.
func Port(entries []Entry, port int) []Entry {
	out := append([]Entry{}, entries...)
	out[1].Keys = plugintest.Merge(out[1].Keys,
		object{"runtimeConfig": object{"portMappings": []object{{"hostPort": port, "containerPort": 80,
			"protocol": "tcp"}}}})
	return out
}

// Pod is a container, and what a runtime says of it in each call.
type Pod struct {
	*nstest.Host
	plugintest.Call
	Network string
	Result  json.RawMessage // of the last ADD
}

// NewPod makes a container that is attached to nothing.
func NewPod(id string) *Pod {
	ginkgo.GinkgoHelper()
	c := nstest.NewNetns()
	c.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
	return &Pod{Host: c, Network: "net", Call: plugintest.Call{ID: id, Netns: c.Path}}
}

// Chain has each plugin of a list serve the command, DEL from the last to the
// first, and returns the answer of the first that fails, or the last one's.
func (n *Node) Chain(command string, p *Pod, entries []Entry) (a plugintest.Answer) {
	ginkgo.GinkgoHelper()
	for i := range entries {
		e := entries[i]
		if command == "DEL" {
			e = entries[len(entries)-1-i]
		}
		c := p.Call
		c.Command = command
		conf := plugintest.Merge(object{"cniVersion": cmp.Or(n.Version, "1.1.0"), "name": p.Network, "type": e.Plugin},
			e.Keys)
		if p.Result != nil {
			conf["prevResult"] = p.Result
		}
		c.Conf = conf
		if a = n.Call(e.Plugin, c); a.Code != 0 {
			return a
		}
		if command == "ADD" {
			p.Result = json.RawMessage(a.Stdout)
		}
	}
	return a
}

// Add attaches a pod, which must succeed.
func (n *Node) Add(p *Pod, entries []Entry) *Pod {
	ginkgo.GinkgoHelper()
	n.Succeeds("ADD", p, entries)
	return p
}

// Succeeds runs a command that must succeed.
func (n *Node) Succeeds(command string, p *Pod, entries []Entry) {
	ginkgo.GinkgoHelper()
	a := n.Chain(command, p, entries)
	gomega.Expect(a.Code).To(gomega.BeZero(), "%s: %s", command, a.Stdout)
}

// State is all that a plugin could have changed on the node.
func (n *Node) State() string {
	ginkgo.GinkgoHelper()
	return n.Snapshot() + n.Files("/run", "/var/lib", "/etc/cni", "/opt/cni")
}

// Own are the plugins' files.
func (n *Node) Own() string {
	ginkgo.GinkgoHelper()
	return n.Files("/run/hawser", "/run/cni", "/var/lib/cni")
}

// Decode is the result of the last ADD.
func (p *Pod) Decode() plugintest.Result {
	ginkgo.GinkgoHelper()
	var r plugintest.Result
	gomega.Expect(json.Unmarshal(p.Result, &r)).To(gomega.Succeed())
	return r
}

// Addr is the pod's IPv4 address.
func (p *Pod) Addr() string {
	ginkgo.GinkgoHelper()
	address, _, _ := strings.Cut(p.Decode().IPs[0].Address, "/")
	return address
}
