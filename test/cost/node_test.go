package cost_test

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// node is a host on which containers run, which end with it.
type node struct {
	*World
	pods []*Pod
}

// newNode makes one that runs this many containers, on network "net" with a bridge,
// masquerade, a published port and a sysctl each. One namespace is all of them.
func newNode(containers int) node {
	GinkgoHelper()
	n := node{World: NewNode()}
	n.Spoiled = true
	Uplink(n.Host)
	for _, device := range []string{"dev8080", "dev9080"} {
		IP(n.Host, "link add %s type veth peer name %sp", device, device)
	}
	crowd := nstest.NewNetns()
	for i := range containers {
		n.pods = append(n.pods, pod(fmt.Sprintf("crowd%d", i), fmt.Sprintf("eth%d", i), crowd))
	}
	const workers = 4
	nstest.AtOnce(workers, func(worker int) {
		for i := worker; i < containers; i += workers {
			n.Up(n.pods[i], List{{Plugin: "bridge", Keys: bridge(dual, masquerade)},
				{Plugin: "portmap", Keys: portmap(20000 + i)}, {Plugin: "tuning", Keys: tuning(i)}})
		}
	})
	return n
}

// pod is a container as runtimes make them, with nothing set.
func pod(id, ifName string, netns *nstest.Host) *Pod {
	return &Pod{Host: netns, Network: "net", Call: Call{ID: id, IfName: ifName, Netns: netns.Path}}
}

// clutter is what a node has of others besides containers: addresses, routes, rules.
func (n node) clutter(of int) {
	GinkgoHelper()
	ip := "link add clutter type bridge\nlink set clutter up\n"
	nft := "add table inet clutter\nadd chain inet clutter rules\n"
	for i := range of {
		at := fmt.Sprintf("198.18.%d.%d", i/250, i%250+1)
		ip += fmt.Sprintf("addr add %s/32 dev clutter\nroute add 203.0.113.%d dev clutter table 7\n", at, i)
		ip += fmt.Sprintf("route add 192.0.2.%d dev clutter\nrule add from %s lookup 7\n", i, at)
		nft += "add rule inet clutter rules ip saddr " + at + " return\n"
	}
	for _, p := range []nstest.Program{{Path: "ip", Args: []string{"-batch", "-"}, Stdin: ip},
		{Path: "nft", Args: []string{"-f", "-"}, Stdin: nft}} {
		out := n.Run(p)
		Expect(out.Exit).To(BeZero(), out.Stderr)
	}
}

var (
	dual       = []string{"10.88.0.0/16", "fd00:88::/64"}
	single     = dual[:1]
	masquerade = Object{"ipMasq": true}
	iptables   = Object{"ipMasq": true, "ipMasqBackend": "iptables"}
)

func ipam(subnets []string) Object { return Object{"ipam": HostLocal(subnets...)} }

func fixed(addresses ...string) Object {
	var list []Object
	for _, a := range addresses {
		list = append(list, Object{"address": a})
	}
	return Object{"ipam": Object{"type": "static", "addresses": list}}
}

func bridge(subnets []string, more ...Object) Object {
	return Merge(Object{"bridge": "cni0", "isDefaultGateway": true}, ipam(subnets),
		Merge(more...))
}

func ptp(subnets []string, more ...Object) Object {
	return Merge(ipam(subnets), Merge(more...))
}

func onUplink(subnets []string, more ...Object) Object {
	return Merge(ipam(subnets), Object{"master": "up0", "enabledad": false}, Merge(more...))
}

func portmap(port int, more ...Object) Object {
	return Merge(append(more, ports(port, "tcp"))...)
}

func ports(first int, protocols ...string) Object {
	var mappings []Object
	for i, p := range protocols {
		mappings = append(mappings, Object{"hostPort": first + i, "containerPort": 80 + i, "protocol": p})
	}
	return Object{"runtimeConfig": Object{"portMappings": mappings}}
}

// limited are limits of both directions.
var limited = Object{"ingressRate": 8000000, "ingressBurst": 800000, "egressRate": 8000000, "egressBurst": 800000}

func tuning(n int) Object {
	return Object{"sysctl": Object{"net.ipv4.conf.IFNAME.arp_filter": "1"},
		"mac": fmt.Sprintf("c2:00:00:00:%02x:%02x", n>>8, n&255)}
}
