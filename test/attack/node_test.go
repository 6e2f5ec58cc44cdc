package attack_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/skel"
)

var plugins = []string{"bridge", "host-local", "loopback", "portmap", "ptp", "tuning"}

// node is a host with the plugins.
type node struct {
	*nstest.Host
	dir string // CNI_PATH
}

func newNode() node {
	GinkgoHelper()
	n := node{Host: nstest.NewHost(), dir: GinkgoT().TempDir()}
	for _, name := range plugins {
		Expect(os.Symlink(nstest.Build(name), filepath.Join(n.dir, name))).To(Succeed())
	}
	n.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
	return n
}

// call runs one plugin as a program.
func (n node) call(plugin string, c Call) Answer {
	GinkgoHelper()
	w := &World{Host: n.Host, Dir: n.dir, Plugin: skel.Plugin{Name: plugin}}
	a := w.Exec(c)
	Expect(a.Verdict(c.Command)).To(Succeed(), "%s %s: %s%s", plugin, c.Command, a.Stdout, a.Stderr)
	return a
}

// entry is a plugin in a list, with the keys of its configuration.
type entry struct {
	plugin string
	keys   Object
}

// list is what most nodes have.
func list(backend string) []entry {
	masq, ports := Object{}, Object{}
	if backend != "" {
		masq, ports = Object{"ipMasqBackend": backend}, Object{"backend": backend}
	}
	return []entry{
		{"bridge", Merge(Object{"bridge": "cni0", "isDefaultGateway": true, "ipMasq": true, "ipam": Object{"type": "host-local",
			"ranges": []any{[]any{Object{"subnet": "10.88.0.0/24"}}, []any{Object{"subnet": "fd00:88::/64"}}}}}, masq)},
		{"portmap", Merge(Object{"runtimeConfig": Object{"portMappings": []Object{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}}, ports)},
		{"tuning", Object{"sysctl": Object{"net.ipv4.conf.IFNAME.arp_filter": "1"}}},
	}
}

// pod is a container, and what a runtime says of it in each call.
type pod struct {
	*nstest.Host
	Call
	network string
	result  json.RawMessage // of the last ADD
}

func newPod(id string) *pod {
	GinkgoHelper()
	c := nstest.NewNetns()
	c.SetSysctl("net/ipv6/conf/default/accept_dad", "0")
	return &pod{Host: c, network: "net", Call: Call{ID: id, Netns: c.Path}}
}

// run has each plugin of a list serve the command, DEL from the last to the
// first, and returns the answer of the first that fails, or the last one's.
func (n node) run(command string, p *pod, entries []entry) (a Answer) {
	GinkgoHelper()
	for i := range entries {
		e := entries[i]
		if command == "DEL" {
			e = entries[len(entries)-1-i]
		}
		c := p.Call
		c.Command = command
		conf := Merge(Object{"cniVersion": "1.1.0", "name": p.network, "type": e.plugin}, e.keys)
		if p.result != nil {
			conf["prevResult"] = p.result
		}
		c.Conf = conf
		if a = n.call(e.plugin, c); a.Code != 0 {
			return a
		}
		if command == "ADD" {
			p.result = json.RawMessage(a.Stdout)
		}
	}
	return a
}

// add attaches a pod, which must succeed.
func (n node) add(p *pod, entries []entry) *pod {
	GinkgoHelper()
	a := n.run("ADD", p, entries)
	Expect(a.Code).To(BeZero(), a.Stdout)
	return p
}

// succeeds runs a command that must succeed.
func (n node) succeeds(command string, p *pod, entries []entry) {
	GinkgoHelper()
	a := n.run(command, p, entries)
	Expect(a.Code).To(BeZero(), "%s: %s", command, a.Stdout)
}

// addr is the pod's IPv4 address.
func (p *pod) addr() string {
	GinkgoHelper()
	var r Result
	Expect(json.Unmarshal(p.result, &r)).To(Succeed())
	address, _, _ := strings.Cut(r.IPs[0].Address, "/")
	return address
}

// state is all that a plugin could have changed on the node.
func (n node) state() string {
	GinkgoHelper()
	return n.Snapshot() + n.Files("/run", "/var/lib", "/etc/cni", "/opt/cni")
}

// files are the plugins' own.
func (n node) files() string {
	GinkgoHelper()
	return n.Files("/run/hawser", "/run/cni", "/var/lib/cni")
}

// interfaceOn is the name of one of the interfaces of the result.
func (p *pod) interfaceOn(i int) string {
	GinkgoHelper()
	var r Result
	Expect(json.Unmarshal(p.result, &r)).To(Succeed())
	return r.Interfaces[i].Name
}
