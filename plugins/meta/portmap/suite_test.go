package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/hawser-cni/plugins/pkg/nstest"
	. "github.com/hawser-cni/plugins/pkg/nstest/plugintest"
)

func TestMain(m *testing.M) { nstest.Main(m) }

func TestPortmap(t *testing.T) { nstest.RunSpecs(t, "plugins/meta/portmap") }

// world is a host with networks 1 and 2, each a bridge with containers, and a machine outside.
type world struct {
	*World
	out *nstest.Host // 192.0.2.2 and 2001:db8::2; the host has .1 and ::1
}

func newWorld() *world {
	GinkgoHelper()
	nstest.Need("nft", "nft-inet-nat", "nft-fib")
	w := &world{World: NewWorld(plugin())}
	w.out = w.Router()
	w.Bridge(1)
	w.Bridge(2)
	// A refusal is an answer that must come each time.
	w.SetSysctl("net/ipv4/icmp_ratelimit", "0")
	w.SetSysctl("net/ipv6/icmp/ratelimit", "0")
	return w
}

// container is an interface of a container, and what the plugin before portmap says of it.
type container struct {
	*nstest.Host
	w       *world
	network string
	id      string
	ifName  string
	hostEnd string
	ips     []string // with the lengths of their prefixes
}

// container makes one on network n, with address number i.
func (w *world) container(n, i int) *container {
	GinkgoHelper()
	c := &container{Host: nstest.NewNetns(), w: w, id: fmt.Sprintf("c%d-%d", n, i)}
	return c.second("eth0", n, i)
}

// newContainer makes a world with the first container of network 1.
func newContainer() (*world, *container) {
	GinkgoHelper()
	w := newWorld()
	return w, w.container(1, 2)
}

// newContainers makes a world with two containers of network 1.
func newContainers() (w *world, a, b *container) {
	GinkgoHelper()
	w, a = newContainer()
	return w, a, w.container(1, 3)
}

// second is another interface of the container, on network n.
func (c *container) second(ifName string, n, i int) *container {
	GinkgoHelper()
	s := &container{w: c.w, Host: c.Host, network: fmt.Sprintf("net%d", n), id: c.id, ifName: ifName}
	s.hostEnd, s.ips = c.w.Join(c.Host, ifName, n, i)
	return s
}

// addr is the container's address of a family.
func (c *container) addr(v6 bool) string {
	i := slices.IndexFunc(c.ips, func(ip string) bool { return strings.Contains(ip, ":") == v6 })
	return Addr(c.ips[i])
}

// vanish ends the container without DEL: its namespace and so its pair go.
func (c *container) vanish() {
	GinkgoHelper()
	c.Unpin()
	// The kernel may have been quicker.
	c.w.Run(nstest.Program{Path: "ip", Args: []string{"link", "del", c.hostEnd}})
	Expect(c.w.Run(nstest.Program{Path: "ip", Args: []string{"link", "show", c.hostEnd}}).Exit).NotTo(BeZero())
}

// conf is a configuration; keys are added, or taken away by nil.
func conf(more ...Object) Object {
	return Merge(append([]Object{{"cniVersion": "1.1.0", "name": "net1", "type": "portmap"}}, more...)...)
}

// ports is a runtimeConfig: "8080:80", "8080:80/udp", "192.0.2.1:8080:80", "[::]:8080:80".
func ports(list ...string) Object {
	var out []Object
	for _, text := range list {
		text, proto, _ := strings.Cut(text, "/")
		if proto == "" {
			proto = "tcp"
		}
		cut := strings.LastIndex(text, ":")
		m := Object{"containerPort": json.Number(text[cut+1:]), "protocol": proto}
		text = text[:cut]
		if cut = strings.LastIndex(text, ":"); cut >= 0 {
			m["hostIP"] = strings.Trim(text[:cut], "[]")
		}
		m["hostPort"] = json.Number(text[cut+1:])
		out = append(out, m)
	}
	return Object{"runtimeConfig": Object{"portMappings": out}}
}

// prevResult is what the plugin before said.
func (c *container) prevResult() Object {
	var ips []Object
	for _, ip := range c.ips {
		ips = append(ips, Object{"address": ip, "interface": 1})
	}
	return Object{"cniVersion": "1.1.0", "ips": ips,
		"interfaces": []Object{{"name": c.hostEnd}, {"name": c.ifName, "sandbox": c.Path}}}
}

