package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestVRF(t *testing.T) { nstest.RunSpecs(t, "vrf") }

// world has a container with eth0 and net1, each on a router of its own.
type world struct {
	*World
	cont    *nstest.Host
	routers map[string]*nstest.Host
}

func newWorld() *world {
	GinkgoHelper()
	w := &world{World: NewWorld(plugin()), cont: nstest.NewNetns(), routers: map[string]*nstest.Host{}}
	w.link("eth0", "10.1.0.2/24", "fd01::2/64")
	w.link("net1", "10.2.0.2/24", "fd02::2/64")
	IP(w.cont, "route add default via 10.1.0.1")
	// With the first VRF of a namespace the kernel makes a rule that stays.
	first := "ip link add first type vrf table 999 && ip link del first"
	w.cont.Run(nstest.Program{Path: "sh", Args: []string{"-c", first}})
	return w
}

// link makes an interface of the container, whose IPv6 addresses the kernel takes away when
// it is set down, and its router.
func (w *world) link(name string, addrs ...string) {
	GinkgoHelper()
	router := nstest.NewNetns()
	w.routers[name] = router
	IP(w.cont, "link add %s type veth peer name port netns %s", name, router.Name)
	for host, link := range map[*nstest.Host]string{w.cont: name, router: "port"} {
		host.SetSysctl("net/ipv6/conf/"+link+"/accept_dad", "0")
		host.SetSysctl("net/ipv6/conf/"+link+"/addr_gen_mode", "1") // no link-local address
	}
	IP(w.cont, "link set %s up", name)
	IP(router, "link set port up")
	for _, a := range addrs {
		nodad := ""
		if strings.Contains(a, ":") {
			nodad = "nodad" // as our plugins have them, also after a VRF
		}
		IP(w.cont, "addr add %s dev %s %s", a, name, nodad)
	}
	w.usable(name)
}

// usable waits for the IPv6 addresses of an interface that was made by the spec: a worker of
// the kernel makes the route to them.
func (w *world) usable(name string) {
	GinkgoHelper()
	w.cont.SetSysctl("net/ipv6/conf/"+name+"/accept_dad", "0")
	for _, a := range Show(w.cont, name).AddrInfo {
		if strings.Contains(a.Local, ":") {
			Eventually(func() string { return IP(w.cont, "-6 route show table all type local %s", a.Local) },
				nstest.Hang).Should(ContainSubstring(a.Local))
		}
	}
}

// call is a call about net1 and the VRF red, after a plugin that made net1.
func (w *world) call(command string, keys Object) Call {
	prev := Object{"cniVersion": "1.1.0",
		"interfaces": []Object{{"name": "net1", "sandbox": w.cont.Path}},
		"ips":        []Object{{"address": "10.2.0.2/24", "interface": 0}, {"address": "fd02::2/64", "interface": 0}}}
	conf := Object{"cniVersion": "1.1.0", "name": "net", "type": "vrf", "vrfname": "red", "prevResult": prev}
	return Call{Command: command, IfName: "net1", Netns: w.cont.Path, Conf: Merge(conf, keys)}
}

// of is a call about another interface and VRF.
func (w *world) of(command, ifName, vrf string, keys Object) Call {
	c := w.call(command, Merge(Object{"vrfname": vrf,
		"prevResult": Object{"cniVersion": "1.1.0", "interfaces": []Object{{"name": ifName}}}}, keys))
	c.IfName = ifName
	return c
}

// add is an ADD that must succeed, and says nothing else.
func (w *world) add(keys Object) Result {
	GinkgoHelper()
	a := w.Call(w.call("ADD", keys))
	Expect(a.Stderr).To(BeEmpty())
	return a.Added()
}

// del is a DEL that knows nothing of prevResult.
func (w *world) del(keys Object) {
	GinkgoHelper()
	c := w.of("DEL", "net1", "red", Merge(Object{"prevResult": nil}, keys))
	Expect(w.Call(c)).To(Equal(Answer{}))
}

// vrfs are the VRFs with their tables and members: "red 1 net1".
func (w *world) vrfs() []string {
	GinkgoHelper()
	var links []struct {
		Ifname, Master string
		Flags          []string
		Linkinfo       struct {
			Kind string         `json:"info_kind"`
			Data map[string]any `json:"info_data"`
		}
	}
	w.cont.JSON(&links, "ip", "-j", "-d", "link")
	out := []string{}
	for _, l := range links {
		if l.Linkinfo.Kind != "vrf" {
			continue
		}
		line := fmt.Sprintf("%s %v", l.Ifname, l.Linkinfo.Data["table"])
		for _, member := range links {
			if member.Master == l.Ifname {
				line += " " + member.Ifname
			}
		}
		if !slices.Contains(l.Flags, "UP") {
			line += " down"
		}
		out = append(out, line)
	}
	return out
}

// routes are the unicast routes of a table that have to do with an interface, as ip(8) writes
// them, in one line each.
func (w *world) routes(table, ifName string) []string {
	GinkgoHelper()
	var out []string
	for _, family := range []string{"-4", "-6"} {
		show := []string{family, "route", "show", "table", table, "type", "unicast"}
		done := w.cont.Run(nstest.Program{Path: "ip", Args: show})
		for line := range strings.SplitSeq(strings.ReplaceAll(done.Stdout, "\n\t", " "), "\n") {
			if strings.Contains(line+" ", " "+ifName+" ") {
				out = append(out, strings.Join(strings.Fields(strings.ReplaceAll(line, " pref medium", "")), " "))
			}
		}
	}
	return out
}
