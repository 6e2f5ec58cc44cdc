package attack_test

import (
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/cni"
	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

// attack is a configuration that a tenant writes to harm the container of another network.
type attack struct {
	name   string
	plugin string
	keys   func(v *neighbor, tenant *Pod) Object
	code   uint   // of Hawser's ADD; 0 if it succeeds
	theirs string // the most severe harm by the reference plugin, or the possible ones
}

// either separates the harms of an attack that does one or the other.
const either = "; or "

func static(address, gateway string) Object {
	a := Object{"address": address}
	if gateway != "" {
		a["gateway"] = gateway
	}
	return Object{"type": "static", "addresses": []Object{a}}
}

// result returns a prevResult of a container with an address.
func result(p *Pod, address string, more ...Object) Object {
	return Object{"cniVersion": "1.0.0", "interfaces": append([]Object{{"name": "eth0", "sandbox": p.Netns}}, more...),
		"ips": []Object{{"address": address + "/24", "interface": 0}}}
}

func published(hostPort int, more Object) Object {
	one := Object{"hostPort": hostPort, "containerPort": 80, "protocol": "tcp"}
	return Object{"portMappings": []Object{Merge(one, more)}}
}

// nextPort is the host port of the next container of the victim's network.
const nextPort = 8081

// attachedByHand gives the tenant an interface on the victim's bridge, and returns its result.
func attachedByHand(v *neighbor, p *Pod) Object {
	GinkgoHelper()
	v.node.IP("link add byhand up master cni0 type veth peer name eth0 netns " + p.Name)
	p.IP("link set eth0 up", "addr add 10.88.0.66/24 dev eth0")
	return result(p, "10.88.0.66", Object{"name": "byhand"})
}

// hostEnd returns the name of the victim's link on the host.
func (v *neighbor) hostEnd() string { return v.Decode().Interfaces[1].Name }

// fixed returns the keys of an attack that do not depend on the victim.
func fixed(keys Object) func(*neighbor, *Pod) Object {
	return func(*neighbor, *Pod) Object { return keys }
}

var attacks = []attack{
	// Addresses.
	{"the victim's address, by a point to point link", "ptp", func(v *neighbor, _ *Pod) Object {
		return Object{"ipam": static(v.Addr()+"/24", "10.88.0.77")}
	}, 103, cutOff},
	{"the victim's address as the gateway of a point to point link", "ptp", func(v *neighbor, _ *Pod) Object {
		return Object{"ipam": static("10.88.0.77/24", v.Addr())}
	}, 103, cutOff},
	{"a bridge with a part of the victim's subnet", "bridge", fixed(Object{"bridge": "brx", "isGateway": true,
		"ipam": static("10.88.0.14/28", "10.88.0.13")}), 103, cutOff},
	{"a bridge with a part of the victim's subnet and its gateway", "bridge", fixed(Object{"bridge": "brx",
		"isGateway": true, "ipam": static("10.88.0.14/28", "10.88.0.1")}), 103, cutOff},
	{"a bridge whose gateway is the victim's address", "bridge", func(v *neighbor, _ *Pod) Object {
		return Object{"bridge": "brx", "isGateway": true, "ipam": static("10.88.0.77/24", v.Addr())}
	}, 103, cutOff},
	{"a bridge with the victim's subnet", "bridge", fixed(Object{"bridge": "brx", "isGateway": true, "ipMasq": true,
		"ipam": static("10.88.0.77/24", "10.88.0.1")}), 0, ""},
	{"the victim's address, on the same bridge", "bridge",
		fixed(Object{"bridge": "cni0", "ipam": static("10.88.0.2/24", "")}), 103, ""},
	{"the gateway's address", "bridge", fixed(Object{"bridge": "cni0", "ipam": static("10.88.0.1/24", "")}), 103, ""},
	{"another address for the gateway", "bridge", fixed(Object{"bridge": "cni0", "isGateway": true,
		"ipam": static("10.99.0.5/24", "10.99.0.1")}), 103, ""},
	{"another address for the gateway, by force", "bridge", fixed(Object{"bridge": "cni0", "isGateway": true,
		"forceAddress": true, "ipam": static("10.99.0.5/24", "10.99.0.1")}), 103, cutOff},
	{"the node's router as the gateway", "bridge", fixed(Object{"bridge": "brx", "isGateway": true,
		"ipam": static("192.0.2.5/24", "192.0.2.2")}), 103, nodeOff},
	{"the node's router as the gateway of a point to point link", "ptp",
		fixed(Object{"ipam": static("192.0.2.5/24", "192.0.2.2")}), 103, nodeOff},

	{"the node's own address, on its uplink", "ipvlan",
		fixed(Object{"master": "ext", "ipam": static("192.0.2.1/24", "")}), 103, nodeOff},

	// Links.
	{"the victim's host end, as a device", "host-device", func(v *neighbor, _ *Pod) Object {
		return Object{"device": v.hostEnd()}
	}, 103, cutOff},
	{"the victim's host end, as a master", "macvlan", func(v *neighbor, _ *Pod) Object {
		return Object{"master": v.hostEnd(), "mode": "passthru"}
	}, 103, ""},
	{"the victim's host end, as the master of a VLAN", "vlan", func(v *neighbor, _ *Pod) Object {
		return Object{"master": v.hostEnd(), "vlanId": 5}
	}, 103, ""},
	{"the victim's bridge, as a master that receives nothing more", "macvlan",
		fixed(Object{"master": "cni0", "mode": "passthru"}), 103, cutOff},
	{"the victim's bridge, as a device", "host-device", fixed(Object{"device": "cni0"}), 7, ""},
	{"the victim's bridge, with a small MTU", "bridge", fixed(Object{"bridge": "cni0", "mtu": 1000}), 0, noIPv6},
	{"the victim's bridge, promiscuous and in a VLAN", "bridge", fixed(Object{"bridge": "cni0", "promiscMode": true,
		"vlan": 5, "isGateway": true, "ipam": static("10.99.0.5/24", "10.99.0.1")}), 2, changed},

	// prevResult.
	{"a made-up result with the victim's host end", "ptp", func(v *neighbor, p *Pod) Object {
		return Object{"ipam": static("10.99.0.5/24", "10.99.0.1"), "prevResult": result(p, v.Addr(),
			Object{"name": v.hostEnd(), "mac": v.Decode().Interfaces[1].MAC})}
	}, 0, ""},
	{"a made-up result with the victim's namespace", "ptp", func(v *neighbor, _ *Pod) Object {
		return Object{"ipam": static("10.99.0.5/24", "10.99.0.1"), "prevResult": v.Result}
	}, 0, ""},
	{"a limit of bandwidth for the victim's host end", "bandwidth", func(v *neighbor, p *Pod) Object {
		return Object{"ingressRate": 8000, "ingressBurst": 80000, "egressRate": 8000, "egressBurst": 80000,
			"prevResult": v.Result}
	}, 4, ""},
	{"firewall rules of the victim's address", "firewall", func(v *neighbor, p *Pod) Object {
		return Object{"ingressPolicy": "isolated", "prevResult": result(p, v.Addr())}
	}, 7, changed},
	{"firewall rules of the victim's own result", "firewall", func(v *neighbor, p *Pod) Object {
		return Object{"prevResult": v.Result}
	}, 0, changed},
	{"a host port that forwards to the victim", "portmap", func(v *neighbor, p *Pod) Object {
		return Object{"prevResult": result(p, v.Addr()), "runtimeConfig": published(foreignPort, nil)}
	}, 7, opened},
	{"the victim's host port", "portmap", func(v *neighbor, p *Pod) Object {
		return Object{"prevResult": result(p, v.Addr()), "runtimeConfig": published(8080, nil)}
	}, 7, ""},
	{"a host port that forwards to the node's loopback", "portmap", func(v *neighbor, p *Pod) Object {
		return Object{"prevResult": result(p, "127.0.0.1"), "runtimeConfig": published(foreignPort, nil)}
	}, 7, ""},
	{"a host port that forwards to another machine", "portmap", func(v *neighbor, p *Pod) Object {
		return Object{"prevResult": result(p, "198.51.100.1"), "runtimeConfig": published(9091, nil)}
	}, 7, localnet},
	{"a host port of an address that the node does not have", "portmap", func(v *neighbor, p *Pod) Object {
		foreign := published(nextPort, Object{"hostIP": "198.51.100.9"})
		return Object{"prevResult": attachedByHand(v, p), "runtimeConfig": foreign}
	}, 0, ""},
	{"a limit for the victim by the tenant's own indexes", "bandwidth", func(v *neighbor, p *Pod) Object {
		end := Show(v.node.Host, v.hostEnd())
		IP(p.Host, "link add eth0 index %d type veth peer name x index %d", end.Peer, end.Index)
		return Object{"ingressRate": 8000, "ingressBurst": 80000, "egressRate": 8000, "egressBurst": 80000,
			"prevResult": result(p, "10.99.0.5", Object{"name": v.hostEnd()})}
	}, 7, cutOff + either + lost}, // because the connections share the little bandwidth
	{"a network with the victim's name and no policy", "firewall", func(v *neighbor, p *Pod) Object {
		return Object{"name": v.Network, "ingressPolicy": "open", "prevResult": attachedByHand(v, p)}
	}, 0, ""},
	{"sysctls of the victim's interface", "tuning", func(v *neighbor, p *Pod) Object {
		return Object{"sysctl": Object{"net.ipv4.conf." + v.hostEnd() + ".forwarding": "0"}, "prevResult": v.Result}
	}, 7, ""},
	{"the settings of the victim's interface", "tuning", func(v *neighbor, p *Pod) Object {
		return Object{"mtu": 100, "mac": "02:00:00:00:00:09", "prevResult": v.Result}
	}, 4, ""},
}

// referenceOn returns the node with the reference plugins, whose answers are not checked.
func referenceOn(n *World) *World {
	GinkgoHelper()
	theirs := n.With(nstest.Newest())
	theirs.Other = theirs.Try
	return theirs
}

// run serves the calls of an attack with the plugins of w, and returns the code of ADD and the harm.
func (a attack) run(w *World, v *neighbor) (code uint, harm []string) {
	GinkgoHelper()
	tenant := NewPod("tenant")
	conf := Merge(Object{"cniVersion": "1.0.0", "name": "tenant", "type": a.plugin}, a.keys(v, tenant))
	for i, command := range []string{"ADD", "DEL", "DEL"} {
		call := Call{Command: command, ID: "tenant", Netns: tenant.Netns, Conf: conf}
		if i == 2 {
			call.Netns = ""
		}
		answer := w.Try(a.plugin, call)
		GinkgoWriter.Println(command, answer.Stdout, answer.Stderr)
		if e, failed := cni.DecodeError([]byte(answer.Stdout)); command == "ADD" && failed {
			code = e.Code
		}
		if harm = v.harm(); len(harm) > 0 {
			break
		}
		if command == "ADD" && a.plugin == "portmap" {
			if harm = v.nextHarm(); len(harm) > 0 {
				break
			}
		}
	}
	return code, harm
}

// attempt calls run, which runs an attack on a new node. It calls run again if the only harm is a lost segment, because
// a busy machine may lose one without an attack.
func attempt(run func() (code uint, harm []string)) (code uint, harm []string) {
	GinkgoHelper()
	if code, harm = run(); slices.Equal(harm, []string{lost}) {
		return run()
	}
	return code, harm
}

var _ = Describe("a tenant's configuration", Label("tenant-attack"), func() {
	for _, a := range attacks {
		labels, need := kernelOf(a.plugin)
		It("harms no other container: "+a.plugin+", "+a.name, labels, func() {
			need()
			code, harm := attempt(func() (uint, []string) {
				n := NewNode()
				code, harm := a.run(n, newNeighbor(n, Usual("")))
				n.Spoiled = len(harm) > 0 // run has not called DEL
				return code, harm
			})
			Expect(harm).To(BeEmpty())
			Expect(code).To(Equal(a.code))
		})

		It("harms others with the reference as SECURITY.md says: "+a.plugin+", "+a.name, labels, Label("slow"), func() {
			need()
			nstest.Need("iptables")
			_, harm := attempt(func() (uint, []string) {
				n := NewNode()
				n.Spoiled = true
				theirs := referenceOn(n)
				return a.run(theirs, newNeighbor(theirs, Usual("iptables")))
			})
			Expect(strings.Split(a.theirs, either)).To(ContainElement(append(harm, "")[0]))
		})
	}
})