// outcome is what a call gave back.
type outcome struct {
	exit           int
	stdout, stderr string
	Code           uint
	Msg            string
}

func (o outcome) text() string { return fmt.Sprintf("exit %d %s %s", o.exit, o.stdout, o.stderr) }

// as is a call about the container. A nil prevResult in the configuration takes it away.
func (c *container) as(command string, more ...Object) Call {
	all := append([]Object{{"name": c.network, "prevResult": c.prevResult()}}, more...)
	return Call{Command: command, ID: c.id, IfName: c.ifName, Netns: c.Path, Conf: conf(all...)}
}

func (c *container) call(command string, more ...Object) outcome {
	GinkgoHelper()
	return c.w.run(c.as(command, more...))
}

func (w *world) run(call Call) outcome {
	GinkgoHelper()
	a := w.Call(call)
	o := outcome{exit: a.Code, stdout: a.Stdout, stderr: a.Stderr}
	_ = json.Unmarshal([]byte(a.Stdout), &o)
	return o
}

func (w *world) status(more ...Object) outcome {
	GinkgoHelper()
	return w.run(Call{Command: "STATUS", Conf: conf(more...)})
}

// succeeds makes calls that say nothing.
func (c *container) succeeds(command string, more ...Object) {
	GinkgoHelper()
	Expect(c.call(command, more...).text()).To(Equal("exit 0  "))
}

// fails is what a call says that must fail with a code.
func (c *container) fails(command string, code uint, more ...Object) string {
	GinkgoHelper()
	o := c.call(command, more...)
	Expect(o.Code).To(Equal(code), o.text())
	return o.Msg
}

func (c *container) add(more ...Object) {
	GinkgoHelper()
	o := c.call("ADD", more...)
	Expect(o.exit).To(BeZero(), o.text())
}

func (c *container) del(more ...Object) {
	GinkgoHelper()
	c.succeeds("DEL", more...)
}

func (c *container) check(more ...Object) {
	GinkgoHelper()
	c.succeeds("CHECK", more...)
}

// gc runs GC of a network with these attachments valid: "c1/eth0".
func (w *world) gc(network string, valid ...string) {
	GinkgoHelper()
	refs := []Object{}
	for _, v := range valid {
		id, ifName, _ := strings.Cut(v, "/")
		refs = append(refs, Object{"containerID": id, "ifname": ifName})
	}
	w.Succeeds(Call{Command: "GC", Conf: conf(Object{"name": network, "cni.dev/valid-attachments": refs})})
}

// kinds are the backends: what a configuration says, and which iptables there is.
type kind struct {
	name    string
	config  Object
	variant string
}

var kinds = []kind{
	{"nftables", Object{}, "nft"},
	{"iptables-nft", Object{"backend": "iptables"}, "nft"},
	{"iptables-legacy", Object{"backend": "iptables"}, "legacy"},
}

// ruleset is both nftables, and iptables of either variant.
func (w *world) ruleset() string {
	GinkgoHelper()
	return w.Snapshot("nftables", "iptables-legacy")
}

// rules is the state of the host that portmap may change, in no order: rules of others may have moved.
func (w *world) rules() string {
	GinkgoHelper()
	lines := strings.Split(w.ruleset(), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n") + w.Cmd("sh", "-c", "grep . /proc/sys/net/ipv4/conf/br*/route_localnet || true")
}

// localnet is route_localnet of bridges 1 and 2.
func (w *world) localnet() string {
	GinkgoHelper()
	return w.Sysctl("net/ipv4/conf/br1/route_localnet") + w.Sysctl("net/ipv4/conf/br2/route_localnet")
}

// natRules are both families' nat table as iptables says it.
func (w *world) natRules() string {
	GinkgoHelper()
	return w.Cmd("iptables", "-t", "nat", "-S") + w.Cmd("ip6tables", "-t", "nat", "-S")
}

// soon is how long to wait for what must not come.
func soon(ms int) time.Duration {
	return nstest.Patience(time.Duration(ms) * time.Millisecond)
}
