package cost_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	"github.com/hawser-cni/plugins/pkg/nstest/plugintest"
	"github.com/hawser-cni/plugins/pkg/nstest/trace"
	"github.com/hawser-cni/plugins/pkg/skel"
)

type object = plugintest.Object

// node is a host on which containers run.
type node struct {
	*nstest.Host
	dir   string   // CNI_PATH
	valid []object // its attachments, as GC has them
}

// newNode makes one that runs this many containers, on network "net" with a bridge,
// masquerade, a published port and a sysctl each.
func newNode(containers int) node {
	GinkgoHelper()
	n := node{Host: nstest.NewHost(), dir: GinkgoT().TempDir()}
	for _, name := range nstest.Plugins() {
		Expect(os.Symlink(nstest.Build(name), filepath.Join(n.dir, name))).To(Succeed())
	}
	crowd := nstest.NewNetns()
	for i := range containers {
		n.valid = append(n.valid, attachment(container(i, crowd)))
	}
	const workers = 4
	var wait sync.WaitGroup
	for worker := range workers {
		wait.Go(func() {
			defer GinkgoRecover()
			for i := worker; i < containers; i += workers {
				c := container(i, crowd)
				for _, a := range []asked{{"bridge", bridge(dual, masquerade)}, {"portmap", portmap(20000 + i)},
					{"tuning", tuning(i)}} {
					c = n.attach(a, c)
				}
			}
		})
	}
	wait.Wait()
	return n
}

// clutter is what a node has of others besides containers: addresses, routes, rules.
func (n node) clutter(of int) {
	GinkgoHelper()
	ip := "link add clutter type bridge\nlink set clutter up\n"
	nft := "add table inet clutter\nadd chain inet clutter rules\n"
	for i := range of {
		at := fmt.Sprintf("198.18.%d.%d", i/250, i%250+1)
		ip += fmt.Sprintf("addr add %s/32 dev clutter\nroute add 203.0.113.%d dev clutter table 7\nroute add 192.0.2.%d dev clutter\nrule add from %s lookup 7\n",
			at, i, i, at)
		nft += "add rule inet clutter rules ip saddr " + at + " return\n"
	}
	for _, p := range []nstest.Program{{Path: "ip", Args: []string{"-batch", "-"}, Stdin: ip},
		{Path: "nft", Args: []string{"-f", "-"}, Stdin: nft}} {
		out := n.Run(p)
		Expect(out.Exit).To(BeZero(), out.Stderr)
	}
}

// container is the call for an interface of its own in a namespace that many share.
func container(i int, netns *nstest.Host) plugintest.Call {
	return plugintest.Call{ID: fmt.Sprintf("crowd%d", i), IfName: fmt.Sprintf("eth%d", i), Netns: netns.Path}
}

func attachment(c plugintest.Call) object { return object{"containerID": c.ID, "ifname": c.IfName} }

// asked is a plugin with what its configuration asks for.
type asked struct {
	plugin string
	conf   object
}

// world is the node as one plugin sees it.
func (n node) world(plugin string) *plugintest.World {
	return &plugintest.World{Host: n.Host, Dir: n.dir, Plugin: skel.Plugin[any]{Name: plugin}}
}

// attach has a plugin serve an ADD. What it returns is the call with the result as
// prevResult: for CHECK and DEL, and for the next plugin's ADD.
func (n node) attach(a asked, c plugintest.Call) plugintest.Call {
	GinkgoHelper()
	c.Command, c.Conf = "ADD", a.after(c)
	return after(c, n.world(a.plugin).Exec(c).Added())
}

func (n node) detach(plugin string, c plugintest.Call) {
	GinkgoHelper()
	c.Command = "DEL"
	Expect(n.world(plugin).Exec(c).Code).To(BeZero())
}

// after is the configuration with the prevResult that a call has.
func (a asked) after(c plugintest.Call) object {
	conf := object{"cniVersion": "1.1.0", "name": "net", "type": a.plugin}
	if previous, ok := c.Conf.(object); ok {
		conf["prevResult"] = previous["prevResult"]
	}
	return plugintest.Merge(conf, a.conf)
}

func after(c plugintest.Call, r plugintest.Result) plugintest.Call {
	c.Conf = plugintest.With(c.Conf.(object), r)
	return c
}

// count traces a call that must succeed.
func (n node) count(plugin string, c plugintest.Call) *trace.Record {
	GinkgoHelper()
	w := n.world(plugin)
	var r *trace.Record
	var err error
	n.Do(func() {
		r, err = trace.Run(trace.Command{Path: nstest.Build(plugin), Env: c.Vars(w), Stdin: c.Stdin()})
	})
	Expect(err).NotTo(HaveOccurred())
	Expect(r.Exit).To(BeZero(), "%s %s: %s%s", plugin, c.Command, r.Stdout, r.Stderr)
	return r
}

var (
	dual       = []string{"10.88.0.0/16", "fd00:88::/64"}
	single     = dual[:1]
	masquerade = object{"ipMasq": true}
	iptables   = object{"ipMasq": true, "ipMasqBackend": "iptables"}
)

// ipam has addresses of host-local, from each of the subnets.
func ipam(subnets []string) object {
	var ranges []any
	for _, s := range subnets {
		ranges = append(ranges, []any{object{"subnet": s}})
	}
	return object{"ipam": object{"type": "host-local", "ranges": ranges}}
}

// fixed are addresses of static.
func fixed(addresses ...string) object {
	var list []object
	for _, a := range addresses {
		list = append(list, object{"address": a})
	}
	return object{"ipam": object{"type": "static", "addresses": list}}
}

func bridge(subnets []string, more ...object) object {
	return plugintest.Merge(object{"bridge": "cni0", "isDefaultGateway": true}, ipam(subnets),
		plugintest.Merge(more...))
}

func ptp(subnets []string, more ...object) object {
	return plugintest.Merge(ipam(subnets), plugintest.Merge(more...))
}

// portmap publishes one port.
func portmap(port int, more ...object) object {
	return plugintest.Merge(append(more, ports(port, "tcp"))...)
}

// ports publishes one port for each of the protocols.
func ports(first int, protocols ...string) object {
	var mappings []object
	for i, p := range protocols {
		mappings = append(mappings, object{"hostPort": first + i, "containerPort": 80 + i, "protocol": p})
	}
	return object{"runtimeConfig": object{"portMappings": mappings}}
}

// tuning changes a sysctl and the MAC.
func tuning(n int) object {
	return object{"sysctl": object{"net.ipv4.conf.IFNAME.arp_filter": "1"},
		"mac": fmt.Sprintf("c2:00:00:00:%02x:%02x", n>>8, n&255)}
}
